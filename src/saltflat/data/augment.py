"""Random views of images, drawn for whole batches with torch alone.

A transform is a function of images (n, c, h, w) and a generator. It returns as many images, and changes each by
a draw of its own: no image ever sees another, as one unit's gradient must depend on that unit alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from saltflat.core.sampling import Batch
from saltflat.errors import DataError, SettingError
from saltflat.settings import is_number, is_whole

Transform = Callable[[Tensor, Generator], Tensor]
MOST_PIXELS = 1 << 20  # along a side


@dataclass(frozen=True)
class PadCrop:
    """Pad by ``padding`` pixels on every side, then cut the old size out at a random place.

    The border mirrors the image, without repeating its edge (De et al. 2022, arXiv:2204.13650, with padding 4);
    with ``reflect=False`` it is zero, which is black in [0, 1] and the published mean in scaled images.

    >>> image = torch.arange(9.0).view(1, 1, 3, 3)
    >>> PadCrop(1)(image, torch.Generator().manual_seed(0)).shape
    torch.Size([1, 1, 3, 3])
    """

    padding: int = 4
    reflect: bool = True

    def __post_init__(self) -> None:
        if not is_whole(self.padding, 0, MOST_PIXELS):
            raise SettingError(
                f"padding is a whole number of pixels, from 0 to {MOST_PIXELS}; got {self.padding!r}"
            )
        if not isinstance(self.reflect, bool):
            raise SettingError(f"reflect is True or False; got {self.reflect!r}")

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        count, channels, height, width = checked_shape(images)
        if self.reflect and self.padding >= min(height, width):
            raise SettingError(
                f"images of {height} x {width} can mirror at most {min(height, width) - 1} pixels; "
                f"got padding {self.padding}"
            )
        # No padded copy is made: where each pixel comes from is computed, and pixels are gathered from there.
        shift = _integers((2, count, 1), 2 * self.padding + 1, generator, images) - self.padding
        down = (shift[0] + torch.arange(height, device=images.device)).view(count, 1, height, 1)
        across = (shift[1] + torch.arange(width, device=images.device)).view(count, 1, 1, width)
        size = (count, channels, height, width)
        moved = images.gather(2, _inside(down, height).expand(size)).gather(
            3, _inside(across, width).expand(size)
        )
        if self.reflect:
            return moved
        outside = (down < 0) | (down >= height) | (across < 0) | (across >= width)
        return moved.masked_fill(outside, 0)


def _inside(position: Tensor, length: int) -> Tensor:
    """Positions mirrored at both ends into 0 to length - 1."""
    last = length - 1
    return (last - (last - position.abs()).abs()).clamp(0, last)


@dataclass(frozen=True)
class Flip:
    """Mirror left and right with this probability.

    >>> Flip(1.0)(torch.tensor([[[[1, 2]]]]), torch.Generator())
    tensor([[[[2, 1]]]])
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not is_number(self.probability, 0, 1):
            raise SettingError(f"a probability lies in [0, 1]; got {self.probability!r}")

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        count, *_ = checked_shape(images)
        draw = torch.rand((count, 1, 1, 1), generator=generator, device=generator.device)
        return torch.where((draw < self.probability).to(images.device), images.flip(3), images)


@dataclass(frozen=True)
class Cutout:
    """Put zeros in a square of ``size`` pixels around a random pixel; it may reach over the edge.

    DeVries and Taylor 2017, arXiv:1708.04552.

    >>> int(Cutout(1)(torch.ones(1, 1, 4, 4), torch.Generator()).sum())
    15
    """

    size: int

    def __post_init__(self) -> None:
        if not is_whole(self.size, 1, MOST_PIXELS):
            raise SettingError(
                f"a square has at least one pixel, whole ones, at most {MOST_PIXELS}; got size={self.size!r}"
            )

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        count, _, height, width = checked_shape(images)
        down = self._covered(count, height, generator, images).view(count, 1, height, 1)
        across = self._covered(count, width, generator, images).view(count, 1, 1, width)
        return images.masked_fill(down & across, 0)

    def _covered(self, count: int, length: int, generator: Generator, like: Tensor) -> Tensor:
        """(count, length): which positions along one axis the square covers."""
        start = _integers((count, 1), length, generator, like) - self.size // 2
        position = torch.arange(length, device=like.device)
        return (position >= start) & (position < start + self.size)


