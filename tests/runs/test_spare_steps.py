"""A run that lost more steps than it has spare ones ends with a model and a statement, within its epsilon."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from saltflat.core.step import Position
from saltflat.core.train import Ended
from saltflat.data import digits
from saltflat.errors import BudgetError
from saltflat.privacy import Budget, Ledger, read
from saltflat.privacy.accounting import bounds
from saltflat.recipes import shipped
from saltflat.recipes.build import plan_of, with_spare
from saltflat.runs.execute import _event_on_record, execute
from saltflat.runs.layout import Folder

SIZE = 1437


class Crash(BaseException):
    """Stands for whatever ends a process."""


def crashed(step: int) -> Any:
    """What ends the run after so many steps, before that step is kept."""

    def watch(progress: Any) -> None:
        if progress.step == step:
            raise Crash

    return watch


METHODS = {
    "one phase": {"spare": 1, "phase.0.epochs": 2.0},
    "a schedule": {
        "spare": 1,
        "phase.0.epochs": 2.0,
        "phase.0.noise_schedule": {"Linear": {"start": 2.0, "end": 1.0, "steps": 7}},
    },
}


@pytest.mark.parametrize("name", METHODS)
def test_more_crashes_than_spare_steps(name: str, tmp_path: Path) -> None:
    recipe = shipped("digits").but({"batch_size": 400, **METHODS[name]})
    plan, split, folder = plan_of(recipe, SIZE), digits(), Folder(tmp_path / "one")
    assert plan.steps == 7
    for number, step in enumerate(
        [2, 4, 4, 5]
    ):  # each crash loses one step, or two, as not every one is kept
        with pytest.raises(Crash):
            execute(recipe, plan, split, folder, resume=number > 0, watch=crashed(step))
    outcome = execute(recipe, plan, split, folder, resume=True)
    paid = with_spare(plan, recipe.spare)
    history = read(folder.ledger)
    assert paid.covers(history.steps())
    assert not with_spare(plan, recipe.spare - 1).covers(history.steps())  # the spare steps were used
    assert history.epsilon(recipe.delta) <= outcome.statement.epsilon <= recipe.epsilon
    assert any("planned steps were left out" in each for each in outcome.statement.warnings)
    assert load_file(folder.model)
    assert json.loads(folder.statement.read_text())["epsilon"] == outcome.statement.epsilon
    last = json.loads((folder.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] == outcome.accuracy  # a reading was taken of the last weights
    again = execute(recipe, plan, split, folder, resume=True)  # it is over, and stays so
    assert read(folder.ledger).epsilon(recipe.delta) == history.epsilon(recipe.delta)
    assert again.statement.warnings == outcome.statement.warnings


def test_a_shared_budget_that_ends_in_the_middle_ends_the_run(tmp_path: Path) -> None:
    """Other runs spent what was left. A run that has taken a step ends with it; one that has not is refused."""
    recipe = shipped("digits").but({"batch_size": 400, "phase.0.epochs": 2.0})
    plan, split, shared = plan_of(recipe, SIZE), digits(), tmp_path / "shared"
    noise = plan.phases[0].noise_multiplier
    budget = Budget(epsilon=_cost(plan.rate, noise, 4) * 1.0001, delta=recipe.delta)
    Ledger.open(shared, dataset="digits", budget=budget).close()
    outcome = execute(recipe, plan, split, Folder(tmp_path / "one"), ledger=shared)
    assert any("would pass" in each for each in outcome.statement.warnings)
    assert outcome.statement.epsilon <= recipe.epsilon
    assert load_file(Folder(tmp_path / "one").model)
    with pytest.raises(BudgetError):
        execute(recipe, plan, split, Folder(tmp_path / "two"), ledger=shared)
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("why", ["", "3 steps were left out"])
def test_what_is_stated_covers_the_record(why: str) -> None:
    """The plan, what was paid for, or whatever else was charged to this run."""
    recipe = shipped("digits").but({"batch_size": 400, "spare": 2})
    plan = plan_of(recipe, SIZE)
    ((cost, steps),) = plan.by_cost().items()
    for more in (-3, 0, 1, 2, 3, 40):
        event = _event_on_record(recipe, plan, {cost: steps + more}, Ended(Position(0, {}), why))
        stated = bounds.epsilon(event, recipe.delta, adjacency=plan.relation)
        on_record = _cost(*cost, steps + more)
        assert stated >= max(on_record, plan.epsilon(recipe.delta)) * (1 - 1e-9)
        if more <= 2:
            assert stated <= recipe.epsilon


def _cost(rate: float, noise: float, steps: int) -> float:
    from saltflat.privacy.record.history import epsilon_of

    return epsilon_of({(rate, noise): steps}, 1e-5, "add-or-remove")


@pytest.mark.slow
def test_twelve_runs_with_three_kills_each(tmp_path: Path) -> None:
    for number in range(12):
        rng, out = random.Random(number), tmp_path / str(number)
        words = ["train", "--epochs", "12", "--batch-size", "400", "--method", "dp-sgd"]
        for kill in range(4):
            going_on = ["train", "--resume"] if out.exists() else words
            command = [sys.executable, "-m", "saltflat", *going_on, "--out", str(out), "--threads", "1"]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            if kill < 3:
                _kill(process, Folder(out), steps=rng.randrange(1, 12), pause=rng.uniform(0, 0.1))
            _, errors = process.communicate(timeout=600)
            if kill < 3:
                assert process.returncode in (-signal.SIGKILL, 0), errors
        assert process.returncode == 0, errors
        assert load_file(out / "model.safetensors")
        stated = json.loads((out / "statement.json").read_text())["epsilon"]
        assert read(out / "ledger.jsonl").epsilon(1e-5) * 0.9999 <= stated <= 3.0


def _kill(process: subprocess.Popen, folder: Folder, *, steps: int, pause: float) -> None:
    """Kill it once it has charged so many steps more, and some time later."""
    charged = lambda: sum(read(folder.ledger).steps().values()) if folder.ledger.exists() else 0
    before, deadline = charged(), time.monotonic() + 120
    while process.poll() is None and charged() < before + steps and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(pause)
    process.kill()
