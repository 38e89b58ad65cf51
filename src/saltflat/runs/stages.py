"""Before the private phase: public examples are kept apart, others are made from them, the network is warmed up.

Everything here is a function of public examples, public settings and public seeds. It is kept in the run's folder, so
a run that goes on finds it there, and one that was stopped before its first private step goes on from what was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from saltflat.core.contribution import per_example, supervised
from saltflat.core.group import Group
from saltflat.core.public import Public
from saltflat.core.train import same_modes
from saltflat.data import Examples, Split
from saltflat.data.arrays import read_arrays
from saltflat.door import layers
from saltflat.errors import DataError, PrivacyError, SettingError
from saltflat.privacy.record import durable
from saltflat.recipes import Recipe
from saltflat.recipes.build import criterion_of, size_of
from saltflat.recipes.documents import difference
from saltflat.recipes.toml import dotted
from saltflat.runs.layout import (
    GENERATOR,
    KEYS,
    MADE,
    SAMPLES,
    STAGES,
    WARM,
    Before,
    Folder,
    StageOf,
    as_npz,
    before,
)
from saltflat.runs.making import Lesson, fitted_in
from saltflat.synthesis import Discriminator, Images, even_labels
from saltflat.warmup import Known, judged
from saltflat.warmup.known import pixels
from saltflat.warmup.scores import right

SHOWN = 40  # images of each kind for people to see
FEWEST = 4  # of each kind, below which there are no neighbours to compare
JUDGED = 2000  # made ones that metrics look at: distances between all pairs are taken
Told = Callable[[str, int, int], None]  # what is going on, how much of it is done, of how much
Stages = tuple[StageOf, ...]


@dataclass(frozen=True)
class Ready:
    """What a run has before its private phase: public examples, the pools that methods use, and what is on record."""

    known: Known
    said: Before
    pools: dict[str, Public] = field(default_factory=dict, repr=False)

    @property
    def used(self) -> tuple[str, ...]:
        """Which examples were used as public ones, for the privacy statement."""
        return self.said.provenance


def uses_public(recipe: Recipe) -> bool:
    """Whether anything comes before the private phase, or is set apart from it."""
    return recipe.public is not None or bool(recipe.warmup)


def scenario_of(recipe: Recipe) -> str:
    """The scenario's name: what the network was warmed up on, and whether methods use public examples too."""
    owners = [owner for stage in recipe.phase for owner in (*layers(stage.method), stage.optimizer)]
    if any(getattr(owner, "public", None) is not None for owner in owners):
        return "Extended"
    on = {getattr(stage, "on", "random") for stage in recipe.warmup}
    if "synthetic" in on:
        return "WarmSyn"
    return "Warm" if "public" in on else "WarmRandom" if on else "Cold"


def outline_of(recipe: Recipe) -> dict[str, Any]:
    """The settings that decide what comes before the private phase."""
    names = ("data", "model", "seed", "features", "public", "synthetic", "warmup")
    whole = recipe.as_document()
    # a folder that was prepared when the place of an example decided whether it is public has no such entry
    chosen = {"choice of public examples": "by a hash of each"} if recipe.public is not None else {}
    return {**{name: whole[name] for name in names if name in whole}, **chosen}


def prepared(
    recipe: Recipe,
    split: Split,
    folder: Folder,
    model: nn.Module,
    *,
    told: Told = lambda what, done, of: None,
) -> Ready:
    """Make what is not there yet, warm the model up, and keep all of it in the run's folder.

    *Guarantee*: no private example is looked at; of ``split`` the public and the test examples, shape and scale are.
    """
    check_taken_out(recipe, split)
    known = Known(split.shape, split.classes, split.train.scale, split.public)
    if not uses_public(recipe):
        return Ready(known, Before("Cold"))
    device = next(model.parameters()).device

    def made() -> _Made:
        return _carried_out(recipe, split, folder, model, known, told)

    done = Group.here().told(made)  # by the first process alone: it has the folder
    if done.weights is not None:
        model.load_state_dict(done.weights)
    known = replace(known, synthetic=done.synthetic)
    return Ready(known, done.said, pools_of(recipe, _on(known, device), model))


@dataclass(frozen=True)
class _Made:
    """What the stages before the private phase leave: what is on record, made examples, and the warm weights."""

    said: Before
    synthetic: Examples | None = field(repr=False)
    weights: dict[str, torch.Tensor] | None = field(repr=False)


