"""What `saltflat suggest` knows: private training on made-up tables, settings chosen on some, measured on others.

python experiments/suggest.py              # chooses, then measures; goes on where it was stopped
python experiments/suggest.py --table      # writes what ships with the package, from the finished runs
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
from rich.console import Console
from torch import Tensor, nn

import saltflat as sf
from saltflat.models import mlp
from saltflat.privacy import SeededNoise

HERE = Path(__file__).parent
SHIPPED = HERE.parent / "src" / "saltflat" / "advice" / "measured.csv"
SIZES, EPSILONS = (200, 1_000, 5_000, 20_000), (0.5, 1.0, 3.0, 8.0)
DEPTHS = (0, 1)  # of `mlp`: a linear model, and one hidden layer of 32
SEEDS = (0, 1, 2)  # each draws another problem of its family, other rows, weights and noise
TEST = 4_000
RADIUS, MOMENTUM = 0.03, 0.9


# Problems. Inputs have the form that a table's reader gives: numbers inside [-1, 1] by a declared range (here -3 to 3),
# and 0 or 1 for categories.


@dataclass(frozen=True)
class Problem:
    """A family of tables; ``draw`` makes rows of the one whose secrets a generator draws."""

    name: str
    features: int
    classes: int
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def in_range(z: np.ndarray) -> np.ndarray:
    return np.clip(z / 3, -1, 1)


def by_logit(source: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return (source.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(np.int64)


def linear(source: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """20 numbers, all of which matter a little."""
    w = source.normal(size=20)
    z = source.normal(size=(n, 20))
    return in_range(z), by_logit(source, 3 * z @ w / np.linalg.norm(w))


def clouds(source: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping clouds in 12 dimensions."""
    centres = source.normal(size=(3, 12)) * 0.6
    y = source.integers(3, size=n)
    return in_range(centres[y] + source.normal(size=(n, 12)) * 0.8), y


