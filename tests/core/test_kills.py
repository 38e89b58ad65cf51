"""D1: whatever ``kill -9`` hits, the ledger is never below the truth, and no run passes its target."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kills
import pytest

SCRIPT = Path(kills.__file__)


def runs(log: Path, *options: str) -> list[dict[str, Any]]:
    """The log of a fork server of its own: forks of a process that has trained already may hang."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(log), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_d1_kill(tmp_path: Path) -> None:
    found = runs(tmp_path / "log", "--runs", "0:8")
    assert len(found) == 8
    assert kills.sound(found), kills.summary(found)


@pytest.mark.parametrize(("options", "good"), [((), True), (("--late",), False)])
def test_d1_catches_a_charge_after_the_step(tmp_path: Path, options: tuple[str, ...], good: bool) -> None:
    """Death right after a question was counted and before it was answered, the first and a later one."""
    for number in ("1", "14"):
        found = runs(tmp_path / number, "--runs", "0:1", "--die-at", number, *options)
        assert kills.sound(found) == good, kills.summary(found)
        assert {run["end"] for run in found} <= {"plan", "budget"}


@pytest.mark.slow
def test_d1_kill_500(tmp_path: Path) -> None:
    found = runs(tmp_path / "log", "--runs", "0:500")
    assert len({run["run"] for run in found}) == 500
    assert kills.sound(found), kills.summary(found)
    assert len({run["begun"] for run in found}) > 15  # the kills fell all over the runs
