"""Windows of questions and paragraphs: the tokens of an answer are the answer."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.answers import (
    CLS,
    PAD,
    SEP,
    QuestionBatch,
    QuestionSource,
    answer_pieces,
    cut_windows,
    open_squad,
    spans,
    synthetic_squad,
)
from pytest_accel.workloads.data.errors import DataMissing
from pytest_accel.workloads.data.formats.squad import Question, Squad
from pytest_accel.workloads.data.formats.wordpiece import WordPiece
from pytest_accel.workloads.data.order import TrainingOrder
from tests.support.vocabularies import PIECES, write_wordpiece

VOCABULARY = WordPiece(list(PIECES))
WORDS = ("the", "Cats", "sat", "on", "a", "mat,", "unaffable", "$50", "(it)", "Über", "zzz")


def squad(paragraph, *questions):
    """A set of one paragraph; questions as (text, answer's characters)."""
    return Squad(
        path=Path("train.json"),
        paragraphs=(paragraph,),
        questions=tuple(
            Question(id=str(number), text=text, paragraph=0, answer=answer)
            for number, (text, answer) in enumerate(questions)
        ),
        misplaced=(),
    )


def test_a_window_is_the_question_and_the_paragraph():
    paragraph = "The cats sat on a mat."
    found = cut_windows(squad(paragraph, ("Where?", (13, 21))), VOCABULARY, sequence=20, most_of_question=8)
    batch = found.read([0])
    tokens = [PIECES[each] for each in batch.input_ids[0].tolist()]
    assert tokens == [
        *("[CLS]", "where", "?", "[SEP]", "the", "cat", "##s", "sat", "on", "a", "mat", ".", "[SEP]"),
        *["[PAD]"] * 7,
    ]
    assert batch.attention_mask[0].tolist() == [1] * 13 + [0] * 7
    assert batch.token_type_ids[0].tolist() == [0] * 4 + [1] * 9 + [0] * 7
    assert (batch.start_positions.tolist(), batch.end_positions.tolist()) == ([8], [10])
    assert tokens[8:11] == ["on", "a", "mat"]
    assert {each.dtype for each in batch} == {torch.int64}
    assert batch._fields[:3] == ("input_ids", "attention_mask", "token_type_ids")


def test_an_answer_outside_a_window_is_at_zero_and_inside_at_its_place():
    paragraph = "cat " * 8 + "mat " + "cat " * 11  # 20 tokens
    found = cut_windows(
        squad(paragraph, ("Who?", (32, 35))), VOCABULARY, sequence=13, stride=3, most_of_question=2
    )
    # 2 tokens of question and 3 special ones leave 8: windows from 0, 3, 6, 9, 12 on, and the answer is token 8.
    assert found.starts.tolist() == [0, 4 + 8 - 3, 4 + 8 - 6, 0, 0]
    assert found.ends.tolist() == found.starts.tolist()
    assert found.lengths.tolist() == [13] * 5
    assert found.questions.tolist() == [0] * 5
    assert found.unreached == 0


def test_a_question_without_an_answer_is_at_zero():
    found = cut_windows(squad("The cat sat.", ("Who?", None)), VOCABULARY, sequence=80)
    assert (found.starts.tolist(), found.ends.tolist(), found.unreached) == ([0], [0], 0)


def test_a_long_question_loses_its_end():
    found = cut_windows(squad("The cat sat.", ("who " * 100, (0, 3))), VOCABULARY, sequence=384)
    assert found.question_ends.tolist() == [66]
    assert (found.tokens[0, 1:65] == PIECES.index("who")).all()
    assert found.starts.tolist() == [66]


def test_a_part_of_a_word_is_the_pieces_it_touches():
    pieces = VOCABULARY.pieces("an unaffable cat")  # an (unknown), un, ##aff, ##able, cat
    assert [PIECES[piece.token] for piece in pieces] == ["[UNK]", "un", "##aff", "##able", "cat"]
    assert answer_pieces(pieces, (3, 12)) == (1, 3)
    assert answer_pieces(pieces, (5, 8)) == (2, 2)
    assert answer_pieces(pieces, (6, 9)) == (2, 3)
    assert answer_pieces(pieces, (2, 3)) is None  # a space
    assert answer_pieces(pieces, (12, 16)) == (4, 4)


def test_an_answer_that_fits_no_window_is_counted():
    paragraph = "cat " * 100
    found = cut_windows(
        squad(paragraph, ("Who?", (0, 200)), ("Who?", (0, 3))), VOCABULARY, sequence=20, most_of_question=2
    )
    assert found.unreached == 1


@given(st.integers(0, 400), st.integers(2, 90), st.integers(1, 130))
def test_windows_cover_a_paragraph_and_overlap(pieces, room, stride):
    found = list(spans(pieces, room, stride))
    assert (found[0][0], found[-1][1]) == (0, pieces)
    assert all(end == first + room for first, end in found[:-1])
    assert all(0 <= end - first <= room for first, end in found)
    steps = {later[0] - former[0] for former, later in pairwise(found)}
    assert steps <= {min(stride, room // 2)}
    assert len(found) == 1 or found[-2][1] < pieces  # none is there for nothing


@st.composite
def sets(draw):
    """A paragraph, and questions whose answers are whole words of it."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=60))
    starts, text = [], ""
    for word in words:
        text += (
            draw(st.sampled_from(["", " ", "\n"])) if not text else draw(st.sampled_from([" ", "  ", "\n"]))
        )
        starts.append(len(text))
        text += word
    questions = []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(words) - 1))
        last = draw(st.integers(first, min(first + 2, len(words) - 1)))
        answer = draw(st.none() | st.just((starts[first], starts[last] + len(words[last]))))
        questions.append((" ".join(draw(st.lists(st.sampled_from(WORDS), max_size=8))), answer))
    return squad(text, *questions)


@given(sets(), st.integers(36, 70), st.integers(1, 40))
def test_the_tokens_of_an_answer_are_the_answer_and_every_answer_is_in_a_window(found, sequence, stride):
    windows = cut_windows(found, VOCABULARY, sequence=sequence, stride=stride, most_of_question=9)
    batch = windows.read(range(len(windows)))
    assert {each.shape for each in batch[:3]} == {(len(windows), sequence)}
    answered = set()
    for row in range(len(windows)):
        question = found.questions[int(windows.questions[row])]
        start, end = int(batch.start_positions[row]), int(batch.end_positions[row])
        if not start:
            assert end == 0
            continue
        answered.add(question.id)
        assert question.answer
        assert (batch.token_type_ids[row, start : end + 1] == 1).all()
        tokens = batch.input_ids[row, start : end + 1].tolist()
        assert tokens == VOCABULARY.encode(found.paragraphs[0][slice(*question.answer)])
    # Three words of 3 pieces at most, and windows overlap by 12 at the least.
    assert answered == {question.id for question in found.questions if question.answer}
    assert windows.unreached == 0


@given(sets(), st.integers(36, 70))
def test_windows_of_a_question_hold_its_whole_paragraph_in_order(found, sequence):
    windows = cut_windows(found, VOCABULARY, sequence=sequence, stride=5, most_of_question=9)
    paragraph = VOCABULARY.encode(found.paragraphs[0])
    for number, question in enumerate(found.questions):
        rows = [row for row in range(len(windows)) if int(windows.questions[row]) == number]
        asked = VOCABULARY.encode(question.text)[:9]
        begin, room = len(asked) + 2, sequence - len(asked) - 3
        for place, row in enumerate(rows):
            first = place * min(5, room // 2)
            tokens = windows.tokens[row].tolist()
            wanted = [
                VOCABULARY.cls,
                *asked,
                VOCABULARY.sep,
                *paragraph[first : first + room],
                VOCABULARY.sep,
            ]
            assert tokens == wanted + [VOCABULARY.pad] * (sequence - len(wanted))
            assert (int(windows.question_ends[row]), int(windows.lengths[row])) == (begin, len(wanted))


@pytest.mark.parametrize(("sequence", "stride"), [(68, 128), (384, 0)])
def test_a_shape_that_holds_no_window_is_refused(sequence, stride):
    with pytest.raises(ValueError, match="hold no window"):
        cut_windows(squad("cat", ("who?", None)), VOCABULARY, sequence=sequence, stride=stride)


def write_squad(root):
    (root / "squad").mkdir()
    questions = [
        {"id": str(each), "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]}
        for each in range(5)
    ]
    article = {"paragraphs": [{"context": "The cat sat.", "qas": questions}]}
    (root / "squad/train-v1.1.json").write_text(json.dumps({"data": [article]}))


def test_a_set_is_opened_under_the_root_and_dealt_once_an_epoch(tmp_path):
    write_squad(tmp_path)
    with pytest.raises(DataMissing, match="bert-base-uncased"):
        open_squad(tmp_path, "train")
    write_wordpiece(tmp_path / "bert-base-uncased")
    windows = open_squad(tmp_path, "train", sequence=128)
    assert windows.tokens.shape == (5, 128)
    windows.starts[:] = torch.arange(5)  # to tell them apart
    orders = [TrainingOrder(length=5, batch_size=2, rank=rank, world=2) for rank in range(2)]
    sources = [QuestionSource(windows, order, torch.device("cpu")) for order in orders]
    dealt = [each for _ in range(2) for source in sources for each in next(source)[1].start.tolist()]
    assert sorted(dealt[:5]) == list(range(5))
    sources[0].close()
    assert next(sources[0], None) is None
    with pytest.raises(ValueError, match="order: of 4 samples, and there are 5 windows"):
        QuestionSource(windows, TrainingOrder(length=4, batch_size=2), torch.device("cpu"))


@pytest.mark.parametrize("sequence", [16, 128, 384])
def test_made_up_windows_have_the_shape_of_real_ones(sequence):
    batch = synthetic_squad(64, sequence, 30522, torch.Generator().manual_seed(1))
    assert isinstance(batch, QuestionBatch)
    assert {each.dtype for each in batch} == {torch.int64}
    assert [tuple(each.shape) for each in batch] == [(64, sequence)] * 3 + [(64,)] * 2
    for ids, mask, types, start, end in zip(*(each.tolist() for each in batch), strict=True):
        length = sum(mask)
        assert mask == [1] * length + [0] * (sequence - length)
        begin = types.index(1)
        assert types == [0] * begin + [1] * (length - begin) + [0] * (sequence - length)
        assert (ids[0], ids[begin - 1], ids[length - 1]) == (CLS, SEP, SEP)
        assert ids[length:] == [PAD] * (sequence - length)
        assert all(999 <= each < 30522 for each in (*ids[1 : begin - 1], *ids[begin : length - 1]))
        assert begin <= start <= end < length - 1
    assert len(set(batch.attention_mask.sum(1).tolist())) > 5


def test_made_up_windows_repeat_with_their_seed():
    one, two, other = (
        synthetic_squad(4, 32, 2000, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one.input_ids, other.input_ids)


@pytest.mark.parametrize(("sequence", "vocabulary"), [(8, 30522), (384, 999)])
def test_too_little_to_make_up_is_refused(sequence, vocabulary):
    with pytest.raises(ValueError, match="are too few"):
        synthetic_squad(2, sequence, vocabulary, torch.Generator())
