"""Texts a line each: what is read, and the one error that names the line that is none."""

from __future__ import annotations

import gzip
import json

import pytest

from pytest_accel.workloads.data.errors import DataError, DataMissing
from pytest_accel.workloads.data.text import find_texts, read_documents

TEXTS = ["one", "two\nlines", "Grüße \u2028 漢字 😀", " "]


def lines(texts=TEXTS, key="text"):
    return "".join(json.dumps({"id": 7, key: text}) + "\n" for text in texts).encode()


def refused(path):
    with pytest.raises(DataError) as caught:
        list(read_documents(path))
    assert "\n" in str(caught.value)  # what is wrong, then what to do
    return str(caught.value).partition("\n")[0]


@pytest.mark.parametrize("key", ["text", "content"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_texts_are_read_as_they_were_written(tmp_path, pack, key):
    path = tmp_path / "a.jsonl"
    path.write_bytes(pack(lines(key=key)))
    assert list(read_documents(path)) == TEXTS


def test_characters_need_no_escapes_and_the_last_line_no_end(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "Grüße 漢"}\r\n\n  \n{"text": ""}\n{"text": "last"}', encoding="utf-8")
    assert list(read_documents(path)) == ["Grüße 漢", "last"]


def test_an_empty_file_has_no_texts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.touch()
    assert list(read_documents(path)) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "torn', "not JSON: "),
        (b"plain words", "not JSON: "),
        (b"[" * 100_000, "not JSON: "),
        (b"[1]", "not an object"),
        (b'"text"', "not an object"),
        (b'{"txt": "a"}', 'no "text" in it'),
        (b'{"text": null}', 'no "text" in it'),
        (b'{"text": 7}', '"text" is int'),
        (b'{"text": "a\xff"}', "not UTF-8 from its byte 11 on"),
        (b'{"text": "a\\ud800b"}', "half of a surrogate pair in its text, at 1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_a_line_that_is_no_text_is_named(tmp_path, line, said, pack):
    path = tmp_path / "a.jsonl"
    path.write_bytes(pack(lines(["one", "two"]) + b"\n" + line + b"\n" + lines(["three"])))
    text = refused(path)
    assert text.startswith(f"{path}:4: ")
    assert said in text


def test_a_torn_gzip_is_named_with_the_line_it_reaches(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress(lines())
    path.write_bytes(whole[:-8])
    assert refused(path).startswith(f"{path}:5: torn: ")
    path.write_bytes(whole[:30])
    assert refused(path).startswith(f"{path}:1: torn: ")
    path.write_bytes(whole[:-8] + bytes(8))
    assert refused(path).startswith(f"{path}:5: torn: ")


def test_zstandard_is_told_how_to_unpack(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\x28\xb5\x2f\xfd rest")
    assert refused(path) == f"{path}: compressed with zstd"


def test_files_are_found_in_the_order_of_their_names(tmp_path):
    with pytest.raises(DataMissing, match="oscar"):
        find_texts(tmp_path)
    folder = tmp_path / "oscar"
    folder.mkdir()
    with pytest.raises(DataMissing, match=r"\*\.jsonl\.gz"):
        find_texts(tmp_path)
    for name in ("b.jsonl", "a.jsonl.gz", ".c.jsonl", "readme.txt", "tokens-00.bin"):
        (folder / name).touch()
    (folder / "d.jsonl").mkdir()
    assert [path.name for path in find_texts(tmp_path)] == ["a.jsonl.gz", "b.jsonl"]


def test_a_file_that_is_gone_is_named(tmp_path):
    assert refused(tmp_path / "a.jsonl") == f"{tmp_path / 'a.jsonl'}: missing"


def test_sums_beside_the_texts_are_honoured(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines())
    (tmp_path / "MD5SUMS").write_text("0" * 32 + "  a.jsonl\n")
    assert "wrong checksum" in refused(tmp_path / "a.jsonl")
