"""RESULTS.md: the finished runs of recipes.py and of its search, side by side with what was published."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import results
from recipes_study import COMPARED, GROUNDS, TRIED, Ground, best, kept, known_methods, plain, tries

HERE = Path(__file__).parent
EPSILONS = (1.0, 2.0, 3.0)
PUBLISHED: dict[
    str, tuple[str, ...]
] = {  # the best of the papers behind these methods, at epsilon 1, 2 and 3
    "best-mnist": ("98.39", "98.78", "98.96"),
    "best-fashion-mnist": ("86.36", "88.40", "89.05"),
    "best-cifar10": ("62.76", "67.91", "70.19"),
}
AIMED: dict[str, tuple[float, ...]] = {  # what these recipes were to reach at least
    "best-mnist": (98.5, 98.9, 99.0),
    "best-fashion-mnist": (89.3, 90.2, 90.8),
    "best-cifar10": (62.76, 67.91, 70.19),
}
LEAVES = [  # what best-mnist stood on before
    "Scattering",
    {"Grouped": {"groups": 27}},
    {"Whitened": {"images": 6000, "power": 0.5, "floor": 1.0}},
    {"RowScaled": {"norm": 44.5}},
]
LOGISTIC = 85.19  # Adult: logistic regression without privacy, to convergence, on the same columns


def mean_of(values: Sequence[float]) -> str:
    """A mean in per cent and its standard error; of one run, the number alone."""
    mean = f"{100 * statistics.mean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {100 * error_of(values):.2f}"


def error_of(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def rows(*cells: Iterable[Any]) -> str:
    """A table in Markdown; the first row is its head."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * lines[0].count(" | ") + "---|", *lines[1:]])


def at(
    found: Sequence[results.Result], recipe: str, epsilon: float, features: Any = None
) -> list[results.Result]:
    """The runs of a recipe as it ships, or with other features."""
    wanted = {"epsilon": epsilon} | ({} if features is None else {"features": features})
    return [
        one for one in found if (one["settings"]["recipe"], one["settings"]["changes"]) == (recipe, wanted)
    ]


def measured(found: Sequence[results.Result]) -> str:
    """Each recipe, at each epsilon."""
    head = (
        "recipe",
        "epsilon",
        "runs",
        "test accuracy",
        "last weights",
        "best published",
        "aimed at",
        "reached",
    )
    table: list[tuple[Any, ...]] = [(*head, "seconds, features and training")]
    kinds = [(recipe, recipe, None) for recipe in PUBLISHED]
    kinds.insert(1, ("best-mnist", "best-mnist, by dead leaves", LEAVES))
    for recipe, called, features in kinds:
        for place, epsilon in enumerate(EPSILONS):
            runs = at(found, recipe, epsilon, features)
            if not runs:
                continue
            ends, lasts = ([one[f"{part}_accuracy"] for one in runs] for part in ("test", "last"))
            aim = AIMED[recipe][place]
            table.append(
                (
                    *(called, f"{epsilon:g}", len(runs), f"**{mean_of(ends)}**", mean_of(lasts)),
                    *(PUBLISHED[recipe][place], aim, "yes" if 100 * statistics.mean(ends) >= aim else "no"),
                    f"{max(one['features_seconds'] for one in runs):.0f} and "
                    f"{statistics.mean(one['seconds'] for one in runs):.0f}",
                )
            )
    adult = at(found, "best-tabular", 1.0)
    if adult:
        ends, lasts = ([one[f"{part}_accuracy"] for one in adult] for part in ("test", "last"))
        reached = "yes" if 100 * statistics.mean(ends) >= LOGISTIC - 1 else "no"
        took = f"0 and {statistics.mean(one['seconds'] for one in adult):.0f}"
        cells = ("best-tabular (Adult)", "1", len(adult), f"**{mean_of(ends)}**", mean_of(lasts))
        table.append((*cells, f"{LOGISTIC} without privacy", f"{LOGISTIC - 1:.2f}", reached, took))
    return rows(*table)


DPNAS = """## The papers' network on MNIST

DPNASNet, 213,418 parameters, DP-SGD at epsilon 3 with the papers' clip norm, learning rate, momentum and batch, from
the images, by `recipes.py --dpnas`: {epochs:g} epochs, where the papers take 40, so that a core is busy for an hour.
"""


def of_papers_network(found: Sequence[results.Result]) -> str:
    """DPNAS beside what was published of it, and beside `best-mnist`."""
    own = [one for one in found if one["settings"]["changes"].get("model") == {"dpnas_mnist": {}}]
    if not own:
        return ""
    ours = [one["test_accuracy"] for one in at(found, "best-mnist", 3.0)]
    changes = own[0]["settings"]["changes"]
    epochs = changes["phase.0.steps"] * changes["batch_size"] / 60_000
    table = rows(
        ("what", "runs", "running mean of weights", "last weights", "seconds"),
        (
            *("DPNAS, DP-SGD, measured", len(own), mean_of([one["test_accuracy"] for one in own])),
            *(mean_of([one["last_accuracy"] for one in own]), f"{own[0]['seconds']:.0f}"),
        ),
        ("DPNAS, DP-SGD, published", "", "", "98.70", ""),
        ("DPNAS, DP-SAT and SAI, published", "", "", "98.93 and 98.96", ""),
        ("`best-mnist`, measured", len(ours), mean_of(ours), "", ""),
    )
    return DPNAS.format(epochs=epochs) + "\n" + table + "\n"


