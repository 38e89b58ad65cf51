"""One run of PATE in one folder: claim, teach, label, learn, state."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import nn

from saltflat.core.stop import finish_first
from saltflat.data import Examples, Split, load, own_split, read_table
from saltflat.data.arrays import read_arrays
from saltflat.data.files import content, resolve
from saltflat.errors import DataError, Interrupted, LedgerError, SettingError
from saltflat.pate import kept
from saltflat.pate.fitting import SmoothedStudent, fitted, made, share_right
from saltflat.pate.gnmax import ANSWERS, QUERIES, Answers, Cap, ConfidentGNMax, joined, label
from saltflat.pate.kept import Released
from saltflat.pate.layout import Layout, by_example, by_user
from saltflat.pate.recipe import PateRecipe, check, form_of, own_of, size_of, widened
from saltflat.pate.sanitised import RELEASES, Sanitised, release, release_cost
from saltflat.pate.teachers import Desk, Teaching, votes_of
from saltflat.pate.votes import TeacherVotes
from saltflat.privacy.accounting.events import compose
from saltflat.privacy.record import durable
from saltflat.privacy.record.costs import event_of
from saltflat.privacy.record.history import Budget
from saltflat.privacy.record.ledger import Claim, Ledger, Run
from saltflat.privacy.record.statement import Declared, Statement, delta_warnings, state
from saltflat.runs.begin import begun, held
from saltflat.runs.execute import finish, hits
from saltflat.runs.identity import identity_of
from saltflat.runs.layout import Folder, Reading, add_reading

NOT_COVERED = (
    "the queries, which are public inputs: who chose them, and from what",
    "teachers and votes, which are private and were not released",
)
AT_THIS_DATA = "at-this-data.json"
READ = "the votes were read from a file: all of this holds if each unit was in one teacher's part, which no file shows"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a run tells as it goes; all of it is public: how many teachers are ready, what was asked and answered."""

    teachers: Callable[[int, int], None] = lambda done, total: None
    answers: Callable[[Answers], None] = lambda answers: None
    student: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    released: Released
    statement: Statement
    on_record: float  # epsilon in the ledger at the statement's delta: other runs on this data included


@dataclass(frozen=True)
class Parts:
    """The data of a run: private examples, the public pool, and public examples for evaluation."""

    private: Examples
    pool: Examples
    evaluation: Examples
    classes: int

    @classmethod
    def of(cls, split: Split, queries: int) -> Parts:
        if split.test.count < queries:
            raise SettingError(
                f"queries is {queries}, and there are {split.test.count} public test examples to ask about: lower it"
            )
        pool, rest = (
            replace(split.test, inputs=split.test.inputs[part], targets=split.test.targets[part])
            for part in (slice(queries), slice(queries, None))
        )
        return cls(split.train, pool, rest, split.classes)


def parts_of(recipe: PateRecipe, data_dir: Path | None) -> Parts:
    own = own_of(recipe)
    split = load(recipe.data, data_dir) if own is None else own_split(own, data_dir)
    return Parts.of(split, recipe.queries)


def layout_of(recipe: PateRecipe, private: Examples, data_dir: Path | None) -> Layout:
    """Whose data goes to which teacher: by user, where the recipe names a column, else by example."""
    if recipe.users is None:
        return by_example(private, recipe.teachers, seed=recipe.seed)
    return by_user(_users(recipe, data_dir), recipe.teachers, seed=recipe.seed)


def _users(recipe: PateRecipe, data_dir: Path | None) -> list[object]:
    """Whose each training row is, from the file that has the rows."""
    path, name = resolve(recipe.data, data_dir), recipe.users or ""
    if path.name.endswith(".npz"):
        found = read_arrays(path, [name])[name]
        if found.ndim != 1 or found.dtype.kind not in "iuUS":
            raise DataError(f"{path}: {name} must hold one whole number or text for each row")
        return [each.decode() if isinstance(each, bytes) else each for each in found.tolist()]
    table = read_table(resolve(recipe.table or "", data_dir))
    rows = csv.reader(content(path).decode("utf-8-sig").splitlines(), skipinitialspace=True)
    kept_rows = (row for row in rows if row and not (table.comment and row[0].startswith(table.comment)))
    header = [*table.header] if table.header is not None else [cell.strip() for cell in next(kept_rows, [])]
    if name not in header:
        raise DataError(f"{path} has no column {name!r}, which was named as users")
    return [row[header.index(name)].strip() for row in kept_rows]


