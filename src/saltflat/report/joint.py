"""What the listed runs cost together: one epsilon for each data set with several of them, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from saltflat.errors import SaltflatError
from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record.costs import Cost
from saltflat.privacy.record.history import epsilon_of
from saltflat.report.chart import tick
from saltflat.report.folder import Book, Kept, without_path
from saltflat.runs.layout import number

MOST = 6  # names in a sentence
SLACK = 1.01  # two accountants may differ by so much over the same steps


@dataclass(frozen=True)
class Joint:
    """The runs on one data set, and the epsilon at ``delta`` of all their steps; None, with ``why`` there is none."""

    data: str
    names: tuple[str, ...]
    epsilon: float | None = None
    delta: float = 0.0
    unit: str = ""
    adjacency: str = ""
    why: str = ""

    @property
    def short(self) -> str:
        """In half a sentence, for the first screen."""
        who = f"all {len(self.names)} runs" if len(self.names) > 2 else "both runs"
        if self.epsilon is None:
            return f"no joint epsilon for {who} on {self.data or 'this data'}: {self.why}"
        return f"epsilon {rounded_up(self.epsilon, 4)} at delta {tick(self.delta)} for {who} on {self.data}"

    def as_text(self) -> str:
        """In one or two sentences, with all that belongs to an epsilon."""
        who = ", ".join(self.names) if len(self.names) <= MOST else f"{len(self.names)} runs"
        where = f"{who}, all on {self.data or 'data that is not named'}"
        if self.epsilon is None:
            return f"{where}: no joint epsilon can be given, because {self.why}. Together they may cost more than each."
        return (
            f"{where}: together epsilon {rounded_up(self.epsilon, 4)} at delta {tick(self.delta)} (unit: one "
            f"{self.unit}; adjacency: {self.adjacency.replace('-', ' ')} one unit), all that their ledgers have on "
            "record for them, as if planned before any result was seen. Each epsilon elsewhere is "
            "that of one run by itself."
        )


def joint(runs: Sequence[Kept]) -> list[Joint]:
    """One for each data set that several of the runs are on; empty folders are on none."""
    groups: dict[str, list[Kept]] = {}
    for run in runs:
        if not run.empty:
            groups.setdefault(data_of(run), []).append(run)
    return [_joint(data, them) for data, them in groups.items() if len(them) > 1]


def data_of(run: Kept) -> str:
    """The data set that a run is on, from its recipe or its ledger; nothing if neither says it.

    It may be a path, which tells two files of one name apart, and is shown by :func:`without_path` only.
    """
    book = run.ledger.value
    return str((run.recipe.value or {}).get("data") or (book.history.dataset if book is not None else ""))


def _joint(data: str, runs: Sequence[Kept]) -> Joint:
    names, shown = tuple(run.name for run in runs), without_path(data)
    books = [run.ledger.value for run in runs if run.ledger.value is not None]
    why = "" if data else "it is not on record which data they are on"
    why = why or next(filter(None, map(_obstacle, runs)), "") or _unlike(books)
    if why:
        return Joint(shown, names, why=why)
    delta = max(book.delta for book in books)
    unit, adjacency = next(filter(None, (book.history.unit for book in books)), ("example", "add-or-remove"))
    try:
        found = _epsilon(tuple(costs(books).items()), delta, adjacency)
    except SaltflatError as error:
        return Joint(shown, names, why=" ".join(str(error).split()))
    alone = [run.spent.epsilon for run in runs if run.spent.epsilon is not None]
    return Joint(shown, names, max([found, *alone]), delta, unit, adjacency)


@cache
def _epsilon(steps: tuple[tuple[Cost, int], ...], delta: float, adjacency: str) -> float:
    """Computed once for page and card."""
    return epsilon_of(dict(steps), delta, adjacency)


def _obstacle(run: Kept) -> str:
    """Why the steps of a run are not all known; nothing if they are."""
    if run.spent.stamp:
        return f"{run.name} is {run.spent.stamp}"
    if run.ledger.missing:
        return f"{run.name} has no ledger, and a statement does not tell the steps"
    book, promised = run.ledger.value, number((run.statement.value or {}).get("epsilon"))
    if run.ledger.trouble or book is None or book.epsilon is None:
        return f"the ledger of {run.name} is damaged or unusable"
    if book.history.chose(book.runs):
        return f"results chose the steps of {run.name}, and it counts with all that they could have chosen"
    if promised is not None and promised > SLACK * book.epsilon:
        return f"{run.name} has a statement of more than its ledger has on record"
    return ""


def _unlike(books: Sequence[Book]) -> str:
    """A word where costs do not add up: those of different units, or under different adjacencies."""
    kinds = [book.history.unit for book in books if book.history.unit is not None]
    for place, what in enumerate(("units", "adjacencies")):
        found = list(dict.fromkeys(kind[place].replace("-", " ") for kind in kinds))
        if len(found) > 1:
            return f"their {what} differ ({', '.join(found)})"
    return ""


def costs(books: Sequence[Book]) -> Mapping[Cost, int]:
    """The steps that all books have on record for their runs; a start of a run that several books hold counts once.

    The hash of its first line tells a start from all others, also in copies of a ledger; where copies differ in its
    steps, the larger number counts.
    """
    starts: dict[str, dict[Cost, int]] = {}
    for book in books:
        for entry in book.history.began(book.runs):
            known = starts.setdefault(entry.hash, {})
            for cost, steps in book.history.steps([entry.number]).items():
                known[cost] = max(known.get(cost, 0), steps)
    total: dict[Cost, int] = {}
    for start in starts.values():
        for cost, steps in start.items():
            total[cost] = total.get(cost, 0) + steps
    return total
