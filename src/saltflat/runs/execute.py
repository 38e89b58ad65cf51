"""One run in one folder: its recipe, record, checkpoints, metrics, statement and model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from saltflat.core.plan import Plan
from saltflat.core.resume import Checkpoints
from saltflat.core.step import Safeguards
from saltflat.core.train import Progress, Running, train
from saltflat.data import Examples, Form, Split
from saltflat.privacy.record import durable
from saltflat.privacy.record.history import Budget
from saltflat.privacy.record.ledger import Ledger, Run
from saltflat.privacy.record.statement import Declared, Statement, state
from saltflat.recipes import Recipe
from saltflat.recipes.build import check_shapes, loss_of, network_of
from saltflat.runs.begin import begun, held
from saltflat.runs.identity import identity_of
from saltflat.runs.layout import Folder, Reading, add_reading

READINGS = 20  # how often in a run the test accuracy is taken


def finish(folder: Folder, model: nn.Module, statement: Statement) -> None:
    """Write the statement and the model."""
    durable.replace(folder.statement_text, f"{statement.as_text()}\n".encode())
    durable.replace(folder.statement, f"{statement.as_json()}\n".encode())
    weights = {name: leaf.detach().cpu().contiguous() for name, leaf in model.state_dict().items()}
    durable.replace(folder.model, save(weights, metadata={"format": "pt"}))


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    accuracy: float | None  # on the test examples, if there are any
    error: float | None  # the same where targets are numbers, in their own unit
    statement: Statement
    on_record: float  # epsilon in the ledger at the statement's delta: other runs on this data included


def execute(
    recipe: Recipe,
    plan: Plan,
    split: Split,
    folder: Folder,
    *,
    resume: bool = False,
    ledger: Path | None = None,
    device: str = "cpu",
    watch: Callable[[Progress], None] = lambda progress: None,
    told: Callable[[Reading], None] = lambda reading: None,
) -> Outcome:
    """Train, charge, keep: a new run in the folder, or with ``resume`` the one that is there.

    *Guarantee*: the ledger is charged before each step. The run's own ledger refuses the step that would pass the
    recipe's epsilon, if there is one; one that is shared (``ledger``) refuses by its own budget. A new run that fails
    before its first charge leaves the folder as it was.
    """
    check_shapes(recipe, Form(split.shape, split.classes, split.span))
    model = network_of(recipe).to(device)
    contribution = loss_of(recipe, model)
    units, test = split.train.to(device), replace(split, test=split.test.to(device))
    start = held(folder) if resume else begun(folder, recipe, ledger or folder.ledger)
    with start, _charged(recipe, plan, folder, ledger) as (book, run):
        readings = _Readings(recipe, plan, test, network_of(recipe).to(device), run)

        def after(progress: Progress) -> None:
            watch(progress)
            reading = readings.after(progress)
            if reading is not None:
                add_reading(folder.metrics, reading)
                told(reading)

        running = Running(
            physical=recipe.physical,
            checkpoints=Checkpoints(folder.checkpoints, every=max(1, recipe.spare // 2)),
            watch=after,
        )
        train(plan, contribution, units, safeguards=Safeguards(meter=run), running=running)
        event, on_record = plan.event_on_record(run.charged()), book.epsilon(recipe.delta)
    statement = state(event, Declared(delta=recipe.delta, size=plan.size))
    finish(folder, model, statement)
    right, error = scores(model, test, recipe.physical)
    return Outcome(right, error, statement, on_record)


@dataclass
class _Readings:
    """Takes a reading every so often; ``at`` and ``when`` are those of the one before, or of the first step."""

    recipe: Recipe
    plan: Plan
    split: Split
    probe: nn.Module  # a second network, so that the one in training is left alone
    run: Run
    at: int | None = None
    when: float = 0.0

    def after(self, progress: Progress) -> Reading | None:
        now = time.perf_counter()
        if self.at is None:
            self.at, self.when = progress.step, now
        every = max(1, self.plan.steps // READINGS)
        if progress.step % every and progress.step != self.plan.steps:
            return None
        taken, seconds = progress.step - self.at, now - self.when
        right, error = scores(_with(progress.ending, self.probe), self.split, self.recipe.physical)
        reading = Reading(
            step=progress.step,
            epoch=progress.step * self.plan.rate,
            phase=progress.phase,
            epsilon=self.run.epsilon(self.recipe.delta),
            accuracy=right,
            error=error,
            seconds=seconds,
            examples_per_second=self.plan.expected_units * taken / seconds if taken else 0.0,
        )
        self.at, self.when = progress.step, time.perf_counter()
        return reading


@contextmanager
def _charged(recipe: Recipe, plan: Plan, folder: Folder, shared: Path | None) -> Iterator[tuple[Ledger, Run]]:
    """The ledger, and the folder's run in it; few steps are reserved at a time, as a crash wastes them.

    The run is known by its identity, wherever the folder is; the path is there for people to read.
    """
    budget = None if shared is not None else _budget(recipe, plan)
    block, identity = max(1, recipe.spare // 4), identity_of(folder.path)
    with (
        Ledger.open(shared or folder.ledger, dataset=recipe.data, budget=budget) as book,
        book.run(str(folder.path), unit="example", block=block, identity=identity) as run,
    ):
        yield book, run


def _budget(recipe: Recipe, plan: Plan) -> Budget | None:
    """That of the run's own ledger: a filter, where results decide when the noise changes; none without an epsilon."""
    if recipe.epsilon is None:
        return None
    order = plan.filter(recipe.delta).order if plan.data_driven else None
    return Budget(epsilon=recipe.epsilon, delta=recipe.delta, order=order)


def accuracy(model: nn.Module, examples: Examples, size: int) -> float:
    """The share of public examples whose largest output is the label."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in examples.batches(size))
    return right / examples.count


def rms_error(model: nn.Module, examples: Examples, span: tuple[float, float], size: int) -> float:
    """The root of the mean squared error on public examples, in the unit of the target's declared range."""
    model.eval()
    with torch.no_grad():
        total = sum(float(((model(x).squeeze(1) - y).double() ** 2).sum()) for x, y in examples.batches(size))
    return (total / examples.count) ** 0.5 * (span[1] - span[0]) / 2  # targets lie in [-1, 1]


def scores(model: nn.Module, split: Split, size: int) -> tuple[float | None, float | None]:
    """The accuracy on the test examples, or their error where targets are numbers; neither where there are none."""
    if split.test.count == 0:
        return None, None
    if split.span is not None:
        return None, rms_error(model, split.test, split.span, size)
    return accuracy(model, split.test, size), None


def _with(params: dict[str, torch.Tensor], model: nn.Module) -> nn.Module:
    model.load_state_dict(params, strict=False)
    return model