def read_votes(path: Path, *, queries: int, classes: int) -> TeacherVotes:
    """Votes in a file of choices (npy, read without pickle): a row for each teacher, a column for each query.

    The first ``queries`` columns are taken. A choice that is no class is no vote.
    """
    try:
        found = np.load(BytesIO(content(path)), allow_pickle=False)
    except ValueError:
        raise DataError(f"{path} is no npy file of numbers, or a truncated one") from None
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.dtype.kind not in "iuf":
        raise DataError(
            f"{path} must hold a table of numbers: a row for each teacher, a column for each query"
        )
    if found.shape[1] < queries or len(found) < 2:
        raise DataError(
            f"{path} has {found.shape[1]} columns of {len(found)} teachers; {queries} queries are asked"
        )
    return TeacherVotes.of(found[:, :queries], classes=classes)


def execute(
    recipe: PateRecipe,
    folder: Folder,
    *,
    resume: bool = False,
    ledger: Path | None = None,
    workers: int = 0,
    data_dir: Path | None = None,
    shown: Shown | None = None,
) -> Outcome:
    """A new run in the folder, or with ``resume`` the one that is there.

    *Guarantee*: the whole cost is claimed before a teacher is trained; each block of queries is drawn from the claim
    before its noise is. What was asked before a kill counts, and is not asked again. The run's own ledger refuses more
    than the recipe's epsilon; one that is shared (``ledger``) refuses by its own budget.
    """
    form, shown = form_of(recipe, data_dir), shown or Shown()
    recipe = widened(recipe, form)
    gnmax = recipe.mechanism()
    check(recipe, gnmax, form)
    delta_warnings(_declared(recipe))
    parts = parts_of(recipe, data_dir)
    teaching = Teaching(recipe.model.made, recipe.teacher, parts.pool, parts.classes, recipe.seed)
    teaching.check()
    layout = layout_of(recipe, parts.private, data_dir)
    theirs = None if recipe.votes is None else _votes_of_others(recipe, parts.classes, data_dir)
    start = held(folder) if resume else begun(folder, recipe, ledger or folder.ledger)
    with start, finish_first() as caught, _charged(recipe, folder, ledger) as (book, run):
        leave = partial(_leave, caught, folder)
        claim = run.claim(gnmax.cost)
        votes = theirs
        if votes is None and _needs_votes(recipe, gnmax, claim, folder):
            votes = _votes(teaching, parts.private, layout, folder, workers, shown, leave)
        answers = _labelled(votes, gnmax, claim, folder, shown, leave)
        found = _sanitised(recipe, votes, gnmax, run, folder, answers.asked)
        student = _student(recipe, parts, answers, shown, leave)
        statement = _stated(recipe, run, answers, found)
        on_record = book.epsilon(recipe.delta)
    released = _released(recipe, gnmax, parts, answers, found, student, statement)
    if parts.evaluation.count:
        durable.replace(
            folder.evaluation, hits(student, parts.evaluation, recipe.student.batch_size).as_json()
        )
    _keep(folder, released, student, statement)
    return Outcome(released, statement, on_record)


def _leave(caught: list[int], folder: Folder) -> None:
    if caught:
        raise Interrupted(f"stopped by signal {caught[0]}; what was kept is in {folder.path}", caught[0])


@contextmanager
def _charged(recipe: PateRecipe, folder: Folder, shared: Path | None) -> Iterator[tuple[Ledger, Run]]:
    """The ledger, and the folder's run in it, which is known by its identity wherever the folder is."""
    own = None if recipe.epsilon is None else Budget(epsilon=recipe.epsilon, delta=recipe.delta)
    budget = own if shared is None else None
    with (
        Ledger.open(shared or folder.ledger, dataset=recipe.data, budget=budget) as book,
        book.run(str(folder.path), unit=_unit(recipe), identity=identity_of(folder.path)) as run,
    ):
        yield book, run


