"""Private methods side by side on Fashion-MNIST or MNIST: the tanh CNN of 26,010 parameters, as DP-SAT and SAI train.

python experiments/fashion_mnist.py --epsilon 1 3 --seed 0 1
python experiments/fashion_mnist.py --data mnist --methods dp-sgd --epsilon 3 --out mnist.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.func import functional_call

import saltflat as sf
from saltflat.data import Examples, Split, load
from saltflat.errors import SaltflatError, SettingError
from saltflat.models import parameter_count
from saltflat.privacy.noise import SEEDED, SeededNoise
from saltflat.recipes import Recipe, Stage, loss_of, network_of, plan_of, shipped
from saltflat.recipes.build import draft_of
from saltflat.tree import Tree

RECIPES = {  # a method's shipped recipe, where all of its settings are
    "dp-sgd": "fashion-mnist-dp-sgd-eps3",
    "dp-sat": "fashion-mnist-dp-sat-eps3",
    "sai": "fashion-mnist-sai-eps3",
    "dp-adambc": "fashion-mnist-dp-adambc-eps3",
    "dplis": "fashion-mnist-dplis-eps3",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run: what differs from its recipe."""

    data: str
    method: str
    epsilon: float
    seed: int  # of the first weights, and of DPLIS's public jitter
    epochs: int
    batch: int = 2048  # nominal: an epoch has ceil(size / batch) steps, each at rate 1 / that
    seeded_noise: bool = False


def epochs_of(stages: Sequence[Stage]) -> int:
    return round(sum(stage.epochs or 0.0 for stage in stages))


def recipe_of(settings: Settings, size: int) -> Recipe:
    """The method's recipe with the run's data, epsilon, seed and rate; its last phase has the rest of the epochs."""
    recipe = shipped(RECIPES[settings.method])
    before = epochs_of(recipe.phase[:-1])
    if settings.epochs <= before:
        raise SettingError(
            f"{settings.method} has {before} epochs before its last phase: give --epochs more than these"
        )
    last = replace(recipe.phase[-1], epochs=float(settings.epochs - before))
    return replace(
        recipe,
        data=settings.data,
        epsilon=settings.epsilon,
        seed=settings.seed,
        batch_size=None,
        rate=1 / steps_per_epoch(settings, size),
        phase=tuple(_seeded(stage, settings.seed) for stage in (*recipe.phase[:-1], last)),
    )


def _seeded(stage: Stage, seed: int) -> Stage:
    """DPLIS's jitter, which is public, follows the run's seed."""
    return replace(stage, method=replace(stage.method, seed=seed)) if hasattr(stage.method, "seed") else stage


def steps_per_epoch(settings: Settings, size: int) -> int:
    """As a Poisson loader of nominal batches has them: 30 for 2048 of 60,000, hence rate 1/30 and 2000 expected."""
    if settings.batch > size:
        raise SettingError(f"a batch of {settings.batch} does not fit into {size} training examples")
    return math.ceil(size / settings.batch)


def identity(settings: Settings, size: int) -> dict[str, Any]:
    """What makes two runs the same experiment; needs no calibration, so that finished ones are skipped fast."""
    recipe = recipe_of(settings, size)
    first, *others = [stage.clip_norm for stage in recipe.phase]
    common = {
        "delta": recipe.delta,
        "clip_norm": first if isinstance(first, float) and {*others} <= {first} else str([first, *others]),
        "decay": recipe.ema.decay if recipe.ema else None,
    }
    phases = [
        f"{phase.steps} steps of {phase.method} with {phase.optimizer}, share {stage.portion or 1:g}"
        for phase, stage in zip(draft_of(recipe, size).phases, recipe.phase, strict=True)
    ]
    return {"settings": {**asdict(settings), **common}, "size": size, "phases": phases}


def done(settings: Settings, size: int, found: Sequence[results.Result]) -> bool:
    """Whether the results hold this run already."""
    wanted = identity(settings, size)
    return any({key: one.get(key) for key in wanted} == wanted for one in found)


def accuracy(model: nn.Module, params: Tree, test: Examples) -> float:
    """The share of test images whose largest output is the label; these images are public."""
    with torch.no_grad():
        hits = [
            (functional_call(model, params, (images,)).argmax(1) == labels).sum()
            for images, labels in test.batches(1000)
        ]
    return float(sum(hits)) / test.count


@dataclass
class Watch:
    """Follows a run: test accuracy every few epochs and at the end, and what to show meanwhile."""

    model: nn.Module
    test: Examples
    steps_per_epoch: int
    every: int  # epochs
    steps: int
    show: Callable[[int, str], None]
    curve: list[dict[str, float]] = field(default_factory=list)
    text: str = ""

    def __call__(self, progress: Any) -> None:
        epoch, rest = divmod(progress.step, self.steps_per_epoch)
        if progress.step == self.steps or (rest == 0 and epoch % self.every == 0):
            last = accuracy(self.model, progress.params, self.test)
            ema = accuracy(self.model, progress.ending, self.test)
            self.curve.append({"epoch": epoch, "last": last, "ema": ema})
            self.text = f"{last:.2%}, EMA {ema:.2%}"
        self.show(progress.step, self.text)


@dataclass(frozen=True, kw_only=True)
class How:
    """What changes the time of a run and not its result."""

    physical: int
    threads: int
    every: int


