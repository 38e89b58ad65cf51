"""Patches of made-up images as filters: what a place of an image has in common with each of them, pooled."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import SettingError
from saltflat.features.stages import Seen, Shape, check_image
from saltflat.settings import is_number, is_whole
from saltflat.synthesis import DeadLeaves, Process

FLAT = 1.5e-4  # variance of a patch below which it counts as flat: ten of 255 grey values, squared
DRAWN = 100_000  # patches that the whitening is taken from


@dataclass(frozen=True, kw_only=True)
class Patches:
    """mean over ``pool`` x ``pool`` pixels of max(0, a - ``threshold``) and max(0, -a - ``threshold``), a = <d, W z>.

    z is the patch of ``size`` x ``size`` pixels around a pixel, without its mean and of variance 1, at every
    ``stride``-th pixel of a row and a column; W = (S + floor
    mean(l))^-1/2 whitens such patches of ``images`` images that ``process`` makes, S being their covariance and l its
    eigenvalues; and d is one of ``filters`` whitened patches of the same images, of length 1. Borders are mirrored.
    Coates and Ng, "The Importance of Encoding Versus Training with Sparse Coding and Vector Quantization", ICML 2011,
    who take the patches from the data: here none is.

    *Guarantee*: no statistic of private examples; the images come from ``process`` and ``seed``.

    >>> Patches(filters=32).after((3, 32, 32))
    (64, 4, 4)
    """

    filters: int = 256
    size: int = 6
    pool: int = 8
    stride: int = 2
    threshold: float = 0.5
    floor: float = 0.1
    process: Process = field(default_factory=DeadLeaves)
    images: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("filters", 1, 1 << 16),
            ("size", 2, 255),
            ("pool", 1, 1024),
            ("stride", 1, 64),
            ("images", 2, 10**6),
        ):
            if not is_whole(getattr(self, name), least, most):
                raise SettingError(
                    f"{name} is a whole number from {least} to {most}; got {getattr(self, name)!r}"
                )
        if not (is_number(self.threshold, 0, 1e3) and is_number(self.floor, 1e-9, 1e9)):
            raise SettingError(
                f"threshold lies in [0, 1000] and floor in [1e-9, 1e9]; got {self.threshold!r} and {self.floor!r}"
            )
        if self.pool % self.stride:
            raise SettingError(f"pool is a multiple of stride; got {self.pool} and {self.stride}")
        if isinstance(self.process, type) or not callable(getattr(self.process, "painted", None)):
            raise SettingError(f"process is a value such as DeadLeaves(); got {self.process!r}")
        if not is_whole(self.seed, 0, 2**63 - 1):
            raise SettingError(f"seed is a whole number from 0 on; got {self.seed!r}")

    def after(self, shape: Shape) -> Shape:
        _, height, width = check_image(shape, "Patches")
        if max(self.size, self.pool) > min(height, width):
            raise SettingError(
                f"patches of {self.size} pixels, pooled by {self.pool}, do not fit images of {height} x {width}"
            )
        return 2 * self.filters, -(-height // self.pool), -(-width // self.pool)

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        self.after(shape)
        source = torch.Generator().manual_seed(self.seed)
        rows = self._drawn(seen(self.process, self.images, self.seed), source)
        values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
        values = values.clamp(min=0)
        root = (vectors * (values + self.floor * values.mean().clamp(min=1e-30)) ** -0.5) @ vectors.T
        chosen = rows[torch.randint(len(rows), (self.filters,), generator=source)] @ root
        chosen = F.normalize(chosen, dim=1) @ root
        chosen = chosen - chosen.mean(1, keepdim=True)  # so that the patch's mean need not be taken away
        return _Patches(self, chosen.view(self.filters, shape[0], self.size, self.size))

    def _drawn(self, images: Tensor, source: torch.Generator) -> Tensor:
        """Patches at random places, without their mean and of variance 1; flat ones hardly count."""
        rows = []
        for some in images.split(100):
            found = F.unfold(some, self.size).mT.flatten(0, 1)
            count = min(len(found), -(-DRAWN * len(some) // len(images)))
            rows.append(found[torch.randperm(len(found), generator=source)[:count]])
        whole = torch.cat(rows).double()
        whole = whole - whole.mean(1, keepdim=True)
        return whole / (whole.square().mean(1, keepdim=True) + FLAT).sqrt()


class _Patches(nn.Module):
    def __init__(self, of: Patches, weight: Tensor) -> None:
        super().__init__()
        self.of = of
        self.register_buffer("weight", weight.float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        of = self.of
        before = (of.size - 1) // 2
        padded = F.pad(images, [before, of.size - 1 - before] * 2, mode="reflect")
        both = torch.stack([padded.mean(1), padded.square().mean(1)], 1)
        mean, square = F.avg_pool2d(both, of.size, stride=of.stride).split(1, 1)
        deviation = (square - mean.square()).clamp(min=0) + FLAT
        answers = F.conv2d(padded, self.get_buffer("weight"), stride=of.stride) * deviation.rsqrt()
        pooled = lambda parts: F.avg_pool2d(parts.clamp(min=0), of.pool // of.stride, ceil_mode=True)
        up, down = pooled(answers - of.threshold), pooled(-answers - of.threshold)
        return torch.cat([up, down], 1)
