"""Which examples a measure is taken on: always the same ones, and a name for them."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from saltflat.errors import SettingError


def evenly(count: int, wanted: int) -> NDArray[np.int64]:
    """``wanted`` of ``count`` examples at even distances, in order; all of them if there are fewer.

    Even distances, so that a file sorted by class still gives every class.

    >>> evenly(10, 4)
    array([0, 2, 5, 7])
    """
    if wanted < 1 or count < 1:
        raise SettingError(f"at least one example is needed; got {wanted} of {count}")
    taken = min(wanted, count)
    return np.arange(taken, dtype=np.int64) * count // taken


def fingerprint(*tensors: Tensor) -> str:
    """The first 16 hex digits of a SHA-256 over shapes, types and values: equal for equal examples or weights."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype};".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
