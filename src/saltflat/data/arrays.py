"""Arrays in npz files, read without pickle."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from saltflat.data.examples import HALF, Examples, Scale, Split
from saltflat.data.files import check_unpacked, resolve
from saltflat.errors import DataError, SettingError

Names = tuple[str, str, str, str]  # training inputs and targets, test inputs and targets
KERAS: Names = ("x_train", "y_train", "x_test", "y_test")
MEDMNIST: Names = ("train_images", "train_labels", "test_images", "test_labels")


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """These arrays of an npz file; one that announces too much is refused before it is unpacked."""
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    try:
        _check_declared(path, names)
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file]
            if not missing:
                return {name: file[name] for name in names}
    except (DataError, SettingError):
        raise
    except Exception as error:  # damaged archives raise almost anything, and its words may hold a shape
        raise DataError(f"{path} is no npz file, or a truncated one ({type(error).__name__})") from None
    raise DataError(f"{path} has no array {', '.join(missing)}; expected {', '.join(names)}")


def _check_declared(path: Path, names: Sequence[str]) -> None:
    """By the archive's directory and each array's head, which say how many bytes there will be."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name not in names:
                continue
            check_unpacked(f"{path}: the array {name}", member.file_size, member.compress_size)
            with archive.open(member) as file:
                shape, dtype = head_of(file)
            if dtype.hasobject:
                raise DataError(
                    f"{path}: the array {name} holds objects, which are never read; save plain numbers"
                )
            if prod(shape) * dtype.itemsize > member.file_size:
                raise DataError(f"{path}: the array {name} is truncated; write it with numpy.savez")


def head_of(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and the type in the head of a .npy file."""
    version = np.lib.format.read_magic(file)
    heads = np.lib.format
    read = heads.read_array_header_1_0 if version == (1, 0) else heads.read_array_header_2_0
    shape, _, dtype = read(file)
    return tuple(shape), dtype


def npz(
    path: str | Path,
    data_dir: str | Path | None = None,
    *,
    classes: int,
    names: Names = KERAS,
    scale: Scale = HALF,
) -> Split:
    """Four arrays of an npz file; ``names`` is `KERAS`, `MEDMNIST` or names of your own.

    uint8 arrays (n, h, w) or (n, h, w, c) are images and are scaled with the declared ``scale``; all other
    inputs become float32 as they are. ``classes`` is declared, not counted in the labels.
    """
    where = resolve(path, data_dir)
    arrays = read_arrays(where, names)
    train, test = (
        _examples(arrays[inputs], arrays[targets], scale, where) for inputs, targets in (names[:2], names[2:])
    )
    return Split(train, test, classes)


def _examples(inputs: np.ndarray, targets: np.ndarray, scale: Scale, path: Path) -> Examples:
    whole = targets.dtype.kind in "iu" and targets.ndim > 0 and targets.size == len(targets)
    if inputs.dtype.kind not in "fiu" or inputs.ndim == 0 or not whole:
        raise DataError(
            f"{path}: expected numbers as inputs and one whole number per example as targets; got "
            f"{inputs.dtype} {per_row(inputs)} and {targets.dtype} {per_row(targets)}"
        )
    labels = torch.from_numpy(targets.reshape(-1).astype(np.int64))
    if inputs.dtype != np.uint8:
        return Examples(torch.from_numpy(inputs.astype(np.float32)), labels)
    return Examples(images(inputs, path), labels, scale)


def rows_of(
    inputs: np.ndarray,
    targets: np.ndarray,
    path: Path,
    *,
    span: tuple[float, float] | None = None,
    scale: Scale = HALF,
) -> Examples:
    """Examples of two arrays; what is wrong is told by name and type, and never by value or count."""
    if inputs.dtype.kind not in "fiu" or inputs.ndim < 2:
        raise DataError(f"{path}: x must hold numbers, a row for each example; got {inputs.dtype}")
    if targets.dtype.kind not in "fiu" or targets.ndim not in (1, 2) or targets.size != len(targets):
        raise DataError(f"{path}: y must hold one number for each example; got {targets.dtype}")
    if len(inputs) != len(targets):
        raise DataError(f"{path}: x and y do not have the same number of rows")
    if len(inputs) == 0:
        raise DataError(f"{path} holds no row")
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        raise DataError(
            f"{path}: x holds a NaN or an infinity; drop such rows, or put a declared number there"
        )
    y = targets.reshape(-1)
    if span is not None:
        if not np.isfinite(y).all():
            raise DataError(f"{path}: y holds a NaN or an infinity; drop such rows")
        low, high = span
        numbers = (2 * np.clip((y.astype(np.float64) - low) / (high - low), 0, 1) - 1).astype(np.float32)
        labels = torch.from_numpy(numbers)
    elif y.dtype.kind == "f":
        raise DataError(
            f"{path}: y holds {y.dtype}, and classes are whole numbers; save it as int64, or declare a target range"
        )
    else:
        labels = torch.from_numpy(y.astype(np.int64))
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):
        return Examples(images(inputs, path), labels, scale)
    return Examples(torch.from_numpy(inputs.astype(np.float32)), labels)


def per_row(array: np.ndarray) -> str:
    """The shape of an array in words, without the number of its rows, which may be private.

    >>> per_row(np.zeros((7, 28, 28)))
    'n x 28 x 28'
    """
    return " x ".join(["n", *map(str, array.shape[1:])]) if array.ndim else "one number"


def images(pixels: np.ndarray, path: Path) -> Tensor:
    """uint8 (n, c, h, w) from (n, h, w) or (n, h, w, c)."""
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4:
        raise DataError(f"{path}: expected uint8 images n x h x w or n x h x w x c, got {per_row(pixels)}")
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
