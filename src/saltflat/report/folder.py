"""What ``saltflat train`` left in a folder: settings, readings, statement, ledger; whatever of it can be read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saltflat.audit.kept import FILE as AUDIT
from saltflat.audit.kept import read as read_audit
from saltflat.audit.result import Audited
from saltflat.errors import DataError, LedgerError, SaltflatError
from saltflat.pate.kept import FILE as PATE
from saltflat.pate.kept import Released
from saltflat.pate.kept import read as read_pate
from saltflat.privacy.record.history import History, read
from saltflat.recipes import toml
from saltflat.recipes.documents import settings, strange
from saltflat.report.found import Found, found, read_object, text, without_folder
from saltflat.report.shapes import Shapes, read_shapes
from saltflat.runs import evaluation, sweep, synthetic
from saltflat.runs.evaluation import Evaluation
from saltflat.runs.identity import identity_of
from saltflat.runs.layout import MARKS, Before, Folder, Reading, before, head_of, number, readings
from saltflat.runs.repeats import runs_in
from saltflat.runs.synthetic import Synthetic


@dataclass(frozen=True)
class Book:
    """A verified ledger, and the epsilon that it has on record at ``delta``; None if no bound could be computed.

    ``runs`` are the lines at which this folder's run began in a shared ledger; None: all runs in it are meant.
    """

    history: History
    delta: float
    epsilon: float | None
    gone: float | None  # how much of the budget, from 0 to 1
    runs: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Spent:
    """The epsilon that a run must be read with, at ``delta``; None: nobody can tell. ``source`` says why this one."""

    epsilon: float | None
    delta: float | None
    source: str
    stamp: str = ""

    @property
    def known(self) -> bool:
        return self.epsilon is not None and math.isfinite(self.epsilon) and not self.stamp


@dataclass(frozen=True)
class Kept:
    """A run, as its folder tells it. ``name`` is unique among the runs of a report and printable.

    ``near`` is what commands in the report call the folder: a report is mailed, and must not tell the paths of the
    machine that made it.
    """

    path: Path
    name: str
    near: str
    recipe: Found[dict[str, Any]]
    readings: Found[tuple[Reading, ...]]
    statement: Found[dict[str, Any]]
    ledger: Found[Book]
    shapes: Shapes
    has_model: bool
    audit: Found[Audited]
    pate: Found[Released]
    evaluation: Found[Evaluation] = field(default_factory=Found)
    synthetic: Found[Synthetic] = field(default_factory=Found)
    before: Before | None = None  # what came before the private phase, if anything did

    @property
    def finished(self) -> bool:
        """Whether the run wrote what is written last: statement, then model."""
        return self.has_model and self.statement.value is not None

    @property
    def empty(self) -> bool:
        return Folder(self.path).empty

    @property
    def last(self) -> Reading | None:
        """The reading that was taken last."""
        return self.readings.value[-1] if self.readings.value else None

    @property
    def accuracy(self) -> float | None:
        """The test accuracy of the last reading; None if that is no number, whatever was read before it."""
        return self.last.accuracy if self.last else None

    def setting(self, name: str) -> str:
        """A setting of the recipe in words, or nothing."""
        value = (self.recipe.value or {}).get(name)
        return "" if value is None else without_path(in_words(value))

    @property
    def spent(self) -> Spent:
        """The larger of the statement's epsilon and the ledger's: steps that ran again count, and so does a promise.

        *Guarantee*: no epsilon is shown that a readable record contradicts upwards. The epsilons of the metrics
        are not used: a run that was killed had begun steps after its last reading.
        """
        return larger(self.statement.value or {}, self.ledger)


def gather(paths: Sequence[Path], *, shared: Path | None = None, beside: Path | None = None) -> list[Kept]:
    """All runs, each folder once; DataError for a path that is no folder, and where no run is to be found at all.

    ``shared`` is the ledger of runs that were charged together; it stands in for the one a folder does not have.
    ``beside`` is the report's folder, from which the commands in it name the runs.
    """
    for path in paths:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise DataError(f"{path} {what}; give the folder of a run, which `saltflat train --out` wrote")
    every = [run for path in paths for run in (runs_in(path) or sweep.runs_in(path) or [path])]
    once = list({path.resolve(): path for path in every}.values())
    named = zip(once, unique_names(once), strict=True)
    runs = [read_run(path, name, near=_near(path, beside) or name, shared=shared) for path, name in named]
    if all(run.empty for run in runs):
        listed = ", ".join(str(path) for path in once)
        raise DataError(f"{listed}: no run is here (none of {', '.join(MARKS)}); begin one: saltflat train")
    return runs


def _near(path: Path, folder: Path | None) -> str:
    """The way from a folder down to a path; nothing if it leads elsewhere."""
    if folder is None or not path.resolve().is_relative_to(folder.resolve()):
        return ""
    return str(path.resolve().relative_to(folder.resolve()))


def read_run(path: Path, name: str, *, near: str = "", shared: Path | None = None) -> Kept:
    """Everything in one folder."""
    folder = Folder(path)
    recipe = found(folder.recipe, read_recipe)
    statement = found(folder.statement, read_statement)
    delta = number((statement.value or {}).get("delta")) or number((recipe.value or {}).get("delta"))
    place = _ledger_of(folder, shared)
    return Kept(
        path=path,
        name=name,
        near=near or name,
        recipe=recipe,
        readings=found(folder.metrics, read_metrics),
        statement=statement,
        ledger=read_ledger(place, delta, only=None if place == folder.ledger else path),
        shapes=read_shapes(folder.landscape),
        has_model=folder.model.exists(),
        audit=found(path / AUDIT, _audit),
        pate=found(path / PATE, lambda file: Found(read_pate(file))),
        evaluation=found(folder.evaluation, lambda file: Found(evaluation.read(file))),
        synthetic=found(folder.synthetic, lambda place: Found(synthetic.read(place))),
        before=before(folder),
    )


def _ledger_of(folder: Folder, shared: Path | None) -> Path:
    """A run's own ledger, the one that was named, or that of the repeats or the sweep which it is one of."""
    if folder.ledger.exists() or head_of(folder.ledger).exists():
        return folder.ledger
    above = Folder(folder.path.resolve().parent)
    if shared is None and above.repeats.exists():
        return above.ledger
    of = sweep.above(folder.path) if shared is None else None
    if of is not None and (book := of[1].book(of[0])).is_file():
        return book
    return shared or folder.ledger


