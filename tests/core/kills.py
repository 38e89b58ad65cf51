"""D1: ``kill -9`` of real training runs, each resumed to its end, against a count that knows no ledger.

A fork server: everything is imported once, and every run is a fork. The truth is a file to which a run adds
one byte right before each question is answered, so before any noise is drawn; what is in it outlives the
process. As a script it adds one JSON line per run to a log:

    python tests/core/kills.py LOG --runs 0:100
    python tests/core/kills.py LOG --summary
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from steps import CRITERION, beside, examples, network

from saltflat import Checkpoints, Phase, Plan, per_example, supervised, train
from saltflat.data import TensorUnits
from saltflat.errors import BudgetError
from saltflat.methods import DPSGD, SAT
from saltflat.optimizers import SGD
from saltflat.privacy.record.history import Budget, epsilon_of, read
from saltflat.privacy.record.ledger import Ledger

DELTA, RATE, BLOCK, EVERY = 1e-5, 0.5, 4, 3
STEPS = {b"a": 12, b"b": 12}  # by phase
NOISE = {b"a": 6.0, b"b": 9.0}
SPARE = 5  # steps of the second phase for which the budget has room beyond the plan


@dataclass(frozen=True)
class Witnessed:
    """A method that puts a byte into the truth before each of its questions."""

    method: Any
    mark: bytes
    truth: str
    die_at: int = 0  # kill the process right after this many bytes, if not 0

    def init(self, params: Any) -> Any:
        return self.method.init(params)

    def step(self, ask: Callable[..., Any], params: Any, state: Any) -> Any:
        def witnessed(*points: Any, **how: Any) -> Any:
            file = os.open(self.truth, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, self.mark)
            if self.die_at and os.fstat(file).st_size == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            os.close(file)
            return ask(*points, **how)

        return self.method.step(witnessed, params, state)


class Late:
    """The mutant: charge after the step."""

    def __init__(self, run: Any) -> None:
        self.run, self.owed = run, []

    def step(self, rate: float, noise_multiplier: float) -> None:
        self.owed.append((rate, noise_multiplier))

    def pay(self, progress: Any) -> None:
        self.run.step(*self.owed.pop())


@lru_cache
def spent(steps: tuple[tuple[Any, int], ...]) -> float:
    return epsilon_of(dict(steps), DELTA, "add-or-remove")


def target() -> Budget:
    steps = {(RATE, NOISE[mark]): STEPS[mark] + (SPARE if mark == b"b" else 0) for mark in STEPS}
    return Budget(epsilon=spent(tuple(steps.items())), delta=DELTA)


def plan(truth: Path, die_at: int) -> Plan:
    methods = {b"a": DPSGD(), b"b": SAT(0.1)}
    phases = (
        Phase(
            method=Witnessed(methods[mark], mark, str(truth), die_at),
            steps=STEPS[mark],
            noise_multiplier=NOISE[mark],
            clip_norm=1.0,
            optimizer=SGD(lr=0.1, momentum=0.9),
        )
        for mark in STEPS
    )
    return Plan(phases=tuple(phases), rate=RATE, size=12)


def work(folder: Path, *, late: bool, die_at: int, budget: Budget, allow_more: bool) -> int:
    """A run, or the rest of one; 0 if the plan came to its end, 3 if the budget did.

    With ``allow_more`` lost steps run again, as far as the budget goes; else as many of the others are left out.
    """
    with Ledger.open(folder / "a.ledger", dataset="twelve", budget=budget) as ledger:
        run = ledger.run("kills", block=1 if late else BLOCK)
        meter = Late(run) if late else run
        around = beside(
            meter=meter,
            checkpoints=Checkpoints(folder / "kept", every=EVERY, allow_more=allow_more),
            watch=meter.pay if late else lambda progress: None,
        )
        contribution = per_example(network(), supervised(CRITERION))
        try:
            train(plan(folder / "truth", die_at), contribution, TensorUnits(examples()), **around)
        except BudgetError:
            return 3
    return 0


def fork(job: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        code = 4
        try:
            code = job()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def truth(folder: Path) -> Counter[bytes]:
    data = (folder / "truth").read_bytes() if (folder / "truth").exists() else b""
    return Counter(data[i : i + 1] for i in range(len(data)))


def charged(folder: Path) -> Counter[bytes]:
    """Steps on record, by phase."""
    steps = read(folder / "a.ledger").steps() if (folder / "a.ledger").exists() else {}
    return Counter({mark: steps.get((RATE, NOISE[mark]), 0) for mark in STEPS})


def short(folder: Path) -> bool:
    have, need = charged(folder), truth(folder)
    return any(have[mark] < need[mark] for mark in STEPS)


def where(folder: Path) -> str:
    """What the process was at when it died, from what it left behind."""
    kept, ledger = folder / "kept", folder / "a.ledger"
    names = set(os.listdir(kept)) if kept.exists() else set()
    halves = {Path(name).stem for name in names if name.endswith(".safetensors")}
    if any(name.endswith(".new") for name in names) or halves - {Path(n).stem for n in names}:
        return "writing a checkpoint"
    if not ledger.exists():
        return "before the ledger"
    head = ledger.with_name("a.ledger.head")
    named = json.loads(head.read_bytes())["number"] if head.exists() else 0
    if (folder / ".a.ledger.head.new").exists() or ledger.read_bytes().count(b"\n") > named + 1:
        return "writing the ledger"
    begun = truth(folder)
    return "in phase 2" if begun[b"b"] else "in phase 1" if begun[b"a"] else "before the first step"


def killed(folder: Path, job: Callable[[], int], rng: random.Random) -> bool:
    """Start the job and kill it about a random step; False if it came to its end first."""
    child, last = fork(job), rng.randrange(sum(STEPS.values()))
    limit = time.monotonic() + 30
    while sum(truth(folder).values()) < last and time.monotonic() < limit:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(2e-4)
    time.sleep(rng.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)  # a child that ended meanwhile is a zombie: its number is not reused
    return ended(child) == -signal.SIGKILL


def one(number: int, *, late: bool = False, die_at: int = 0) -> dict[str, Any]:
    """One run, killed once before its end, then resumed to it."""
    rng, budget, more = random.Random(number), target(), late or number % 2 == 1
    for attempt in range(20):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            job = lambda folder=folder: work(folder, late=late, die_at=die_at, budget=budget, allow_more=more)
            hit = ended(fork(job)) == -signal.SIGKILL if die_at else killed(folder, job, rng)
            if not hit:
                continue  # it had ended: nobody was killed, so it does not count
            at_kill = {
                "fell": where(folder),
                "begun": sum(truth(folder).values()),
                "short_at_kill": short(folder),
                "over_at_kill": sum(charged(folder).values()) - sum(truth(folder).values()),
            }
            code = ended(fork(job))  # the truth is longer now than where it died
            found = {"run": number, "attempts": attempt + 1, "allow_more": more}
            return {**found, **at_kill, **outcome(folder, code, budget)}
    raise AssertionError(f"run {number} could not be killed in 20 attempts")


def outcome(folder: Path, code: int, budget: Budget) -> dict[str, Any]:
    have, need = charged(folder), truth(folder)
    steps = tuple(((RATE, NOISE[mark]), have[mark]) for mark in STEPS if have[mark])
    return {
        "end": {0: "plan", 3: "budget"}.get(code, f"failed with {code}"),
        "short": short(folder),
        "truth": sum(need.values()),
        "over": sum(have.values()) - sum(need.values()),
        "beyond": max(have[b"a"] - STEPS[b"a"], sum(have.values()) - sum(STEPS.values()), 0),
        "epsilon": spent(steps),
        "target": budget.epsilon,
    }


def sound(found: list[dict[str, Any]]) -> bool:
    """Whether every run ended, none was ever short on record, and none passed its target or, unasked, its plan."""
    return all(
        (
            run["end"] in ("plan", "budget")
            if run["allow_more"]
            else run["end"] == "plan" and run["beyond"] == 0
        )
        and not run["short_at_kill"]
        and not run["short"]
        and run["epsilon"] <= run["target"]
        for run in found
    )


def summary(found: list[dict[str, Any]]) -> str:
    over = Counter(run["over_at_kill"] for run in found)
    close = [run["epsilon"] / run["target"] for run in found]
    seconds = sum(run["seconds"] for run in found)
    return "\n".join(
        [
            f"runs killed and resumed: {len(found)}, all different: {len({run['run'] for run in found})}",
            f"sound: {sum(sound([run]) for run in found)} of {len(found)}",
            f"where the kills fell: {dict(Counter(run['fell'] for run in found).most_common())}",
            f"steps begun at the kill: {statistics.mean(run['begun'] for run in found):.1f} on average, "
            f"{min(run['begun'] for run in found)} to {max(run['begun'] for run in found)}",
            f"ledger minus truth at the kill: {dict(sorted(over.items()))}",
            f"ledger minus truth at the end: {dict(sorted(Counter(run['over'] for run in found).items()))}",
            f"ended by: {dict(Counter(run['end'] for run in found))}",
            f"final epsilon over target: {min(close):.4f} to {max(close):.4f}, target {found[0]['target']:.4f}",
            f"seconds: {seconds:.0f}; attempts: {sum(run['attempts'] for run in found)}",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("log", type=Path)
    parser.add_argument("--runs", default="0:8", help="FIRST:LAST, the last one not included")
    parser.add_argument("--late", action="store_true", help="the mutant: charge after the step")
    parser.add_argument("--die-at", type=int, default=0, help="no random kill: die at this question")
    parser.add_argument("--summary", action="store_true", help="only sum up the log")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.summary:
        first, last = map(int, given.runs.split(":"))
        target()  # the accountants are loaded before anything forks
        for number in range(first, last):
            began = time.monotonic()
            found = one(number, late=given.late, die_at=given.die_at)
            line = json.dumps({**found, "seconds": round(time.monotonic() - began, 3)})
            with given.log.open("a") as file:
                file.write(line + "\n")
    print(summary([json.loads(line) for line in given.log.read_text().splitlines()]))


if __name__ == "__main__":
    main()
