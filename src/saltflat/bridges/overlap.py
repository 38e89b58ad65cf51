"""Whether data that is to be shown has rows of the private data: the same objects, or the same memory.

Copies are not seen: comparing values would tell of private ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from saltflat.core.public import DEEP, MANY, memory_span

_PLAIN = (str, bytes, int, float, complex, bool, type, nn.Module, type(None))


@dataclass(frozen=True)
class _Rows:
    """Something that holds rows: a dataset, an array, a list, or a part of a file in memory.

    Args:
        holder: The object itself, or the address of a column of an Arrow table.
        count: How many rows the holder's dataset has.
        chosen: Which of them are used, None for all.
    """

    holder: Any
    count: int
    chosen: frozenset[int] | None

    def shares(self, other: _Rows) -> bool:
        """Whether a row is in both."""
        mine, theirs = memory_span(self.holder), memory_span(other.holder)
        if mine is None or theirs is None:
            same = self.holder is other.holder or (
                isinstance(self.holder, int) and self.holder == other.holder
            )
        else:
            same = mine[0] == theirs[0] and mine[1] < theirs[2] and theirs[1] < mine[2]
        if not same or self.chosen is None or other.chosen is None or self.count != other.count:
            return same
        return not self.chosen.isdisjoint(other.chosen)


def have_common_rows(shown: Any, private: Any) -> bool:
    """Whether two data sets have a row in common.

    Views, slices, subsets, wrappers, concatenations, loaders, dictionaries of data sets, and selections of the
    `datasets` library are followed. Two parts of one data set without a common row, as `random_split` makes them, have
    none.

    Args:
        shown: What is to be evaluated, or a loader or a dictionary of it.
        private: The training data.

    Example:
        >>> import torch
        >>> x = torch.arange(6.0)
        >>> have_common_rows(x[4:], (x[:4],)), have_common_rows(x[3:], (x[:4],))
        (False, True)
    """
    held = list(_rows_of(private, None, DEEP))
    objects = _items_of(private)
    if objects and not objects.isdisjoint(_items_of(shown)):
        return True
    return any(one.shares(other) for one in _rows_of(shown, None, DEEP) for other in held)


def _items_of(data: Any) -> set[int]:
    """Which objects the items of a list are."""
    if not isinstance(data, list):
        return set()
    return {id(item) for item in data if not isinstance(item, _PLAIN)}


def _rows_of(
    data: Any, chosen: frozenset[int] | None, deep: int, count: int | None = None
) -> Iterator[_Rows]:
    """Whatever holds rows of ``data``; ``count`` is how many rows the object has that it belongs to."""
    if not deep or isinstance(data, _PLAIN):
        return
    if isinstance(data, Tensor | np.ndarray):
        if data.ndim and (count is None or len(data) == count):
            yield _Rows(data, len(data), chosen)
        return
    if (table := getattr(data, "_data", None)) is not None and hasattr(table, "column_names"):
        yield from _rows_of_table(data)
        return
    inner = getattr(data, "dataset", None)
    places = getattr(data, "indices", getattr(getattr(data, "sampler", None), "indices", None))
    if inner is not None and places is not None:
        own = [int(place) for place in places]
        own = own if chosen is None else [own[place] for place in chosen]
        yield from _rows_of(inner, frozenset(own), deep - 1)
        return
    if isinstance(data, list | tuple) and len(data) > MANY:
        if count is None or len(data) == count:
            yield _Rows(data, len(data), chosen)
        return
    if isinstance(data, list | tuple | Mapping):
        parts = data.values() if isinstance(data, Mapping) else data
    else:
        length = _length(data)
        if length is not None:
            count = length
            yield _Rows(data, length, chosen)
        parts = getattr(data, "__dict__", {}).values()
    for part in list(parts):
        yield from _rows_of(part, chosen, deep - 1, count)


def _length(data: Any) -> int | None:
    """How many items a data set has; None of what is none."""
    try:
        if callable(getattr(data, "take", None)):
            return int(data.count)
        return len(data) if hasattr(data, "__getitem__") else None
    except Exception:
        return None


def _rows_of_table(data: Any) -> Iterator[_Rows]:
    """Rows of a data set of the `datasets` library, by where each column's pieces lie in memory."""
    chosen = None if data._indices is None else np.asarray(data._indices.column(0))
    for name in data._data.column_names:
        first = 0
        for chunk in data._data.column(name).chunks:
            place = next((part.address for part in chunk.buffers() if part is not None), None)
            within = np.arange(len(chunk))
            if chosen is not None:
                within = chosen[(chosen >= first) & (chosen < first + len(chunk))] - first
            if place is not None and len(within):
                yield _Rows(place, 0, frozenset((within + chunk.offset).tolist()))
            first += len(chunk)
