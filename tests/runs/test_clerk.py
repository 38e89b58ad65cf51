"""The clerk of a sweep: one writer, steps on disk before they are taken, no more of them than a trial may take."""

from __future__ import annotations

import threading
from multiprocessing.connection import Client, Listener
from pathlib import Path

import pytest

from saltflat.core.record import Account
from saltflat.core.resume import Recorded
from saltflat.core.step import AnyMeter
from saltflat.core.train import OnRecord
from saltflat.errors import BudgetError, LedgerError, PrivacyError, SettingError
from saltflat.privacy.record.history import read
from saltflat.privacy.record.ledger import Ledger
from saltflat.runs import jobs
from saltflat.runs.clerk import Asked, Clerk, Task

COST = (0.1, 2.0)


def begun(clerk: Clerk, block: int = 1) -> tuple[Asked, jobs.Desk]:
    """A worker that has a trial and its account."""
    desk = clerk.desk()
    assert desk.answer("next") == {"number": 1}
    name = desk.answer("open", "a trial", "its identity", "example", "add-or-remove", block)
    return Asked(desk.answer, "example", "add-or-remove", name), desk


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "a.ledger", dataset="digits")


TASK = Task("a trial", {"number": 1}, {COST: 3})


def test_an_account_elsewhere_is_asked_for_all_that_a_ledgers_run_is(book: Ledger) -> None:
    account, _ = begun(Clerk(book, [TASK]))
    for protocol in (
        Account,
        Recorded,
        OnRecord,
        AnyMeter,
    ):  # else checks before the first step are passed over
        assert isinstance(account, protocol)
    assert account.account == "its identity"
    account.expect(account.head)
    with pytest.raises(LedgerError):
        account.expect("7:0000")
    with pytest.raises(PrivacyError, match="fixed lists"):
        account.choose({COST: 3})


def test_a_step_is_on_disk_when_it_is_granted_and_none_is_granted_past_the_plan(book: Ledger) -> None:
    clerk = Clerk(book, [TASK, TASK])
    account, desk = begun(clerk)
    for taken in (1, 2):
        account.step(*COST)
        assert read(book.path).steps() == {COST: taken}
    desk.left()  # killed: a new worker goes on with the same run
    assert clerk.became == {"a trial": "its process ended by itself, for want of memory perhaps"}
    account, _ = begun(clerk)
    account.take((0.1, 2.0 * (1 + 1e-10)))  # as another processor calibrated it
    with pytest.raises(BudgetError, match="used up"):
        account.take(COST)
    with pytest.raises(BudgetError):
        account.take((0.1, 1.0))  # never planned
    assert sum(account.charged().values()) == 3


def test_what_a_worker_reserved_and_did_not_take_is_given_back(book: Ledger) -> None:
    account, desk = begun(Clerk(book, [TASK]), block=3)
    account.take(COST)
    assert read(book.path).steps() == {COST: 3}
    desk.left()
    assert read(book.path).steps() == {COST: 1}


def test_without_an_account_nothing_is_charged(book: Ledger) -> None:
    desk = Clerk(book, [TASK]).desk()
    with pytest.raises(LedgerError, match="no account"):
        desk.answer("take", list(COST))
    with pytest.raises(PrivacyError, match="no question"):
        desk.answer("_close")
    assert read(book.path).steps() == {}


def test_a_worker_whose_clerk_is_gone_takes_no_step(tmp_path: Path) -> None:
    told: list[str] = []

    def work(ask: jobs.Ask) -> None:
        with pytest.raises(LedgerError) as caught:
            ask("take", list(COST))
        told.append(str(caught.value))

    with Listener(str(tmp_path / "ask"), authkey=b"secret") as listener:
        worker = threading.Thread(target=jobs._worker, args=(work, str(tmp_path / "ask"), b"secret"))
        worker.start()
        listener.accept().close()
        worker.join(timeout=30)
    assert told == [jobs.GONE]


def test_who_does_not_know_the_secret_is_not_served(book: Ledger) -> None:
    clerk = Clerk(book, [TASK])
    with jobs._counter(clerk, "") as counter:
        try:
            Client(counter.address, authkey=b"guessed").close()
            served = True
        except (jobs.multiprocessing.AuthenticationError, EOFError, OSError):
            served = False
        assert not served
        assert counter.came == 0
        seen: list[object] = []
        worker = threading.Thread(
            target=jobs._worker, args=(lambda ask: seen.append(ask("next")), counter.address, counter.key)
        )
        worker.start()
        worker.join(timeout=30)
    assert seen == [{"number": 1}]
    assert counter.came == 1


def test_an_engine_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.importlib.util, "find_spec", lambda name: None)
    assert jobs.chosen("auto") == "processes"
    with pytest.raises(SettingError, match="pip install"):
        jobs.chosen("ray")
    with pytest.raises(SettingError, match="one of"):
        jobs.chosen("dask")
