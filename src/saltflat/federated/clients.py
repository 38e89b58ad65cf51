"""Clients as units: each has rows of its own, as many as it has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from saltflat.core.micro_batches import MicroBatches, canonical, is_row_wise
from saltflat.core.rng import fenced_draws, find_generators, fresh_key
from saltflat.core.sampling import Batch, Indices, Units, rows_in
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

    def read_each(self, indices: Indices) -> list[Client | None]:
        """Read every client alone, under random draws of its own.

        Args:
            indices: The sampled clients.

        Returns:
            One client per index, in order; None for a client whose rows cannot be read.

        Guarantee:
            A client's rows depend on that client and a fresh secret key; see `saltflat.core.rng`.
        """
        found: list[Client | None] = []
        with fenced_draws(find_generators(self.examples)) as start_from:
            for place in indices:
                start_from(fresh_key())
                try:
                    found.append(self._client(int(place)))
                except Exception:
                    found.append(None)
        return found

    def without(self, place: int) -> Clients:
        """The same clients but for one: everyone else keeps number and rows."""
        left = [k for k in range(self.count) if k != place]
        return replace(self, parts=[self.parts[k] for k in left], numbers=[self._number(k) for k in left])

    def _client(self, place: int) -> Client:
        own = np.asarray(self.parts[place], dtype=np.int64)
        if is_row_wise(self.examples):
            return Client(self._number(place), self.examples.take(own))
        try:
            rows = self.examples.take(own)
        except (
            Exception
        ):  # rows that do not fit into one batch: those of the most common form are the client's
            rows = self._most_common(own)
        return Client(self._number(place), canonical(rows, torch.get_default_dtype()))

    def _most_common(self, own: Indices) -> Batch:
        units = []
        for place in own:
            with suppress(Exception):
                units.append(canonical(self.examples.take(np.array([place])), torch.get_default_dtype()))
        return max(MicroBatches(len(own)).of([units]), key=rows_in)

    def _number(self, place: int) -> int:
        return place if self.numbers is None else int(self.numbers[place])
