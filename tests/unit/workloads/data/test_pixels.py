"""Pixels: decoding of every kind of JPEG, crops, conversion to model input, against slow references."""

from __future__ import annotations

import io
from random import Random

import numpy as np
import pytest
import torch
import torchvision.io
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional as F

from pytest_accel.workloads.data.files import DataError
from pytest_accel.workloads.data.pixels import (
    CROP_AREA,
    CROP_ASPECT,
    Crop,
    CropResize,
    ModelInput,
    PixelTransform,
    crop_for,
    crop_on_host,
    decode_on_device,
    decode_on_host,
    flip_randomly,
    shift_randomly,
)
from pytest_accel.workloads.data.sets import IMAGE_SETS
from tests.support.data_sets import decoded_jpeg, jpeg

MEAN, STD = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)


def some_pixels(count, channels=3, height=8, width=8, seed=0):
    random = torch.Generator().manual_seed(seed)
    shape = (count, channels, height, width)
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=random)  # no black: that is the outside


def model_input(**changes):
    plain = {
        "channels": 3,
        "size": 8,
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "memory_format": torch.contiguous_format,
        "mean": MEAN,
        "std": STD,
    }
    return ModelInput(**plain | changes)


def normalized(pixels, mean=MEAN, std=STD):
    mean, std = (torch.tensor(each, dtype=torch.float64).view(1, -1, 1, 1) for each in (mean, std))
    return (pixels.double() / 255 - mean) / std


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 6e-2)]
)
def test_values_are_normalized_by_channel(dtype, tolerance):
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3, 1).reshape(1, 3, 16, 16)
    found = PixelTransform(model_input(size=16, dtype=dtype))(pixels)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), normalized(pixels), atol=tolerance, rtol=0)


