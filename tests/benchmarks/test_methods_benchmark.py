"""The methods' benchmark: every method takes steps, and is held to its own target."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import cases
import engines
import method_engines
import methods
import race
import step

TINY = cases.Case(
    title="tiny",
    build=lambda: nn.Sequential(nn.Flatten(), nn.Linear(75, 6), nn.Tanh(), nn.Linear(6, 3)),
    units=5,
    shape=(3, 5, 5),
    answers=3,
)


@pytest.mark.parametrize("name", method_engines.METHODS)
def test_every_method_takes_steps(name: str) -> None:
    take = engines.engine(name)(TINY.model(), TINY.batch())
    for _ in range(3):
        take()


def test_a_step_takes_as_many_gradients_as_its_method_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def recorded(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        asked.append(len(targets))
        return nn.functional.cross_entropy(logits, targets, reduction="none")

    monkeypatch.setattr("saltflat_engine.losses", recorded)
    for name, rows in (("dp-sgd", 5), ("dp-sat", 5), ("dp-sam", 10), ("augmentation", 20), ("dplis", 20)):
        take = engines.engine(name)(TINY.model(), TINY.batch())
        asked.clear()
        take()
        assert sum(asked) == rows, name


def test_augmentation_of_words_is_refused_with_the_reason() -> None:
    words = cases.Case(title="words", build=nn.Identity, units=2, shape=(3,), answers=4, words=True)
    with pytest.raises(ValueError, match="needs images"):
        engines.engine("augmentation")(words.model(), words.batch())


def ran(**seconds: list[float]) -> race.Heats:
    times = {name.replace("_", "-"): each for name, each in seconds.items()}
    beside = {name: [9.0, 1.0, 1.0] for name in times}
    peaks = dict.fromkeys(times, 100.0)
    return race.Heats([race.Race(lambda name: None, seconds=times, beside=beside, peak_mb=peaks)])


@pytest.mark.parametrize(
    ("name", "seconds", "shown"),
    [
        ("dp-sat", 1.0199, "1.020x met"),
        ("dp-sat", 1.021, "1.021x not met"),
        ("sai-second", 1.01, "1.010x met"),
        ("dp-adambc", 1.06, "1.060x not met"),
        ("dplis", 4.2, "4.200x met"),
        ("augmentation", 4.3, "4.300x not met"),
        ("dp-sam", 2.5, "2.500x"),
    ],
)
def test_a_ratio_of_medians_is_held_to_the_methods_own_target(name: str, seconds: float, shown: str) -> None:
    done = ran(dp_sgd=[5.0], **{name.replace("-", "_"): [seconds, seconds, 99.0]})
    assert methods.cell(methods.cost("tiny", name, done)) == shown


@pytest.mark.parametrize(
    ("seconds", "peak", "shown"),
    [
        (1.05, 150.0, "1.050x met, memory 1.50x met"),
        (1.06, 100.0, "1.060x not met, memory 1.00x met"),
        (0.9, 151.0, "0.900x met, memory 1.51x not met"),
    ],
)
def test_weight_multiplicity_is_held_to_augmentation_and_to_the_memory_of_one_view(
    seconds: float, peak: float, shown: str
) -> None:
    done = ran(dp_sgd=[0.1], multiplicity_16=[seconds, seconds, 99.0])
    found = methods.cost("tiny", "multiplicity-16", done, {"multiplicity-1": 100.0, "multiplicity-16": peak})
    assert methods.cell(found) == shown
    assert (found.beside, found.peak_mb) == ("augmentation-16", peak)
    assert found.ratio_to_dp_sgd == pytest.approx(10 * seconds)
    assert methods.beside("multiplicity-16") == "augmentation-16"
    assert methods.target("multiplicity-16") == (
        "<= 1.05x of augmentation-16, memory <= 1.50x of multiplicity-1"
    )


@pytest.mark.slow
def test_memory_is_that_of_processes_of_their_own() -> None:
    costs = methods.measured_model(step.Effort(1, 0.0, 1, 1), "tutorial-cnn", ("dp-sgd",))
    assert costs[0].memory_ratio is None
    alone = methods.peaks_alone("tutorial-cnn", ["dp-sgd"], 1)
    assert 50 < alone["dp-sgd"] < 5000


def test_as_many_units_as_a_public_example_is_for() -> None:
    few = method_engines.enough((torch.zeros(32, 1, 2, 2), torch.zeros(32)))
    assert [len(each) for each in few] == [64, 64]
    assert len(method_engines.enough((torch.zeros(100, 1, 2, 2), torch.zeros(100)))[0]) == 100


def test_a_method_that_fails_has_no_figure_and_its_reason() -> None:
    done = ran(dp_sgd=[1.0])
    done.races[0].errors["dplis"] = "killed"
    found = methods.cost("tiny", "dplis", done)
    assert (found.ratio_to_dp_sgd, found.met, found.note) == (None, None, "killed")
    assert methods.cell(found) == methods.NO_FIGURE
    assert methods.table([methods.cost("tiny", "dp-sgd", done), found]).row_count == 2


def test_a_slow_method_stays_in_the_race_as_long_as_the_others() -> None:
    class Slow:
        def turn(self) -> race.Turn:
            return race.Turn([50.0], 1.0)

        def leave(self) -> None:
            pass

    class Quick(Slow):
        def turn(self) -> race.Turn:
            return race.Turn([1.0], 1.0)

    done = race.run(
        lambda name: Slow() if name == "dplis" else Quick(),
        ["dp-sgd", "dplis"],
        budget=0.0,
        least=7,
        heats=1,
        slow=math.inf,
    )
    assert done.timed("dplis") == 7


@pytest.mark.slow
def test_methods_run_in_processes_and_are_saved(tmp_path: Path) -> None:
    costs = methods.measured_model(step.Effort(1, 0.0, 1, 1), "tutorial-cnn", ("dp-sgd", "dp-sat"))
    assert [found.note for found in costs] == ["", ""]
    assert costs[0].ratio_to_dp_sgd == 1.0
    assert costs[1].ratio_to_dp_sgd > 0
    step.save(costs, tmp_path / "costs.json")
    assert [row["method"] for row in json.loads((tmp_path / "costs.json").read_text())] == [
        "dp-sgd",
        "dp-sat",
    ]


def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        methods.arguments(["--methods", "sgd"])
    assert "--methods" in capsys.readouterr().err
