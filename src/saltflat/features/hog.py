"""Histograms of oriented gradients: where edges are, which way they run, and nothing of how bright the image is."""

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
class HOG:
    """For every cell of ``cell`` pixels, the gradients' lengths added up by direction, in ``bins`` over half a turn.

    A direction between two bins counts in both, in proportion. A cell's histogram is divided by the length of its
    neighbourhood's (3 x 3 cells, mirrored at the border). Each input channel has histograms of its own.
    Dalal and Triggs, "Histograms of Oriented Gradients for Human Detection", CVPR 2005.

    >>> HOG().after((1, 28, 28))
    (9, 7, 7)
    """

    bins: int = 9
    cell: int = 4

    def __post_init__(self) -> None:
        if not (is_whole(self.bins, 2, 360) and is_whole(self.cell, 1, 1024)):
            raise SettingError(
                f"bins lie in 2 to 360 and a cell has at least 1 pixel; got {self.bins!r} and {self.cell!r}"
            )

    def after(self, shape: Shape) -> Shape:
        channels, height, width = check_image(shape, "HOG")
        if min(height, width) < 2 * self.cell:
            raise SettingError(
                f"images of {height} x {width} have fewer than two cells of {self.cell} pixels a side"
            )
        return channels * self.bins, height // self.cell, width // self.cell

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        self.after(shape)
        return _HOG(self)


class _HOG(nn.Module):
    def __init__(self, of: HOG) -> None:
        super().__init__()
        self.of = of

    def forward(self, images: Tensor) -> Tensor:
        count, channels = images.shape[:2]
        padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
        across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
        down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
        length = (across.square() + down.square()).sqrt()
        place = torch.atan2(down, across) / math.pi % 1 * self.of.bins
        bins = torch.arange(self.of.bins, device=images.device).view(-1, 1, 1)
        apart = (place.unsqueeze(2) - bins).abs()
        near = (1 - torch.minimum(apart, self.of.bins - apart)).clamp(
            min=0
        )  # 0 and half a turn are one direction
        votes = (near * length.unsqueeze(2)).flatten(0, 1)
        cells = F.avg_pool2d(votes, self.of.cell)
        energy = F.pad(cells.square().sum(1, keepdim=True), (1, 1, 1, 1), mode="reflect")
        around = F.avg_pool2d(energy, 3, stride=1)
        return (cells / (around + 1e-4).sqrt()).view(count, channels * self.of.bins, *cells.shape[2:])
