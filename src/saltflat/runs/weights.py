"""Whose landscape is looked at: the weights of a run, finished or not, or of one of its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from saltflat.core.state import unpack
from saltflat.errors import DataError
from saltflat.landscape.subset import fingerprint
from saltflat.privacy.record import checkpoint, durable
from saltflat.recipes import Recipe, read
from saltflat.recipes.build import network_of, warmed
from saltflat.runs.layout import CHECKPOINTS, MODEL, RECIPE, WARM, Folder
from saltflat.tree import Tree, size

LARGEST = 100_000  # weights of a network whose path is kept: 20 readings of it take 8 MB at most


@dataclass(frozen=True)
class Subject:
    """Weights, the recipe that they belong to, and the folder in which their landscape is kept."""

    name: str
    run: Path
    place: Path
    recipe: Recipe
    params: Tree
    note: str = ""  # what a reader must know: that the run is unfinished, say

    @property
    def weights(self) -> str:
        """A name for these very weights."""
        return fingerprint(*self.params.values())

    def same_shape(self, other: Subject) -> bool:
        """Whether two subjects have one architecture."""
        shapes = lambda tree: {name: tuple(leaf.shape) for name, leaf in tree.items()}
        return shapes(self.params) == shapes(other.params)


def subject(path: Path) -> Subject:
    """The weights at ``path``: a run's folder, or a file in its ``checkpoints``.

    A run without a model has its newest whole checkpoint looked at. One with neither is refused, with what is missing.
    """
    if path.parent.name == CHECKPOINTS and path.stem.isdecimal():
        return _of_checkpoint(path.parent.parent, int(path.stem), str(path))
    folder, recipe = Folder(path), _recipe(path)
    if folder.model.exists():
        return Subject(str(path), path, folder.landscape, recipe, _model(folder.model, recipe))
    found = checkpoint.load(folder.checkpoints)
    if found is None:
        raise DataError(
            f"{path} has neither {MODEL} nor a checkpoint: the run was stopped before its first one; go on "
            f"with saltflat train --resume --out {path}"
        )
    note = f"unfinished: after {found.meta.get('step', '?')} steps"
    return Subject(str(path), path, folder.landscape, recipe, _ending(found, recipe, str(path)), note)


def keep_point(folder: Folder, step: int, ending: Tree) -> None:
    """Keep the weights that the run would end with after ``step``, if the network is small.

    Every update of a run is released, so this tells no more than its statement promises.
    """
    if size(ending) <= LARGEST:
        folder.way.mkdir(exist_ok=True)
        weights = {name: leaf.detach().cpu().contiguous() for name, leaf in ending.items()}
        durable.replace(folder.way / f"{step:06d}.safetensors", save(weights), mode=durable.RELEASED)


def path_of(subject: Subject) -> list[Tree]:
    """The points of the run's path that are known: first weights, those at readings or checkpoints, the weights."""
    run = Folder(subject.run)
    files = sorted(
        (f for f in run.way.glob("*.safetensors") if f.stem.isdecimal()), key=lambda f: int(f.stem)
    )
    if files:
        middle = [_model(file, subject.recipe) for file in files]
    else:
        kept = [
            checkpoint.numbered(run.checkpoints, number) for number in checkpoint.numbers(run.checkpoints)
        ]
        middle = [_ending(found, subject.recipe, str(run.checkpoints)) for found in kept]
    points = [_began(subject), *middle, subject.params]
    last = subject.weights
    return [p for p in points[:-1] if fingerprint(*p.values()) != last] + points[-1:]


def _began(subject: Subject) -> Tree:
    """The weights before the first private step: warm ones, where a warm-up was kept."""
    warm = Folder(subject.run).public / WARM
    return _model(warm, subject.recipe) if warm.exists() else initial(subject.recipe)


def initial(recipe: Recipe) -> Tree:
    """The first weights of the recipe's network, those of its ``start`` if it has one, before any warm-up."""
    model = warmed(recipe, network_of(recipe))
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def _of_checkpoint(run: Path, number: int, name: str) -> Subject:
    folder, recipe = Folder(run), _recipe(run)
    found = checkpoint.numbered(folder.checkpoints, number)
    note = f"checkpoint after {found.meta.get('step', '?')} steps"
    place = folder.landscape / f"{number:06d}"
    return Subject(name, run, place, recipe, _ending(found, recipe, name), note)


def _recipe(path: Path) -> Recipe:
    if not path.is_dir():
        raise DataError(
            f"{path} is no folder of a run and no file of its checkpoints; give what saltflat train --out made"
        )
    if not Folder(path).recipe.exists():
        raise DataError(
            f"{path} holds no run: {RECIPE} is missing; give a folder that saltflat train --out made"
        )
    return read(Folder(path).recipe)


def _model(file: Path, recipe: Recipe) -> Tree:
    try:
        found: dict[str, Any] = load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}); train the run again") from None
    return _fitting(found, recipe, str(file))


def _ending(found: checkpoint.Checkpoint, recipe: Recipe, name: str) -> Tree:
    """What the run would end with: the running mean of the weights, if there is one."""
    if "mean" not in found.trees:
        return _fitting(dict(found.trees.get("params", {})), recipe, name)
    _, mean = unpack(None, dict(found.trees["mean"]), found.meta["shapes"]["mean"], {})
    return _fitting(mean, recipe, name)


def _fitting(found: Tree, recipe: Recipe, name: str) -> Tree:
    """The trained weights in the network's order; refused if they are another network's."""
    # by its shapes alone: a file of first weights may be gone by now
    own = {key: p for key, p in network_of(recipe).named_parameters() if p.requires_grad}
    for key, leaf in own.items():
        if key not in found or found[key].shape != leaf.shape:
            raise DataError(
                f"{name} does not hold the weights of {recipe.model}: {key!r} is missing or of another shape"
            )
    return {key: found[key] for key in own}
