"""``saltflat demo``: DP-SAT and DP-SGD on embedded digits, side by side, at one epsilon."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor, nn

    from saltflat.core.plan import Method, Plan
    from saltflat.data import Split
    from saltflat.privacy.ledger import Ledger

STEPS = 200
EXPECTED_BATCH = 512
CLIP_NORM = 0.1
LEARNING_RATE, MOMENTUM = 2.0, 0.9
RADIUS = 0.03


def register(app: typer.Typer) -> None:
    """Add ``demo`` to ``app``."""
    app.command("demo")(demo)


def demo(
    epsilon: Annotated[float, typer.Option(help="The epsilon that each of the two runs spends.")] = 3.0,
    delta: Annotated[float, typer.Option(help="The delta that goes with it.")] = 1e-5,
    ledger: Annotated[Path | None, typer.Option(help="A ledger file to charge both runs to.")] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="A folder to keep the runs in; the same command goes on from there.")
    ] = None,
) -> None:
    """Train a small network on scikit-learn's digits with DP-SAT, and with DP-SGD beside it.

    Takes under a minute, needs no network and no GPU. Both runs start from the same weights and spend the
    same epsilon; the noise is fresh each time, so accuracies move by a point or two from run to run.
    """
    import torch
    from rich.console import Console

    from saltflat.data import digits
    from saltflat.methods import DPSGD, SAT

    torch.set_num_threads(1)  # a network this small only loses time when threads wait for each other
    console = Console()
    split = digits()
    methods: dict[str, Method] = {"DP-SAT": SAT(RADIUS), "DP-SGD": DPSGD()}
    plans = {name: _plan(method, split.train.count, epsilon, delta) for name, method in methods.items()}
    with _opened(ledger) as book:
        accuracies = {
            name: _run(name, plan, split, console, _surroundings(name, book, checkpoints))
            for name, plan in plans.items()
        }
    _report(accuracies, plans["DP-SAT"], delta, console)
    if book is not None:
        console.print(f"on record in {ledger}: epsilon {book.epsilon(delta):.3f} for all runs so far")


def _opened(path: Path | None) -> Any:
    """The ledger of the digits, or nothing."""
    if path is None:
        return nullcontext()
    from saltflat.privacy.ledger import Ledger

    return Ledger.open(path, dataset="digits")


def _surroundings(name: str, book: Ledger | None, folder: Path | None) -> dict[str, Any]:
    from saltflat import Checkpoints

    return {
        "meter": book and book.run(name, unit="example"),
        "checkpoints": folder and Checkpoints(folder / name, every=50),
    }


def _plan(method: Method, size: int, epsilon: float, delta: float) -> Plan:
    from saltflat import SGD, Phase, Plan, calibrate

    phase = Phase(
        method=method,
        steps=STEPS,
        noise_multiplier=1.0,
        clip_norm=CLIP_NORM,
        optimizer=SGD(lr=LEARNING_RATE, momentum=MOMENTUM),
    )
    return calibrate(
        Plan(phases=(phase,), rate=EXPECTED_BATCH / size, size=size), epsilon=epsilon, delta=delta
    )


def network() -> nn.Module:
    """The network of both methods, from the same initial weights; noise and sampling stay secret."""
    import torch

    from saltflat.models import digits_cnn

    torch.manual_seed(0)
    return digits_cnn()


def _run(name: str, plan: Plan, split: Split, console: Console, kept: dict[str, Any]) -> float:
    """Train with a progress bar; the test images are public, so their accuracy may be shown."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from torch import nn

    from saltflat import Surroundings, per_example, supervised, train

    model = network()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=plan.steps)

        def watch(progress: Any) -> None:
            bar.update(task, completed=progress.step)

        contribution = per_example(model, supervised(nn.CrossEntropyLoss(reduction="none")))
        around = Surroundings(physical=EXPECTED_BATCH, watch=watch, **kept)
        train(plan, contribution, split.train, around)
    return accuracy(model, *split.test.whole())


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images whose largest output is the label."""
    import torch

    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def _report(accuracies: dict[str, float], plan: Plan, delta: float, console: Console) -> None:
    from rich.table import Table

    from saltflat.privacy.statement import Declared, state

    statement = state(plan.event(), Declared(delta=delta, size=plan.size, unit="example"))
    table = Table(
        "method", "test accuracy", "epsilon", title="Digits, 1,437 private images", title_justify="left"
    )
    for name, value in accuracies.items():
        table.add_row(name, f"{value:.1%}", f"{statement.epsilon:.3f}")
    console.print(table)
    (phase,) = plan.phases
    console.print(
        f"epsilon {statement.epsilon:.3f} at delta {delta:g}, for each run by itself\n"
        f"unit: one {statement.unit}; adjacency: {statement.adjacency}\n"
        f"sampling: {statement.sampling}\n"
        f"plan: {plan.steps} steps, noise multiplier {phase.noise_multiplier:.3f}, clip norm {phase.clip_norm:g}\n"
        "This table compares two runs on the same images: releasing both costs more than either.",
        highlight=False,
    )
