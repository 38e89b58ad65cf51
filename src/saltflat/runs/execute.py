"""One run in one folder: its recipe, record, checkpoints, metrics, statement and model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from dp_accounting.dp_event import DpEvent
from safetensors.torch import save
from torch import nn
from torch.nn import functional as F

from saltflat.clipping import as_clip
from saltflat.core.group import Group
from saltflat.core.plan import Plan
from saltflat.core.resume import Checkpoints, as_begun
from saltflat.core.sampling import Units
from saltflat.core.step import Safeguards
from saltflat.core.train import Ended, Progress, Running, train, trained
from saltflat.data import Examples, Form, Split
from saltflat.errors import DataError, PrivacyError
from saltflat.features import described
from saltflat.federated.clients import Clients
from saltflat.federated.measured import clipping_of
from saltflat.landscape.access import PUBLIC, Access
from saltflat.privacy.record import durable
from saltflat.privacy.record.checkpoint import numbers
from saltflat.privacy.record.costs import Cost
from saltflat.privacy.record.history import Budget
from saltflat.privacy.record.ledger import Ledger, Run
from saltflat.privacy.record.statement import Declared, Statement, state
from saltflat.recipes import Recipe
from saltflat.recipes.build import (
    budget_of,
    check_shapes,
    contribution_of,
    draft_of,
    network_of,
    warmed,
    with_pools,
    with_spare,
)
from saltflat.runs.begin import begun, held
from saltflat.runs.clients import keep_clients, units_of
from saltflat.runs.evaluation import Evaluation, name_of
from saltflat.runs.identity import identity_of
from saltflat.runs.layout import (
    PREPROCESSING,
    Before,
    Folder,
    Reading,
    StageOf,
    add_reading,
    as_json,
    before,
)
from saltflat.runs.layout import readings as read_readings
from saltflat.runs.stages import Ready, Told, add_stage, check_taken_out, prepared
from saltflat.runs.weights import keep_point

READINGS = 20  # how often in a run the test accuracy is taken,
ROUNDS = 50  # and in one whose steps are rounds of clients


def finish(folder: Folder, model: nn.Module, statement: Statement) -> None:
    """Write the statement and the model."""
    durable.replace(folder.statement_text, f"{statement.as_text()}\n".encode(), mode=durable.RELEASED)
    durable.replace(folder.statement, f"{statement.as_json()}\n".encode(), mode=durable.RELEASED)
    weights = {name: leaf.detach().cpu().contiguous() for name, leaf in model.state_dict().items()}
    durable.replace(folder.model, save(weights, metadata={"format": "pt"}), mode=durable.RELEASED)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    accuracy: float | None  # on the test examples, if there are any
    error: float | None  # the same where targets are numbers, in their own unit
    statement: Statement
    on_record: float  # epsilon in the ledger at the statement's delta: other runs on this data included
    perplexity: float | None = None  # where targets are words; the accuracy is then the share of words
    before: Before | None = None  # what came before the private phase, and every stage's accuracy


class Book(Protocol):
    """What is on record of all runs: a `Ledger`, or one that another process writes."""

    def epsilon(self, delta: float) -> float: ...


class Account(Protocol):
    """A run's account in it: a ledger's `Run`, or one that another process charges."""

    def step(self, rate: float, noise_multiplier: float) -> None: ...
    def charged(self) -> dict[Cost, int]: ...
    def epsilon(self, delta: float) -> float: ...


class Opened(Protocol):
    """Opens a ledger for the run in a folder, for as long as it goes, as `charged_here` does in this process."""

    def __call__(
        self, recipe: Recipe, plan: Plan, folder: Folder, shared: Path | None, *, unit: str, block: int
    ) -> AbstractContextManager[tuple[Book, Account]]: ...


def _as_it_is(declared: Declared) -> Declared:
    return declared


def execute(
    recipe: Recipe,
    plan: Plan,
    split: Split,
    folder: Folder,
    *,
    resume: bool = False,
    ledger: Path | None = None,
    device: str = "cpu",
    workers: int = 0,
    watch: Callable[[Progress], None] = lambda progress: None,
    told: Callable[[Reading], None] = lambda reading: None,
    access: Access | None = None,
    infinity: Access | None = None,
    preparing: Told = lambda what, done, of: None,
    crashes: int = 1,
    opened: Opened | None = None,
    declare: Callable[[Declared], Declared] = _as_it_is,
) -> Outcome:
    """Train, charge, keep: a new run in the folder, or with ``resume`` the one that is there.

    ``workers`` processes train clients that cannot be trained in stacks; 0: this one. Of examples that stay on disk as
    many threads read the next batch while the network computes.
    What the recipe puts before the private phase comes first (``preparing`` is told of it), and costs nothing.
    With ``access``, which declares the clients' data `PUBLIC`, readings also say what the clip does to their updates.
    With ``infinity``, which declares the training examples so, the same training without noise is done too.
    The recipe's spare steps are to last for ``crashes``: the more there may be, the more often the run is kept.
    ``opened`` opens the ledger where another process writes it; ``declare`` adds to what the statement says.

    Processes that train together (`core.group`) all call it. The first of them alone has the folder and the ledger,
    makes what comes before the private phase, takes readings and ends the run; the others are told.

    *Guarantee*: the ledger is charged before each step. What the planned steps and the spare ones cost, at most the
    recipe's epsilon if it has one, is never passed: a run that lost more steps than it has spare ones drops as many of
    those that are left, and ends with model and statement. So does one that a shared ledger (``ledger``) refuses a
    further step by its own budget; the step that would be its first is an error. A new run that fails
    before its first charge leaves the folder as it was, but for what was made from public examples.
    """
    if infinity not in (None, PUBLIC):
        raise PrivacyError("a training without noise is kept in a run's folder only of data declared PUBLIC")
    check_shapes(recipe, Form(split.shape, split.classes, split.span, split.words))
    check_taken_out(recipe, split)
    group = Group.here()
    checkpoints = Checkpoints(folder.checkpoints, every=_portion(recipe, 2 * crashes))
    going_on = lambda: (as_begun(checkpoints, plan), bool(numbers(folder.checkpoints)))
    plan, kept = group.told(going_on) if resume else (plan, False)
    model = network_of(recipe)
    model = (model if kept else warmed(recipe, model)).to(device)  # else the weights are in a checkpoint
    contribution = contribution_of(recipe, model, workers=workers)
    test = replace(split, test=split.test.to(device))
    start = held(folder) if resume else begun(folder, recipe, ledger or folder.ledger)
    with group.first_in(lambda: start):
        group.told(lambda: _keep_preprocessing(folder, split))
        ready = prepared(recipe, split, folder, model, told=preparing)
        plan = with_pools(plan, ready.pools)
        block, unit = _portion(recipe, 4 * crashes), contribution.unit
        charged = lambda: (opened or charged_here)(recipe, plan, folder, ledger, unit=unit, block=block)
        with group.first_in(charged) as account:
            units = units_of(recipe, split, folder if resume else None, device=device, workers=workers)
            if isinstance(units, Clients):
                keep_clients(recipe, units, folder)
            running = Running(physical=recipe.physical)
            if account is not None:
                updates = None if access is None else partial(_updates, plan, contribution, units, access)
                readings = _Readings(recipe, plan, test, network_of(recipe).to(device), account[1], updates)
                after = partial(_noted, readings, folder, watch, told)
                running = replace(running, checkpoints=checkpoints, watch=after)
            meter = None if account is None else account[1]
            run_ended = trained(
                plan,
                contribution,
                units,
                safeguards=Safeguards(meter=meter),
                running=running,
                paid=with_spare(plan, recipe.spare),
            )
            spent = None if account is None else (account[1].charged(), account[0].epsilon(recipe.delta))
        if infinity is not None:
            _without_noise(recipe, plan, test, folder, units)

        def ended() -> Outcome:
            assert spent is not None
            declared = declare(_declared(recipe, plan, folder, ready, unit))
            event = _event_on_record(recipe, plan, spent[0], run_ended)
            statement = state(event, declared, adjacency=plan.relation)
            if run_ended.why:
                statement = replace(statement, warnings=(*statement.warnings, run_ended.why))
            return _ended(recipe, folder, model, test, statement, on_record=spent[1])

        return group.told(ended)


def _event_on_record(recipe: Recipe, plan: Plan, charged: Mapping[Cost, int], ended: Ended) -> DpEvent:
    """What the statement counts: the plan, and what ran again; at most what was paid for, if it covers the record.

    The plan and what ran again are more than what was charged where planned steps were left out, or where results
    decided about them. What was paid for covers both.
    """
    paid = with_spare(plan, recipe.spare)
    if (ended.why or plan.data_driven) and not plan.covers(charged) and paid.covers(charged):
        return paid.event()
    return plan.event_on_record(charged)


def _keep_preprocessing(folder: Folder, split: Split) -> None:
    """Keep how rows become inputs; a run that goes on is refused if that has changed since it began."""
    if split.preprocessing is None:
        return
    given = as_json(split.preprocessing)
    if not folder.preprocessing.exists():
        durable.replace(folder.preprocessing, given)
    elif folder.preprocessing.read_bytes() != given:
        raise DataError(
            f"the run in {folder.path} began with other declarations (see {PREPROCESSING} there): its table file, "
            "class folders or form of images has changed; bring it back, or begin another run in another --out"
        )


def _portion(recipe: Recipe, times: int) -> int:
    """This part of the spare steps, at least one step; clients' rounds are long, and each is kept."""
    return 1 if recipe.clients else max(1, recipe.spare // times)


def _ended(
    recipe: Recipe, folder: Folder, model: nn.Module, test: Split, statement: Statement, *, on_record: float
) -> Outcome:
    """Write what a run ends with, and say how it ended."""
    keep_evaluation(folder, model, test, recipe.physical)
    finish(folder, model, statement)
    right, error, perplexity = scores(model, test, recipe.physical)
    add_stage(folder, StageOf("private phase", "private", statement.epsilon, right))
    return Outcome(right, error, statement, on_record, perplexity, before(folder))


def _declared(recipe: Recipe, plan: Plan, folder: Folder, ready: Ready, unit: str) -> Declared:
    """What the run declares: what was released, and which examples were used as public ones."""
    mine = [id(pool) for pool in ready.pools.values()]
    own = tuple(each.described for each in plan.public if id(each) not in mine)
    return Declared(
        delta=recipe.delta,
        size=plan.size,
        unit=unit,
        released=_released(folder),
        public=(*ready.used, *own, *_first_weights(recipe)),
        features=described(recipe.features),
    )


def _without_noise(recipe: Recipe, plan: Plan, split: Split, folder: Folder, units: Units) -> None:
    """The same training from the same warm weights, clipped but without noise: what epsilon infinity would reach.

    *Guarantee*: none; the accuracy is kept as that of a run that is not private, and the statement says so. Only of
    data that was declared `PUBLIC`, which is looked at before anything begins.
    """
    model = warmed(recipe, network_of(recipe)).to(split.test.inputs.device)
    ready = prepared(recipe, split, folder, model)
    draft = draft_of(recipe, plan.size)
    quiet = tuple(replace(phase, noise_multiplier=0.0) for phase in draft.phases)
    bare = with_pools(replace(draft, phases=quiet), ready.pools)
    begun_at = time.perf_counter()
    train(bare, contribution_of(recipe, model), units, running=Running(physical=recipe.physical))
    if Group.here().leads:
        right, _, _ = scores(model, split, recipe.physical)
        seconds = time.perf_counter() - begun_at
        add_stage(folder, StageOf("private phase without noise", "without noise", None, right, seconds))


@dataclass
class _Readings:
    """Takes a reading every so often; ``at`` and ``when`` are those of the one before, or of the first step."""

    recipe: Recipe
    plan: Plan
    split: Split
    probe: nn.Module  # a second network, so that the one in training is left alone
    run: Account
    updates: Callable[[Progress], dict[str, float]] | None = None
    at: int | None = None
    when: float = 0.0

    def after(self, progress: Progress) -> Reading | None:
        now = time.perf_counter()
        if self.at is None:
            self.at, self.when = progress.step, now
        every = max(1, self.plan.steps // (ROUNDS if self.recipe.clients else READINGS))
        if progress.step % every and not progress.is_last:
            return None
        taken, seconds = progress.step - self.at, now - self.when
        right, error, perplexity = scores(
            _with(progress.ending, self.probe), self.split, self.recipe.physical
        )
        reading = Reading(
            step=progress.step,
            epoch=progress.step * self.plan.rate,
            phase=progress.phase,
            epsilon=self.run.epsilon(self.recipe.delta),
            accuracy=right,
            error=error,
            perplexity=perplexity,
            seconds=seconds,
            examples_per_second=self.plan.expected_units * taken / seconds if taken else 0.0,
            **(self.updates(progress) if self.updates else {}),
        )
        self.at, self.when = progress.step, time.perf_counter()
        return reading


def _noted(
    readings: _Readings,
    folder: Folder,
    watch: Callable[[Progress], None],
    told: Callable[[Reading], None],
    progress: Progress,
) -> None:
    """After a step: whoever watches is told, and a reading is kept when it is time for one."""
    watch(progress)
    reading = readings.after(progress)
    if reading is not None:
        add_reading(folder.metrics, reading)
        keep_point(folder, progress.step, progress.ending)
        told(reading)


def _updates(
    plan: Plan, contribution: Any, units: Units, access: Access, progress: Progress
) -> dict[str, float]:
    """What the clip of the step at hand does to all clients' updates; no epsilon covers it."""
    if access is not PUBLIC:
        raise PrivacyError(
            "clients' update norms are kept in a run's folder only where their data is declared PUBLIC"
        )
    clip_norm = as_clip(plan.phases[progress.phase].clip_norm).sensitivity
    found = clipping_of(
        contribution.at(progress.step), progress.params, units, clip_norm=clip_norm, access=access
    )
    mean = float(found.norms.mean()) if len(found.norms) else 0.0
    return {"update_norm": mean, "clip_factor": found.factor, "inconsistency": found.inconsistency}


def _released(folder: Folder) -> tuple[str, ...]:
    """What leaves the trusted side: as usual, and what was measured without noise of data declared public."""
    usual = ["the final weights", "every intermediate update"]
    metrics, said = folder.metrics, before(folder)
    if metrics.exists() and any(each.clip_factor is not None for each in read_readings(metrics)[0]):
        usual.append("the mean norms of clients' updates, without noise, as their data was declared public")
    if said is not None and said.stage("without noise") is not None:
        usual.append(
            "the test accuracy of the same training without noise, as the examples were declared public"
        )
    return tuple(usual)


@contextmanager
def charged_here(
    recipe: Recipe, plan: Plan, folder: Folder, shared: Path | None, *, unit: str, block: int
) -> Iterator[tuple[Ledger, Run]]:
    """The ledger, and the folder's run in it; a ``block`` of steps is reserved at a time, as a crash wastes them.

    The run is known by its identity, wherever the folder is; the path is there for people to read.
    """
    budget = None if shared is not None else _budget(recipe, plan)
    identity = identity_of(folder.path)
    with (
        Ledger.open(shared or folder.ledger, dataset=recipe.data, budget=budget) as book,
        book.run(
            str(folder.path), unit=unit, adjacency=plan.adjacency, block=block, identity=identity
        ) as run,
    ):
        yield book, run


def _budget(recipe: Recipe, plan: Plan) -> Budget | None:
    """That of the run's own ledger: a filter, where results decide when the noise changes; none without an epsilon."""
    epsilon = budget_of(recipe, plan)
    if epsilon is None:
        return None
    order = plan.filter(recipe.delta).order if plan.data_driven else None
    return Budget(epsilon=epsilon, delta=recipe.delta, order=order)


def hits(model: nn.Module, examples: Examples, size: int) -> Evaluation:
    """Of each public example, whether its largest output is the label."""
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(x).argmax(1) == y for x, y in examples.batches(size)])
    return Evaluation(name_of(examples.targets.cpu().numpy()), right.cpu().numpy())


