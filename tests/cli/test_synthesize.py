"""``saltflat synthesize``, and ``saltflat train`` with public examples, as people type them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from saltflat.cli import app
from saltflat.errors import SaltflatError

SHORT = ["--set", "seen=64", "--set", "batch=16", "--set", "network.UNet.channels=8", "--threads", "1"]


def typed(*words: object) -> None:
    with pytest.raises(SystemExit) as left:
        app([str(word) for word in words])
    assert left.value.code == 0


def refused(*words: object) -> str:
    with pytest.raises(SaltflatError) as stopped:
        app([str(word) for word in words])
    assert "\n" not in str(stopped.value)
    return str(stopped.value)


def test_fit_and_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, made = tmp_path / "generator", tmp_path / "made.npz"
    typed("synthesize", "fit", "--count", 20, "--out", place, *SHORT)
    said = capsys.readouterr().out
    assert "about 20 of the 1437 training examples of digits, by a hash of each under seed 0" in said
    assert "fitting the generator: 4 of 4 loss" in said
    typed("synthesize", "sample", place, "--images", 12, "--steps", 3, "--out", made, "--threads", "1")
    with np.load(made) as arrays:
        assert arrays["x"].shape == (12, 8, 8)
        assert arrays["x"].dtype == np.uint8
        assert arrays["y"].tolist() == [*range(10), 0, 1]
    typed("synthesize", "fit", "--data", made, "--classes", 10, "--out", tmp_path / "other", *SHORT)
    typed("synthesize", "fit", "--count", 20, "--out", place, *SHORT)  # finished: nothing is left to do
    assert "another fit." in refused("synthesize", "fit", "--count", 20, "--out", place, "--threads", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fit"], "--count 60"),
        (["fit", "--count", "2000"], "lower it"),
        (["fit", "--count", "20", "--set", "sen=3"], "did you mean seen"),
        (["fit", "--count", "20", "--set", "seen"], "has no value"),
        (["fit", "--count", "20", "--set", "network.UNet.patch=3"], "square images whose side 6 divides"),
        (["fit", "--data", "mine.npz", "--count", "20"], "--count is for a data set by name"),
        (["sample", "nowhere"], "holds no generator"),
        (["sample", "nowhere", "--images", "0"], "--images is 1 or more"),
        (["sample", "nowhere", "--out", "made.txt"], "npz file"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("synthesize", *words)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_what_is_public(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed("train", "digits-extended", "--dry-run", "--out", tmp_path / "x")
    said = capsys.readouterr().out
    assert "scenario Extended" in said
    assert "public, and not protected at all: about 60 of the 1437 training examples of digits" in said
    assert "warm-up: 20 epochs of SAM on the synthetic examples" in said
    assert "256 of 1,437 examples expected" in said
    assert not (tmp_path / "x").exists()


def test_a_run_tells_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brief = "warmup=[{Supervised = {on = 'public', epochs = 3, batch_size = 20}}]"
    out = tmp_path / "warm"
    typed("train", "digits-warm", "--set", brief, "--epochs", 1, "--infinity", "--threads", 1, "--out", out)
    said = capsys.readouterr().out
    for words in (
        "warm-up: 3 epochs of SGD on the public examples: 9 of 9",
        "first weights: test",
        "(epsilon 0)",
        "(epsilon infinity, not private)",
        "Used as public, and not protected at all",
    ):
        assert words in " ".join(said.split())
    changed = refused("train", "--resume", "--out", out, "--set", "public.seed=1", "--threads", 1)
    assert "public.seed" in changed
