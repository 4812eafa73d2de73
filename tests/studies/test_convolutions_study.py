"""The study of convolutions finds those of a model, calls each of them, and adds up what it is told."""

from __future__ import annotations

import torch

from tests.studies.convolutions import Convolution, compared, convolutions_of

HOW = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
DENSE = Convolution(image=(2, 4, 8, 8), weight=(6, 4, 3, 3), how=HOW)
DEPTHWISE = Convolution(
    image=(2, 4, 8, 8), weight=(4, 1, 3, 3), how=((2, 2), (1, 1), (1, 1), False, (0, 0), 4)
)


def test_finds_what_a_model_calls_and_how_often():
    found = convolutions_of("mobilenet_v3_large", 2)
    depthwise = {each: times for each, times in found.items() if each.how[-1] > 1}
    assert sum(depthwise.values()) == 15
    assert str(next(iter(depthwise))) == "16 channels depthwise, 3x3, 112x112"
    assert next(iter(found)).image == (2, 3, 224, 224)


def test_calls_compute_what_autograd_does():
    for convolution in (DENSE, DEPTHWISE):
        torch.manual_seed(0)
        forward, to_images, to_weights = convolution.calls("cpu", torch.float32)
        stride, padding, dilation, *_, groups = convolution.how
        torch.manual_seed(0)
        image = torch.randn(convolution.image).requires_grad_()
        weight = torch.randn(convolution.weight).requires_grad_()
        expected = torch.nn.functional.conv2d(image, weight, None, stride, padding, dilation, groups)
        torch.testing.assert_close(forward(), expected)
        gradient = torch.randn_like(expected)
        expected.backward(gradient)
        torch.testing.assert_close(to_images()[0], image.grad)
        torch.testing.assert_close(to_weights()[1], weight.grad)


def test_tells_what_the_search_won_and_what_it_cost():
    found = {DENSE: 2, DEPTHWISE: 3}
    searched = [{"first_s": 2.0, "ms": [1.0, 1.0, 1.0]}, {"first_s": 5.0, "ms": [0.5, 1.0, 1.5]}]
    estimated = [{"first_s": 0.1, "ms": [1.0, 1.02, 1.0]}, {"first_s": 0.2, "ms": [0.5, 3.0, 1.5]}]
    assert list(compared("net", found, searched, estimated)) == [
        "net: 3 x 4 channels depthwise, 3x3, 8x8, stride 2: forward 0.500 ms by 0.500, to images 1.000 ms by 3.000, to weights 1.500 ms by 1.500; first 5.00 s by 0.20",
        "net: depthwise, 1 different: first calls 5.0 s with the search, 0.2 by the estimate; in a step 9.00 ms, 15.00",
        "net: others, 1 different: first calls 2.0 s with the search, 0.1 by the estimate; in a step 6.00 ms, 6.04",
    ]
