"""What is where in a run's folder: the name of every file, and how those are written that have lines of their own.

Whoever writes a run and whoever reads one import the names from here. The files of ``landscape/`` are named beside what
is kept in them, in `saltflat.runs.measures`; the one that all measures share is named here.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

RECIPE = "recipe.toml"
IDENTITY = "identity.txt"
PREPROCESSING = "preprocessing.json"  # how rows become inputs: see `saltflat.data.preprocessing`
CLIENTS = "clients.npz"
LEDGER = "ledger.jsonl"
METRICS = "metrics.jsonl"
STATEMENT = "statement.json"
STATEMENT_TEXT = "statement.txt"
MODEL = "model.safetensors"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
EVALUATION = "evaluation.json"  # see `saltflat.runs.evaluation`
PATH = "path"  # released weights on the way, of a small network: a file for each reading
REPEATS = "repeats.json"  # in a folder of several runs of one recipe: see `saltflat.runs.repeats`
SWEEP = "sweep.json"  # in a folder of recipes that differ in some settings: see `saltflat.runs.sweep`
SYNTHETIC = (
    "synthetic"  # samples of a generator and what they were found to be: see `saltflat.runs.synthetic`
)
LANDSCAPE = "landscape"
MEASURES = "measures.json"  # in LANDSCAPE
PUBLIC = "public"
STAGES = "stages.json"  # in PUBLIC: what came before the private phase, and every stage's accuracy
SAMPLES = "samples.npz"  # in PUBLIC: some images of each kind, uint8 (n, channels, height, width), for people to see
KEYS = "public.npz"  # in PUBLIC: the hashes of the training examples that were public
MADE = "synthetic.npz"  # in PUBLIC: all that the generator made, with labels
WARM = "warm.safetensors"  # in PUBLIC: the weights after the warm-up
GENERATOR = "generator"  # in PUBLIC: a folder of checkpoints

MARKS = (RECIPE, METRICS, STATEMENT, LEDGER, MODEL, LANDSCAPE)
"""What tells a folder with a run from any other."""


class _Inside:
    """What has this name in a folder: ``Folder(path).recipe`` is its path."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Folder | None, owner: type[Folder]) -> Path:
        return Path(self.name) if folder is None else folder.path / self.name


@dataclass(frozen=True)
class Folder:
    """Where a run is kept.

    >>> Folder(Path("runs/one")).ledger.as_posix()
    'runs/one/ledger.jsonl'
    """

    path: Path

    recipe = _Inside(RECIPE)
    preprocessing = _Inside(PREPROCESSING)
    clients = _Inside(CLIENTS)
    ledger = _Inside(LEDGER)
    metrics = _Inside(METRICS)
    statement = _Inside(STATEMENT)
    statement_text = _Inside(STATEMENT_TEXT)
    model = _Inside(MODEL)
    checkpoints = _Inside(CHECKPOINTS)
    tensorboard = _Inside(TENSORBOARD)
    evaluation = _Inside(EVALUATION)
    way = _Inside(PATH)
    repeats = _Inside(REPEATS)
    synthetic = _Inside(SYNTHETIC)
    landscape = _Inside(LANDSCAPE)
    public = _Inside(PUBLIC)

    @property
    def empty(self) -> bool:
        """Whether there is no sign of a run."""
        return not any((self.path / mark).exists() for mark in MARKS)


def head_of(ledger: Path) -> Path:
    """The file beside a ledger that names its last line."""
    return ledger.with_name(ledger.name + ".head")


@dataclass(frozen=True)
class Reading:
    """What is known after some steps. Everything here is released, public, or about the machine.

    A run writes all of it; what a line of another version does not have is None.
    """

    step: int
    epoch: float | None = None
    phase: int | None = None
    epsilon: float | None = None  # on record for this run: steps that ran again after a crash count again
    accuracy: float | None = None  # of the weights that the run would end with, on the public test examples
    error: float | None = None  # the same where targets are numbers: root mean square, in their own unit
    seconds: float | None = None  # since the reading before
    examples_per_second: float | None = None  # expected ones, or clients: how many were drawn stays private
    update_norm: float | None = (
        None  # mean over clients before the clip; without noise, of data declared public
    )
    clip_factor: float | None = None  # the same of min(1, clip norm / norm),
    inconsistency: float | None = None  # and of how far each client's factor is from that mean
    perplexity: float | None = (
        None  # where targets are words: exp of the mean loss over the test examples' words
    )


