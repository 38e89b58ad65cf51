"""The ledger never holds less than what began: D1 (kill -9), D3 (power loss), D5 (damage), and its rules."""

from __future__ import annotations

import copy
import errno
import json
import math
import mmap
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from power_cut import Disk, Recorder

from saltflat.errors import AccountingError, BudgetError, CopyError, LedgerError, SettingError
from saltflat.privacy.record import durable, format, single
from saltflat.privacy.record import ledger as module
from saltflat.privacy.record.history import Budget, epsilon_of, read
from saltflat.privacy.record.ledger import Ledger, Run

COST = (1.0, 20.0)
TARGET = Budget(epsilon=3.0, delta=1e-5)


def open_ledger(path: Path, budget: Budget | None = None) -> Ledger:
    return Ledger.open(path, dataset="digits", budget=budget)


def charged(path: Path) -> int:
    """All steps on record; 0 if there is no ledger."""
    return sum(read(path).steps().values()) if path.exists() else 0


def write_some(path: Path, *, blocks: int = 5, block: int = 64) -> None:
    """A ledger of one run that crashed: nothing is settled."""
    ledger = open_ledger(path)
    run = ledger.run("one", block=block)
    for _ in range(blocks * block):
        run.step(*COST)
    ledger._drop()


def steps_until_refused(charge: Callable[[], None]) -> int:
    for begun in range(100_000):
        try:
            charge()
        except BudgetError as error:
            assert "nothing was charged" in str(error)  # noqa: PT017
            return begun
    raise AssertionError("the budget never ended")


# rules


def test_a_step_is_on_disk_before_it_may_begin(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with open_ledger(path) as ledger, ledger.run("one", block=4) as run:
        for begun in range(1, 11):
            run.step(*COST)
            assert begun <= charged(path) < begun + 4
    assert charged(path) == 10


def test_a_clean_end_settles_and_a_crash_keeps_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    ledger = open_ledger(path)
    ledger.run("crashed", block=64).step(*COST)
    ledger._drop()
    assert charged(path) == 64
    with suppress(KeyError), open_ledger(path) as again, again.run("failed", block=64) as run:
        run.step(*COST)
        raise KeyError("an error of the user's code: the process still knows what began")
    assert charged(path) == 65


def test_a_changed_cost_settles_the_block_and_opens_another(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with open_ledger(path) as ledger, ledger.run("phases", block=8) as run:
        for noise in (20.0, 20.0, 30.0, 20.0):
            run.step(1.0, noise)
    assert read(path).steps() == {(1.0, 20.0): 3, (1.0, 30.0): 1}


def test_all_runs_on_the_data_are_composed(tmp_path: Path) -> None:
    from saltflat.privacy.accounting import bounds, events

    path = tmp_path / "a.ledger"
    with open_ledger(path) as ledger:
        for name, cost, steps in [("a", (0.1, 2.0), 30), ("b", (0.1, 2.0), 20), ("c", (1.0, 9.0), 5)]:
            ledger.run(name).charge(*cost, steps=steps)
        event = events.compose(events.phase_event(0.1, 2.0, 50), events.phase_event(1.0, 9.0, 5))
        assert ledger.epsilon(1e-5) == bounds.epsilon(event, 1e-5)
        assert [spending.steps for spending in ledger.history.runs()] == [
            {(0.1, 2.0): 30},
            {(0.1, 2.0): 20},
            {(1.0, 9.0): 5},
        ]
    assert read(path).epsilon(1e-5) == ledger.epsilon(1e-5)


def test_replacing_a_unit_costs_more_than_removing_it(tmp_path: Path) -> None:
    found = []
    for adjacency in ("add-or-remove", "replace"):
        with open_ledger(tmp_path / adjacency) as ledger:
            ledger.run("r", adjacency=adjacency).charge(*COST, steps=10)
            found.append(ledger.epsilon(1e-5))
    assert found[1] > 1.9 * found[0]


def test_the_gate_stops_at_the_last_step_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with open_ledger(path, TARGET) as ledger, ledger.run("long", block=64) as run:
        begun = steps_until_refused(lambda: run.step(*COST))
        assert ledger.room(*COST, steps=1) == 0
    history = read(path)
    assert history.steps() == {COST: begun}
    assert history.epsilon(TARGET.delta) <= TARGET.epsilon
    assert epsilon_of({COST: begun + 1}, TARGET.delta, "add-or-remove") > TARGET.epsilon
    assert history.gone() == pytest.approx(1, abs=0.01)


def test_the_gate_counts_what_other_runs_spent(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "a.ledger", TARGET) as ledger:
        alone = ledger.room(*COST, steps=10_000)
        ledger.run("other").charge(1.0, 10.0, steps=20)
        left = ledger.room(*COST, steps=10_000)
    assert left == alone - 80  # Gaussians add by 1 / sigma^2: 20 steps at 10 are 80 at 20


def test_charging_several_steps_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with open_ledger(path, TARGET) as ledger:
        run = ledger.run("one")
        fits = ledger.room(*COST, steps=10**6)
        with pytest.raises(BudgetError):
            run.charge(*COST, steps=fits + 1)
        assert charged(path) == 0
        run.charge(*COST, steps=fits)
    assert charged(path) == fits


def test_the_gate_asks_the_accountant_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    gone_of = module.gone_of
    monkeypatch.setattr(module, "gone_of", lambda *args: calls.append(args) or gone_of(*args))
    with open_ledger(tmp_path / "a.ledger", TARGET) as ledger, ledger.run("long", block=16) as run:
        assert steps_until_refused(lambda: run.step(1.0, 30.0)) > 300
    assert len(calls) < 30


@given(
    limit=st.integers(0, 3000),
    blocks=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 200)), max_size=30),
)
def test_the_gate_finds_the_limit_exactly(limit: int, blocks: list[tuple[int, int]]) -> None:
    gate, used = module._Gate(lambda total: total <= limit), 0
    for wanted, settled in blocks:
        granted = gate.room(used, wanted)
        assert granted == min(wanted, max(limit - used, 0))
        used += max(granted - settled, 0)


