"""Pictures of how runs went: accuracy against epsilon, accuracy and epsilon on the way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from saltflat.privacy.limits import rounded_up
from saltflat.report.chart import Axis, Series, chart, tick
from saltflat.report.draw import Picture
from saltflat.report.folder import Kept
from saltflat.runs.layout import Reading

ACCURACY = Axis(label="test accuracy", percent=True)
EPSILON = Axis(label="epsilon")


def accuracy_against_epsilon(runs: Sequence[Kept]) -> Picture | None:
    """The way of each run through (epsilon, accuracy); the large mark is its end, at the epsilon that counts."""
    series = []
    for place, run in enumerate(runs):
        pairs = [
            (r.epsilon, r.accuracy) for r in run.readings.value or () if None not in (r.epsilon, r.accuracy)
        ]
        end = (run.spent.epsilon, run.accuracy) if run.spent.known and run.accuracy is not None else None
        if pairs or end:
            series.append(Series(place, run.name, [e for e, _ in pairs], [a for _, a in pairs], end))  # type: ignore[arg-type]
    if not series:
        return None
    ends = [
        f"{s.name} {'ended at' if runs[s.place].finished else 'has come to'} "
        f"{tick(s.end[1], percent=True)} with epsilon {rounded_up(s.end[0], 4)}"
        for s in series
        if s.end
    ]
    return Picture(
        "accuracy-epsilon",
        "Test accuracy against epsilon",
        "; ".join(ends) or "no run has an accuracy at its end and an epsilon",
        lambda look: chart(look, series, x=EPSILON, y=ACCURACY),
    )


def accuracy_on_the_way(runs: Sequence[Kept]) -> Picture | None:
    """Test accuracy over epochs, with a line where a run changed its phase."""
    return _on_the_way(runs, "accuracy", "Test accuracy during training", ACCURACY)


def epsilon_on_the_way(runs: Sequence[Kept]) -> Picture | None:
    """Epsilon on record so far, over epochs."""
    return _on_the_way(runs, "epsilon", "Epsilon spent during training", EPSILON)


def _on_the_way(runs: Sequence[Kept], what: str, title: str, axis: Axis) -> Picture | None:
    taken = [each for run in runs for each in run.readings.value or ()]
    clock = "epoch" if taken and all(each.epoch is not None for each in taken) else "step"
    series = []
    for place, run in enumerate(runs):
        readings = [each for each in run.readings.value or () if getattr(each, what) is not None]
        if readings:
            at = [float(getattr(each, clock)) for each in readings]
            values = [getattr(each, what) for each in readings]
            series.append(Series(place, run.name, at, values, at=_changes(readings, clock)))
    if not series:
        return None
    number = partial(tick, percent=True) if axis.percent else partial(rounded_up, digits=4)
    words = "; ".join(
        f"{s.name}: from {number(s.y[0])} to {number(s.y[-1])}, {clock} {s.x[-1]:.4g}{_after(runs[s.place], what)}"
        for s in series
    )
    return Picture(
        f"{what}-training", title, words, lambda look: chart(look, series, x=Axis(label=clock), y=axis)
    )


def _after(run: Kept, what: str) -> str:
    """A word where the line ends before the run does."""
    return ", then not a number" if run.last and getattr(run.last, what) is None else ""


def _changes(readings: Sequence[Reading], clock: str) -> tuple[float, ...]:
    """Where the phase of a run changed."""
    pairs = pairwise(readings)
    return tuple(getattr(b, clock) for a, b in pairs if None not in (a.phase, b.phase) and a.phase != b.phase)
