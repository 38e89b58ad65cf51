"""What counts steps exists once."""

from __future__ import annotations

from typing import NoReturn

from saltflat.errors import CopyError


class Single:
    """Neither copied nor pickled.

    *Guarantee*: each of two copies would believe that what was paid for is its own to take, and one step on record
    would be taken twice. ``copy.copy``, ``copy.deepcopy`` and every pickler pass by here.

    >>> import copy
    >>> copy.copy(Single())
    Traceback (most recent call last):
    saltflat.errors.CopyError: a Single counts what is spent and exists once: ...
    """

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise CopyError(
            f"a {type(self).__name__} counts what is spent and exists once: it cannot be copied, pickled or sent to "
            "another process; hand on the thing itself, or open another run"
        )
