"""CIFAR-10 and CIFAR-100: the official Python and binary archives, and CIFAR-10 as packed pictures.

Images come out as uint8 (n, 3, 32, 32).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saltflat.data.files import Labelled, Layout, Parts, content
from saltflat.data.pictures import packed
from saltflat.errors import DataError

_PIXELS = 3 * 32 * 32
_TEN = tuple(f"data_batch_{i}" for i in range(1, 6))


class _Plain:
    """Stands for numpy's classes while a pickle is read: takes whatever it is given, and does nothing with it.

    numpy's own classes are not let in, although they look harmless: a forged dtype makes numpy take bytes of
    the file for addresses of Python objects.
    """

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Admits dictionaries, lists, strings, bytes, numbers, and what numpy arrays are described with."""

    _ARRAY = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
    )

    def find_class(self, module: str, name: str) -> type[_Plain]:
        if (module, name) not in self._ARRAY:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return _Plain

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside itself")


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in one file of the Python archive, its keys as text; nothing in the file is run."""
    data = content(path)
    try:
        # The archive was written by Python 2, whose strings are bytes here.
        table = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # damaged pickles raise almost anything
        raise DataError(f"{path} is no CIFAR file, or a truncated one: {error or 'it ends early'}") from error
    if not isinstance(table, dict):
        raise DataError(f"{path}: expected a pickled dictionary, got {type(table).__name__}")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): item for key, item in table.items()}


def _pixels(array: Any) -> np.ndarray:
    """The uint8 array (n, 3072) that a `_Plain` describes: version, shape, dtype, column order, raw bytes."""
    _, shape, dtype, by_column, raw = array.state
    rows, columns = shape
    if dtype.arguments[0] not in (b"u1", "u1") or by_column or columns != _PIXELS:
        raise ValueError("another type or shape")
    return np.frombuffer(raw, np.uint8).reshape(rows, columns)


def python_batch(path: Path, labels: str) -> Labelled:
    """The images and labels of one file of the Python archive."""
    table = read_pickle(path)
    try:
        pixels, targets = _pixels(table["data"]), np.array(table[labels], dtype=np.int64)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        raise DataError(
            f"{path}: expected 'data', n x {_PIXELS} bytes, and a list of numbers {labels!r}; got {sorted(table)}"
        ) from None  # its words may hold a label
    if targets.shape != (len(pixels),):
        raise DataError(f"{path}: each image needs one label; got more of the one than of the other")
    return _images(pixels), torch.from_numpy(targets)


def binary_batch(path: Path, label_bytes: int) -> Labelled:
    """The images and labels of one file of the binary archive; the label is the last of ``label_bytes``."""
    data = content(path)
    record = label_bytes + _PIXELS
    if not data or len(data) % record:
        raise DataError(f"{path} is truncated or wrong: expected whole records of {record} bytes")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return _images(rows[:, label_bytes:]), torch.from_numpy(rows[:, label_bytes - 1].astype(np.int64))


def _images(rows: np.ndarray) -> Tensor:
    return torch.from_numpy(rows.reshape(-1, 3, 32, 32).copy())


def _joined(parts: Sequence[Labelled]) -> Labelled:
    images, labels = zip(*parts, strict=True)
    return torch.cat(images), torch.cat(labels)


def ten_python(folder: Path) -> Parts:
    return _joined([python_batch(folder / name, "labels") for name in _TEN]), python_batch(
        folder / "test_batch", "labels"
    )


def ten_binary(folder: Path) -> Parts:
    return _joined([binary_batch(folder / f"{name}.bin", 1) for name in _TEN]), binary_batch(
        folder / "test_batch.bin", 1
    )


def ten_packed(folder: Path) -> Parts:
    """Lossless pictures in npz files; needs Pillow."""
    train, test = (packed(folder / f"cifar10_lossless_{part}.npz") for part in ("train", "test"))
    return train, test


def hundred_python(folder: Path) -> Parts:
    """The 100 fine labels."""
    return python_batch(folder / "train", "fine_labels"), python_batch(folder / "test", "fine_labels")


def hundred_binary(folder: Path) -> Parts:
    """The 100 fine labels, the second byte of each record; the first is the coarse one."""
    return binary_batch(folder / "train.bin", 2), binary_batch(folder / "test.bin", 2)


TEN = (
    Layout(("cifar-10-batches-py", "cifar10/cifar-10-batches-py"), "data_batch_1", ten_python),
    Layout(("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"), "data_batch_1.bin", ten_binary),
    Layout(("cifar10",), "cifar10_lossless_train.npz", ten_packed),
)
HUNDRED = (
    Layout(("cifar-100-python", "cifar100/cifar-100-python"), "train", hundred_python),
    Layout(("cifar-100-binary", "cifar100/cifar-100-binary"), "train.bin", hundred_binary),
)
