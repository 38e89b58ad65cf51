"""Folders of pictures and packed pictures; most of it needs Pillow."""

from __future__ import annotations

import builtins
import io
import re
from pathlib import Path

import numpy as np
import pytest
from formats import pixels

from saltflat.data import UNIT, image_folder, load
from saltflat.errors import DataError


@pytest.fixture
def image_module():
    return pytest.importorskip("PIL.Image", reason="Pillow (saltflat[images]) is not installed")


@pytest.fixture
def folder(tmp_path: Path, image_module) -> Path:
    for part in ("train", "test"):
        for label, name in enumerate(("cat", "dog")):
            (tmp_path / part / name).mkdir(parents=True)
            image_module.fromarray(pixels(1, 4, 6, 3, seed=label)[0]).save(tmp_path / part / name / "a.png")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no picture")
    return tmp_path


def test_without_pillow_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "test"):
        (tmp_path / part / "cat").mkdir(parents=True)
        (tmp_path / part / "cat" / "a.png").write_bytes(b"")
    real = builtins.__import__

    def absent(name: str, *rest):
        if name.split(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(DataError, match=r"needs Pillow: pip install 'saltflat\[images\]'$"):
        image_folder(tmp_path)


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train does not exist; expected one folder per class"):
        image_folder(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="train is empty"):
        image_folder(tmp_path)
    (tmp_path / "train" / "cat").mkdir()
    (tmp_path / "test" / "dog").mkdir(parents=True)
    with pytest.raises(DataError, match="must hold the same class folders"):
        image_folder(tmp_path)
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "cat")
    with pytest.raises(DataError, match="holds no picture"):
        image_folder(tmp_path)


def test_classes_are_folders(folder: Path) -> None:
    split = image_folder(folder.name, folder.parent, scale=UNIT)
    assert split.classes == 2
    assert split.shape == (3, 4, 6)
    assert split.train.targets.tolist() == [0, 1]
    assert np.array_equal(split.train.inputs[1].numpy(), pixels(1, 4, 6, 3, seed=1)[0].transpose(2, 0, 1))


def test_sizes_and_damage(folder: Path, image_module, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "train" / "dog" / "b.png"
    image_module.fromarray(pixels(1, 8, 8)[0]).save(path)  # grey, and of another size
    with pytest.raises(DataError, match=r"must have one size.*differs from the first; pass size=") as caught:
        image_folder(folder)
    assert not re.search(r"\.png|dog|8 x 8|4 x 6", str(caught.value)), "the name may tell of a person"
    monkeypatch.setenv("SALTFLAT_NAME_RECORDS", "1")
    with pytest.raises(DataError, match=r"b\.png differs"):
        image_folder(folder)
    monkeypatch.delenv("SALTFLAT_NAME_RECORDS")
    assert image_folder(folder, size=(5, 7)).shape == (3, 5, 7)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match="is no picture, or a truncated one") as caught:
        image_folder(folder, size=(5, 7))
    assert not re.search(r"\.png|dog", str(caught.value))
    assert caught.value.__cause__ is None, "Pillow names the file"
    assert caught.value.__suppress_context__
    monkeypatch.setenv("SALTFLAT_NAME_RECORDS", "1")
    with pytest.raises(DataError, match=r"b\.png is no picture"):
        image_folder(folder, size=(5, 7))


def write_packed(base: Path, image_module) -> np.ndarray:
    """CIFAR-10 as lossless pictures, one after the other in an npz."""
    images = pixels(3, 32, 32, 3)
    files = []
    for image in images:
        file = io.BytesIO()
        image_module.fromarray(image).save(file, "png")
        files.append(file.getvalue())
    offsets = np.cumsum([0, *map(len, files)])
    data = np.frombuffer(b"".join(files), np.uint8)
    (base / "cifar10").mkdir()
    for part in ("train", "test"):
        np.savez(
            base / "cifar10" / f"cifar10_lossless_{part}.npz",
            data=data,
            offsets=offsets,
            labels=np.arange(3, dtype=np.uint8),
        )
    return images


def test_packed_pictures_and_their_cache(
    tmp_path: Path, image_module, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_packed(tmp_path, image_module)
    expected = images.transpose(0, 3, 1, 2)
    monkeypatch.delenv("SALTFLAT_CACHE", raising=False)
    before = sorted(tmp_path.rglob("*"))
    assert np.array_equal(load("cifar10", tmp_path).train.inputs.numpy(), expected)
    assert sorted(tmp_path.rglob("*")) == before, "no copy of the data unless asked for"
    monkeypatch.setenv("SALTFLAT_CACHE", str(tmp_path / "cache"))
    assert np.array_equal(load("cifar10", tmp_path).train.inputs.numpy(), expected)
    assert len(list((tmp_path / "cache").glob("*/*.npy"))) == 2
    monkeypatch.setattr("saltflat.data.pictures.decode", None)  # from here on only the cache can answer
    assert np.array_equal(load("cifar10", tmp_path).train.inputs.numpy(), expected)
