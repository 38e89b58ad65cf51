"""What ``saltflat landscape`` left in a run's folder: measures, lines, surfaces, spectra, gradient norms."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from saltflat.report.found import Found, found, read_object, text
from saltflat.runs.layout import MEASURES, number
from saltflat.runs.measures import PARTS

PUBLIC = "public"

Array = np.ndarray[Any, np.dtype[np.float64]]
T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """Loss and accuracy along one direction: alphas (n,), loss (n,), accuracy (n,) or None."""

    alphas: Array
    loss: Array
    accuracy: Array | None
    status: str | None = None  # None: the file does not say, as in every class below


@dataclass(frozen=True)
class Surface:
    """Loss over a plane: alphas (a,), betas (b,), loss (a, b); ``mark`` names directions and examples.

    ``places`` (steps, 2) are where a run came along, as far as its way lies in this plane: a ``share`` of it.
    """

    alphas: Array
    betas: Array
    loss: Array
    mark: str
    status: str | None = None
    places: Array | None = None
    share: float | None = None


@dataclass(frozen=True)
class Spectrum:
    """Density of the Hessian's eigenvalues: grid (n,), density (n,)."""

    grid: Array
    density: Array
    mark: str
    status: str | None = None


@dataclass(frozen=True)
class Gradients:
    """A histogram of per-example gradient norms: edges (n + 1,), counts (n,), overflow beyond the last edge."""

    edges: Array
    counts: Array
    overflow: float
    clip_norm: float | None
    clipped_share: float | None
    status: str


@dataclass(frozen=True)
class Interpolation:
    """Between pairs of models: alphas (n,), loss (pairs, n), accuracy (pairs, n) or None, a name for each pair."""

    alphas: Array
    loss: Array
    accuracy: Array | None
    names: tuple[str, ...]
    status: str | None = None


@dataclass(frozen=True)
class Shapes:
    """Everything that is known about how flat a run's end is."""

    measures: Found[dict[str, Any]]
    line: Found[Line]
    surface: Found[Surface]
    spectrum: Found[Spectrum]
    gradients: Found[Gradients]
    interpolation: Found[Interpolation]
    smoothed: Found[Line]
    trajectory: Found[Surface]

    @property
    def some(self) -> bool:
        """Whether any part was read."""
        return any(part.value is not None for part in vars(self).values())

    @property
    def public(self) -> bool:
        """Whether everything here says that it comes from public data; what does not say so counts as private.

        Arrays without a word of their own are as private as the measures beside them.
        """
        measures = self.measures.value
        said = measures.get("status") if measures is not None else None
        parts = [part.value for name, part in vars(self).items() if name != "measures"]
        given = [part.status if part.status is not None else said for part in parts if part is not None]
        return all(each == PUBLIC for each in ([said] if measures is not None else []) + given)


def file_of(part: str) -> str:
    """The name of a part's file; all measures are in one."""
    return MEASURES if part == "measures" else PARTS[part].file


def read_shapes(folder: Path) -> Shapes:
    """All parts, each by itself."""
    readers: dict[str, Callable[[Path], Found[Any]]] = {
        "measures": read_object,
        "line": _arrays(_line),
        "surface": _arrays(_surface),
        "spectrum": _arrays(_spectrum),
        "gradients": _gradients,
        "interpolation": _arrays(_interpolation),
        "smoothed": _arrays(_line),
        "trajectory": _arrays(_surface),
    }
    return Shapes(**{part: found(folder / file_of(part), read) for part, read in readers.items()})


def _arrays(make: Callable[[dict[str, Any]], T]) -> Callable[[Path], Found[T]]:
    """A reader of npz files; nothing pickled is ever loaded."""

    def read(path: Path) -> Found[T]:
        try:
            with np.load(path, allow_pickle=False) as file:
                return Found(make({name: file[name] for name in file.files}))
        except (zipfile.BadZipFile, EOFError, AttributeError) as error:
            raise ValueError(str(error) or "it is no npz file") from None

    return read


def _line(arrays: dict[str, Any]) -> Line:
    alphas = _numbers(arrays, "alphas", 1)
    loss = _numbers(arrays, "loss", 1)
    accuracy = _numbers(arrays, "accuracy", 1) if "accuracy" in arrays else None
    _agree(alphas.shape, loss.shape, *([accuracy.shape] if accuracy is not None else []))
    return Line(alphas, loss, accuracy, _status(arrays))