def test_what_has_no_bound_does_not_fit() -> None:
    def refuse(total: int) -> bool:
        raise AccountingError("no bound")

    assert module._Gate(refuse).room(0, 5) == 0


def test_a_filter_budget_is_sound_for_costs_chosen_as_you_go(tmp_path: Path) -> None:
    """At one Renyi order fixed in advance costs add up, whatever picks them; composition is tighter."""
    budget = Budget(epsilon=3.0, delta=1e-5, order=8.0)
    rng = random.Random(0)
    with open_ledger(tmp_path / "a.ledger", budget) as ledger:
        run = ledger.run("search")
        steps_until_refused(
            lambda: run.charge(rng.choice([0.01, 0.1]), rng.choice([1.0, 2.0, 4.0]), steps=rng.randint(1, 50))
        )
        assert 0.5 < (ledger.history.gone() or 0) <= 1
        assert ledger.epsilon(1e-5) < 3.0
    assert read(ledger.path).budget == budget


def test_restoring_a_checkpoint_never_lowers_the_spend(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with open_ledger(path) as ledger, ledger.run("first", block=8) as run:
        for _ in range(10):
            run.step(*COST)
        head = ledger.head
    with open_ledger(path) as ledger, ledger.run("resumed from step 4", block=8) as run:
        ledger.expect(head)
        for _ in range(6):
            run.step(*COST)
    assert charged(path) == 16


def test_an_older_copy_of_the_ledger_is_noticed_through_the_head_in_a_checkpoint(tmp_path: Path) -> None:
    path, both = tmp_path / "a.ledger", [tmp_path / "a.ledger", tmp_path / "a.ledger.head"]
    write_some(path, blocks=2)
    copies = [file.read_bytes() for file in both]
    with open_ledger(path) as ledger:
        ledger.run("later").charge(*COST)
        head = ledger.head
    for file, older in zip(both, copies, strict=True):
        file.write_bytes(older)
    with open_ledger(path) as ledger, pytest.raises(LedgerError, match="older copy"):
        ledger.expect(head)


def test_seeded_runs_are_stamped_and_make_epsilon_infinite(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "a.ledger") as ledger:
        ledger.run("debugging", private=False).charge(*COST)
        assert ledger.history.stamp == "NOT PRIVATE: seeded"
        assert ledger.epsilon(1e-5) == math.inf
        with pytest.raises(BudgetError, match="NOT PRIVATE: seeded"):
            ledger.set_budget(TARGET)
    with open_ledger(tmp_path / "b.ledger", TARGET) as ledger:
        with pytest.raises(BudgetError, match="NOT PRIVATE: seeded"):
            ledger.run("debugging", private=False)
        ledger.run("real").charge(*COST)
        assert (ledger.history.stamp, ledger.epsilon(1e-5) < 1) == ("", True)


def test_units_do_not_mix(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "a.ledger") as ledger:
        ledger.run("one", unit="example")
        for other in ({"unit": "user"}, {"adjacency": "replace"}):
            with pytest.raises(LedgerError, match="do not add up"):
                ledger.run("two", **other)


def test_the_budget_and_the_name_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    open_ledger(path, TARGET).close()
    open_ledger(path, TARGET).close()
    open_ledger(path).close()
    with pytest.raises(LedgerError, match="set_budget"):
        open_ledger(path, Budget(epsilon=30.0, delta=1e-5))
    with pytest.raises(LedgerError, match="'digits', not of 'faces'"):
        Ledger.open(path, dataset="faces")
    with open_ledger(path) as ledger:
        ledger.set_budget(Budget(epsilon=4.0, delta=1e-5))
    assert [e.body["epsilon"] for e in read(path).entries if e.kind == "budget"] == [3.0, 4.0]


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, "3", None, True])
def test_a_budget_has_a_positive_epsilon(epsilon: Any) -> None:
    with pytest.raises(SettingError, match="epsilon="):
        Budget(epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1, math.nan, "x", 1e-40])
