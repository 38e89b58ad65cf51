"""Street View House Numbers, cropped digits: the official train_32x32.mat and test_32x32.mat."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import torch

from saltflat.data.files import Labelled, Layout, Parts, check_unpacked
from saltflat.errors import DataError, SettingError

_WANTED = ["X", "y"]
_WIDTH = {"uint8": 1}  # bytes of a number


def read_mat(path: Path) -> Labelled:
    """Images (n, 3, 32, 32) as uint8, and labels; the file's label 10 is the digit 0."""
    from scipy.io import loadmat, whosmat  # scikit-learn brings it

    if not path.is_file():
        raise DataError(f"{path} does not exist")
    try:
        declared = [
            prod(shape) * _WIDTH.get(kind, 8) for name, shape, kind in whosmat(path) if name in _WANTED
        ]
        check_unpacked(path, sum(declared), path.stat().st_size)
        table = loadmat(path, variable_names=_WANTED)
        pixels, labels = table["X"], table["y"].reshape(-1).astype(np.int64)
    except (DataError, SettingError):
        raise
    except Exception as error:  # damaged files raise almost anything, and its words may hold a label
        raise DataError(
            f"{path} is no SVHN file, or a truncated one: expected a MATLAB file with X and y "
            f"({type(error).__name__})"
        ) from None
    if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, len(labels)):
        raise DataError(
            f"{path}: expected X of bytes, 32 x 32 x 3 x n, with one image for each of the n labels in y"
        )
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return torch.from_numpy(images), torch.from_numpy(np.where(labels == 10, 0, labels))


def svhn(folder: Path) -> Parts:
    """The training and test images; the extra ones are left alone."""
    return read_mat(folder / "train_32x32.mat"), read_mat(folder / "test_32x32.mat")


LAYOUTS = (Layout(("svhn", "SVHN"), "train_32x32.mat", svhn),)
