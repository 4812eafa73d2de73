"""segmentation-models-pytorch's own models, trained by a plain loop: what ours are held against in peers.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all of torch's users write it

from pytest_accel.workloads.tasks.masks import AUXILIARY_WEIGHT, MaskPlan
from pytest_accel.workloads.zoo.segmentation import CROPS, DEEPLABS, SEGFORMERS

SMALL = (64, 64)  # the crop on a CPU


def plain_step(name: str, batch_size: int, device: torch.device) -> Callable[[], None]:
    """Eager, autocast to bf16, its library's layers and torch's optimiser, the loss read at every step."""
    name = name.removeprefix("zoo/")
    model = (_segformer(name) if name in SEGFORMERS else _DeepLab(name)).to(device)
    crop = CROPS[name] if device.type == "cuda" else SMALL
    plan = MaskPlan(name="cityscapes", batch_size=batch_size, crop=crop)
    images, masks = plan.make(0, seed=0, device=device, dtype=torch.float32, memory_format="contiguous")
    if name in SEGFORMERS:
        optimiser = torch.optim.AdamW(model.parameters(), lr=6e-5, weight_decay=0.01)
    else:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def loss_of(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, masks, ignore_index=255)

    def train() -> None:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            output = model(images)
            if isinstance(output, tuple):
                loss = loss_of(output[0]) + AUXILIARY_WEIGHT * loss_of(output[1])
            else:
                loss = loss_of(output)
        loss.backward()
        optimiser.step()
        loss.item()

    return train


def _segformer(name: str) -> nn.Module:
    import segmentation_models_pytorch as smp

    return smp.Segformer(SEGFORMERS[name], encoder_weights=None, classes=19)


class _DeepLab(nn.Module):
    """The library's DeepLabV3+ as it is, and beside it the auxiliary head that it has none of, as one would add it."""

    def __init__(self, name: str) -> None:
        import segmentation_models_pytorch as smp

        super().__init__()
        self.network = smp.DeepLabV3Plus(
            DEEPLABS[name],
            encoder_weights=None,
            encoder_output_stride=8,
            classes=19,
            decoder_channels=512,
            decoder_aspp_dropout=0.1,
        )
        channels = self.network.encoder.out_channels[-2]
        self.auxiliary = nn.Sequential(
            nn.Conv2d(channels, channels // 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels // 4),
            nn.ReLU(inplace=True),
            nn.Dropout(0.1),
            nn.Conv2d(channels // 4, 19, 1),
            nn.Upsample(scale_factor=8, mode="bilinear", align_corners=False),
        )

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        network = self.network
        features = network.encoder(images)
        return network.segmentation_head(network.decoder(features)), self.auxiliary(features[-2])