def test_a_budget_has_a_delta_between_0_and_1(delta: Any) -> None:
    with pytest.raises(SettingError, match="delta"):
        Budget(epsilon=1.0, delta=delta)


@pytest.mark.parametrize("order", [1.0, math.nan, 1e9, "8"])
def test_a_budget_has_an_order_that_the_accountant_knows(order: Any) -> None:
    with pytest.raises(SettingError, match="order="):
        Budget(epsilon=1.0, delta=1e-5, order=order)


def test_an_order_that_leaves_nothing_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(AccountingError, match="leaves nothing"):
        open_ledger(tmp_path / "a.ledger", Budget(epsilon=0.1, delta=1e-5, order=2.0))


@pytest.mark.parametrize(
    ("rate", "noise"), [(0, 1), (1.1, 1), (math.nan, 1), (0.1, 0), (0.1, math.nan), (0.1, math.inf), ("a", 1)]
)
def test_a_step_without_a_sound_cost_is_refused_and_nothing_is_charged(
    tmp_path: Path, rate: Any, noise: Any
) -> None:
    with open_ledger(tmp_path / "a.ledger") as ledger, ledger.run("one") as run:
        for charge in (run.step, run.charge):
            with pytest.raises(AccountingError):
                charge(rate, noise)
    assert charged(ledger.path) == 0


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, None, 3])
def test_names_are_short_and_on_one_line(tmp_path: Path, name: Any) -> None:
    with pytest.raises(SettingError, match="dataset="):
        Ledger.open(tmp_path / "a.ledger", dataset=name)
    with open_ledger(tmp_path / "b.ledger") as ledger, pytest.raises(SettingError, match="name="):
        ledger.run(name)


# a run whose plan is known


def test_no_more_is_reserved_than_is_planned(tmp_path: Path) -> None:
    """Whatever the block, and however often the run is killed: what a crash wastes is part of the plan."""
    planned = {(0.5, 4.0): 7, (0.5, 6.0): 150}
    for start in range(3):
        ledger = open_ledger(tmp_path / "a.ledger")
        run = ledger.run("one", block=64)
        run.limit(planned)
        for _ in range(2 if start < 2 else 3):
            run.step(0.5, 4.0)
        run.step(0.5, 6.0)
        run.step(0.5, 6.0)
        if start < 2:
            ledger._drop()  # as a kill does
    assert run.charged() == {(0.5, 4.0): 7, (0.5, 6.0): 3 + 3 + 2}  # three at a time
    for _ in range(149):
        run.step(0.5, 6.0)
    run.step(0.5, 4.0)  # beyond the plan: it is charged, by itself
    assert run.charged() == {(0.5, 4.0): 8, (0.5, 6.0): 8 + 149}
    ledger.close()


# one writer


def test_a_file_system_without_locks_is_not_taken_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    open_ledger(tmp_path / "a.ledger").close()
    monkeypatch.setattr(durable.fcntl, "flock", locked)
    with pytest.raises(
        LedgerError, match=r"a\.ledger cannot be locked \(No locks available\).* local disk"
    ) as caught:
        open_ledger(tmp_path / "a.ledger")
    assert "another" not in str(caught.value)


def test_a_second_writer_is_refused_at_once_and_readers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with open_ledger(path) as ledger:
        ledger.run("one").charge(*COST)
        with pytest.raises(LedgerError, match="another writer") as caught:
            open_ledger(path)
        assert "\n" not in str(caught.value)
        script = (
            f"from saltflat.privacy.record.ledger import Ledger; Ledger.open({str(path)!r}, dataset='digits')"
        )
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "another writer" in other.stderr
        assert charged(path) == 1
        ledger.verify()
    open_ledger(path).close()