def searched(found: Sequence[results.Result]) -> str:
    """Every try of the search, one line each."""
    table: list[tuple[Any, ...]] = [
        (
            "data",
            "features",
            "examples",
            "epsilon",
            "power",
            "floor",
            "steps",
            "lr",
            "clip norm",
            "weight decay",
            "test accuracy",
        )
    ]
    for one in found:
        own = one["settings"]
        features = own["features"] + ("" if own["whole"] or own["features"] == "none" else ", by channel")
        features += {"strokes": ", by strokes"}.get(own.get("process", ""), "")
        features += ", within characters" if own.get("within") else ""
        noise = f" (noise of {own['as_size']:,})" if own["as_size"] else ""
        white = ("", "") if own["features"] == "none" else (f"{own['power']:g}", f"{own['floor']:g}")
        table.append(
            (
                *(own["data"], features, f"{own['size']:,}{noise}", f"{own['epsilon']:g}", *white),
                *(
                    own["steps"],
                    f"{own['lr']:g}",
                    f"{own['clip_norm']:g}",
                    f"{own['weight_decay']:g}",
                    mean_of([one["test_accuracy"]]),
                ),
            )
        )
    return rows(*table)


def studied(found: Sequence[results.Result], ground: Ground) -> str:
    """Each method on one ground: its tries on MNIST, and what was chosen on Fashion-MNIST."""
    tries, there = known_methods(ground, found), compared(found, ground)
    differences = by_seed(there)
    deviation = pooled(list(differences.values()))
    table: list[tuple[Any, ...]] = [
        ("method", "MNIST, three tries", "Fashion-MNIST", "runs", "against DP-SGD, in standard errors")
    ]
    for method, settings in tries.items():
        own = [each for one in settings for each in _of(found, TRIED, {**ground.common, **one}).values()]
        runs = list(there[method].values())
        table.append(
            (
                method,
                ", ".join(f"{100 * each:.2f}" for each in own),
                mean_of(runs) if runs else "not run",
                len(runs),
                against(differences.get(method, []), deviation),
            )
        )
    return rows(*table)


def compared(found: Sequence[results.Result], ground: Ground) -> dict[str, dict[int, float]]:
    """The accuracies of every method's best try on Fashion-MNIST, by their seeds."""
    wanted = {method: best(ground, own, found) for method, own in known_methods(ground, found).items()}
    return {
        method: {} if own is None else _of(found, COMPARED, {**ground.common, **own})
        for method, own in wanted.items()
    }


def by_seed(there: dict[str, dict[int, float]]) -> dict[str, list[float]]:
    """Each other method less DP-SGD, for every seed that both have: these start from the same weights."""
    plain = there["DP-SGD"]
    return {
        method: [runs[seed] - plain[seed] for seed in runs if seed in plain]
        for method, runs in there.items()
        if method != "DP-SGD"
    }


def over_all(found: Sequence[results.Result]) -> str:
    """Each method against DP-SGD over all networks: the mean of the differences, and its standard error.

    d = (1/G) sum_g d_g,  s^2 = (1/G^2) sum_g s_g^2, with d_g and s_g those of one network.
    """
    differences: dict[str, list[tuple[float, float]]] = {}
    for ground in GROUNDS:
        here = by_seed(compared(found, ground))
        deviation = pooled(list(here.values()))
        for method, each in here.items():
            if each:
                pair = statistics.mean(each), deviation / math.sqrt(len(each))
                differences.setdefault(method, []).append(pair)
    table: list[tuple[Any, ...]] = [("method", "networks", "against DP-SGD, points", "in standard errors")]
    for method, own in differences.items():
        if len(own) > 1:
            mean = statistics.mean(difference for difference, _ in own)
            error = math.hypot(*(each for _, each in own)) / len(own)
            table.append((method, len(own), f"{100 * mean:+.2f} ± {100 * error:.2f}", f"{mean / error:+.1f}"))
    return rows(*table)


def grounds(found: Sequence[results.Result]) -> str:
    """The study, one table for each network that was run."""
    return "\n".join(
        GROUND.format(
            title=ground.title[0].upper() + ground.title[1:], steps=ground.steps, batch=ground.batch
        )
        + "\n"
        + studied(found, ground)
        + "\n"
        for ground in GROUNDS
        if any(kept(each, found) for each in tries(ground, plain(ground)))
    )


