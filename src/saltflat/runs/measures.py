"""The parts of a landscape: what each is, where it is kept, and the entries that it gives; the one list of them.

To add a measure, add a `Part` here and a function of its name to `saltflat.runs.survey`. The help and the table of
``saltflat landscape``, the report, the model card and the warning that runs do not compare are made from this list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saltflat.runs.layout import MEASURES, number


@dataclass(frozen=True)
class Entry:
    """One entry of measures.json, and how it is shown wherever measures are shown."""

    key: str
    label: str  # with {} for the number of steps, if the entry is a list of (steps, value)
    percent: bool = False
    error: str = ""  # the key of its standard error, which is shown with it
    same: bool = False  # whether runs must agree in it to be compared
    card: bool = False  # whether it goes into a model card
    detail: bool = False  # how it was taken rather than what was found: for the report, not for the terminal
    better: int = 0  # -1: lower is flatter, or better; 1: higher is better; 0: neither by itself
    words: str = ""  # what it is, in a sentence


@dataclass(frozen=True)
class Effort:
    """How thoroughly a landscape is looked at, as far as it decides how long that takes."""

    grid: int
    probes: int
    steps: int  # of Lanczos


@dataclass(frozen=True)
class Part:
    """Something that can be measured and kept by itself."""

    name: str
    words: str
    entries: tuple[Entry, ...] = ()
    file: str = MEASURES
    usual: bool = True  # whether it is measured unless other parts are asked for
    between: bool = False  # whether it lies between the first run and each other one
    passes: Callable[[Effort], int] = lambda effort: 1  # over the examples, as expected: for a bar
    weight: float = 1.0  # what a pass of it takes, in forward passes: for the same bar


COMMON = (
    Entry(
        "accuracy",
        "accuracy",
        percent=True,
        error="accuracy_error",
        better=1,
        words="Share of these examples whose class was found.",
    ),
    Entry(
        "loss",
        "loss",
        error="loss_error",
        card=True,
        better=-1,
        words="Mean cross-entropy; compare flatness at similar loss.",
    ),
    Entry(
        "weight_norm",
        "weight norm",
        card=True,
        words="Length of all weights: larger weights look flatter without being so.",
    ),
    Entry("data", "data", same=True, detail=True),
    Entry("split", "split", same=True, detail=True),
    Entry("status", "status", detail=True),
    Entry("examples", "examples", same=True, detail=True),
    Entry("subset", "examples' hash", same=True, detail=True),
    Entry("seed", "seed", same=True, detail=True),
    Entry("precision", "precision", same=True, detail=True),
    Entry("weights", "weights' hash", detail=True),
    Entry("note", "note", detail=True),
)
"""What belongs beside every measure: measures.json has it whichever parts were measured."""

_IN_ORDER = (  # in the order in which they are measured
    Part(
        "eigenvalues",
        "largest eigenvalues of the Hessian, their ratio, its norm",
        (
            Entry(
                "lambda_max",
                "largest Hessian eigenvalue",
                error="lambda_max_error",
                card=True,
                better=-1,
                words="Curvature in the steepest direction around the weights.",
            ),
            Entry(
                "lambda_5",
                "fifth Hessian eigenvalue",
                better=-1,
                words="Curvature in the fifth steepest direction: whether one direction stands out.",
            ),
            Entry(
                "ratio",
                "largest / fifth eigenvalue",
                card=True,
                words="How much steeper the steepest direction is than the fifth.",
            ),
            Entry(
                "hessian_norm",
                "Hessian norm",
                better=-1,
                words="Largest curvature of either sign.",
            ),
            Entry("products", "products with the Hessian, for the eigenvalues", detail=True),
            Entry("hessian", "products with the Hessian by", detail=True),
        ),
        passes=lambda effort: effort.steps,
        weight=4.0,
    ),
    Part(
        "trace",
        "trace of the Hessian, with standard error",
        (
            Entry(
                "trace",
                "Hessian trace",
                error="trace_error",
                card=True,
                better=-1,
                words="Curvature summed over all directions; its error is that of the random probes.",
            ),
        ),
        passes=lambda effort: effort.probes,
        weight=4.0,
    ),
    Part(
        "spectrum",
        "density of all eigenvalues",
        file="spectrum.npz",
        passes=lambda effort: 5 * effort.steps,
        weight=4.0,
    ),
    Part(
        "sharpness",
        "(C_eps, A)-sharpness",
        (
            Entry(
                "sharpness",
                "(C_eps, A)-sharpness, %",
                error="sharpness_error",
                card=True,
                better=-1,
                words="Largest rise of the loss in a small box around the weights, relative to 1 + loss.",
            ),
            Entry("sharpness_solver", "solver of the sharpness", same=True, detail=True),
        ),
        passes=lambda effort: 40,
        weight=3.0,
    ),
    Part(
        "gaps",
        "rise of the loss uphill, scale-free uphill, and on the average at a distance",
        (
            Entry("sam_gap", "SAM gap", better=-1, words="Rise of the loss after one short step uphill."),
            Entry(
                "adaptive_gap",
                "adaptive SAM gap",
                better=-1,
                words="The same with steps in proportion to each weight: rescaling layers does not change it.",
            ),
            Entry(
                "average_gap",
                "average gap",
                better=-1,
                words="Mean rise of the loss at a fixed distance in random directions.",
            ),
            Entry("sam_radius", "radius of the SAM gap", same=True, detail=True),
            Entry("average_radius", "distance of the average gap", same=True, detail=True),
        ),
        passes=lambda effort: 15,
    ),
    Part(
        "noise",
        "rise of the loss under the noise of 1 to 1000 steps of the last phase, with its momentum",
        (
            Entry(
                "noise_tolerance",
                "loss rise, last phase's steps of noise: {}",
                better=-1,
                words="Rise of the loss under so many steps of the training noise alone.",
            ),
            Entry("noise_std", "noise of one step of the last phase, before momentum", detail=True),
            Entry("noise_momentum", "momentum that hands the noise on", detail=True),
        ),
        passes=lambda effort: 44,
    ),
    Part("line", "loss and accuracy along a random direction", file="line.npz", passes=lambda effort: 81),
    Part(
        "surface",
        "loss and accuracy over a plane of two random directions",
        file="surface.npz",
        passes=lambda effort: effort.grid**2,
    ),
    Part("gradients", "per-example gradient norms and the clipped share", file="gradients.json"),
    Part(
        "interpolation",
        "loss and accuracy between the first run and each other one",
        file="interpolation.npz",
        between=True,
        passes=lambda effort: 41,
    ),
    Part(
        "trajectory",
        "loss and accuracy over the plane of the training path",
        file="trajectory.npz",
        usual=False,
        passes=lambda effort: effort.grid**2,
    ),
    Part(
        "smoothed",
        "the line on the smoothed loss of DPLIS",
        file="smoothed.npz",
        usual=False,
        passes=lambda effort: 81,
    ),
)

PARTS = {part.name: part for part in _IN_ORDER}


def usual() -> tuple[str, ...]:
    """The parts that are measured unless others are asked for."""
    return tuple(part.name for part in PARTS.values() if part.usual)


def files() -> set[str]:
    """Every file of a landscape."""
    return {part.file for part in PARTS.values()}


def entries() -> list[Entry]:
    """Every entry of measures.json: what was found, then how."""
    every = [*COMMON, *(entry for part in PARTS.values() for entry in part.entries)]
    return sorted(every, key=lambda entry: entry.detail)


@dataclass(frozen=True)
class Row:
    """One line of a table of measures: for each run its value and the standard error, None where there is none."""

    label: str
    percent: bool
    cells: tuple[tuple[Any, float | None], ...]
    better: int = 0
    words: str = ""
    detail: bool = False

    @property
    def best(self) -> int | None:
        """The place of the one best value; None where values tie, are fewer than two, or neither end is better."""
        found = [(number(value), place) for place, (value, _) in enumerate(self.cells)]
        there = sorted(
            ((v, place) for v, place in found if v is not None), key=lambda each: -self.better * each[0]
        )
        return there[0][1] if self.better and len(there) > 1 and there[0][0] != there[1][0] else None


def rows(found: Sequence[Mapping[str, Any]], *, details: bool = False) -> list[Row]:
    """The table of some runs' measures, without lines that no run has anything for.

    With ``details`` also how they were taken, and at the end whatever this version does not know, under its own name.

    >>> [row.label for row in rows([{"loss": 0.5, "noise_tolerance": [[1, 0.1], [10, 0.2]]}, {"accuracy": 0.9}])]
    ['accuracy', 'loss', "loss rise, last phase's steps of noise: 1", "loss rise, last phase's steps of noise: 10"]
    """
    shown = [entry for entry in entries() if details or not entry.detail]
    if details:
        known = {key for entry in entries() for key in (entry.key, entry.error)}
        shown += [Entry(key, key) for key in sorted({key for each in found for key in each} - known)]
    table = [row for entry in shown for row in _rows(entry, found)]
    return [row for row in table if any(value is not None for value, _ in row.cells)]


def _rows(entry: Entry, found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The line of an entry; of a list of (steps, value) a line for each number of steps."""
    if "{}" not in entry.label:
        cells = tuple((each.get(entry.key), number(each.get(entry.error))) for each in found)
        return [Row(entry.label, entry.percent, cells, entry.better, entry.words, entry.detail)]
    lists = [dict(pairs(each.get(entry.key))) for each in found]
    steps = sorted({step for each in lists for step in each})
    return [
        Row(
            entry.label.format(f"{step:g}"),
            entry.percent,
            tuple((each.get(step), None) for each in lists),
            entry.better,
            entry.words,
        )
        for step in steps
    ]


SETTINGS = ("split", "examples", "seed", "precision")
"""The entries that say how all parts were measured: parts that differ in one of them do not belong into one folder."""

_USUAL = {"examples": 2000, "seed": 0, "sam_radius": 0.05, "average_radius": 1.0}
_FLAGS = {
    "examples": "--examples",
    "seed": "--seed",
    "sam_radius": "--radius",
    "average_radius": "--distance",
}


def flags(found: Mapping[str, Any]) -> tuple[str, ...]:
    """What to add to ``saltflat landscape RUN`` to measure in the way in which ``found`` was.

    >>> flags({"split": "test", "examples": 60, "seed": 0, "precision": "float64"})
    ('--examples', '60', '--float64')
    """
    given = {key: number(found.get(key)) for key in _FLAGS}
    own = {_FLAGS[key]: v for key, v in given.items() if v is not None and v != _USUAL[key]}
    words = [word for flag, value in own.items() for word in (flag, f"{value:.12g}")]
    words += ["--float64"] if found.get("precision") == "float64" else []
    words += ["--train", "--private-stays-here"] if found.get("split") == "train" else []
    return tuple(words)


def pairs(value: object) -> list[tuple[float, float]]:
    """The (steps, value) pairs of a list that are pairs of numbers.

    >>> pairs([[1, 0.5], [10], "no", [100, None]])
    [(1.0, 0.5)]
    """
    rows = value if isinstance(value, list) else []
    read = [(number(row[0]), number(row[1])) for row in rows if isinstance(row, list) and len(row) == 2]
    return [(a, b) for a, b in read if a is not None and b is not None]


def differing(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """In what runs do not agree, but must, for their measures to be compared.

    How a part was taken counts for the runs that have the part.

    >>> differing([{"seed": 0, "sam_radius": 0.05}, {"seed": 1}])
    ['seed']
    """
    must = [entry for entry in entries() if entry.same]
    given = lambda entry: [each.get(entry.key) for each in found if entry in COMMON or entry.key in each]
    return [entry.label for entry in must if len(set(map(str, given(entry)))) > 1]
