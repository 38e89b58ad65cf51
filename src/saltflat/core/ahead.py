"""Read the next micro-batch in a background thread while the model computes.

Only sampled units are ever read. A batch that was read ahead is used once, for the units that it was read for; one
that is never asked for is dropped. An exception is raised where the batch is asked for. Only data whose reading draws
nothing in this process is read ahead, because the thread would share its random streams.
"""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any

from saltflat.core.micro_batches import is_row_wise
from saltflat.core.sampling import Batch, Indices, Units, read_each

MAX_AHEAD = 2  # the next batch of this step, and the first of the step after it


def ahead_of(units: Units) -> Units:
    """The units with prefetching, where they allow it by ``reads_ahead``."""
    may = getattr(units, "reads_ahead", False) and (is_row_wise(units) or hasattr(units, "read_each"))
    return Ahead(units) if may else units


class Ahead:
    """Units that are read ahead; see the module.

    Args:
        units: The private data. Row-wise units are read together, others one at a time.
    """

    def __init__(self, units: Units) -> None:
        self.units = units
        self._waiting: dict[bytes, Future[Any]] = {}
        self._reading = Lock()  # one batch at a time, whichever thread reads

    @property
    def count(self) -> int:
        return self.units.count

    @property
    def is_row_wise(self) -> bool:
        return is_row_wise(self.units)

    def expect(self, indices: Indices) -> None:
        """Begin to read these units, which will be asked for. The oldest that were never asked for are dropped.

        A single unit is read when it is asked for: starting a thread takes longer.
        """
        if len(indices) < 2 or indices.tobytes() in self._waiting:
            return
        while len(self._waiting) >= MAX_AHEAD:
            self._waiting.pop(next(iter(self._waiting)))
        found = self._waiting[indices.tobytes()] = Future[Any]()
        Thread(target=self._read, args=(found, indices), daemon=True).start()

    def take(self, indices: Indices) -> Batch:
        """These units together; from the batch that was read ahead if they are row-wise."""
        found = self._waiting.pop(indices.tobytes(), None) if self.is_row_wise else None
        if found is not None:
            return found.result()
        with self._reading:
            return self.units.take(indices)

    def read_each(self, indices: Indices) -> list[Any]:
        """Each unit alone; from what was read ahead unless units are row-wise."""
        found = None if self.is_row_wise else self._waiting.pop(indices.tobytes(), None)
        if found is not None:
            return found.result()
        with self._reading:
            return read_each(self.units, indices)

    def _read(self, found: Future[Any], indices: Indices) -> None:
        try:
            with self._reading:
                found.set_result(
                    self.units.take(indices) if self.is_row_wise else read_each(self.units, indices)
                )
        except BaseException as error:
            found.set_exception(error)
