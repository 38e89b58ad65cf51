"""From a recipe to the parts of a run, network, loss and plan; and from a plan back to a recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from saltflat.core.contribution import PerExample, per_example, supervised
from saltflat.core.plan import Plan, calibrate
from saltflat.data.augment import augment
from saltflat.errors import SettingError
from saltflat.plans import split_budget
from saltflat.recipes.recipe import Recipe, Stage


def network_of(recipe: Recipe) -> nn.Module:
    """The recipe's network, with the initial weights of its seed."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        return recipe.model.made()


def loss_of(recipe: Recipe, model: nn.Module) -> PerExample:
    """Cross-entropy per example, over the recipe's views."""
    loss = supervised(nn.CrossEntropyLoss(reduction="none"))
    views = augment(*recipe.augment, views=recipe.views) if recipe.augment else None
    return per_example(model, loss, views=recipe.views, augment=views)


def rate_of(recipe: Recipe, size: int) -> float:
    """Each example's probability to join a step, of ``size`` declared ones."""
    rate = recipe.rate if recipe.batch_size is None else recipe.batch_size / size
    if rate is None or rate > 1:
        raise SettingError(
            f"batch_size {recipe.batch_size:g} is larger than the data, {size} examples; take a smaller one"
        )
    return rate


def draft_of(recipe: Recipe, size: int) -> Plan:
    """What will run on ``size`` declared examples, before its noise is calibrated; quick."""
    rate = rate_of(recipe, size)
    phases = tuple(stage.phase(steps=stage.steps_at(rate)) for stage in recipe.phase)
    return Plan(phases=phases, rate=rate, size=size, ema=recipe.ema)


def plan_of(recipe: Recipe, size: int) -> Plan:
    """The recipe's plan on ``size`` declared examples, its noise calibrated to epsilon and delta, or as given.

    *Guarantee*: with epsilon, the planned steps and ``spare`` more of each phase cost at most epsilon, so that steps
    which a crash wasted do not shorten the run, whichever phase they belonged to.
    """
    draft = draft_of(recipe, size)
    if recipe.epsilon is None:
        return draft
    generous = (replace(phase, steps=phase.steps + recipe.spare) for phase in draft.phases)
    budget = {"epsilon": recipe.epsilon, "delta": recipe.delta}
    plan = replace(draft, phases=tuple(generous))
    portions = [stage.portion for stage in recipe.phase if stage.portion is not None]
    if portions:
        plan = split_budget(plan, portions=portions, budget_split=recipe.budget_split, **budget)
    else:
        plan = calibrate(plan, **budget)
    both = zip(plan.phases, draft.phases, strict=True)
    return replace(plan, phases=tuple(replace(noisy, steps=planned.steps) for noisy, planned in both))


def recipe_of(plan: Plan, **settings: Any) -> Recipe:
    """The recipe whose plan this is, noise included; ``settings`` are the recipe's others, such as data and model.

    >>> from saltflat.plans import sai
    >>> from saltflat.recipes import Network
    >>> plan = sai(steps=(15, 25), rate=0.1, size=1000, epsilon=2.0, delta=1e-5)
    >>> plan_of(recipe_of(plan, data="digits", model=Network("digits_cnn")), plan.size) == plan
    True
    """
    phases = tuple(
        Stage(
            method=phase.method,
            clip_norm=phase.clip_norm,
            optimizer=phase.optimizer,
            steps=phase.steps,
            noise_multiplier=phase.noise_multiplier,
            noise_schedule=phase.noise_schedule,
            until=phase.until,
        )
        for phase in plan.phases
    )
    return Recipe(phase=phases, rate=plan.rate, size=plan.size, ema=plan.ema, **settings)
