"""SQuAD: questions are read exactly; the tokens of an answer in its window are the answer."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_accel.workloads.data.errors import DataError, DataMissing
from pytest_accel.workloads.data.order import TrainingOrder
from pytest_accel.workloads.data.squad import (
    CLS,
    PAD,
    SEP,
    Question,
    QuestionSource,
    answer_tokens,
    cut_windows,
    open_squad,
    read_squad,
    spans,
    synthetic_squad,
)
from pytest_accel.workloads.data.vocabularies import read_bert
from tests.support.vocabularies import PIECES, write_wordpiece

CONTEXT = "The cat sat on a mat."
WORDS = ("the", "Cats", "sat", "on", "a", "mat,", "unaffable", "$50", "(it)", "Über", "zzz")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return read_bert(write_wordpiece(tmp_path_factory.mktemp("bert")))


def question(text="a mat", start=15, number=0, **changes):
    answers = [{"text": text, "answer_start": start}, {"text": "other", "answer_start": 0}]
    entry = {"id": f"q{number}", "question": "Where did it sit?", "answers": answers} | changes
    return {key: value for key, value in entry.items() if value is not None}


def write(path, *questions):
    content = {"data": [{"title": "it", "paragraphs": [{"context": CONTEXT, "qas": [*questions]}]}]}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def refused(path):
    with pytest.raises(DataError) as caught:
        read_squad(path)
    assert "\nDownload the file again." in str(caught.value)
    return str(caught.value)


def test_questions_are_read_with_their_first_answer(tmp_path):
    (found,) = read_squad(write(tmp_path / "a.json", question()))
    assert found == Question("Where did it sit?", CONTEXT, (15, 20))


@pytest.mark.parametrize(
    ("text", "start"), [("a mat", 14), ("a mat", -6), ("a mat", 5000), ("dog", 4), ("", 3)]
)
def test_misplaced_answer_is_dropped_up_to_one_in_a_hundred(tmp_path, text, start):
    right = [question(number=each) for each in range(99)]
    assert len(read_squad(write(tmp_path / "a.json", *right, question(text, start, 99)))) == 99
    path = write(tmp_path / "a.json", *right[:50], question(text, start, 99))
    assert refused(path).startswith(f"{path}: question q99: its answer is not at its answer_start; 1 of 51")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"question": None}, "question q0, or the one after it: has no 'question'"),
        ({"id": None}, "the file, or the one after it: has no 'id'"),
        ({"answers": None}, "question q0, or the one after it: has no 'answers'"),
        ({"answers": []}, "question q0, or the one after it: "),
        ({"question": 7}, "question q0, or the one after it: 7 is not a string"),
        ({"answers": [{"text": "a mat", "answer_start": "15"}]}, "question q0, or the one after it: "),
    ],
)
def test_wrong_question_is_reported(tmp_path, changes, problem):
    path = write(tmp_path / "a.json", question(**changes))
    assert refused(path).startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"data": {}}', '{"data": [7]}', '{"data": []}', "", '{"data": [', "\xff"]
)
def test_file_that_is_not_squad_is_one_error(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    assert refused(path).startswith(str(path))


def test_window_holds_the_question_and_the_paragraph(vocabulary):
    questions = [Question("Where?", "The cats sat on a mat.", (13, 21))]
    inputs, answers = cut_windows(questions, vocabulary, sequence=20, max_question=8).read([0])
    tokens = [PIECES[each] for each in inputs.input_ids[0].tolist()]
    assert tokens == [
        *("[CLS]", "where", "?", "[SEP]", "the", "cat", "##s", "sat", "on", "a", "mat", ".", "[SEP]"),
        *["[PAD]"] * 7,
    ]
    assert inputs.attention_mask[0].tolist() == [1] * 13 + [0] * 7
    assert inputs.token_type_ids[0].tolist() == [0] * 4 + [1] * 9 + [0] * 7
    assert (answers.start.tolist(), answers.end.tolist()) == ([8], [10])
    assert {each.dtype for each in (*inputs, *answers)} == {torch.int64}


def test_answer_outside_a_window_is_at_zero(vocabulary):
    paragraph = "cat " * 8 + "mat " + "cat " * 11  # 20 tokens
    found = cut_windows(
        [Question("Who?", paragraph, (32, 35))], vocabulary, sequence=13, stride=3, max_question=2
    )
    # 2 tokens of question and 3 special ones leave 8: windows from 0, 3, 6, 9, 12 on, and the answer is token 8.
    assert found.starts.tolist() == [0, 4 + 8 - 3, 4 + 8 - 6, 0, 0]
    assert found.ends.tolist() == found.starts.tolist()
    assert found.lengths.tolist() == [13] * 5


def test_long_question_loses_its_end(vocabulary):
    found = cut_windows([Question("who " * 100, "The cat sat.", (0, 3))], vocabulary, sequence=384)
    assert found.question_ends.tolist() == [66]
    assert (found.tokens[0, 1:65] == PIECES.index("who")).all()
    assert found.starts.tolist() == [66]


def test_part_of_a_word_is_the_tokens_it_touches(vocabulary):
    offsets = vocabulary.encode("an unaffable cat")[1]  # an (unknown), un, ##aff, ##able, cat
    for answer, expected in {(3, 12): (1, 3), (5, 8): (2, 2), (6, 9): (2, 3), (12, 16): (4, 4)}.items():
        assert answer_tokens(offsets, answer) == expected
    assert answer_tokens(offsets, (2, 3)) is None  # a space


@given(st.integers(0, 400), st.integers(2, 90), st.integers(1, 130))
def test_windows_cover_a_paragraph_and_overlap(tokens, room, stride):
    found = list(spans(tokens, room, stride))
    assert (found[0][0], found[-1][1]) == (0, tokens)
    assert all(end == first + room for first, end in found[:-1])
    assert all(0 <= end - first <= room for first, end in found)
    assert {later[0] - former[0] for former, later in pairwise(found)} <= {min(stride, room // 2)}
    assert len(found) == 1 or found[-2][1] < tokens  # none is superfluous


@st.composite
def questions(draw):
    """Questions about one paragraph, whose answers are whole words of it."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=60))
    starts, text = [], ""
    for word in words:
        text += draw(st.sampled_from([" ", "  ", "\n"]))
        starts.append(len(text))
        text += word
    found = []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(words) - 1))
        last = draw(st.integers(first, min(first + 2, len(words) - 1)))
        asked = " ".join(draw(st.lists(st.sampled_from(WORDS), max_size=8)))
        found.append(Question(asked, text, (starts[first], starts[last] + len(words[last]))))
    return found


