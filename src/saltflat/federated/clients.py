"""Clients as units: each has rows of its own, as many as it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from saltflat.core.sampling import Batch, Indices, Units
from saltflat.errors import DataError


@dataclass(frozen=True)
class Client:
    """A client's number, which is its name wherever it stands, and its own rows; there may be none."""

    number: int
    rows: Batch = field(repr=False)


@dataclass(frozen=True)
class Clients:
    """Clients as units: ``parts[i]`` are the examples of client ``numbers[i]``, in any number, none included.

    Without ``numbers`` the i-th client is called i. A number goes with a client: where somebody leaves, the others keep
    theirs (`without`), and with it the order of their minibatches.

    >>> from saltflat.data import TensorUnits
    >>> import torch
    >>> own = Clients(TensorUnits(torch.arange(5.0)), [np.array([0, 3]), np.array([1, 2, 4])])
    >>> own.count, own.take(np.array([1]))[0].rows
    (2, tensor([1., 2., 4.]))
    """

    examples: Units = field(repr=False)
    parts: Sequence[Indices] = field(repr=False)
    numbers: Sequence[int] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        most = self.examples.count
        for part in self.parts:
            own = np.asarray(part)
            if own.ndim != 1 or not (own.size == 0 or np.issubdtype(own.dtype, np.integer)):
                raise DataError("a client's part is a list of the numbers of its examples")
            if own.size and not (own.min() >= 0 and own.max() < most):
                raise DataError("a client's part names an example that is not there")
        if self.numbers is not None and (
            len(self.numbers) != len(self.parts) or len(set(self.numbers)) != len(self.parts)
        ):
            raise DataError("every client has one number, and no other client has it")

    @property
    def count(self) -> int:
        return len(self.parts)

    def take(self, indices: Indices) -> list[Client]:
        """These clients, each with its rows."""
        return [self._client(int(place)) for place in indices]

    def without(self, place: int) -> Clients:
        """The same clients but for one: everyone else keeps number and rows."""
        left = [k for k in range(self.count) if k != place]
        return replace(self, parts=[self.parts[k] for k in left], numbers=[self._number(k) for k in left])

    def _client(self, place: int) -> Client:
        own = np.asarray(self.parts[place], dtype=np.int64)
        return Client(self._number(place), self.examples.take(own))

    def _number(self, place: int) -> int:
        return place if self.numbers is None else int(self.numbers[place])
