"""Rows of the papers' tables, run with their own configurations.

python experiments/papers/run.py --list                          # every row: published, measured, expected time
python experiments/papers/run.py --row cifar10-eps1 --arm sai    # one arm; a killed run goes on from its checkpoint
python experiments/papers/run.py --row fashion-mnist-eps1 fashion-mnist-eps3 --seed 0 --jobs 2
python experiments/papers/run.py --write                         # docs/results/papers.md and the README's table

Finished runs are lines of experiments/papers/results.jsonl. A run that is there already, or that another process
is at, is skipped. Each process computes on one thread.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import results
import torch
from safetensors.torch import save_file
from torch.func import functional_call

import saltflat as sf
from papers import dp_sat, dplis, page, sai
from papers.rows import Arm, Paper, Row
from saltflat.core.plan import Plan
from saltflat.core.resume import Checkpoints, as_begun
from saltflat.data import Examples, Split, load
from saltflat.errors import Interrupted
from saltflat.models import parameter_count
from saltflat.privacy.accounting import bounds
from saltflat.recipes import network_of, plan_of
from saltflat.recipes.build import contribution_of, rate_of, size_of

PAPERS: tuple[Paper, ...] = (sai.PAPER, dp_sat.PAPER, dplis.PAPER)
KEPT = Path(__file__).parent / "results.jsonl"
PAGE = Path(__file__).parents[2] / "docs" / "results" / "papers.md"
README = Path(__file__).parents[2] / "README.md"
HEADLINE, MARKS = "cifar10-eps1", ("<!-- papers -->\n", "<!-- end of papers -->\n")
WORK = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "saltflat" / "papers"


class Wanted(NamedTuple):
    """One run."""

    paper: Paper
    row: Row
    arm: Arm
    seed: int

    @property
    def settings(self) -> results.Result:
        """What the run is called, and the recipe, changes and seed that make it what it is."""
        return {
            "paper": self.paper.name,
            "row": self.row.name,
            "arm": self.arm.name,
            "seed": self.seed,
            "recipe": self.arm.recipe,
            "changes": dict(self.arm.changes),
        }

    def __str__(self) -> str:
        return f"{self.row.name} {self.arm.name} seed {self.seed}"


def runs(papers: Sequence[Paper] = PAPERS) -> list[Wanted]:
    """Every declared run. One seed of all arms of a row comes before the next seed."""
    return [
        Wanted(paper, row, arm, seed)
        for paper in papers
        for row in paper.rows
        for seed in row.seeds
        for arm in row.arms
    ]


def find(wanted: Wanted, found: Sequence[results.Result]) -> results.Result | None:
    """The finished run of this recipe, changes and seed, if there is one; another row may have asked for it."""
    keys, wished = ("recipe", "changes", "seed"), wanted.settings
    return next((one for one in found if all(one["settings"][key] == wished[key] for key in keys)), None)


@lru_cache(maxsize=1)
def examples_of(data: str) -> Split:
    """A data set by name; the last one stays in memory."""
    return load(data)


def accuracy(model: torch.nn.Module, params: dict[str, torch.Tensor], test: Examples) -> float:
    """The share of test examples, which are public, whose largest output is the label."""
    with torch.no_grad():
        hits = sum(
            int((functional_call(model, params, (x,)).argmax(1) == y).sum()) for x, y in test.batches(500)
        )
    return hits / test.count


def run(wanted: Wanted, work: Path) -> results.Result:
    """Train once, or go on with what was begun in ``work``; the line of results.

    *Guarantee*: the epsilons count every step that was taken. A start that did not end in good order may have taken
    steps after its last checkpoint that nothing has on record: it is charged for as many as there can be, at the
    smallest noise of the plan.
    """
    recipe = wanted.arm.made(wanted.seed)
    folder = work / wanted.row.name / wanted.arm.name / f"seed-{wanted.seed}"
    every = round(1 / rate_of(recipe, size_of(recipe)))
    # Steps that may have run twice are charged by `cost`, so all planned ones are taken.
    kept = Checkpoints(folder / "checkpoint", every=every, allow_more=True)
    plan = as_begun(kept, plan_of(recipe, size_of(recipe)))
    progress = Followed(folder / "progress.json", every)
    model, split = network_of(recipe), examples_of(recipe.data)

    def watch(told: Any) -> None:
        if told.step % every and told.step != plan.steps:
            return
        progress.note(told.step, accuracy(model, told.params, split.test))
        if wanted.seed == 0:
            (folder / "weights").mkdir(exist_ok=True)
            save_file(dict(told.params), folder / "weights" / f"step-{told.step:06d}.safetensors")
        print(
            f"{wanted}: step {told.step} of {plan.steps}, {100 * progress.curve[told.step]:.2f} %", flush=True
        )

    running = sf.Running(physical=recipe.physical, checkpoints=kept, watch=watch)
    progress.begin()
    try:
        sf.train(plan, contribution_of(recipe, model), split.train, running=running)
    except Interrupted:
        progress.end()  # the position is kept, and no step is taken twice
        raise
    progress.end()
    curve = [[step, score] for step, score in sorted(progress.curve.items())]
    return {
        "settings": wanted.settings,
        "whole": recipe.as_document(),
        **cost(plan, recipe.delta, progress.again),
        "curve": curve,
        "last": curve[-1][1],
        "best": max(score for _, score in curve),
        "steps_again": progress.again,
        "seconds": progress.seconds,
        "cpu_seconds": progress.cpu_seconds,
        "parameters": parameter_count(model),
        "versions": {"saltflat": sf.__version__, "torch": torch.__version__},
    }


def cost(plan: Plan, delta: float, again: int) -> dict[str, Any]:
    """The noise, the clipping, and epsilon by both accountants; ``again`` more steps at the smallest noise."""
    charged = Counter(plan.by_cost())
    dearest = min(noise for phase in plan.phases for noise in phase.noises())
    charged[plan.cost(dearest)] += again
    event = plan.event_on_record(charged)
    return {
        "epsilon_pld": bounds.epsilon(event, delta),
        "epsilon_rdp": bounds.rdp_epsilon(event, delta),
        "delta": delta,
        "rate": plan.rate,
        "steps": [phase.steps for phase in plan.phases],
        "noise_multipliers": [phase.noise_multiplier for phase in plan.phases],
        "clip_norms": [str(phase.clip_norm) for phase in plan.phases],
    }


class Followed:
    """What is known of a run that may be stopped: its curve, its time, and steps that may have run again."""

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every = path, every
        known = json.loads(path.read_text()) if path.exists() else {}
        self.curve: dict[int, float] = {int(step): score for step, score in known.get("curve", {}).items()}
        self.seconds: float = known.get("seconds", 0.0)
        self.cpu_seconds: float = known.get("cpu_seconds", 0.0)
        self.again: int = known.get("again", 0)
        self.open: bool = known.get("open", False)

    def begin(self) -> None:
        """Note a start, and what an earlier one that did not end may have taken."""
        self.again += self.every if self.open else 0
        self.open = True
        self._since = time.perf_counter(), time.process_time()
        self._write()

    def note(self, step: int, score: float) -> None:
        """Note an accuracy."""
        self.curve[step] = score
        self._write()

    def end(self) -> None:
        """Note that the run ended, or stopped in good order."""
        self.open = False
        self._write()

    def _write(self) -> None:
        now = time.perf_counter(), time.process_time()
        self.seconds += now[0] - self._since[0]
        self.cpu_seconds += now[1] - self._since[1]
        self._since = now
        known = {key: getattr(self, key) for key in ("curve", "seconds", "cpu_seconds", "again", "open")}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(known))
        beside.replace(self.path)


@contextmanager
def claimed(wanted: Wanted, work: Path) -> Iterator[bool]:
    """Whether this process alone is at the run."""
    folder = work / wanted.row.name / wanted.arm.name / f"seed-{wanted.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def series(chosen: Sequence[Wanted], work: Path, out: Path) -> None:
    """Every run that the file does not hold yet, each written when it ends."""
    results.check_writable(out)
    for wanted in chosen:
        with claimed(wanted, work) as mine:
            if mine and find(wanted, results.read(out)) is None:
                done = run(wanted, work)
                results.append(out, done)
                print(
                    f"{wanted}: {100 * done['last']:.2f} % (best {100 * done['best']:.2f}), epsilon "
                    f"{done['epsilon_pld']:.3f}, {done['cpu_seconds'] / 60:.1f} minutes of one processor",
                    flush=True,
                )


def with_headline(text: str, found: Sequence[results.Result]) -> str:
    """The README with SAI's row on CIFAR-10 between its marks."""
    row = next(wanted.row for wanted in runs() if wanted.row.name == HEADLINE)
    begin, end = (text.index(mark) for mark in MARKS)
    return text[: begin + len(MARKS[0])] + page.readme(row, found) + text[end:]


