"""The kernels of the study compute what torch does: interpreted, where there is no GPU."""

from __future__ import annotations

import pytest

from tests.support.interpreting import interpreted

pytest.importorskip("triton")  # it has no wheels for aarch64
INTERPRETED = """
import torch
from tests.studies import depthwise
from tests.studies.depthwise import Cudnn, Kernels, Shape

torch.manual_seed(0)
depthwise.SPLITS = 3  # each adds up several rows
for shape in (
    Shape(channels=24, height=5, width=18, size=3, stride=1),
    Shape(channels=72, height=6, width=7, size=5, stride=2),
    Shape(channels=8, height=7, width=6, size=3, stride=2),
):
    images = torch.randn(2, shape.channels, shape.height, shape.width).to(memory_format=torch.channels_last)
    weight = torch.randn(shape.channels, 1, shape.size, shape.size)
    kernels, torchs = Kernels(shape), Cudnn(shape)
    expected = torchs.forward(images, weight)
    gradient = torch.randn_like(expected)
    torch.testing.assert_close(kernels.forward(images, weight), expected)
    torch.testing.assert_close(kernels.to_images(gradient, weight), torchs.to_images(gradient, images, weight))
    torch.testing.assert_close(
        kernels.to_weight(gradient, images), torchs.to_weight(gradient, images, weight), rtol=1e-4, atol=1e-4
    )
    print("alike")
"""


def test_interpreted_they_compute_what_torch_does():
    done = interpreted(INTERPRETED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["alike"] * 3


def test_the_shapes_of_a_model_are_its_depthwise_convolutions():
    from tests.studies.depthwise import shapes_of

    found = shapes_of("mobilenet_v3_small", 224)
    assert sum(found.values()) == 11
    first = next(iter(found))
    assert (first.channels, first.height, first.size, first.stride, first.high) == (16, 112, 3, 2, 56)
