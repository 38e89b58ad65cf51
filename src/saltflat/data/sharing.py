"""Which examples are public and which stay private, where a study lets chance decide who shares."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from saltflat.core.sampling import Indices
from saltflat.data.examples import Examples
from saltflat.errors import DataError, SettingError
from saltflat.settings import is_whole


@dataclass(frozen=True)
class Shared:
    """Examples in two parts that have none in common: ``public`` ones, by their numbers, and the private rest."""

    numbers: Indices = field(repr=False)  # of the public ones, in ascending order
    public: Examples
    private: Examples


def shared(examples: Examples, count: int, *, classes: int, seed: int = 0) -> Shared:
    """``count`` examples as public ones, as many of each class, and all others as private ones; copies of both.

    Every example has a place in a line, by ``seed`` and its number alone. Whoever stands in the line and finds the
    class not yet full is public, until all classes are.

    *Guarantee*: the private examples do not decide who is public. One that is taken away, or added at the end, had been
    passed by because its class was full, or was never reached; the line of the others goes on as it was. No private
    example is counted, protected or trained on as a public one, nor the other way round: the parts share no memory.

    >>> images, labels = torch.zeros(6, 1, 2, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    >>> found = shared(Examples(images, labels), 2, classes=2)
    >>> sorted(found.public.targets.tolist()), found.private.count
    ([0, 1], 4)
    """
    if not is_whole(count, 1):
        raise SettingError(f"count is a number of public examples, at least 1; got {count!r}")
    if count % classes:
        raise SettingError(
            f"public examples are as many of each of {classes} classes: count is a multiple of {classes}; got {count}"
        )
    line = np.argsort(np.random.default_rng(seed).random(examples.count), kind="stable")
    labels = examples.targets.cpu().numpy()[line]
    each = count // classes
    places = [np.flatnonzero(labels == label)[:each] for label in range(classes)]
    if any(len(found) < each for found in places) or count >= examples.count:
        raise DataError(f"there are not {each} examples of every class to be public; lower count")
    numbers = np.sort(line[np.concatenate(places)])
    rest = np.setdiff1d(np.arange(examples.count), numbers)
    return Shared(numbers, _part(examples, numbers), _part(examples, rest))


def _part(examples: Examples, which: Indices) -> Examples:
    where = torch.from_numpy(which).to(examples.inputs.device)
    return replace(examples, inputs=examples.inputs[where], targets=examples.targets[where])
