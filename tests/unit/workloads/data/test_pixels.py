"""Pixels: decoding of every kind of JPEG, crops, conversion to model input, against plain references."""

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

from pytest_accel.workloads.data.files import IMAGE_SETS, DataError
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
from tests.support.data_sets import decoded_jpeg, jpeg

CPU = torch.device("cpu")
MEAN, STD = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)


def some_pixels(count, channels=3, height=8, width=8, seed=0):
    random = torch.Generator().manual_seed(seed)
    shape = (count, channels, height, width)
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=random)  # no black: that is the outside


def model_input(**changes):
    plain = {
        "channels": 3,
        "size": 8,
        "device": CPU,
        "dtype": torch.float32,
        "memory_format": torch.contiguous_format,
        "mean": MEAN,
        "std": STD,
    }
    return ModelInput(**plain | changes)


def normalized(pixels, mean=MEAN, std=STD):
    mean, std = (torch.tensor(each, dtype=torch.float64).view(1, -1, 1, 1) for each in (mean, std))
    return (pixels.double() / 255 - mean) / std


def resized(pixels, size):
    return F.interpolate(pixels.double(), size=(size, size), mode="bilinear", align_corners=False)


@pytest.mark.parametrize("size", [5, 8, 20])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 6e-2)]
)
def test_images_are_resized_and_normalized_by_channel(dtype, tolerance, size):
    pixels = some_pixels(2)
    found = PixelTransform(model_input(size=size, dtype=dtype))(pixels)
    assert found.dtype == dtype
    tolerance *= 1 if size == 8 else 2  # interpolated in the model's type
    torch.testing.assert_close(found.double(), normalized(resized(pixels, size)), atol=tolerance, rtol=0)


def test_grey_becomes_as_many_channels_as_the_model_reads():
    pixels = some_pixels(2, channels=1)
    found = PixelTransform(model_input(mean=(0.3,), std=(0.4,)))(pixels)
    expected = normalized(pixels, (0.3,), (0.4,)).expand(2, 3, 8, 8)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("height", "width", "margin"), [(16, 16, 2), (8, 12, 1), (5, 5, 1)])
def test_image_is_shifted_by_an_eighth_at_most(height, width, margin):
    pixels = some_pixels(30, 1, height, width)
    found = shift_randomly(pixels, torch.Generator().manual_seed(1))
    padded = F.pad(pixels, (margin,) * 4)
    possible = [(top, left) for top in range(2 * margin + 1) for left in range(2 * margin + 1)]
    shifts = []
    for image, after in zip(padded, found, strict=True):
        (match,) = (
            (top, left)
            for top, left in possible
            if torch.equal(image[:, top : top + height, left : left + width], after)
        )
        shifts.append(match)
    for axis in (0, 1):  # all of them come, and not the two axes together
        assert {shift[axis] for shift in shifts} == set(range(2 * margin + 1))
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
    assert [name for name, each in IMAGE_SETS.items() if not each.mirrors] == ["mnist", "digits"]


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
def test_random_crop_lies_inside_with_the_published_area_and_aspect(height, width, seed):
    crop = crop_for(height, width, Random(seed))
    assert_inside(crop, height, width)
    if min(height, width) >= 100 and crop.height != crop.width:  # to a pixel of rounding on each side
        assert (crop.height + 1) * (crop.width + 1) >= CROP_AREA[0] * height * width
        assert CROP_ASPECT[0] <= (crop.width + 1) / (crop.height - 1)
        assert (crop.width - 1) / (crop.height + 1) <= CROP_ASPECT[1]


def test_middle_crop_is_a_square_in_the_middle():
    crop = Crop(top=32, left=82, height=448, width=448)
    assert crop_for(512, 612, None) == crop
    assert crop_for(1, 1, None) == Crop(top=0, left=0, height=1, width=1)


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
        part = image[:, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
        reference = resized(part[None], 20)[0]
        reference = reference.flip(-1) if crop.mirrored else reference
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


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (7, 50), (1, 1)])
def test_host_crops_then_resizes_then_mirrors(height, width, mirrored):
    image = decoded_jpeg(100, 90)
    crop = Crop(top=5, left=20, height=height, width=width, mirrored=mirrored)
    found = crop_on_host(image, crop, 16)
    part = Image.fromarray(image[:, 5 : 5 + height, 20 : 20 + width].permute(1, 2, 0).numpy())
    reference = np.asarray(part.resize((16, 16), Image.Resampling.BILINEAR), np.int64)
    reference = reference[:, ::-1] if mirrored else reference
    assert (found.shape, found.dtype) == ((3, 16, 16), torch.uint8)
    assert np.abs(found.permute(1, 2, 0).numpy().astype(np.int64) - reference).max() <= 2


