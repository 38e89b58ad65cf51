"""One bit for each test example, samples of a generator, lists of repeats: what is written is what is read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from saltflat.errors import DataError, SettingError
from saltflat.runs import repeats, synthetic
from saltflat.runs.evaluation import Evaluation, name_of, read
from saltflat.runs.layout import Folder


@pytest.mark.parametrize("count", [1, 7, 8, 9, 10_000])
def test_what_is_written_is_read(tmp_path: Path, count: int) -> None:
    right = np.random.default_rng(0).random(count) < 0.9
    file = tmp_path / "evaluation.json"
    file.write_text(Evaluation("name", right).as_json())
    found = read(file)
    assert found.examples == "name"
    assert (found.right == right).all()
    assert file.stat().st_size < 100 + count / 5


def test_names_tell_test_examples_apart() -> None:
    assert name_of(np.array([1, 2, 3])) == name_of(np.array([1, 2, 3], dtype=np.uint8))
    assert name_of(np.array([1, 2, 3])) != name_of(np.array([1, 3, 2]))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"count": 10**9},
        {"count": 0},
        {"count": True},
        {"hits": 3},
        {"right": "???"},
        {"examples": 5},
        {"examples": 100 * "x"},
    ],
)
def test_what_is_no_evaluation_is_refused(tmp_path: Path, changes: dict) -> None:
    file = tmp_path / "evaluation.json"
    facts = json.loads(Evaluation("name", np.array([True, False])).as_json())
    file.write_text(json.dumps({**facts, **changes}))
    with pytest.raises((ValueError, KeyError, TypeError)):
        read(file)


def test_samples(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (70, 5, 4), dtype=np.uint8)
    metric = synthetic.Metric(
        name="Frechet distance", value=12.5, error=0.5, better="lower", words="How far."
    )
    synthetic.keep(tmp_path, status="released", about="a generator", metrics=[metric], images=images)
    found = synthetic.read(Folder(tmp_path).synthetic)
    assert found.metrics == (metric,)
    assert found.count == 70
    assert found.images is not None
    assert (found.images[..., 0] == images[:64]).all()
    (tmp_path / "synthetic" / "metrics.json").write_text('{"metrics": [{"name": "x", "value": NaN}]}')
    with pytest.raises(ValueError, match="finite"):
        synthetic.read(Folder(tmp_path).synthetic)


def test_a_list_of_repeats(tmp_path: Path) -> None:
    assert repeats.read(tmp_path) is None
    place = tmp_path / "out"
    repeats.begin(place, repeats.Repeats.of(5, 3))
    assert repeats.read(place) == repeats.Repeats((5, 6, 7))
    assert repeats.runs_in(place) == []
    (place / "seed-6").mkdir()
    assert repeats.runs_in(place) == [place / "seed-6"]
    with pytest.raises(SettingError, match="not empty"):
        repeats.begin(place, repeats.Repeats.of(5, 3))
    Folder(place).repeats.write_text("[")
    with pytest.raises(DataError, match="damaged"):
        repeats.read(place)
    assert repeats.runs_in(place) == [place / "seed-6"]
    for bad in (0, 1, -2, 1001):
        with pytest.raises(SettingError, match="--repeats is a whole number"):
            repeats.Repeats.of(0, bad)