def in_a_child(work: Callable[[], None]) -> int:
    """Exit status of a forked child that does ``work``."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except LedgerError:
            os._exit(3)
        except BaseException:
            os._exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_cannot_spend_and_does_not_hold_the_lock(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "a.ledger")
    run = ledger.run("one", block=8)
    run.step(*COST)
    assert in_a_child(lambda: run.step(*COST)) == 3
    assert in_a_child(run.close) == 0  # it settles nothing either
    release, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        os.read(release, 1)
        os._exit(0)
    ledger.close()
    open_ledger(tmp_path / "a.ledger").close()  # though the child lives
    os.close(hold)
    os.waitpid(child, 0)
    assert charged(ledger.path) == 1


def test_a_ledger_that_is_closed_is_unlocked_whoever_still_has_it_open(tmp_path: Path) -> None:
    """As a child does that was forked a moment ago, and did not get to close its copy."""
    ledger = open_ledger(tmp_path / "a.ledger")
    copied = os.dup(ledger._descriptor)
    ledger.close()
    open_ledger(tmp_path / "a.ledger").close()
    os.close(copied)


def test_a_child_that_leaves_does_not_unlock_the_ledger(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "a.ledger") as ledger:
        assert in_a_child(ledger.close) == 0
        with pytest.raises(LedgerError, match="another writer"):
            open_ledger(tmp_path / "a.ledger")


def test_a_closed_ledger_allows_no_step(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "a.ledger") as ledger:
        run = ledger.run("one")
        run.step(*COST)
    with pytest.raises(LedgerError, match="not open"):
        run.step(*COST)


# copies and threads


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_counts_steps_is_neither_copied_nor_pickled(
    tmp_path: Path, copied: Callable[[Any], Any]
) -> None:
    """Two copies of a run would share a block that was paid for once: 127 steps were taken on 64."""
    with open_ledger(tmp_path / "a.ledger") as ledger, ledger.run("one", block=64) as run:
        run.step(*COST)
        for single in (run, ledger):
            with pytest.raises(CopyError, match="exists once") as caught:
                copied(single)
            assert isinstance(caught.value, TypeError)
            assert "\n" not in str(caught.value)


def test_mutant_a_run_that_can_be_copied_takes_steps_that_are_not_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single.Single, "__reduce_ex__", object.__reduce_ex__)
    with open_ledger(tmp_path / "a.ledger") as ledger:
        run = ledger.run("one", block=64)
        run.step(*COST)
        for each in (run, copy.copy(run)):
            for _ in range(63):
                each.step(*COST)
        assert charged(ledger.path) == 64 < 1 + 2 * 63


def in_threads(work: Callable[[], None], count: int = 8) -> list[BaseException]:
    """Do ``work`` in several threads that start together; what they raised."""
    start, raised = threading.Barrier(count), []

    def begin() -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=begin) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_every_step_that_any_thread_takes_is_on_record(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with open_ledger(path) as ledger, ledger.run("one", block=7) as run:
        assert in_threads(lambda: [run.step(*COST) for _ in range(100)]) == []
        assert charged(path) >= 800
    assert charged(path) == 800


def test_threads_that_begin_runs_at_once_agree_on_the_unit(tmp_path: Path) -> None:
    units = iter(["example", "user"] * 4)
    with open_ledger(tmp_path / "a.ledger") as ledger:
        raised = in_threads(lambda: ledger.run("one", unit=next(units)) and None)
        assert [type(error) for error in raised] == [LedgerError] * 4
        assert len({entry.body["unit"] for entry in ledger.history.began()}) == 1


# files that change under the writer


def older_copy(path: Path) -> None:
    """As `mv` would do: another file in its place, without its last line."""
    beside = path.with_name("older")
    beside.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    beside.replace(path)


def overwritten(path: Path) -> None:
    """As `cp` would do: the same file, with the content of an older copy."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def both_older(path: Path) -> None:
    head = path.with_name(path.name + ".head")
    entries = read(path).entries
    overwritten(path)
    head.write_bytes(format.head_line(entries[-2]))


def appended(path: Path) -> None:
    entry = format.entry_after(
        read(path).entries[-1], "budget", {"epsilon": 99.0, "delta": 0.1, "order": None}
    )
    script = f"import sys; open(sys.argv[1], 'ab').write({format.line(entry)!r})"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)


def equal_copy(path: Path) -> None:
    """Byte by byte the same, and yet not the file that the writer holds: what it writes now is lost."""
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "ledger removed": Path.unlink,
    "replaced by an older copy": older_copy,
    "replaced by an equal copy": equal_copy,
    "overwritten by an older copy": overwritten,
    "both overwritten by older copies": both_older,
    "head removed": lambda path: path.with_name(path.name + ".head").unlink(),
    "head of another ledger": lambda path: path.with_name(path.name + ".head").write_bytes(
        format.head_line(format.first_entry({"dataset": "other"}))
    ),
    "head damaged": lambda path: path.with_name(path.name + ".head").write_bytes(b"{}"),
    "folder renamed": lambda path: path.parent.rename(path.parent.with_name("renamed")),
    "folder replaced by a file": lambda path: (shutil.rmtree(path.parent), path.parent.write_bytes(b"")),
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: os.truncate(path, 0),
    "appended to by another process": appended,
}


