"""What may be handed in at the front, and how it becomes parts: a plan, a contribution, units, a statement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from mmap import mmap
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from saltflat.clipping import Clip, as_clip
from saltflat.core.contribution import Loss, PerExample, per_example, supervised
from saltflat.core.layers import check_model
from saltflat.core.pages import give_back
from saltflat.core.plan import LARGEST_SIZE, Phase, Plan, calibrate
from saltflat.core.record import check_size
from saltflat.core.sampling import Batch, DatasetUnits, Indices, OnDevice, TensorUnits, Units
from saltflat.core.step import Safeguards
from saltflat.core.train import Running, trainable
from saltflat.door import AnyMethod, layers
from saltflat.errors import AccountingError, DataError, ModelError, PrivacyError, SettingError
from saltflat.front.usual import LR, METHOD, OPTIMIZER, usual_batch, usual_delta, usual_epochs
from saltflat.methods import DPSGD, SAT, Quantile, Rescaled
from saltflat.optimizers import Optimizer
from saltflat.privacy.accounting.events import compose, phase_event
from saltflat.privacy.limits import (
    STEPS_CEILING,
    checked_advantage,
    checked_delta,
    checked_epsilon,
    checked_noise,
    rounded_down,
    rounded_up,
)
from saltflat.privacy.record.costs import Cost
from saltflat.privacy.record.ledger import Run
from saltflat.privacy.record.statement import Declared, Statement, state, state_bare
from saltflat.settings import is_positive, is_whole


@dataclass(frozen=True)
class Ready:
    """A plan whose noise is fixed, the delta of its statement, and what the plan was made from."""

    plan: Plan
    delta: float
    counted: bool  # whether the plan depends on how many units the data holds
    private: bool
    features: str = ""  # how the data's features were made, where it says so


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked for: a method and its budget, or a whole plan. What is None follows the public number of units.

    >>> Settings(epsilon=3, batch_size=100, epochs=5).planned(1000).plan.steps
    50
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    advantage: float | None = None
    method: AnyMethod = METHOD
    batch_size: int | None = None
    epochs: float | None = None
    clip_norm: float | Clip = 0.1
    plan: Plan | None = None
    optimizer: Optimizer = OPTIMIZER
    size: int | None = None
    private: bool = True

    def __post_init__(self) -> None:
        if self.delta is not None:
            _checked(checked_delta, self.delta)
        if self.epsilon is not None and not _checked(checked_epsilon, self.epsilon) > 0:
            raise SettingError(f"epsilon must be positive; got {self.epsilon}")
        if self.advantage is not None:
            _checked(checked_advantage, self.advantage)
            if self.epsilon is not None:
                raise SettingError(
                    "epsilon and advantage both decide the noise: give one of them; the statement has the other"
                )
        if not isinstance(self.private, bool):
            raise SettingError(f"private is True, or False for a plain baseline; got {_named(self.private)}")
        if not (self.size is None or is_whole(self.size, 1, LARGEST_SIZE)):
            raise SettingError(
                f"size is a public number of examples, at least as many as there are; got {self.size!r}"
            )
        if self.plan is None:
            self._check_phase()
        else:
            self._check_plan()

    def _check_phase(self) -> None:
        if self.private and self.epsilon is None and self.advantage is None and self.noise_multiplier is None:
            raise SettingError(
                "epsilon is missing: say how much privacy the run may cost, such as epsilon=3, or advantage=0.1"
            )
        if self.noise_multiplier is not None:
            self._check_noise()
        if not (self.batch_size is None or is_whole(self.batch_size)):
            raise SettingError(
                f"batch_size is the expected number of examples in a step; got {self.batch_size!r}"
            )
        if not (self.epochs is None or is_positive(self.epochs)):
            raise SettingError(f"epochs must be positive and finite; got {self.epochs!r}")

    def _check_noise(self) -> None:
        if self.epsilon is not None:
            raise SettingError("epsilon decides the noise: give epsilon or noise_multiplier, not both")
        if self.advantage is not None:
            raise SettingError("advantage decides the noise: give advantage or noise_multiplier, not both")
        if self.noise_multiplier == 0:
            raise SettingError(
                "noise_multiplier is 0: for a baseline without clip and noise say private=False"
            )
        _checked(checked_noise, self.noise_multiplier)

    def _check_plan(self) -> None:
        if not isinstance(self.plan, Plan):
            raise SettingError(
                f"plan is a Plan, from sai(...) or of your own phases; got a {type(self.plan).__name__}"
            )
        aside = ("epsilon", "advantage", "delta", "plan", "private")
        own = {f.name: f.default for f in fields(self) if f.name not in aside}
        both = [name for name, default in own.items() if getattr(self, name) != default]
        if both:
            raise SettingError(f"the plan says what to run: give it, or {', '.join(both)}, not both")

    @property
    def counted(self) -> bool:
        """Whether the plan will depend on how many units the data holds."""
        return self.plan is None and self.size is None

    def planned(self, count: int) -> Ready:
        """The plan for the declared number of units, or else for ``count``, with its noise calibrated."""
        if self.size is not None and count > self.size:
            raise SettingError(
                f"the data holds more than the {self.size} examples that were declared; set size to a public bound"
            )
        plan = self.plan or self._one_phase(self.size or count)
        check_size(plan, count)
        delta = usual_delta(plan.size) if self.delta is None else self.delta
        if not self.private:
            plan = self._bare(plan)
        elif self.epsilon is not None:
            plan = calibrate(plan, epsilon=self.epsilon, delta=delta)
        elif self.advantage is not None:
            plan = calibrate(plan, advantage=self.advantage)
        return Ready(plan, delta, self.counted, self.private)

    def _one_phase(self, size: int) -> Plan:
        batch = usual_batch(size) if self.batch_size is None else self.batch_size
        epochs = usual_epochs(size) if self.epochs is None else self.epochs
        if batch > size:
            known = (
                f", {size} examples" if self.size else ""
            )  # how many there are is not said unless declared
            raise SettingError(
                f"batch_size {batch} is larger than the data{known}; take half of it or less, or leave it out"
            )
        phase = Phase(
            method=self.method,
            steps=_steps(epochs, size, batch),
            noise_multiplier=self.noise_multiplier or 1.0,  # calibration scales it
            clip_norm=self.clip_norm,
            optimizer=self.optimizer,
        )
        return Plan(phases=(phase,), rate=batch / size, size=size)

    def _bare(self, plan: Plan) -> Plan:
        """The same plan without clip and noise; the usual learning rate, for clipped gradients, is times the clip."""
        adapts = [layer for phase in plan.phases for layer in layers(phase.method) if needs_clip(layer)]
        if adapts:
            raise SettingError(
                f"private=False runs without a clip norm, and {type(adapts[0]).__name__} works on one: give the "
                "method that it is around"
            )
        bare = (replace(phase, noise_multiplier=0.0, clip_norm=math.inf) for phase in plan.phases)
        plan = replace(plan, phases=tuple(bare))
        if self.plan is not None or self.optimizer != OPTIMIZER:
            return plan
        slower = replace(OPTIMIZER, lr=LR * as_clip(self.clip_norm).sensitivity)
        return replace(plan, phases=tuple(replace(phase, optimizer=slower) for phase in plan.phases))


def is_table(loss: object, data: Any, method: object) -> bool:
    """Whether the defaults for tables hold: rows of floats, a cross-entropy over classes, DP-SGD or DP-SAT.

    The form of the data alone is looked at, which is public.
    """
    if not isinstance(loss, nn.CrossEntropyLoss | nn.BCEWithLogitsLoss) or type(method) not in (DPSGD, SAT):
        return False
    parts = getattr(data, "tensors", data)  # of a TensorDataset
    is_pair = isinstance(parts, tuple | list) and len(parts) == 2
    inputs = parts[0] if is_pair else getattr(data, "inputs", None)
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 2 and inputs.dtype.kind == "f"
    return isinstance(inputs, Tensor) and inputs.ndim == 2 and inputs.is_floating_point()


def needs_clip(method: object) -> bool:
    """Whether a method has no meaning without a clip norm: it adapts it, or divides by it."""
    return isinstance(method, Quantile | Rescaled)


def _steps(epochs: float, size: int, batch: int) -> int:
    steps = epochs * size / batch
    if not steps <= STEPS_CEILING:
        raise SettingError(f"epochs={epochs:g} are {steps:g} steps, and {STEPS_CEILING} are the most")
    return max(1, round(steps))


def around(safeguards: Safeguards | None, running: Running | None) -> tuple[Safeguards, Running]:
    """What a run rests on and how it is run, or what they are without a word."""
    safeguards = Safeguards() if safeguards is None else safeguards
    running = Running() if running is None else running
    for name, value, kind in (("safeguards", safeguards, Safeguards), ("running", running, Running)):
        if not isinstance(value, kind):
            raise SettingError(f"{name} is saltflat.{kind.__name__}(...); got a {type(value).__name__}")
    return safeguards, running


def _checked(check: Callable[[object], float], value: object) -> float:
    """The accountants' own check, as an error about a setting."""
    try:
        return check(value)
    except AccountingError as error:
        raise SettingError(str(error)) from None


