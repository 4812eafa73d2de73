"""The smaller models of the zoo: Olivia's WideResNet, the PEARC'22 image-compression autoencoder, and BERT, SegFormer and
DeepLabV3+ of their libraries, as the studies configure them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from pytest_accel.workloads.tasks.segmentation import CITYSCAPES_CLASSES
from pytest_accel.workloads.tasks.text import VOCABULARY, Answers, Questions

STEM_CHANNELS = 16
BLOCKS_PER_STAGE = 2
WIDE_RESNET_WIDTHS = {
    "wide_resnet": (160, 320, 640),
    "wide_resnet-tiny": (8, 16, 32),  # of seconds on one CPU core
}


class WideBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.straight = nn.Identity() if channels_in == channels else nn.Conv2d(channels_in, channels, 1)
        self.wide = nn.Sequential(
            *_convolution(channels_in, channels), nn.Dropout(dropout), *_convolution(channels, channels)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.wide(images) + self.straight(images)


class WideResNet(nn.Module):
    def __init__(
        self, widths: Sequence[int], *, num_classes: int = 100, channels: int = 3, dropout: float = 0.01
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, STEM_CHANNELS, 3, padding=1, bias=False)]
        before = STEM_CHANNELS
        for number, width in enumerate(widths):
            if number:
                layers.append(nn.MaxPool2d(2))
            for _ in range(BLOCKS_PER_STAGE):
                layers.append(WideBlock(before, width, dropout))
                before = width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(before, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.features(images)).flatten(1))


def _convolution(channels_in: int, channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    ]


BOTTLENECK_CHANNELS = 16
AUTOENCODER_WIDTHS = {
    "autoencoder": (64, 128, 256),
    "autoencoder-tiny": (8, 16, 32),  # of seconds on one CPU core
}


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        convolutions = [*_convolution(channels, channels), *_convolution(channels, channels)]
        self.change = nn.Sequential(*convolutions[:-1])  # a ReLU follows the sum
        self.activation = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        return self.activation(features + self.change(features))


class Autoencoder(nn.Module):
    """Images in, images out: (batch, channels, height, width), both sides divisible by four."""

    def __init__(self, widths: Sequence[int], *, channels: int = 1) -> None:
        super().__init__()
        wide, narrow = list(widths), list(reversed(widths))
        encoder: list[nn.Module] = [nn.Conv2d(channels, wide[0], 3, padding=1), *_blocks(wide[0])]
        for before, after in pairwise(wide):
            encoder += [nn.Conv2d(before, after, 3, stride=2, padding=1), *_blocks(after)]
        decoder: list[nn.Module] = [nn.Conv2d(BOTTLENECK_CHANNELS, narrow[0], 1), *_blocks(narrow[0])]
        for before, after in pairwise(narrow):
            decoder += [nn.ConvTranspose2d(before, after, 2, stride=2), *_blocks(after)]
        self.encoder = nn.Sequential(*encoder)
        self.bottleneck = nn.Conv2d(wide[-1], BOTTLENECK_CHANNELS, 1)
        self.decoder = nn.Sequential(*decoder, nn.Conv2d(wide[0], channels, 3, padding=1))

    def forward(self, images: Tensor) -> Tensor:
        return self.decoder(self.bottleneck(self.encoder(images)))


def _blocks(channels: int) -> list[nn.Module]:
    return [ResidualBlock(channels) for _ in range(BLOCKS_PER_STAGE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BertShape:
    layers: int
    width: int
    heads: int
    inner: int  # width of the feed-forward layers
    vocabulary: int = VOCABULARY
    sequence: int = 512  # positions: the longest input
    dropout: float = 0.1  # of what a layer adds, and of attention (Devlin et al., arXiv:1810.04805, A.3)


BERT_SHAPES = {
    "bert-tiny": BertShape(layers=2, width=128, heads=2, inner=512),
    "bert-base": BertShape(layers=12, width=768, heads=12, inner=3072),
}


class Bert(nn.Module):
    """BERT with a linear layer that gives two numbers a token: does the answer begin here, does it end here?

    The mask comes ready: of two-dimensional ones transformers asks whether anything is masked at all, which waits for the
    device, and makes one of a whole sequence squared. The outputs are a plain pair.
    """

    def __init__(self, shape: BertShape) -> None:
        from transformers import BertConfig, BertForQuestionAnswering

        super().__init__()
        self.shape = shape
        self.answering = BertForQuestionAnswering(
            BertConfig(
                vocab_size=shape.vocabulary,
                hidden_size=shape.width,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                intermediate_size=shape.inner,
                max_position_embeddings=shape.sequence,
                type_vocab_size=2,
                hidden_act="gelu",
                hidden_dropout_prob=shape.dropout,
                attention_probs_dropout_prob=shape.dropout,
                attn_implementation="sdpa",
            )
        )

    def forward(self, questions: Questions) -> Answers:
        # (batch, 1, 1, sequence), true where there is a token: attention spreads it over heads and rows by itself.
        mask = questions.attention_mask[:, None, None, :].bool()
        found = self.answering(
            input_ids=questions.input_ids, attention_mask=mask, token_type_ids=questions.token_type_ids
        )
        return Answers(found.start_logits, found.end_logits)


SEGFORMERS = {"segformer-b0": "mit_b0", "segformer-b4": "mit_b4"}
DEEPLABS = {"deeplabv3plus-r18": "resnet18", "deeplabv3plus-r101": "resnet101"}
# Height and width that a model is trained at
CROPS = dict.fromkeys(SEGFORMERS, (1024, 1024)) | dict.fromkeys(DEEPLABS, (512, 1024))
DROPOUT = 0.1
OUTPUT_STRIDE = 8  # of DeepLabV3+: its last stages are dilated


def build_segformer(
    encoder: str, *, num_classes: int = CITYSCAPES_CLASSES, decoder_channels: int = 256
) -> nn.Module:
    import segmentation_models_pytorch as smp

    sizes = {"classes": num_classes, "decoder_segmentation_channels": decoder_channels}
    network: nn.Module = smp.Segformer(encoder, encoder_weights=None, **sizes)
    return network


class DeepLabV3Plus(nn.Module):
    """The library's DeepLabV3+, and in training an auxiliary head on the third stage, which the library does not have."""

    def __init__(
        self, encoder: str, *, num_classes: int = CITYSCAPES_CLASSES, decoder_channels: int = 512
    ) -> None:
        import segmentation_models_pytorch as smp

        super().__init__()
        self.network: Any = smp.DeepLabV3Plus(
            encoder,
            encoder_weights=None,
            encoder_output_stride=OUTPUT_STRIDE,
            classes=num_classes,
            decoder_channels=decoder_channels,
            decoder_aspp_dropout=DROPOUT,
        )
        channels = self.network.encoder.out_channels[-2]
        self.auxiliary_head = nn.Sequential(
            nn.Conv2d(channels, channels // 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels // 4),
            nn.ReLU(inplace=True),
            nn.Dropout(DROPOUT),
            nn.Conv2d(channels // 4, num_classes, 1),
            nn.Upsample(scale_factor=OUTPUT_STRIDE, mode="bilinear", align_corners=False),
        )

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits (batch, classes, height, width), in training of both heads."""
        network = self.network
        if not self.training:
            logits: Tensor = network(images)
            return logits
        features = network.encoder(images)
        return network.segmentation_head(network.decoder(features)), self.auxiliary_head(features[-2])
