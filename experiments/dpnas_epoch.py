"""How long one private epoch of DPNASNet-MNIST takes, channels last and channels first.

python experiments/dpnas_epoch.py                      # one epoch of MNIST, channels last
python experiments/dpnas_epoch.py --steps 2 --order channels_last contiguous
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fashion_mnist
import torch
from fashion_mnist import Settings, positive
from rich.console import Console
from rich.progress import track
from torch import nn

import saltflat as sf
from saltflat.core.contribution import Predict
from saltflat.data import Split, load
from saltflat.errors import SaltflatError
from saltflat.models import parameter_count
from saltflat.recipes import Network, network_of, plan_of

ORDERS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


def loss_in(order: torch.memory_format) -> Any:
    """Cross-entropy of images whose channels lie in this order; the order changes no value."""
    criterion = nn.CrossEntropyLoss(reduction="none")

    def loss(predict: Predict, batch: Any) -> torch.Tensor:
        images, labels = batch
        return criterion(predict(images.contiguous(memory_format=order)), labels)

    return loss


def timed(order: str, given: argparse.Namespace, split: Split) -> dict[str, Any]:
    """Train for the given steps, or one epoch; seconds, examples per second, and test accuracy after it."""
    settings = Settings(data="mnist", method="dp-sgd", epsilon=3.0, seed=0, epochs=1, batch=given.batch)
    size = split.train.count
    recipe = replace(fashion_mnist.recipe_of(settings, size), model=Network("dpnas_mnist"), ema=None)
    plan = plan_of(recipe, size)
    steps = min(given.steps or plan.steps, plan.steps)
    plan = replace(plan, phases=(replace(plan.phases[0], steps=steps),))
    model = network_of(recipe).to(memory_format=ORDERS[order])
    private = sf.per_example(model, loss_in(ORDERS[order]))
    bar = iter(track(range(steps), description=order, console=Console(stderr=True)))
    running = sf.Running(physical=given.physical, watch=lambda progress: next(bar, None))
    started = time.perf_counter()
    params = sf.train(plan, private, split.train, running=running)
    seconds = time.perf_counter() - started
    next(bar, None)
    return {
        "order": order,
        "parameters": parameter_count(model),
        "steps": steps,
        "seconds": round(seconds, 1),
        "examples_per_second": round(steps * plan.expected_units / seconds),
        "test_accuracy": fashion_mnist.accuracy(model, params, split.test),
        "epsilon": plan.epsilon(recipe.delta),
        "delta": recipe.delta,
    }


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or ``words`` in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--order", nargs="+", choices=ORDERS, default=["channels_last"], help="(default: %(default)s)")
    add("--steps", type=positive, help="(default: one epoch)")
    add("--batch", type=positive, default=2048, help="nominal expected batch (default: %(default)s)")
    add("--physical", type=positive, default=64, help="examples in memory at once (default: %(default)s)")
    add("--threads", type=positive, default=os.cpu_count(), help="(default: all cores)")
    add("--data-dir", type=Path, help="the folder that holds mnist/ (default: SALTFLAT_DATA)")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Time each order; 0 if all went well, 130 if interrupted, 1 if something is wrong."""
    given = arguments(words)
    torch.set_num_threads(given.threads)
    try:
        split = load("mnist", given.data_dir)
        for order in given.order:
            print(timed(order, given, split), flush=True)
    except KeyboardInterrupt:
        return 130
    except SaltflatError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
