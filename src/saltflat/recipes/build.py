"""From a recipe to the parts of a run, data, network, loss and plan; and from a plan back to a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.core.contribution import PerExample, per_example, supervised
from saltflat.core.plan import Plan, calibrate, with_spare
from saltflat.data import (
    Form,
    Own,
    Split,
    is_own,
    is_own_by_name,
    load,
    official_form,
    official_size,
    own_form,
    own_split,
    preprocessing_of,
    shared,
)
from saltflat.data.augment import augment
from saltflat.data.sharing import divided, keys_of
from saltflat.door import PublicGradients
from saltflat.errors import SettingError
from saltflat.features import featured, shape_after
from saltflat.federated.contribution import PerClient, per_client
from saltflat.federated.partition import Partition, by_column
from saltflat.models import next_word_loss
from saltflat.plans import split_budget
from saltflat.recipes.groups import settings_of
from saltflat.recipes.networks import Network, networks
from saltflat.recipes.recipe import Recipe, Stage, size_missing
from saltflat.warmup import Pool


def own_of(recipe: Recipe) -> Own | None:
    """The user's file that the recipe names; None for a data set by name."""
    if not is_own(recipe.data):
        return None
    user = None if recipe.clients is None else recipe.clients.user
    return Own(recipe.data, recipe.table, recipe.test, recipe.classes, recipe.target_range, user)


def size_of(recipe: Recipe) -> int:
    """The declared number of units: clients, or examples, by the recipe or officially; files of yours have none.

    *Guarantee*: never fewer than there are. Public examples are no units, and how many they are follows from the
    examples: so the number is that of all of them, and a bound of the private ones.
    """
    if recipe.clients is not None:
        return recipe.clients.count
    if recipe.size is None and is_own(recipe.data):
        raise size_missing(recipe.data)
    size = recipe.size or official_size(recipe.data)
    if recipe.public is not None and size <= recipe.public.count:
        raise SettingError(f"public.count is {recipe.public.count}, and there are {size} examples; lower it")
    return size


def form_of(recipe: Recipe, data_dir: str | Path | None = None) -> Form:
    """The declared form of the recipe's examples, as features if it has any; no example is read."""
    own = own_of(recipe)
    form = official_form(recipe.data) if own is None else own_form(own, data_dir)
    return replace(form, shape=shape_after(recipe.features, form.shape))


def split_of(
    recipe: Recipe, data_dir: str | Path | None = None, *, watch: Callable[[int, int], None] | None = None
) -> Split:
    """The recipe's examples, as features if it has any; ``watch`` is told how many images are done, of how many.

    *Guarantee*: public examples are apart from the training examples, which are private. Which they are is decided by
    each example as it was read, before features are made of it: these may differ from machine to machine.
    """
    own = own_of(recipe)
    split = load(recipe.data, data_dir) if own is None else own_split(own, data_dir)
    split = replace(split, preprocessing=preprocessing_of(recipe.data, own, data_dir).as_document())
    if recipe.public is None:
        return featured(split, recipe.features, watch=watch)
    seed, rate = recipe.public.seed, recipe.public.count / size_of(recipe)
    chosen = shared(split.train, rate, seed=seed)
    split = featured(split, recipe.features, watch=watch)
    parts = divided(split.train, chosen.numbers)
    return replace(split, train=parts.private, public=parts.public, keys=keys_of(chosen.public, seed=seed))


def fitted(recipe: Recipe, form: Form) -> Recipe:
    """The recipe with what its data says written out: the width of a network that fits any, and the targets.

    So a run's own recipe is whole, and needs no file of the data to make its network again.

    >>> from saltflat.recipes import shipped
    >>> fitted(shipped("digits").but({"model": "mlp"}), Form((1, 8, 8), 10)).model.settings
    {'features': 64, 'outputs': 10}
    """
    takes, given = settings_of(networks()[recipe.model.name]), recipe.model.settings
    said = {"vocabulary": form.words} if form.words else {"features": form.features, "outputs": form.outputs}
    both = {name: n for name, n in said.items() if name in takes and given.get(name) is None}
    recipe = replace(recipe, model=Network(recipe.model.name, {**given, **both})) if both else recipe
    if not is_own(recipe.data):
        return recipe
    # a bare name is known to be a folder while it is there only; as a path it is one wherever the run is read
    if not is_own_by_name(recipe.data):
        recipe = replace(recipe, data=f"./{recipe.data}")
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
    before = (2, *form.shape) if form.words else (2,)
    shape = tuple(outputs.shape[1:]) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if (
        not isinstance(outputs, torch.Tensor)
        or outputs.shape[:-1] != before
        or outputs.shape[-1] < form.outputs
    ):
        wanted = f"{form.classes} classes" if form.classes else "one number as target"
        wanted = f"{form.words} words at each of {form.shape[0]} positions" if form.words else wanted
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