def safeguards(settings: Settings) -> sf.Safeguards:
    """Fresh noise and samples from the operating system, or repeatable ones, which protect nobody."""
    if settings.seeded_noise:
        return sf.Safeguards(noise=SeededNoise(settings.seed), sampling=np.random.default_rng(settings.seed))
    return sf.Safeguards()


def run(settings: Settings, how: How, split: Split, bar: Progress) -> results.Result:
    """Calibrate, train and measure once."""
    size = split.train.count
    recipe = recipe_of(settings, size)
    steps = draft_of(recipe, size).steps
    task = bar.add_task(title(settings), total=steps, now="calibrating")
    plan, model = plan_of(recipe, size), network_of(recipe)
    show = lambda step, text: bar.update(task, completed=step, now=text)
    watch = Watch(model, split.test, steps_per_epoch(settings, size), how.every, steps, show)
    running = sf.Running(physical=how.physical, watch=watch)
    guards = safeguards(settings)
    started = time.perf_counter()
    sf.train(plan, loss_of(recipe, model), split.train, safeguards=guards, running=running)
    final = watch.curve[-1]
    return {
        **identity(settings, size),
        **cost(plan, recipe.delta, seeded=settings.seeded_noise),
        "accuracy_last": final["last"],
        "accuracy_ema": final["ema"],
        "curve": watch.curve,
        "seconds": time.perf_counter() - started,
        "how": asdict(how) | versions(),
        "parameters": parameter_count(model),
    }


def cost(plan: sf.Plan, delta: float, *, seeded: bool) -> dict[str, Any]:
    """The plan's noise, and what the accountant says of it; seeded noise has no epsilon."""
    return {
        "rate": plan.rate,
        "steps": [phase.steps for phase in plan.phases],
        "noise_multipliers": [phase.noise_multiplier for phase in plan.phases],
        "epsilon": None if seeded else plan.epsilon(delta),
        "stamp": SEEDED if seeded else "",
    }


def versions() -> dict[str, str]:
    return {"saltflat": sf.__version__, "torch": torch.__version__, "python": platform.python_version()}


def title(settings: Settings) -> str:
    """One line for the progress bar; seeded runs say what they are."""
    stamp = f" {SEEDED}" if settings.seeded_noise else ""
    return f"{settings.data} {settings.method}, epsilon {settings.epsilon:g}, seed {settings.seed}{stamp}"


def series(given: argparse.Namespace) -> Iterator[Settings]:
    """Every combination that was asked for; one seed of everything comes before the next seed."""
    for seed, epsilon, method in itertools.product(given.seed, given.epsilon, given.methods):
        yield Settings(
            data=given.data,
            method=method,
            epsilon=epsilon,
            seed=seed,
            epochs=given.epochs or epochs_of(shipped(RECIPES[method]).phase),
            batch=given.batch,
            seeded_noise=given.seeded_noise,
        )


def positive(text: str) -> int:
    """A whole number of at least 1, or argparse's refusal."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or ``words`` in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", choices=("fashion-mnist", "mnist"), default="fashion-mnist", help="(default: %(default)s)")
    add("--data-dir", type=Path, help="the folder that holds the data sets (default: SALTFLAT_DATA)")
    add("--methods", nargs="+", choices=RECIPES, default=list(RECIPES), help="(default: all)")
    add("--epsilon", nargs="+", type=float, default=[1.0, 3.0], help="(default: 1 3)")
    add("--seed", nargs="+", type=int, default=[0, 1], help="of the first weights only (default: 0 1)")
    add("--seeded-noise", action="store_true", help="noise and samples from the seed too: NOT PRIVATE")
    add("--epochs", type=positive, help="(default: as the recipe says)")
    add("--batch", type=positive, default=2048, help="nominal expected batch (default: %(default)s)")
    add("--physical", type=positive, default=512, help="examples in memory at once (default: %(default)s)")
    add("--threads", type=positive, default=os.cpu_count(), help="(default: all cores)")
    add("--every", type=positive, default=5, help="epochs between two tests (default: %(default)s)")
    add("--out", type=Path, default=Path(__file__).with_name("results.jsonl"), help="(default: %(default)s)")
    return parser.parse_args(words)


def run_all(given: argparse.Namespace, console: Console) -> None:
    """Every run that the file does not hold yet, each written when it ends."""
    torch.set_num_threads(given.threads)
    results.check_writable(given.out)
    split = load(given.data, given.data_dir)
    runs, size = list(series(given)), split.train.count
    for settings in runs:
        draft_of(recipe_of(settings, size), size)  # what is wrong is said now, not between two runs
    how = How(physical=given.physical, threads=given.threads, every=given.every)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[now]}"))
    with Progress(TextColumn("{task.description}"), *columns, console=console) as bar:
        for settings in runs:
            if done(settings, size, results.read(given.out)):
                bar.console.print(
                    f"{title(settings)}: already in {given.out}", highlight=False, soft_wrap=True
                )
                continue
            results.append(given.out, run(settings, how, split, bar))


def main(words: Sequence[str] | None = None) -> int:
    """Run the series; 0 if all of it is in the file, 130 if it was interrupted, 1 if something is wrong."""
    given, console = arguments(words), Console(stderr=True)
    try:
        run_all(given, console)
    except KeyboardInterrupt:
        said = f"interrupted: {given.out} has every finished run; the same command goes on from there"
        console.print(said, highlight=False, soft_wrap=True)
        return 130
    except (SaltflatError, OSError) as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