def _carried_out(
    recipe: Recipe, split: Split, folder: Folder, model: nn.Module, known: Known, told: Told
) -> _Made:
    said = _begun(recipe, folder)
    device = next(model.parameters()).device
    if split.keys is not None:
        durable.replace(folder.public / KEYS, as_npz({"keys": split.keys}), mode=durable.RELEASED)
    if recipe.synthetic is not None:
        known = replace(known, synthetic=_made(recipe, known, folder.public, told))
    _keep_samples(recipe, known, folder.public)
    with same_modes(model):
        stages = _warmed(
            recipe, _on(known, device), split.test.to(device), folder.public, model, said.stages, told
        )
    metrics = dict(said.metrics) or _metrics(recipe, known, stages, told)
    others = tuple(each for each in said.stages if each.kind in ("private", "without noise"))
    said = replace(said, stages=(*stages, *others), metrics=metrics)
    keep(folder, said)
    weights = {name: leaf.cpu() for name, leaf in model.state_dict().items()} if recipe.warmup else None
    return _Made(said, known.synthetic, weights)


def check_taken_out(recipe: Recipe, split: Split) -> None:
    """Refuse to train privately on examples that the recipe declares public, or to count them as protected."""
    if recipe.public is None:
        return
    if split.public is None or split.keys is None:
        raise PrivacyError(
            f"the recipe declares about {recipe.public.count} examples public, and they were not taken out of the "
            "private ones: load the data with saltflat.recipes.build.split_of(recipe)"
        )


def keep(folder: Folder, said: Before) -> None:
    durable.replace(folder.public / STAGES, said.as_json(), mode=durable.RELEASED)


def add_stage(folder: Folder, stage: StageOf) -> Before | None:
    """Put a later stage on record, in the place of an earlier one of its kind."""
    said = before(folder)
    if said is not None:
        others = tuple(each for each in said.stages if each.kind != stage.kind)
        said = replace(said, stages=(*others, stage))
        keep(folder, said)
    return said


def pools_of(recipe: Recipe, known: Known, model: nn.Module) -> dict[str, Public]:
    """The examples that methods may name, seen through the loss of the model that is trained."""
    loss = supervised(criterion_of(recipe.target_range is not None))
    named = dict(zip(("public", "synthetic"), provenance(recipe), strict=False))
    return {
        name: Public(per_example(model, loss), examples, named[name])
        for name, examples in (("public", known.public), ("synthetic", known.synthetic))
        if examples is not None
    }


def provenance(recipe: Recipe) -> tuple[str, ...]:
    """Which examples are public and where they come from, in words."""
    said = []
    if recipe.public is not None:
        said.append(
            f"about {recipe.public.count} of the {size_of(recipe)} training examples of {recipe.data}, by a hash of "
            f"each under seed {recipe.public.seed}"
        )
    if recipe.synthetic is not None:
        said.append(
            f"{recipe.synthetic.images} images of a generator that was fitted to these and knows them by heart"
        )
    return tuple(said)


def _begun(recipe: Recipe, folder: Folder) -> Before:
    """What is on record already; a folder in which something else was prepared is refused."""
    outline, there = outline_of(recipe), before(folder)
    if there is None:
        folder.public.mkdir(exist_ok=True)
        there = Before(scenario_of(recipe), provenance(recipe), outline=outline)
        keep(folder, there)
        return there
    differing = difference(dict(there.outline), outline)
    if differing is not None:
        keys, _, _ = differing
        raise SettingError(
            f"{folder.public} holds a warm-up with another {dotted(keys)}; give another --out, or remove that folder"
        )
    return there


def _made(recipe: Recipe, known: Known, place: Path, told: Told) -> Examples:
    """The synthetic examples, from the folder or made now."""
    how, kept = recipe.synthetic, place / MADE
    assert how is not None
    if kept.exists():
        arrays = read_arrays(kept, ("images", "labels"))
        images, labels = (torch.from_numpy(arrays[name]) for name in ("images", "labels"))
        return known.examples(images / 255, labels)
    public = known.pool("public")
    lesson = Lesson(pixels(public), public.targets, known.classes, provenance(recipe)[0])
    found = fitted_in(
        place / GENERATOR,
        how.fit,
        lesson,
        watch=lambda seen: told("fitting the generator", seen.step, seen.steps),
    )
    labels = even_labels(how.images, known.classes)
    drawn = lambda **more: found.draw(
        labels, seed=how.seed, steps=how.steps, watch=lambda done, of: told("making images", done, of), **more
    )
    images = drawn()
    if how.guidance is not None:
        judge = Discriminator.trained(
            how.guidance,
            (lesson.images, lesson.labels),
            (images, labels),
            classes=known.classes,
            watch=lambda done, of: told("training the discriminator", done, of),
        )
        images = drawn(guided=judge.guide)
    whole = (images * 255).round().to(torch.uint8)
    durable.replace(kept, as_npz({"images": whole.numpy(), "labels": labels.numpy()}), mode=durable.RELEASED)
    return known.examples(whole / 255, labels)