def warmed(recipe: Recipe, model: nn.Module) -> nn.Module:
    """The network with the weights of the recipe's ``start``, if it has one, in the place of those that were drawn.

    *Guarantee*: none for whoever these weights were made from. They must be of public data.
    """
    if recipe.start is None:
        return model
    try:
        found = load_file(recipe.start)
    except (OSError, SafetensorError):
        raise SettingError(f"start: {recipe.start} is no file of safetensors that can be read") from None
    own = {name: tuple(leaf.shape) for name, leaf in model.state_dict().items()}
    there = {name: tuple(leaf.shape) for name, leaf in found.items()}
    if wrong := sorted(name for name in own.keys() | there.keys() if own.get(name) != there.get(name)):
        raise SettingError(
            f"start: {recipe.start} does not hold the weights of {recipe.model}: {wrong[0]!r} is "
            f"{there.get(wrong[0], 'missing')} there, and {own.get(wrong[0], 'not in the network')} here"
        )
    model.load_state_dict(found)
    return model


def contribution_of(recipe: Recipe, model: nn.Module, *, workers: int = 0) -> PerExample | PerClient:
    """What one unit adds: an example's gradient or, where the recipe has clients, what a client's training changes.

    ``workers`` is `per_client`'s, and of no use to examples.
    """
    if recipe.clients is None:
        return loss_of(recipe, model)
    loss = supervised(criterion_of(recipe.target_range is not None))
    return per_client(model, loss, local=recipe.clients.local, workers=workers)


def partition_of(recipe: Recipe, split: Split) -> Partition:
    """Who has which training examples, by the recipe's clients."""
    assert recipe.clients is not None
    own = recipe.clients
    if own.split is None:
        return by_column(split.users or ())
    return own.split.divided(split.train.targets.cpu().numpy(), own.count, own.seed)


def loss_of(recipe: Recipe, model: nn.Module) -> PerExample:
    """Cross-entropy per example, or the squared error of a number, over the recipe's views."""
    loss = supervised(criterion_of(recipe.target_range is not None))
    views = augment(*recipe.augment, views=recipe.views) if recipe.augment else None
    return per_example(model, loss, views=recipe.views, augment=views)


def criterion_of(number: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """One loss per example: the squared error of a ``number``, else cross-entropy, of words the mean over them."""
    return _squared if number else _cross_entropy


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim == 2:
        return next_word_loss(outputs, targets)
    return F.cross_entropy(outputs, targets, reduction="none")


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
    return Plan(phases=phases, rate=rate, size=size, ema=recipe.ema, draw=recipe.draw)


def plan_of(recipe: Recipe, size: int) -> Plan:
    """The recipe's plan on ``size`` declared examples, its noise calibrated to its target, or as given.

    *Guarantee*: the planned steps and ``spare`` more of each phase cost at most the recipe's epsilon, or advantage, so
    that steps which a crash wasted do not shorten the run, whichever phase they belonged to.
    """
    draft = draft_of(recipe, size)
    if recipe.epsilon is None and recipe.advantage is None:
        return draft
    plan = with_spare(draft, recipe.spare)
    portions = [stage.portion for stage in recipe.phase if stage.portion is not None]
    if recipe.epsilon is None:
        plan = calibrate(plan, advantage=recipe.advantage)
    elif portions:
        plan = split_budget(
            plan,
            portions=portions,
            budget_split=recipe.budget_split,
            epsilon=recipe.epsilon,
            delta=recipe.delta,
            accountant=recipe.accountant,
        )
    else:
        plan = calibrate(plan, epsilon=recipe.epsilon, delta=recipe.delta, accountant=recipe.accountant)
    both = zip(plan.phases, draft.phases, strict=True)
    return replace(plan, phases=tuple(replace(noisy, steps=planned.steps) for noisy, planned in both))


def budget_of(recipe: Recipe, plan: Plan) -> float | None:
    """The epsilon at which the record of a run refuses more: the recipe's, or that of its advantage; None without both.

    With an advantage it is what the plan and its spare steps cost, so that the run ends with at most that advantage.
    """
    if recipe.advantage is None:
        return recipe.epsilon
    return with_spare(plan, recipe.spare).epsilon(recipe.delta) * (1 + 1e-6)


def with_pools(plan: Plan, pools: Mapping[str, PublicGradients]) -> Plan:
    """The plan with public examples where it names a `Pool` of them."""
    phases = tuple(
        replace(phase, method=_known(phase.method, pools), optimizer=_known(phase.optimizer, pools))
        for phase in plan.phases
    )
    return replace(plan, phases=phases) if any(isinstance(each, Pool) for each in plan.public) else plan


def _known(owner: Any, pools: Mapping[str, PublicGradients]) -> Any:
    """A method or an optimizer, and what is inside it, with the examples that it names."""
    changes: dict[str, Any] = {}
    public, inner = getattr(owner, "public", None), getattr(owner, "method", None)
    if isinstance(public, Pool):
        if public.of not in pools:
            raise SettingError(
                f"{type(owner).__name__} uses {public.described}: add [{public.of}] to the recipe"
            )
        changes["public"] = pools[public.of]
    if inner is not None:
        changes["method"] = _known(inner, pools)
    return replace(owner, **changes) if changes else owner


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
    return Recipe(phase=phases, rate=plan.rate, size=plan.size, ema=plan.ema, draw=plan.draw, **settings)
