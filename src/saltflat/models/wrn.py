"""Wide residual networks with weight standardisation, the large networks of DP-SGD without extra data.

De et al., "Unlocking High-Accuracy Differentially Private Image Classification through Scale", 2022.
"""

from __future__ import annotations

from math import prod, sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.gradients.standardised import standardised
from saltflat.models.common import check_sizes


class ScaledStdConv2d(nn.Conv2d):
    """A convolution with the standardised weight.

    ``gain_bias`` adds a learned gain that starts at 1 and a learned bias that starts at 0.

    >>> ScaledStdConv2d(3, 8, 3, stride=1, gain_bias=True)(torch.zeros(2, 3, 6, 6)).shape
    torch.Size([2, 8, 6, 6])
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, *, stride: int, gain_bias: bool
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=gain_bias
        )
        self.gain = nn.Parameter(torch.ones(out_channels)) if gain_bias else None
        nn.init.normal_(self.weight, std=1 / sqrt(prod(self.weight.shape[1:])))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        weight = standardised(self.weight, self.gain)
        return F.conv2d(input, weight, self.bias, stride=self.stride, padding=self.padding)


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(16, channels)


class WideBlock(nn.Module):
    """branch(x) + skip(x); branch is twice (ReLU, norm, 3x3 convolution).

    ``project`` makes skip a strided 1x1 convolution after a ReLU, and a norm if ``gain_bias``.
    """

    def __init__(
        self, channels_in: int, channels: int, *, stride: int, project: bool, gain_bias: bool
    ) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.ReLU(),
            _norm(channels_in),
            ScaledStdConv2d(channels_in, channels, 3, stride=stride, gain_bias=gain_bias),
            nn.ReLU(),
            _norm(channels),
            ScaledStdConv2d(channels, channels, 3, stride=1, gain_bias=gain_bias),
        )
        self.skip: nn.Module = nn.Identity()
        if project:
            norm = [_norm(channels_in)] if gain_bias else []
            convolution = ScaledStdConv2d(channels_in, channels, 1, stride=stride, gain_bias=gain_bias)
            self.skip = nn.Sequential(nn.ReLU(), *norm, convolution)

    def forward(self, images: Tensor) -> Tensor:
        return self.branch(images) + self.skip(images)


def _stage(channels_in: int, channels: int, *, stride: int, blocks: int, gain_bias: bool) -> list[nn.Module]:
    first = WideBlock(channels_in, channels, stride=stride, project=True, gain_bias=gain_bias)
    rest = (
        WideBlock(channels, channels, stride=1, project=False, gain_bias=gain_bias) for _ in range(blocks - 1)
    )
    return [first, *rest]


def _wide_resnet(depth: int, classes: int, *, gain_bias: bool) -> nn.Module:
    """Three stages of (depth - 4) / 6 blocks, four times as wide as a thin ResNet."""
    check_sizes(classes=classes)
    blocks = (depth - 4) // 6
    return nn.Sequential(
        ScaledStdConv2d(3, 16, 3, stride=1, gain_bias=gain_bias),
        *_stage(16, 64, stride=1, blocks=blocks, gain_bias=gain_bias),
        *_stage(64, 128, stride=2, blocks=blocks, gain_bias=gain_bias),
        *_stage(128, 256, stride=2, blocks=blocks, gain_bias=gain_bias),
        nn.ReLU(),
        _norm(256),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


def wrn_16_4(classes: int = 10, *, ws_gain_bias: bool = True) -> nn.Module:
    """WRN-16-4 for 3x32x32 images: 2,753,818 parameters, 2,776,948 with 100 classes.

    ``ws_gain_bias=True`` is the authors' code. ``ws_gain_bias=False`` has the size that papers print,
    2,748,890: no gain, no bias in convolutions, no norm on the skip path.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(wrn_16_4()), parameter_count(wrn_16_4(ws_gain_bias=False))
    (2753818, 2748890)

    De et al., 2022; Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016.
    """
    return _wide_resnet(16, classes, gain_bias=ws_gain_bias)


def wrn_40_4(classes: int = 10, *, ws_gain_bias: bool = True) -> nn.Module:
    """WRN-40-4 for 3x32x32 images: 8,961,306 parameters, 8,949,210 with ``ws_gain_bias=False``.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(wrn_40_4()), parameter_count(wrn_40_4(ws_gain_bias=False))
    (8961306, 8949210)

    De et al., 2022; Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016.
    """
    return _wide_resnet(40, classes, gain_bias=ws_gain_bias)
