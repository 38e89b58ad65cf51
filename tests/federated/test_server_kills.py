"""F5: whatever ``kill -9`` of the server hits, the ledger has every round that was broadcast, and noise is fresh."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("server_kills.py")


def sound(run: dict[str, Any]) -> bool:
    return (
        run["ended"] and not run["short_at_kill"] and run["charged"] >= run["broadcasts"] and not run["same"]
    )


def runs(log: Path, *options: str) -> list[dict[str, Any]]:
    """The log of a fork server of its own: forks of a process that has trained already may hang."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(log), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_death_right_at_a_broadcast(tmp_path: Path) -> None:
    """Before anybody answers, the round is on record: a charge after the round would be one short."""
    (run,) = runs(tmp_path / "log", "--runs", "0:1", "--die-at", "2")
    assert run["begun"] == 2
    assert sound(run), run


def test_random_kills(tmp_path: Path) -> None:
    found = runs(tmp_path / "log", "--runs", "0:2")
    assert len(found) == 2
    assert all(map(sound, found)), found


@pytest.mark.slow
def test_a_hundred_kills(tmp_path: Path) -> None:
    found = runs(tmp_path / "log", "--runs", "0:100")
    assert len({run["run"] for run in found}) == 100
    assert all(map(sound, found)), [run for run in found if not sound(run)]
    assert len({run["begun"] for run in found}) > 5  # the kills fell all over the runs
    assert sum(run["again"] for run in found) > 0  # and some rounds ran twice, with other noise
