"""Decoding and sizing: real JPEGs of every kind, against slow references; what does not decode is named."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
import torchvision.io
from PIL import Image

from pytest_accel.workloads.data.errors import DataError
from pytest_accel.workloads.data.pixels import Crop, crop_on_host, decode_on_device, decode_on_host
from tests.support.data_sets import decoded_jpeg, jpeg

CPU = torch.device("cpu")


def as_tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return as_tensor(out.getvalue())


# On the host.


@pytest.mark.parametrize("kind", ["rgb", "grey", "cmyk"])
def test_every_kind_of_jpeg_comes_out_in_three_channels(kind):
    data = jpeg(40, 60, kind)
    found = decode_on_host(as_tensor(data), "it")
    reference = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.int64).transpose(2, 0, 1)
    assert found.shape == (3, 40, 60)
    assert found.dtype == torch.uint8
    # Both sides use libjpeg, but turn CMYK into RGB each by its own formula.
    assert np.abs(found.numpy().astype(np.int64) - reference).max() <= 3


def test_a_png_that_is_called_jpeg_decodes():  # ImageNet has one
    image = Image.new("RGB", (7, 5), (1, 2, 3))
    assert decode_on_host(saved(image, "PNG"), "it")[:, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_torn_jpeg_is_named(share):
    data = as_tensor(jpeg(40, 60))
    with pytest.raises(DataError, match=r"^cats/1\.jpg: does not decode: .*\nDownload or extract it again"):
        decode_on_host(data[: int(len(data) * share)], "cats/1.jpg")


@pytest.mark.parametrize(
    "data",
    [
        as_tensor(b"<html>not found</html>"),
        as_tensor(b"\xff\xd8\xff"),
        saved(
            Image.new("RGB", (9, 9)), "GIF", save_all=True, append_images=[Image.new("RGB", (9, 9), "red")]
        ),
        saved(Image.new("I;16", (9, 9)), "PNG"),
    ],
    ids=["html", "start", "animation", "16 bits"],
)
def test_what_is_no_photograph_is_named(data):
    with pytest.raises(DataError, match=r"^cats/1\.jpg: "):
        decode_on_host(data, "cats/1.jpg")


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (7, 50), (1, 1), (90, 30)])
def test_the_host_cuts_then_resizes_then_mirrors(height, width, mirrored):
    image = decoded_jpeg(100, 90)
    crop = Crop(top=5, left=20, height=height, width=width, mirrored=mirrored)
    found = crop_on_host(image, crop, 16)
    part = Image.fromarray(image[:, 5 : 5 + height, 20 : 20 + width].permute(1, 2, 0).numpy())
    reference = np.asarray(part.resize((16, 16), Image.Resampling.BILINEAR), np.int64)
    reference = reference[:, ::-1] if mirrored else reference
    assert found.shape == (3, 16, 16)
    assert found.dtype == torch.uint8
    assert np.abs(found.permute(1, 2, 0).numpy().astype(np.int64) - reference).max() <= 2


# A device that decodes, in the place of nvJPEG: it knows JPEG in RGB and in grey, and a batch fails as one.


class FakeDecoder:
    def __init__(self, refuses):
        self.refuses = refuses
        self.batches = []

    def __call__(self, encoded, *, mode, device):
        self.batches.append(len(encoded))
        for each in encoded:
            if self.refuses(each):
                raise RuntimeError("nvjpegDecode failed: 3\nmore")
        return [decode_on_host(each, "?") for each in encoded]


@pytest.fixture
def nvjpeg(monkeypatch):
    def install(refuses=lambda encoded: False):
        decoder = FakeDecoder(refuses)
        monkeypatch.setattr(torchvision.io, "decode_jpeg", decoder)
        return decoder

    return install


ENCODED = [as_tensor(jpeg(20 + each, 30, seed=each)) for each in range(4)]


def names(index):
    return f"cats/{index}.jpg"


def test_a_batch_is_decoded_in_one_call(nvjpeg):
    decoder = nvjpeg()
    assert [each.shape[1] for each in decode_on_device(ENCODED, CPU, names)] == [20, 21, 22, 23]
    assert decoder.batches == [4]


def test_what_the_device_refuses_is_decoded_on_the_host(nvjpeg):
    odd = as_tensor(jpeg(50, 50, "cmyk"))
    decoder = nvjpeg(lambda encoded: torch.equal(encoded, odd))
    found = decode_on_device([*ENCODED, odd], CPU, names)
    assert [each.shape[1] for each in found] == [20, 21, 22, 23, 50]
    assert torch.equal(found[4], decode_on_host(odd, "it"))
    assert decoder.batches == [5, 1, 1, 1, 1, 1]
    assert len(decode_on_device([odd], CPU, names)) == 1  # a batch of one is no sign of a broken device


def test_the_one_that_nobody_decodes_is_named(nvjpeg):
    torn = ENCODED[2][:200]
    nvjpeg(lambda encoded: len(encoded) == 200)
    with pytest.raises(DataError, match=r"^cats/2\.jpg: does not decode"):
        decode_on_device([ENCODED[0], ENCODED[1], torn, ENCODED[3]], CPU, names)


def test_a_device_that_decodes_nothing_is_told_with_the_remedy(nvjpeg):
    nvjpeg(lambda encoded: True)
    with pytest.raises(DataError, match=r"cats/0\.jpg and 3 more: .*failed: 3\n.*decode='host'") as caught:
        decode_on_device(ENCODED, CPU, names)
    assert str(caught.value).count("\n") == 1


def test_memory_that_runs_out_is_no_image_that_the_device_refuses(monkeypatch):
    def full(encoded, device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("pytest_accel.workloads.data.pixels._nvjpeg", full)
    with pytest.raises(torch.OutOfMemoryError):
        decode_on_device(ENCODED, CPU, names)
