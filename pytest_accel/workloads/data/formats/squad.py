"""SQuAD as its authors publish it: articles, paragraphs, questions, and answers by their place in the paragraph.

Both versions: 1.1 (arXiv:1606.05250), and 2.0 with questions that have no answer (arXiv:1806.03822).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_accel.workloads.data import checksums
from pytest_accel.workloads.data.errors import missing, reading, unreadable
from pytest_accel.workloads.data.formats.places import find_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_accel.workloads.data.formats.places import Split

FILES = {
    ("train", "1.1"): "train-v1.1.json",
    ("test", "1.1"): "dev-v1.1.json",  # the answers of the test set were never published
    ("train", "2.0"): "train-v2.0.json",
    ("test", "2.0"): "dev-v2.0.json",
}
REMEDY = "Download the file again."
MISPLACED_SHARE = 0.01  # of the answers, that may be left out; with more the file is something else


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a paragraph, and where its first answer stands there; None: it has none."""

    id: str
    text: str
    paragraph: int  # its number in Squad.paragraphs
    answer: tuple[int, int] | None  # characters from, to


@dataclass(frozen=True, slots=True, kw_only=True)
class Squad:
    """All questions of a file. Those whose answer is not where it is said to be are left out, and named."""

    path: Path
    paragraphs: tuple[str, ...]
    questions: tuple[Question, ...]
    misplaced: tuple[str, ...]  # ids


def find_squad(root: Path, split: Split, *, version: str = "1.1") -> Path:
    """Return the file of a split under the root of all data sets."""
    if (split, version) not in FILES:
        valid = ", ".join(f"{split} of {version}" for split, version in FILES)
        raise ValueError(f"split: {split!r} of version {version!r} is not known. Valid: {valid}.")
    path = find_folder(root, "squad", "squad") / FILES[split, version]
    if not path.is_file():
        raise missing("squad", [path], "Download it there.")
    return path


def read_squad(path: Path) -> Squad:
    """Read a file; DataError with the question where it is not SQuAD.

    Among 100,000 answers some stand elsewhere than they say: they are left out and counted, up to one in a hundred.
    """
    paragraphs: list[str] = []
    questions: list[Question] = []
    misplaced: list[str] = []
    answers = 0
    for number, paragraph in enumerate(_paragraphs(path)):
        context = _field(path, paragraph, "context", str, f"paragraph {number}")
        paragraphs.append(context)
        for found in _field(path, paragraph, "qas", list, f"paragraph {number}"):
            question, fits = _question(path, found, context, number)
            answers += question.answer is not None
            if fits:
                questions.append(question)
            else:
                misplaced.append(question.id)
    if len(misplaced) > MISPLACED_SHARE * answers:
        raise unreadable(
            path,
            f"question {misplaced[0]}: its answer is not at its answer_start; {len(misplaced)} of {answers} are so",
            f"{REMEDY} Up to {MISPLACED_SHARE:.0%} are left out.",
        )
    if not questions:
        raise unreadable(path, "no question in it", REMEDY)
    return Squad(
        path=path,
        paragraphs=tuple(paragraphs),
        questions=tuple(questions),
        misplaced=tuple(misplaced),
    )


def _paragraphs(path: Path) -> Iterator[dict[str, Any]]:
    checksums.verify(path, folder=path.parent)
    with reading(path):
        data = path.read_bytes()
    try:
        found = json.loads(data.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise unreadable(f"{path}:{error.lineno}", f"not JSON: {error.msg}", REMEDY) from None
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"not JSON: {error}", REMEDY) from None
    for number, article in enumerate(_field(path, found, "data", list, "the file")):
        yield from _field(path, article, "paragraphs", list, f"article {number}")


def _question(path: Path, found: object, context: str, paragraph: int) -> tuple[Question, bool]:
    """A question, and whether its answer is where it says."""
    id_ = _field(path, found, "id", str, f"a question of paragraph {paragraph}")
    where = f"question {id_}"
    assert isinstance(found, dict)  # it has an id
    text = _field(path, found, "question", str, where)
    impossible = found.get("is_impossible", False)
    if type(impossible) is not bool:
        raise unreadable(path, f"{where}: is_impossible is {impossible!r}, not true or false", REMEDY)
    answers = _field(path, found, "answers", list, where)
    if impossible or not answers:
        if answers or not impossible:
            problem = "is impossible, and has an answer" if impossible else "has no answer"
            raise unreadable(path, f"{where}: {problem}", REMEDY)
        return Question(id=id_, text=text, paragraph=paragraph, answer=None), True
    answer = _field(path, answers[0], "text", str, f"{where}, its answer")
    start = _field(path, answers[0], "answer_start", int, f"{where}, its answer")
    question = Question(id=id_, text=text, paragraph=paragraph, answer=(start, start + len(answer)))
    return question, start >= 0 and bool(answer.strip()) and context[start : start + len(answer)] == answer


def _field(path: Path, found: object, name: str, kind: type, where: str) -> Any:  # noqa: ANN401 - of that kind
    """A field of an object; the type is exact: true is no number."""
    if not isinstance(found, dict):
        raise unreadable(path, f"{where}: not an object", REMEDY)
    if name not in found:
        raise unreadable(path, f"{where}: has no {name!r}", REMEDY)
    if type(found[name]) is not kind:
        names = {str: "a string", list: "a list", int: "a whole number"}
        raise unreadable(
            path, f"{where}: {name!r} is {type(found[name]).__name__}, not {names[kind]}", REMEDY
        )
    return found[name]