def _unit(recipe: PateRecipe) -> str:
    return "example" if recipe.users is None else "user"


def _votes_of_others(recipe: PateRecipe, classes: int, data_dir: Path | None) -> TeacherVotes:
    """What teachers chose that others trained; before anything is charged."""
    votes = read_votes(resolve(recipe.votes or "", data_dir), queries=recipe.queries, classes=classes)
    if votes.teachers != recipe.teachers:
        raise SettingError(f"teachers is {recipe.teachers}, and {recipe.votes} has {votes.teachers} rows")
    return votes


def _needs_votes(recipe: PateRecipe, gnmax: ConfidentGNMax, claim: Claim, folder: Folder) -> bool:
    """Whether a query is left to ask, or a release to make; else teachers are of no use any more."""
    queries, answers = claim.used.get(QUERIES, 0), claim.used.get(ANSWERS, 0)
    left = queries < recipe.queries and gnmax.allows({QUERIES: queries + 1, ANSWERS: answers + 1})
    return left or (recipe.smooth is not None and not (folder.path / AT_THIS_DATA).exists())


def _votes(
    teaching: Teaching,
    private: Examples,
    layout: Layout,
    folder: Folder,
    workers: int,
    shown: Shown,
    leave: Callable[[], None],
) -> TeacherVotes:
    """What teachers choose, kept in the private folder while the run goes."""

    def watch(done: int, total: int) -> None:
        shown.teachers(done, total)
        leave()

    desk = Desk(folder.path / kept.PRIVATE, identity_of(folder.path) or "")
    return votes_of(teaching, private, layout, workers=workers, desk=desk, watch=watch)


def _labelled(
    votes: TeacherVotes | None,
    gnmax: ConfidentGNMax,
    claim: Claim,
    folder: Folder,
    shown: Shown,
    leave: Callable[[], None],
) -> Answers:
    """What was answered before, and what is answered now; queries that a kill cut short are not asked again."""
    journal = folder.path / kept.ANSWERS
    before = read_answers(journal)
    begun_with = claim.used.get(QUERIES, 0)
    if before.asked > begun_with:
        raise LedgerError(
            f"{journal} holds more answers than the ledger has queries on record: an older copy of the ledger was "
            "restored; bring back the newest"
        )

    def told(answers: Answers) -> None:
        _add(journal, answers)
        shown.answers(answers)
        leave()

    if begun_with > before.asked:  # their answers were lost with the process
        _add(journal, Answers(begun_with - before.asked, *[np.zeros(0, np.int64)] * 2))
    if votes is not None:
        label(votes, gnmax, claim, queries=range(begun_with, votes.queries), told=told)
    return read_answers(journal)


def _add(journal: Path, answers: Answers) -> None:
    """Released answers on disk, behind those that are there."""
    line = {"asked": answers.asked, "queries": answers.queries.tolist(), "labels": answers.labels.tolist()}
    there = journal.read_bytes() if journal.exists() else b""
    durable.replace(journal, there + json.dumps(line).encode() + b"\n")


def read_answers(journal: Path) -> Answers:
    """The released answers of a run, as far as it has come."""
    if not journal.exists():
        return joined([])
    try:
        lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
        parts = [
            Answers(int(one["asked"]), np.array(one["queries"], np.int64), np.array(one["labels"], np.int64))
            for one in lines
        ]
        good = all(len(part.queries) == len(part.labels) <= part.asked for part in parts)
    except (ValueError, KeyError, TypeError):
        good = False
    if not good:
        raise DataError(f"{journal} is damaged: bring back a good copy, or begin another run")
    return joined(parts)


