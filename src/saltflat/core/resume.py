"""Where a run stands, how that is kept on disk, and how a run goes on from it.

*Guarantee*: everything that is kept was released or is public. Noise keys are never kept. Restoring never
lowers what was spent: the ledger is not part of a checkpoint, and steps that run again are charged again.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from saltflat.core.plan import Plan
from saltflat.core.state import pack, unpack
from saltflat.core.step import Position
from saltflat.errors import DataError, LedgerError, SettingError
from saltflat.privacy.record import checkpoint
from saltflat.privacy.record.checkpoint import Checkpoint
from saltflat.privacy.record.costs import Cost
from saltflat.settings import is_positive, is_whole
from saltflat.tree import Tree, cut


@runtime_checkable
class Recorded(Protocol):
    """A meter whose record can be recognised: a ledger's run."""

    @property
    def head(self) -> str: ...

    def expect(self, head: str) -> None: ...


@runtime_checkable
class Planned(Protocol):
    """A meter that reserves steps ahead, and no more of them than are planned: a ledger's run."""

    def limit(self, planned: Mapping[Cost, int]) -> None: ...


@dataclass(frozen=True)
class Checkpoints:
    """Keep the run in ``folder`` every so many steps, and go on from there if it holds a checkpoint.

    Args:
        folder: Where checkpoints are written and looked for.
        every: A checkpoint is written after so many steps; what ran after the last one is lost in a crash.
        allow_more: Let a run that goes on take all its planned steps, although lost ones were charged for good: epsilon
            then passes what was planned, and the statement says by how much. False drops as many steps as were lost.
    """

    folder: str | os.PathLike[str]
    every: int = 100
    allow_more: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike):
            raise SettingError(f"folder is a path; got {self.folder!r}")
        if not is_whole(self.every):
            raise SettingError(f"every is a whole number of steps, at least 1; got {self.every!r}")
        if not isinstance(self.allow_more, bool):
            raise SettingError(f"allow_more is True or False; got {self.allow_more!r}")


def packed(plan: Plan, at: Position) -> tuple[dict[str, Tree], dict[str, Any]]:
    """The tensors of a position, part by part, and the shapes of what they were taken from."""
    trees, shapes = {"params": at.params}, {}
    for part, owner in _owners(plan, at.phase).items():
        trees[part], shapes[part] = pack(owner, getattr(at, part))
    return trees, shapes


def save(
    kept: Checkpoints,
    plan: Plan,
    at: Position,
    *,
    parts: tuple[Mapping[str, Tree], Mapping[str, Any]],
    meter: object,
    sampler: np.random.Generator | None,
) -> None:
    """Write a checkpoint, whole or not at all; ``sampler`` is None where it must not come back.

    ``parts`` is what `packed` gave, every tensor of it whole: it loads in one process and in any number of them.
    """
    trees, shapes = parts
    meta = {
        "plan": outline(plan),
        "step": at.step,
        "phase": at.phase,
        "within": at.within,
        "dropped": at.dropped,
        "shapes": shapes,
        "head": meter.head if isinstance(meter, Recorded) else None,
        "run": getattr(meter, "account", None),
        "sampler": None if sampler is None else pack(None, sampler.bit_generator.state)[1],
    }
    checkpoint.save(kept.folder, trees, meta)


def find(
    kept: Checkpoints, plan: Plan, params: Tree, *, meter: object, sampler: np.random.Generator | None
) -> Checkpoint | None:
    """The newest whole checkpoint, None if there is none; ``sampler`` is set back to it.

    A checkpoint of another plan or of other weights is refused, and so is a ledger that lacks a line which
    the checkpoint has seen, or another run of it than the one that was charged. A ledger with more lines is as it
    should be: what they paid for is gone.
    """
    found = checkpoint.load(kept.folder)
    if found is None:
        return None
    meta, place = found.meta, f"the checkpoint in {kept.folder}"
    _refuse_another_plan(place, meta, plan)
    _refuse_other_weights(place, found.trees, params)
    expect(place, meta, meter)
    if sampler is not None and meta["sampler"] is not None:
        _set_back(place, sampler, meta["sampler"])
    return found


def position(found: Checkpoint, plan: Plan, params: Tree) -> Position:
    """Where the run stood, on the devices of ``params``; where those are sharded, this process's parts."""
    meta, own = found.meta, found.trees["params"]
    params = {name: cut(own[name], leaf) for name, leaf in params.items()}
    parts = {
        part: unpack(owner, dict(found.trees[part]), meta["shapes"][part], params)
        for part, owner in _owners(plan, meta["phase"]).items()
    }
    dropped = meta.get("dropped", 0)  # which checkpoints of older versions do not say
    return Position(
        meta["step"], params, **parts, phase=meta["phase"], within=meta["within"], dropped=dropped
    )


_SAME_NOISE = 1e-8  # of the noise: what processors make of one calibration differs by much less


