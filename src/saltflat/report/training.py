"""Pictures of how runs went: accuracy against epsilon, accuracy and epsilon on the way, rounds of clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from saltflat.privacy.limits import rounded_up
from saltflat.report.chart import Axis, Series, tick
from saltflat.report.draw import Picture, of_lines
from saltflat.report.folder import Kept
from saltflat.report.groups import grouped, lines
from saltflat.runs.layout import Reading

ACCURACY = Axis(label="test accuracy", percent=True)
EPSILON = Axis(label="epsilon")
BANDS = "bands: one standard error around the mean of repeats"


def accuracy_against_epsilon(runs: Sequence[Kept]) -> Picture | None:
    """The way of each run through (epsilon, accuracy); the large mark is its end, at the epsilon that counts."""
    found = lines(grouped(runs), _against)
    if not found or (len(found) == 1 and len(found[0].x) < 2):  # one point is no picture
        return None
    ends = [
        f"{s.name} {_came(runs, s)} {tick(s.end[1], percent=True)} with epsilon {rounded_up(s.end[0], 4)}"
        for s in found
        if s.end
    ]
    words = "; ".join(ends) or "no run has an accuracy at its end and an epsilon"
    title = "Test accuracy against epsilon"
    return of_lines("accuracy-epsilon", title, words, found, x=EPSILON, y=ACCURACY)


def _against(run: Kept) -> Series | None:
    taken = run.readings.value or ()
    pairs = [(r.epsilon, r.accuracy) for r in taken if r.epsilon is not None and r.accuracy is not None]
    end = None
    if run.spent.known and run.spent.epsilon is not None and run.accuracy is not None:
        end = (run.spent.epsilon, run.accuracy)
    return Series(0, "", [e for e, _ in pairs], [a for _, a in pairs], end) if pairs or end else None


def _came(runs: Sequence[Kept], series: Series) -> str:
    ended = [run.finished for run in runs if run.name == series.name]
    return "has come to" if ended == [False] else "ended at"


def accuracy_on_the_way(runs: Sequence[Kept]) -> Picture | None:
    """Test accuracy over epochs, with a line where a run changed its phase."""
    return _on_the_way(runs, "accuracy", "Test accuracy during training", ACCURACY)


def epsilon_on_the_way(runs: Sequence[Kept]) -> Picture | None:
    """Epsilon on record so far, over epochs."""
    return _on_the_way(runs, "epsilon", "Epsilon spent during training", EPSILON)


def clients_on_the_way(runs: Sequence[Kept]) -> list[Picture]:
    """What the clip did to clients' updates over rounds, where their data was declared public."""
    kinds = (
        ("update_norm", "Mean norm of clients' updates before the clip", "mean norm"),
        ("clip_factor", "Mean factor by which the clip shortens an update", "mean factor"),
        ("inconsistency", "How far clients' factors are from their mean", "mean distance"),
    )
    found = [_on_the_way(runs, what, title, Axis(label=label), clock="round") for what, title, label in kinds]
    return [picture for picture in found if picture is not None]


def _on_the_way(runs: Sequence[Kept], what: str, title: str, axis: Axis, clock: str = "") -> Picture | None:
    taken = [each for run in runs for each in run.readings.value or ()]
    whole = bool(taken) and all(each.epoch is not None for each in taken)
    ticks = "step" if clock or not whole else "epoch"
    found = lines(grouped(runs), partial(_curve, what, ticks))
    if not any(len(series.x) > 1 for series in found):  # a single reading is no way
        return None
    number = partial(tick, percent=True) if axis.percent else partial(rounded_up, digits=4)
    cut = {run.name for run in runs if run.last and getattr(run.last, what) is None}
    words = "; ".join(
        f"{s.name}: from {number(s.y[0])} to {number(s.y[-1])}, {clock or ticks} {s.x[-1]:.4g}"
        + (", then not a number" if s.name in cut else "")
        for s in found
    )
    if any(s.error is not None for s in found):
        words += f"; {BANDS}"
    return of_lines(
        f"{what.replace('_', '-')}-training", title, words, found, x=Axis(label=clock or ticks), y=axis
    )


def _curve(what: str, clock: str, run: Kept) -> Series | None:
    """One figure of a run over epochs or steps; a line that ends before the run does has no more numbers."""
    readings = [each for each in run.readings.value or () if getattr(each, what) is not None]
    if not readings:
        return None
    at = [float(getattr(each, clock)) for each in readings]
    return Series(0, "", at, [getattr(each, what) for each in readings], at=_changes(run, readings, clock))


def _changes(run: Kept, readings: Sequence[Reading], clock: str) -> tuple[tuple[float, str], ...]:
    """Where the phase of a run changed, and to which method."""
    methods = run.setting("method").split(", then ")
    found = []
    for one, two in pairwise(readings):
        if one.phase is not None and two.phase is not None and one.phase != two.phase:
            known = max(one.phase, two.phase) < len(methods)
            names = (methods[one.phase], methods[two.phase]) if known else (f"{one.phase}", f"{two.phase}")
            said = f"phase {two.phase + 1}: {names[0]} → {names[1]}"
            found.append((float(getattr(two, clock)), said))
    return tuple(found)
