"""What may be handed in at the front, and how it becomes parts: a plan, a contribution, units, a statement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.data import IterableDataset

from saltflat.clipping import Clip
from saltflat.core.check import check_model
from saltflat.core.contribution import Loss, Private, per_example, supervised
from saltflat.core.plan import Phase, Plan, calibrate
from saltflat.core.sampling import Batch, DatasetUnits, OnDevice, TensorUnits, Units
from saltflat.core.step import Safeguards
from saltflat.core.train import Running, trainable
from saltflat.door import AnyMethod
from saltflat.errors import AccountingError, DataError, ModelError, SettingError
from saltflat.methods import SAT
from saltflat.optimizers import SGD, Optimizer
from saltflat.privacy.limits import checked_delta, checked_epsilon
from saltflat.privacy.record.ledger import Run
from saltflat.privacy.record.statement import Declared, Statement, state

METHOD = SAT(radius=0.03)  # these two are what `fit` takes if nothing else is said
OPTIMIZER = SGD(lr=2.0, momentum=0.9)


@dataclass(frozen=True)
class Settings:
    """What is asked for: a method and its budget, or a whole plan.

    >>> Settings(epsilon=3, batch_size=100, epochs=5).planned(1000).steps
    50
    """

    epsilon: float | None = None
    delta: float = 1e-5
    method: AnyMethod = METHOD
    batch_size: int = 2048
    epochs: float = 40
    clip_norm: float | Clip = 0.1
    plan: Plan | None = None
    optimizer: Optimizer = OPTIMIZER
    size: int | None = None

    def __post_init__(self) -> None:
        _checked(checked_delta, self.delta)
        if self.epsilon is not None and not _checked(checked_epsilon, self.epsilon) > 0:
            raise SettingError(f"epsilon must be positive; got {self.epsilon}")
        if self.size is not None and not (isinstance(self.size, int) and self.size >= 1):
            raise SettingError(
                f"size is a public number of examples, at least as many as there are; got {self.size!r}"
            )
        if self.plan is None:
            self._check_phase()
        else:
            self._check_plan()

    def _check_phase(self) -> None:
        if self.epsilon is None:
            raise SettingError("epsilon is missing: say how much privacy the run may cost, such as epsilon=3")
        if not (isinstance(self.batch_size, int) and self.batch_size >= 1):
            raise SettingError(
                f"batch_size is the expected number of examples in a step; got {self.batch_size!r}"
            )
        if not (isinstance(self.epochs, int | float) and 0 < self.epochs < math.inf):
            raise SettingError(f"epochs must be positive and finite; got {self.epochs!r}")

    def _check_plan(self) -> None:
        if not isinstance(self.plan, Plan):
            raise SettingError(
                f"plan is a Plan, from sai(...) or of your own phases; got a {type(self.plan).__name__}"
            )
        own = {f.name: f.default for f in fields(self) if f.name not in ("epsilon", "delta", "plan")}
        both = [name for name, default in own.items() if getattr(self, name) != default]
        if both:
            raise SettingError(f"the plan says what to run: give it, or {', '.join(both)}, not both")

    @property
    def counted(self) -> bool:
        """Whether the plan will depend on how many units the data holds."""
        return self.plan is None and self.size is None

    def planned(self, count: int) -> Plan:
        """The plan for the declared number of units, or else for ``count``, with its noise calibrated."""
        if self.size is not None and count > self.size:
            raise SettingError(
                f"the data holds more than the {self.size} examples that were declared; set size to a public bound"
            )
        plan = self.plan or self._one_phase(self.size or count)
        if self.epsilon is None:
            return plan
        return calibrate(plan, epsilon=self.epsilon, delta=self.delta)

    def _one_phase(self, size: int) -> Plan:
        if self.batch_size > size:
            raise SettingError(
                f"batch_size {self.batch_size} is larger than the data, {size} examples; take a tenth or less"
            )
        phase = Phase(
            method=self.method,
            steps=max(1, round(self.epochs * size / self.batch_size)),
            noise_multiplier=1.0,  # calibration scales it
            clip_norm=self.clip_norm,
            optimizer=self.optimizer,
        )
        return Plan(phases=(phase,), rate=self.batch_size / size, size=size)


def _checked(check: Callable[[object], float], value: object) -> float:
    """The accountants' own check, as an error about a setting."""
    try:
        return check(value)
    except AccountingError as error:
        raise SettingError(str(error)) from None


