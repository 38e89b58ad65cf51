"""F5: ``kill -9`` of a federated server, each run resumed to its end, against a count that knows no ledger.

A fork server, as in ``tests/core/kills.py``: everything is imported once, and every server is a fork. The truth is a
file to which the post adds one byte right before a round is broadcast, and another one to which the weights are added
after each round; what is in them outlives the process. As a script it adds one JSON line per run to a log:

    python tests/federated/server_kills.py LOG --runs 0:100
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from kills import ended, fork
from posts import FakePost, Question, data, fleet, honest, nodes, remote
from reference import flat

from saltflat import Phase, Plan
from saltflat.methods import DPSGD
from saltflat.optimizers import SGD
from saltflat.privacy.record.history import read
from saltflat.runs.layout import LEDGER
from saltflat.runs.serve import serve

ROUNDS, RATE, NOISE, CLIENTS = (
    8,
    0.98,
    1.3,
    5,
)  # a round without anybody, which sends nothing, is out of the question


def plan() -> Plan:
    rounds = Phase(
        method=DPSGD(),
        steps=ROUNDS,
        noise_multiplier=NOISE,
        clip_norm=0.2,
        optimizer=SGD(lr=1.0, momentum=0.5),
    )
    return Plan(phases=(rounds,), rate=RATE, size=CLIENTS)


def add(file: Path, line: str) -> int:
    """Add to a file so that it outlives this process; how long it is then."""
    number = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(number, line.encode())
    size = os.fstat(number).st_size
    os.close(number)
    return size


def work(folder: Path, die_at: int) -> int:
    """A server, or the rest of one; with ``die_at`` it dies right after it has counted that broadcast."""

    def broadcast(question: Question) -> None:
        if add(folder / "truth", "x") == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def released(progress: Any) -> None:
        weights = [round(float(w), 12) for w in flat(progress.params)[:4]]
        add(folder / "released", json.dumps([progress.step, *weights]) + "\n")

    post = FakePost(nodes(data(CLIENTS), [honest] * CLIENTS), broadcast)
    serve(plan(), remote(fleet(post, CLIENTS)), folder / "run", delta=0.01, watch=released)
    return 0


def broadcasts(folder: Path) -> int:
    return (folder / "truth").stat().st_size if (folder / "truth").exists() else 0


def releases(folder: Path) -> int:
    return len((folder / "released").read_text().splitlines()) if (folder / "released").exists() else 0


def charged(folder: Path) -> int:
    ledger = folder / "run" / LEDGER
    return read(ledger).steps().get((RATE, NOISE), 0) if ledger.exists() else 0


def repeated(folder: Path) -> tuple[int, int]:
    """How many rounds were released more than once, and how many of these had the same weights again."""
    seen: dict[int, list[Any]] = defaultdict(list)
    for line in (folder / "released").read_text().splitlines():
        step, *weights = json.loads(line)
        seen[step].append(tuple(weights))
    again = [weights for weights in seen.values() if len(weights) > 1]
    return len(again), sum(len(set(weights)) < len(weights) for weights in again)


def killed(folder: Path, job: Callable[[], int], chance: random.Random) -> bool:
    """Start a server and kill it about a random round; False if it came to its end first.

    Soon after a broadcast, or soon after a release, which is before its checkpoint: on a busy machine a round takes
    longer than the pause below, and no kill that waits for a broadcast would come after the release.
    """
    child, last, seen = fork(job), chance.randrange(ROUNDS), chance.choice([broadcasts, releases])
    limit = time.monotonic() + 30
    while seen(folder) < last and time.monotonic() < limit:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(2e-4)
    time.sleep(chance.uniform(0, 0.01))
    os.kill(child, signal.SIGKILL)
    return ended(child) == -signal.SIGKILL


def one(number: int, die_at: int = 0) -> dict[str, Any]:
    """One run, killed once before its end, then resumed to it."""
    chance = random.Random(number)
    for _ in range(20):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            job = lambda folder=folder: work(folder, die_at)
            if not (ended(fork(job)) == -signal.SIGKILL if die_at else killed(folder, job, chance)):
                continue
            at_kill = {"begun": broadcasts(folder), "short_at_kill": charged(folder) < broadcasts(folder)}
            code = ended(fork(job))
            again, same = repeated(folder)
            return {
                "run": number,
                **at_kill,
                "ended": code == 0 and (folder / "run" / "statement.json").exists(),
                "broadcasts": broadcasts(folder),
                "charged": charged(folder),
                "again": again,
                "same": same,
            }
    raise AssertionError(f"run {number} could not be killed in 20 attempts")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("log", type=Path)
    parser.add_argument("--runs", default="0:5", help="FIRST:LAST, the last one not included")
    parser.add_argument("--die-at", type=int, default=0, help="no random kill: die at this broadcast")
    given = parser.parse_args()
    torch.set_num_threads(1)
    first, last = map(int, given.runs.split(":"))
    plan().epsilon(0.01)  # the accountants are loaded before anything forks
    for number in range(first, last):
        add(given.log, json.dumps(one(number, given.die_at)) + "\n")


if __name__ == "__main__":
    main()
