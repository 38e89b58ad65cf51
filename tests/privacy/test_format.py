"""The bytes of a ledger stay what they are: one that was written long ago opens, and would be written again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from saltflat.errors import LedgerError
from saltflat.privacy.record import ledger as module
from saltflat.privacy.record.format import entry_after, first_entry, head_line, line, read_entries, read_head
from saltflat.privacy.record.history import Budget, read
from saltflat.privacy.record.ledger import Ledger

KEPT = Path(__file__).with_name("kept.ledger")
NAMES = ("kept.ledger", "kept.ledger.head")


def copy(folder: Path) -> Path:
    for name in NAMES:
        shutil.copy(KEPT.with_name(name), folder)
    return folder / KEPT.name


def test_a_ledger_of_long_ago_says_what_it_said() -> None:
    history = read(KEPT)
    assert history.head == "7:03db69163d262e2b91ec135a9d9a7a8357106eb097df58fad3b3317fab99128e"
    assert history.steps() == {(0.25, 20.0): 3, (1.0, 33.3): 2}
    assert [run.name for run in history.runs()] == ["première", "two"]
    assert history.budget == Budget(epsilon=4.5, delta=1e-6, order=8)


def test_a_ledger_of_long_ago_is_gone_on_with(tmp_path: Path) -> None:
    path = copy(tmp_path)
    with Ledger.open(path, dataset="digits") as ledger:
        ledger.run("three").charge(1.0, 40.0)
    assert path.read_bytes().startswith(KEPT.read_bytes())
    assert read(path).steps()[1.0, 40.0] == 1


def test_the_same_history_is_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_now", lambda: "2026-01-02T03:04:05+00:00")
    monkeypatch.setattr(module, "os", SimpleNamespace(**{**vars(os), "urandom": lambda n: bytes(range(n))}))
    path = tmp_path / KEPT.name
    with Ledger.open(path, dataset="digits", budget=Budget(epsilon=3, delta=1e-5)) as ledger:
        with ledger.run("première", block=4) as run:
            for _ in range(3):
                run.step(0.25, 20.0)
        ledger.set_budget(Budget(epsilon=4.5, delta=1e-6, order=8))
        ledger.run("two").charge(1.0, 33.3, steps=2)
    for name in NAMES:
        assert (tmp_path / name).read_bytes() == KEPT.with_name(name).read_bytes()


def test_entries_and_bytes_are_one_to_one(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    one = first_entry({"dataset": "digits", "id": "0", "time": ""})
    two = entry_after(one, "budget", {"epsilon": 1.0, "delta": 1e-5, "order": None})
    path.write_bytes(line(one) + line(two))
    path.with_name("a.ledger.head").write_bytes(head_line(two))
    assert read_head(path) == (1, two.hash)
    assert read_entries(path, read_head(path)) == (one, two)
    with pytest.raises(LedgerError, match="do not belong together"):
        read_entries(path, (1, one.hash))


@pytest.mark.parametrize("module", ["format", "history", "ledger"])
def test_the_record_loads_without_torch_and_accountants_each_module_first(module: str) -> None:
    heavy = "{'torch', 'dp_accounting', 'numpy'}"
    script = f"import sys, saltflat.privacy.record.{module}; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
