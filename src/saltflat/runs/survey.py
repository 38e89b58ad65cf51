"""The landscape of a run, measured part by part and kept in its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from saltflat import landscape as land
from saltflat.clipping import as_clip
from saltflat.core.contribution import per_example, supervised
from saltflat.core.sampling import physical
from saltflat.data import Examples, Split
from saltflat.door import layers
from saltflat.errors import PrivacyError, SettingError
from saltflat.landscape.subset import evenly, fingerprint
from saltflat.methods import DPLIS
from saltflat.optimizers import SGD
from saltflat.privacy.record import durable
from saltflat.recipes import Recipe
from saltflat.recipes.build import network_of, plan_of, size_of
from saltflat.runs.layout import MEASURES, as_json, as_npz
from saltflat.runs.measures import PARTS, SETTINGS, Effort, Part, files, flags, usual
from saltflat.runs.weights import Subject, path_of
from saltflat.schedules import at
from saltflat.tree import Tree, map_tree, norm, size

LOSS = nn.CrossEntropyLoss(reduction="none")
MOST = 250  # examples in one pass's batch: small enough to stay in a CPU's cache


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to look: one value for all runs that are compared."""

    parts: tuple[str, ...] = field(default_factory=usual)
    examples: int = 2000
    grid: int = 25
    seed: int = 0
    probes: int = 30
    steps: int = 80  # of Lanczos
    float64: bool = False
    train: bool = False  # look at the private training examples
    stays_private: bool = False
    radius: float = 0.05  # of the SAM gap
    distance: float = 1.0  # of the average gap
    copies: int = 10  # of the smoothed loss
    anew: bool = False  # drop what was measured with other settings, instead of refusing to mix with it
    device: str = "cpu"

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise SettingError(f"there is no part {part!r}; known are {', '.join(PARTS)}")
        for name, least in (("examples", 1), ("grid", 3), ("probes", 2), ("steps", 5), ("copies", 1)):
            if getattr(self, name) < least:
                raise SettingError(f"{name} must be at least {least}; got {getattr(self, name)}")
        if self.train and not self.stays_private:
            raise PrivacyError(
                "the training examples are private, and a landscape reads them without noise: add "
                "--private-stays-here if the files stay with those who may see the data, or leave --train out"
            )

    @property
    def access(self) -> land.Access:
        return land.STAYS_PRIVATE if self.train else land.PUBLIC

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.float64 else torch.float32


@dataclass
class View:
    """A subject, the examples that it is looked at with, and what parts share."""

    subject: Subject
    split: Split
    settings: Settings
    tick: Callable[[], None] = lambda: None
    notes: list[str] = field(default_factory=list)

    @cached_property
    def chosen(self) -> Examples:
        """The fixed examples, untouched."""
        return taken(self.split.train if self.settings.train else self.split.test, self.settings.examples)

    @cached_property
    def looked(self) -> tuple[land.Objective, Tree]:
        objective, params = objective_of(self.subject, self.chosen, self.settings)
        return replace(objective, watch=lambda: self.tick()), params

    @property
    def objective(self) -> land.Objective:
        return self.looked[0]

    @property
    def params(self) -> Tree:
        return self.looked[1]

    @cached_property
    def curved(self) -> tuple[Any, land.Ends]:
        """The Hessian, and the ends of its spectrum."""
        operator = land.hessian(self.objective, self.params)
        return operator, land.ends(operator, steps=self.settings.steps, seed=self.settings.seed)

    @cached_property
    def heading(self) -> dict[str, Any]:
        """What every file says: of which weights, on which examples, how, and who may see it."""
        return {
            "data": self.subject.recipe.data,
            "split": "train" if self.settings.train else "test",
            "status": self.settings.access.status,
            "examples": self.chosen.count,
            "subset": fingerprint(self.chosen.inputs, self.chosen.targets),
            "seed": self.settings.seed,
            "precision": "float64" if self.settings.float64 else "float32",
            "weights": self.subject.weights,
        }


def taken(examples: Examples, wanted: int) -> Examples:
    """Some of the examples, always the same ones."""
    where = torch.from_numpy(evenly(examples.count, wanted))
    return replace(examples, inputs=examples.inputs[where], targets=examples.targets[where])


