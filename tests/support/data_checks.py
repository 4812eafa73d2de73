"""Assertions about data sets: errors, bytes and open files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from pytest_accel.workloads.data.encoded import EncodedImages
from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.images import open_images


def refused(root, name, split="train", kind=DataError):
    """Return the text of the error that opening the set raises."""
    with pytest.raises(DataError) as caught:
        open_images(root, name, split)
    assert type(caught.value) is kind
    assert "\n" in str(caught.value)  # what is wrong, then what to do
    return str(caught.value)


def unread(images, index):
    with pytest.raises(DataError) as caught:
        images.read(index)
    assert str(caught.value).startswith(f"{images.name(index)}: ")
    return str(caught.value)


def assert_read(images, written):
    assert isinstance(images, EncodedImages)
    assert len(images) == len(written.images)
    assert images.labels.dtype == torch.int64
    assert images.labels.tolist() == written.labels
    read = [images.read(index) for index in range(len(images))]
    assert all((each.dtype, each.dim()) == (torch.uint8, 1) for each in read)
    assert [each.numpy().tobytes() for each in read] == written.images


def open_under(folder):
    """Return the files of a folder that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them is gone again
            found.append(entry.readlink())
    return [path for path in found if path.is_relative_to(folder)]