def test_grey_becomes_as_many_channels_as_the_model_reads():
    pixels = some_pixels(2, channels=1)
    found = PixelTransform(model_input(mean=(0.3,), std=(0.4,)))(pixels)
    assert found.shape == (2, 3, 8, 8)
    for channel in range(3):
        torch.testing.assert_close(
            found[:, channel : channel + 1].double(), normalized(pixels, (0.3,), (0.4,)), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("size", [5, 8, 20])
def test_images_are_resized_to_what_the_model_reads(size):
    pixels = some_pixels(2)
    reference = F.interpolate(pixels.double(), size=(size, size), mode="bilinear", align_corners=False)
    found = PixelTransform(model_input(size=size))(pixels)
    torch.testing.assert_close(found.double(), normalized(reference), atol=1e-4, rtol=0)


def shifted(image, top, left):
    """An image moved by whole pixels, one after another; black where nothing comes in."""
    channels, height, width = image.shape
    moved = torch.zeros_like(image)
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                if 0 <= row + top < height and 0 <= column + left < width:
                    moved[channel, row, column] = image[channel, row + top, column + left]
    return moved


@pytest.mark.parametrize(("height", "width", "margin"), [(16, 16, 2), (8, 12, 1), (5, 5, 1)])
def test_crop_shifts_its_image_by_an_eighth_at_most(height, width, margin):
    pixels = some_pixels(30, 1, height, width)
    found = shift_randomly(pixels, torch.Generator().manual_seed(1))
    assert found.shape == pixels.shape
    assert found.dtype == torch.uint8
    shifts = []
    for image, after in zip(pixels, found, strict=True):
        possible = range(-margin, margin + 1)
        matches = [
            (top, left)
            for top in possible
            for left in possible
            if torch.equal(shifted(image, top, left), after)
        ]
        assert len(matches) == 1
        shifts += matches
    for axis in (0, 1):  # all of them come, and not the two axes together
        assert {shift[axis] for shift in shifts} == set(range(-margin, margin + 1))
    assert any(top != left for top, left in shifts)


def test_some_images_are_mirrored_and_none_is_changed_otherwise():
    pixels = some_pixels(64)
    found = flip_randomly(pixels, torch.Generator().manual_seed(0))
    mirrored = [torch.equal(after, before.flip(-1)) for before, after in zip(pixels, found, strict=True)]
    kept = [torch.equal(after, before) for before, after in zip(pixels, found, strict=True)]
    assert all(one != other for one, other in zip(mirrored, kept, strict=True))
    assert 16 < sum(mirrored) < 48


def test_digits_are_shifted_and_not_mirrored():
    pixels = some_pixels(40, height=16, width=16)
    found = PixelTransform(model_input(size=16, mirrors=False), augment=True)(pixels)
    only_cut = shift_randomly(pixels, torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.double(), normalized(only_cut), atol=1e-5, rtol=0)
    assert [each.name for each in IMAGE_SETS.values() if not each.mirrors] == ["mnist", "digits"]


def test_augmentation_follows_the_seed_and_the_batch():
    pixels = some_pixels(8)
    one, same, other = (PixelTransform(model_input(), augment=True, seed=seed) for seed in (3, 3, 4))
    first = one(pixels)
    assert torch.equal(first, same(pixels))
    assert not torch.equal(first, other(pixels))
    assert not torch.equal(first, one(pixels))


SIDES = st.one_of(st.integers(1, 6), st.integers(1, 6000))


def assert_inside(crop, height, width):
    assert crop.height >= 1
    assert crop.width >= 1
    assert 0 <= crop.top <= height - crop.height
    assert 0 <= crop.left <= width - crop.width


@given(SIDES, SIDES, st.integers())
def test_random_crop_lies_inside(height, width, seed):
    assert_inside(crop_for(height, width, Random(seed)), height, width)


@given(SIDES, SIDES)
def test_middle_crop_is_a_square_in_the_middle(height, width):
    crop = crop_for(height, width, None)
    assert_inside(crop, height, width)
    assert crop.height == crop.width
    assert not crop.mirrored
    assert abs((height - crop.height - crop.top) - crop.top) <= 1
    assert abs((width - crop.width - crop.left) - crop.left) <= 1


@given(st.integers(100, 2000), st.integers(100, 2000), st.integers(0, 1000))
def test_area_and_aspect_of_crops_are_the_published_ones(height, width, seed):
    crop = crop_for(height, width, Random(seed))
    # To a pixel of rounding on each side.
    assert (crop.height + 1) * (crop.width + 1) >= CROP_AREA[0] * height * width or crop.height == crop.width
    assert CROP_ASPECT[0] <= (crop.width + 1) / (crop.height - 1)
    assert (crop.width - 1) / (crop.height + 1) <= CROP_ASPECT[1]


def test_narrow_image_is_center_cropped():
    crop = crop_for(10, 10_000, Random(0))
    assert (crop.top, crop.left, crop.height, crop.width) == (0, 4995, 10, 10)


def sampled_slowly(part, size, *, mirrored):
    """Bilinear, pixel by pixel: nothing beyond the edge of the part is looked at."""
    _, height, width = part.shape
    out = torch.zeros(3, size, size, dtype=torch.float64)
    for row in range(size):
        for column in range(size):
            y = min(max((row + 0.5) * height / size - 0.5, 0), height - 1)
            x = min(max((column + 0.5) * width / size - 0.5, 0), width - 1)
            top, left = int(y), int(x)
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            above = part[:, top, left] * (1 - (x - left)) + part[:, top, right] * (x - left)
            below = part[:, bottom, left] * (1 - (x - left)) + part[:, bottom, right] * (x - left)
            out[:, row, column] = above * (1 - (y - top)) + below * (y - top)
    return out.flip(-1) if mirrored else out


def test_images_of_mixed_sizes_become_one_batch():
    sizes = [(40, 60), (70, 30), (12, 12), (1, 1), (3, 90), (33, 47), (1500, 2)]
    images = [decoded_jpeg(height, width, seed=each) for each, (height, width) in enumerate(sizes)]
    random = Random(0)
    crops = [crop_for(height, width, random) for height, width in sizes for _ in range(4)]
    crops += [Crop(top=0, left=0, height=h, width=w, mirrored=m) for h, w in sizes for m in (False, True)]
    images = [image for image in images for _ in range(4)] + [image for image in images for _ in range(2)]
    assert {crop.mirrored for crop in crops} == {False, True}
    found = CropResize(model_input(size=20, mean=(0.0,) * 3, std=(1 / 255,) * 3))(images, crops)
    assert found.shape == (len(crops), 3, 20, 20)
    for each, image, crop in zip(found, images, crops, strict=True):
        part = image[:, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width].double()
        reference = sampled_slowly(part, 20, mirrored=crop.mirrored)
        torch.testing.assert_close(each.double(), reference, atol=0.05, rtol=0, msg=str(crop))


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_has_the_dtype_and_memory_format_of_the_model(dtype, memory_format):
    chosen = model_input(dtype=dtype, memory_format=memory_format)
    image = decoded_jpeg(8, 8)
    found = CropResize(chosen)([image], [Crop(top=0, left=0, height=8, width=8)])
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(found, PixelTransform(chosen)(image[None]), atol=0.05, rtol=0.01)


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


def test_png_that_is_called_jpeg_decodes():  # ImageNet has one
    image = Image.new("RGB", (7, 5), (1, 2, 3))
    assert decode_on_host(saved(image, "PNG"), "it")[:, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_torn_jpeg_is_named(share):
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
def test_file_that_is_not_a_photograph_is_named(data):
    with pytest.raises(DataError, match=r"^cats/1\.jpg: "):
        decode_on_host(data, "cats/1.jpg")


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (7, 50), (1, 1), (90, 30)])
def test_host_crops_then_resizes_then_mirrors(height, width, mirrored):
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


def test_image_that_the_device_refuses_is_decoded_on_the_host(nvjpeg):
    odd = as_tensor(jpeg(50, 50, "cmyk"))
    decoder = nvjpeg(lambda encoded: torch.equal(encoded, odd))
    found = decode_on_device([*ENCODED, odd], CPU, names)
    assert [each.shape[1] for each in found] == [20, 21, 22, 23, 50]
    assert torch.equal(found[4], decode_on_host(odd, "it"))
    assert decoder.batches == [5, 1, 1, 1, 1, 1]
    assert len(decode_on_device([odd], CPU, names)) == 1  # a batch of one is no sign of a broken device


def test_image_that_neither_decodes_is_reported(nvjpeg):
    torn = ENCODED[2][:200]
    nvjpeg(lambda encoded: len(encoded) == 200)
    with pytest.raises(DataError, match=r"^cats/2\.jpg: does not decode"):
        decode_on_device([ENCODED[0], ENCODED[1], torn, ENCODED[3]], CPU, names)


def test_device_that_decodes_nothing_is_reported_with_the_remedy(nvjpeg):
    nvjpeg(lambda encoded: True)
    with pytest.raises(DataError, match=r"cats/0\.jpg: .* nor 3 more, .*\n.*decode='host'"):
        decode_on_device(ENCODED, CPU, names)


def test_out_of_memory_in_the_decoder_is_raised(monkeypatch):
    def full(encoded, **_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torchvision.io, "decode_jpeg", full)
    with pytest.raises(torch.OutOfMemoryError):
        decode_on_device(ENCODED, CPU, names)
