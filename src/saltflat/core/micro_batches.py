"""Read sampled units one at a time, and build micro-batches from units of equal form.

Units that are read together can change each other: one text that is longer than the others pads all of them, one odd
record makes a whole batch fail. So a unit is read alone, under random draws of its own, and micro-batches are made of
units that have the same names, types and shapes. Padding to the longest then pads nothing, and what one unit
contributes is computed from that unit alone. Rows of tensors and arrays are independent already and are read together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saltflat.core.sampling import Batch, Form, Units, form_of, joined, leaves, mapped, rows_in
from saltflat.errors import DataError

# Bytes of units that wait for others of their form. Texts of all lengths fit; large images are passed on earlier.
MAX_WAITING_BYTES = 1 << 28


def is_row_wise(units: Units) -> bool:
    """Whether ``take`` gives row i of fixed arrays for unit i, so that units may be read together.

    True for tensors, arrays and files of arrays, which declare ``is_row_wise``. Datasets with a collate, and classes of
    one's own with ``count`` and ``take``, are read one unit at a time.
    """
    return bool(getattr(units, "is_row_wise", False))


def canonical(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with tensors of the usual types: what a unit's own storage happens to be makes no difference.

    Arrays become tensors. Floating-point numbers get ``dtype``, or float32 where that is narrower. Integers become
    int64, but for bytes and booleans, which stay.

    Args:
        batch: One unit's rows, as they were read.
        dtype: The type of the model's weights.

    Example:
        >>> canonical({"x": np.zeros((1, 2)), "y": torch.zeros(1, dtype=torch.int32)}, torch.float32)
        {'x': tensor([[0., 0.]]), 'y': tensor([0])}
    """
    if isinstance(batch, np.ndarray):
        if batch.dtype.kind not in "fiub":
            raise DataError(
                f"an array of {batch.dtype} holds no numbers; turn texts and categories into numbers"
            )
        unsigned = batch.dtype.kind == "u" and batch.dtype != np.uint8
        return canonical(torch.tensor(batch.astype(np.int64) if unsigned else batch), dtype)
    if isinstance(batch, Mapping):
        return {key: canonical(item, dtype) for key, item in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return tuple(canonical(item, dtype) for item in batch)
    if not isinstance(batch, Tensor):
        next(leaves(batch))  # raises what is said of anything that is no batch
    if batch.is_floating_point():
        return batch.to(dtype if dtype in (torch.float32, torch.float64) else torch.float32)
    if batch.is_complex() or batch.dtype in (torch.bool, torch.uint8, torch.int64):
        return batch
    return batch.to(torch.int64)


def with_floats(batch: Batch, places: Sequence[int], dtype: torch.dtype) -> Batch:
    """The batch with some of its leaves, by place, as floating-point numbers.

    Example:
        >>> with_floats((torch.tensor([1]), torch.tensor([2])), [0], torch.float32)
        (tensor([1.]), tensor([2]))
    """
    counter = iter(range(len(list(leaves(batch)))))
    return mapped(lambda leaf: leaf.to(dtype) if next(counter) in places else leaf, batch)


def has_rows(batch: Batch, rows: int) -> bool:
    """Whether every leaf has ``rows`` rows: another number would give one unit several clips, or none."""
    return all(leaf.ndim > 0 and len(leaf) == rows for leaf in leaves(batch))


def tokens_in(batch: Batch) -> int:
    """The number of positions of a unit: its rows times the longest second axis of a leaf; at least 1."""
    longest = max((leaf.shape[1] for leaf in leaves(batch) if leaf.ndim > 1), default=1)
    return max(1, longest * rows_in(batch))


@dataclass
class MicroBatches:
    """Collect units until a micro-batch of one form is full.

    Args:
        most: The largest number of units in a micro-batch.
        max_tokens: The largest number of positions in a micro-batch, None for no limit. One unit that is longer by
            itself is a micro-batch of its own.
    """

    most: int
    max_tokens: int | None = None
    waiting: dict[Any, list[Batch]] = field(default_factory=dict)
    held_bytes: int = 0

    def of(self, portions: Iterable[Sequence[Batch]]) -> Iterator[Batch]:
        """The micro-batches of these units, each unit in one of them.

        A portion in which all units have one form is a micro-batch as it is. Units of other portions wait for more of
        their form.

        Args:
            portions: Units as they were read, at most ``most`` in a portion.
        """
        for portion in portions:
            keys = [form_key(form_of(unit)) for unit in portion]
            if len(set(keys)) == 1 and len(portion) <= self._room(portion[0]):
                yield joined(portion)
                continue
            for key, unit in zip(keys, portion, strict=True):
                self.waiting.setdefault(key, []).append(unit)
                self.held_bytes += _bytes_in(unit)
                if len(self.waiting[key]) >= self._room(unit):
                    yield self._full(key)
                elif self.held_bytes > MAX_WAITING_BYTES:
                    yield self._full(max(self.waiting, key=lambda each: len(self.waiting[each])))
        for key in list(self.waiting):
            yield self._full(key)

    def _room(self, unit: Batch) -> int:
        if self.max_tokens is None:
            return self.most
        return max(1, min(self.most, self.max_tokens // tokens_in(unit)))

    def _full(self, key: Any) -> Batch:
        units = self.waiting.pop(key)
        self.held_bytes -= sum(map(_bytes_in, units))
        return joined(units)


def form_key(form: Form) -> Any:
    """A form as a value that can be compared and hashed, names in their order."""
    if isinstance(form, Mapping):
        return ("names", *((key, form_key(item)) for key, item in form.items()))
    if isinstance(form, tuple) and len(form) == 2 and isinstance(form[0], torch.dtype):
        return form
    return ("items", *map(form_key, form))


def _bytes_in(unit: Batch) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(unit))
