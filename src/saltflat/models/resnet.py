"""Residual networks with GroupNorm in place of BatchNorm."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.models.common import check_sizes


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(32, channels)


def _convolution(channels_in: int, channels: int, stride: int = 1) -> nn.Module:
    return nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """relu(branch(x) + shortcut(x)), where branch is two 3x3 convolutions, each with a GroupNorm.

    The shortcut is a 1x1 convolution where the shape changes, else the identity.

    >>> import torch
    >>> BasicBlock(32, 64, stride=2)(torch.zeros(1, 32, 8, 8)).shape
    torch.Size([1, 64, 4, 4])

    He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
    """

    def __init__(self, channels_in: int, channels: int, *, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _convolution(channels_in, channels, stride),
            _norm(channels),
            nn.ReLU(),
            _convolution(channels, channels),
            _norm(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            project = nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, _norm(channels))

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.branch(images) + self.shortcut(images))


def _resnet(in_channels: int, classes: int, *, blocks: int) -> nn.Module:
    """A stem and four stages of ``blocks`` blocks each, 64 to 512 channels wide."""
    check_sizes(classes=classes)
    layers: list[nn.Module] = [_convolution(in_channels, 64), _norm(64), nn.ReLU()]
    width_in = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers.append(BasicBlock(width_in, width, stride=stride))
        layers += [BasicBlock(width, width, stride=1) for _ in range(blocks - 1)]
        width_in = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return nn.Sequential(*layers)


def gnresnet10(classes: int = 10) -> nn.Module:
    """ResNet-10 with GroupNorm, for 1x28x28 images: 4,902,090 parameters.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(gnresnet10())
    4902090

    Park et al., "Differentially Private Sharpness-Aware Training", ICML 2023.
    """
    return _resnet(1, classes, blocks=1)


def gn_resnet18(classes: int = 10) -> nn.Module:
    """ResNet-18 with GroupNorm, for 3x32x32 images: 11,173,962 parameters, 11,220,132 with 100 classes.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(gn_resnet18())
    11173962

    Shi et al., "Make Landscape Flatter in Differentially Private Federated Learning", CVPR 2023.
    """
    return _resnet(3, classes, blocks=2)


def _layer(channels_in: int, channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels_in, channels, 3, padding=1), _norm(channels), nn.ReLU())


class Residual(nn.Module):
    """x + branch(x), where branch is two 3x3 convolutions, each with a GroupNorm and a ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(_layer(channels, channels), _layer(channels, channels))

    def forward(self, images: Tensor) -> Tensor:
        return images + self.branch(images)


def resnet9(classes: int = 100) -> nn.Module:
    """ResNet-9, for 3x32x32 images: 6,621,540 parameters, 6,575,370 with 10 classes.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(resnet9())
    6621540

    Knolle et al. use this shape on CIFAR-100; GroupNorm with 32 groups and ReLU are our choice.
    """
    check_sizes(classes=classes)
    return nn.Sequential(
        _layer(3, 64),
        _layer(64, 128),
        nn.MaxPool2d(2),
        Residual(128),
        _layer(128, 256),
        nn.MaxPool2d(2),
        _layer(256, 512),
        nn.MaxPool2d(2),
        Residual(512),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )
