"""What `saltflat.fit` gives with nothing but a model, data, a loss and an epsilon, from 200 rows to 200,000.

    python experiments/small_data.py
    python experiments/small_data.py --sizes 200 --epsilon 3 --seeds 1

The rows are made up: 20 numbers each, two classes, a border with a bend in it, and some labels that no model can know.
Test rows are 10,000 others. A line is a size and an epsilon, the mean over seeds; no run is left out.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import saltflat as sf

FEATURES, TESTED = 20, 10_000
CRITERION = nn.CrossEntropyLoss(reduction="none")
Rows = tuple[Tensor, Tensor]


def made_up(size: int, seed: int) -> tuple[Rows, Rows]:
    """Rows for training and for testing; the border is the same for every size and seed.

    >>> (x, y), (others, _) = made_up(200, seed=0)
    >>> x.shape, y.shape, len(others)
    (torch.Size([200, 20]), torch.Size([200]), 10000)
    """
    border = torch.randn(FEATURES, generator=torch.Generator().manual_seed(99))
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(size + TESTED, FEATURES, generator=source)
    score = x @ border / border.norm() + 0.5 * x[:, 0] * x[:, 1]
    y = (score + 0.3 * torch.randn(len(x), generator=source) > 0).long()
    return (x[:size], y[:size]), (x[size:], y[size:])


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 2))


@torch.no_grad()
def accuracy(model: nn.Module, rows: Rows) -> float:
    return float((model(rows[0]).argmax(1) == rows[1]).float().mean())


class _Stamped(io.StringIO):
    """A screen that remembers when something was first shown on it."""

    first: float | None = None

    def write(self, text: str) -> int:
        if self.first is None:
            self.first = time.perf_counter()
        return super().write(text)


@dataclass(frozen=True)
class Measured:
    """One call of `fit`: how good its model is, and how long it took."""

    accuracy: float
    steps: int
    delta: float
    seconds: float
    until_shown: float


def measured(size: int, seed: int, epsilon: float | None) -> Measured:
    """Fit once; without an epsilon the plain baseline."""
    rows, tested = made_up(size, seed)
    model = network(seed)
    given = {"private": False} if epsilon is None else {"epsilon": epsilon}
    screen, real = _Stamped(), sys.stderr
    sys.stderr, start = screen, time.perf_counter()
    try:
        fitted = sf.fit(model, CRITERION, rows, **given)
    finally:
        sys.stderr = real
    ended = time.perf_counter()
    assert screen.first is not None
    return Measured(accuracy(model, tested), fitted.steps, fitted.delta, ended - start, screen.first - start)


HEAD = "| rows | epsilon | delta | steps | accuracy, each seed | mean | seconds | first shown after |"


def line(size: int, epsilon: float | None, runs: Sequence[Measured]) -> str:
    each = ", ".join(f"{run.accuracy:.3f}" for run in runs)
    mean = lambda get: statistics.mean(get(run) for run in runs)
    cost = ("-", "-") if epsilon is None else (f"{epsilon:g}", f"{runs[0].delta:g}")
    cells = (
        *(f"{size:,}", *cost, f"{runs[0].steps:,}", each, f"{mean(lambda run: run.accuracy):.3f}"),
        *(f"{mean(lambda run: run.seconds):.1f}", f"{max(run.until_shown for run in runs):.2f} s"),
    )
    return f"| {' | '.join(cells)} |"


def main(words: Sequence[str], write: Callable[[str], None] = print) -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--sizes", type=int, nargs="+", default=[200, 500, 1_000, 2_000, 5_000, 200_000])
    given.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    given.add_argument("--seeds", type=int, default=3)
    asked = given.parse_args(words)
    torch.set_num_threads(1)
    write(HEAD)
    write("|---|---|---|---|---|---|---|---|")
    for size in asked.sizes:
        for epsilon in (*asked.epsilon, None):
            write(line(size, epsilon, [measured(size, seed, epsilon) for seed in range(asked.seeds)]))


if __name__ == "__main__":
    main(sys.argv[1:])