def several(words: Sequence[str], jobs: int) -> int:
    """The same command in so many processes, which share the runs."""
    command = [sys.executable, str(Path(__file__).resolve()), *words, "--jobs", "1"]
    children = [subprocess.Popen(command) for _ in range(jobs)]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: [child.send_signal(got) for child in children])
    return max(abs(child.wait()) for child in children)


def main(words: Sequence[str] | None = None) -> int:
    """Run what was chosen, or list it, or write the page."""
    words = list(sys.argv[1:] if words is None else words)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, declared = parser.add_argument, runs()
    for name in ("paper", "row", "arm"):
        known = list(dict.fromkeys(wanted.settings[name] for wanted in declared))
        add(f"--{name}", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known))
    add("--seed", type=int, nargs="+", help="seeds of the first weights (default: every declared one)")
    add("--jobs", type=int, default=1, help="processes, of one thread each (default: 1)")
    add(
        "--work", type=Path, default=WORK, help="the folder of checkpoints and weights (default: %(default)s)"
    )
    add("--out", type=Path, default=KEPT, help="the file of finished runs (default: %(default)s)")
    add("--list", action="store_true", help="every row with what is published and its expected time, and end")
    add("--write", action="store_true", help="write docs/results/papers.md from the finished runs, and end")
    given = parser.parse_args(words)
    chosen = [
        wanted
        for wanted in declared
        if all(wanted.settings[name] in getattr(given, name) for name in ("paper", "row", "arm"))
        and (given.seed is None or wanted.seed in given.seed)
    ]
    if given.list:
        rows = {wanted.row.name: wanted.row for wanted in chosen}
        asked = [
            (
                row,
                list({wanted.arm.name: wanted.arm for wanted in chosen if wanted.row is row}.values()),
                sorted({wanted.seed for wanted in chosen if wanted.row is row}),
            )
            for row in rows.values()
        ]
        print(page.listed(asked, results.read(given.out)))
    elif given.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page.page(PAPERS, results.read(given.out)), encoding="utf-8")
        README.write_text(with_headline(README.read_text(encoding="utf-8"), results.read(given.out)), "utf-8")
    elif given.jobs > 1:
        return several(words, given.jobs)
    else:
        torch.set_num_threads(1)
        try:
            series(chosen, given.work, given.out)
        except Interrupted as stopped:
            print(stopped, flush=True)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
