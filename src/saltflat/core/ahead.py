"""What comes next is read while the model computes: in a thread, and of nobody who was not drawn for a step to come.

*Guarantee*: nothing changes but when a unit is read. A batch that was read ahead is handed out once, to the very units
it was read for; one that is never asked for is forgotten. An error stays with its batch, and is raised where that batch
is asked for, as if it were read then. Only data whose reading draws nothing in this process is read ahead.
"""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any

from saltflat.core.sampling import Batch, Indices, Units

_MOST = 2  # batches that are read ahead: the next of this step, and the first of the step after it


def ahead_of(units: Units) -> Units:
    """The units, read ahead where they say that they may be (``reads_ahead``): nobody else's reading is moved."""
    return Ahead(units) if getattr(units, "reads_ahead", False) else units


class Ahead:
    """See the module; ``expect`` says what will be asked for."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self._waiting: dict[bytes, Future[Batch]] = {}
        self._reading = Lock()  # one batch at a time, whoever reads

    @property
    def count(self) -> int:
        return self.units.count

    def expect(self, indices: Indices) -> None:
        """Begin to read these units, which are to be asked for; the oldest that never were are forgotten.

        A single unit is read when it is asked for: not every reader leaves the process for one.
        """
        if len(indices) < 2 or indices.tobytes() in self._waiting:
            return
        while len(self._waiting) >= _MOST:
            self._waiting.pop(next(iter(self._waiting)))
        found = self._waiting[indices.tobytes()] = Future[Any]()
        Thread(target=self._read, args=(found, indices), daemon=True).start()

    def take(self, indices: Indices) -> Batch:
        """These units, from what was read ahead if it was; once."""
        found = self._waiting.pop(indices.tobytes(), None)
        if found is not None:
            return found.result()
        with self._reading:
            return self.units.take(indices)

    def _read(self, found: Future[Batch], indices: Indices) -> None:
        try:
            with self._reading:
                found.set_result(self.units.take(indices))
        except BaseException as error:
            found.set_exception(error)