def rules(source: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds joined by and and or, among 10 numbers; one label in twenty is wrong."""
    a, b, c = source.permutation(10)[:3]
    z = source.normal(size=(n, 10))
    y = ((z[:, a] > -0.2) & (z[:, b] > -0.5)) | (z[:, c] > 1)
    return in_range(z), np.where(source.random(n) < 0.05, ~y, y).astype(np.int64)


def survey(source: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """5 numbers and 5 questions of 6 answers each."""
    return _survey(source, n, numbers=5, questions=5, answers=6, shift=0.0)


def rare(source: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """15 numbers and 3 questions of 4 answers; about one row in five is positive."""
    return _survey(source, n, numbers=15, questions=3, answers=4, shift=-2.2)


def _survey(
    source: np.random.Generator, n: int, *, numbers: int, questions: int, answers: int, shift: float
) -> tuple[np.ndarray, np.ndarray]:
    w, effects = source.normal(size=numbers), source.normal(size=(questions, answers))
    z, picks = source.normal(size=(n, numbers)), source.integers(answers, size=(n, questions))
    told = effects[np.arange(questions), picks].sum(1) - effects.mean(1).sum()
    logits = 1.5 * z @ w / np.linalg.norm(w) + 1.5 * told / np.sqrt(questions) + shift
    return np.hstack([in_range(z), np.eye(answers)[picks].reshape(n, -1)]), by_logit(source, logits)


def teacher(source: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The sign of a random network with 6 hidden units over 20 numbers."""
    first, last = source.normal(size=(20, 6)) / np.sqrt(5), source.normal(size=6)
    z = source.normal(size=(n, 20))
    return in_range(z), by_logit(source, 4 * np.tanh(z @ first) @ last / np.linalg.norm(last))


def ring(source: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Inside or outside of an ellipsoid in 6 dimensions that is off the centre."""
    centre, z = source.normal(size=6) * 0.5, source.normal(size=(n, 6))
    far = ((z - centre) ** 2).sum(1)
    return in_range(z), (far > 6 + centre @ centre).astype(np.int64)


def sparse(source: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """60 numbers, 5 of which matter."""
    w = np.zeros(60)
    w[source.permutation(60)[:5]] = source.choice([-1.0, 1.0], size=5)
    z = source.normal(size=(n, 60))
    return in_range(z), by_logit(source, 3 * z @ w / np.linalg.norm(w))


def pairs(source: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Five classes in 30 dimensions, each of two clouds."""
    centres = source.normal(size=(5, 2, 30)) * 0.6
    y, which = source.integers(5, size=n), source.integers(2, size=n)
    return in_range(centres[y, which] + source.normal(size=(n, 30)) * 0.8), y


CHOSEN_ON = (
    Problem("linear", 20, 2, linear),
    Problem("clouds", 12, 3, clouds),
    Problem("rules", 10, 2, rules),
    Problem("survey", 35, 2, survey),
)
MEASURED_ON = (
    Problem("teacher", 20, 2, teacher),
    Problem("ring", 6, 2, ring),
    Problem("sparse", 60, 2, sparse),
    Problem("pairs", 30, 5, pairs),
    Problem("rare", 27, 2, rare),
)
ALL = {problem.name: problem for problem in (*CHOSEN_ON, *MEASURED_ON)}


@cache
def rows(name: str, size: int, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test rows of one problem."""
    x, y = ALL[name].draw(np.random.default_rng([seed, size, sorted(ALL).index(name)]), size + TEST)
    inputs, targets = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)
    return (inputs[:size], targets[:size]), (inputs[size:], targets[size:])


# Settings


@dataclass(frozen=True)
class Config:
    """One way to train. ``rate`` and ``steps`` are the same at every size; ``batch`` and ``epochs`` follow."""

    depth: int
    method: str
    clip: float
    lr: float
    rate: float
    steps: int


def configs(size: int) -> list[Config]:
    """The grid. With SGD a step is about lr x clip long, so that product (the reach) is what is varied.

    What did best at the smaller sizes is the grid of the larger ones, where runs take longer.
    """
    small = size <= 1_000
    lengths = ((0.1, 60), (0.3, 60), (0.3, 180)) if small else ((0.3, 60), (0.3, 180))
    every = tuple(itertools.product((0.1, 1.0), (0.1, 0.4, 1.6)))  # clip norm, reach
    few = {"DPSGD": ((0.1, 0.1), (0.1, 0.4), (0.1, 1.6), (1.0, 0.4)), "SAT": ((0.1, 0.1), (0.1, 0.4))}
    if size > 5_000:
        few = {"DPSGD": ((0.1, 0.4), (0.1, 1.6)), "SAT": ((0.1, 0.4),)}
    found = []
    for depth, (rate, steps) in itertools.product(DEPTHS, lengths):
        for method in ("DPSGD", "SAT"):
            found += [
                Config(depth, method, clip, reach / clip, rate, steps)
                for clip, reach in (every if small else few[method])
            ]
        found += [
            Config(depth, "AdamBC", 0.1, lr, rate, steps) for lr in ((0.01, 0.05) if small else (0.05,))
        ]
    return found


def delta_of(size: int) -> float:
    return min(1e-5, 1 / (10 * size))


def parts(config: Config, noise_std: float) -> tuple[Any, Any]:
    """Method and optimizer. AdamBC's floor is the variance of the noise, a public number."""
    if config.method == "AdamBC":
        return sf.methods.DPSGD(), sf.optimizers.AdamBC(lr=config.lr, floor=noise_std**2)
    method = sf.methods.SAT(radius=RADIUS) if config.method == "SAT" else sf.methods.DPSGD()
    return method, sf.optimizers.SGD(lr=config.lr, momentum=MOMENTUM)


def plan_of(config: Config, size: int, noise: float) -> sf.Plan:
    method, optimizer = parts(config, noise * config.clip / (config.rate * size))
    phase = sf.Phase(
        method=method,
        steps=config.steps,
        noise_multiplier=noise,
        clip_norm=config.clip,
        optimizer=optimizer,
    )
    return sf.Plan(phases=(phase,), rate=config.rate, size=size)


@cache
def noise_of(rate: float, steps: int, epsilon: float, delta: float) -> float:
    """Only rate and steps cost anything: one calibration serves every method, clip norm and learning rate."""
    draft = plan_of(Config(0, "DPSGD", 1.0, 1.0, rate, steps), 1_000, 1.0)
    return sf.calibrate(draft, epsilon=epsilon, delta=delta).phases[0].noise_multiplier


def network(config: Config, problem: Problem, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return mlp(problem.features, problem.classes, depth=config.depth)


def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float((model(test[0]).argmax(1) == test[1]).double().mean())


def private(config: Config, problem: Problem, size: int, epsilon: float, seed: int) -> float:
    """The test accuracy of one private training, whose noise is seeded: nothing here is private."""
    train, test = rows(problem.name, size, seed)
    model = network(config, problem, seed)
    plan = plan_of(config, size, noise_of(config.rate, config.steps, epsilon, delta_of(size)))
    sf.train(
        plan,
        sf.per_example(model, sf.supervised(nn.CrossEntropyLoss(reduction="none"))),
        sf.data.TensorUnits(train),
        safeguards=sf.Safeguards(noise=SeededNoise(seed), sampling=np.random.default_rng(seed)),
        running=sf.Running(physical=8192),
    )
    return accuracy(model, test)


def plain(depth: int, problem: Problem, size: int, seed: int) -> float:
    """The same model without privacy: Adam on all rows, stopped where the test accuracy was best, in its favour."""
    (x, y), test = rows(problem.name, size, seed)
    model = network(Config(depth, "", 1, 1, 1, 1), problem, seed)
    optimizer, best = torch.optim.Adam(model.parameters(), lr=0.02), 0.0
    for step in range(1, 401):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 20 == 0:
            best = max(best, accuracy(model, test))
    return best


def guess(problem: Problem, size: int, seed: int) -> float:
    """Always the most common class of the test rows."""
    _, (_, y) = rows(problem.name, size, seed)
    return float(y.bincount(minlength=problem.classes).max()) / len(y)


# What is run


def jobs(done: dict[str, float], sizes: Sequence[int] = SIZES) -> Iterator[tuple[str, Callable[[], float]]]:
    """Every run, by its key: first the grid, then what it chose, on other problems, beside the model without privacy.

    What is chosen depends on the runs in ``done``, which grows as the jobs are done.
    """
    cells = list(itertools.product(sizes, EPSILONS))
    for size, epsilon in cells:
        for config, problem in itertools.product(configs(size), CHOSEN_ON):
            run = lambda c=config, p=problem, n=size, e=epsilon: private(c, p, n, e, 0)
            yield key("choose", size, epsilon, config, problem, 0), run
    for size, depth, problem, seed in itertools.product(sizes, DEPTHS, MEASURED_ON, SEEDS):
        yield (
            f"plain {size} {depth} {problem.name} {seed}",
            lambda d=depth, p=problem, n=size, s=seed: plain(d, p, n, s),
        )
    for (size, epsilon), depth in itertools.product(cells, DEPTHS):
        config = chosen(done, size, epsilon, depth)
        for problem, seed in itertools.product(MEASURED_ON, SEEDS):
            run = lambda c=config, p=problem, n=size, e=epsilon, s=seed: private(c, p, n, e, s)
            yield key("measure", size, epsilon, config, problem, seed), run


def key(stage: str, size: int, epsilon: float, config: Config, problem: Problem, seed: int) -> str:
    said = " ".join(
        f"{value:g}" if isinstance(value, float) else str(value) for value in asdict(config).values()
    )
    return f"{stage} {size} {epsilon:g} {said} {problem.name} {seed}"


def chosen(done: dict[str, float], size: int, epsilon: float, depth: int) -> Config:
    """The settings with the best mean accuracy over the problems to choose on."""
    score = lambda c: statistics.fmean(done[key("choose", size, epsilon, c, p, 0)] for p in CHOSEN_ON)
    return max((config for config in configs(size) if config.depth == depth), key=score)


# What ships


def table(done: dict[str, float]) -> str:
    """One row for each size, epsilon and depth: the settings, and how they did where they were not chosen.

    A size that is not finished is left out whole.
    """
    lines = []
    finished = [size for size in SIZES if is_finished(done, size)]
    for size, epsilon, depth in itertools.product(finished, EPSILONS, DEPTHS):
        config = chosen(done, size, epsilon, depth)
        mean = lambda score: statistics.fmean(score(seed) for seed in SEEDS)
        found, without, guesses = [], [], []
        for p in MEASURED_ON:
            found.append(
                mean(lambda s, p=p, c=config, n=size, e=epsilon: done[key("measure", n, e, c, p, s)])
            )
            without.append(mean(lambda s, p=p, n=size, d=depth: done[f"plain {n} {d} {p.name} {s}"]))
            guesses.append(mean(lambda s, p=p, n=size: guess(p, n, s)))
        line = {"size": size, "epsilon": epsilon, **asdict(config)}
        line |= {"accuracy": statistics.fmean(found), "lowest": min(found), "highest": max(found)}
        line |= {"plain": statistics.fmean(without), "guess": statistics.fmean(guesses)}
        line["chosen_on"] = statistics.fmean(
            done[key("choose", size, epsilon, config, p, 0)] for p in CHOSEN_ON
        )
        lines.append({name: f"{v:.4g}" if isinstance(v, float) else v for name, v in line.items()})
    file = io.StringIO()
    writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def is_finished(done: dict[str, float], size: int) -> bool:
    """Whether every run of a size is there."""
    try:
        return all(name in done for name, _ in jobs(done, [size]))
    except KeyError:  # what is chosen needs the whole grid
        return False


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=HERE.parent / "runs" / "suggest.jsonl", help="finished runs"
    )
    parser.add_argument("--table", action="store_true", help="write the table from the finished runs")
    parser.add_argument("--shipped", type=Path, default=SHIPPED, help="where the table goes")
    given = parser.parse_args(words)
    results.check_writable(given.out)
    done = {line["run"]: line["accuracy"] for line in results.read(given.out)}
    if given.table:
        given.shipped.write_text(table(done))
        return
    torch.set_num_threads(1)
    console, began = Console(), time.monotonic()
    for number, (name, run) in enumerate(jobs(done)):
        if name not in done:
            done[name] = run()
            results.append(given.out, {"run": name, "accuracy": round(done[name], 5)})
        if number % 250 == 0:
            console.print(f"{number} runs, {time.monotonic() - began:.0f} s: {name}", highlight=False)


if __name__ == "__main__":
    main()
