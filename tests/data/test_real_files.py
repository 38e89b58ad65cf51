"""Readers on the real files, where they are: in SALTFLAT_DATA, or beside the project."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from saltflat.data import load
from saltflat.data.arrays import read_arrays
from saltflat.data.idx import labelled
from saltflat.data.pictures import _unpacked

BESIDE = Path(__file__).parents[3] / "shared" / "data"


def folder(name: str) -> Path:
    base = Path(os.environ.get("SALTFLAT_DATA") or BESIDE)
    if not (base / name).is_dir():
        pytest.skip(f"no {name} under {base}; set SALTFLAT_DATA to the folder that holds it")
    return base / name


@pytest.mark.parametrize(
    ("name", "first", "per_class"),
    [("mnist", [7, 2, 1, 0, 4], None), ("fashion-mnist", [9, 2, 1, 1, 6], 1000)],
)
def test_idx(name: str, first: list[int], per_class: int | None) -> None:
    images, labels = labelled(folder(name), "t10k")
    assert images.shape == (10000, 1, 28, 28)
    assert labels[:5].tolist() == first
    assert per_class is None or (labels.bincount() == per_class).all()


def test_mnist_as_a_whole() -> None:
    split = load("mnist", folder("mnist"))
    assert (split.train.count, split.test.count, split.shape) == (60000, 10000, (1, 28, 28))
    assert split.train.targets[:5].tolist() == [5, 0, 4, 1, 9]


def test_adult() -> None:
    split = load("adult", folder("tabular").parent)
    assert (split.train.count, split.test.count) == (32561, 16281)
    assert split.train.targets.bincount().tolist() == [24720, 7841]
    unknown = split.train.inputs[:, 5:].sum(1) < 8
    assert int(unknown.sum()) == 2399  # the rows with a "?": every other value is declared


def test_cifar10_heads() -> None:
    pytest.importorskip("PIL.Image", reason="Pillow (saltflat[images]) is not installed")
    arrays = read_arrays(folder("cifar10") / "cifar10_lossless_test.npz", ("data", "offsets", "labels"))
    images = _unpacked(arrays["data"], arrays["offsets"][:9])
    assert images.shape == (8, 3, 32, 32)
    assert arrays["labels"][:8].tolist() == [3, 8, 8, 0, 6, 6, 1, 6]


@pytest.mark.slow
def test_cifar10_pixels() -> None:
    pytest.importorskip("PIL.Image", reason="Pillow (saltflat[images]) is not installed")
    split = load("cifar10", folder("cifar10"))
    pixels = np.ascontiguousarray(split.test.inputs.numpy().transpose(0, 2, 3, 1))
    digest = hashlib.sha256(pixels.tobytes()).hexdigest()
    assert digest == "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"
    pixels = np.ascontiguousarray(split.train.inputs.numpy().transpose(0, 2, 3, 1))
    digest = hashlib.sha256(pixels.tobytes()).hexdigest()
    assert digest == "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a"
