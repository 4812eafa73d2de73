"""torchvision's detectors as ours are called: scenes in; losses out in training, boxes out in eval mode.

What the library does to images before its network was done on the way to the device: nothing is resized or normalised
here again. Coordinates stay in fp32 in every precision: a step of a bf16 is eight pixels at the right of a wide image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from pytest_accel.workloads.data.detection import corners_px
from pytest_accel.workloads.data.sets import IMAGENET_MEAN, IMAGENET_STD
from pytest_accel.workloads.detection.batch import Scenes, Targets

LEARN_MORE = ("maskrcnn", "keypointrcnn")  # than boxes
WITHOUT_BACKGROUND = ("retinanet", "fcos")  # all others have a class for it, the first
# Stage 1 of a ResNet learns nothing, as in the 1x schedule of Faster R-CNN.
FROZEN = ("body.conv1.", "body.bn1.", "body.layer1.")
CALIBRATING = (2, 224, 224)  # images of noise, and their height and width


def build_detector(name: str, *, num_classes: int | None = None, **options: Any) -> TorchvisionDetector:  # noqa: ANN401 - of the library's builder
    """Build the named detector with random weights; `num_classes` are those of objects, without a background."""
    from torchvision import models

    if name.startswith(LEARN_MORE):
        raise ValueError(
            f"model: {name!r} learns more than boxes, and its targets are not read here. "
            "Choose a detector of boxes, fasterrcnn_resnet50_fpn for instance."
        )
    background = 0 if name.startswith(WITHOUT_BACKGROUND) else 1
    if num_classes is not None:
        options["num_classes"] = num_classes + background
    # Without the second, "no weights" still downloads a pretrained backbone.
    options = {"weights": None, "weights_backbone": None} | options
    return TorchvisionDetector(models.get_model(name, **options), first_label=background)


class Found(NamedTuple):
    """What a detector returns in eval mode."""

    images: list[dict[str, Tensor]]  # of each: "boxes" by corners in pixels, "labels", "scores"
    heads: list[Any]  # what its heads said, before boxes were chosen: numbers that are not finite make no box


class TorchvisionDetector(nn.Module):
    """Scenes -> losses by name in training; in eval mode what was Found.

    The backbone's norms keep their statistics, in training too, as detectors of two images a device are trained. With
    random weights these are those of noise: norms that did nothing would let numbers grow until the loss is NaN.
    """

    def __init__(self, detector: nn.Module, *, first_label: int) -> None:
        super().__init__()
        self.detector = detector
        self.first_label = first_label
        detector.transform = AsTheyAre()
        proposing: Any = getattr(detector, "rpn", detector)
        proposing.anchor_generator = KeptAnchors(proposing.anchor_generator)
        self._heads: list[Any] = []  # what they said so far in this pass
        proposing.head.register_forward_hook(self._in_fp32)
        if self._refines:
            regions: Any = detector.roi_heads
            regions.box_roi_pool = PooledInFp32(regions.box_roi_pool)
            regions.box_predictor.register_forward_hook(self._in_fp32)
        calibrate(detector.backbone)
        for name, parameter in detector.backbone.named_parameters():
            if name.startswith(FROZEN):
                parameter.requires_grad = False
        self.train()

    @property
    def compiled_apart(self) -> list[nn.Module]:
        """What has fixed shapes: all else has as many rows as there are boxes."""
        return [self.detector.backbone, getattr(self.detector, "rpn", self.detector).head]

    @property
    def _refines(self) -> bool:
        return hasattr(self.detector, "roi_heads")

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - as torch has it
        super().train(mode)
        for norm in _norms(self.detector.backbone):
            norm.eval()
        return self

    def forward(self, scenes: Scenes) -> Any:  # noqa: ANN401 - see the class
        images, sizes, targets = scenes
        if images.is_meta:
            counted, self._heads = self._counted(images), []
            return {"counted": counted}
        if not self.training or targets is None:
            self._heads = []
            found = self.detector(Padded(images=images, sizes=sizes.tolist()))
            heads, self._heads = self._heads, []
            return Found(images=found, heads=heads)
        # How many boxes there are is a shape in this library: the one place where our part waits for the device.
        known = torch.cat([sizes, targets.valid.sum(dim=1, keepdim=True)], dim=1).tolist()
        padded = Padded(images=images, sizes=[(height, width) for height, width, _ in known])
        return self.detector(padded, self._lists(targets, sizes, [found for *_, found in known]))

    def _in_fp32(self, _module: nn.Module, _arguments: Any, output: Any) -> Any:  # noqa: ANN401 - a hook of the heads
        output = tree_map(Tensor.float, output)
        if not self.training:
            self._heads.append(output)
        return output

    def _lists(self, targets: Targets, sizes: Tensor, counts: list[int]) -> list[dict[str, Tensor]]:
        corners, labels = corners_px(targets.boxes, sizes), targets.labels + self.first_label
        return [
            {"boxes": corners[image, :count], "labels": labels[image, :count]}
            for image, count in enumerate(counts)
        ]

    def _counted(self, images: Tensor) -> Tensor:
        """Do the products of a step without values, which boxes follow from: for as many regions as are drawn at most."""
        detector: Any = self.detector
        maps = detector.backbone(images)
        outputs = [getattr(detector, "rpn", detector).head(list(maps.values()))]
        if self._refines:
            regions = detector.roi_heads
            drawn = (
                regions.fg_bg_sampler.batch_size_per_image if self.training else detector.rpn.post_nms_top_n()
            )
            shape = (len(images) * drawn, detector.backbone.out_channels, *regions.box_roi_pool.output_size)
            pooled = images.new_zeros(shape) + sum(each.sum() for each in maps.values())
            outputs.append(regions.box_predictor(regions.box_head(pooled)))
        return torch.stack([leaf.sum() for leaf in tree_leaves(outputs)]).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """Images in one shape, where the library expects a list of them."""

    images: Tensor
    sizes: list[tuple[int, int]]  # of each without its padding

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.images)


class AsTheyAre(nn.Module):
    """Stands where the library resizes and normalises images, and resizes boxes back."""

    def forward(self, padded: Padded, targets: Any = None) -> tuple[Any, Any]:  # noqa: ANN401 - the library's
        from torchvision.models.detection.image_list import ImageList

        return ImageList(padded.images, padded.sizes), targets

    def postprocess(self, found: Any, _sizes: Any, _original_sizes: Any) -> Any:  # noqa: ANN401 - as above
        return found


class KeptAnchors(nn.Module):
    """Anchors of each shape once, in fp32: the library makes them at every step, as narrow as what they are for."""

    def __init__(self, generator: nn.Module) -> None:
        super().__init__()
        self.generator = generator
        self._kept: dict[tuple[Any, ...], list[Tensor]] = {}

    def forward(self, images: Any, maps: list[Tensor]) -> list[Tensor]:  # noqa: ANN401 - an ImageList
        shapes = (images.tensors.shape, *(each.shape[-2:] for each in maps))
        if shapes not in self._kept:
            self._kept[shapes] = self.generator(images, [each.float() for each in maps])
        return list(self._kept[shapes])


class PooledInFp32(nn.Module):
    """Regions cut from maps in fp32, as autocast does: for weights in bf16 the library has no kernel."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    @property
    def output_size(self) -> tuple[int, int]:
        return self.pool.output_size

    def forward(self, maps: dict[str, Tensor], boxes: list[Tensor], sizes: list[tuple[int, int]]) -> Tensor:
        dtype = next(iter(maps.values())).dtype
        # Contiguous too, which the kernel wants: one copy for both.
        wide = {
            name: each.to(torch.float32, memory_format=torch.contiguous_format) for name, each in maps.items()
        }
        return self.pool(wide, boxes, sizes).to(dtype)


@torch.no_grad()
def calibrate(backbone: nn.Module) -> None:
    """Give the norms of a backbone the statistics of noise, by its own weights."""
    norms = list(_norms(backbone))
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0  # the statistics of this batch alone
    backbone.train()
    count, *size = CALIBRATING
    noise = torch.rand(count, 3, *size, device=next(backbone.parameters()).device)
    mean, std = (noise.new_tensor(each).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
    backbone((noise - mean) / std)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _norms(backbone: nn.Module) -> Iterator[Any]:
    return (layer for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d))