def given(
    model: nn.Module,
    loss: nn.Module | Loss,
    data: Any,
    *,
    views: int = 1,
    augment: Callable[[Batch], Batch] | None = None,
) -> Private:
    """Check what was handed in, without looking at a single example: only the number of them is read."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is an nn.Module; got a {type(model).__name__}")
    check_model(model)
    device = next(iter(trainable(model).values())).device
    contribution = per_example(model, loss_of(loss), views=views, augment=augment)
    units = OnDevice(units_of(data), device)
    if units.count < 1:
        raise DataError("the data holds no example")
    return Private(contribution, units, units.count)


def stated(plan: Plan, settings: Settings, unit: str, safeguards: Safeguards, running: Running) -> Statement:
    """What the whole plan promises; worked out before it runs, so that what cannot be promised is not run.

    Where a run is kept, it may go on after a crash, and then costs more than its plan: the ledger knows.
    """
    declared = Declared(
        delta=settings.delta,
        size=plan.size,
        unit=unit,
        seeded=not safeguards.secret,
        counted=settings.counted,
    )
    if running.checkpoints is None or declared.seeded:
        return state(plan.event(), declared)
    if not isinstance(safeguards.meter, Run):
        raise SettingError(
            "with checkpoints, steps that run again after a crash are charged again: give a ledger's run as the "
            "meter, so that the statement can count them"
        )
    return state(plan.event_on_record(safeguards.meter.charged()), declared)


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

    >>> import torch
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


def units_of(data: Any) -> Units:
    """Tensors, tuples and dictionaries of tensors, map-style datasets, and whatever has ``count`` and ``take``.

    >>> import torch
    >>> units_of({"x": torch.zeros(4, 2), "label": torch.zeros(4)}).count
    4
    >>> units_of([(torch.zeros(2), 0), (torch.ones(2), 1), (torch.ones(2), 1)]).count
    3
    """
    if hasattr(data, "take") and hasattr(data, "count") and not callable(getattr(type(data), "count", None)):
        return data  # a table of pandas has both names too, as functions
    if isinstance(data, Tensor) or (isinstance(data, tuple | Mapping) and _only_tensors(data)):
        return TensorUnits(data)
    if _is_without_tensors(data):
        raise DataError(
            'this dataset gives Python lists and numbers, not tensors: pass data.with_format("torch"), with the '
            "columns that the loss needs and no text among them"
        )
    if not _is_dataset(data):
        raise DataError(
            "the data is a tensor, a tuple or dictionary of tensors, a map-style dataset (len(data), data[i]), or "
            f"Examples of saltflat.data; got {_named(data)}{_advice(data)}"
        )
    return DatasetUnits.of(data)


def _is_without_tensors(data: Any) -> bool:
    """A dataset of Hugging Face that was not told to give tensors: its lists would be laid out position by position."""
    form = getattr(data, "format", None)
    return hasattr(data, "with_format") and isinstance(form, Mapping) and form.get("type") != "torch"


def _only_tensors(data: Any) -> bool:
    items = tuple(data.values()) if isinstance(data, Mapping) else data
    return bool(items) and all(
        isinstance(item, Tensor) or (isinstance(item, tuple | Mapping) and _only_tensors(item))
        for item in items
    )


def _is_dataset(data: Any) -> bool:
    if isinstance(data, str | bytes | tuple | Mapping | IterableDataset | type):
        return False
    if isinstance(data, list) and all(isinstance(item, Tensor) for item in data):
        return False  # [inputs, targets], most likely, and not two examples
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and not hasattr(data, "__array__")


def _advice(data: Any) -> str:
    if hasattr(data, "batch_sampler") and hasattr(data, "dataset"):
        return ": give its dataset; batches are drawn here, each example with the same probability"
    if hasattr(data, "train") and hasattr(data, "test"):
        return ": give its .train"
    if isinstance(data, list):
        return " of tensors: put them in a tuple"
    if isinstance(data, tuple | Mapping) or hasattr(data, "__array__"):
        return ": turn arrays into tensors with torch.as_tensor"
    return ""


def _named(value: object) -> str:
    return repr(value) if isinstance(value, str | type | None) else f"a {type(value).__name__}"
