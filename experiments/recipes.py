"""The recipes called best-..., measured; and what flat minima add to them.

python experiments/recipes.py                # the recipes at epsilon 1, 2 and 3, three seeds; goes on where it stopped
python experiments/recipes.py --dpnas        # the papers' network on MNIST at epsilon 3, one run: an hour of one core
python experiments/recipes.py --study        # every flat method on five networks: tries on MNIST, then Fashion-MNIST
python experiments/recipes.py --write        # RESULTS.md from the finished runs

Features are computed once if SALTFLAT_CACHE names a folder.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import results
import torch
from recipes_page import page
from recipes_study import GROUNDS, SEEDS, Changes, Wanted, kept, studied
from torch.func import functional_call

import saltflat as sf
from saltflat.core.public import Public
from saltflat.core.train import Progress, Running
from saltflat.data import Examples, Split, TensorUnits, load
from saltflat.features import featured
from saltflat.recipes import Recipe, plan_of, read, shipped
from saltflat.recipes.build import contribution_of, fitted, form_of, network_of, size_of
from saltflat.tree import Tree
from saltflat.warmup import Known

HERE = Path(__file__).parent
KEPT, STUDIED = HERE / "recipes.jsonl", HERE / "recipes_study.jsonl"


def recipe_of(name: str, changes: Changes) -> tuple[Recipe, torch.nn.Module]:
    """A shipped recipe with other entries, made whole by the form of its data; and its network.

    ``{name = "noise"}`` in a change stands for public examples: white noise in the form of the data, with labels by
    chance, as nothing labelled is public here.
    """
    same = {key: each for key, each in changes.items() if key in ("features", "model", "seed")}
    plain = shipped(name, same)
    plain = fitted(plain, form_of(plain))
    model, form = network_of(plain), form_of(plain)
    source = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(1000, form.features, generator=source), dim=1)
    rows = (math.sqrt(form.features) * rows).view(1000, *form.shape)
    units = TensorUnits((rows, torch.randint(form.outputs, (1000,), generator=source)))
    public = Public(contribution_of(plain, model), units, "white noise with labels by chance")
    made = read(name, changes, using={"noise": public})
    return fitted(made, form_of(made)), model


@lru_cache(maxsize=1)
def examples_of(data: str, features: tuple[Any, ...]) -> Split:
    """A data set as features; the last one stays in memory, so that other settings of the training find it there."""
    return featured(load(data), features)


def scored(model: torch.nn.Module, params: Tree, examples: Examples) -> float:
    """The accuracy of these weights on public examples."""
    with torch.no_grad():
        hits = sum(
            int((functional_call(model, params, (x,)).argmax(1) == y).sum())
            for x, y in examples.batches(2000)
        )
    return hits / examples.count


_warm: dict[tuple[str, int], Tree] = {}  # the weights after a warm-up, by what it was and its seed


def warm_weights(stages: Sequence[Any], known: Known, seed: int, recipe: Recipe) -> Tree:
    """The weights after the stages before the private phase, which know a data set's form alone: once for each seed."""
    key = repr((recipe.model, stages, known)), seed
    if key not in _warm:
        model = network_of(recipe)
        for stage in stages:
            stage.warmed(model, known, seed=seed, watch=lambda done, of: None)
        _warm[key] = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    return _warm[key]


def run(name: str, changes: Changes, seed: int) -> results.Result:
    """Train a recipe once, and measure the weights that it ends with and the last ones."""
    recipe, model = recipe_of(name, {**changes, "seed": seed})
    started = time.perf_counter()
    split = examples_of(recipe.data, recipe.features)
    ready = time.perf_counter()
    if recipe.warmup:
        known = Known(split.shape, split.classes, split.train.scale)
        model.load_state_dict(warm_weights(recipe.warmup, known, seed, recipe))
    plan = plan_of(recipe, size_of(recipe))
    last: Tree = {}

    def keep(progress: Progress) -> None:
        if progress.step == plan.steps:
            last.update(progress.params)

    running = Running(physical=recipe.physical, watch=keep)
    ending = sf.train(plan, contribution_of(recipe, model), split.train, running=running)
    return {
        "settings": {"recipe": name, "changes": changes, "seed": seed},
        "whole": recipe.as_document(),
        "epsilon": plan.epsilon(recipe.delta),
        "delta": recipe.delta,
        "test_accuracy": scored(model, ending, split.test),
        "last_accuracy": scored(model, last, split.test),
        "features_seconds": ready - started,
        "seconds": time.perf_counter() - ready,
    }


def series(runs: Iterable[Wanted], out: Path) -> None:
    """Every run that the file does not hold yet, each written when it ends."""
    results.check_writable(out)
    for wanted in runs:
        if kept(wanted, results.read(out)) is not None:
            continue
        found = run(*wanted)
        results.append(out, found)
        name, changes, seed = wanted
        print(
            f"{name} {changes} seed {seed}: {found['test_accuracy']:.4f} (last weights {found['last_accuracy']:.4f}), "
            f"epsilon {found['epsilon']:.3f}, {found['seconds']:.0f} s",
            flush=True,
        )


# The recipes

MEASURED: dict[str, tuple[float, ...]] = {
    "best-fashion-mnist": (1.0, 3.0, 2.0),
    "best-mnist": (1.0, 3.0, 2.0),
    "best-cifar10": (1.0, 3.0, 2.0),
    "best-tabular": (1.0,),
}


def measured(names: Sequence[str], epsilons: Sequence[float]) -> Iterator[Wanted]:
    """The recipes as they ship."""
    for name in names:
        for epsilon in epsilons:
            if epsilon in MEASURED[name]:
                yield from ((name, {"epsilon": epsilon}, seed) for seed in SEEDS)


DPNAS: Changes = {  # as the papers train it, but for 6 epochs, and not 40
    "features": [],
    "model": {"dpnas_mnist": {}},
    "epsilon": 3.0,
    "batch_size": 2000,
    "physical": 64,
    "phase.0.steps": 180,
    "phase.0.optimizer.SGD.lr": 2.0,
}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--recipe", nargs="+", choices=list(MEASURED), default=list(MEASURED), help="(default: all)")
    add("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 2.0], help="(default: 1 3 2)")
    add("--dpnas", action="store_true", help="the papers' network on MNIST instead")
    add("--study", action="store_true", help="the study of flat methods instead")
    places = range(len(GROUNDS))
    add(
        "--ground",
        type=int,
        nargs="+",
        choices=places,
        default=list(places),
        help="of the study (default: all)",
    )
    add("--write", action="store_true", help="write RESULTS.md from the finished runs, and end")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    if given.write:
        (HERE / "RESULTS.md").write_text(page(), encoding="utf-8")
    elif given.study:
        for place in given.ground:
            series(studied(GROUNDS[place], lambda: results.read(STUDIED)), STUDIED)
    elif given.dpnas:
        series([("best-mnist", DPNAS, 0)], KEPT)
    else:
        series(measured(given.recipe, given.epsilon), KEPT)


if __name__ == "__main__":
    main()