@pytest.mark.parametrize("end", ["step", "close", "charged", "run", "charge"])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_files_that_change_under_the_writer_are_noticed_at_the_next_block(
    tmp_path: Path, hostile: str, end: str
) -> None:
    """One line, no further step, whichever way the writer goes on; a whole block is used up, so none is settled."""
    path = tmp_path / "in" / "a.ledger"
    path.parent.mkdir()
    ledger = open_ledger(path)
    run = ledger.run("one", block=4)
    for _ in range(4):
        run.step(*COST)
    HOSTILE[hostile](path)
    ways: dict[str, Callable[[], Any]] = {
        "step": lambda: run.step(*COST),
        "close": ledger.close,
        "charged": run.charged,
        "run": lambda: ledger.run("two"),
        "charge": lambda: run.charge(*COST),
    }
    with pytest.raises(LedgerError) as caught:
        ways[end]()
    assert "\n" not in str(caught.value)
    with pytest.raises(LedgerError, match="not open"):
        run.step(*COST)
    ledger.close()  # nothing more to say


@pytest.mark.parametrize("hostile", ["ledger removed", "replaced by an older copy", "head removed"])
def test_mutant_a_writer_that_trusts_what_it_holds_open_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: str
) -> None:
    monkeypatch.setattr(Ledger, "_check_files", lambda ledger, descriptor: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_files_that_change_under_the_writer_are_noticed_at_the_next_block(tmp_path, hostile, "step")


def test_steps_inside_a_block_touch_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*args: Any, **how: Any) -> None:
        raise AssertionError("a step inside a block went to the disk")

    with open_ledger(tmp_path / "a.ledger") as ledger:
        run = ledger.run("one", block=8)
        run.step(*COST)
        with monkeypatch.context() as patch:
            calls = ("open", "read", "write", "stat", "fstat", "fsync", "replace")
            without = SimpleNamespace(**{**vars(os), **dict.fromkeys(calls, touched)})
            patch.setattr(module, "os", without)
            patch.setattr(durable, "os", without)
            patch.setattr(module, "read_head", touched)
            for _ in range(7):
                run.step(*COST)
            with pytest.raises(AssertionError, match="went to the disk"):
                run.step(*COST)


def test_a_process_that_goes_to_another_folder_keeps_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path)
    with Ledger.open("a.ledger", dataset="digits") as ledger, ledger.run("one", block=2) as run:
        run.step(*COST)
        monkeypatch.chdir(tmp_path / "else")
        for _ in range(4):
            run.step(*COST)
    assert charged(tmp_path / "a.ledger") == 5
    assert not os.listdir(tmp_path / "else")


# a disk that fails


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_failing_disk_gives_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "a.ledger"
    ledger = open_ledger(path)
    run = ledger.run("one", block=4)
    for _ in range(4):
        run.step(*COST)

    def fail(*args: Any) -> int:
        if failing == "write":
            os.write(args[0], bytes(args[1])[:20])  # half a line arrives
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "os", SimpleNamespace(**{**vars(os), failing: fail}))
        with pytest.raises(LedgerError, match="No space left on device") as caught:
            run.step(*COST)
        assert "\n" not in str(caught.value)
    with pytest.raises(LedgerError, match="not open"):
        run.step(*COST)
    assert 4 <= charged(path) <= 8
    with open_ledger(path) as again, again.run("two", block=4) as run:
        before = charged(path)
        run.step(*COST)
        again.verify()
    assert charged(path) == before + 1


def test_a_folder_that_cannot_be_written_gives_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LedgerError, match="cannot be written"):
        open_ledger(tmp_path / "missing" / "a.ledger")
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot be"):
        open_ledger(tmp_path / "file" / "a.ledger")
    with pytest.raises(LedgerError, match="cannot be"):
        open_ledger(tmp_path)

    def refuse(*args: Any) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(durable, "os", SimpleNamespace(**{**vars(os), "open": refuse}))
    with pytest.raises(LedgerError, match="Read-only file system"):
        open_ledger(tmp_path / "a.ledger")


