"""Which examples are public and which stay private, where a study lets chance decide who shares."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from saltflat.core.sampling import Indices
from saltflat.data.examples import Examples
from saltflat.errors import DataError, SettingError
from saltflat.settings import is_number, is_whole

Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Shared:
    """Examples in two parts that have none in common: ``public`` ones and the private rest.

    Attributes:
        numbers: The places of the public examples among all, in ascending order. Private examples decide these numbers
            too, as they stand in between: do not release them; `keys_of` names public examples by what they are.
        public: The public examples.
        private: All others.
    """

    numbers: Indices = field(repr=False)
    public: Examples
    private: Examples


def shared(
    examples: Examples,
    rate: float | None = None,
    *,
    column: Sequence[bool] | NDArray[np.bool_] | None = None,
    seed: int = 0,
) -> Shared:
    """Divide examples into public and private ones, each by itself.

    With a ``rate``, an example is public if a hash of its content under the seed, a number in [0, 1), is below the
    rate. How many are public, of a class or in all, follows from the examples: about ``rate`` of them. With a
    ``column``, the column says it.

    Args:
        examples: All examples, in memory.
        rate: The expected share of public examples, above 0 and below 1; for about k of n examples, k / n of a
            *declared* n, as a rate that is taken from the number of rows would change with each of them.
        column: For each example, whether it is public, in the place of a rate.
        seed: Public; another seed is another choice. Default 0.

    Returns:
        The two parts; copies of the examples.

    Raises:
        DataError: No example is public, or none is private.

    Guarantee:
        Whether an example is public depends on this example alone. If any other one is removed, added or replaced, it
        stays on its side. Equal examples are on one side. No private example is counted, protected or trained on as a
        public one, nor the other way round: the parts share no memory.

    Example:
        >>> images, labels = torch.arange(400.0).view(100, 1, 2, 2), torch.arange(100) % 2
        >>> found = shared(Examples(images, labels), 0.1)
        >>> found.public.count, found.private.count
        (9, 91)
    """
    if (rate is None) == (column is None):
        raise SettingError("say a rate, or give a column that says which examples are public; one of the two")
    if column is not None:
        is_public = np.asarray(column)
        if is_public.dtype != np.bool_ or is_public.ndim != 1 or len(is_public) != examples.count:
            raise SettingError(
                "the column of public examples needs one bool, True or False, for each example"
            )
    else:
        is_public = keys_of(examples, seed=seed) < _threshold(rate)
    if is_public.all() or not is_public.any():
        raise DataError(
            "no example is public: take a larger rate or count, or another seed"
            if not is_public.any()
            else "all examples are public, and none is left to protect: take a smaller rate or count"
        )
    return divided(examples, np.flatnonzero(is_public))


def divided(examples: Examples, numbers: Indices) -> Shared:
    """The parts by the numbers of the public examples; for features of the examples that were hashed."""
    rest = np.setdiff1d(np.arange(examples.count), numbers)
    return Shared(numbers, _part(examples, numbers), _part(examples, rest))


def keys_of(examples: Examples, *, seed: int = 0) -> Keys:
    """Each example's hash under the seed, a number of 64 bits: a function of its inputs and its target alone."""
    if not is_whole(seed, 0, 2**63):
        raise SettingError(f"seed is a whole number of 0 or more; got {seed!r}")
    inputs = examples.inputs.detach().cpu().contiguous().numpy()
    targets = examples.targets.detach().cpu().contiguous().numpy()
    key = b"saltflat public %d" % seed
    digests = b"".join(
        hashlib.blake2b(row.tobytes() + target.tobytes(), key=key, digest_size=8).digest()
        for row, target in zip(inputs, targets, strict=True)
    )
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def _threshold(rate: object) -> np.uint64:
    if not is_number(rate, 0, 1) or rate in (0, 1):
        raise SettingError(f"rate is the share of public examples, above 0 and below 1; got {rate!r}")
    return np.uint64(int(rate * 2**64))


def _part(examples: Examples, which: Indices) -> Examples:
    where = torch.from_numpy(which).to(examples.inputs.device)
    return replace(examples, inputs=examples.inputs[where], targets=examples.targets[where])