def _surface(arrays: dict[str, Any]) -> Surface:
    alphas, betas = _numbers(arrays, "alphas", 1), _numbers(arrays, "betas", 1)
    loss = _numbers(arrays, "loss", 2)
    _agree((len(alphas), len(betas)), loss.shape)
    if min(loss.shape) < 2:
        raise ValueError(
            f"a surface needs at least 2 x 2 points; this one has {loss.shape[0]} x {loss.shape[1]}"
        )
    places = _numbers(arrays, "places", 2) if "places" in arrays else None
    if places is not None and places.shape[1] != 2:
        raise ValueError(f"places are pairs; these have {places.shape[1]} numbers")
    if places is not None and not np.isfinite(places).all():
        raise ValueError("places are not finite")
    return Surface(alphas, betas, loss, _mark(arrays), _status(arrays), places, _share(arrays))


def _share(arrays: dict[str, Any]) -> float | None:
    """How much of a way lies in a plane: one number, or one for each direction."""
    given = np.asarray(arrays.get("share", ()))
    if given.dtype.kind not in "fiu" or not given.size or given.size > 2:
        return None
    total = float(given.sum())
    return total if 0 <= total <= 1 + 1e-6 else None


def _spectrum(arrays: dict[str, Any]) -> Spectrum:
    grid, density = _numbers(arrays, "grid", 1), _numbers(arrays, "density", 1)
    _agree(grid.shape, density.shape)
    return Spectrum(grid, density, _mark(arrays), _status(arrays))


def _interpolation(arrays: dict[str, Any]) -> Interpolation:
    alphas, loss = _numbers(arrays, "alphas", 1), _numbers(arrays, "loss", 2)
    accuracy = _numbers(arrays, "accuracy", 2) if "accuracy" in arrays else None
    _agree((loss.shape[0], len(alphas)), loss.shape, *([accuracy.shape] if accuracy is not None else []))
    given = np.asarray(arrays.get("names", ())).reshape(-1).tolist()
    names = [str(name) for name in given] if len(given) == len(loss) else []
    named = tuple(names or [f"pair {k + 1}" for k in range(len(loss))])
    return Interpolation(alphas, loss, accuracy, named, _status(arrays))


def _gradients(path: Path) -> Found[Gradients]:
    facts = read_object(path)
    if facts.value is None:
        return Found(None, facts.trouble)
    edges, counts = _numbers(facts.value, "edges", 1), _numbers(facts.value, "counts", 1)
    _agree((len(edges) - 1,), counts.shape)
    if not (np.isfinite(edges).all() and (np.diff(edges) > 0).all() and (counts >= 0).all()):
        raise ValueError("edges must rise and counts be 0 or more")
    return Found(
        Gradients(
            edges=edges,
            counts=counts,
            overflow=max(0.0, number(facts.value.get("overflow")) or 0.0),
            clip_norm=number(facts.value.get("clip_norm")),
            clipped_share=number(facts.value.get("clipped_share")),
            status=text(facts.value.get("status")),
        )
    )


def _numbers(arrays: dict[str, Any], name: str, ndim: int) -> Array:
    """An array of real numbers with so many axes and at least one entry; infinities and NaN may be in it."""
    if name not in arrays:
        raise ValueError(f"{name} is missing")
    array = np.asarray(arrays[name])
    if array.dtype.kind not in "fiu" or array.ndim != ndim or array.size == 0:
        raise ValueError(f"{name} is not a {ndim}-dimensional array of numbers")
    return array.astype(np.float64)


def _agree(*shapes: tuple[int, ...]) -> None:
    if len(set(shapes)) > 1:
        raise ValueError(f"shapes do not agree: {', '.join(map(str, shapes))}")


def _status(arrays: dict[str, Any]) -> str | None:
    return str(arrays["status"]) if "status" in arrays else None


def _mark(arrays: dict[str, Any]) -> str:
    """Directions and examples, in one word: two surfaces are comparable if these are equal."""
    return ", ".join(f"{name} {arrays[name]}" for name in ("seed", "subset") if name in arrays)
