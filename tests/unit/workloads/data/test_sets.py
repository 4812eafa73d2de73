"""Named data sets: normalization, and the search for any set."""

from __future__ import annotations

import pytest

from pytest_accel.workloads.data.files import DataMissing
from pytest_accel.workloads.data.images import open_images
from pytest_accel.workloads.data.sets import IMAGE_SETS, find_set
from tests.support.data_sets import write_cifar_binary
from tests.support.detection_sets import write_cityscapes, write_coco
from tests.support.vocabularies import write_bpe, write_wordpiece


def test_mean_and_deviation_of_digits_are_those_of_its_images():
    values = open_images(None, "digits", "train").images.double() / 255
    assert IMAGE_SETS["digits"].mean == (round(values.mean().item(), 4),)
    assert IMAGE_SETS["digits"].std == (round(values.std(correction=0).item(), 4),)


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
def test_set_is_found_under_its_root_and_nowhere_else(name, tmp_path):
    for root in (None, tmp_path):
        with pytest.raises(DataMissing, match="not found"):
            find_set(root, name)
    SETS[name](tmp_path)
    find_set(tmp_path, name)


def test_unknown_set_is_refused_and_not_called_missing(tmp_path):
    with pytest.raises(ValueError, match=r"'cocoa' is not known\. Valid: .*coco.*squad"):
        find_set(tmp_path, "cocoa")