@dataclass(frozen=True)
class Given:
    """What was handed in, as parts."""

    contribution: PerExample
    units: OnDevice = field(repr=False)

    @property
    def count(self) -> int:
        return self.units.count

    def planned(self, settings: Settings) -> Ready:
        """The plan for these units, which say how their features were made."""
        return replace(settings.planned(self.count), features=getattr(self.units.units, "features", ""))


def given(
    model: nn.Module,
    loss: nn.Module | Loss,
    data: Any,
    *,
    views: int = 1,
    augment: Callable[[Batch], Batch] | None = None,
    workers: int = 0,
) -> Given:
    """Check what was handed in, without looking at a single example: only the number of them is read."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is an nn.Module; got a {type(model).__name__}")
    check_model(model)
    first = next(iter(trainable(model).values()))
    contribution = per_example(model, loss_of(loss), views=views, augment=augment)
    units = OnDevice(units_of(data, workers=workers, dtype=first.dtype), first.device)
    if units.count < 1:
        raise DataError("the data holds no example")
    return Given(contribution, units)


def stated(ready: Ready, unit: str, safeguards: Safeguards, running: Running) -> Statement:
    """What the whole plan promises; worked out before it runs, so that what cannot be promised is not run.

    Where a run is kept, it may go on after a crash, and then costs more than its plan: the ledger knows.
    """
    plan = ready.plan
    declared = declared_by(ready, unit, safeguards)
    if not ready.private:
        if safeguards.meter is not None or running.checkpoints is not None:
            raise SettingError(
                "private=False is a baseline that no ledger can account for: leave meter and checkpoints out"
            )
        return state_bare(compose(*(phase_event(plan.rate, 1.0, p.steps) for p in plan.phases)), declared)
    if running.checkpoints is None or declared.seeded:
        return state(plan.event(), declared, adjacency=plan.relation)
    if not isinstance(safeguards.meter, Run):
        raise SettingError(
            "with checkpoints, steps that run again after a crash are charged again: give a ledger's run as the "
            "meter, so that the statement can count them"
        )
    return recorded(plan, declared, safeguards.meter.charged())


def recorded(plan: Plan, declared: Declared, charged: Mapping[Cost, int], why: str = "") -> Statement:
    """The statement of a plan and of all that was charged for it, with what has to be said of a run that went on.

    Args:
        plan: What was planned.
        declared: What the run declares.
        charged: How many steps of each cost are on record for it, or may have been taken.
        why: Why planned steps were left out, if any were.
    """
    found = state(plan.event_on_record(charged), declared, adjacency=plan.relation)
    notes = [why] if why else []
    if not (found.stamp or plan.covers(charged)):
        target = plan.epsilon(declared.delta)
        notes.append(
            f"epsilon {rounded_up(found.epsilon)} is above the {rounded_up(target)} that was planned, by "
            f"{rounded_up(found.epsilon - target)}: more steps were charged than planned, as steps that were lost ran "
            "again (allow_more=True) or other steps were charged to this run"
        )
    return replace(found, warnings=(*found.warnings, *notes))


def declared_by(ready: Ready, unit: str, safeguards: Safeguards) -> Declared:
    """What a run declares; a delta that would permit publishing an example is refused, as `state` does."""
    size = ready.plan.size
    if ready.delta * size > 1 + 1e-9:
        bound, most = f"1/{size}", f"at most {rounded_down(0.1 / size)}"
        if ready.counted:  # how many there are was not declared, and is not said
            bound, most = f"1/n for the n {unit}s of the data", "at most a tenth of 1/n"
        raise PrivacyError(
            f"delta {ready.delta:g} is above {bound}: it would permit publishing one {unit} at random; take {most}, or "
            "leave delta out"
        )
    seeded = not safeguards.secret
    return Declared(
        delta=ready.delta,
        size=size,
        unit=unit,
        seeded=seeded,
        counted=ready.counted,
        public=tuple(each.described for each in ready.plan.public),
        features=ready.features,
        unknown=safeguards.unknown if safeguards.secret else (),
    )


def loss_of(loss: nn.Module | Loss) -> Loss:
    """A criterion (any nn.Module) is called on (model(inputs), targets); any other function is a loss already.

    A loss is ``loss(predict, batch)``, where ``predict`` is the model and ``batch`` has the form of the data: for
    dictionaries, several losses added up, or a model that is called by keywords. It returns one number per example.

    >>> criterion = loss_of(nn.CrossEntropyLoss(reduction="none"))
    >>> loss_of(nn.MSELoss())
    Traceback (most recent call last):
    saltflat.errors.SettingError: MSELoss averages ...
    """
    if isinstance(loss, nn.Module):
        return supervised(partial(_over_own_entries, _each_by_itself(loss)))
    if not callable(loss):
        raise SettingError(
            'the loss is a criterion such as nn.CrossEntropyLoss(reduction="none"), or a function '
            f"loss(predict, batch); got {_named(loss)}"
        )
    function = loss.func if isinstance(loss, partial) else loss
    if getattr(function, "__module__", None) in ("torch.nn.functional", "torch._C._nn"):
        raise SettingError(
            f"{getattr(function, '__name__', 'it')} is a criterion, not a loss(predict, batch): pass "
            'supervised(partial(F..., reduction="none")), or the nn.Module of that name with reduction="none"'
        )
    return loss


def _each_by_itself(criterion: nn.Module) -> nn.Module:
    """The criterion, if it does not average over the batch."""
    reduction = getattr(criterion, "reduction", "none")
    if reduction == "none":
        return criterion
    name, does = type(criterion).__name__, "sums" if reduction == "sum" else "averages"
    raise SettingError(
        f"{name} {does} over the batch (reduction={reduction!r}), and clipping needs one loss per example: pass "
        f'{name}(reduction="none")'
    )


def _over_own_entries(criterion: nn.Module, outputs: Any, targets: Tensor) -> Tensor:
    """One loss per example: the mean over its own entries, where a criterion gives one for each pixel or each label.

    >>> each = partial(_over_own_entries, nn.MSELoss(reduction="none"))
    >>> each(torch.zeros(4, 3), torch.ones(4, 3))
    tensor([1., 1., 1., 1.])
    >>> each(torch.zeros(4, 1), torch.ones(4))
    Traceback (most recent call last):
    saltflat.errors.ModelError: MSELoss got outputs of shape (1,) and targets of shape () for each example...
    """
    losses = criterion(outputs, targets)
    if not isinstance(outputs, Tensor) or losses.ndim < 2:
        return losses
    if losses.shape not in (outputs.shape, targets.shape, outputs.shape[:1] + outputs.shape[2:]):
        raise ModelError(
            f"{type(criterion).__name__} got outputs of shape {tuple(outputs.shape[1:])} and targets of shape "
            f"{tuple(targets.shape[1:])} for each example, and compared every example with every other; give both one "
            "shape, with squeeze or unsqueeze(1)"
        )
    return losses.flatten(1).mean(1)


def units_of(data: Any, *, workers: int = 0, dtype: torch.dtype | None = None) -> Units:
    """Tensors and arrays, tuples and dictionaries of them, map-style datasets, and whatever has ``count`` and ``take``.

    Arrays of numpy become tensors: floats of ``dtype``, the model's own, and whole numbers int64, but for bytes, which
    stay bytes; memory-mapped ones are read row by row. ``workers`` processes read the items of a dataset, and as many
    threads what stays on disk.

    >>> units_of({"x": torch.zeros(4, 2), "label": torch.zeros(4)}).count
    4
    >>> units_of([(torch.zeros(2), 0), (torch.ones(2), 1), (torch.ones(2), 1)]).count
    3
    >>> units_of((np.zeros((4, 2)), np.arange(4, dtype=np.int32))).take(np.array([3]))
    (tensor([[0., 0.]]), tensor([3]))
    """
    if not (isinstance(workers, int) and workers >= 0):
        raise SettingError(f"workers is a number of processes that read the data, 0 or more; got {workers!r}")
    if (
        is_dataclass(data) and not isinstance(data, type) and hasattr(data, "workers")
    ):  # a dataset, or on disk
        return cast(Any, replace(data, workers=workers) if workers else data)
    if _is_without_tensors(data):
        raise DataError(
            'this dataset gives Python lists and numbers, not tensors: pass data.with_format("torch"), with the '
            "columns that the loss needs and no text among them"
        )
    units = _in_memory(data, dtype or torch.get_default_dtype())
    if units is not None:
        if workers:
            raise SettingError(
                "workers read the items of a dataset, and these are in memory: leave workers out"
            )
        return units
    if not _is_dataset(data):
        raise DataError(
            "the data is a tensor or array, a tuple or dictionary of them, a map-style dataset (len(data), data[i]) "
            f"or Examples of saltflat.data; got {_named(data)}{_advice(data)}"
        )
    return DatasetUnits.of(data, workers=workers)


def _in_memory(data: Any, dtype: torch.dtype) -> Units | None:
    """Units of what needs no reading; None for anything else."""
    if hasattr(data, "take") and hasattr(data, "count") and not callable(getattr(type(data), "count", None)):
        return data  # a table of pandas has both names too, as functions
    if isinstance(data, Tensor | np.ndarray) or (isinstance(data, tuple | Mapping) and _only_tensors(data)):
        return MappedUnits(data, dtype) if _is_mapped(data) else TensorUnits(_tensors(data, dtype))
    return None


@dataclass(frozen=True)
class MappedUnits:
    """Memory-mapped arrays of numpy (`numpy.load(..., mmap_mode="r")`): row i of each is unit i, read when it is drawn.

    Arrays of numbers only. Pages of their files are given back after every batch, so that the process never holds all
    of them; those of a private copy (mode "c"), to which somebody may have written, stay.
    """

    arrays: Any = field(repr=False)
    dtype: torch.dtype
    is_row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _tensors(_picked(self.arrays, np.arange(0)), self.dtype)  # refuses what is no array of numbers
        if len({len(each) if each.ndim else 0 for each in _arrays_in(self.arrays)}) != 1:
            raise DataError("arrays of one length are needed, one row per unit; got several lengths")

    @property
    def count(self) -> int:
        return len(next(_arrays_in(self.arrays)))

    def take(self, indices: Indices) -> Batch:
        taken = _tensors(_picked(self.arrays, indices), self.dtype)
        for array in _arrays_in(self.arrays):
            if isinstance(pages := getattr(array, "_mmap", None), mmap) and array.mode != "c":
                give_back(pages)
        return taken


def _arrays_in(data: Any) -> Iterator[Any]:
    """Every array and tensor."""
    if isinstance(data, tuple | Mapping):
        for item in data.values() if isinstance(data, Mapping) else data:
            yield from _arrays_in(item)
    else:
        yield data


def _is_mapped(data: Any) -> bool:
    return any(isinstance(each, np.memmap) for each in _arrays_in(data))


def _picked(data: Any, indices: Indices) -> Any:
    """The same with these rows of every array, which are then in memory."""
    if isinstance(data, Mapping):
        return {key: _picked(item, indices) for key, item in data.items()}
    if isinstance(data, tuple):
        return tuple(_picked(item, indices) for item in data)
    return data[torch.from_numpy(indices)] if isinstance(data, Tensor) else np.array(data[indices])


def _tensors(data: Any, dtype: torch.dtype) -> Any:
    """The same with a tensor in the place of every array."""
    if isinstance(data, Mapping):
        return {key: _tensors(item, dtype) for key, item in data.items()}
    if isinstance(data, tuple):
        return tuple(_tensors(item, dtype) for item in data)
    return _tensor(data, dtype) if isinstance(data, np.ndarray) else data


def _tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    kind = array.dtype.kind
    if kind not in "fiub":
        raise DataError(
            f"an array of {array.dtype} is no array of numbers: turn texts and categories into numbers first, by a "
            "list that is declared and not read from the data"
        )
    if kind == "f":
        return torch.tensor(array, dtype=dtype)
    return torch.tensor(array if array.dtype in (np.uint8, np.bool_) else array.astype(np.int64))


def _is_without_tensors(data: Any) -> bool:
    """A dataset of Hugging Face that was not told to give tensors: its lists would be laid out position by position."""
    form = getattr(data, "format", None)
    if not (hasattr(data, "with_format") and isinstance(form, Mapping)):
        return False
    return form.get("type") not in (
        "torch",
        "custom",
    )  # custom: a transform of the user's, which may give tensors


def _only_tensors(data: Any) -> bool:
    items = tuple(data.values()) if isinstance(data, Mapping) else data
    return bool(items) and all(
        isinstance(item, Tensor | np.ndarray) or (isinstance(item, tuple | Mapping) and _only_tensors(item))
        for item in items
    )


def _is_dataset(data: Any) -> bool:
    if isinstance(data, str | bytes | tuple | Mapping | IterableDataset | type):
        return False
    if isinstance(data, list) and all(isinstance(item, Tensor | np.ndarray) for item in data):
        return False  # [inputs, targets], most likely, and not two examples
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and not hasattr(data, "__array__")


def _advice(data: Any) -> str:
    if hasattr(data, "batch_sampler") and hasattr(data, "dataset"):
        return ": give its dataset; batches are drawn here, each example with the same probability"
    if hasattr(data, "train") and hasattr(data, "test"):
        return ": give its .train"
    if isinstance(data, list):
        return " of tensors or arrays: put them in a tuple"
    if hasattr(data, "to_numpy"):
        return ": give data.to_numpy(), numbers alone"
    if isinstance(data, tuple | Mapping) or hasattr(data, "__array__"):
        return ": give tensors or arrays of numpy"
    return ""


def _named(value: object) -> str:
    return repr(value) if isinstance(value, str | type | None) else f"a {type(value).__name__}"
