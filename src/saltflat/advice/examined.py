"""What a model is in for before a budget is spent: layer by layer, its time and memory, and what will be refused.

The gate is the one of training (`contribution.check`), and so is the step whose time is taken; both see made-up rows
only.
"""

from __future__ import annotations

import copy
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from saltflat.core.contribution import Loss, PerExample, per_example, supervised
from saltflat.core.plan import Phase, Plan
from saltflat.core.sampling import Batch, TensorUnits, mapped
from saltflat.core.train import Progress, Running, train, trainable
from saltflat.data import Form
from saltflat.errors import SaltflatError, SettingError
from saltflat.gradients.chunk import Kept
from saltflat.gradients.tape import RULES
from saltflat.methods import DPSGD
from saltflat.optimizers import SGD
from saltflat.recipes.build import criterion_of

STEPS = 4  # of which the first is not timed
PHASE = Phase(method=DPSGD(), steps=STEPS, noise_multiplier=1.0, clip_norm=0.1, optimizer=SGD(lr=1e-3))


@dataclass(frozen=True)
class Layer:
    """A module with weights of its own: how its per-example gradients are taken."""

    name: str
    kind: str
    weights: int
    trained: int
    slow: tuple[str, ...] = ()  # functions without a rule of their own
    kept: tuple[str, ...] = ()  # what is kept of its gradients until they are clipped

    @property
    def way(self) -> str:
        """In a word or two."""
        if not self.trained:
            return "frozen"
        if self.slow:
            return f"slow ({', '.join(self.slow)})"
        return "fast" if self.kept else "not tried"


@dataclass(frozen=True)
class Cost:
    """One step of a phase, as measured here on made-up rows: ``rows`` of the ``batch`` examples at a time.

    Of a batch that a user gave, ``rows`` is None: how many rows it has may be private.
    """

    method: str
    batch: float
    rows: int | None
    seconds: float  # for the whole batch
    megabytes: float | None  # on top of the model and the data; None where it cannot be told


@dataclass(frozen=True)
class Examined:
    """What `doctor` found; ``refused`` is the reason why training would not begin, or nothing."""

    layers: tuple[Layer, ...]
    costs: tuple[Cost, ...]
    refused: str = ""

    @property
    def trained(self) -> int:
        """How many weights are trained: noise is added to each of them."""
        return sum(layer.trained for layer in self.layers)

    @property
    def slow(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.slow)

    @property
    def text(self) -> str:
        """All of it in lines."""
        lines = [
            f"{each.name or '(the model)'}: {each.kind}, {each.weights:,} weights, {each.way}"
            for each in self.layers
        ]
        return "\n".join([*lines, f"{self.trained:,} weights are trained", *self.verdict])

    @property
    def verdict(self) -> list[str]:
        """What it comes to."""
        if self.refused:
            return [f"refused: {self.refused}"]
        slow = {function for layer in self.slow for function in layer.slow}
        costs = [
            f"{each.method}: {_seconds(each.seconds)} for a step of {each.batch:g} examples, "
            + ("as many at a time as were given" if each.rows is None else f"{each.rows} at a time")
            + ("" if each.megabytes is None else f", {each.megabytes:,.0f} MB beside model and data")
            for each in self.costs
        ]
        said = (
            f"no fast rule for {', '.join(sorted(slow))}: exact but slow" if slow else "all have fast rules"
        )
        return [*costs, f"accepted: {said}"]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def doctor(
    model: nn.Module,
    loss: nn.Module | Loss | None = None,
    batch: Batch | None = None,
    *,
    shape: Sequence[int] | None = None,
    classes: int | None = None,
    batch_size: int = 256,
    physical: int = 256,
) -> Examined:
    """Which layers of ``model`` have fast rules, what a step takes, and what training would refuse, and why.

    Rows are made up: by the ``shape`` of one example and its number of ``classes`` (left out: the target is one
    number), or give a ``batch`` of your own that is public or made up, with the ``loss`` that takes it. The model is
    left as it was.

    >>> model = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> found = doctor(model, shape=(20,), classes=2, batch_size=8)
    >>> [layer.way for layer in found.layers], found.refused
    (['fast', 'fast'], '')
    >>> doctor(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), shape=(4,), classes=4, batch_size=8).refused
    "layer '1' is a BatchNorm1d: ..."
    """
    if (shape is None) == (batch is None):
        raise SettingError(
            "give shape, the form of one example such as (20,), or a batch that is public or made up"
        )
    if batch_size < 1 or physical < 1:
        raise SettingError(f"batch_size and physical must be at least 1; got {batch_size} and {physical}")
    form = None if shape is None else Form(tuple(shape), classes or 0, None if classes else (-1.0, 1.0))
    if loss is None and form is None:
        raise SettingError(
            "a batch of your own needs its loss: a criterion, or a function loss(predict, batch)"
        )
    criterion = criterion_of(classes is None) if loss is None else loss
    plain = isinstance(criterion, nn.Module) or loss is None
    whole: Loss = supervised(criterion) if plain else criterion  # type: ignore[assignment]
    rows = min(batch_size, physical)
    made = form.made_up(rows) if form is not None else batch
    contribution = per_example(copy.deepcopy(model), whole)
    found = examine(contribution, made, [(PHASE, float(batch_size))])
    if form is not None:
        return found
    return replace(found, costs=tuple(replace(each, rows=None) for each in found.costs))