def test_an_interrupt_while_writing_closes_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(tmp_path / "a.ledger")
    run = ledger.run("one", block=4)

    def interrupt(*args: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(durable, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.step(*COST)
    with pytest.raises(LedgerError, match="not open"):
        run.step(*COST)
    with open_ledger(ledger.path) as again:
        again.run("two").charge(*COST)
    read(ledger.path)


@settings(max_examples=40, deadline=None)
@given(actions=st.lists(st.sampled_from(["step", "other", "run", "crash", "close"]), max_size=60))
def test_truth_and_ledger_over_any_history(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    """truth <= ledger <= truth + block x crashes, after whatever mix of runs, ends and crashes."""
    path = tmp_path_factory.mktemp("history") / "a.ledger"
    ledger = open_ledger(path)
    run = ledger.run("r", block=5)
    truth = crashes = 0
    for action in actions:
        if action in ("step", "other"):
            run.step(1.0, 20.0 if action == "step" else 30.0)
            truth += 1
        elif action == "run":
            run.close()
            run = ledger.run("r", block=5)
        else:
            ledger.close() if action == "close" else ledger._drop()
            crashes += action == "crash"
            ledger = open_ledger(path)
            run = ledger.run("r", block=5)
        assert truth <= charged(path) <= truth + 5 * crashes + 4
    ledger.close()
    assert truth <= charged(path) <= truth + 4 * crashes


# D1: kill -9


class Truth:
    """An independent count of the steps that began, in memory that outlives the process that counts."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    def count(self) -> int:
        return int.from_bytes(self._memory[:8], "little")

    def begin(self) -> None:
        self._memory[:8] = (self.count() + 1).to_bytes(8, "little")


def honest_step(run: Run, truth: Truth) -> None:
    run.step(*COST)
    truth.begin()
    time.sleep(1e-3)


def late_step(run: Run, truth: Truth) -> None:
    """The mutant: charge after the step."""
    truth.begin()
    time.sleep(1e-3)
    run.step(*COST)


TIGHT = Budget(epsilon=1.9, delta=1e-5)  # room for 67 steps at COST


def train(
    path: Path,
    truth: Truth,
    step: Callable[[Run, Truth], None],
    *,
    steps: int = 60,
    block: int = 8,
    budget: Budget | None = TIGHT,
) -> None:
    """Some steps, or as many as the budget allows."""
    with open_ledger(path, budget) as ledger, ledger.run("toy", block=block) as run:
        for _ in range(steps):
            try:
                step(run, truth)
            except BudgetError:
                return


def killed(work: Callable[[], None], truth: Truth, rng: random.Random) -> bool:
    """Start ``work`` in a child and kill it about a random step; True if that was before its end."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    last, limit = rng.randrange(60), time.monotonic() + 5
    while truth.count() < last and time.monotonic() < limit:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(1e-4)
    time.sleep(rng.uniform(0, 2e-3))
    os.kill(child, signal.SIGKILL)  # a child that ended meanwhile waits as a zombie: its number is not reused
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def load_accountants() -> None:
    """Once, before forking."""
    epsilon_of({COST: 1}, TIGHT.delta, "add-or-remove")


def kill_and_resume(folder: Path, kills: int, **how: Any) -> tuple[int, int, int]:
    """(trials in which the ledger was ever short, trials over target, trials that were really killed)."""
    rng = random.Random(1)
    load_accountants()
    short = over = hit = 0
    for trial in range(kills):
        path, truth = folder / f"{trial}.ledger", Truth()
        work = partial(train, path, truth, **how)
        hit += killed(work, truth, rng)
        low = charged(path) < truth.count()
        assert in_a_child(work) == 0
        short += low or charged(path) < truth.count()
        over += read(path).epsilon(TIGHT.delta) > TIGHT.epsilon
    return short, over, hit


def test_d1_kill(tmp_path: Path) -> None:
    short, over, hit = kill_and_resume(tmp_path, 12, step=honest_step)
    assert (short, over) == (0, 0)
    assert hit >= 6


def test_d1_catches_a_charge_after_the_step(tmp_path: Path) -> None:
    short, _, _ = kill_and_resume(tmp_path, 20, step=late_step, block=1)
    assert short > 0


@pytest.mark.slow
def test_d1_kill_500(tmp_path: Path) -> None:
    short, over, hit = kill_and_resume(tmp_path, 500, step=honest_step)
    assert (short, over) == (0, 0)
    assert hit >= 400


DISK_CALLS = ("open", "write", "fsync", "link", "unlink", "replace", "close", "ftruncate")


def die_at_call(number: int, *, half: bool) -> SimpleNamespace:
    """An ``os`` whose n-th disk call kills the process, before it or halfway through a write."""
    calls = iter(range(10**9))

    def wrap(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == number:
                if half and name == "write":
                    os.write(args[0], bytes(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return getattr(os, name)(*args, **kwargs)

        return call

    return SimpleNamespace(**{**vars(os), **{name: wrap(name) for name in DISK_CALLS}})


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("step", "sound"), [(honest_step, True), (late_step, False)])
def test_d1_death_at_every_call_to_the_disk(
    tmp_path: Path, half: bool, step: Callable[[Run, Truth], None], sound: bool
) -> None:
    never_short = True
    for number in range(100):
        path, truth = tmp_path / f"{number}.ledger", Truth()

        def dying(path: Path = path, truth: Truth = truth, number: int = number) -> None:
            durable.os = die_at_call(number, half=half)  # type: ignore[assignment]
            train(path, truth, step, steps=20, budget=None)

        if in_a_child(dying) == 0:
            break  # the whole run makes fewer calls
        never_short &= charged(path) >= truth.count()
        open_ledger(path).close()
        never_short &= charged(path) >= truth.count()
    assert 40 < number < 99
    assert never_short == sound


# D3: power loss


def record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The events of a run that crashes, and of a second one that ends well."""
    recorder = Recorder()
    with monkeypatch.context() as patch:
        patch.setattr(durable, "os", recorder)
        patch.setattr(module, "os", recorder)
        for name in ("crashes", "ends well"):
            ledger = open_ledger(folder / "a.ledger")
            run = ledger.run(name, block=3)
            for _ in range(5):
                run.step(*COST)
                recorder.begin_step()
            ledger.close() if name == "ends well" else ledger._drop()
    return recorder.events


def power_cuts(events: list[tuple[Any, ...]], folder: Path) -> Iterator[bool]:
    """For every point in time and every way a power cut may end there: is the ledger whole and usable?"""
    for end in range(len(events) + 1):
        disk = Disk(events[:end])
        for number, outcome in enumerate(disk.outcomes()):
            place = folder / f"{end}-{number}"
            place.mkdir()
            for name, data in outcome.items():
                (place / name).write_bytes(data)
            yield survives(place / "a.ledger", disk.begun)


def survives(path: Path, begun: int) -> bool:
    try:
        if charged(path) < begun:
            return False
        with open_ledger(path) as ledger:
            ledger.run("after the power cut").charge(*COST)
        return charged(path) > begun
    except LedgerError:
        return False


def test_d3_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    events = record(tmp_path / "run", monkeypatch)
    assert sum(event[0] == "begun" for event in events) == 10
    survived = list(power_cuts(events, tmp_path))
    assert len(survived) > 150
    assert all(survived)


def test_d3_catches_no_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(durable, "sync", lambda descriptor: None)
    events = record(tmp_path / "run", monkeypatch)
    assert not all(power_cuts(events, tmp_path))


def test_d3_catches_a_log_that_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(durable, "append", durable._write_all)
    events = record(tmp_path / "run", monkeypatch)
    assert not all(power_cuts(events, tmp_path))


WRITER = """
import os, sys
from saltflat.privacy.record import durable
from saltflat.privacy.record.ledger import Ledger
if sys.argv[2] == "no sync":
    durable.sync = lambda descriptor: None
with Ledger.open(sys.argv[1], dataset="digits") as ledger, ledger.run("traced", block=2) as run:
    for _ in range(5):
        run.step(1.0, 20.0)
        os.write(1, b"begun")
"""


def dirty_when_begun(folder: Path, how: str) -> list[set[str]]:
    """For every step, as the kernel saw it: what was changed and not yet synced when it began."""
    calls = "write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,ftruncate"
    command = [
        "strace",
        "-y",
        "-e",
        f"trace={calls}",
        "-o",
        str(folder / "trace"),
        sys.executable,
        "-c",
        WRITER,
    ]
    done = subprocess.run([*command, str(folder / "a.ledger"), how], capture_output=True, check=False)
    if done.returncode != 0 and b"ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    dirty, found = set[str](), []
    for line in (folder / "trace").read_text().splitlines():
        call, path = line.split("(")[0], re.search(r"\(\d+<([^>]*)>", line)
        if '"begun"' in line:
            found.append(set(dirty))
        elif call in ("fsync", "fdatasync"):
            dirty.discard(path[1] if path else "")
        elif str(folder) in line:
            dirty.add(path[1] if path else str(folder))
    return found


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(("how", "clean"), [("as it is", True), ("no sync", False)])
def test_d3_the_kernel_saw_everything_synced_before_each_step(tmp_path: Path, how: str, clean: bool) -> None:
    found = dirty_when_begun(tmp_path, how)
    assert len(found) == 5
    assert all(not dirty for dirty in found) == clean


# D5: damage


def damage(data: bytes, rng: random.Random) -> bytes:
    """One bit flipped, one byte or number changed, the end cut off (at a line, at times), or a piece lost."""
    kind, at = rng.randrange(6), rng.randrange(len(data))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if kind == 2:
        return data[:at]
    if kind == 3:
        return data[:at] + data[at + rng.randrange(1, 40) :]
    if kind == 4:
        lines = data.splitlines(keepends=True)
        return b"".join(lines[: rng.randrange(len(lines))])
    numbers = [match.start(1) for match in re.finditer(rb'"(?:steps|number|rate)":(\d)', data)]
    at = rng.choice(numbers)
    return data[:at] + str(rng.randrange(10)).encode() + data[at + 1 :]


def undetected(path: Path, trials: int) -> int:
    """How many random damages to a ledger or its head lower what is on record without an error."""
    rng = random.Random(2)
    files = [path, path.with_name(path.name + ".head")]
    good, truth = [file.read_bytes() for file in files], charged(path)
    missed = 0
    for _ in range(trials):
        file, data = rng.choice(list(zip(files, good, strict=True)))
        file.write_bytes(damage(data, rng))
        try:
            missed += charged(path) < truth
            open_ledger(path).close()
            missed += charged(path) < truth
        except LedgerError as error:
            missed += "\n" in str(error)
        for file, data in zip(files, good, strict=True):
            file.write_bytes(data)
    return missed


def test_d5_damage(tmp_path: Path) -> None:
    write_some(tmp_path / "a.ledger")
    assert undetected(tmp_path / "a.ledger", 300) == 0


@pytest.mark.slow
def test_d5_damage_5000(tmp_path: Path) -> None:
    write_some(tmp_path / "a.ledger", blocks=20)
    assert undetected(tmp_path / "a.ledger", 5000) == 0


def test_d5_catches_no_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "_digest", lambda value: "0" * 64)
    write_some(tmp_path / "a.ledger")
    assert undetected(tmp_path / "a.ledger", 300) > 0


def test_d5_every_cut_at_a_line_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    write_some(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        with pytest.raises(LedgerError, match="damaged or missing"):
            read(path)


def test_d5_lost_files_are_noticed(tmp_path: Path) -> None:
    path, head = tmp_path / "a.ledger", tmp_path / "a.ledger.head"
    write_some(path)
    data, last = path.read_bytes(), head.read_bytes()
    head.unlink()
    for use in (read, open_ledger):
        with pytest.raises(LedgerError, match="head is missing"):
            use(path)
    head.write_bytes(last)
    path.unlink()
    for use in (read, open_ledger):
        with pytest.raises(LedgerError, match=r"missing|cannot be read"):
            use(path)
    assert not path.exists()
    write_some(tmp_path / "b.ledger", blocks=2)
    path.write_bytes(data)
    head.write_bytes((tmp_path / "b.ledger.head").read_bytes())
    with pytest.raises(LedgerError, match="do not belong together"):
        read(path)


def test_verify_notices_a_change_under_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    write_some(path)
    ledger = open_ledger(path)
    ledger.verify()
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(LedgerError):
        ledger.verify()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"hello\n",
        b"{}\n",
        b"[" * 100_000,
        b"\x80\x04K\x01.",
        b"null\n",
        b'{"kind":"begin","body":{}}\n',
    ],
)
def test_what_is_not_a_ledger_gives_one_line_and_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.ledger"
    path.write_bytes(content)
    for use in (read, open_ledger):
        with pytest.raises(LedgerError) as caught:
            use(path)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("begin", {"format": 1, "dataset": "x", "time": ""}),
        ("charge", {"run": 1, "rate": 0.5, "noise_multiplier": 1.0, "steps": -5}),
        ("charge", {"run": 1, "rate": 2.0, "noise_multiplier": 1.0, "steps": 5}),
        ("chosen", {"run": 1, "rate": 0.5, "planned": []}),
        ("chosen", {"run": 1, "rate": 0.0, "planned": [[1.0, 5]]}),
        ("chosen", {"run": 1, "rate": 0.5, "planned": [[1.0, -5]]}),
        ("chosen", {"run": 1, "rate": 0.5, "planned": [[0.0, 5]]}),
        ("chosen", {"run": 1, "rate": 0.5, "planned": 7}),
        ("settle", {"charge": 2, "steps": -1}),
        ("settle", {"charge": "2", "steps": 1}),
        ("budget", {"epsilon": -1.0, "delta": 1e-5, "order": None}),
        ("run", {"name": "x"}),
        (
            "run",
            {"name": "x", "unit": "example", "adjacency": "replace", "stamp": "", "time": "", "identity": 3},
        ),
        ("other", {}),
    ],
)
def test_a_line_that_makes_no_sense_is_refused_though_its_hash_is_right(
    tmp_path: Path, kind: str, body: dict[str, Any]
) -> None:
    path = tmp_path / "a.ledger"
    write_some(path, blocks=1)
    last = read(path).entries[-1]
    entry = format.entry_after(last, kind, body)
    path.write_bytes(path.read_bytes() + format.line(entry))
    (tmp_path / "a.ledger.head").write_bytes(format.head_line(entry))
    with pytest.raises(LedgerError, match="damaged"):
        read(path)


def test_lines_are_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    write_some(path, blocks=1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["begin", "run", "charge"]
    assert lines[2]["body"] == {"run": 1, "rate": 1.0, "noise_multiplier": 20.0, "steps": 64}


def test_a_ledger_is_for_its_owner_alone_unless_the_owner_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    modes = lambda: [file.stat().st_mode & 0o777 for file in (path, format.head_path(path))]
    with open_ledger(path) as ledger:
        ledger.run("one")
        assert modes() == [0o600, 0o600]
        path.chmod(0o644)  # for somebody to read it
        ledger.run("two")
        assert modes() == [0o644, 0o644]
    with open_ledger(path) as ledger, ledger.run("three", timed=False):
        assert [entry.body["time"] == "" for entry in ledger.entries() if entry.kind == "run"] == [
            False,
            False,
            True,
        ]