def as_tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return as_tensor(out.getvalue())


@pytest.mark.parametrize("kind", ["rgb", "grey", "cmyk"])
def test_every_kind_of_jpeg_comes_out_in_three_channels(kind):
    data = jpeg(40, 60, kind)
    found = decode_on_host(as_tensor(data), "it")
    reference = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.int64).transpose(2, 0, 1)
    assert (found.shape, found.dtype) == ((3, 40, 60), torch.uint8)
    # Both sides use libjpeg, but turn CMYK into RGB each by its own formula.
    assert np.abs(found.numpy().astype(np.int64) - reference).max() <= 3


def test_png_that_is_called_jpeg_decodes():  # ImageNet has one
    image = Image.new("RGB", (7, 5), (1, 2, 3))
    assert decode_on_host(saved(image, "PNG"), "it")[:, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "data",
    [
        as_tensor(b"<html>not found</html>"),
        as_tensor(jpeg(40, 60)[:100]),
        as_tensor(jpeg(40, 60)[:-40]),
    ],
    ids=["html", "start", "torn"],
)
def test_file_that_is_torn_or_not_a_photograph_is_named(data):
    with pytest.raises(DataError, match=r"^cats/1\.jpg: .*\nDownload or extract it again"):
        decode_on_host(data, "cats/1.jpg")


# A device that decodes, in the place of nvJPEG: it knows JPEG in RGB and in grey, and a batch fails as one.


@pytest.fixture
def nvjpeg(monkeypatch):
    batches = []

    def install(refuses):
        def decode(encoded, *, mode, device):
            batches.append(len(encoded))
            if any(refuses(each) for each in encoded):
                raise RuntimeError("nvjpegDecode failed: 3\nmore")
            return [decode_on_host(each, "?") for each in encoded]

        monkeypatch.setattr(torchvision.io, "decode_jpeg", decode)
        return batches

    return install


ENCODED = [as_tensor(jpeg(20 + each, 30, seed=each)) for each in range(4)]


def names(index):
    return f"cats/{index}.jpg"


def test_image_that_the_device_refuses_is_decoded_on_the_host(nvjpeg):
    odd = as_tensor(jpeg(50, 50, "cmyk"))
    batches = nvjpeg(lambda encoded: torch.equal(encoded, odd))
    found = decode_on_device([*ENCODED, odd], CPU, names)
    assert [each.shape[1] for each in found] == [20, 21, 22, 23, 50]
    assert torch.equal(found[4], decode_on_host(odd, "it"))
    assert batches == [5, 1, 1, 1, 1, 1]
    assert len(decode_on_device([odd], CPU, names)) == 1  # a batch of one is no sign of a broken device


def test_image_that_neither_decodes_and_a_device_that_decodes_nothing_are_reported(nvjpeg):
    torn = ENCODED[2][:200]
    nvjpeg(lambda encoded: len(encoded) == 200)
    with pytest.raises(DataError, match=r"^cats/2\.jpg: does not decode"):
        decode_on_device([ENCODED[0], ENCODED[1], torn, ENCODED[3]], CPU, names)
    nvjpeg(lambda encoded: True)
    with pytest.raises(DataError, match=r"cats/0\.jpg: .* nor 3 more, .*\n.*decode='host'"):
        decode_on_device(ENCODED, CPU, names)


def test_out_of_memory_in_the_decoder_is_raised(monkeypatch):
    def full(encoded, **_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torchvision.io, "decode_jpeg", full)
    with pytest.raises(torch.OutOfMemoryError):
        decode_on_device(ENCODED, CPU, names)