def examine(contribution: PerExample, rows: Batch, phases: Sequence[tuple[Phase, float]]) -> Examined:
    """The layers of a contribution's model, and a step of each phase with so many expected examples, on made-up rows.

    The model's weights change; give a copy.
    """
    model = contribution.model
    device = next(iter(model.parameters())).device
    units = TensorUnits(_on(rows, device))
    heard: dict[str, set[str]] = {}
    kept: dict[str, set[str]] = {}
    refused, costs = "", []
    try:
        params = trainable(model)
        with _listening(model, heard):
            contribution.check(params, units.take, units.count)
            kept = _kept(contribution, params, units)
        costs = [_cost(contribution, units, phase, expected) for phase, expected in phases]
    except SaltflatError as error:
        refused = str(error)
    return Examined(tuple(_layers(model, heard, kept)), tuple(costs), refused)


def _on(rows: Batch, device: torch.device) -> Batch:
    return mapped(lambda leaf: leaf.to(device), rows)


@contextmanager
def _listening(model: nn.Module, heard: dict[str, set[str]]) -> Iterator[None]:
    """Note which functions without a rule run inside which module."""
    inside: list[str] = [""]
    usual = RULES[None]

    def noted(tape: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        heard.setdefault(inside[-1], set()).add(getattr(func, "__name__", str(func)))
        return usual(tape, func, *args, **kwargs)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            enter = module.register_forward_pre_hook(lambda *_, name=name: inside.append(name))
            leave = module.register_forward_hook(lambda *_: _forget(inside), always_call=True)
            stack.callback(enter.remove)
            stack.callback(leave.remove)
        RULES[None] = noted
        try:
            yield
        finally:
            RULES[None] = usual


def _forget(inside: list[str]) -> None:
    """A module was left; what a hook returns would stand for the module's output."""
    inside.pop()


def _kept(contribution: PerExample, params: dict[str, Any], units: TensorUnits) -> dict[str, set[str]]:
    """What is kept of each parameter's gradients."""
    few = np.arange(min(units.count, 8))
    chunk = contribution([params], [1.0], units.take(few))
    found: dict[str, set[str]] = {}
    for part in chunk.parts if isinstance(chunk, Kept) else ():
        for name in part.names:
            found.setdefault(name, set()).add(type(part).__name__)
    return found


def _layers(model: nn.Module, heard: dict[str, set[str]], kept: dict[str, set[str]]) -> Iterator[Layer]:
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        full = [f"{name}.{each}" if name else each for each in own]
        yield Layer(
            name,
            type(module).__name__,
            sum(p.numel() for p in own.values()),
            sum(p.numel() for p in own.values() if p.requires_grad),
            tuple(sorted(heard.get(name, ()))),
            tuple(sorted({each for one in full for each in kept.get(one, ())})),
        )


def _cost(contribution: PerExample, units: TensorUnits, phase: Phase, expected: float) -> Cost:
    """The time of a few steps on all the rows, and the memory that they take."""
    few = replace(phase, steps=STEPS, noise_schedule=1.0, until=None)
    times: list[float] = []

    def watch(progress: Progress) -> None:
        times.append(time.perf_counter())

    before = _memory_now()
    train(
        Plan(phases=(few,), rate=1.0, size=units.count),
        contribution,
        units,
        running=Running(physical=units.count, watch=watch),
    )
    peak = _memory_peak()
    seconds = median(later - earlier for earlier, later in pairwise(times))
    grown = None if before is None or peak is None else max(0.0, peak - before)
    return Cost(type(phase.method).__name__, expected, units.count, seconds * expected / units.count, grown)


def _memory_now() -> float | None:
    """Megabytes in use; the peak is counted from here on, where the system can."""
    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 1e6
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the former peak
    return _status("VmRSS")


def _memory_peak() -> float | None:
    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        return torch.cuda.max_memory_allocated() / 1e6
    found = _status("VmHWM")
    if found is None and sys.platform == "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return found


def _status(name: str) -> float | None:
    """A line of the kernel's account of this process, in megabytes."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1e3
    return None


def rows_of(contribution: PerExample, form: Form, physical: int, expected: float) -> Batch:
    """Made-up rows for a contribution: a physical batch, or the whole one if that is smaller."""
    return form.made_up(max(2, min(physical, round(expected))) * contribution.rows_per_unit)
