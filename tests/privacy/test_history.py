"""What is known from a ledger: of all runs, of some, of those of one name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from saltflat.errors import SettingError
from saltflat.privacy.record.history import History, epsilon_of, read
from saltflat.privacy.record.ledger import Ledger

DELTA = 1e-5


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Four runs: "a" twice, "b", and a seeded one."""
    with Ledger.open(tmp_path / "a.ledger", dataset="digits") as ledger:
        ledger.run("a").charge(0.1, 2.0, steps=30)
        ledger.run("b").charge(0.1, 2.0, steps=5)
        again = ledger.run("a")
        again.charge(0.1, 2.0, steps=7)
        again.charge(1.0, 9.0, steps=2)
        ledger.run("debugging", private=False).charge(1.0, 9.0)
    return read(tmp_path / "a.ledger")


def test_steps_of_some_runs_are_added_up(history: History) -> None:
    assert history.steps(history.named("a")) == {(0.1, 2.0): 37, (1.0, 9.0): 2}
    assert history.steps(history.named("b")) == {(0.1, 2.0): 5}
    assert history.steps() == {(0.1, 2.0): 42, (1.0, 9.0): 3}
    assert history.steps([]) == history.steps(history.named("nobody")) == {}
    assert [run.body["name"] for run in history.began()] == ["a", "b", "a", "debugging"]


def test_epsilon_is_that_of_the_runs_that_are_asked_for(history: History) -> None:
    expected = epsilon_of({(0.1, 2.0): 37, (1.0, 9.0): 2}, DELTA, "add-or-remove")
    assert history.epsilon(DELTA, history.named("a")) == expected
    assert history.epsilon(DELTA, []) == 0


def test_epsilon_is_infinite_only_where_one_of_the_runs_was_seeded(history: History) -> None:
    assert history.epsilon(DELTA) == math.inf
    assert history.epsilon(DELTA, history.named("debugging") + history.named("b")) == math.inf
    assert history.epsilon(DELTA, history.named("b")) < 1


def test_a_line_that_begins_no_run_is_refused_rather_than_free(history: History) -> None:
    for ask in (history.began, history.steps, lambda runs: history.epsilon(DELTA, runs)):
        with pytest.raises(SettingError, match="line 2 of the ledger of 'digits' begins no run"):
            ask([1, 2])


def test_a_run_knows_what_is_on_record_under_its_name(tmp_path: Path) -> None:
    """What it reserved and has not begun does not count; what an earlier start spent does."""
    with Ledger.open(tmp_path / "a.ledger", dataset="digits") as ledger:
        ledger.run("one").charge(0.1, 2.0, steps=30)
        ledger.run("other").charge(0.1, 2.0, steps=30)
        run = ledger.run("one", block=64)
        run.step(0.1, 2.0)
        assert run.epsilon(DELTA) == epsilon_of({(0.1, 2.0): 31}, DELTA, "add-or-remove")
        assert run.charged() == {(0.1, 2.0): 31}


def test_a_run_with_an_identity_is_one_whatever_it_is_called(tmp_path: Path) -> None:
    """Neither another spelling of its name hides its steps, nor do those of a namesake count as its own."""
    with Ledger.open(tmp_path / "a.ledger", dataset="digits") as ledger:
        ledger.run("runs/one", identity="a1").charge(0.1, 2.0, steps=30)
        ledger.run("runs/one", identity="b2").charge(0.1, 2.0, steps=500)
        ledger.run("a1").charge(0.1, 2.0, steps=500)
        run = ledger.run("/home/runs/one", identity="a1")
        run.charge(0.1, 2.0, steps=7)
        assert run.charged() == {(0.1, 2.0): 37}
        assert run.epsilon(DELTA) == epsilon_of({(0.1, 2.0): 37}, DELTA, "add-or-remove")
        assert run.account == "a1"
    history = read(tmp_path / "a.ledger")
    assert history.steps(history.identified("a1")) == {(0.1, 2.0): 37}
    assert history.identified("c3") == []
    assert [history.steps(starts) for starts in history.starts().values()] == [
        {(0.1, 2.0): 37},
        {(0.1, 2.0): 500},
        {(0.1, 2.0): 500},
    ]


def test_a_run_without_an_identity_goes_on_under_its_name(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.ledger", dataset="digits") as ledger:
        ledger.run("one").charge(0.1, 2.0, steps=30)
        run = ledger.run("one")
        run.charge(0.1, 2.0)
        assert (run.account, run.charged()) == ("one", {(0.1, 2.0): 31})
    assert all("identity" not in entry.body for entry in read(tmp_path / "a.ledger").began())


@pytest.mark.parametrize("identity", ["", "a\nb", "x" * 201, 3])
def test_an_identity_is_short_and_on_one_line(tmp_path: Path, identity: Any) -> None:
    ledger = Ledger.open(tmp_path / "a.ledger", dataset="digits")
    with ledger, pytest.raises(SettingError, match="identity="):
        ledger.run("one", identity=identity)
