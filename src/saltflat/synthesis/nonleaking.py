"""Augmentation that does not leak into what is made: the network is told how each example was changed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from saltflat.errors import SettingError
from saltflat.settings import is_number

SPREAD = 0.2  # of the logarithm (base 2) of sizes
SHIFT = 0.125  # standard deviation of a shift, in sides


@dataclass(frozen=True, kw_only=True)
class NonLeaking:
    """Each change is made to an example with this ``probability``, and said in nine numbers, 0 where it is not made.

    Flips left to right (``mirrored`` only: off by default) and upside down; a size 2^(0.2 N); a rotation by any angle;
    stretching by 2^(0.2 N) along any axis; a shift of N / 8 sides. A generator asked for nine zeros makes examples that
    are not changed, though most of what it learned from were.
    Karras et al. 2022, section 5 and appendix F; Jun et al. 2020, "Distribution Augmentation for Generative Modeling".

    >>> images, said = NonLeaking(probability=0.0)(torch.rand(2, 1, 8, 8), torch.Generator())
    >>> said.shape, float(said.abs().sum())
    (torch.Size([2, 9]), 0.0)
    """

    probability: float = 0.12
    mirrored: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.probability, 0, 1):
            raise SettingError(f"probability lies in [0, 1]; got {self.probability!r}")
        if not isinstance(self.mirrored, bool):
            raise SettingError(f"mirrored is True or False; got {self.mirrored!r}")

    def __call__(self, images: Tensor, source: Generator) -> tuple[Tensor, Tensor]:
        """The images (n, c, h, w) changed, and what was done to each, (n, 9)."""
        if self.probability == 0:
            return images, torch.zeros(len(images), 9)
        said = self._drawn(len(images), source)
        grid = F.affine_grid(_matrices(said)[:, :2], list(images.shape), align_corners=False)
        moved = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
        changed = (said != 0).any(1).view(-1, 1, 1, 1)
        return torch.where(changed, moved, images), said

    def _drawn(self, count: int, source: Generator) -> Tensor:
        """(n, 9): flips, log size, rotation (cos - 1, sin), log stretch by its axis (2), shifts (2)."""
        made = lambda: (torch.rand(count, generator=source) < self.probability).float()
        normal = lambda: torch.randn(count, generator=source)
        angle = lambda: 2 * math.pi * torch.rand(count, generator=source)
        mirror = made() * self.mirrored
        flip, size = made(), made() * normal()
        turn = made() * angle()
        axis, stretch = angle(), made() * normal()
        shift = made()
        numbers = [mirror, flip, size, turn.cos() - 1, turn.sin(), stretch * axis.cos(), stretch * axis.sin()]
        return torch.stack([*numbers, shift * normal(), shift * normal()], 1)


def _matrices(said: Tensor) -> Tensor:
    """(n, 3, 3): from a place in the changed image to where it comes from, in coordinates from -1 to 1."""
    mirror, flip, size, cos, sin, along, across, right, down = said.unbind(1)
    cos = cos + 1
    zero, one = torch.zeros_like(size), torch.ones_like(size)
    build = lambda *rows: torch.stack([torch.stack(row, 1) for row in rows], 1)
    stretch = (along.square() + across.square()).sqrt()
    x, y = along / stretch.clamp(min=1e-12), across / stretch.clamp(min=1e-12)
    axes = build((x, -y, zero), (y, x, zero), (zero, zero, one))
    turned = torch.where((stretch > 0).view(-1, 1, 1), axes, torch.eye(3).expand_as(axes))
    longer, shorter = 2 ** (-SPREAD * stretch), 2 ** (SPREAD * stretch)
    pulled = build((longer, zero, zero), (zero, shorter, zero), (zero, zero, one))
    smaller = 2 ** (-SPREAD * size)
    parts = [
        build(((1 - 2 * mirror), zero, zero), (zero, (1 - 2 * flip), zero), (zero, zero, one)),
        build((smaller, zero, zero), (zero, smaller, zero), (zero, zero, one)),
        build((cos, sin, zero), (-sin, cos, zero), (zero, zero, one)),
        turned @ pulled @ turned.transpose(1, 2),
        build((one, zero, -2 * SHIFT * right), (zero, one, -2 * SHIFT * down), (zero, zero, one)),
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole @ part
    return whole