def add_reading(metrics: Path, reading: Reading) -> None:
    """Add a line. A step that runs again after a crash has two; what a crash left of a line is ended first."""
    with metrics.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        whole = file.read(1) in (b"", b"\n")
        file.write((b"" if whole else b"\n") + json.dumps(asdict(reading)).encode() + b"\n")


def readings(metrics: Path) -> tuple[tuple[Reading, ...], tuple[int, ...]]:
    """The readings of the run as it stands, in the order of its steps, and which lines are torn or damaged.

    A run that went back to a checkpoint takes readings again: a later line replaces all earlier ones of its step and
    beyond.
    """
    kept: list[Reading] = []
    bad: list[int] = []
    for place, line in enumerate(metrics.read_bytes().splitlines(), start=1):
        reading = _reading(line)
        if reading is None:
            bad.append(place)
            continue
        while kept and kept[-1].step >= reading.step:
            kept.pop()
        kept.append(reading)
    return tuple(kept), tuple(bad)


def _reading(line: bytes) -> Reading | None:
    """A line that may be of another version, or none at all."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    given = {name: number(fields.get(name)) for name in _FIELDS} if isinstance(fields, dict) else {}
    step, phase = given.pop("step", None), given.pop("phase", None)
    if step is None:
        return None
    return Reading(int(step), phase=None if phase is None else int(phase), **given)


_FIELDS = tuple(Reading.__dataclass_fields__)


def number(value: object) -> float | None:
    """A finite number, or None: other versions may have written anything.

    >>> number(2), number(True), number(float("nan")), number("2"), number(10**400)
    (2.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON sets whole numbers no limit
        return None


def as_json(entries: Mapping[str, Any]) -> bytes:
    """An object as a file; JSON has no infinity and no NaN, so null stands for them.

    >>> as_json({"ratio": math.inf})
    b'{\\n "ratio": null\\n}\\n'
    """
    plain = {key: _finite(value) for key, value in entries.items()}
    return (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_npz(arrays: Mapping[str, Any]) -> bytes:
    """Arrays as a file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **dict(arrays))
    return buffer.getvalue()


# What came before the private phase

KINDS = ("start", "warm-up", "private", "without noise")


@dataclass(frozen=True)
class StageOf:
    """A stage of a run that uses public examples, and how its weights did on the test examples.

    ``epsilon`` is 0 before the private phase, that of the run after it, and None (infinity) for the training without
    noise, which is not private and is there for comparison.
    """

    name: str
    kind: str  # one of KINDS
    epsilon: float | None
    accuracy: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Before:
    """What came before the private phase of a run: in which scenario, from which examples, how good it was."""

    scenario: str  # Cold, Warm, WarmSyn, WarmRandom or Extended
    provenance: tuple[str, ...] = ()  # which examples were used as public ones, in words
    stages: tuple[StageOf, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)  # of what was made, beside the public examples
    outline: Mapping[str, Any] = field(default_factory=dict)  # the settings that decided all of it

    def as_json(self) -> bytes:
        return (json.dumps({"format": 1, **asdict(self)}, indent=1, allow_nan=False) + "\n").encode()

    def stage(self, kind: str) -> StageOf | None:
        """The last stage of a kind."""
        return next((each for each in reversed(self.stages) if each.kind == kind), None)


def before(folder: Folder) -> Before | None:
    """What came before the private phase; None where there is nothing, or nothing that can be read.

    What another version wrote, or a damaged file, is passed over entry by entry.
    """
    try:
        found = json.loads((folder.public / STAGES).read_bytes())
        stages = tuple(each for each in map(_stage, found["stages"]) if each is not None)
        metrics = {
            str(k): v for k, v in ((k, number(v)) for k, v in found["metrics"].items()) if v is not None
        }
        said = tuple(str(each) for each in found["provenance"])
        return Before(str(found["scenario"]), said, stages, metrics, dict(found.get("outline") or {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _stage(entry: Any) -> StageOf | None:
    if not isinstance(entry, dict) or entry.get("kind") not in KINDS:
        return None
    numbers = {name: number(entry.get(name)) for name in ("epsilon", "accuracy", "seconds")}
    return StageOf(str(entry.get("name", "")), entry["kind"], **numbers)
