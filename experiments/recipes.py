"""The recipes called best-..., measured; and what flat minima add to them.

python experiments/recipes.py                # the recipes at epsilon 1, 2 and 3, three seeds; goes on where it stopped
python experiments/recipes.py --study        # every flat method on the features: tries on MNIST, then Fashion-MNIST
python experiments/recipes.py --write        # RESULTS.md from the finished runs

Features are computed once if SALTFLAT_CACHE names a folder.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import results
import torch
from recipes_page import page
from torch.func import functional_call

import saltflat as sf
from saltflat.core.public import Public
from saltflat.core.train import Progress, Running
from saltflat.data import Examples, Split, TensorUnits, load
from saltflat.features import featured
from saltflat.recipes import Recipe, plan_of, read, shipped
from saltflat.recipes.build import contribution_of, fitted, form_of, network_of, size_of
from saltflat.tree import Tree

HERE = Path(__file__).parent
KEPT, STUDIED = HERE / "recipes.jsonl", HERE / "recipes_study.jsonl"
SEEDS = (0, 1, 2)  # noise and draws are secret and always others; the linear model's first weights are zero
Changes = dict[str, Any]


def recipe_of(name: str, changes: Changes) -> tuple[Recipe, torch.nn.Module]:
    """A shipped recipe with other entries, made whole by the form of its data; and its network.

    ``{name = "noise"}`` in a change stands for public examples: white noise of the features' length, with labels by
    chance, as nothing labelled is public here.
    """
    same = {key: each for key, each in changes.items() if key == "features"}
    plain = shipped(name, same)
    plain = fitted(plain, form_of(plain))
    model, form = network_of(plain), form_of(plain)
    source = torch.Generator().manual_seed(0)
    rows = 63 * torch.nn.functional.normalize(torch.randn(1000, form.features, generator=source), dim=1)
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


def run(name: str, changes: Changes, seed: int) -> results.Result:
    """Train a recipe once, and measure the weights that it ends with and the last ones."""
    recipe, model = recipe_of(name, {**changes, "seed": seed})
    started = time.perf_counter()
    split = examples_of(recipe.data, recipe.features)
    ready = time.perf_counter()
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


def series(runs: Iterable[tuple[str, Changes, int]], out: Path) -> None:
    """Every run that the file does not hold yet, each written when it ends."""
    results.check_writable(out)
    for name, changes, seed in runs:
        if kept(name, changes, seed, results.read(out)) is not None:
            continue
        found = run(name, changes, seed)
        results.append(out, found)
        print(
            f"{name} {changes} seed {seed}: {found['test_accuracy']:.4f} (last weights {found['last_accuracy']:.4f}), "
            f"epsilon {found['epsilon']:.3f}, {found['seconds']:.0f} s",
            flush=True,
        )


def kept(name: str, changes: Changes, seed: int, found: Sequence[results.Result]) -> results.Result | None:
    """The finished run with these settings, if there is one."""
    wanted = {"recipe": name, "changes": changes, "seed": seed}
    return next((one for one in found if one["settings"] == wanted), None)


# The recipes

MEASURED: dict[str, tuple[float, ...]] = {
    "best-fashion-mnist": (1.0, 3.0, 2.0),
    "best-mnist": (1.0, 3.0, 2.0),
    "best-cifar10": (1.0, 3.0, 2.0),
    "best-tabular": (1.0,),
}


def measured(names: Sequence[str], epsilons: Sequence[float]) -> Iterator[tuple[str, Changes, int]]:
    """The recipes as they ship."""
    for name in names:
        for epsilon in epsilons:
            if epsilon in MEASURED[name]:
                yield from ((name, {"epsilon": epsilon}, seed) for seed in SEEDS)


# The study: best-mnist and best-fashion-mnist with other methods. Every method has three tries on MNIST at epsilon 1;
# the best of them is what runs on Fashion-MNIST. Features are the scattering alone, whitened by channel, batches are a
# quarter of the recipes', and steps half as many, for all alike, so that a run takes seconds.

SMALL: Changes = {
    "features": [
        "Scattering",
        {"Grouped": {"groups": 27}},
        {"Whitened": {"power": 0.5, "floor": 1.0, "channels_only": True}},
        "RowScaled",
    ],
    "batch_size": 1024,
    "epsilon": 1.0,
    "phase.0.steps": 90,
}
LR = "phase.0.optimizer.SGD.lr"


def two_phases(first: Any, *, lr: float, portions: tuple[float, float] | None) -> list[Changes]:
    """Three eighths of the steps with one method, then DP-SGD at another learning rate."""
    steps, more = (34, 56), ({"portion": each} for each in portions or ())
    phases: list[Changes] = [
        {
            "steps": count,
            "method": method,
            "clip_norm": 0.1,
            "optimizer": {"SGD": {"lr": rate, "momentum": 0.9}},
        }
        for count, method, rate in zip(steps, (first, "DPSGD"), (8.0, lr), strict=True)
    ]
    return [{**phase, **own} for phase, own in zip(phases, more, strict=True)] if portions else phases


def climbs(name: str, **more: Any) -> list[Changes]:
    """A method that climbs, at three radii; the weights' length is about 1 in the end."""
    return [{LR: 8.0, "phase.0.method": {name: {"radius": radius, **more}}} for radius in (0.003, 0.01, 0.03)]