def _audit(path: Path) -> Found[Audited]:
    kept = read_audit(path)
    return Found(kept.value, kept.trouble)


def read_recipe(path: Path) -> Found[dict[str, Any]]:
    """The settings by name, those of another version included, with a word on which are unknown or absent here."""
    table = toml.loads(path.read_text(encoding="utf-8"))
    said = strange(table)
    return Found(settings(table), f"{path.name} was written by another version: {said}" if said else "")


def read_metrics(path: Path) -> Found[tuple[Reading, ...]]:
    """The readings of the run as it stands; a line that was torn by a crash is left out and named."""
    kept, bad = readings(path)
    lines = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
    return Found(kept, f"{path.name}: left out line {lines}, torn or damaged" if bad else "")


def read_statement(path: Path) -> Found[dict[str, Any]]:
    """The facts of the statement; one without a usable epsilon is kept and named."""
    facts = read_object(path)
    if facts.value is not None and not text(facts.value.get("stamp")):
        for name in ("epsilon", "delta"):
            if number(facts.value.get(name)) is None:
                return Found(facts.value, f"{path.name} gives no finite {name}")
    return facts


def read_ledger(path: Path, delta: float | None, *, only: Path | None = None) -> Found[Book]:
    """The ledger, verified line by line; of a shared one, what it charged to the run that is kept in ``only``."""
    if not path.exists():
        if head_of(path).exists():
            return Found(
                None, f"{path.name} is gone, and {head_of(path).name} is there: bring back the ledger"
            )
        return Found()
    try:
        history = read(path)
    except LedgerError as error:
        return Found(None, " ".join(without_folder(str(error), path).split()))
    try:
        numbers = None if only is None else tuple(_mine(history, only))
    except DataError as error:
        return Found(None, without_folder(str(error), path))
    if numbers == ():
        return Found(
            None, f"{path.name} has no run that was kept in {only.resolve().name if only else path.name}"
        )
    delta = delta or (history.budget.delta if history.budget else None)
    if delta is None:
        return Found(None, f"{path.name} is whole, but neither statement, recipe nor budget gives a delta")
    try:
        return Found(Book(history, delta, history.epsilon(delta, numbers), history.gone(), numbers))
    except SaltflatError as error:
        return Found(
            Book(history, delta, None, None, numbers), f"{path.name}: {' '.join(str(error).split())}"
        )


