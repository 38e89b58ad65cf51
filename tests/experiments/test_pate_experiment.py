"""The experiment on PATE, on a few made-up images: it runs, goes on where it was stopped, and has a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
import pate as experiment
import results

from saltflat.data import UNIT, Examples, Split


def made_up() -> Split:
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (90, 1, 28, 28), generator=source, dtype=torch.uint8)
    labels = torch.randint(10, (90,), generator=source)
    return Split(Examples(images[:50], labels[:50], UNIT), Examples(images[50:], labels[50:], UNIT), 10)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "load", lambda data, folder: made_up())
    monkeypatch.setattr(experiment, "POOL", 20)
    monkeypatch.setattr(experiment, "CAPS", {5.0: (20, 15)})
    quick = {"teachers": 4, "teacher_epochs": 1, "copies": 2}
    whole = experiment.Settings
    monkeypatch.setattr(
        experiment, "Settings", lambda **given: whole(**{**given, **quick, "threshold": -1000.0})
    )


def test_it_runs_and_goes_on(small: None, tmp_path: Path) -> None:
    out = tmp_path / "pate.jsonl"
    words = [
        "--seed",
        "0",
        "1",
        "--epsilon",
        "5",
        "--epochs",
        "1",
        "--out",
        str(out),
        "--private",
        str(tmp_path / "p"),
    ]
    assert experiment.main([*words[:2], *words[3:]]) == 0
    first = out.read_bytes()
    assert experiment.main(words) == 0
    assert out.read_bytes().startswith(first)
    found = results.read(out)
    assert [one["settings"]["seed"] for one in found] == [0, 1]
    assert all(one["answered"] == 15 and set(one["accuracy"]) == {"0", "0.03"} for one in found)
    assert 4.9 < found[0]["epsilon"] <= 5.0
    assert experiment.main(words) == 0
    assert len(results.read(out)) == 2


def test_the_table_has_means_and_standard_errors() -> None:
    one = lambda seed, plain: {
        "settings": {"data": "mnist", "epsilon": 5.0, "seed": seed},
        "asked": 120,
        "answered": 90,
        "labels_right": 0.9,
        "accuracy": {"0": plain, "0.03": 0.75},
    }
    lines = experiment.markdown([one(0, 0.70), one(1, 0.72), one(2, 0.74)]).splitlines()
    assert "72.00 ± 1.15" in lines[2]
    assert "75.00 ± 0.00" in lines[3]
