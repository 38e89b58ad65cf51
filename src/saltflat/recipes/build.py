"""From a recipe to the parts of a run, data, network, loss and plan; and from a plan back to a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.core.contribution import PerExample, per_example, supervised
from saltflat.core.plan import Plan, calibrate
from saltflat.data import Form, Own, Split, is_own, load, official_form, official_size, own_form, own_split
from saltflat.data.augment import augment
from saltflat.errors import SettingError
from saltflat.plans import split_budget
from saltflat.recipes.groups import settings_of
from saltflat.recipes.networks import Network, networks
from saltflat.recipes.recipe import Recipe, Stage


def own_of(recipe: Recipe) -> Own | None:
    """The user's file that the recipe names; None for a data set by name."""
    if not is_own(recipe.data):
        return None
    return Own(recipe.data, recipe.table, recipe.test, recipe.classes, recipe.target_range)


def size_of(recipe: Recipe) -> int:
    """The declared number of training examples: the recipe's, else the official one; files of yours have none."""
    if recipe.size is None and is_own(recipe.data):
        raise size_missing(recipe.data)
    return recipe.size or official_size(recipe.data)


def size_missing(data: str) -> SettingError:
    """How many rows a file of the user's has must be said by the user."""
    return SettingError(
        f"how many rows {data} has is private: declare a number that is public and not smaller, with --size 5000 or "
        "size = 5000"
    )


def form_of(recipe: Recipe, data_dir: str | Path | None = None) -> Form:
    """The declared form of the recipe's examples; no example is read."""
    own = own_of(recipe)
    return official_form(recipe.data) if own is None else own_form(own, data_dir)


def split_of(recipe: Recipe, data_dir: str | Path | None = None) -> Split:
    """The recipe's examples."""
    own = own_of(recipe)
    return load(recipe.data, data_dir) if own is None else own_split(own, data_dir)


def fitted(recipe: Recipe, form: Form) -> Recipe:
    """The recipe with what its data says written out: the width of a network that fits any, and the targets.

    So a run's own recipe is whole, and needs no file of the data to make its network again.

    >>> from saltflat.recipes import shipped
    >>> fitted(shipped("digits").but({"model": "mlp"}), Form((1, 8, 8), 10)).model.settings
    {'features': 64, 'outputs': 10}
    """
    takes, given = settings_of(networks()[recipe.model.name]), recipe.model.settings
    said = {"features": form.features, "outputs": form.outputs}
    both = {name: n for name, n in said.items() if name in takes and given.get(name) is None}
    recipe = replace(recipe, model=Network(recipe.model.name, {**given, **both})) if both else recipe
    if not is_own(recipe.data):
        return recipe
    return replace(recipe, classes=form.classes or None, target_range=form.span)


def check_shapes(recipe: Recipe, form: Form) -> None:
    """Refuse a network that does not take examples of this form, or does not give what they ask for.

    It is tried on two made-up rows.
    """
    model = network_of(recipe).eval()
    try:
        with torch.no_grad():
            outputs = model(form.made_up(2)[0])
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SettingError(
            f"{recipe.model} does not take {recipe.data}'s examples of shape {form.shape}: {first}"
        ) from None
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2 or outputs.shape[1] < form.outputs:
        shape = tuple(outputs.shape[1:]) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        wanted = f"{form.classes} classes" if form.classes else "one number as target"
        raise SettingError(
            f"{recipe.model} gives outputs of shape {shape}, and {recipe.data} has {wanted}; take another model"
        )
    if form.span is not None and outputs.shape[1] != 1:
        raise SettingError(
            f"{recipe.model} gives {outputs.shape[1]} outputs, and {recipe.data}'s target is one number; give it one"
        )


def network_of(recipe: Recipe) -> nn.Module:
    """The recipe's network, with the initial weights of its seed."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        return recipe.model.made()


def loss_of(recipe: Recipe, model: nn.Module) -> PerExample:
    """Cross-entropy per example, or the squared error of a number, over the recipe's views."""
    loss = supervised(criterion_of(recipe.target_range is not None))
    views = augment(*recipe.augment, views=recipe.views) if recipe.augment else None
    return per_example(model, loss, views=recipe.views, augment=views)


def criterion_of(number: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """One loss per example: the squared error of a ``number``, else cross-entropy."""
    return _squared if number else nn.CrossEntropyLoss(reduction="none")


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1) - targets) ** 2


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
