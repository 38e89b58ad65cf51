"""What looking at a landscape costs: a Hessian-vector product, lambda_max, a surface.

python benchmarks/landscape.py --data-dir data
python benchmarks/landscape.py --examples 200 --grid 5        # a glance

The network is the 26,010-parameter CNN of the DP-SGD tutorials with tanh, after some steps of plain Adam on the
examples that it is measured with: MNIST's test images, or random ones where there is no MNIST.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from report import machine
from torch import Tensor, nn

from saltflat import data
from saltflat.core.sampling import physical
from saltflat.errors import SaltflatError
from saltflat.landscape import (
    PUBLIC,
    Hessian,
    Krylov,
    Objective,
    ends,
    krylov,
    of_model,
    random_directions,
    surface,
)
from saltflat.landscape.lanczos import start_of
from saltflat.landscape.subset import evenly
from saltflat.models import tanh_cnn_mnist
from saltflat.runs.survey import LOSS, MOST
from saltflat.tree import Tree

Batches = list[tuple[Tensor, Tensor]]


def examples(count: int, folder: Path | None) -> tuple[str, Batches]:
    """What is looked at, by name, in the batches that the command would make."""
    try:
        test = data.load("mnist", folder).test
        inputs, targets = test.take(evenly(test.count, count))
        name = "MNIST test images"
    except SaltflatError:
        draw = torch.Generator().manual_seed(0)
        inputs = torch.randn(count, 1, 28, 28, generator=draw)
        targets, name = torch.randint(10, (count,), generator=draw), "random images (no MNIST found)"
    return name, [(inputs[part], targets[part]) for part in physical(np.arange(count), MOST)]


def trained(batches: Batches, steps: int) -> nn.Module:
    """The network after some steps of Adam."""
    torch.manual_seed(0)
    model = tanh_cnn_mnist()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        inputs, targets = batches[step % len(batches)]
        optimizer.zero_grad()
        LOSS(model(inputs), targets).mean().backward()
        optimizer.step()
    return model


def interleaved(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of each job; they take turns, so that a slow minute of the machine hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):  # the first one warms up
        for name, job in jobs.items():
            started = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(each) for name, each in seconds.items()}


def products_needed(space: Krylov, reference: float, within: float = 0.01) -> int | None:
    """After how many products the largest Ritz value stays within ``within`` of the reference; None if never."""
    tops = []
    for k in range(1, len(space.alphas) + 1):
        values, _ = Krylov(space.basis[:k], space.alphas[:k], space.betas[:k]).ritz()
        tops.append(float(values[-1]))
    far = [k for k, top in enumerate(tops, 1) if abs(top - reference) > within * abs(reference)]
    last = far[-1] if far else 0
    return last + 1 if last < len(tops) else None


def product_costs(objective: Objective, params: Tree, rounds: int) -> str:
    """One product relative to one gradient, with graphs kept (as by default) and without."""
    kept, anew = Hessian(objective, params), Hessian(objective, params, room=0)
    vector = start_of(kept, 0)
    medians = interleaved(
        {
            "gradient": lambda: objective.gradient(params),
            "kept": lambda: kept @ vector,
            "anew": lambda: anew @ vector,
        },
        rounds,
    )
    plain = medians["gradient"]
    return (
        f"a Hessian-vector product: {medians['kept'] / plain:.2f} gradients ({medians['anew'] / plain:.2f} without "
        f"kept graphs); a gradient: {1000 * plain:.0f} ms (medians of {rounds} interleaved rounds)"
    )


def eigenvalue_costs(objective: Objective, params: Tree, starts: int = 3) -> str:
    """Products until lambda_max is found, from several random starts."""
    operator = Hessian(objective, params)
    reference = ends(operator, count=1, steps=150, tolerance=1e-5, seed=100)
    spaces = [krylov(operator, start_of(operator, seed), steps=40) for seed in range(starts)]
    needed = [products_needed(space, reference.largest[0]) for space in spaces]
    shown = ", ".join("more than 40" if n is None else str(n) for n in needed)
    state = "converged" if reference.converged else "NOT CONVERGED"
    return (
        f"lambda_max within 1 % of {reference.largest[0]:.4f} ({state} after {reference.products} products): after "
        f"{shown} products from {starts} starts"
    )


def surface_costs(objective: Objective, params: Tree, grid: int) -> str:
    places = np.linspace(-1, 1, grid)
    directions = random_directions(params)
    started = time.perf_counter()
    surface(objective, params, directions, places, places)
    return f"a {grid}x{grid} surface: {time.perf_counter() - started:.1f} s"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or ``words`` in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--grid", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of a gradient and a product")
    parser.add_argument("--training", type=int, default=100, help="steps of Adam before it is measured")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--data-dir", type=Path, help="the folder that holds the data sets")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print, one line after the other."""
    given = arguments(words)
    torch.set_num_threads(given.threads)
    print(machine(given.threads))
    name, batches = examples(given.examples, given.data_dir)
    objective, params = of_model(trained(batches, given.training), LOSS, batches, access=PUBLIC)
    found = objective.evaluated(params)
    print(f"{given.examples} {name}, float32; loss {found.loss:.3f}, accuracy {found.accuracy:.1%}")
    print(product_costs(objective, params, given.rounds), flush=True)
    print(eigenvalue_costs(objective, params), flush=True)
    print(surface_costs(objective, params, given.grid), flush=True)


if __name__ == "__main__":
    main()
