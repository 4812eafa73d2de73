"""Cityscapes' folders: 34 ids become 19 classes and the ignored; what is missing or unknown is named."""

from __future__ import annotations

import pickle
import pickletools

import numpy as np
import pytest
import torch

from pytest_accel.workloads.data.errors import DataError, DataMissing
from pytest_accel.workloads.data.formats.cityscapes import CLASS_OF_ID, CLASSES, open_cityscapes
from tests.support.detection_sets import png, write_cityscapes


def refused(root, split="train"):
    with pytest.raises(DataError) as caught:
        open_cityscapes(root, split)
    assert type(caught.value) is DataError
    assert "\n" in str(caught.value)
    return str(caught.value)


def unread(root, index=0):
    with pytest.raises(DataError) as caught:
        open_cityscapes(root, "train").read(index)
    assert "\n" in str(caught.value)
    return str(caught.value)


def test_images_come_with_their_classes(tmp_path):
    written = write_cityscapes(tmp_path)
    found = open_cityscapes(tmp_path, "train")
    assert len(found) == 3
    for index, (image, mask, pixels, ids) in enumerate(written):
        assert (found.image_name(index), found.mask_name(index)) == (str(image), str(mask))
        read, classes = found.read(index)
        assert (read.dtype, classes.dtype) == (torch.uint8, torch.uint8)
        assert read.numpy().tolist() == pixels.tolist()
        assert classes.tolist() == [[CLASS_OF_ID[each].item() for each in row] for row in ids]


def test_the_table_is_that_of_the_benchmark():
    """Spot values from its label definitions: road, building, sky, person, car, bicycle; and void ones."""
    assert {each: CLASS_OF_ID[each].item() for each in (7, 11, 23, 24, 26, 33)} == {
        7: 0,
        11: 2,
        23: 10,
        24: 11,
        26: 13,
        33: 18,
    }
    void = [0, 1, 2, 3, 4, 5, 6, 9, 10, 14, 15, 16, 18, 29, 30]
    assert [each for each in range(34) if CLASS_OF_ID[each] == 255] == void
    assert sorted(set(CLASS_OF_ID.tolist())) == [*range(19), 255]
    assert CLASSES[0] == "road"
    assert CLASSES[18] == "bicycle"


def test_the_validation_images_are_the_test_split(tmp_path):
    write_cityscapes(tmp_path / "cityscapes", part="val", images=2)
    assert len(open_cityscapes(tmp_path, "test")) == 2
    folder = tmp_path / "cityscapes/leftImg8bit/train"
    assert refused(tmp_path).startswith(f"{folder}: missing")


def test_a_root_without_it_is_told_where_was_looked(tmp_path):
    with pytest.raises(DataMissing, match=f"{tmp_path}/cityscapes/leftImg8bit and {tmp_path}/leftImg8bit"):
        open_cityscapes(tmp_path, "train")


def test_a_split_without_an_image_is_refused(tmp_path):
    for folder in ("leftImg8bit/train/aachen", "gtFine/train"):
        (tmp_path / folder).mkdir(parents=True)
    assert refused(tmp_path).startswith(
        f"{tmp_path / 'leftImg8bit/train'}: holds no <city>/*_leftImg8bit.png"
    )


def test_an_image_without_its_mask_is_refused(tmp_path):
    written = write_cityscapes(tmp_path)
    written[1][1].unlink()
    text = refused(tmp_path)
    assert text.startswith(f"{written[1][1]}: missing; the image leftImg8bit/train/aachen/")
    written[0][1].unlink()
    assert refused(tmp_path).startswith(f"{written[0][1]}: missing, and so are 1 more; ")


def test_a_mask_without_its_image_is_refused(tmp_path):
    written = write_cityscapes(tmp_path)
    written[2][0].unlink()
    assert refused(tmp_path).startswith(f"{written[2][0]}: missing; the mask gtFine/train/zurich/")


def test_a_missing_folder_of_masks_is_named(tmp_path):
    write_cityscapes(tmp_path)
    (tmp_path / "gtFine").rename(tmp_path / "elsewhere")
    assert refused(tmp_path).startswith(f"{tmp_path / 'gtFine/train'}: missing")


@pytest.mark.parametrize("label_id", [34, 100, 255])
def test_an_unknown_id_is_named_with_its_file(tmp_path, label_id):
    _, mask, _, ids = write_cityscapes(tmp_path)[0]
    ids = ids.astype(np.uint8)
    ids[3, 5] = label_id
    mask.write_bytes(png(ids))
    assert unread(tmp_path).startswith(f"{mask}: the label id {label_id} is not known\nValid: 0 to 33")


def test_a_mask_of_another_size_is_named(tmp_path):
    _, mask, _, ids = write_cityscapes(tmp_path)[0]
    mask.write_bytes(png(ids[:, :30].astype(np.uint8)))
    assert unread(tmp_path).startswith(f"{mask}: 16 x 30 pixels for an image of 16 x 32")


@pytest.mark.parametrize(
    ("which", "content", "problem"),
    [
        (0, lambda whole: whole[:60], "does not decode"),
        (1, lambda whole: whole[:60], "does not decode"),
        (0, lambda whole: b"", "empty"),
        (1, lambda whole: b"", "empty"),
        (1, lambda whole: b"no image", "does not decode"),
        (1, lambda whole: png(np.zeros((3, 16, 32), np.uint8)), "not a PNG with one channel"),
    ],
)
def test_a_torn_or_wrong_file_is_named(tmp_path, which, content, problem):
    path = write_cityscapes(tmp_path)[0][which]
    path.write_bytes(content(path.read_bytes()))
    assert unread(tmp_path).startswith(f"{path}: {problem}")


def test_a_set_is_few_objects(tmp_path):
    def objects(images):
        write_cityscapes(tmp_path / str(images), images=images)
        return sum(
            1 for _ in pickletools.genops(pickle.dumps(open_cityscapes(tmp_path / str(images), "train")))
        )

    assert objects(2) == objects(9)
