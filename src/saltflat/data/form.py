"""What is public about data: the shape of one example, and what its target can be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from saltflat.errors import SettingError


@dataclass(frozen=True)
class Form:
    """The declared form of examples: their shape, and ``classes`` or, for targets that are numbers, their ``span``.

    >>> Form((3,), classes=2).outputs, Form((3,), span=(0, 10)).outputs
    (2, 1)
    """

    shape: tuple[int, ...]
    classes: int = 0
    span: tuple[float, float] | None = None
    words: int = 0  # inputs are numbers of so many words, each with a word as its target; 0 is padding

    def __post_init__(self) -> None:
        if (self.classes > 0) == (self.span is not None):
            raise SettingError("targets are classes or numbers: declare how many classes, or a range")
        if self.classes == 1:
            raise SettingError("one class leaves nothing to learn; declare 2 or more")
        if self.words and self.words != self.classes:
            raise SettingError("every word has a word as its target: declare as many classes as words")

    @property
    def features(self) -> int:
        """How many numbers an example has."""
        return math.prod(self.shape)

    @property
    def outputs(self) -> int:
        """How many numbers a network gives: one for each class, or the target itself."""
        return self.classes or 1

    def made_up(self, count: int) -> tuple[Tensor, Tensor]:
        """So many rows of this form that belong to nobody: inputs from -1 to 1, and targets by chance."""
        source = torch.Generator().manual_seed(0)
        if self.words:
            rows = torch.randint(self.words, (2, count, *self.shape), generator=source)
            return rows[0], rows[1]
        inputs = 2 * torch.rand(count, *self.shape, generator=source) - 1
        if self.classes:
            return inputs, torch.randint(self.classes, (count,), generator=source)
        return inputs, 2 * torch.rand(count, generator=source) - 1