def accuracy(model: nn.Module, examples: Examples, size: int) -> float:
    """The share of public examples whose largest output is the label."""
    return hits(model, examples, size).hits / examples.count


def keep_evaluation(folder: Folder, model: nn.Module, split: Split, size: int) -> None:
    """Keep which public test examples the model is right on; nothing where there are none, or targets are no classes.

    Words of one text depend on each other, so a bit for each would say more than it means.
    """
    if split.test.count and split.span is None and not split.words:
        durable.replace(
            folder.evaluation, hits(model, split.test, size).as_json().encode(), mode=durable.RELEASED
        )


def rms_error(model: nn.Module, examples: Examples, span: tuple[float, float], size: int) -> float:
    """The root of the mean squared error on public examples, in the unit of the target's declared range."""
    model.eval()
    with torch.no_grad():
        total = sum(float(((model(x).squeeze(1) - y).double() ** 2).sum()) for x, y in examples.batches(size))
    return (total / examples.count) ** 0.5 * (span[1] - span[0]) / 2  # targets lie in [-1, 1]


def next_words(model: nn.Module, examples: Examples, size: int) -> tuple[float, float]:
    """Accuracy and perplexity over all words of public examples; padding counts nothing.

    The perplexity is exp(mean loss of a word), which is 2 to the mean of -log2 p.
    """
    right, loss, count = 0, 0.0, 0
    model.eval()
    with torch.no_grad():
        for inputs, targets in examples.batches(size):
            real = targets != 0
            logits = model(inputs)[real]
            loss += float(F.cross_entropy(logits, targets[real], reduction="sum"))
            right += int((logits.argmax(1) == targets[real]).sum())
            count += int(real.sum())
    return right / max(1, count), math.exp(min(700.0, loss / max(1, count)))


def scores(model: nn.Module, split: Split, size: int) -> tuple[float | None, float | None, float | None]:
    """Accuracy on the test examples, the error where targets are numbers, the perplexity where they are words.

    None for what there is not.
    """
    if split.test.count == 0:
        return None, None, None
    if split.span is not None:
        return None, rms_error(model, split.test, split.span, size), None
    if split.words:
        right, perplexity = next_words(model, split.test, size)
        return right, None, perplexity
    return accuracy(model, split.test, size), None, None


def _first_weights(recipe: Recipe) -> tuple[str, ...]:
    """What the statement says of a warm start."""
    return (f"the first weights, read from {Path(recipe.start).name}",) if recipe.start else ()


def _with(params: dict[str, torch.Tensor], model: nn.Module) -> nn.Module:
    model.load_state_dict(params, strict=False)
    return model
