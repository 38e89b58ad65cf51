"""Dead leaves: shapes that fall on each other, as leaves do, until the ground is covered or they are used up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.settings import is_number, is_positive, is_whole

Draw = Callable[..., Tensor]  # uniform draws for every image: draw(k) is (count, k)
USUAL_SIDE = 28  # of the images that sizes in pixels are given for; they grow with the side
MOST_SHAPES = 4096


@dataclass(frozen=True, kw_only=True)
class DeadLeaves:
    """``fewest`` to ``most`` ellipses and rectangles, painted over each other on a plain ground.

    A shape has half-axis ``least`` + ``spread`` u^2 pixels (of an image of 28; others in proportion), u uniform, an
    aspect from ``narrow`` to 1, and a random angle, place and grey value. In colour each channel's value is the grey
    one plus ``tint`` (u - 1/2), and each shape has a slight linear gradient.

    Sizes that fall off by a power give images edges, corners, occlusions and a spectrum like those of photographs.
    Lee, Mumford and Huang, "Occlusion Models for Natural Images", IJCV 2001; Baradad et al., "Learning to See by
    Looking at Noise", NeurIPS 2021.
    """

    fewest: int = 3
    most: int = 25
    least: float = 2.0
    spread: float = 14.0
    narrow: float = 0.3
    tint: float = 0.35

    def __post_init__(self) -> None:
        if not (is_whole(self.fewest, 1, MOST_SHAPES) and is_whole(self.most, self.fewest, MOST_SHAPES)):
            raise SettingError(
                f"an image has from fewest to most shapes, 1 to {MOST_SHAPES}; got {self.fewest!r} to {self.most!r}"
            )
        if not (is_positive(self.least) and is_number(self.spread, 0)):
            raise SettingError(
                f"sizes are least + spread u^2 pixels, least above 0 and spread 0 or more; got {self.least!r} and "
                f"{self.spread!r}"
            )
        if not (is_number(self.narrow, 0.01, 1) and is_number(self.tint, 0, 1)):
            raise SettingError(
                f"narrow lies in [0.01, 1] and tint in [0, 1]; got {self.narrow!r} and {self.tint!r}"
            )

    def painted(self, count: int, channels: int, side: int, source: np.random.Generator) -> Tensor:
        draw = lambda *shape: torch.from_numpy(source.random((count, *shape), dtype=np.float32))
        shapes = torch.from_numpy(source.integers(self.fewest, self.most + 1, count))
        images = self._colour(draw, channels).view(count, channels, 1, 1).repeat(1, 1, side, side)
        middle = (torch.arange(side, dtype=torch.float32) + 0.5).expand(count, side)
        for number in range(self.most):
            inside, along = self._shape(draw, middle, side)
            colour = self._colour(draw, channels).view(count, channels, 1, 1)
            if channels > 1:
                colour = colour + 0.2 * (draw(1) - 0.5).view(count, 1, 1, 1) * along.unsqueeze(1)
            falls = inside & (number < shapes).view(count, 1, 1)
            images = torch.where(falls.unsqueeze(1), colour, images)
        return images

    def _shape(self, draw: Draw, middle: Tensor, side: int) -> tuple[Tensor, Tensor]:
        """A shape for each image: (count, side, side) where it lies, and how far along its axis a pixel is, -1 to 1."""
        at, angle = draw(2) * side, draw(1) * np.pi
        axis = (self.least + self.spread * draw(1) ** 2) * side / USUAL_SIDE
        across = axis * (self.narrow + (1 - self.narrow) * draw(1))
        round_ones = draw(1) < 0.5
        x = (middle - at[:, :1]).unsqueeze(1)  # (count, 1, side)
        y = (middle - at[:, 1:]).unsqueeze(2)
        cos, sin = angle.cos().unsqueeze(2), angle.sin().unsqueeze(2)
        u = (cos * x + sin * y) / axis.unsqueeze(2)
        v = (cos * y - sin * x) / across.unsqueeze(2)
        ellipse, rectangle = u.square() + v.square() < 1, torch.maximum(u.abs(), v.abs()) < 1
        return torch.where(round_ones.unsqueeze(2), ellipse, rectangle), u.clamp(-1, 1)

    def _colour(self, draw: Draw, channels: int) -> Tensor:
        """(count, channels), in [0, 1] but for the tint."""
        grey = draw(1)
        return grey if channels == 1 else grey + self.tint * (draw(channels) - 0.5)
