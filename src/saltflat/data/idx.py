"""The idx format of MNIST, Fashion-MNIST and EMNIST, plain or gzipped, under the official names."""

from __future__ import annotations

import struct
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saltflat.data.files import Labelled, Layout, Parts, content, one_of
from saltflat.errors import DataError

_BYTES = 0x08  # the only element type that these data sets use
EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def read_idx(path: Path, *allowed: int) -> Tensor:
    """The bytes of an idx file as a uint8 tensor with this many dimensions, or with one of several numbers of them.

    The header is two zero bytes, the element type, the number of dimensions, and each size as a big-endian
    32-bit number; it must agree with the file's length.
    """
    data = content(path)
    dimensions = data[3] if len(data) > 3 and data[3] in allowed else allowed[0]
    magic = bytes([0, 0, _BYTES, dimensions])
    start = 4 + 4 * dimensions
    if data[:4] != magic or len(data) < start:
        raise DataError(
            f"{path} is no idx file of bytes in {dimensions} dimensions: expected it to begin with {magic.hex()}, "
            f"got {data[:4].hex() or 'nothing'}"
        )
    sizes = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) - start != prod(sizes):
        raise DataError(
            f"{path} is truncated or damaged: it holds {'fewer' if len(data) - start < prod(sizes) else 'more'} bytes "
            "than its header announces"
        )
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=start).reshape(sizes).copy())


def labelled(folder: Path, part: str) -> Labelled:
    """Images (n, 1, 28, 28) as uint8, and labels; ``part`` begins the file names, as in "train"."""
    image_file, label_file = (
        one_of(folder, [f"{part}-{kind}-{tail}", f"{part}-{kind}.{tail}"])
        for kind, tail in (("images", "idx3-ubyte"), ("labels", "idx1-ubyte"))
    )
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(labels):
        raise DataError(f"{label_file}: each image needs one label; got more of the one than of the other")
    if images.shape[1:] != (28, 28):
        raise DataError(f"{image_file}: expected images of 28 x 28, got {tuple(images.shape[1:])}")
    return images.unsqueeze(1), labels.long()


def mnist(folder: Path) -> Parts:
    """MNIST or Fashion-MNIST, which share their file names."""
    return labelled(folder, "train"), labelled(folder, "t10k")


def emnist(folder: Path, *, kind: str) -> Parts:
    """One of EMNIST's six divisions.

    The files hold the images transposed; here they are upright, as MNIST's are. The letters are numbered from
    1 in the file and from 0 here.
    """
    train, test = (_upright(labelled(folder, f"emnist-{kind}-{part}"), kind) for part in ("train", "test"))
    return train, test


def _upright(part: Labelled, kind: str) -> Labelled:
    images, labels = part
    return images.transpose(2, 3).contiguous(), labels - 1 if kind == "letters" else labels


def mnist_layouts(*folders: str) -> tuple[Layout, ...]:
    return (Layout(folders, "train-images*idx3-ubyte*", mnist),)


def emnist_layouts(kind: str) -> tuple[Layout, ...]:
    """The folders of the official archive and of torchvision."""
    folders = ("emnist", "gzip", "EMNIST/gzip", "EMNIST/raw", "EMNIST")
    return (Layout(folders, f"emnist-{kind}-train-images-idx3-ubyte*", partial(emnist, kind=kind)),)