def objective_of(subject: Subject, chosen: Examples, settings: Settings) -> tuple[land.Objective, Tree]:
    """The mean cross-entropy over the chosen examples, and the subject's weights."""
    if chosen.inputs.dtype == torch.int64:
        raise SettingError(
            f"{subject.name} predicts words, and landscapes are drawn of models with one target for each example"
        )
    examples = chosen.to(settings.device)
    batches = [examples.take(part) for part in physical(np.arange(examples.count), MOST)]
    model = network_of(subject.recipe).to(settings.device)
    objective, _ = land.of_model(model, LOSS, batches, access=settings.access, dtype=settings.dtype)
    return objective, map_tree(lambda leaf: leaf.to(settings.device, settings.dtype), subject.params)


# Each function gives the entries or arrays of the part of its name; see saltflat.runs.measures.


def basics(view: View) -> dict[str, Any]:
    """Loss, accuracy and the norm of the weights, which belongs beside every measure."""
    found = view.objective.evaluated(view.params)
    share, count = found.accuracy, view.chosen.count
    return {
        "loss": found.loss,
        "loss_error": land.loss_error(view.objective, view.params),
        "accuracy": share,
        "accuracy_error": (share * (1 - share) / count) ** 0.5,
        "weight_norm": float(norm(view.params)),
    }


def eigenvalues(view: View) -> dict[str, Any]:
    operator, found = view.curved
    if not found.converged:
        view.notes.append(f"eigenvalues had not converged after {found.products} products; raise --lanczos")
    return {
        "lambda_max": found.largest[0],
        "lambda_max_error": land.curvature_error(view.objective, view.params, found.top),
        "lambda_5": found.largest[-1],
        "ratio": found.ratio,
        "hessian_norm": found.norm,
        "products": found.products,
        "hessian": operator.kind,
    }


def trace(view: View) -> dict[str, Any]:
    operator, found = view.curved
    settings = view.settings
    value = land.trace(operator, probes=settings.probes, seed=settings.seed, known=found.krylov)
    return {"trace": value.value, "trace_error": value.error}


def sharpness(view: View) -> dict[str, Any]:
    found = land.sharpness(view.objective, view.params, seed=view.settings.seed)
    return {
        "sharpness": found.value,
        "sharpness_error": found.error,
        "sharpness_solver": found.solver,
    }


def gaps(view: View) -> dict[str, Any]:
    around, settings = (view.objective, view.params), view.settings
    return {
        "sam_gap": land.sam_gap(*around, radius=settings.radius),
        "sam_radius": settings.radius,
        "adaptive_gap": land.adaptive_gap(*around),
        "average_gap": land.average_gap(*around, radius=settings.distance, seed=settings.seed),
        "average_radius": settings.distance,
    }


def noise(view: View) -> dict[str, Any]:
    """What the last phase's noise does: the noise of its last step, handed on by its momentum."""
    recipe = view.subject.recipe
    std, optimizer = noise_of_a_step(recipe), recipe.phase[-1].optimizer
    if std is None or not isinstance(optimizer, SGD):
        view.notes.append("noise: an Adam step scales its noise weight by weight, so it has no one size")
        return {}
    found = land.noise_tolerance(
        view.objective, view.params, std=std, momentum=optimizer.momentum, seed=view.settings.seed
    )
    return {"noise_std": std, "noise_momentum": optimizer.momentum, "noise_tolerance": found}


def noise_of_a_step(recipe: Recipe) -> float | None:
    """lr sigma C / expected units: what the last step of the last phase leaves on each weight at once; None for Adam.

    What momentum makes of it later is not in it: see `saltflat.landscape.noise_growth`.
    """
    optimizer = recipe.phase[-1].optimizer
    if not isinstance(optimizer, SGD):
        return None
    plan = plan_of(recipe, size_of(recipe))
    last = plan.phases[-1]
    lr, (sigma, *_) = at(optimizer.lr, last.steps - 1), last.noise_at(last.steps - 1)
    return lr * sigma * as_clip(last.clip_norm).sensitivity / plan.expected_units


