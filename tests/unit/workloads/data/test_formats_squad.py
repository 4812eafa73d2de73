"""SQuAD's two versions as published, and files that are something else."""

from __future__ import annotations

import json

import pytest

from pytest_accel.workloads.data.errors import DataError, DataMissing
from pytest_accel.workloads.data.formats.squad import find_squad, read_squad

CONTEXT = "The cat sat on a mat. Cats sat on mats."


def question(id_="q1", text="Where did it sit?", answer="a mat", start=15, **more):
    answers = (
        [] if answer is None else [{"text": answer, "answer_start": start}, {"text": "x", "answer_start": 0}]
    )
    return {"id": id_, "question": text, "answers": answers, **more}


def write(path, *questions, context=CONTEXT):
    path.parent.mkdir(exist_ok=True)
    paragraphs = [{"context": context, "qas": list(questions)}]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "Cats", "paragraphs": paragraphs}]}))
    return path


def refused(path):
    with pytest.raises(DataError) as caught:
        read_squad(path)
    assert "\n" in str(caught.value)  # what is wrong, then what to do
    first = str(caught.value).partition("\n")[0]
    assert first.startswith(f"{path}:")
    return first


def test_questions_are_read_with_their_first_answer(tmp_path):
    found = read_squad(
        write(tmp_path / "train-v1.1.json", question(), question("q2", answer="The cat", start=0))
    )
    assert found.paragraphs == (CONTEXT,)
    assert [(each.id, each.paragraph, CONTEXT[slice(*each.answer)]) for each in found.questions] == [
        ("q1", 0, "a mat"),
        ("q2", 0, "The cat"),
    ]
    assert found.misplaced == ()


def test_a_question_of_the_second_version_may_have_no_answer(tmp_path):
    impossible = question(
        "q2", answer=None, is_impossible=True, plausible_answers=[{"text": "cat", "answer_start": 4}]
    )
    found = read_squad(write(tmp_path / "train-v2.0.json", question(is_impossible=False), impossible))
    assert [each.answer for each in found.questions] == [(15, 20), None]


@pytest.mark.parametrize(
    ("answer", "start"), [("a mat", 14), ("a mat", -24), ("a mat", 5000), ("dog", 4), (" ", 3), ("", 3)]
)
def test_a_misplaced_answer_is_left_out_and_named(tmp_path, answer, start):
    good = [question(f"good{each}") for each in range(99)]
    found = read_squad(write(tmp_path / "a.json", *good, question("bad", answer=answer, start=start)))
    assert (len(found.questions), found.misplaced) == (99, ("bad",))


def test_many_misplaced_answers_are_one_error(tmp_path):
    good = [question(f"good{each}") for each in range(98)]
    bad = [question(f"bad{each}", start=1) for each in range(2)]
    text = refused(write(tmp_path / "a.json", *good, *bad))
    assert text.endswith("question bad0: its answer is not at its answer_start; 2 of 100 are so")


def without(field):
    return {name: value for name, value in question().items() if name != field}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (without("id"), "a question of paragraph 0: has no 'id'"),
        (without("question"), "question q1: has no 'question'"),
        (without("answers"), "question q1: has no 'answers'"),
        (question(7), "a question of paragraph 0: 'id' is int, not a string"),
        (question(text=None), "question q1: 'question' is NoneType, not a string"),
        (question(answer=None), "question q1: has no answer"),
        (question(is_impossible=True), "question q1: is impossible, and has an answer"),
        (question(is_impossible="no"), "question q1: is_impossible is 'no', not true or false"),
        (question(start="15"), "question q1, its answer: 'answer_start' is str, not a whole number"),
        (question(start=True), "question q1, its answer: 'answer_start' is bool, not a whole number"),
        (question(answer=5), "question q1, its answer: 'text' is int, not a string"),
        (question() | {"answers": ["a mat"]}, "question q1, its answer: not an object"),
        (question() | {"answers": {}}, "question q1: 'answers' is dict, not a list"),
        ("Where?", "a question of paragraph 0: not an object"),
    ],
    ids=str,
)
def test_a_question_that_is_none_is_named(tmp_path, found, said):
    assert refused(write(tmp_path / "a.json", found)) == f"{tmp_path / 'a.json'}: {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"data":\n [', ":2: not JSON"),
        ("[]", ": the file: not an object"),
        ("{}", ": the file: has no 'data'"),
        ('{"data": {}}', ": the file: 'data' is dict, not a list"),
        ('{"data": [7]}', ": article 0: not an object"),
        ('{"data": [{"paragraphs": [7]}]}', ": paragraph 0: not an object"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', ": paragraph 0: has no 'context'"),
        ('{"data": [{"paragraphs": [{"context": ""}]}]}', ": paragraph 0: has no 'qas'"),
        ('{"data": []}', ": no question in it"),
        ("[" * 100_000, ": not JSON"),
        ("", ":1: not JSON"),
    ],
)
def test_json_that_is_not_squad_is_one_error(tmp_path, text, said):
    path = tmp_path / "a.json"
    path.write_text(text)
    assert refused(path).startswith(f"{path}{said}")


def test_bytes_that_are_not_text_are_one_error(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'{"data": "\xff"}')
    assert "not JSON" in refused(path)


def test_files_lie_under_the_root_by_their_published_names(tmp_path):
    with pytest.raises(DataMissing, match="squad"):
        find_squad(tmp_path, "train")
    (tmp_path / "squad").mkdir()
    with pytest.raises(DataMissing, match=r"dev-v2\.0\.json"):
        find_squad(tmp_path, "test", version="2.0")
    path = write(tmp_path / "squad/train-v1.1.json", question())
    assert find_squad(tmp_path, "train") == path
    with pytest.raises(ValueError, match=r"Valid: train of 1\.1"):
        find_squad(tmp_path, "train", version="3")
