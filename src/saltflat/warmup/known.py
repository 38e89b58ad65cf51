"""What a warm-up may look at, and what a warm-up is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from saltflat.data import Examples, Scale
from saltflat.errors import SettingError

Watch = Callable[[int, int], None]  # steps done, steps in all


@dataclass(frozen=True)
class Known:
    """What is public before the private phase: the form of examples, those that people shared, those that were made.

    *Guarantee*: a warm-up sees this and nothing else. Shape, scale and classes are declared by the data set's
    description; ``public`` and ``synthetic`` are examples that nothing protects.
    """

    shape: tuple[int, ...]
    classes: int
    scale: Scale | None = None
    public: Examples | None = None
    synthetic: Examples | None = None

    def pool(self, name: str) -> Examples:
        """The examples of this name: public, or synthetic."""
        found = {"public": self.public, "synthetic": self.synthetic}.get(name)
        if found is None or found.count == 0:
            what = (
                "[public] with a count"
                if name == "public"
                else "[synthetic], which makes them from public ones"
            )
            raise SettingError(f"a warm-up on {name} examples needs them: add {what}")
        return found

    def examples(self, images: Tensor, labels: Tensor) -> Examples:
        """Images with values from 0 to 1 as examples like the data set's own: pixels and its scale, or as they are."""
        if self.scale is None:
            return Examples(images.float(), labels.long())
        return Examples((images.float() * 255).round().to(torch.uint8), labels.long(), self.scale)


def pixels(examples: Examples) -> Tensor:
    """Images of examples with values from 0 to 1; where there is no scale they must be so already."""
    if examples.scale is not None:
        return examples.inputs.float() / 255
    low, high = float(examples.inputs.min()), float(examples.inputs.max())
    if examples.inputs.ndim != 4 or low < 0 or high > 1:
        raise SettingError(
            "a generator takes images with values from 0 to 1, and these examples are none; leave [synthetic] out"
        )
    return examples.inputs.float()


def some(examples: Examples, which: Tensor) -> Examples:
    """These examples, in this order."""
    return replace(examples, inputs=examples.inputs[which], targets=examples.targets[which])


class WarmUp(Protocol):
    """One stage of warm-up: it gives the model other weights, by public draws from ``seed`` alone."""

    def warmed(self, model: nn.Module, known: Known, *, seed: int, watch: Watch) -> None: ...

    def in_words(self) -> str: ...