def reach_of(recipe: Recipe) -> float:
    """The reach of the recipe's own DPLIS, or the all-purpose value."""
    found = (each for stage in recipe.phase for each in layers(stage.method) if isinstance(each, DPLIS))
    return next((each.reach for each in found), 10.0)


def spectrum(view: View) -> dict[str, Any]:
    operator, found = view.curved
    settings = view.settings
    density = land.spectral_density(
        operator, probes=5, steps=settings.steps, seed=settings.seed, known=found.krylov
    )
    total = density.mean * density.dimension
    return {"grid": density.grid, "density": density.density, "trace": total, "dimension": density.dimension}


def line(view: View) -> dict[str, Any]:
    (direction,) = land.random_directions(view.params, count=1, seed=view.settings.seed)
    return vars(land.line(view.objective, view.params, direction, np.linspace(-0.8, 0.8, 81)))


def surface(view: View) -> dict[str, Any]:
    directions = land.random_directions(view.params, seed=view.settings.seed)
    places = np.linspace(-1, 1, view.settings.grid)
    found = vars(land.surface(view.objective, view.params, directions, places, places))
    return {**found, **_way(view, directions)}


def _way(view: View, directions: Sequence[Tree]) -> dict[str, Any]:
    """Where the run came along, as far as it lies in a plane: (points, 2) by least squares, and what share that is."""
    points = [map_tree(lambda leaf: leaf.to(view.params[_first(view)]), p) for p in path_of(view.subject)]
    if len(points) < 2:
        return {}
    flat = lambda tree: torch.cat([leaf.reshape(-1).double().cpu() for leaf in tree.values()])
    base = torch.stack([flat(each) for each in directions])  # (2, D)
    away = torch.stack([flat(p) - flat(points[-1]) for p in points])  # (points, D)
    places = torch.linalg.lstsq(base.T, away.T).solution.T
    whole = float((away**2).sum())
    return {"places": places.numpy(), "share": np.array(float(((places @ base) ** 2).sum()) / (whole or 1.0))}


def trajectory(view: View) -> dict[str, Any]:
    points = path_of(view.subject)
    if len(points) < 3:
        view.notes.append(
            "trajectory: first weights, one checkpoint and the last weights are needed; left out"
        )
        return {}
    plane = land.trajectory_plane(
        [map_tree(lambda leaf: leaf.to(view.params[_first(view)]), p) for p in points]
    )
    low, high = plane.places.min(0), plane.places.max(0)
    room = 0.2 * (high - low)
    alphas, betas = (np.linspace(low[i] - room[i], high[i] + room[i], view.settings.grid) for i in (0, 1))
    found = land.surface(view.objective, view.params, plane.directions, alphas, betas)
    return {**vars(found), "places": plane.places, "share": np.array(plane.share)}


def smoothed(view: View) -> dict[str, Any]:
    std = noise_of_a_step(view.subject.recipe)
    if std is None:
        view.notes.append("smoothed: an Adam step scales its noise weight by weight; left out")
        return {}
    std *= reach_of(view.subject.recipe)
    settings = view.settings
    smooth = land.smoothed(view.objective, view.params, std=std, copies=settings.copies, seed=settings.seed)
    (direction,) = land.random_directions(view.params, count=1, seed=settings.seed)
    found = land.line(smooth, view.params, direction, np.linspace(-0.8, 0.8, 81))
    return {**vars(found), "std": std, "copies": settings.copies}


def interpolation(first: View, others: Sequence[View]) -> dict[str, Any]:
    """Between the first view's weights and each other one's, on the first one's examples."""
    alphas = np.linspace(-0.5, 1.5, 41)
    lines = [land.interpolation(first.objective, first.params, other.params, alphas) for other in others]
    return {
        "alphas": alphas,
        "loss": np.stack([each.loss for each in lines]),
        "accuracy": np.stack([each.accuracy for each in lines]),
        "names": np.array([f"{first.subject.name} to {other.subject.name}" for other in others]),
    }


