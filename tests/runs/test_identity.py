"""A run is itself: however its folder is spelled, wherever it is moved, and as often as it is copied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from saltflat import Plan
from saltflat.data import Split, digits
from saltflat.errors import BudgetError, DataError, LedgerError
from saltflat.privacy.record.history import Budget, History, read
from saltflat.privacy.record.ledger import Ledger
from saltflat.recipes import shipped
from saltflat.recipes.build import plan_of
from saltflat.report.folder import read_run
from saltflat.runs.execute import Outcome, execute
from saltflat.runs.identity import begin_identity, identity_of
from saltflat.runs.layout import IDENTITY, Folder

SHORT = {"phase.0.epochs": 2.0, "batch_size": 400, "spare": 4}  # 7 steps; a checkpoint after every second one
RECIPE = shipped("digits").but(SHORT)


@pytest.fixture(scope="module")
def split() -> Split:
    return digits()


@pytest.fixture(scope="module")
def plan(split: Split) -> Plan:
    return plan_of(RECIPE, split.train.count)


class Broken(Exception):
    """Stands for whatever ends a process."""


Go = Callable[..., Outcome]


@pytest.fixture
def go(split: Split, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    """Begin a run or go on with it, from the folder ``tmp_path``; ``stop`` breaks it off after that step."""
    monkeypatch.chdir(tmp_path)

    def call(path: Path, *, stop: int = 0, ledger: Path | None = None, the_plan: Plan = plan) -> Outcome:
        folder = Folder(path)
        resume = folder.recipe.exists()

        def watch(progress: Any) -> None:
            if progress.step == stop:
                raise Broken

        return execute(RECIPE, the_plan, split, folder, resume=resume, ledger=ledger, watch=watch)

    return call


def on_record(history: History, path: Path) -> float:
    identity = identity_of(path)
    assert identity is not None
    return history.epsilon(RECIPE.delta, history.identified(identity))


def by_link(path: Path) -> Path:
    path.with_name("link").symlink_to(path, target_is_directory=True)
    return path.with_name("link")


def moved(path: Path) -> Path:
    return path.rename(path.with_name("moved"))


SPELLINGS: dict[str, Callable[[Path], Path]] = {
    "relative": lambda path: Path(path.name),
    "dotted": lambda path: path / ".." / path.name,
    "a link": by_link,
    "moved": moved,
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("spelled", SPELLINGS)
def test_a_run_that_goes_on_by_another_path_states_all_that_is_on_record(
    go: Go, tmp_path: Path, spelled: str, shared: bool
) -> None:
    """Under its path it stated the later steps alone: 2.704 where the ledger had 2.926."""
    path, ledger = tmp_path / "one", tmp_path / "all.ledger" if shared else None
    with pytest.raises(Broken):
        go(path, stop=3, ledger=ledger)
    path = SPELLINGS[spelled](path)
    outcome = go(path, ledger=ledger)
    history = read(ledger or path / "ledger.jsonl")
    assert sum(history.steps().values()) == 8  # the third step twice
    assert len(history.starts()) == 1
    assert outcome.statement.epsilon == pytest.approx(history.epsilon(RECIPE.delta))
    kept = read_run(path, "one", shared=ledger)
    assert kept.ledger.trouble == ""
    assert kept.ledger.value.epsilon == pytest.approx(outcome.statement.epsilon)


def test_mutant_a_run_known_by_its_path_is_caught(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saltflat.runs.execute.identity_of", lambda folder: None)
    with pytest.raises(LedgerError, match="was charged to the run"):  # its checkpoint tells
        test_a_run_that_goes_on_by_another_path_states_all_that_is_on_record(go, tmp_path, "relative", False)


def test_copies_that_share_a_ledger_count_both(go: Go, tmp_path: Path) -> None:
    """One run that went two ways: who has both models has seen all of it, and it stays within the epsilon of one."""
    one, two, ledger = tmp_path / "one", tmp_path / "two", tmp_path / "all.ledger"
    with pytest.raises(Broken):
        go(one, stop=3, ledger=ledger)
    shutil.copytree(one, two)
    first, second = go(one, ledger=ledger), go(two, ledger=ledger)
    history = read(ledger)
    assert sum(history.steps().values()) == 7 + RECIPE.spare  # what was paid for, and not 3 + 5 + 5
    assert any("planned steps were left out" in each for each in second.statement.warnings)
    assert second.statement.epsilon <= RECIPE.epsilon
    assert second.statement.epsilon == pytest.approx(history.epsilon(RECIPE.delta))
    assert first.statement.epsilon < second.statement.epsilon
    assert on_record(history, one) == on_record(history, two) == history.epsilon(RECIPE.delta)
    assert read_run(one, "one", shared=ledger).spent.epsilon == pytest.approx(second.statement.epsilon)


def test_copies_with_ledgers_of_their_own_each_count_what_led_to_their_model(go: Go, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with pytest.raises(Broken):
        go(one, stop=3)
    shutil.copytree(one, two)
    for path in (one, two):
        outcome = go(path)
        history = read(path / "ledger.jsonl")
        assert sum(history.steps().values()) == 3 + 5
        assert outcome.statement.epsilon == pytest.approx(history.epsilon(RECIPE.delta))
    begun = {read(path / "ledger.jsonl").entries[0].body["id"] for path in (one, two)}
    assert len(begun) == 1  # by which whoever adds them up knows that their first lines are the same


def test_two_runs_of_one_path_are_two(go: Go, tmp_path: Path) -> None:
    """As when a demo is made again in its folder: the former one is not this one's spending."""
    path, ledger = tmp_path / "one", tmp_path / "all.ledger"
    first = go(path, ledger=ledger)
    shutil.rmtree(path)
    second = go(path, ledger=ledger)
    assert second.statement.epsilon == first.statement.epsilon
    assert second.on_record > 1.2 * first.on_record
    assert len(read(ledger).starts()) == 2


