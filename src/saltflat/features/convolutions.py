"""Random convolutional features: filters that nobody trained, rectified both ways and pooled."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import SettingError
from saltflat.features.stages import Seen, Shape, check_image
from saltflat.settings import is_whole


@dataclass(frozen=True)
class RandomConvolutions:
    """mean over ``pool`` x ``pool`` pixels of max(0, x * f) and max(0, -x * f), for ``filters`` random filters f.

    Filters are Gaussian, of ``size`` pixels a side, without their mean and of length 1, and the same for one ``seed``.
    Coates and Ng, "The Importance of Encoding Versus Training with Sparse Coding and Vector Quantization", ICML 2011.

    >>> RandomConvolutions(32).after((3, 32, 32))
    (64, 8, 8)
    """

    filters: int = 128
    size: int = 5
    pool: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in (("filters", 1 << 16), ("size", 255), ("pool", 1024)):
            if not is_whole(getattr(self, name), 1, most):
                raise SettingError(f"{name} is a whole number from 1 to {most}; got {getattr(self, name)!r}")
        if self.size % 2 == 0:
            raise SettingError(f"size must be odd, so that a filter has a middle; got {self.size}")
        if not is_whole(self.seed, 0, 2**63 - 1):
            raise SettingError(f"seed is a whole number from 0 on; got {self.seed!r}")

    def after(self, shape: Shape) -> Shape:
        channels, height, width = check_image(shape, "RandomConvolutions")
        if (
            self.size // 2 >= min(height, width)
            or self.pool > min(height, width)
            or self.size**2 * channels < 2
        ):
            raise SettingError(
                f"filters of {self.size} pixels, pooled by {self.pool}, do not fit images of {height} x {width}"
            )
        return 2 * self.filters, height // self.pool, width // self.pool

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        self.after(shape)
        return _RandomConvolutions(self, shape[0])


class _RandomConvolutions(nn.Module):
    def __init__(self, of: RandomConvolutions, channels: int) -> None:
        super().__init__()
        self.of = of
        source = torch.Generator().manual_seed(of.seed)
        drawn = torch.randn(of.filters, channels, of.size, of.size, generator=source, dtype=torch.float64)
        drawn = drawn - drawn.mean((1, 2, 3), keepdim=True)
        drawn = drawn / drawn.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        self.register_buffer("weight", drawn.float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        reach = self.of.size // 2
        padded = F.pad(images, [reach] * 4, mode="reflect") if reach else images
        answers = F.conv2d(padded, self.get_buffer("weight"))
        positive = F.avg_pool2d(answers.clamp(min=0), self.of.pool)
        both = positive - F.avg_pool2d(answers, self.of.pool)  # the mean of max(0, -a)
        return torch.cat([positive, both], 1) * math.sqrt(2)
