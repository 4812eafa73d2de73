"""ResNets for tests, small or with the batch-norm statistics of training."""

from torch import nn
from torchvision.models import ResNet
from torchvision.models.resnet import BasicBlock

BLOCKS = 3  # of a small one: two, and one that halves the pixels


def small(block=BasicBlock, kind=ResNet, **options):
    """Return a small ResNet."""
    model = kind(block, [2, 1, 1, 1], **options)
    model.layer3, model.layer4 = nn.Identity(), nn.Identity()
    model.fc = nn.Linear(128 * block.expansion, 4)
    return model


def with_statistics(model):
    """Return a model whose batch norms have random statistics, in double precision and eval mode."""
    for part in model.double().modules():
        if isinstance(part, nn.BatchNorm2d):
            for figures in (part.running_mean, part.weight.data, part.bias.data):
                figures.normal_()
            part.running_var.uniform_(0.5, 2)
    return model.eval()