def smoothed(total: bool) -> list[Changes]:
    """DPLIS; the sum of copies' gradients is clipped anyway, so that it wants no other learning rate."""
    return [
        {LR: 8.0, "phase.0.method": {"DPLIS": {"lr": 8.0, "copies": 4, "reach": reach, "total": total}}}
        for reach in (0.3, 1.0, 3.0)
    ]


SAI = [
    {
        "phase": two_phases({"SAT": {"radius": 0.01}}, lr=lr, portions=(0.9, 0.1)),
        "budget_split": "joint_ratio",
    }
    for lr in (8.0, 2.0, 0.4)
]
TRIES: dict[str, list[Changes]] = {
    "DP-SGD": [{LR: lr} for lr in (4.0, 8.0, 16.0)],
    "DP-SAT": climbs("SAT"),
    "DP-SAM": climbs("SAM"),
    "SAI": SAI,
    "DPLIS, mean": smoothed(False),
    "DPLIS, sum": smoothed(True),
    "weight multiplicity": climbs("WeightMultiplicity", public={"name": "noise"}, copies=4),
    "DP-SAT with drift 4": climbs("SAT", drift=4),
    "SAI's learning rates, no SAM": [
        {"phase": two_phases("DPSGD", lr=lr, portions=(0.9, 0.1)), "budget_split": "joint_ratio"}
        for lr in (8.0, 2.0, 0.4)
    ],
    "SAM first, no reallocation": [
        {"phase": two_phases({"SAT": {"radius": 0.01}}, lr=lr, portions=None)} for lr in (8.0, 2.0, 0.4)
    ],
}
ON = {"tries": "best-mnist", "comparison": "best-fashion-mnist"}


def tries() -> Iterator[tuple[str, Changes, int]]:
    """Three settings of each method, on MNIST."""
    for method in TRIES:
        for own in TRIES[method]:
            yield ON["tries"], {**SMALL, **own}, 0


def chosen(method: str, found: Sequence[results.Result]) -> Changes | None:
    """The try that did best; None while tries are missing."""
    done = [(kept(ON["tries"], {**SMALL, **own}, 0, found), own) for own in TRIES[method]]
    if any(one is None for one, _ in done):
        return None
    return max(done, key=lambda pair: pair[0]["test_accuracy"])[1]  # type: ignore[index]


def comparison(found: Sequence[results.Result]) -> Iterator[tuple[str, Changes, int]]:
    """Every method with what was chosen, seed by seed, on Fashion-MNIST."""
    for seed in SEEDS:
        for method in TRIES:
            own = chosen(method, found)
            if own is not None:
                yield ON["comparison"], {**SMALL, **own}, seed


def studied() -> Iterator[tuple[str, Changes, int]]:
    yield from tries()
    yield from comparison(results.read(STUDIED))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--recipe", nargs="+", choices=list(MEASURED), default=list(MEASURED), help="(default: all)")
    add("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 2.0], help="(default: 1 3 2)")
    add("--study", action="store_true", help="the study of flat methods instead")
    add("--write", action="store_true", help="write RESULTS.md from the finished runs, and end")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    if given.write:
        (HERE / "RESULTS.md").write_text(page(TRIES, chosen, SMALL), encoding="utf-8")
    elif given.study:
        series(studied(), STUDIED)
    else:
        series(measured(given.recipe, given.epsilon), KEPT)


if __name__ == "__main__":
    main()
