"""From a recipe to the parts of a run: network, loss, plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from saltflat import models
from saltflat.clipping import Automatic, PerLayer
from saltflat.core.contribution import PerExample, per_example, supervised
from saltflat.core.plan import Phase, Plan, calibrate
from saltflat.data.augment import Flip, PadCrop, Transform, augment
from saltflat.door import AnyMethod
from saltflat.errors import SettingError
from saltflat.methods import DPLIS, DPSGD, SAM, SAT, Quantile
from saltflat.optimizers import EMA, SGD, Adam, AdamBC
from saltflat.plans import split_budget
from saltflat.recipes.recipe import Recipe

NETWORKS = tuple(name for name in models.__all__ if name.islower() and name != "parameter_count")


def network_of(recipe: Recipe) -> nn.Module:
    """The recipe's network, with the initial weights of its seed."""
    if recipe.model not in NETWORKS:
        raise SettingError(f"there is no model {recipe.model!r}; known are {', '.join(NETWORKS)}")
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        return getattr(models, recipe.model)()


def loss_of(recipe: Recipe, model: nn.Module) -> PerExample:
    """Cross-entropy per example, over the recipe's views."""
    loss = supervised(nn.CrossEntropyLoss(reduction="none"))
    transforms: list[Transform] = [PadCrop(recipe.crop)] if recipe.crop else []
    transforms += [Flip()] if recipe.flip else []
    if not transforms and recipe.views > 1:
        raise SettingError(f"views={recipe.views} would all be the same: set crop or flip")
    views = augment(*transforms, views=recipe.views) if transforms else None
    return per_example(model, loss, views=recipe.views, augment=views)


def plan_of(recipe: Recipe, size: int) -> Plan:
    """The recipe's plan on ``size`` declared examples, its noise calibrated to epsilon and delta.

    *Guarantee*: the planned steps and ``spare`` more of each phase cost at most epsilon, so that steps which a crash
    wasted do not shorten the run, whichever phase they belonged to.
    """
    rate = recipe.batch_size / size
    if rate > 1:
        raise SettingError(
            f"batch_size {recipe.batch_size} is larger than the data, {size} examples; take a smaller one"
        )
    steps = max(1, round(recipe.epochs / rate))
    phases = _two_phases(recipe, steps, rate) if recipe.method == "sai" else (_phase(recipe, steps),)
    generous = tuple(replace(phase, steps=phase.steps + recipe.spare) for phase in phases)
    plan = Plan(phases=generous, rate=rate, size=size, ema=EMA(recipe.ema) if recipe.ema else None)
    budget = {"epsilon": recipe.epsilon, "delta": recipe.delta}
    if recipe.method == "sai":
        shares = (recipe.first_share, 1 - recipe.first_share)
        plan = split_budget(plan, portions=shares, budget_split=recipe.budget_split, **budget)
    else:
        plan = calibrate(plan, **budget)
    planned = (replace(noisy, steps=p.steps) for noisy, p in zip(plan.phases, phases, strict=True))
    return replace(plan, phases=tuple(planned))


def _two_phases(recipe: Recipe, steps: int, rate: float) -> tuple[Phase, Phase]:
    first = round((recipe.first_epochs or recipe.epochs / 3) / rate)
    if not 1 <= first < steps:
        raise SettingError(f"sai needs a step in each of its phases; got {first} of {steps} in the first")
    plain = replace(recipe, method="dp-sgd", lr=recipe.second_lr)
    return _phase(recipe, first), _phase(plain, steps - first)


def _phase(recipe: Recipe, steps: int) -> Phase:
    return Phase(
        method=_method(recipe),
        steps=steps,
        noise_multiplier=1.0,  # calibration sets it
        clip_norm=_clip(recipe),
        optimizer=_optimizer(recipe),
    )


def _method(recipe: Recipe) -> AnyMethod:
    made: dict[str, Any] = {
        "dp-sgd": DPSGD(),
        "dp-sat": SAT(recipe.radius),
        "dp-sam": SAM(recipe.radius),
        "sai": SAT(recipe.radius),
        "dplis": DPLIS(lr=recipe.lr, copies=recipe.copies, reach=recipe.reach),
    }
    return Quantile(made[recipe.method]) if recipe.clipping == "quantile" else made[recipe.method]


def _clip(recipe: Recipe) -> Any:
    if recipe.clipping == "per-layer":
        return PerLayer(recipe.clip_norm)
    return Automatic(recipe.clip_norm) if recipe.clipping == "automatic" else recipe.clip_norm


def _optimizer(recipe: Recipe) -> Any:
    if recipe.optimizer == "sgd":
        return SGD(lr=recipe.lr, momentum=recipe.momentum)
    return (Adam if recipe.optimizer == "adam" else AdamBC)(lr=recipe.lr)
