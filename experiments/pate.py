"""PATE with 50 teachers on MNIST or Fashion-MNIST: a student with and without smoothing, on the same released labels.

python experiments/pate.py --data fashion-mnist --seed 0     # where settings were chosen
python experiments/pate.py --data mnist                      # three seeds
python experiments/pate.py --table runs/pate.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import results
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from saltflat import pate
from saltflat.data import Examples, load
from saltflat.errors import SaltflatError
from saltflat.models import mlp, tutorial_cnn
from saltflat.pate.fitting import made, share_right
from saltflat.pate.teachers import Desk

POOL = 2000  # test images that may be asked about; the other 8,000 evaluate, whatever was asked
CAPS = {5.0: (120, 100), 10.0: (300, 250), 20.0: (1000, 800)}  # epsilon: queries, answers


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run: teachers, one interaction, and a student for each amount of jitter, all on the same answers."""

    data: str
    seed: int  # of the parts, first weights, shuffles and jitter; noise is always secret
    epsilon: float
    sigmas: tuple[float, ...]
    teachers: int = 50
    teacher_epochs: int = 10
    teacher_width: int = 64  # of an MLP with one hidden layer; the student is the convolutional network
    threshold: float = 30.0
    ratio: float = 1.5  # of the test's noise to the answer's
    copies: int = 10
    epochs: int = 100
    batch_size: int = 20
    lr: float = 0.02
    momentum: float = 0.9
    delta: float = 1e-5

    def mechanism(self) -> pate.ConfidentGNMax:
        queries, answers = CAPS[self.epsilon]
        cap = pate.Cap(queries=queries, answers=answers)
        rough = pate.ConfidentGNMax(threshold=self.threshold, sigma1=self.ratio, sigma2=1.0, limit=cap)
        return pate.calibrated(rough, epsilon=self.epsilon, delta=self.delta)

    def student(self, sigma: float) -> pate.SmoothedStudent:
        own = {name: getattr(self, name) for name in ("copies", "epochs", "batch_size", "lr", "momentum")}
        return pate.SmoothedStudent(sigma=sigma, **own)


def identity(settings: Settings) -> dict:
    """What makes two runs the same experiment."""
    caps = dict(zip(("queries", "answers"), CAPS[settings.epsilon], strict=True))
    return {"settings": {**asdict(settings), "sigmas": list(settings.sigmas), **caps, "pool": POOL}}


def taught(
    settings: Settings, private: Examples, pool: Examples, folder: Path, bar: Progress
) -> pate.TeacherVotes:
    """The votes of the seed's teachers, which are kept in a folder of their own and trained once."""
    task = bar.add_task(f"{settings.data}, seed {settings.seed}: teachers", total=settings.teachers, now="")
    make = partial(mlp, 784, 10, width=settings.teacher_width)
    teaching = pate.Teaching(make, pate.SGD(epochs=settings.teacher_epochs), pool, 10, settings.seed)
    layout = pate.by_example(private, settings.teachers, seed=settings.seed)
    own = (settings.teachers, settings.teacher_width, settings.teacher_epochs, settings.seed)
    name = "-".join(map(str, (settings.data, *own)))
    folder.mkdir(parents=True, exist_ok=True)
    watch = lambda done, total: bar.update(task, completed=done)
    return pate.votes_of(teaching, private, layout, desk=Desk(folder / name), watch=watch)