@dataclass(frozen=True)
class Zoom:
    """A random square part of the image, at its old size: between ``least`` and all of its area, anywhere.

    >>> Zoom(0.5)(torch.rand(2, 1, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 1, 8, 8])
    """

    least: float = 0.3

    def __post_init__(self) -> None:
        if not is_number(self.least, 0, 1) or self.least == 0:
            raise SettingError(f"least is a part of the image's area, in (0, 1]; got {self.least!r}")

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        count, *_ = checked_shape(images)
        draw = torch.rand((3, count), generator=generator, device=generator.device).to(images.device)
        side = (self.least + (1 - self.least) * draw[0]).sqrt().to(images)
        zero, free = torch.zeros_like(side), 1 - side
        down, across = ((2 * each.to(images) - 1) * free for each in draw[1:])
        rows = [torch.stack([side, zero, across], 1), torch.stack([zero, side, down], 1)]
        grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


@dataclass(frozen=True)
class Jitter:
    """Another contrast and another brightness: a x + b, with a in 1 - ``most`` to 1 + ``most``, b within ``most``.

    >>> Jitter(0.0)(torch.ones(1, 1, 2, 2), torch.Generator()).unique()
    tensor([1.])
    """

    most: float = 0.4

    def __post_init__(self) -> None:
        if not is_number(self.most, 0, 1):
            raise SettingError(f"most is a number in [0, 1]; got {self.most!r}")

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        count, *_ = checked_shape(images)
        draw = torch.rand((2, count, 1, 1, 1), generator=generator, device=generator.device).to(images)
        factor, shift = (self.most * (2 * each - 1) for each in draw)
        return images * (1 + factor) + shift


def _integers(shape: tuple[int, ...], below: int, generator: Generator, like: Tensor) -> Tensor:
    """Draws from 0 to below - 1, on the generator's device and then moved: any generator serves any images."""
    return torch.randint(below, shape, generator=generator, device=generator.device).to(like.device)


def checked_shape(images: Tensor) -> tuple[int, int, int, int]:
    """(n, c, h, w) of images; anything else is refused."""
    if images.dim() != 4:
        raise DataError(f"images of shape (n, c, h, w) are needed; got {tuple(images.shape)}")
    count, channels, height, width = images.shape
    return count, channels, height, width


def _fresh() -> Generator:
    """A generator that the operating system seeds."""
    generator = Generator()
    generator.seed()
    return generator


@dataclass(frozen=True)
class Augment:
    """See `augment`."""

    transforms: tuple[Transform, ...]
    views: int
    images: int | str
    generator: Generator

    def __post_init__(self) -> None:
        if not is_whole(self.views):
            raise SettingError(f"an example has at least one view; got views={self.views!r}")

    def __call__(self, batch: Batch) -> Batch:
        rows = _repeated(batch, self.views)
        if isinstance(rows, Tensor):
            return self._changed(rows)
        places = list(rows) if isinstance(rows, dict) else list(range(len(rows)))
        if self.images not in places:
            raise SettingError(
                f"images={self.images!r} is not in a batch of {places}; say where its images are"
            )
        if isinstance(rows, dict):
            return {**rows, self.images: self._changed(rows[self.images])}
        return tuple(self._changed(item) if place == self.images else item for place, item in enumerate(rows))

    def _changed(self, images: Tensor) -> Tensor:
        for transform in self.transforms:
            images = transform(images, self.generator)
        return images


def _repeated(batch: Any, views: int) -> Any:
    """Every row ``views`` times, next to each other."""
    if isinstance(batch, Tensor):
        return batch.repeat_interleave(views, dim=0) if views > 1 else batch
    if isinstance(batch, dict):
        return {key: _repeated(item, views) for key, item in batch.items()}
    if isinstance(batch, Sequence):
        return tuple(_repeated(item, views) for item in batch)
    raise DataError(f"a batch is made of tensors, tuples, lists and dictionaries; got {type(batch).__name__}")


def augment(
    *transforms: Transform, views: int = 1, images: int | str = 0, generator: Generator | None = None
) -> Augment:
    """The transforms, one after the other, for ``per_example(model, loss, views=K, augment=augment(..., views=K))``.

    Each example becomes ``views`` rows next to each other, and each row is changed by draws of its own.
    ``images`` says where in a batch the images are: a place in a tuple, or a key.

    *Guarantee*: draws are independent of the data and of each other, so an example that is added or removed
    leaves the distribution of the others' views as it was. That holds while the draws are secret: who knows
    them sees the others' views move, as the draws are dealt out in the order of the rows. So leave ``generator``
    out, and the operating system seeds one; a seeded one is for tests. torch's generators are not
    cryptographic: one on the CPU has 2^32 seeds.

    >>> views = augment(PadCrop(1), Flip(), views=2)
    >>> images, labels = views((torch.rand(3, 1, 4, 4), torch.tensor([5, 6, 7])))
    >>> images.shape, labels
    (torch.Size([6, 1, 4, 4]), tensor([5, 5, 6, 6, 7, 7]))
    """
    return Augment(transforms, views, images, generator if generator is not None else _fresh())
