"""What the checks of the model cost: the trial before the first step, and the looks while training goes on.

python benchmarks/checks.py --quick
python benchmarks/checks.py --models lstm small-vit

A look comes at the first and the last step and once in so many others (`LOOK_EVERY`, with whole steps as physical
batches), the trial once in a run; what all of it adds to a run of 1,000 steps is the last column.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from cases import CASES, QUICK
from report import machine
from rich.console import Console
from rich.table import Table
from saltflat_engine import losses, private

from saltflat import per_example, supervised
from saltflat.core.contribution import Private
from saltflat.core.sampling import TensorUnits
from saltflat.core.step import LOOK_EVERY
from saltflat.core.train import trainable
from saltflat.methods import DPSGD

STEPS = 1000  # of the run that the share is of
MOST = 0.01  # the target


@dataclass(frozen=True)
class Cost:
    """Seconds of one step, of one look, of asking whether a look is due, and of the trial before the first step."""

    model: str
    step: float
    look: float
    ask: float
    trial: float

    @property
    def share(self) -> float:
        """What all of it adds to a run, as a share of the steps' own time."""
        looks = 2 + STEPS // LOOK_EVERY
        return (looks * self.look + STEPS * self.ask + self.trial) / (STEPS * self.step)


def seconds(job: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def cost(name: str, rounds: int) -> Cost:
    """Medians of interleaved rounds, after one that warms up."""
    case = CASES[name]
    model, batch = case.model(), case.batch()
    step = private(model, batch, method=DPSGD())
    contribution = per_example(model, supervised(losses))
    params, units = trainable(model), TensorUnits(batch)
    apart = Private.of(contribution, units)
    spot = contribution.check(params, units.take, apart.count)
    jobs: dict[str, Callable[[], object]] = {
        "step": step,
        "look": lambda: spot(params, batch),
        "ask": spot.changed,
        "trial": lambda: contribution.check(params, units.take, apart.count),
    }
    taken: dict[str, list[float]] = {job: [] for job in jobs}
    for turn in range(rounds + 1):
        for job, run in jobs.items():
            took = seconds(run)
            if turn:
                taken[job].append(took)
    return Cost(case.title, **{job: statistics.median(all_of) for job, all_of in taken.items()})


def table(costs: Sequence[Cost]) -> Table:
    """A line for each model."""
    made = Table("model", "a step", f"a look, once in {LOOK_EVERY}", "the trial, once", f"of {STEPS:,} steps")
    for column in made.columns[1:]:
        column.justify = "right"
    for each in costs:
        look, trial = each.look / each.step, each.trial / each.step
        made.add_row(
            each.model,
            f"{1000 * each.step:.0f} ms",
            f"{look:.1f} steps",
            f"{trial:.1f} steps",
            f"{100 * each.share:.2f} %",
        )
    return made


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three small models, a few rounds")
    parser.add_argument("--models", nargs="+", choices=CASES, metavar="MODEL", help=", ".join(CASES))
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads (default: all)")
    given = parser.parse_args(words)
    torch.set_num_threads(given.threads)
    console = Console()
    console.print(machine(given.threads), highlight=False)
    costs = [
        cost(name, 3 if given.quick else 7) for name in given.models or (QUICK if given.quick else CASES)
    ]
    Console(width=max(console.width, 110)).print(table(costs))
    worst = max(costs, key=lambda each: each.share)
    verdict = "met" if worst.share <= MOST else "not met"
    console.print(
        f"checks: at most {100 * worst.share:.2f} % of {STEPS:,} steps ({worst.model}); target {MOST:.0%}: {verdict}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
