"""Folders of images of the user's: pictures and idx files; what is known of them comes from the public part."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from saltflat.cli import app
from saltflat.data import Own, is_folder, is_own, own_form, own_split
from saltflat.errors import DataError, SettingError

RNG = np.random.default_rng(0)


def idx(path: Path, array: np.ndarray) -> None:
    path.write_bytes(
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    )


def idx_folder(path: Path, shape: tuple[int, ...], counts: tuple[int, int] = (60, 12)) -> Path:
    """Three classes that a mean tells apart."""
    path.mkdir()
    for part, count in zip(("train", "t10k"), counts, strict=True):
        labels = np.arange(count, dtype=np.uint8) % 3
        images = 60 * labels.reshape(-1, *[1] * len(shape)) + RNG.integers(0, 40, (count, *shape))
        idx(path / f"{part}-images-idx{1 + len(shape)}-ubyte", images.astype(np.uint8))
        idx(path / f"{part}-labels-idx1-ubyte", labels)
    return path


def picture_folder(path: Path, *, grey: bool, sides: tuple[int, int] = (12, 12)) -> Path:
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for part, side in zip(("train", "test"), sides, strict=True):
        for number, name in enumerate("abc"):
            (path / part / name).mkdir(parents=True)
            for k in range(4):
                pixels = 60 * number + RNG.integers(0, 40, (side, side) if grey else (side, side, 3))
                image_module.fromarray(pixels.astype(np.uint8)).save(path / part / name / f"{k}.png")
    return path


@pytest.mark.parametrize(
    ("shape", "wanted"), [((12, 12), (1, 12, 12)), ((12, 12, 3), (3, 12, 12)), ((3, 12, 12), (3, 12, 12))]
)
def test_idx_files(shape: tuple[int, ...], wanted: tuple[int, ...], tmp_path: Path) -> None:
    own = Own(str(idx_folder(tmp_path / "mine", shape)))
    assert (own_form(own).shape, own_form(own).classes) == (wanted, 3)
    split = own_split(own)
    assert (split.shape, split.classes, split.train.count, split.test.count) == (wanted, 3, 60, 12)
    assert split.train.targets.tolist()[:4] == [0, 1, 2, 0]


@pytest.mark.parametrize("grey", [True, False])
def test_pictures(grey: bool, tmp_path: Path) -> None:
    own = Own(str(picture_folder(tmp_path / "mine", grey=grey)))
    split = own_split(own)
    assert split.shape == own_form(own).shape == (1 if grey else 3, 12, 12)
    assert (split.classes, split.train.count) == (3, 12)


def test_the_form_is_that_of_the_public_part(tmp_path: Path) -> None:
    """Private pictures of another size take it on, and say nothing of what they were."""
    folder = picture_folder(tmp_path / "mine", grey=True, sides=(9, 12))
    assert own_split(Own(str(folder))).shape == (1, 12, 12)
    for file in (folder / "train").glob("*/*.png"):
        file.write_bytes(b"no picture")
    assert own_form(Own(str(folder))).shape == (1, 12, 12)


def test_more_classes_may_be_declared_and_fewer_not(tmp_path: Path) -> None:
    path = str(idx_folder(tmp_path / "mine", (8, 8)))
    assert own_split(Own(path, classes=5)).classes == 5
    with pytest.raises(DataError, match="2 classes are declared"):
        own_form(Own(path, classes=2))


def test_which_names_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_own("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "v1.2").mkdir()
    assert is_own("mine")
    assert is_folder("mine")
    assert is_folder("v1.2")
    assert not is_folder("mine.npz")
    assert not is_folder("mine.txt")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="put pictures into train"):
        own_form(Own(str(tmp_path / "empty")))
    with pytest.raises(DataError, match="does not exist"):
        own_form(Own(str(tmp_path / "nowhere")))
    with pytest.raises(SettingError, match="leave a target range"):
        Own(str(tmp_path / "empty"), span=(0.0, 1.0))
    folder = idx_folder(tmp_path / "mine", (8, 8))
    (folder / "train-labels-idx1-ubyte").unlink()
    assert own_form(Own(str(folder))).classes == 3
    with pytest.raises(DataError, match="needs one idx file"):
        own_split(Own(str(folder)))


def test_the_command_line_trains_on_a_folder(tmp_path: Path) -> None:
    """Without a recipe it is best-images; how many images there are has to be declared."""
    folder, out = idx_folder(tmp_path / "mine", (8, 8)), tmp_path / "run"
    few = [f"features.0.Joined.parts.{part}.Whitened.images=50" for part in ("0.3", "1.1")]
    few += ["features.0.Joined.parts.1.0.Patches.images=50", "phase.0.steps=5"]
    quick = ["--out", str(out), *(word for each in few for word in ("--set", each))]
    words = ["train", "--data", str(folder), "--epsilon", "3", *quick]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code != 0
    assert "how many rows" in str(refused.output) + str(refused.exception)
    done = CliRunner().invoke(app, [*words, "--size", "60"])
    assert done.exit_code == 0, done.output
    assert "test accuracy" in done.output
    again = CliRunner().invoke(app, [*words, "--recipe", "digits", "best-images", "--size", "60"])
    assert "two recipes are named" in str(again.output) + str(again.exception)
