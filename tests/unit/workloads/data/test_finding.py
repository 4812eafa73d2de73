"""A set of any task is found, or said to be missing, without being read whole."""

from __future__ import annotations

import pytest

from pytest_accel.workloads.data.errors import DataMissing
from pytest_accel.workloads.data.sets import find_set
from tests.support.data_sets import write_cifar_binary
from tests.support.detection_sets import write_cityscapes, write_coco
from tests.support.vocabularies import write_bpe, write_wordpiece


def write_squad(root):
    write_wordpiece(root / "bert-base-uncased")
    (root / "squad").mkdir()
    (root / "squad" / "dev-v1.1.json").write_text("{}")


def write_texts(root):
    write_bpe(root / "gpt2")
    (root / "oscar").mkdir()
    (root / "oscar" / "a.jsonl").write_text('{"text": "a"}\n')


SETS = {
    "cifar100": write_cifar_binary,
    "coco": lambda root: write_coco(root / "coco", part="val2017"),
    "cityscapes": lambda root: write_cityscapes(root / "cityscapes", part="val"),
    "squad": write_squad,
    "oscar": write_texts,
}


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_found_where_it_is_and_missed_where_it_is_not(name, tmp_path):
    for root in (None, tmp_path):
        with pytest.raises(DataMissing, match="not found"):
            find_set(root, name)
    SETS[name](tmp_path)
    find_set(tmp_path, name)


def test_an_unknown_set_is_told_from_a_missing_one(tmp_path):
    with pytest.raises(ValueError, match=r"'cocoa' is not known\. Valid: .*coco.*squad"):
        find_set(tmp_path, "cocoa")
