"""segmentation-models-pytorch's own models, trained by a plain loop."""

from __future__ import annotations

import segmentation_models_pytorch as smp
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from benchmarks.peers.contests import Contest
from benchmarks.peers.ways import Step
from benchmarks.peers.ways.plain_loop import plain_loop, plain_optimizer
from pytest_accel.workloads.models.segmentation import CROPS, DEEPLABS, SEGFORMERS
from pytest_accel.workloads.tasks.masks import AUXILIARY_WEIGHT, plan_masks

CLASSES, IGNORED = 19, 255  # of Cityscapes


def step(contest: Contest, device: torch.device) -> Step:
    name = contest.model.removeprefix("zoo/")
    model = (_segformer(name) if name in SEGFORMERS else _DeepLab(name)).to(device).train()
    plan = plan_masks(
        "cityscapes",
        batch_size=contest.batch_size,
        image_size=contest.choices.get("image_size"),
        crop=CROPS[name],
    )
    images, masks = plan.make(0, seed=0, device=device, dtype=torch.float32, memory_format="contiguous")

    def of_head(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, masks, ignore_index=IGNORED)

    def loss_of() -> torch.Tensor:
        output = model(images)
        if isinstance(output, tuple):
            return of_head(output[0]) + AUXILIARY_WEIGHT * of_head(output[1])
        return of_head(output)

    return plain_loop(contest, device, loss_of, plain_optimizer(contest, model, unasked="sgd"))


def _segformer(name: str) -> nn.Module:
    return smp.Segformer(SEGFORMERS[name], encoder_weights=None, classes=CLASSES)


class _DeepLab(nn.Module):
    """The library's DeepLabV3+ as it is, and beside it the auxiliary head that it has none of, as one would add it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.network = smp.DeepLabV3Plus(
            DEEPLABS[name],
            encoder_weights=None,
            encoder_output_stride=8,
            classes=CLASSES,
            decoder_channels=512,
            decoder_aspp_dropout=0.1,
        )
        channels = self.network.encoder.out_channels[-2]
        self.auxiliary = nn.Sequential(
            nn.Conv2d(channels, channels // 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels // 4),
            nn.ReLU(inplace=True),
            nn.Dropout(0.1),
            nn.Conv2d(channels // 4, CLASSES, 1),
            nn.Upsample(scale_factor=8, mode="bilinear", align_corners=False),
        )

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        network = self.network
        features = network.encoder(images)
        return network.segmentation_head(network.decoder(features)), self.auxiliary(features[-2])
