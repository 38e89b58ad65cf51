"""Ways to take one training step: plain SGD, the modes of Opacus, and saltflat's own.

An engine is a function ``build(model, batch) -> step``; calling ``step`` takes one step on that batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from cases import Batch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.core.memory import keep_freed_memory

Step = Callable[[], None]
Build = Callable[..., Step]  # of a model and a batch; saltflat's may be given the place to start from

CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
SALTFLAT = ("saltflat", "saltflat-sat", "saltflat-sam")
BESIDE = dict.fromkeys(SALTFLAT[1:], SALTFLAT[0])  # whom a method shares its process with, to be compared


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over units; a unit's own loss is the mean over its tokens, if it has any."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The update rule that every engine uses."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def sgd(model: nn.Module, batch: Batch) -> Step:
    """Plain training, without privacy: the yardstick."""
    inputs, targets = batch
    optimizer = optimizer_of(model)

    def step() -> None:
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def sgd_kept(model: nn.Module, batch: Batch) -> Step:
    """Plain training in a process that keeps freed memory, as saltflat's does: what that alone is worth."""
    keep_freed_memory()
    return sgd(model, batch)


def _private(model: nn.Module, batch: Batch, *, mode: str) -> tuple:
    """What Opacus returns: model, optimizer, criterion (for ghost clipping only), loader."""
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator
    from torch.utils.data import DataLoader, TensorDataset

    fixed = ModuleValidator.fix(model)  # nn.LSTM becomes DPLSTM, as Opacus asks
    return PrivacyEngine().make_private(
        module=fixed.train(),
        optimizer=optimizer_of(fixed),
        data_loader=DataLoader(TensorDataset(*batch), batch_size=len(batch[0])),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )


def opacus(model: nn.Module, batch: Batch, *, mode: str) -> Step:
    """Opacus with per-example gradients in memory: hooks, functorch or ew (expanded weights)."""
    inputs, targets = batch
    private, optimizer, _ = _private(model, batch, mode=mode)

    def step() -> None:
        cross_entropy(private(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def opacus_ghost(model: nn.Module, batch: Batch) -> Step:
    """Opacus's ghost clipping: its criterion runs both backward passes."""
    inputs, targets = batch
    private, optimizer, criterion, _ = _private(model, batch, mode="ghost")

    def step() -> None:
        logits = private(inputs)
        # the shape tells the criterion which tokens belong to one unit
        criterion(logits.flatten(0, -2), targets.flatten(), shape=logits.shape).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


ENGINES: dict[str, Build] = {
    "sgd": sgd,
    "sgd-kept": sgd_kept,
    "opacus-hooks": partial(opacus, mode="hooks"),
    "opacus-functorch": partial(opacus, mode="functorch"),
    "opacus-ew": partial(opacus, mode="ew"),
    "opacus-ghost": opacus_ghost,
}
NAMES = (*ENGINES, *SALTFLAT)


def engine(name: str) -> Build:
    """The engine called ``name``; saltflat's, and those of its methods, are in files beside this one."""
    if name in ENGINES:
        return ENGINES[name]
    home = "saltflat_engine" if name in SALTFLAT else "method_engines"
    return import_module(home).ENGINES[name]


def team(names: Sequence[str], model: nn.Module, batch: Batch) -> dict[str, Step]:
    """The engines' steps by name; several, which must be saltflat's, train one set of weights together."""
    builds = {name: engine(name) for name in names}
    if len(builds) == 1:
        return {name: build(model, batch) for name, build in builds.items()}
    return import_module("saltflat_engine").team(builds, model, batch)


def missing(name: str) -> str:
    """Why the engine cannot be tried at all, or nothing."""
    if name in SALTFLAT and not (Path(__file__).parent / "saltflat_engine.py").exists():
        return "skipped: there is no benchmarks/saltflat_engine.py"
    return ""
