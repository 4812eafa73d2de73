"""Models of other libraries as the studies configure them: BERT, and SegFormer and DeepLabV3+ for Cityscapes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from pytest_accel.workloads.tasks.segmentation import CITYSCAPES_CLASSES
from pytest_accel.workloads.tasks.text import VOCABULARY, Answers, Questions


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


def build_bert(name: str, **changes: Any) -> Bert:
    return Bert(replace(BERT_SHAPES[name], **changes))


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
    name: str, *, num_classes: int = CITYSCAPES_CLASSES, decoder_channels: int = 256
) -> nn.Module:
    import segmentation_models_pytorch as smp

    sizes = {"classes": num_classes, "decoder_segmentation_channels": decoder_channels}
    network: nn.Module = smp.Segformer(SEGFORMERS[name], encoder_weights=None, **sizes)
    return network


def build_deeplabv3plus(
    name: str, *, num_classes: int = CITYSCAPES_CLASSES, decoder_channels: int = 512
) -> DeepLabV3Plus:
    import segmentation_models_pytorch as smp

    network = smp.DeepLabV3Plus(
        DEEPLABS[name],
        encoder_weights=None,
        encoder_output_stride=OUTPUT_STRIDE,
        classes=num_classes,
        decoder_channels=decoder_channels,
        decoder_aspp_dropout=DROPOUT,
    )
    return DeepLabV3Plus(network, classes=num_classes)


class DeepLabV3Plus(nn.Module):
    """The library's DeepLabV3+, and in training an auxiliary head on the third stage, which the library does not have."""

    def __init__(self, network: Any, *, classes: int) -> None:
        super().__init__()
        self.network = network
        channels = network.encoder.out_channels[-2]
        self.auxiliary_head = nn.Sequential(
            nn.Conv2d(channels, channels // 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels // 4),
            nn.ReLU(inplace=True),
            nn.Dropout(DROPOUT),
            nn.Conv2d(channels // 4, classes, 1),
            nn.Upsample(scale_factor=OUTPUT_STRIDE, mode="bilinear", align_corners=False),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return logits (batch, classes, height, width), in training of both heads."""
        network = self.network
        if not self.training:
            logits: torch.Tensor = network(images)
            return logits
        features = network.encoder(images)
        return network.segmentation_head(network.decoder(features)), self.auxiliary_head(features[-2])