def gradients(view: View) -> dict[str, Any]:
    """Entries of gradients.json; with the training examples also their gradient beside the public one."""
    settings, recipe = view.settings, view.subject.recipe
    contribution = per_example(network_of(recipe).eval().to(settings.device), supervised(LOSS))
    params = map_tree(lambda leaf: leaf.to(settings.device), view.subject.params)
    batches = view.chosen.to(settings.device).batches(MOST)
    norms = [contribution([params], [1.0], batch).norms() for batch in batches]
    clip_norm = as_clip(recipe.phase[0].clip_norm).sensitivity
    found = land.norm_histogram(norms, clip_norm=clip_norm, access=settings.access)
    entries = {**vars(found), "edges": found.edges.tolist(), "counts": found.counts.tolist()}
    if settings.train:
        public = replace(settings, train=False)
        beside, _ = objective_of(view.subject, taken(view.split.test, settings.examples), public)
        entries |= vars(land.compared(view.objective, beside, view.params))
    return entries


def function_of(part: Part) -> Callable[..., dict[str, Any]]:
    """The function of the part's name in this file: of a view, or of the first and the others for what lies between."""
    return globals()[part.name]


def passes(part: str, settings: Settings, weights: int) -> int:
    """How often a part is expected to go over the examples, for a bar that knows where it is."""
    effort = Effort(settings.grid, settings.probes, min(settings.steps, weights))
    return PARTS[part].passes(effort)


def look(view: View, part: str, others: Sequence[View] = ()) -> None:
    """Measure one part and keep it; ``others`` are for a part that lies between.

    *Guarantee*: a file is whole or not there, whenever this is stopped.
    """
    this = PARTS[part]
    make_room(view)
    found = function_of(this)(view, others) if this.between else function_of(this)(view)
    keep(view, this.file, found)


def is_kept(view: View, part: str) -> bool:
    """Whether a part was measured already, of these weights, on these examples, with these settings."""
    this, there = PARTS[part], read_measures(view.subject.place)
    if there is None or any(there.get(key) != value for key, value in view.heading.items()):
        return False
    if this.file != MEASURES:
        return (view.subject.place / this.file).exists()
    return all(entry.key in there for entry in this.entries)


def check_room(view: View) -> None:
    """Refuse to measure beside what was measured of these weights with other settings: hours may have gone into it."""
    there, here = read_measures(view.subject.place), view.heading
    if view.settings.anew or there is None or there.get("weights") != here["weights"]:
        return  # of other weights: it is out of date, whatever its settings
    differ = [key for key, value in here.items() if there.get(key) != value]
    if differ:
        own = [key for key in SETTINGS if key in differ]  # the rest follows from them, unless there are none
        kept, asked = (", ".join(f"{key} {each.get(key)}" for key in own or differ) for each in (there, here))
        same = " ".join(flags(there)) or "none of --examples, --seed, --float64 and --train"
        add = f"give {same} to add to it, or --replace" if own else "give --replace"
        raise SettingError(
            f"{view.subject.place} was measured with {kept}, not with {asked}; {add} to drop it and measure anew"
        )


def make_room(view: View) -> None:
    """Begin measures.json, if it is not of these weights, examples and settings; then nothing else there is either.

    What was measured of the same weights with other settings is dropped only if that was asked for.
    """
    check_room(view)
    place = view.subject.place
    there = read_measures(place)
    if there is not None and all(there.get(key) == value for key, value in view.heading.items()):
        return
    entries = {**view.heading, **basics(view)}
    for name in files() - {MEASURES}:
        (place / name).unlink(missing_ok=True)
    place.mkdir(parents=True, exist_ok=True)
    note = {"note": view.subject.note} if view.subject.note else {}
    durable.replace(place / MEASURES, as_json({**entries, **note}))


def read_measures(place: Path) -> dict[str, Any] | None:
    """What is kept; None if there is nothing that can be read."""
    try:
        found = json.loads((place / MEASURES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def keep(view: View, name: str, found: dict[str, Any]) -> None:
    """Add entries to measures.json, or put them into a file of their own under the heading; none, no file."""
    place = view.subject.place
    if name == MEASURES:
        durable.replace(place / name, as_json({**(read_measures(place) or {}), **found}))
    elif found:
        write = as_npz if name.endswith(".npz") else as_json
        durable.replace(place / name, write({**found, **view.heading}))


def _first(view: View) -> str:
    return next(iter(view.params))


def weights_in(view: View) -> int:
    """The number of weights."""
    return size(view.subject.params)
