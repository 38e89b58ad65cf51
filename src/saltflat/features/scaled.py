"""Normalisation of each example by itself: nothing of the others is in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import SettingError
from saltflat.features.stages import Seen, Shape, check_image
from saltflat.settings import is_positive, is_whole


@dataclass(frozen=True)
class Grouped:
    """Each group of channels to mean 0 and variance 1 over the example: GroupNorm without learned numbers."""

    groups: int

    def __post_init__(self) -> None:
        if not is_whole(self.groups):
            raise SettingError(f"groups is a whole number, at least 1; got {self.groups!r}")

    def after(self, shape: Shape) -> Shape:
        channels, _, _ = check_image(shape, "Grouped")
        if channels % self.groups:
            raise SettingError(
                f"{channels} channels cannot be {self.groups} equal groups; take a divisor of {channels}"
            )
        return shape

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        return nn.GroupNorm(self.groups, self.after(shape)[0], affine=False)


@dataclass(frozen=True)
class Grey:
    """The mean over channels: colour images as grey ones, a third of the work for what follows."""

    def after(self, shape: Shape) -> Shape:
        return 1, *check_image(shape, "Grey")[1:]

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        self.after(shape)
        return _Grey()


class _Grey(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.mean(1, keepdim=True)


@dataclass(frozen=True)
class RowScaled:
    """norm x / ||x||: every example's features to one length, so that no gradient of a linear model is longer.

    The default is the length that clip norm 0.1 and learning rates of 4 to 8 were tried with.
    """

    norm: float = 63.0

    def __post_init__(self) -> None:
        if not is_positive(self.norm):
            raise SettingError(f"norm must be positive and finite; got {self.norm!r}")

    def after(self, shape: Shape) -> Shape:
        return shape

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        return _RowScaled(self.norm)


class _RowScaled(nn.Module):
    def __init__(self, norm: float) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, features: Tensor) -> Tensor:
        flat = F.normalize(features.flatten(1), dim=1, eps=torch.finfo(features.dtype).tiny)
        return self.norm * flat.view_as(features)