def test_an_old_folder_goes_on_by_its_name(go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("saltflat.runs.begin.begin_identity", lambda folder: None)
        with pytest.raises(Broken):
            go(tmp_path / "old", stop=3)
    assert identity_of(tmp_path / "old") is None
    outcome = go(tmp_path / "old")
    history = read(tmp_path / "old" / "ledger.jsonl")
    assert sum(history.steps(history.named(str(tmp_path / "old"))).values()) == 8
    assert outcome.statement.epsilon == pytest.approx(history.epsilon(RECIPE.delta))


def test_an_identity_that_is_lost_or_damaged_is_not_replaced(go: Go, tmp_path: Path) -> None:
    path, ledger = tmp_path / "one", tmp_path / "all.ledger"
    with pytest.raises(Broken):
        go(path, stop=3, ledger=ledger)
    (path / IDENTITY).write_text("someone else\n")
    with pytest.raises(DataError, match="bring it back") as caught:
        go(path, ledger=ledger)
    assert "\n" not in str(caught.value)
    assert "bring it back" in read_run(path, "one", shared=ledger).ledger.trouble
    (path / IDENTITY).unlink()
    with pytest.raises(LedgerError, match="was charged to the run"):  # the checkpoint has it too
        go(path, ledger=ledger)
    assert sum(read(ledger).steps().values()) == 3


def test_an_identity_is_random_durable_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from saltflat.privacy.record import durable

    synced: list[int] = []
    monkeypatch.setattr(durable, "sync", lambda descriptor: synced.append(descriptor) or os.fsync(descriptor))
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        begin_identity(tmp_path / name)
        found.append(identity_of(tmp_path / name))
    assert len(synced) == 4  # each file, and each folder
    assert len({*found}) == 2
    assert all(identity is not None and len(identity) == 32 for identity in found)
    begin_identity(tmp_path / "a")
    assert identity_of(tmp_path / "a") == found[0]


def chosen(plan: Plan) -> Plan:
    """The same steps, of which results may leave some to a second phase with more noise."""
    (one,) = plan.phases
    early = replace(one, until=lambda state: True)
    return replace(plan, phases=(early, replace(one, steps=1, noise_multiplier=4 * one.noise_multiplier)))


def test_a_plan_that_results_may_change_has_a_filter_as_its_own_ledgers_budget(
    go: Go, plan: Plan, tmp_path: Path
) -> None:
    generous = chosen(plan).scaled(1.2)  # Renyi accounting asks for more noise than the recipe's calibration
    outcome = go(tmp_path / "one", the_plan=generous)
    history = read(tmp_path / "one" / "ledger.jsonl")
    assert history.budget == Budget(RECIPE.epsilon, RECIPE.delta, order=generous.filter(RECIPE.delta).order)
    assert outcome.statement.accountant == "RDP"
    assert outcome.statement.epsilon == pytest.approx(generous.epsilon(RECIPE.delta))
    assert outcome.on_record == pytest.approx(outcome.statement.epsilon)


def test_a_shared_ledger_without_order_refuses_such_a_plan(go: Go, plan: Plan, tmp_path: Path) -> None:
    ledger = tmp_path / "all.ledger"
    Ledger.open(ledger, dataset=RECIPE.data, budget=Budget(99, RECIPE.delta)).close()
    with pytest.raises(BudgetError, match=r"order=plan.filter\(1e-05\).order"):
        go(tmp_path / "one", ledger=ledger, the_plan=chosen(plan))
    assert read(ledger).steps() == {}