def run(settings: Settings, given: argparse.Namespace, bar: Progress) -> results.Result:
    """Teach, label with fresh noise, and train every student on what was answered."""
    split = load(settings.data, given.data_dir)
    cut = lambda part: replace(split.test, inputs=split.test.inputs[part], targets=split.test.targets[part])
    pool, rest = cut(slice(POOL)), cut(slice(POOL, None))
    began = time.perf_counter()
    votes = taught(settings, split.train, pool, given.private, bar)
    gnmax = settings.mechanism()
    answers = pate.label(votes, gnmax, pate.Counted())
    where = torch.from_numpy(answers.queries)
    lessons = replace(pool, inputs=pool.inputs[where], targets=torch.from_numpy(answers.labels))
    accuracy = {}
    for sigma in settings.sigmas:
        how = settings.student(sigma)
        task = bar.add_task(f"epsilon {settings.epsilon:g}, jitter {sigma:g}", total=how.epochs, now="")
        watch = lambda done, total, task=task: bar.update(task, completed=done)
        model = pate.fitted(made(tutorial_cnn, settings.seed), lessons, how, seed=settings.seed, watch=watch)
        accuracy[f"{sigma:g}"] = share_right(model, rest)
    return {
        **identity(settings),
        "epsilon": gnmax.epsilon(settings.delta),
        "noise": [gnmax.sigma1, gnmax.sigma2],
        "asked": answers.asked,
        "answered": answers.answered,
        "labels_right": float((pool.targets[where].numpy() == answers.labels).mean()),
        "accuracy": accuracy,
        "evaluated": rest.count,
        "seconds": time.perf_counter() - began,
    }


def markdown(found: Sequence[results.Result]) -> str:
    """A line for each amount of jitter: the mean over seeds, and its standard error."""
    heads = ("data", "epsilon", "answered / asked", "labels right", "jitter", "accuracy", "seeds")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    key = lambda one: (one["settings"]["data"], one["settings"]["epsilon"])
    for (data, epsilon), group in itertools.groupby(sorted(found, key=key), key):
        runs = list(group)
        counts = ", ".join(f"{one['answered']} / {one['asked']}" for one in runs)
        right = statistics.mean(one["labels_right"] for one in runs)
        for sigma in sorted({name for one in runs for name in one["accuracy"]}, key=float):
            scores = [100 * one["accuracy"][sigma] for one in runs if sigma in one["accuracy"]]
            error = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else math.nan
            said = f"{statistics.mean(scores):.2f} ± {error:.2f}"
            cells = (data, f"{epsilon:g}", counts, f"{100 * right:.1f}", sigma, said, str(len(scores)))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or ``words`` in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", choices=("mnist", "fashion-mnist"), default="mnist", help="(default: %(default)s)")
    add("--data-dir", type=Path, help="the folder that holds the data sets (default: SALTFLAT_DATA)")
    add("--seed", nargs="+", type=int, default=[0, 1, 2], help="(default: 0 1 2)")
    add("--epsilon", nargs="+", type=float, choices=CAPS, default=[5.0, 10.0], help="(default: 5 10)")
    add("--sigma", nargs="+", type=float, default=[0.0, 0.03], help="jitter of students (default: 0 0.03)")
    add("--lr", type=float, default=0.02, help="of students (default: %(default)s)")
    add("--epochs", type=int, default=100, help="of students (default: %(default)s)")
    add("--out", type=Path, default=Path("runs/pate.jsonl"), help="(default: %(default)s)")
    add("--private", type=Path, default=Path("runs/pate-private"), help="what teachers chose: private")
    add("--threads", type=int, default=1, help="(default: %(default)s)")
    add("--table", type=Path, help="print the table of a results file, and no more")
    return parser.parse_args(words)


def run_all(given: argparse.Namespace, console: Console) -> None:
    """Every run that the file does not hold yet, each written when it ends."""
    torch.set_num_threads(given.threads)
    results.check_writable(given.out)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[now]}"))
    with Progress(TextColumn("{task.description}"), *columns, console=console) as bar:
        for seed, epsilon in itertools.product(given.seed, given.epsilon):
            own = {"lr": given.lr, "epochs": given.epochs, "sigmas": tuple(given.sigma)}
            settings = Settings(data=given.data, seed=seed, epsilon=epsilon, **own)
            there = [{"settings": one["settings"]} for one in results.read(given.out)]
            if identity(settings) not in there:
                results.append(given.out, run(settings, given, bar))


def main(words: Sequence[str] | None = None) -> int:
    """Run the series; 0 if all of it is in the file, 130 if it was interrupted, 1 if something is wrong."""
    given, console = arguments(words), Console(stderr=True)
    try:
        if given.table is not None:
            print(markdown(results.read(given.table)))
        else:
            run_all(given, console)
    except KeyboardInterrupt:
        console.print(f"interrupted: {given.out} has every finished run; the same command goes on from there")
        return 130
    except (SaltflatError, OSError) as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
