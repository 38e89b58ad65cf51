"""What teachers chose: private counts that leave this file only as a `Bounded`, on the way to noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from saltflat.core.mechanism import Bounded
from saltflat.errors import CopyError, DataError, SettingError
from saltflat.pate.renyi import COUNTS, LARGEST, Array
from saltflat.settings import is_whole

VOTES, MOST = "votes", "largest"  # leaves of what is bounded


class TeacherVotes:
    """For every public query, how many of so many teachers chose each class.

    *Guarantee*: counts show in no repr, text, pickle, copy or message. What the other side is given is a `Bounded` of
    one query: its counts, which one unit moves by at most sqrt(2), or the largest of them, which it moves by at most
    1. Both hold because a unit is in one teacher's part, and a teacher has at most one vote.

    >>> votes = TeacherVotes.of([[0, 1], [0, 1], [0, 2]], classes=3)
    >>> votes
    TeacherVotes(3 teachers, 3 classes, 2 queries)
    >>> votes.counts(0)
    Bounded(sensitivity=1.4142135623730951)
    """

    __slots__ = ("_held", "teachers")

    def __init__(self, counts: Any, *, teachers: int) -> None:
        if not is_whole(teachers, 2):
            raise SettingError(f"teachers is a whole number of 2 or more; got {teachers!r}")
        self.teachers = teachers
        held = _numbers(counts, "counts")
        if held.ndim != 2 or held.shape[1] < 2:
            raise DataError(
                "counts are a table: a row for each query, a column for each of two or more classes"
            )
        whole = np.isfinite(held).all() and (held >= 0).all() and (held == np.floor(held)).all()
        if not whole or (held.sum(1) > teachers).any():
            raise DataError(
                "counts are whole numbers of 0 or more, and a query has at most one vote of each teacher; some do not "
                "fit (which ones is private)"
            )
        self._held: Callable[[], Array] = lambda: held  # no attribute that a debugger's repr would print

    @classmethod
    def of(cls, predictions: Any, *, classes: int) -> TeacherVotes:
        """The votes in ``predictions``: a row for each teacher, the class that it chose for each query.

        A choice that is no class, NaN or out of range, is no vote: the teacher abstains, and nobody is told.
        """
        if not is_whole(classes, 2):
            raise SettingError(f"classes is a whole number of 2 or more; got {classes!r}")
        chosen = _numbers(predictions, "predictions")
        if chosen.ndim != 2:
            raise DataError("predictions are a table: a row for each teacher, a column for each query")
        counts = np.stack([(chosen == each).sum(0) for each in range(classes)], axis=1)
        return cls(counts, teachers=len(chosen))

    @property
    def queries(self) -> int:
        return len(self._held())

    @property
    def classes(self) -> int:
        return self._held().shape[1]

    def counts(self, query: int) -> Bounded:
        """The counts of one query, before noise."""
        return Bounded({VOTES: torch.from_numpy(self._held()[query].copy())}, COUNTS)

    def largest(self, query: int) -> Bounded:
        """The largest count of one query, before noise."""
        return Bounded({MOST: torch.tensor([self._held()[query].max()], dtype=torch.float64)}, LARGEST)

    def __repr__(self) -> str:
        """What is public; neither counts nor who won."""
        return f"TeacherVotes({self.teachers} teachers, {self.classes} classes, {self.queries} queries)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise CopyError(
            "votes are private: they cannot be copied, pickled or sent to another process; label where they are, and "
            "hand on the answers"
        )


def private_counts(votes: TeacherVotes, queries: NDArray[np.int64]) -> Array:
    """The counts of these queries, for costs that are themselves private; whoever calls this must not release them."""
    return votes._held()[queries]


def _numbers(given: Any, name: str) -> Array:
    """A table of numbers; what it holds is in no message."""
    try:
        return np.array(given, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{name} must be numbers, in rows of one length") from None
