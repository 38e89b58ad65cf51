"""Sweeps that are killed and go on: what is charged is what ran, counted by doors that opened, in whichever process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from saltflat.privacy.accounting.bounds import epsilon
from saltflat.privacy.accounting.events import phase_event
from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record.history import read
from saltflat.recipes import recipe

STEPS, SPARE, BLOCK, JOBS = 40, 8, 2, 2
RECIPE = f"""
version = 2
data = "digits"
model = {{mlp = {{width = 4}}}}
batch_size = 100
spare = {SPARE}

[[phase]]
steps = {STEPS}
method = "DPSGD"
noise_multiplier = 4.0
clip_norm = 0.1
optimizer = {{SGD = {{lr = 2.0}}}}
"""
# Every process that opens a door writes a line before it does, wherever it runs: the truth.
COUNTS = """
import importlib.util
import os
import sys


def counting(step):
    whole, place = step.open_door, os.environ["OPENED"]

    def opened(*given, **settings):
        line = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(line, f"{os.getpid()}\\n".encode())
        os.close(line)
        return whole(*given, **settings)

    step.open_door = opened


class Finder:  # a process that trains nothing loads nothing
    def find_spec(self, name, path=None, target=None):
        if name != "saltflat.core.step":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        whole = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (whole(module), counting(module))
        return spec


sys.meta_path.insert(0, Finder())
"""


class Started:
    """Sweeps in processes of their own."""

    def __init__(self, place: Path) -> None:
        self.place, self.out, self.opened = place, place / "out", place / "opened"
        (place / "recipe.toml").write_text(RECIPE)
        (place / "hook").mkdir()
        (place / "hook" / "sitecustomize.py").write_text(COUNTS)
        self.opened.touch()

    def begin(self, *words: object) -> subprocess.Popen[str]:
        source = str(Path(__file__).parents[2] / "src")
        env = {**os.environ, "OPENED": str(self.opened), "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join([str(self.place / "hook"), source])
        command = [sys.executable, "-m", "saltflat", "sweep", *map(str, words), "--out", str(self.out)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=env, start_new_session=True, **pipes)  # type: ignore[call-overload]

    def truth(self) -> int:
        return len(self.opened.read_text().splitlines())

    def until(self, process: subprocess.Popen[str], enough: Callable[[], bool]) -> None:
        """Wait until it is time to strike."""
        limit = time.monotonic() + 240
        while not enough():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < limit
            time.sleep(0.005)

    def killed_after(self, process: subprocess.Popen[str], more: int) -> None:
        before = self.truth()
        self.until(process, lambda: self.truth() >= before + more)
        process.kill()  # kill -9: workers find nobody to ask
        process.communicate()

    def settled(self) -> int:
        """The truth when nobody opens doors any more."""
        last = -1
        while last != self.truth():
            last = self.truth()
            time.sleep(2)
        return last


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path)


@pytest.mark.slow
def test_six_trials_killed_twice_charge_what_they_ran_and_name_the_winner(started: Started) -> None:
    words = (started.place / "recipe.toml", "--over", "lr=0.1,2,4", "--seeds", 2, "--jobs", JOBS)
    words = (*words, "--engine", "processes")
    for more in (33, 71):
        started.killed_after(started.begin(*words), more)
        truth, charged = started.settled(), sum(read(started.out / "ledger.jsonl").steps().values())
        assert truth <= charged <= truth + 2 * JOBS * BLOCK
    process = started.begin(*words)
    said, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    history = read(started.out / "ledger.jsonl")
    truth, charged = started.truth(), sum(history.steps().values())
    assert 6 * STEPS < truth <= charged <= truth + 2 * JOBS * BLOCK
    assert truth < 6 * STEPS + 2 * JOBS * SPARE  # what had ended did not run again
    spent = rounded_up(epsilon(phase_event(100 / 1437, 4.0, charged), 1e-5), 4)
    assert f"cost epsilon {spent} at delta 1e-05" in said
    assert "6 of 6 trials ended" in said
    winner = re.search(r"Winner: (lr=[0-9.]+),", said)
    assert winner is not None
    scores = {}
    for lr in ("0.1", "2", "4"):
        lines = [
            (started.out / f"lr={lr}/seed-{seed}/metrics.jsonl").read_text().splitlines()[-1]
            for seed in (0, 1)
        ]
        scores[f"lr={lr}"] = sum(json.loads(line)["accuracy"] for line in lines) / 2
    assert scores[winner[1]] == max(scores.values())
    report = (started.out / "report.html").read_text()
    assert f"Winner: {winner[1]}" in report
    assert f"cost epsilon {spent} at delta" in report


@pytest.mark.slow
def test_a_selection_that_is_killed_keeps_what_it_drew_and_what_it_paid(started: Started) -> None:
    words = (started.place / "recipe.toml", "--over", "lr=1,4", "--select", 3)
    started.killed_after(started.begin(*words), 25)
    drawn = json.loads((started.out / "private" / "drawn.json").read_text())
    process = started.begin("--resume")
    said, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert recipe.read(started.out / "winner" / "recipe.toml").seed in drawn["seeds"]
    trials = len(drawn["seeds"])
    assert (
        trials * STEPS < started.truth() <= trials * STEPS + SPARE
    )  # each of them once, but for what ran again
    assert list(read(started.out / "ledger.jsonl").steps().values()) == [1]
    assert not (started.out / "private").exists()
    assert f"{trials} trials" not in said


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_its_trial_alone_and_ctrl_c_wastes_nothing(started: Started) -> None:
    words = ("--jobs", JOBS, "--engine", "processes")
    process = started.begin(started.place / "recipe.toml", "--over", "lr=1,2,4", *words)
    started.until(process, lambda: started.truth() >= 10)
    os.kill(int(started.opened.read_text().splitlines()[-1]), signal.SIGKILL)
    said, errors = process.communicate(timeout=500)
    assert process.returncode == 2
    assert said.count("ended by itself") == 2  # while it goes, and at the end
    assert "2 of 3 trials ended" in said
    assert "1 of the trials failed" in errors
    charged = sum(read(started.out / "ledger.jsonl").steps().values())
    assert started.truth() <= charged <= started.truth() + 1  # the clerk knows what it granted

    process = started.begin("--resume", *words)
    before = started.truth()
    started.until(process, lambda: started.truth() >= before + 3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 130, errors
    assert f"to go on, run saltflat sweep --resume --out {started.out} --jobs 2 --engine processes" in errors
    charged = sum(read(started.out / "ledger.jsonl").steps().values())
    assert started.truth() <= charged <= started.truth() + 1
    process = started.begin("--resume", *words)
    said, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert "3 of 3 trials ended" in said


@pytest.mark.slow
def test_on_ray_the_same_is_charged(started: Started) -> None:
    pytest.importorskip("ray")
    process = started.begin(
        started.place / "recipe.toml", "--over", "lr=1,4", "--jobs", JOBS, "--engine", "ray"
    )
    said, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert "2 of 2 trials ended" in said
    assert sum(read(started.out / "ledger.jsonl").steps().values()) == 2 * STEPS == started.truth()
