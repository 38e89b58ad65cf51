"""`suggest`: what is read from the measured table, and what is made of it."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import saltflat as sf
from saltflat.advice import measured
from saltflat.advice.measured import Row, nearest, rows
from saltflat.cli import app
from saltflat.errors import SaltflatError, SettingError
from saltflat.recipes import plan_of, read

SIZES, EPSILONS = sorted({row.size for row in rows()}), sorted({row.epsilon for row in rows()})


def test_the_table_has_every_cell_once() -> None:
    cells = [(row.size, row.epsilon, row.depth) for row in rows()]
    assert len(set(cells)) == len(cells) == len(SIZES) * len(EPSILONS) * 2
    for row in rows():
        assert row.lowest <= row.accuracy <= row.highest <= 1
        assert row.guess < row.plain


def test_more_rows_and_more_budget_were_not_worse() -> None:
    """What makes the next smaller cell a careful guess; chance may take a point."""
    best = {(r.size, r.epsilon): max(x.accuracy for x in nearest(r.size, r.epsilon)) for r in rows()}
    for (size, epsilon), accuracy in best.items():
        more = [a for (n, e), a in best.items() if n >= size and e >= epsilon]
        assert min(more) >= accuracy - 0.01


@pytest.mark.parametrize(
    ("size", "epsilon", "at"),
    [
        (SIZES[1], EPSILONS[1], (SIZES[1], EPSILONS[1])),
        (SIZES[1] + 1, EPSILONS[1] * 1.01, (SIZES[1], EPSILONS[1])),
        (SIZES[2] - 1, EPSILONS[2] * 0.99, (SIZES[1], EPSILONS[1])),
        (10, 0.01, (SIZES[0], EPSILONS[0])),
        (10**7, 100.0, (SIZES[-1], EPSILONS[-1])),
    ],
)
def test_between_cells_the_next_smaller_one_is_taken(
    size: int, epsilon: float, at: tuple[int, float]
) -> None:
    assert {(row.size, row.epsilon) for row in nearest(size, epsilon)} == {at}


def test_the_plan_keeps_the_budget() -> None:
    for size, epsilon in ((200, 0.5), (3000, 1.0), (50_000, 8.0)):
        found = sf.suggest(size=size, epsilon=epsilon)
        plan = found.plan()
        assert plan.epsilon(found.delta) <= epsilon
        assert plan.steps == found.steps == round(found.epochs * size / found.batch_size)
        assert found.delta <= 1 / (10 * size)
        weights = sum(p.numel() for p in found.network().parameters())
        ratio = found.noise_multiplier * math.sqrt(weights) / found.batch_size
        assert found.noise_to_signal == pytest.approx(ratio)


def test_outside_of_what_was_measured_it_says_so() -> None:
    assert sf.suggest(size=1000, epsilon=1).warnings == ()
    found = sf.suggest(size=50, epsilon=0.1, features=500, classes=20)
    assert [said.split()[0] for said in found.warnings] == ["size", "epsilon", "features", "classes"]
    assert all(said in found.text for said in found.warnings)
    assert "Nothing was measured" in sf.suggest(size=1000, epsilon=1, classes=None).text


def test_fit_takes_the_settings() -> None:
    x = torch.randn(180, 4)
    found = sf.suggest(size=200, epsilon=8.0, features=4, classes=2)
    fitted = sf.fit(
        found.network(), nn.CrossEntropyLoss(reduction="none"), (x, (x[:, 0] > 0).long()), **found.fit
    )
    assert fitted.epsilon <= 8.0
    assert fitted.plan.steps == found.steps


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 5},
        {"size": 1.5},
        {"epsilon": 0},
        {"epsilon": float("nan")},
        {"classes": 1},
        {"features": 0},
        {"network": "cnn"},
        {"delta": 2},
    ],
)
def test_a_wrong_request_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SaltflatError):
        sf.suggest(**{"size": 1000, "epsilon": 1.0, **wrong})  # type: ignore[arg-type]


def test_the_command_writes_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "suggest",
        "--size",
        "1000",
        "--epsilon",
        "1",
        "--recipe",
        "r.toml",
        "--data",
        "a.csv",
        "--table",
        "t.toml",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "noise multiplier" in done.output
    recipe = read("r.toml")
    found = sf.suggest(size=1000, epsilon=1.0)
    assert (recipe.data, recipe.table, recipe.batch_size) == ("a.csv", "t.toml", found.batch_size)
    assert plan_of(recipe, 1000).epsilon(recipe.delta) <= 1.0
    with pytest.raises(SettingError, match="is there already"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    done = CliRunner().invoke(app, ["suggest", "--size", "1000", "--epsilon", "1", "--json"])
    assert json.loads(done.output)["noise_multiplier"] == found.noise_multiplier


def test_the_table_ships_and_is_what_the_experiment_writes() -> None:
    text = (Path(measured.__file__).parent / "measured.csv").read_text()
    assert list(next(csv.reader(text.splitlines()))) == [field.name for field in fields(Row)]
