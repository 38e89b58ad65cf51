"""Maps made of maps: an image with its mirror image, and several families side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saltflat.errors import SettingError
from saltflat.features.stages import Seen, Shape, Stage, chained, check_image, shape_after


@dataclass(frozen=True)
class Mirrored:
    """(f(x) + f(x mirrored left to right)) / 2, the left half of its columns; f are ``stages``.

    A model on it gives an image and its mirror image one answer. Where left and right do not tell classes apart, half
    of what noise could move is not there to be moved; letters and digits are not of that kind. The right half would
    say the same of mirrored filters.

    >>> from saltflat.features import Scattering
    >>> Mirrored([Scattering()]).after((3, 32, 32))
    (243, 8, 4)
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", _listed(self.stages, "Mirrored"))

    def after(self, shape: Shape) -> Shape:
        channels, height, width = check_image(shape_after(self.stages, shape), "Mirrored")
        return channels, height, -(-width // 2)

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        return _Mirrored(chained(self.stages, shape, seen))


class _Mirrored(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        found, other = self.inner(images), self.inner(images.flip(3))
        half = -(-found.shape[3] // 2)
        return (found[..., :half] + other[..., :half]) / 2


@dataclass(frozen=True)
class Joined:
    """Several lists of stages side by side, each on the images themselves: all their features, in a row.

    A linear model sees lengths: give each list a `RowScaled` at its end, and its norm is its weight.

    >>> from saltflat.features import HOG, RowScaled, Scattering
    >>> Joined([[Scattering(), RowScaled()], [HOG(), RowScaled(30.0)]]).after((1, 28, 28))
    (4410, 1, 1)
    """

    parts: tuple[tuple[Stage, ...], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, (list, tuple)) or not self.parts:
            raise SettingError("parts are lists of stages, one or more")
        object.__setattr__(self, "parts", tuple(_listed(part, "a part of Joined") for part in self.parts))

    def after(self, shape: Shape) -> Shape:
        shapes = [check_image(shape_after(part, shape), "Joined") for part in self.parts]
        return sum(channels * height * width for channels, height, width in shapes), 1, 1

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        return _Joined([chained(part, shape, seen) for part in self.parts])


class _Joined(nn.Module):
    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([part(images).flatten(1) for part in self.parts], 1)[..., None, None]


def _listed(stages: Sequence[Stage], who: str) -> tuple[Stage, ...]:
    """The stages as a tuple, which has a hash; what is no list of stages is refused."""
    if (
        not isinstance(stages, (list, tuple))
        or not stages
        or not all(hasattr(each, "made") for each in stages)
    ):
        raise SettingError(f"{who} takes a list of stages, one or more; got {stages!r}")
    return tuple(stages)
