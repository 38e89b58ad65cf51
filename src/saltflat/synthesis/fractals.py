"""Fractals: where a point comes to that is moved by contractions chosen at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.settings import is_whole
from saltflat.synthesis.spectrum import stretched

WARM_UP = 20  # moves before a point is near the attractor


@dataclass(frozen=True, kw_only=True)
class Fractals:
    """The attractor of ``fewest`` to ``most`` random affine contractions, rendered by ``points`` points of the game.

    Each contraction is a rotation, two scales and another rotation; how often it is chosen is in proportion to its
    area. Brightness is the logarithm of how many points came by; in colour each contraction has a hue of its own,
    on a ground of another.
    Barnsley, "Fractals Everywhere", 1988; Kataoka et al., "Pre-training without Natural Images", ACCV 2020, use them.
    """

    fewest: int = 2
    most: int = 6
    points: int = 2000

    def __post_init__(self) -> None:
        if not (is_whole(self.fewest, 2, 64) and is_whole(self.most, self.fewest, 64)):
            raise SettingError(
                f"a fractal has from fewest to most contractions, 2 to 64; got {self.fewest!r} to {self.most!r}"
            )
        if not is_whole(self.points, 100, 10**7):
            raise SettingError(f"points is a whole number from 100 to 10^7; got {self.points!r}")

    def painted(self, count: int, channels: int, side: int, source: np.random.Generator) -> Tensor:
        maps, shifts, chosen = self._system(count, source)
        places = _played(maps, shifts, chosen)[:, WARM_UP:]  # (count, points, 2)
        hues = source.random((count, self.most, channels)).astype(np.float32)
        paint = np.take_along_axis(hues, chosen[:, WARM_UP:, None], 1)
        ground = source.random((count, channels, 1, 1)).astype(np.float32) * (channels > 1)
        return _drawn(places, paint, torch.from_numpy(ground), side)

    def _system(self, count: int, source: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Matrices (count, most, 2, 2), shifts (count, most, 2), and which map each move takes (count, moves)."""
        angles = source.uniform(0, 2 * np.pi, (2, count, self.most))
        cos, sin = np.cos(angles), np.sin(angles)
        turns = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
        scales = source.uniform(0.2, 0.8, (count, self.most, 1, 2))
        maps = (turns[0] * scales) @ turns[1]
        shifts = source.uniform(-1, 1, (count, self.most, 2))
        there = np.arange(self.most) < source.integers(self.fewest, self.most + 1, (count, 1))
        area = np.where(there, scales.prod((2, 3)), 0)
        upto = np.cumsum(area / area.sum(1, keepdims=True), 1)
        uniform = source.random((count, self.points + WARM_UP))
        chosen = (uniform[:, :, None] > upto[:, None]).sum(2).clip(max=self.most - 1)
        return maps, shifts, chosen


def _played(maps: np.ndarray, shifts: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The chaos game: x <- A_k x + b_k, move by move."""
    count, moves = chosen.shape
    own, at = np.arange(count), np.zeros((count, 2))
    places = np.empty((count, moves, 2))
    for move in range(moves):
        k = chosen[:, move]
        at = (maps[own, k] @ at[:, :, None])[:, :, 0] + shifts[own, k]
        places[:, move] = at
    return places


def _drawn(places: np.ndarray, paint: np.ndarray, ground: Tensor, side: int) -> Tensor:
    """Points as images: framed by all but the farthest, binned, their logarithm stretched, coloured by the mean hue."""
    low, high = np.quantile(places, (0.01, 0.99), axis=1, keepdims=True)
    scaled = ((places - low) / np.maximum(high - low, 1e-9) * 0.9 + 0.05) * side
    pixel = np.clip(scaled, 0, side - 1).astype(np.int64)
    inside = ((scaled >= 0) & (scaled < side)).all(2)
    where = torch.from_numpy(pixel[:, :, 1] * side + pixel[:, :, 0])
    weight = torch.from_numpy(inside.astype(np.float32))
    (count, _), channels = where.shape, paint.shape[2]
    hits = torch.zeros(count, side * side).scatter_add_(1, where, weight).view(count, 1, side, side)
    bright = stretched(hits.log1p())
    if channels == 1:
        return bright
    hue = torch.zeros(count, channels, side * side)
    for channel in range(channels):
        hue[:, channel].scatter_add_(1, where, weight * torch.from_numpy(paint[:, :, channel]))
    colour = hue.view(count, channels, side, side) / hits.clamp(min=1)
    return ground + (colour - ground) * bright.sqrt()