def as_begun(kept: Checkpoints, plan: Plan) -> Plan:
    """The plan with the noise that the newest checkpoint was made with, where a processor's last digits alone differ.

    A calibration ends a few digits apart on another machine; a run that goes on there goes on as it began, and its
    steps are those that its ledger knows. Any other plan is left as it is, for `load` to refuse.
    """
    found = checkpoint.load(kept.folder, warn=False)  # `find`, which loads it to go on, warns
    phases = todays(found.meta.get("plan", {})).get("phases", []) if found is not None else []
    noises: list[Any] = [each.get("noise_multiplier") for each in phases if isinstance(each, dict)]
    same = len(noises) == len(plan.phases) and all(
        is_positive(there) and math.isclose(there, phase.noise_multiplier, rel_tol=_SAME_NOISE)
        for there, phase in zip(noises, plan.phases, strict=True)
    )
    if not same:
        return plan
    both = zip(plan.phases, noises, strict=True)
    return replace(plan, phases=tuple(replace(phase, noise_multiplier=there) for phase, there in both))


def _owners(plan: Plan, number: int) -> dict[str, Any]:
    """Who made each part of a position in phase ``number``."""
    phase = plan.phases[number]
    owners: dict[str, Any] = {"state": phase.method, "memory": phase.optimizer}
    return owners if plan.ema is None else {**owners, "mean": plan.ema}


def outline(value: Any) -> Any:
    """A plan in plain values, to tell it from another one; a function counts by its name alone.

    >>> from saltflat.optimizers import SGD
    >>> outline(SGD(lr=0.5))
    {'is': 'SGD', 'lr': 0.5, 'momentum': 0.0, 'weight_decay': 0.0}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: outline(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, (tuple, list)):
        return [outline(item) for item in value]
    if isinstance(value, dict):
        return {str(key): outline(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else repr(value)
    return re.sub(r" at 0x[0-9a-f]+", "", getattr(value, "__qualname__", repr(value)))


def _refuse_another_plan(place: str, meta: Mapping[str, Any], plan: Plan) -> None:
    known = {"plan", "step", "phase", "within", "shapes", "head", "sampler"}
    if not known <= meta.keys() or not all(isinstance(meta[key], int) for key in ("step", "phase", "within")):
        raise DataError(f"{place} was not made by train; give another folder")
    other = difference(todays(meta["plan"]), outline(plan))
    if other is not None or not (1 <= meta["step"] <= plan.steps and 0 <= meta["phase"] < len(plan.phases)):
        raise SettingError(
            f"{place} belongs to another plan: {other or _behind(meta)}; give the plan that it "
            "was made with, or another folder"
        )


_RENAMED = {"Quantile": {"rate": "speed"}}  # settings that had another name in version 0.1
_ADDED: dict[str, dict[str, Any]] = {"Plan": {"draw": {"is": "Poisson"}}}  # what older outlines do not say


def todays(there: Any) -> Any:
    """An outline in today's names, with what was not said then because there was nothing else."""
    if isinstance(there, list):
        return [todays(item) for item in there]
    if not isinstance(there, dict):
        return there
    kind = str(there.get("is"))
    names = _RENAMED.get(kind, {})
    return {**_ADDED.get(kind, {}), **{names.get(key, key): todays(item) for key, item in there.items()}}


def _behind(meta: Mapping[str, Any]) -> str:
    return f"it has {meta['step']} steps behind it, in phase {meta['phase']}"


def difference(there: Any, here: Any, where: str = "plan") -> str | None:
    """The first place where two outlines differ, in words."""
    if isinstance(there, dict) and isinstance(here, dict) and there.keys() == here.keys():
        pairs = [(f"{where}.{key}", there[key], here[key]) for key in here]
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(there, here, strict=True))]
    elif isinstance(there, list) and isinstance(here, list):
        return f"{where} has {len(there)} entries there and {len(here)} here"
    else:
        brief = lambda value: value["is"] if isinstance(value, dict) and "is" in value else value
        return None if there == here else f"{where} is {brief(there)} there and {brief(here)} here"
    return next((found for name, a, b in pairs if (found := difference(a, b, name)) is not None), None)


def _refuse_other_weights(place: str, trees: Mapping[str, Tree], params: Tree) -> None:
    looks = lambda leaf: f"{leaf.dtype} of shape {tuple(leaf.shape)}"
    own = trees.get("params", {})
    for name in [*own, *params]:
        there, here = (looks(tree[name]) if name in tree else "missing" for tree in (own, params))
        if there != here:
            raise SettingError(
                f"{place} belongs to another model: parameter {name!r} is {there} there and {here} here; give the "
                "model that it was made with, or another folder"
            )


def expect(place: str, meta: Mapping[str, Any], meter: object) -> None:
    """The ledger must hold every line that the checkpoint has seen, and the same run must go on."""
    head, mine, own = meta["head"], getattr(meter, "account", None), meta.get("run")
    if mine is not None and own is not None and mine != own:
        raise LedgerError(
            f"{place} was charged to the run {own!r}, and this one is {mine!r}: what a run spends is counted "
            "together, so go on under the name or identity that it began with"
        )
    if isinstance(meter, Recorded) and head is not None:
        meter.expect(head)
    elif head is not None:
        raise LedgerError(f"{place} was charged to a ledger: open that ledger and give its run as the meter")
    elif isinstance(meter, Recorded):
        raise LedgerError(
            f"{place} was not charged to a ledger, so the ledger does not know its first steps: go on without one, "
            "or begin again in another folder"
        )


def _set_back(place: str, sampler: np.random.Generator, shape: Any) -> None:
    try:
        sampler.bit_generator.state = unpack(None, {}, shape, {})
    except (TypeError, ValueError, KeyError):
        raise SettingError(
            f"{place} was made with another kind of generator; give {type(sampler.bit_generator).__name__} its own"
        ) from None
