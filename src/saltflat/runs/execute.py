"""One run in one folder: its recipe, record, checkpoints, metrics, statement and model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from saltflat.core.plan import Plan
from saltflat.core.resume import Checkpoints
from saltflat.core.step import Safeguards
from saltflat.core.train import Progress, Running, train
from saltflat.data import Examples, Split
from saltflat.errors import DataError, SettingError
from saltflat.privacy.record.history import Budget
from saltflat.privacy.record.ledger import Ledger, Run
from saltflat.privacy.record.statement import Declared, Statement, state
from saltflat.recipes import Recipe, read
from saltflat.recipes.build import loss_of, network_of
from saltflat.runs.identity import begin_identity, identity_of

READINGS = 20  # how often in a run the test accuracy is taken


@dataclass(frozen=True)
class Reading:
    """What is known after some steps. Everything here is released, public, or about the machine."""

    step: int
    epoch: float
    phase: int
    epsilon: float  # on record for this run so far: steps that ran again after a crash count again
    accuracy: float  # of the weights that the run would end with, on the public test examples
    seconds: float  # since the reading before
    examples_per_second: float  # expected ones: how many were drawn stays private


@dataclass(frozen=True)
class Folder:
    """Where a run is kept."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    def begin(self, recipe: Recipe) -> None:
        """Make the folder and write the recipe down; a folder with a run in it is refused."""
        if self.recipe.exists():
            raise SettingError(f"{self.path} holds a run already; go on with --resume, or give another --out")
        self.path.mkdir(parents=True, exist_ok=True)
        begin_identity(self.path)  # first: a folder that has a recipe has an identity
        _write(self.recipe, recipe.as_toml())

    def resumed(self) -> Recipe:
        """The recipe of the run that is in the folder."""
        if not self.recipe.exists():
            raise DataError(f"{self.path} holds no run to go on with; leave --resume out to begin one")
        return read(self.recipe)

    def note(self, reading: Reading) -> None:
        """Add a line to the metrics. A step that runs again after a crash has two; the later one counts."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(reading)) + "\n")

    def finish(self, model: nn.Module, statement: Statement) -> None:
        """Write the statement and the model."""
        _write(self.path / "statement.txt", statement.as_text() + "\n")
        _write(self.path / "statement.json", statement.as_json() + "\n")
        unfinished = self.model.with_suffix(".unfinished")
        weights = {name: leaf.detach().cpu().contiguous() for name, leaf in model.state_dict().items()}
        save_file(weights, str(unfinished), metadata={"format": "pt"})
        unfinished.replace(self.model)


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    accuracy: float
    statement: Statement
    on_record: float  # epsilon in the ledger at the statement's delta: other runs on this data included


def execute(
    recipe: Recipe,
    plan: Plan,
    split: Split,
    folder: Folder,
    *,
    ledger: Path | None = None,
    device: str = "cpu",
    watch: Callable[[Progress], None] = lambda progress: None,
    told: Callable[[Reading], None] = lambda reading: None,
) -> Outcome:
    """Train, charge, keep; begin anew or go on, whichever the folder's checkpoints say.

    *Guarantee*: the ledger is charged before each step. The run's own ledger refuses the step that would pass the
    recipe's epsilon; one that is shared (``ledger``) refuses by its own budget.
    """
    model = network_of(recipe).to(device)
    _check_fits(model, split, recipe)
    units, test = split.train.to(device), split.test.to(device)
    with _charged(recipe, plan, folder, ledger) as (book, run):
        readings = _Readings(recipe, plan, test, network_of(recipe).to(device), run)

        def after(progress: Progress) -> None:
            watch(progress)
            reading = readings.after(progress)
            if reading is not None:
                folder.note(reading)
                told(reading)

        running = Running(
            physical=recipe.physical,
            checkpoints=Checkpoints(folder.path / "checkpoints", every=max(1, recipe.spare // 2)),
            watch=after,
        )
        train(plan, loss_of(recipe, model), units, safeguards=Safeguards(meter=run), running=running)
        event, on_record = plan.event_on_record(run.charged()), book.epsilon(recipe.delta)
    statement = state(event, Declared(delta=recipe.delta, size=plan.size))
    folder.finish(model, statement)
    return Outcome(accuracy(model, test, recipe.physical), statement, on_record)


@dataclass
class _Readings:
    """Takes a reading every so often; ``at`` and ``when`` are those of the one before, or of the first step."""

    recipe: Recipe
    plan: Plan
    test: Examples
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
        reading = Reading(
            step=progress.step,
            epoch=progress.step * self.plan.rate,
            phase=progress.phase,
            epsilon=self.run.epsilon(self.recipe.delta),
            accuracy=accuracy(_with(progress.ending, self.probe), self.test, self.recipe.physical),
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


def _budget(recipe: Recipe, plan: Plan) -> Budget:
    """That of the run's own ledger: a filter, where results decide when the noise changes."""
    order = plan.filter(recipe.delta).order if plan.data_driven else None
    return Budget(epsilon=recipe.epsilon, delta=recipe.delta, order=order)


def accuracy(model: nn.Module, examples: Examples, size: int) -> float:
    """The share of public examples whose largest output is the label."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in examples.batches(size))
    return right / examples.count


def _with(params: dict[str, torch.Tensor], model: nn.Module) -> nn.Module:
    model.load_state_dict(params, strict=False)
    return model


def _check_fits(model: nn.Module, split: Split, recipe: Recipe) -> None:
    """Refuse a network that does not take these examples, before anything is charged."""
    try:
        with torch.no_grad():
            inputs, _ = next(split.test.batches(2))
            outputs = model(inputs.to(next(model.parameters()).device))
    except (RuntimeError, ValueError, TypeError) as error:
        first = str(error).strip().splitlines()[0]
        raise SettingError(
            f"{recipe.model} does not take {recipe.data}'s examples of shape {split.shape}: {first}"
        ) from None
    if outputs.ndim != 2 or outputs.shape[1] < split.classes:
        raise SettingError(
            f"{recipe.model} gives outputs of shape {tuple(outputs.shape[1:])}, and {recipe.data} has "
            f"{split.classes} classes; take another model"
        )