def _mine(history: History, folder: Path) -> list[int]:
    """The line numbers of the run in a shared ledger that is kept in this folder: by its identity, or by its path."""
    identity = identity_of(folder)
    if identity is not None:
        return history.identified(identity)
    names = {str(folder), str(folder.resolve())}
    return [
        entry.number
        for entry in history.began()
        if {entry.body["name"], str(Path(entry.body["name"]).resolve())} & names
    ]


def larger(statement: Mapping[str, Any], ledger: Found[Book]) -> Spent:
    """See :attr:`Kept.spent`."""
    promised, delta, stamp = (
        number(statement.get("epsilon")),
        number(statement.get("delta")),
        text(statement.get("stamp")),
    )
    book = ledger.value
    if book is not None and book.epsilon == math.inf and book.history.stamp:
        stamp = stamp or book.history.stamp
    if stamp:
        return Spent(math.inf, delta or (book.delta if book else None), "its noise can be repeated", stamp)
    recorded = book.epsilon if book is not None else None
    if promised is None and recorded is None:
        return Spent(None, delta, "neither a statement nor a readable ledger gives it")
    if book is not None and recorded is not None and (promised is None or recorded > promised * (1 + 1e-9)):
        why = (
            "the ledger's; there is no statement"
            if promised is None
            else "the ledger's, above the statement's"
        )
        return Spent(recorded, book.delta, why)
    if recorded is not None:
        return Spent(promised, delta, "the statement's; the ledger has no more on record")
    doubt = "the ledger is damaged" if ledger.trouble else "there is no ledger to compare it with"
    return Spent(promised, delta, f"the statement's; {doubt}")


def unique_names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, printable, with as much of the path in front as tells them apart.

    >>> unique_names([Path("/a/one/run"), Path("/a/two/run")])
    ['one/run', 'two/run']
    """
    parts = [[_printable(part) for part in path.resolve().parts[1:]] or ["root"] for path in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{part[-1]} ({place})" for place, part in enumerate(parts, start=1)]


def short_names(recorded: Iterable[str], runs: Sequence[Kept]) -> dict[str, str]:
    """What to call runs that were written down by their paths: as the report does, or by the end of the path.

    >>> short_names(["/home/me/runs/one", "a run"], [])
    {'/home/me/runs/one': 'one', 'a run': 'a run'}
    """
    names = dict.fromkeys(recorded)
    paths = {name: Path(name.replace("\\", "/")).resolve() for name in names if "/" in name or "\\" in name}
    listed = {run.path.resolve(): run.name for run in runs}
    every = list(dict.fromkeys([*listed, *paths.values()]))
    short = dict(zip(every, unique_names(every), strict=True)) | listed
    return {name: short[paths[name]] if name in paths else name for name in names}


def _printable(name: str) -> str:
    """The name without control characters and without bytes that are no text."""
    plain = name.encode("utf-8", "replace").decode("utf-8")
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in plain)


def without_path(words: str) -> str:
    """A path by its last part, which is no reader's business otherwise; other words as they are.

    >>> without_path("/home/me/mine.csv"), without_path("SAT, then DPSGD")
    ('mine.csv', 'SAT, then DPSGD')
    """
    path = re.match(r"(/|~/|\.\.?/|\w:\\|[\w.-]+([/\\][\w. -]+)+$)", words)
    return re.split(r"[/\\]", words.rstrip("/\\"))[-1] if path else words


def in_words(value: object) -> str:
    """A setting as a recipe would write it, without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