def _sanitised(
    recipe: PateRecipe,
    votes: TeacherVotes | None,
    gnmax: ConfidentGNMax,
    run: Run,
    folder: Folder,
    asked: int,
) -> Sanitised | None:
    """The released cost at this data, if the recipe asks for it; once, however often the run goes on."""
    if recipe.smooth is None:
        return None
    place = folder.path / AT_THIS_DATA
    claim = run.claim(release_cost(recipe.smooth))
    if votes is not None and claim.used.get(RELEASES, 0) == 0:
        found = release(votes, gnmax, range(asked), recipe.smooth, claim)
        durable.replace(place, json.dumps(vars(found)))
    return Sanitised(**json.loads(place.read_text())) if place.exists() else None


def _student(
    recipe: PateRecipe, parts: Parts, answers: Answers, shown: Shown, leave: Callable[[], None]
) -> nn.Module:
    """Trained on answered queries alone: public inputs, released labels."""

    def watch(done: int, total: int) -> None:
        shown.student(done, total)
        leave()

    where = torch.from_numpy(answers.queries)
    lessons = replace(parts.pool, inputs=parts.pool.inputs[where], targets=torch.from_numpy(answers.labels))
    return fitted(
        made(recipe.model.made, recipe.seed), lessons, recipe.student, seed=recipe.seed, watch=watch
    )


def _declared(recipe: PateRecipe, *released: str) -> Declared:
    return Declared(delta=recipe.delta, size=size_of(recipe), unit=_unit(recipe), released=released)


def _stated(recipe: PateRecipe, run: Run, answers: Answers, found: Sanitised | None) -> Statement:
    """What is promised, from all that is on record for the run."""
    released = [
        f"which of {answers.asked} public queries were answered, and with which class",
        "the student's weights, trained on these answers, and its accuracy on public examples",
    ]
    if found is not None:
        released.append(
            f"what the votes cost at this data: epsilon {found.epsilon(recipe.delta):.4g} at delta {recipe.delta:g} "
            f"(Renyi order {found.order:g}; below it with probability {found.miss:g})"
        )
    event = compose(*(event_of(cost, steps) for cost, steps in run.charged().items()))
    statement = state(event, _declared(recipe, *released))
    warnings = statement.warnings if recipe.votes is None else (*statement.warnings, READ)
    return replace(statement, not_covered=(*statement.not_covered, *NOT_COVERED), warnings=warnings)


def _released(
    recipe: PateRecipe,
    gnmax: ConfidentGNMax,
    parts: Parts,
    answers: Answers,
    found: Sanitised | None,
    student: nn.Module,
    statement: Statement,
) -> Released:
    right = share_right(student, parts.evaluation)
    return Released(
        teachers=recipe.teachers,
        unit=_unit(recipe),
        threshold=gnmax.threshold,
        sigma1=gnmax.sigma1,
        sigma2=gnmax.sigma2,
        limit=in_words(gnmax),
        asked=answers.asked,
        answered=answers.answered,
        epsilon=statement.epsilon,
        delta=statement.delta,
        at_this_data=None if found is None else found.epsilon(recipe.delta),
        accuracy=None if math.isnan(right) else right,
        evaluated=parts.evaluation.count,
        student=smoothing(recipe.student),
    )


def in_words(gnmax: ConfidentGNMax) -> str:
    """What limits the interaction."""
    if isinstance(gnmax.limit, Cap):
        return f"at most {gnmax.limit.queries:,} queries and {gnmax.limit.answers:,} answers, all of them paid for"
    return f"as many queries and answers as fit in epsilon {gnmax.limit.epsilon:g} at delta {gnmax.limit.delta:g}"


def smoothing(student: SmoothedStudent) -> str:
    """How a student is trained."""
    if student.sigma == 0:
        return f"plain SGD, {student.epochs} epochs"
    return f"smoothed, {student.copies} copies with jitter {student.sigma:g}, {student.epochs} epochs"


def _keep(folder: Folder, released: Released, student: nn.Module, statement: Statement) -> None:
    """Write what was released; then nobody needs what is private any more."""
    reading = Reading(step=released.asked, epsilon=released.epsilon, accuracy=released.accuracy)
    add_reading(folder.metrics, reading)
    durable.replace(folder.path / kept.FILE, released.as_json(), mode=durable.RELEASED)
    finish(folder, student, statement)
    Desk(folder.path / kept.PRIVATE).clear()
