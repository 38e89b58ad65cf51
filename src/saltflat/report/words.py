"""Numbers and facts in the words that the page and the card share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record.costs import words as cost_words
from saltflat.privacy.record.statement import Statement
from saltflat.report.chart import tick
from saltflat.report.folder import Kept, Spent, in_words
from saltflat.report.found import text
from saltflat.runs.layout import number

UNKNOWN = "unknown"
NOTHING = "–"


def epsilon(spent: Spent) -> str:
    """The epsilon that counts, rounded up; a stamp instead of a number where there is one."""
    if spent.stamp:
        return spent.stamp
    return UNKNOWN if spent.epsilon is None else rounded_up(spent.epsilon, 4)


def delta(spent: Spent) -> str:
    return UNKNOWN if spent.delta is None else tick(spent.delta)


def accuracy(run: Kept) -> str:
    """The run's result: what the last reading says, and never an older figure."""
    if run.last is None:
        return NOTHING
    if run.accuracy is None and run.last.error is not None:
        return f"error {run.last.error:.4g} (root mean square)"
    if run.accuracy is None:
        return f"not a number at the {'end' if run.finished else 'last reading'} (step {run.last.step})"
    return f"{run.accuracy:.2%}".replace("%", " %")


def unit(run: Kept) -> str:
    """Whose privacy: from the statement, or from the ledger."""
    book = run.ledger.value
    recorded = book.history.unit[0] if book is not None and book.history.unit else ""
    said = text((run.statement.value or {}).get("unit")) or recorded
    return f"one {said}" if said else UNKNOWN


def adjacency(run: Kept) -> str:
    book = run.ledger.value
    recorded = book.history.adjacency.replace("-", " ") + " one unit" if book is not None else ""
    return text((run.statement.value or {}).get("adjacency")) or recorded or UNKNOWN


def sampling(run: Kept) -> str:
    """How units are drawn; a ledger's pairs are those of Poisson sampling."""
    said = text((run.statement.value or {}).get("sampling"))
    if said or run.ledger.value is None:
        return said or UNKNOWN
    steps = run.ledger.value.history.steps()
    rates = sorted({cost[0] for cost in steps if isinstance(cost, tuple)})
    found = ["Poisson sampling at rate " + ", ".join(f"{rate:g}" for rate in rates)] if rates else []
    found += dict.fromkeys(cost_words(cost) for cost in steps if not isinstance(cost, tuple))
    return "; ".join(found) or UNKNOWN


def state(run: Kept) -> str:
    """How far a run has come."""
    if run.empty:
        return "empty folder"
    if run.finished:
        return "finished"
    return (
        f"not finished: last reading at step {run.last.step}" if run.last else "not finished: no reading yet"
    )


def sentences(facts: Mapping[str, Any]) -> list[str]:
    """The technical statement in sentences; that of another version as a list of its facts."""
    try:
        return Statement(**facts).technical()
    except (TypeError, ValueError, AttributeError, ArithmeticError):
        return [f"{name}: {_fact(value)}" for name, value in facts.items()]


def plain(facts: Mapping[str, Any]) -> list[str]:
    """The statement for readers who are not specialists; empty where an older or another version wrote it."""
    try:
        return Statement(**facts).plain()
    except (TypeError, ValueError, AttributeError, ArithmeticError):
        return []


def guesses(run: Kept) -> str:
    """The share of right guesses about one unit; nothing where the statement has none from a trade-off curve."""
    found = number((run.statement.value or {}).get("membership_accuracy"))
    if run.spent.stamp or found is None or not (run.statement.value or {}).get("risk_source"):
        return NOTHING
    if correction(run):
        return UNKNOWN  # more was spent than this limit is for
    said = rounded_up(100 * found)
    return "no limit" if float(said) >= 100 else f"at most {said} %"


def _fact(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "; ".join(_fact(each) for each in value) or "none"
    return in_words(value)


def correction(run: Kept) -> str:
    """What must be added to a statement whose run cost more than it says; nothing if it did not."""
    spent, promised = run.spent, number((run.statement.value or {}).get("epsilon"))
    if spent.stamp or spent.epsilon is None or promised is None or spent.epsilon <= promised:
        return ""
    return (
        f"The ledger has epsilon {epsilon(spent)} at delta {delta(spent)} on record, more than the statement says: "
        "steps that ran again after a crash were charged again. The larger number counts."
    )
