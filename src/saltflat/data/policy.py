"""AutoAugment's policy for CIFAR: two of many changes for every image, by a published table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from saltflat.data.augment import checked_shape
from saltflat.data.examples import Scale

LEVELS = 9  # magnitudes run from 0 to this
Change = tuple[str, float, int]  # its name, how often it is made, its magnitude

POLICY: tuple[tuple[Change, Change], ...] = (  # the paper's table for CIFAR-10
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("move_across", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_down", 0.5, 8), ("move_down", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_down", 0.2, 7), ("posterize", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("move_across", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("move_down", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("colour", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("move_down", 0.9, 9), ("move_down", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("move_down", 0.7, 9), ("autocontrast", 0.9, 0)),
)


@dataclass(frozen=True)
class AutoAugment:
    """One of 25 pairs of changes for every image, each of the two made with its own probability.

    Images have values from 0 to 1; those that a data set's ``scale`` made are taken back by it, changed, and scaled
    again. Geometric changes and those of contrast and the like go either way by a fair coin.
    Cubuk et al., "AutoAugment: Learning Augmentation Strategies from Data", CVPR 2019.

    >>> AutoAugment()(torch.rand(4, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    scale: Scale | None = None

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        count, *_ = checked_shape(images)
        draws = lambda *shape: torch.rand(*shape, generator=generator, device=generator.device).cpu()
        pair, made, back = draws(count), draws(count, 2), draws(count, 2) < 0.5
        pair = (pair * len(POLICY)).long()
        pixels = self._pixels(images).clamp(0, 1)
        for number in pair.unique().tolist():
            mine = (pair == number).nonzero().flatten()
            for place, (name, often, level) in enumerate(POLICY[number]):
                which = mine[made[mine, place] < often]
                if len(which):
                    sign = 1 - 2 * back[which, place].float()
                    where = which.to(images.device)
                    changed = CHANGES[name](pixels[where], level, sign.to(images.device))
                    pixels = pixels.index_copy(0, where, changed.clamp(0, 1))
        return self._scaled(pixels)

    def _pixels(self, images: Tensor) -> Tensor:
        if self.scale is None:
            return images
        mean, std = (torch.tensor(v).to(images).view(-1, 1, 1) for v in (self.scale.mean, self.scale.std))
        return images * std + mean

    def _scaled(self, pixels: Tensor) -> Tensor:
        if self.scale is None:
            return pixels
        mean, std = (torch.tensor(v).to(pixels).view(-1, 1, 1) for v in (self.scale.mean, self.scale.std))
        return (pixels - mean) / std


def _moved(images: Tensor, entries: dict[tuple[int, int], Tensor]) -> Tensor:
    """Every image seen through a matrix of its own, (2, 3): 1 but for ``entries``. What comes from outside is black."""
    matrix = torch.eye(2, 3).to(images).repeat(len(images), 1, 1)
    for (row, column), values in entries.items():
        matrix[:, row, column] = values
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def _rotate(images: Tensor, level: int, sign: Tensor) -> Tensor:
    angle = sign * math.radians(30 * level / LEVELS)
    turn = {(0, 0): angle.cos(), (0, 1): -angle.sin(), (1, 0): angle.sin(), (1, 1): angle.cos()}
    return _moved(images, turn)


def _far(level: int) -> float:
    """150 / 331 of a side at most, in coordinates from -1 to 1."""
    return 2 * 150 / 331 * level / LEVELS


def _blended(images: Tensor, other: Tensor, level: int, sign: Tensor) -> Tensor:
    """other + (1 ± 0.9 level / 9) (images - other)."""
    return other + (1 + 0.9 * level / LEVELS * sign).view(-1, 1, 1, 1) * (images - other)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images
    weight = torch.tensor([0.299, 0.587, 0.114]).to(images).view(3, 1, 1)
    return (images * weight).sum(1, keepdim=True)


def _smooth(images: Tensor) -> Tensor:
    """A blur over 3 x 3 pixels with weight 5 in the middle; the border stays."""
    channels = images.shape[1]
    kernel = torch.ones(3, 3).to(images)
    kernel[1, 1] = 5
    inner = F.conv2d(images, (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = inner
    return smooth


def _autocontrast(images: Tensor, level: int, sign: Tensor) -> Tensor:
    """Each channel of an image stretched to [0, 1]; one without contrast stays."""
    low, high = (f(images.flatten(2), 2).view(*images.shape[:2], 1, 1) for f in (torch.amin, torch.amax))
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-9), images)


def _equalize(images: Tensor, level: int, sign: Tensor) -> Tensor:
    """Each channel of an image by its own ranks, so that all values are equally frequent."""
    values = (images * 255).round().long().flatten(2)
    counts = torch.zeros(*values.shape[:2], 256, device=images.device)
    counts.scatter_add_(2, values, torch.ones_like(values, dtype=counts.dtype))
    below = counts.cumsum(2)
    least = torch.where(counts > 0, below, below[:, :, -1:]).amin(2, keepdim=True)
    rest = below[:, :, -1:] - least
    table = torch.where(rest > 0, (below - least) / rest.clamp(min=1), torch.linspace(0, 1, 256).to(below))
    return table.gather(2, values).view_as(images).to(images)


def _posterize(images: Tensor, level: int, sign: Tensor) -> Tensor:
    step = 2 ** round(4 * level / LEVELS)  # bits that are dropped, up to four
    return (images * 255).div(step).floor() * step / 255


CHANGES: dict[str, Callable[[Tensor, int, Tensor], Tensor]] = {
    "shear_down": lambda x, level, sign: _moved(x, {(1, 0): 0.3 * level / LEVELS * sign}),
    "rotate": _rotate,
    "move_across": lambda x, level, sign: _moved(x, {(0, 2): _far(level) * sign}),
    "move_down": lambda x, level, sign: _moved(x, {(1, 2): _far(level) * sign}),
    "brightness": lambda x, level, sign: _blended(x, torch.zeros_like(x), level, sign),
    "colour": lambda x, level, sign: _blended(x, _grey(x).expand_as(x), level, sign),
    "contrast": lambda x, level, sign: _blended(
        x, _grey(x).mean((1, 2, 3), keepdim=True).expand_as(x), level, sign
    ),
    "sharpness": lambda x, level, sign: _blended(x, _smooth(x), level, sign),
    "posterize": _posterize,
    "solarize": lambda x, level, sign: torch.where(x >= 1 - level / LEVELS, 1 - x, x),
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": lambda x, level, sign: 1 - x,
}