def _on(known: Known, device: torch.device) -> Known:
    """The same examples, on the model's device."""
    moved = lambda examples: None if examples is None else examples.to(device)
    return replace(known, public=moved(known.public), synthetic=moved(known.synthetic))


def _warmed(
    recipe: Recipe, known: Known, test: Examples, place: Path, model: nn.Module, done: Stages, told: Told
) -> Stages:
    """Give the model its warm weights, from the folder or by warming up; the stages so far, with their accuracies."""
    kept = place / WARM
    score = lambda: right(model, test) if test.count else None
    if not recipe.warmup:
        return (StageOf("first weights", "start", 0.0, score()),)
    if kept.exists() and any(each.kind == "warm-up" for each in done):
        try:
            model.load_state_dict(load_file(kept))
        except (SafetensorError, RuntimeError, OSError):
            raise DataError(f"{kept} is damaged: remove {place}, and it is made again") from None
        return tuple(each for each in done if each.kind in ("start", "warm-up"))
    stages = [StageOf("first weights", "start", 0.0, score())]
    for number, stage in enumerate(recipe.warmup):
        begun, words = time.perf_counter(), stage.in_words()
        watch = lambda step, of, words=words: told(f"warm-up: {words}", step, of)
        stage.warmed(model, known, seed=_seed(recipe, number), watch=watch)
        stages.append(StageOf(words, "warm-up", 0.0, score(), time.perf_counter() - begun))
    weights = {name: leaf.detach().cpu().contiguous() for name, leaf in model.state_dict().items()}
    durable.replace(kept, save(weights, metadata={"format": "pt"}), mode=durable.RELEASED)
    return tuple(stages)


def _seed(recipe: Recipe, number: int) -> int:
    """A public seed for a stage of the warm-up: another one for each."""
    return int(np.random.SeedSequence([abs(recipe.seed), number]).generate_state(1)[0])


def _metrics(recipe: Recipe, known: Known, stages: Stages, told: Told) -> dict[str, float]:
    """How good the made images are beside the public ones. CAS: the accuracy of a network that saw made ones only."""
    if known.synthetic is None or min(known.pool("public").count, known.synthetic.count) < FEWEST:
        return {}
    told("judging images", 0, 1)
    some = replace(
        known.synthetic, inputs=known.synthetic.inputs[:JUDGED], targets=known.synthetic.targets[:JUDGED]
    )
    found = judged(replace(known, synthetic=some))
    first = recipe.warmup[0] if recipe.warmup else None
    if getattr(first, "on", None) == "synthetic" and stages[1].accuracy is not None:
        found["cas"] = stages[1].accuracy
    told("judging images", 1, 1)
    return found


def _keep_samples(recipe: Recipe, known: Known, place: Path) -> None:
    """Some images of each kind, where examples are images."""
    if len(known.shape) != 3 or recipe.features:
        return
    shown: dict[str, Any] = {}
    for name, examples in (("public", known.public), ("synthetic", known.synthetic)):
        if examples is not None:
            some = replace(examples, inputs=examples.inputs[:SHOWN], targets=examples.targets[:SHOWN])
            shown[name] = (pixels(some) * 255).round().to(torch.uint8).numpy()
            shown[f"{name}_labels"] = some.targets.numpy()
    for number, stage in enumerate(recipe.warmup):
        process = getattr(stage, "process", None)
        if process is not None and known.shape[0] in (1, 3) and known.shape[1] == known.shape[2]:
            channels, side, _ = known.shape
            painted = Images(process=process, channels=channels, side=side, seed=_seed(recipe, number)).first(
                SHOWN
            )
            shown["random"] = painted.numpy()
    if shown:
        durable.replace(place / SAMPLES, as_npz(shown), mode=durable.RELEASED)
