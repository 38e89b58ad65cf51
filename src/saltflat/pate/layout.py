"""Whose data goes to which teacher: by what a unit is, never by its place, so that nobody moves anybody else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saltflat.data import Examples
from saltflat.errors import DataError, PrivacyError, SettingError
from saltflat.settings import is_whole

Indices = NDArray[np.int64]

MOST_TEACHERS = 1 << 20


@dataclass(frozen=True)
class Layout:
    """Which teacher each row belongs to. *Guarantee*: parts are disjoint, and a unit's rows are all in one of them.

    ``teacher`` has a number for each row, which follows from the row's own key and the public seed alone. So adding or
    removing a unit changes one part, and leaves the others as they are, to the row.
    """

    teacher: Indices = field(repr=False)
    teachers: int
    unit: str

    def parts(self) -> list[Indices]:
        """The rows of each teacher, in order; there may be none."""
        found = [np.flatnonzero(self.teacher == number) for number in range(self.teachers)]
        if sum(map(len, found)) != len(self.teacher) or len({*np.concatenate(found)}) != len(self.teacher):
            raise PrivacyError("a row is in no part, or in two: nothing was trained")
        return found


def by_user(users: Sequence[Any] | NDArray[Any], teachers: int, *, seed: int = 0) -> Layout:
    """All rows of a user go to one teacher; ``users`` says whose each row is. The unit is the user.

    >>> by_user(["ann", "bob", "ann", "eve"], 2).teacher.tolist()
    [1, 0, 1, 1]
    """
    layout = Layout(_teachers(map(_key, _listed(users)), teachers, seed), teachers, "user")
    owners: dict[bytes, int] = {}
    for key, teacher in zip(map(_key, _listed(users)), layout.teacher, strict=True):
        if owners.setdefault(key, int(teacher)) != teacher:
            raise PrivacyError("a user's rows are in two parts: nothing was trained")
    return layout


def by_example(examples: Examples, teachers: int, *, seed: int = 0) -> Layout:
    """Each row goes to a teacher by its own content. The unit is the example; equal rows go to one teacher."""
    inputs = examples.inputs.detach().cpu().contiguous().numpy()
    targets = examples.targets.detach().cpu().contiguous().numpy()
    rows = (row.tobytes() + target.tobytes() for row, target in zip(inputs, targets, strict=True))
    return Layout(_teachers(rows, teachers, seed), teachers, "example")


def _teachers(keys: Iterable[bytes], teachers: int, seed: int) -> Indices:
    """A hash of each key under the public seed, modulo the number of teachers."""
    if not is_whole(teachers, 2, MOST_TEACHERS):
        raise SettingError(f"teachers is a whole number from 2 to {MOST_TEACHERS}; got {teachers!r}")
    if not is_whole(seed, 0, 2**63):
        raise SettingError(f"seed is a whole number of 0 or more; got {seed!r}")
    secret = b"saltflat teachers %d" % seed
    found = [int.from_bytes(hashlib.blake2b(key, key=secret, digest_size=8).digest(), "big") for key in keys]
    return np.array([number % teachers for number in found], dtype=np.int64)


def _listed(users: Sequence[Any] | NDArray[Any]) -> list[Any]:
    plain = users.tolist() if hasattr(users, "tolist") else list(users)
    return plain if isinstance(plain, list) else [plain]


def _key(user: Any) -> bytes:
    """A user's name as bytes; 1 and "1" are two users, 1 and 1.0 are one."""
    if isinstance(user, float) and user.is_integer():
        user = int(user)
    if isinstance(user, (str, int)) and not isinstance(user, bool):
        return f"{type(user).__name__} {user}".encode("utf-8", "surrogatepass")
    raise DataError("users are whole numbers or texts, one for each row; some are neither")
