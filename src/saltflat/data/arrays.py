"""Arrays in npz files, read without pickle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saltflat.data.examples import HALF, Examples, Scale, Split
from saltflat.data.files import resolve
from saltflat.errors import DataError

Names = tuple[str, str, str, str]  # training inputs and targets, test inputs and targets
KERAS: Names = ("x_train", "y_train", "x_test", "y_test")
MEDMNIST: Names = ("train_images", "train_labels", "test_images", "test_labels")


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """These arrays of an npz file."""
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file]
            if not missing:
                return {name: file[name] for name in names}
    except Exception as error:  # damaged archives raise almost anything
        raise DataError(f"{path} is no npz file, or a truncated one: {error}") from error
    raise DataError(f"{path} has no array {', '.join(missing)}; expected {', '.join(names)}")


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
            f"{inputs.dtype} {inputs.shape} and {targets.dtype} {targets.shape}"
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


def images(pixels: np.ndarray, path: Path) -> Tensor:
    """uint8 (n, c, h, w) from (n, h, w) or (n, h, w, c)."""
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4:
        raise DataError(f"{path}: expected uint8 images n x h x w or n x h x w x c, got {pixels.shape}")
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
