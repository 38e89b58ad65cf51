"""An endless set of images from a random process: image i is a function of the seed and i, and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.settings import is_whole

BLOCK = 256  # images that one stream of draws makes: one stream each would take longer than a small image
MOST_SIDE = 4096


class Process(Protocol):
    """A random process that paints: float images (n, channels, side, side) with values in [0, 1]."""

    def painted(self, count: int, channels: int, side: int, source: np.random.Generator) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Images:
    """Square images of a ``process``, grey (1 channel) or coloured (3), endless, and the same for one ``seed``.

    *Guarantee*: no example of anybody is read. Image i depends on the settings, the seed and i alone, however many are
    taken at once.

    >>> from saltflat.synthesis import DeadLeaves
    >>> made = Images(process=DeadLeaves(), channels=3, side=32)
    >>> made.first(2).shape, made.first(2).dtype
    (torch.Size([2, 3, 32, 32]), torch.uint8)
    >>> bool((made.take(range(300, 302))[1] == made.take([301])[0]).all())
    True
    """

    process: Process
    channels: int = 1
    side: int = 28
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.process, type) or not callable(getattr(self.process, "painted", None)):
            raise SettingError(
                f"process is a value such as DeadLeaves(), Fractals(), SpectrumNoise(), Strokes(); got {self.process!r}"
            )
        if not (is_whole(self.channels) and self.channels in (1, 3)):
            raise SettingError(
                f"images have 1 channel (grey) or 3 (coloured); got channels={self.channels!r}"
            )
        if not is_whole(self.side, 4, MOST_SIDE):
            raise SettingError(f"side is a number of pixels, from 4 to {MOST_SIDE}; got {self.side!r}")
        if not is_whole(self.seed, 0, 2**63):
            raise SettingError(f"seed is a whole number from 0 on; got {self.seed!r}")

    def first(self, count: int) -> Tensor:
        """The first ``count`` images, uint8 (count, channels, side, side)."""
        if not is_whole(count, 1):
            raise SettingError(f"count is a number of images, at least 1; got {count!r}")
        blocks = [self._block(number) for number in range(-(-count // BLOCK))]
        return torch.cat(blocks)[:count]

    def take(self, indices: object) -> Tensor:
        """These images, by their numbers."""
        which = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(which) and which.min() < 0:
            raise SettingError("images are numbered from 0 on; got a negative number")
        blocks = {number: self._block(int(number)) for number in np.unique(which // BLOCK)}
        found = [blocks[i // BLOCK][i % BLOCK] for i in which]
        return torch.stack(found) if found else torch.empty(0, *self._shape, dtype=torch.uint8)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.channels, self.side, self.side

    def _block(self, number: int) -> Tensor:
        source = np.random.default_rng([self.seed, number])
        images = self.process.painted(BLOCK, self.channels, self.side, source)
        return (images.clamp(0, 1) * 255).round().to(torch.uint8)
