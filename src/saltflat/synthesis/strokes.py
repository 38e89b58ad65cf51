"""Strokes of a pen: made-up characters, each written several times by another hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.settings import is_number, is_whole
from saltflat.synthesis.leaves import USUAL_SIDE

Draws = Callable[..., Tensor]  # uniform draws, of a shape
MOST_STROKES, MOST_VIEWS = 16, 256
POINTS = 32  # of a stroke: about one a pixel in an image of 28


@dataclass(frozen=True, kw_only=True)
class Strokes:
    """Characters of ``fewest`` to ``most`` strokes, bright on dark, with their centre of mass in the middle.

    A stroke is a cubic curve through a box, and a character's longer side is ``reach`` of the image's, a tenth more or
    less; a pen of ``thin`` to ``thick`` pixels (of an image of 28; others in proportion) goes along it. Every character
    is painted ``views`` times in a row, each time slanted, turned, stretched, with another pen, and with its points
    moved by up to ``wobble`` of the box: what these have in common is what a reader of writing looks at. In colour, ink
    and ground are drawn.

    No letter or digit is described here: the curves are random.
    """

    fewest: int = 1
    most: int = 2
    reach: float = 0.63
    thin: float = 1.4
    thick: float = 3.6
    wobble: float = 0.06
    views: int = 8

    def __post_init__(self) -> None:
        if not (is_whole(self.fewest, 1, MOST_STROKES) and is_whole(self.most, self.fewest, MOST_STROKES)):
            raise SettingError(
                f"a character has from fewest to most strokes, 1 to {MOST_STROKES}; got {self.fewest!r} to "
                f"{self.most!r}"
            )
        if not (is_number(self.thin, 0.1) and is_number(self.thick, self.thin, 1e3)):
            raise SettingError(
                f"a pen is thin to thick pixels wide, thin at least 0.1; got {self.thin!r} to {self.thick!r}"
            )
        if not (is_number(self.reach, 0.05, 2) and is_number(self.wobble, 0, 1)):
            raise SettingError(
                f"reach lies in [0.05, 2] and wobble in [0, 1], parts of the side; got {self.reach!r} and "
                f"{self.wobble!r}"
            )
        if not (is_whole(self.views, 1, MOST_VIEWS) and MOST_VIEWS % self.views == 0):
            raise SettingError(f"views is a power of two from 1 to {MOST_VIEWS}; got {self.views!r}")

    def painted(self, count: int, channels: int, side: int, source: np.random.Generator) -> Tensor:
        """(count, channels, side, side); a character's views follow one another."""
        characters = -(-count // self.views)
        draw = lambda *shape: torch.from_numpy(source.random(shape, dtype=np.float32))
        corners = draw(characters, self.most, 4, 2) - 0.5
        strokes = torch.from_numpy(source.integers(self.fewest, self.most + 1, characters))
        corners, strokes = (each.repeat_interleave(self.views, 0)[:count] for each in (corners, strokes))
        corners = corners + self.wobble * (2 * draw(count, self.most, 4, 2) - 1)
        drawn = (torch.arange(self.most) < strokes.unsqueeze(1)).view(count, self.most, 1, 1)
        curves = _curves(corners @ _hand(draw, count).unsqueeze(1))
        size = self.reach * side * (0.9 + 0.2 * draw(count, 1, 1, 1)) / _extent(curves, drawn)
        curves = size * (curves - _middle(curves, drawn))
        points = curves.flatten(1, 2) + side / 2
        width = (self.thin + (self.thick - self.thin) * draw(count, 1, 1)) * side / USUAL_SIDE
        far = torch.where(drawn.expand_as(curves).flatten(1, 2), points, torch.full_like(points, 1e6))
        ink = (0.5 + width / 2 - _distance(far, side)).clamp(0, 1).unsqueeze(1)  # soft edges, one pixel wide
        ground, colour = (0.0, 1.0) if channels == 1 else (draw(count, channels, 1, 1) for _ in range(2))
        return ground + (colour - ground) * ink.expand(count, channels, side, side)


def _hand(draw: Draws, count: int) -> Tensor:
    """A linear map for each image: stretched by 0.8 to 1.2 along both axes, turned and slanted by some 15 degrees."""
    stretch = 0.8 + 0.4 * draw(count, 2)
    turn, slant = ((2 * draw(count) - 1) * most for most in (0.25, 0.35))
    one, none = torch.ones(count), torch.zeros(count)
    rows = lambda *cells: torch.stack(cells, -1).view(count, 2, 2)
    return (
        torch.diag_embed(stretch)
        @ rows(one, none, slant, one)
        @ rows(turn.cos(), turn.sin(), -turn.sin(), turn.cos())
    )


def _curves(corners: Tensor) -> Tensor:
    """Points along cubic Bezier curves: (n, strokes, 4, 2) -> (n, strokes, POINTS, 2)."""
    t = torch.linspace(0, 1, POINTS).unsqueeze(1)
    weights = torch.cat([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], 1)
    return weights @ corners


def _middle(curves: Tensor, drawn: Tensor) -> Tensor:
    """The mean of the points of the strokes that are drawn, (n, 1, 1, 2)."""
    return (curves * drawn).sum((1, 2), keepdim=True) / (POINTS * drawn.sum((1, 2), keepdim=True))


def _extent(curves: Tensor, drawn: Tensor) -> Tensor:
    """The longer side of what is drawn, (n, 1, 1, 1); never nothing."""
    least = torch.where(drawn, curves, torch.full_like(curves, torch.inf)).amin((1, 2), keepdim=True)
    most = torch.where(drawn, curves, torch.full_like(curves, -torch.inf)).amax((1, 2), keepdim=True)
    return (most - least).amax(3, keepdim=True).clamp(min=1e-3)


def _distance(points: Tensor, side: int) -> Tensor:
    """(n, side, side): how far each pixel's middle is from the nearest of (n, k, 2) points."""
    middle = torch.arange(side, dtype=torch.float32) + 0.5
    across = (middle - points[..., :1]).square()  # (n, k, side)
    down = (middle - points[..., 1:]).square()
    nearest = [(d.unsqueeze(2) + a.unsqueeze(1)).amin(0) for d, a in zip(down, across, strict=True)]
    return torch.stack(nearest).sqrt()
