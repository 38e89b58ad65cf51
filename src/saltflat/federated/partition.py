"""How rows become clients: by a column that says whose each is, or divided up, to simulate clients from one data set.

A division is a pure function of the labels, of how many clients there are, and of a seed. Every example goes to exactly
one client; sizes may differ, and a client may be left with nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from saltflat.core.sampling import Indices, Units
from saltflat.errors import DataError, SettingError
from saltflat.federated.clients import Clients
from saltflat.settings import is_positive, is_whole

MOST = 10**8  # examples, or clients, that are divided in memory
LEAST_ALPHA, MOST_ALPHA = (
    1e-3,
    1e6,
)  # below, a share of a class is rounded to nothing by float64; beyond, it is IID


@dataclass(frozen=True)
class Partition:
    """Who has which examples: ``parts[i]`` are those of the client called ``numbers[i]``."""

    parts: tuple[Indices, ...] = field(repr=False)
    numbers: tuple[int, ...] = field(repr=False)

    def of(self, examples: Units) -> Clients:
        """The clients, with these examples as their rows."""
        return Clients(examples, self.parts, self.numbers)

    def check(self, count: int) -> None:
        """Refuse it unless each of ``count`` examples is in exactly one client."""
        rows = np.concatenate([np.zeros(0, np.int64), *self.parts])
        if len(rows) != count or not np.array_equal(np.sort(rows), np.arange(count)):
            raise DataError(
                "the clients do not have every example exactly once: they are those of other data"
            )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Three arrays that say the same, to be kept in a file."""
        rows = np.concatenate([np.zeros(0, np.int64), *self.parts])
        sizes = np.array([len(part) for part in self.parts], dtype=np.int64)
        return {"rows": rows, "sizes": sizes, "numbers": np.array(self.numbers, dtype=np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Partition:
        """The partition that `arrays` were made from; DataError if they are none."""
        rows, sizes, numbers = (np.asarray(arrays.get(name)) for name in ("rows", "sizes", "numbers"))
        sound = all(each.dtype == np.int64 and each.ndim == 1 for each in (rows, sizes, numbers))
        if not sound or len(sizes) != len(numbers) or (sizes < 0).any() or sizes.sum() != len(rows):
            raise DataError("these arrays say not who has which examples")
        parts = np.split(rows, np.cumsum(sizes)[:-1]) if len(sizes) else []
        return cls(tuple(parts), tuple(numbers.tolist()))


def iid(count: int, clients: int, *, seed: int) -> Partition:
    """``count`` examples dealt out by chance, whatever they are; sizes differ by at most 1.

    >>> [len(part) for part in iid(10, 4, seed=0).parts]
    [3, 3, 2, 2]
    """
    if not is_whole(count, 0, MOST):
        raise SettingError(f"count is the number of examples, a whole number up to {MOST:g}; got {count!r}")
    source = _source(clients, seed)
    return _numbered(np.array_split(source.permutation(count), clients))


def dirichlet(labels: ArrayLike, clients: int, *, alpha: float, seed: int) -> Partition:
    """Each class is cut into shares of the clients, which are drawn from Dir(alpha, ..., alpha); sizes differ.

    With a small ``alpha`` a few clients have most of a class, with a large one all have as much of everything.
    Hsu, Qi & Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019.

    >>> divided = dirichlet(np.repeat([0, 1], 50), 5, alpha=0.3, seed=0)
    >>> sum(len(part) for part in divided.parts)
    100
    """
    found, source = _labels(labels), _source(clients, seed)
    shares: list[list[Indices]] = [[] for _ in range(clients)]
    for each in np.unique(found):
        rows = source.permutation(np.flatnonzero(found == each))
        ends = np.cumsum(source.dirichlet(np.full(clients, _alpha(alpha))))[:-1] * len(rows)
        for own, rows_of_it in zip(shares, np.split(rows, np.rint(ends).astype(np.int64)), strict=True):
            own.append(rows_of_it)
    return _numbered([np.concatenate([np.zeros(0, np.int64), *own]) for own in shares])


def dirichlet_equal(labels: ArrayLike, clients: int, *, alpha: float, seed: int) -> Partition:
    """Clients of equal size, each with its own mix of classes, drawn from Dir(alpha, ..., alpha).

    Again and again a client that is not full is picked, draws a class from its mix, and gets an unused example of it;
    a class that is used up is left out of the mix. Sizes differ by at most 1.
    Acar et al., "Federated Learning Based on Dynamic Regularization", 2021 (the code of it).

    >>> divided = dirichlet_equal(np.repeat([0, 1], 51), 5, alpha=0.3, seed=0)
    >>> [len(part) for part in divided.parts]
    [21, 21, 20, 20, 20]
    """
    found, source = _labels(labels), _source(clients, seed)
    classes, places = np.unique(found, return_inverse=True)
    mixes = source.dirichlet(np.full(len(classes), _alpha(alpha)), size=clients) if len(classes) else None
    unused = [list(source.permutation(np.flatnonzero(places == k))) for k in range(len(classes))]
    left = np.array([len(rows) for rows in unused])
    room = [len(found) // clients + (k < len(found) % clients) for k in range(clients)]
    parts: list[list[int]] = [[] for _ in range(clients)]
    waiting = [k for k in range(clients) if room[k]]
    for draws in source.random((len(found), 2)) if mixes is not None else ():
        place = int(draws[0] * len(waiting))
        own = waiting[place]
        chosen = _drawn(mixes[own], left, draws[1])  # type: ignore[index]
        parts[own].append(unused[chosen].pop())
        left[chosen] -= 1
        if len(parts[own]) == room[own]:
            waiting[place] = waiting[-1]
            waiting.pop()
    return _numbered([np.array(part, dtype=np.int64) for part in parts])


def _drawn(mix: NDArray[np.float64], left: NDArray[np.int64], draw: float) -> int:
    """A class by a client's mix, among those that are left; where its mix has none of them, by how many are left."""
    odds = np.cumsum(np.where(left > 0, mix, 0.0))
    if not odds[-1] > 0:
        odds = np.cumsum(left.astype(np.float64))
    return int(min(np.searchsorted(odds, draw * odds[-1], side="right"), np.flatnonzero(left)[-1]))


def by_column(users: Iterable[Any]) -> Partition:
    """One client for each different entry of a column, with all rows that have it.

    A client's number is made of its own entry alone, so that it stays the same whoever else comes or goes. Nothing of
    this is said aloud: who is there, and how many they are, is private.

    >>> [part.tolist() for part in by_column(["ann", "bob", "ann"]).parts]
    [[0, 2], [1]]
    """
    rows: dict[str, list[int]] = {}
    for place, user in enumerate(users):
        rows.setdefault(str(user), []).append(place)
    numbers = tuple(_number_of(user) for user in rows)
    if len(set(numbers)) < len(numbers):
        raise DataError("two entries of the user column cannot be told apart; rename one of them")
    return Partition(tuple(np.array(part, dtype=np.int64) for part in rows.values()), numbers)


def _number_of(user: str) -> int:
    return int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest(), "big") >> 1


class Divide(Protocol):
    """A way to make ``clients`` clients of examples, as a value that a recipe can hold."""

    def divided(self, labels: ArrayLike, clients: int, seed: int) -> Partition: ...


@dataclass(frozen=True)
class IID:
    """See `iid`."""

    def divided(self, labels: ArrayLike, clients: int, seed: int) -> Partition:
        return iid(len(np.asarray(labels)), clients, seed=seed)


@dataclass(frozen=True)
class Dirichlet:
    """See `dirichlet`."""

    alpha: float = 0.6

    def __post_init__(self) -> None:
        _alpha(self.alpha)

    def divided(self, labels: ArrayLike, clients: int, seed: int) -> Partition:
        return dirichlet(labels, clients, alpha=self.alpha, seed=seed)


@dataclass(frozen=True)
class DirichletEqual:
    """See `dirichlet_equal`."""

    alpha: float = 0.6

    def __post_init__(self) -> None:
        _alpha(self.alpha)

    def divided(self, labels: ArrayLike, clients: int, seed: int) -> Partition:
        return dirichlet_equal(labels, clients, alpha=self.alpha, seed=seed)


def _numbered(parts: Sequence[Indices]) -> Partition:
    return Partition(tuple(np.sort(part).astype(np.int64) for part in parts), tuple(range(len(parts))))


def _labels(labels: ArrayLike) -> NDArray[np.int64]:
    found = np.asarray(labels)
    if found.ndim != 1 or (found.size and not np.issubdtype(found.dtype, np.integer)):
        raise DataError(
            f"labels is a list of whole numbers, one for each example; got {found.dtype} with {found.ndim} axes: "
            "where targets are numbers, divide by iid"
        )
    return found.astype(np.int64)


def _alpha(alpha: object) -> float:
    if not (is_positive(alpha) and LEAST_ALPHA <= float(alpha) <= MOST_ALPHA):
        raise SettingError(
            f"alpha of a Dirichlet split is a number from {LEAST_ALPHA:g} to {MOST_ALPHA:g}; got {alpha!r}"
        )
    return float(alpha)


def _source(clients: object, seed: object) -> np.random.Generator:
    if not is_whole(clients, 1, MOST):
        raise SettingError(f"clients is a whole number from 1 to {MOST:g}; got {clients!r}")
    if not is_whole(seed, 0, 2**63 - 1):
        raise SettingError(f"seed is a whole number from 0 on; got {seed!r}")
    return np.random.default_rng(seed)