@given(questions(), st.integers(36, 70), st.integers(1, 40))
def test_tokens_of_an_answer_are_the_answer_and_every_answer_is_in_a_window(
    vocabulary, asked, sequence, stride
):
    for each in asked:
        windows = cut_windows([each], vocabulary, sequence=sequence, stride=stride, max_question=9)
        inputs, answers = windows.read(range(len(windows)))
        assert {part.shape for part in inputs} == {(len(windows), sequence)}
        assert answers.start.any()  # three words of 3 tokens at most, and windows overlap by 12 at least
        for row in torch.nonzero(answers.start).flatten().tolist():
            span = slice(int(answers.start[row]), int(answers.end[row]) + 1)
            assert (inputs.token_type_ids[row, span] == 1).all()
            assert (
                inputs.input_ids[row, span].tolist()
                == vocabulary.encode(each.paragraph[slice(*each.answer)])[0]
            )
    together = cut_windows(asked, vocabulary, sequence=sequence, stride=stride, max_question=9)
    alone = [
        cut_windows([each], vocabulary, sequence=sequence, stride=stride, max_question=9) for each in asked
    ]
    assert torch.equal(together.tokens, torch.cat([each.tokens for each in alone]))


@pytest.mark.parametrize(("sequence", "stride"), [(68, 128), (384, 0)])
def test_shape_that_holds_no_window_is_refused(vocabulary, sequence, stride):
    with pytest.raises(ValueError, match="hold no window"):
        cut_windows([Question("who?", "cat", (0, 3))], vocabulary, sequence=sequence, stride=stride)


def test_set_is_opened_under_the_root_and_read_once_an_epoch(tmp_path):
    write(tmp_path / "squad/train-v1.1.json", *(question(number=each) for each in range(5)))
    with pytest.raises(DataMissing, match="bert-base-uncased"):
        open_squad(tmp_path, "train")
    write_wordpiece(tmp_path / "bert-base-uncased")
    windows = open_squad(tmp_path, "train", sequence=128)
    assert windows.tokens.shape == (5, 128)
    windows.starts[:] = torch.arange(5)  # to tell them apart
    orders = [TrainingOrder(length=5, batch_size=2, rank=rank, world=2) for rank in range(2)]
    sources = [QuestionSource(windows, order, torch.device("cpu")) for order in orders]
    taken = [each for _ in range(2) for source in sources for each in next(source)[1].start.tolist()]
    assert sorted(taken[:5]) == list(range(5))
    sources[0].close()
    assert next(sources[0], None) is None


@pytest.mark.parametrize("sequence", [16, 128, 384])
def test_synthetic_windows_have_the_shape_of_real_ones(sequence):
    inputs, answers = synthetic_squad(64, sequence, 30522, torch.Generator().manual_seed(1))
    assert [tuple(each.shape) for each in (*inputs, *answers)] == [(64, sequence)] * 3 + [(64,)] * 2
    for ids, mask, types, start, end in zip(*(each.tolist() for each in (*inputs, *answers)), strict=True):
        length, begin = sum(mask), types.index(1)
        assert mask == [1] * length + [0] * (sequence - length)
        assert types == [0] * begin + [1] * (length - begin) + [0] * (sequence - length)
        assert (ids[0], ids[begin - 1], ids[length - 1]) == (CLS, SEP, SEP)
        assert ids[length:] == [PAD] * (sequence - length)
        assert all(999 <= each < 30522 for each in (*ids[1 : begin - 1], *ids[begin : length - 1]))
        assert begin <= start <= end < length - 1
    again = synthetic_squad(64, sequence, 30522, torch.Generator().manual_seed(1))
    assert torch.equal(again[0].input_ids, inputs.input_ids)
    other = synthetic_squad(64, sequence, 30522, torch.Generator().manual_seed(2))
    assert not torch.equal(other[0].input_ids, inputs.input_ids)
