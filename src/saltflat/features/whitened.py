"""Whitening by images that a program makes: axes along which images differ little get as much room as the others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from saltflat.errors import SettingError
from saltflat.features.stages import Seen, Shape, check_image
from saltflat.settings import is_number, is_whole
from saltflat.synthesis import DeadLeaves, Process

MOST = 16384  # features whose covariance is decomposed as a whole


@dataclass(frozen=True, kw_only=True)
class Whitened:
    """x -> (x - m) V diag((l + floor mean(l))^-power) V^T, with m, V and l of ``images`` made-up images' features.

    m is their mean, V and l the eigenvectors and eigenvalues of their covariance: of all features, or with
    ``channels_only`` of the channels, pooled over positions (m stays one of each position); with ``most``, of the
    channels wherever there are more features than that. With ``within``, V and l are of how images of one thing differ,
    for a process that paints each thing in several ``views``, as `Strokes` does: what tells things apart keeps its
    length, and what tells views apart loses it. ``power`` 1/2 whitens, 0 only centres. Noise has one size in all
    directions and a clip bounds the norm, so that axes of small variance are drowned; whitening spends the noise
    evenly. It also lifts axes that carry little: with few private examples or a small epsilon, take a smaller power or
    a larger floor.

    *Guarantee*: no statistic of private examples; the images come from ``process`` and ``seed``.
    """

    process: Process = field(default_factory=DeadLeaves)
    images: int = 3000
    power: float = 0.25
    floor: float = 0.1
    channels_only: bool = False
    most: int | None = None
    within: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.process, type) or not callable(getattr(self.process, "painted", None)):
            raise SettingError(f"process is a value such as DeadLeaves(); got {self.process!r}")
        if not is_whole(self.images, 2, 10**7):
            raise SettingError(f"images is a number of images, at least 2; got {self.images!r}")
        if not (is_number(self.power, 0, 1) and is_number(self.floor, 1e-9, 1e9)):
            raise SettingError(
                f"power lies in [0, 1] and floor in [1e-9, 1e9]; got {self.power!r} and {self.floor!r}"
            )
        if not is_whole(self.seed, 0, 2**63):
            raise SettingError(f"seed is a whole number from 0 on; got {self.seed!r}")
        for name in ("channels_only", "within"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name} is True or False; got {getattr(self, name)!r}")
        if self.within and not is_whole(getattr(self.process, "views", 1), 2, self.images):
            raise SettingError(
                f"within takes a process that paints each thing in several views, such as Strokes(), and at least as "
                f"many images; got {self.process!r} and {self.images} images"
            )
        if self.most is not None and not is_whole(self.most, 1, MOST):
            raise SettingError(f"most is a number of features, from 1 to {MOST}; got {self.most!r}")

    def after(self, shape: Shape) -> Shape:
        channels, height, width = check_image(shape, "Whitened")
        if not self._by_channel(shape) and channels * height * width > MOST:
            raise SettingError(
                f"{channels * height * width} features are too many for one covariance, {MOST} at most: set "
                "channels_only"
            )
        return shape

    def _by_channel(self, shape: Shape) -> bool:
        """Whether the covariance is that of the channels."""
        return self.channels_only or (self.most is not None and math.prod(shape) > self.most)

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        self.after(shape)
        channels_only = self._by_channel(shape)
        features = seen(self.process, self.images, self.seed).double()
        mean = features.mean(0)
        features = differences(features, self.process) if self.within else features - mean
        rows = features.movedim(1, -1).flatten(0, -2) if channels_only else features.flatten(1)
        covariance = rows.T @ rows / len(rows)
        return _Whitened(mean, self.root(covariance), channels_only=channels_only)

    def root(self, covariance: Tensor) -> Tensor:
        """V diag((l + floor mean(l))^-power) V^T."""
        values, vectors = torch.linalg.eigh(covariance)
        values = values.clamp(min=0)
        scale = (values + self.floor * values.mean().clamp(min=1e-30)) ** -self.power
        return (vectors * scale) @ vectors.T


def differences(features: Tensor, process: Process) -> Tensor:
    """How far made-up images are from the mean of their family: ``views`` of one thing that follow one another.

    Scaled by (views / (views - 1))^1/2, so that the mean of squares is the variance within families.
    """
    views: int = process.views  # type: ignore[attr-defined]
    families = features[: len(features) // views * views].unflatten(0, (-1, views))
    apart = families - families.mean(1, keepdim=True)
    return apart.flatten(0, 1) * (views / (views - 1)) ** 0.5


class _Whitened(nn.Module):
    def __init__(self, mean: Tensor, root: Tensor, *, channels_only: bool) -> None:
        super().__init__()
        self.channels_only = channels_only
        self.register_buffer("mean", mean.float(), persistent=False)
        self.register_buffer("root", root.float(), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        mean, root = self.get_buffer("mean"), self.get_buffer("root")
        centred = features - mean
        if self.channels_only:
            return torch.einsum("ij,njhw->nihw", root, centred)
        return (centred.flatten(1) @ root).view_as(features)
