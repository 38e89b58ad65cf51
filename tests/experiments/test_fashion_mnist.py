"""The Fashion-MNIST experiment, on a tiny data set in the official format."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

import fashion_mnist
import results
import table
from formats import pixels, write_idx

from saltflat.data import UNIT, Examples
from saltflat.errors import DataError, SettingError
from saltflat.recipes import plan_of, shipped
from saltflat.recipes.build import draft_of

PAPERS = {"data": "fashion-mnist", "epsilon": 3.0, "seed": 0, "epochs": 40}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """48 training and 10 test images under the name of Fashion-MNIST."""
    folder = tmp_path / "data" / "fashion-mnist"
    for part, count in (("train", 48), ("t10k", 10)):
        write_idx(folder, part, pixels(count, 28, 28), np.arange(count, dtype=np.uint8) % 10)
    return tmp_path


def words(tiny: Path, *more: str) -> list[str]:
    """Three epochs of two steps."""
    places = ["--data-dir", str(tiny / "data"), "--out", str(tiny / "results.jsonl")]
    return [*places, "--batch=24", "--epochs=3", "--every=2", "--threads=1", "--epsilon=3", *more]


def test_a_run_is_recorded_whole_and_not_repeated(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fashion_mnist.main(words(tiny, "--methods", "dp-sgd", "--seed=0")) == 0
    (result,) = results.read(tiny / "results.jsonl")
    assert result["steps"] == [6]
    assert result["rate"] == 0.5
    assert result["parameters"] == 26_010
    assert 2.97 <= result["epsilon"] <= 3
    assert [point["epoch"] for point in result["curve"]] == [2, 3]
    assert result["accuracy_last"] == result["curve"][-1]["last"]
    assert all(0 <= result[key] <= 1 for key in ("accuracy_last", "accuracy_ema"))
    assert result["stamp"] == ""

    ran: list[str] = []
    fake = lambda settings, how, split, bar: (
        ran.append(settings.method),
        {**fashion_mnist.identity(settings, split.train.count)},
    )[1]
    monkeypatch.setattr(fashion_mnist, "run", fake)
    assert fashion_mnist.main(words(tiny, "--methods", "dp-sgd", "dp-sat", "--seed=0")) == 0
    assert ran == ["dp-sat"]
    assert len(results.read(tiny / "results.jsonl")) == 2
    assert "already in" in "".join(capsys.readouterr())


def test_seeded_noise_repeats_itself_and_is_stamped(tiny: Path) -> None:
    for name in ("a", "b"):
        out = str(tiny / name)
        assert (
            fashion_mnist.main(words(tiny, "--methods=dplis", "--seed=4", "--seeded-noise", f"--out={out}"))
            == 0
        )
    (first,), (second,) = (results.read(tiny / name) for name in ("a", "b"))
    assert first["curve"] == second["curve"]
    assert (first["stamp"], first["epsilon"]) == ("NOT PRIVATE: seeded", None)
    assert "NOT PRIVATE: seeded" in table.markdown([first])


def test_an_interruption_leaves_the_finished_runs(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(settings: fashion_mnist.Settings, how: object, split: SimpleNamespace, bar: object) -> dict:
        if settings.method == "dp-sat":
            raise KeyboardInterrupt
        return fashion_mnist.identity(settings, split.train.count)

    monkeypatch.setattr(fashion_mnist, "run", stops)
    assert fashion_mnist.main(words(tiny, "--methods", "dp-sgd", "dp-sat", "--seed=0")) == 130
    (kept,) = results.read(tiny / "results.jsonl")
    assert kept["settings"]["method"] == "dp-sgd"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--batch=1000"], "does not fit into 48"),
        (["--methods", "dp-sgd", "sai"], "more than these"),
        (["--methods", "dp-sgd", "--epsilon", "3", "nan"], "got nan"),
        (["--data-dir=/nowhere"], "not a folder"),
    ],
)
def test_wrong_settings_are_one_line(
    tiny: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fashion_mnist.main(words(tiny, *more)) == 1
    assert message in capsys.readouterr().err.strip().splitlines()[-1]
    assert not results.read(tiny / "results.jsonl")  # refused before the first run, not between two


@pytest.mark.parametrize("method", fashion_mnist.RECIPES)
def test_the_papers_plans(method: str) -> None:
    epochs = 10 if method == "dplis" else 40
    settings = fashion_mnist.Settings(**{**PAPERS, "method": method, "epochs": epochs})
    plan = draft_of(fashion_mnist.recipe_of(settings, 60_000), 60_000)
    assert (plan.rate, plan.steps) == (1 / 30, 30 * epochs)
    assert all(phase.clip_norm == 0.1 for phase in plan.phases)
    assert plan == draft_of(shipped(fashion_mnist.RECIPES[method]), 60_000)  # seed 0 is the recipe itself


def test_every_result_on_file_is_recognised_as_done() -> None:
    found = results.read(Path(fashion_mnist.__file__).with_name("results.jsonl"))
    assert len(found) == 18
    for one in found:
        own = {f.name: one["settings"][f.name] for f in dataclasses.fields(fashion_mnist.Settings)}
        assert fashion_mnist.done(fashion_mnist.Settings(**own), one["size"], [one]), one["settings"]


def test_sai_has_two_phases_that_spend_one_budget() -> None:
    settings = fashion_mnist.Settings(**PAPERS, method="sai")
    plan = plan_of(fashion_mnist.recipe_of(settings, 60_000), 60_000)
    assert [phase.steps for phase in plan.phases] == [450, 750]
    assert [phase.optimizer.lr for phase in plan.phases] == [2.0, 0.1]
    assert plan.phases[0].noise_multiplier < plan.phases[1].noise_multiplier
    assert 2.97 <= plan.epsilon(1e-5) <= 3


def test_the_series_is_what_was_asked_for() -> None:
    given = fashion_mnist.arguments([])
    runs = list(fashion_mnist.series(given))
    assert len(runs) == len(set(runs)) == 5 * 2 * 2
    assert {run.epochs for run in runs if run.method == "dplis"} == {10}
    assert {run.epochs for run in runs if run.method != "dplis"} == {40}
    assert not any(run.seeded_noise for run in runs)
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)


def test_only_the_same_experiment_counts_as_done() -> None:
    settings = fashion_mnist.Settings(**PAPERS, method="dp-sgd")
    found = [json.loads(json.dumps(fashion_mnist.identity(settings, 60_000)))]
    assert fashion_mnist.done(settings, 60_000, found)
    assert not fashion_mnist.done(settings, 50_000, found)
    for other in (
        {"seed": 1},
        {"epsilon": 1.0},
        {"epochs": 10},
        {"seeded_noise": True},
        {"method": "dp-sat"},
    ):
        changed = fashion_mnist.Settings(**{**PAPERS, "method": "dp-sgd", **other})
        assert not fashion_mnist.done(changed, 60_000, found), other


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("phase.0.method.SAT.radius", 0.05),
        ("phase.1.optimizer.SGD.lr", 0.2),
        ("phase.0.clip_norm", 0.2),
        ("phase.1.clip_norm", {"Automatic": {}}),
        ("ema.EMA.decay", 0.99),
        ("delta", 1e-6),
    ],
)
def test_a_changed_hyper_parameter_is_another_experiment(
    key: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = fashion_mnist.Settings(**PAPERS, method="sai")
    found = [fashion_mnist.identity(settings, 60_000)]
    assert fashion_mnist.done(settings, 60_000, found)
    monkeypatch.setattr(fashion_mnist, "shipped", lambda name: shipped(name).but({key: value}))
    assert not fashion_mnist.done(settings, 60_000, found)


def test_another_portion_is_another_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = fashion_mnist.Settings(**PAPERS, method="sai")
    found = [fashion_mnist.identity(settings, 60_000)]
    other = shipped("fashion-mnist-sai-eps3").but({"phase.0.portion": 0.8, "phase.1.portion": 0.2})
    monkeypatch.setattr(fashion_mnist, "shipped", lambda name: other)
    assert not fashion_mnist.done(settings, 60_000, found)


def test_accuracy_is_that_of_the_given_weights() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    params = {"1.weight": torch.zeros(3, 4), "1.bias": torch.tensor([0.0, 1.0, 0.0])}
    labels = torch.tensor([1, 1, 0, 2])
    test = Examples(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), labels, UNIT)
    assert fashion_mnist.accuracy(model, params, test) == 0.5


def test_sai_needs_epochs_for_its_second_phase() -> None:
    with pytest.raises(SettingError, match="15 epochs"):
        fashion_mnist.recipe_of(fashion_mnist.Settings(**{**PAPERS, "epochs": 15}, method="sai"), 60_000)


def test_a_torn_last_line_is_passed_over_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    results.append(path, {"run": 1})
    with path.open("a") as file:
        file.write('{"run": 2, "settin')
    assert results.read(path) == [{"run": 1}]
    results.append(path, {"run": 3})
    assert results.read(path) == [{"run": 1}, {"run": 3}]
    assert path.read_text().count("\n") == 2


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"run": 1}')  # as an editor may leave it
    results.append(path, {"run": 2})
    assert results.read(path) == [{"run": 1}, {"run": 2}]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"run": 1}\nrun 2\n{"run": 3}\n')
    with pytest.raises(DataError, match="line 2"):
        results.read(path)


def example(method: str, seed: int, last: float) -> results.Result:
    settings = fashion_mnist.Settings(**{**PAPERS, "seed": seed}, method=method)
    return {
        **fashion_mnist.identity(settings, 60_000),
        "noise_multipliers": [1.5, 14.0] if method == "sai" else [1.79],
        "epsilon": 2.9991,
        "stamp": "",
        "accuracy_last": last,
        "accuracy_ema": 0.5,
        "seconds": 90.0,
    }


def test_the_table_has_every_run_in_order() -> None:
    text = table.markdown([example("sai", 1, 0.2), example("dp-sgd", 1, 0.1), example("dp-sgd", 0, 0.12345)])
    lines = text.splitlines()
    assert len({line.count("|") for line in lines[:5]}) == 1
    assert lines[2] == "| fashion-mnist | 3 | dp-sgd | 40 | 0 | 1.790 | 2.999 | 12.35 | 50.00 | 1.5 |"
    assert "| dp-sgd | 40 | 1 |" in lines[3]
    assert "| 1.500, then 14.000 |" in lines[4]
    assert "Runs: 3." in text
    assert table.markdown([]) == "No runs yet."


def test_the_table_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.append(tmp_path / "r.jsonl", example("dp-sat", 0, 0.8))
    table.main([str(tmp_path / "r.jsonl")])
    assert "| 80.00 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="run the experiment first"):
        table.main([str(tmp_path / "none.jsonl")])