def _of(found: Sequence[results.Result], recipe: str, changes: dict[str, Any]) -> dict[int, float]:
    """The accuracies of a recipe's runs with these changes, by their seeds."""
    own = [
        one for one in found if (one["settings"]["recipe"], one["settings"]["changes"]) == (recipe, changes)
    ]
    return {one["settings"]["seed"]: one["test_accuracy"] for one in own}


def pooled(groups: Sequence[Sequence[float]]) -> float:
    """The standard deviation of a number, from all groups together: three numbers alone say little of it."""
    several = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    squares = sum((len(group) - 1) * statistics.variance(group) for group in several)
    return math.sqrt(squares / freedom) if freedom else 0.0


def against(differences: Sequence[float], deviation: float) -> str:
    """The mean of differences of one ``deviation``, and how many of its standard errors that is."""
    if not differences:
        return ""
    mean = statistics.mean(differences)
    error = deviation / math.sqrt(len(differences))
    said = f"{100 * mean:+.2f}"
    return f"{said} ({mean / error:+.1f})" if error else said


HEAD = """# Results of the recipes called best-...

Written by `python experiments/recipes.py --write` from the runs in `recipes.jsonl`, `recipes_study.jsonl` and
`recipes_search.jsonl`, one line each. Unit: one example; adjacency: add or remove one; Poisson sampling; privacy loss
distributions; delta 1e-5. Accuracy on the public test set is that of the weights that a run ends with, the running
mean, never of the best epoch; ± is the standard error over runs, whose noise and draws are secret and always others.
Runs shared two cores with other work: their seconds are those of the clock.
"""
SEARCH = """## The search

Settings for Fashion-MNIST were chosen on MNIST and back, the rule of `best-images` on subsets of both, those for
CIFAR-10 on Fashion-MNIST's things pasted in colour on dead leaves, those for tables on made-up tables; {count} tries
in all, one run each. But for `best-mnist`, as said above, no test set decided anything about its own recipe.
"""
STUDY = """## Do flat minima help on top of good geometry?

Every method on each of five networks (`recipes_study.py`), at epsilon 1, in 90 to 120 steps, which are 1.5 to 2
epochs; the papers have 30 to 40. Every method, DP-SGD too, has three tries on MNIST, and the best of them runs on
Fashion-MNIST; what a method does not try stands at what DP-SGD's tries chose. Methods are compared seed by seed, as a
seed is the same first weights for all of them; the deviation of such a difference, for its standard error, is that of
all methods on the same network together.
"""
GROUND = """### {title}

{steps} steps with batches of {batch}.
"""


ALL = """### All networks together

The mean over networks of the differences above; networks are independent runs, and share their two data sets.
"""


OWN = """## Images of one's own: best-images against DP-SGD on a tanh network

`python experiments/own_images.py`: folders as a user has them, of images that no recipe knows by name, by the
command line, one run each (`own_images.jsonl`); both commands get the folder, its size and epsilon, and no other
setting. The other side has the papers' settings (clip norm 0.1, momentum 0.9, learning rate 2, 40 epochs) with batches
of 512, and the tanh network of 26,010 parameters for grey images, of 37,274 for coloured ones.
"""


def owned(found: Sequence[results.Result]) -> str:
    """Each case and epsilon: both sides, and how far they are apart."""
    table: list[tuple[Any, ...]] = [
        (
            "images",
            "form",
            "private",
            "epsilon",
            "best-images",
            "tanh network",
            "points more",
            "seconds, both",
        )
    ]
    pairs: dict[tuple[str, float], dict[str, results.Result]] = {}
    for one in found:
        own = one["settings"]
        pairs.setdefault((own["case"], own["epsilon"]), {})[own["side"]] = one
    for (case, epsilon), sides in sorted(pairs.items()):
        if len(sides) < 2:
            continue
        ours, other = sides["best-images"], sides["tanh network"]
        more = 100 * (ours["test_accuracy"] - other["test_accuracy"])
        table.append(
            (
                *(
                    case.replace("-", " "),
                    "x".join(map(str, ours["shape"])),
                    f"{ours['size']:,}",
                    f"{epsilon:g}",
                ),
                *(mean_of([one["test_accuracy"]]) for one in (ours, other)),
                f"{more:+.1f}",
                f"{ours['seconds']:.0f} and {other['seconds']:.0f}",
            )
        )
    return rows(*table)


def page() -> str:
    """The whole page, from the files beside this one."""
    done, study, search = (
        results.read(HERE / f"{name}.jsonl") for name in ("recipes", "recipes_study", "recipes_search")
    )
    parts = [HEAD, "## The recipes\n", measured(done) + "\n", of_papers_network(done)]
    parts += [STUDY, grounds(study), ALL, over_all(study) + "\n"] if study else []
    parts += [(HERE / "recipes_notes.md").read_text(encoding="utf-8")]
    own = results.read(HERE / "own_images.jsonl")
    parts += [OWN, owned(own) + "\n"] if own else []
    parts += [SEARCH.format(count=len(search)), searched(search) + "\n"]
    return "\n".join(parts)
