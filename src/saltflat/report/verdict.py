"""The first screen: which run is better, how sure that is, what each and all of them cost, and which is flatter.

A run, or the repeats of a recipe, is called better or flatter only if every test that can be made tells it from the
other at 5 %; where several are compared with the best, p-values are multiplied by their number, and intervals hold
all at once (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from saltflat.privacy.limits import rounded_up
from saltflat.report import words
from saltflat.report.chart import rounded
from saltflat.report.folder import Kept, without_path
from saltflat.report.groups import Group, grouped
from saltflat.report.joint import data_of, joint
from saltflat.report.sure import LEVEL, Gap, mean_interval, paired, welch, wilson
from saltflat.runs.measures import differing

FLATNESS = (("lambda_max", "largest eigenvalue"), ("sharpness", "sharpness"))
DOUBT = 1 - LEVEL
ALIKE = 1.01  # epsilons that differ by less come of rounding in a plan, and accuracies at them compare


@dataclass(frozen=True)
class Verdict:
    """Answers about the runs on one data set; ``lead`` is all of it in one line."""

    data: str
    lead: str
    better: str
    sure: str
    each: str
    together: str
    flatter: str

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """Question and answer."""
        return (
            ("Better", self.better),
            ("How sure", self.sure),
            ("Epsilon of each", self.each),
            ("All together", self.together),
            ("Flatter", self.flatter),
        )


@dataclass(frozen=True)
class Compared:
    """The best group against another: every test that can be made."""

    best: Group
    other: Group
    gaps: tuple[Gap, ...]
    times: int  # comparisons with the best

    @property
    def value(self) -> float:
        return (self.best.accuracy or 0.0) - (self.other.accuracy or 0.0)

    @property
    def shown(self) -> bool:
        """Whether every test tells them apart."""
        return bool(self.gaps) and all(gap.p * self.times < DOUBT for gap in self.gaps)

    def as_text(self) -> str:
        """The gap, its interval and its tests."""
        said = f"{self.best.name} {_points(self.value)} against {self.other.name}"
        if not self.gaps:
            return f"{said}; no test can be made: no evaluation.json of the same test examples, nor repeats of both"
        tests = []
        for gap in self.gaps:
            p = min(1.0, gap.p * self.times)
            more = f", for {self.times} comparisons at once" if self.times > 1 else ""
            low = _points(gap.low).removesuffix(" points")
            interval = f"{100 * LEVEL:.0f} % interval {low} to {_points(gap.high)}"
            tests.append(f"{interval}, p = {p:.2g} ({gap.how}{more})")
        return f"{said}; {'; '.join(tests)}"


def _points(value: float) -> str:
    """A difference of shares, in points of a per cent.

    >>> _points(0.0213), _points(-0.004)
    ('+2.1 points', '−0.4 points')
    """
    return f"{100 * value:+.1f} points".replace("-", "−")


def verdicts(runs: Sequence[Kept]) -> list[Verdict]:
    """One for each data set, that with most runs first."""
    groups = grouped(runs)
    by_data: dict[str, list[Group]] = {}
    for group in groups:
        if not group.runs[0].empty:
            by_data.setdefault(data_of(group.runs[0]), []).append(group)
    order = sorted(by_data.items(), key=lambda each: -sum(len(group.runs) for group in each[1]))
    return [_verdict(data, them) for data, them in order]


def _verdict(data: str, groups: Sequence[Group]) -> Verdict:
    found = compared(groups)
    flat = flatter(groups)
    each, same = _each(groups)
    runs = [run for group in groups for run in group.runs]
    lead = [same, _accuracies(groups, found), flat.lead]
    return Verdict(
        data=without_path(data),
        lead="; ".join(filter(None, lead)),
        better=_better(groups, found),
        sure=_sure(groups, found),
        each=each,
        together=_together(runs),
        flatter=flat.words,
    )


def compared(groups: Sequence[Group]) -> list[Compared]:
    """The group with the best mean accuracy against each other one that has a result."""
    there = sorted((g for g in groups if g.accuracy is not None), key=lambda g: -(g.accuracy or 0.0))
    times = len(there) - 1
    return [Compared(there[0], other, tuple(_gaps(there[0], other, times)), times) for other in there[1:]]


def _gaps(best: Group, other: Group, times: int) -> list[Gap]:
    """On the same test examples, if both were judged on the same ones; over repeats, if both have some."""
    found, level = [], 1 - DOUBT / times
    if best.tested and best.tested == other.tested:
        one, two = best.bits, other.bits
        if {len(bits) for bits in (*one, *two)} == {len(one[0])}:
            found.append(paired(one, two, level=level))
    spread = welch(best.accuracies, other.accuracies, level=level)
    return [*found, spread] if spread is not None else found


def _accuracies(groups: Sequence[Group], found: Sequence[Compared]) -> str:
    if not found:
        return ""
    shown = [each for each in found if each.shown]
    if not any(each.gaps for each in found):
        return "accuracies not tested"
    if not shown:
        return "accuracies within error"
    if len(found) == 1:
        return f"{found[0].best.name} {_points(found[0].value)}"
    return f"{found[0].best.name} ahead of {len(shown)} of {len(found)}"


def _better(groups: Sequence[Group], found: Sequence[Compared]) -> str:
    """Who is ahead, and whether that is shown."""
    there = [group for group in groups if group.accuracy is not None]
    if not there:
        errors = [words.accuracy(group.runs[0]) for group in groups]
        return "No test accuracy: " + "; ".join(
            f"{group.name} {said}" for group, said in zip(groups[:4], errors, strict=False)
        )
    if not found:
        only = there[0]
        return f"{only.name}: {accuracy(only)}; nothing to compare it with."
    best = found[0].best
    shown = [each for each in found if each.shown]
    if len(found) == 1:
        both = f"{best.name} {accuracy(best)}, {found[0].other.name} {accuracy(found[0].other)}"
        return f"{best.name}: {both}." if shown else f"Neither is shown to be: {both}."
    within = [each.other.name for each in found if not each.shown]
    said = f"{best.name} is ahead with {accuracy(best)}"
    if not within:
        return f"{said}, and shown to be better than all {len(found)} others."
    listed = ", ".join(within[:3]) + (f" and {len(within) - 3} more" if len(within) > 3 else "")
    return f"{said}; not shown to be better than {listed}."


def accuracy(group: Group) -> str:
    """The mean, with its standard error over repeats, or the interval of test sampling."""
    if group.accuracy is None:
        return words.accuracy(group.runs[0])
    said = f"{100 * group.accuracy:.1f} %"
    if group.error is not None:
        return f"{said} ± {100 * group.error:.1f}"
    return said


def interval(run: Kept) -> tuple[float, float] | None:
    """That of a run's accuracy by test sampling; None if it did not keep on how many examples it was tested."""
    told, right = run.evaluation.value, run.accuracy
    if told is None or right is None or abs(told.hits / told.count - right) > 1e-9:
        return None
    return wilson(told.hits, told.count)


def _sure(groups: Sequence[Group], found: Sequence[Compared]) -> str:
    if found:
        nearest = min(found, key=lambda each: each.value)
        return f"{nearest.as_text()}. {_limits(groups)}"
    there = [group for group in groups if group.accuracy is not None]
    if not there:
        return "Nothing was tested."
    ends = interval(there[0].ended[0])
    over = mean_interval(there[0].accuracies)
    if over is not None:
        count = len(there[0].ended)
        return f"{span(over)} ({100 * LEVEL:.0f} % interval over {count} repeats; ± is one standard error)."
    if ends is None:
        return "Unknown: the run did not keep on how many examples it was tested (evaluation.json)."
    count = there[0].ended[0].evaluation.value.count  # type: ignore[union-attr]
    return f"{span(ends)} ({100 * LEVEL:.0f} % interval, {count:,} test examples). {_limits(groups)}"


def span(ends: tuple[float, float]) -> str:
    """An interval of shares.

    >>> span((0.8994, 0.9525))
    '89.9 to 95.2 %'
    """
    return f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f} %"


def _limits(groups: Sequence[Group]) -> str:
    """What these numbers cannot say."""
    single = [group for group in groups if group.accuracy is not None and len(group.ended) < 2]
    if not single:
        return ""
    if len(single) == 1:
        return "One single run: another one would move it; see --repeats."
    return "Single runs: this is about these models, and decides little about their methods; see --repeats."


def _each(groups: Sequence[Group]) -> tuple[str, str]:
    """The epsilon of each run, and the lead's word on it."""
    runs = [run for group in groups for run in group.runs]
    spent = {(words.epsilon(run.spent), words.delta(run.spent)) for run in runs}
    kinds = {(words.unit(run), words.adjacency(run)) for run in runs}
    of_whom = "; ".join(f"unit: {unit}, {adjacency}" for unit, adjacency in sorted(kinds))
    if len(spent) == 1:
        epsilon, delta = spent.pop()
        same = (
            f", the same for all {len(runs)}"
            if len(runs) > 2
            else ", the same for both"
            if len(runs) > 1
            else ""
        )
        return f"{epsilon} at delta {delta}{same}; {of_whom}.", "same epsilon" if len(runs) > 1 else ""
    values = sorted(run.spent.epsilon for run in runs if run.spent.known and run.spent.epsilon is not None)
    if (
        len(values) == len(runs)
        and len({delta for _, delta in spent}) == 1
        and values[-1] < ALIKE * values[0]
    ):
        ends = f"{rounded_up(values[0], 4)} to {rounded_up(values[-1], 4)} at delta {spent.pop()[1]}"
        return f"{ends}, less than 1 % apart; {of_whom}.", "epsilons within 1 %"
    deltas = {delta for _, delta in spent}
    at = f" at delta {deltas.pop()}" if len(deltas) == 1 else ", at deltas that differ"
    if len(spent) <= 3:
        listed = "; ".join(f"{g.name} {words.epsilon(g.runs[0].spent)}" for g in groups[:3])
        return f"{listed}{at}; {of_whom}. Accuracies at other epsilons do not compare.", "epsilons differ"
    ends = f"{rounded_up(values[0], 4)} to {rounded_up(values[-1], 4)}" if values else words.UNKNOWN
    return f"{ends}{at}; {of_whom}. Accuracies at other epsilons do not compare.", "epsilons differ"


def _together(runs: Sequence[Kept]) -> str:
    found = joint(runs)
    if not found:
        return "One run: what it costs by itself. Other runs on this data add to it."
    said = found[0].short
    return f"{said[0].upper()}{said[1:]}; as if all were planned before any result was seen."


@dataclass(frozen=True)
class Flat:
    """Which group is flatter, in words and in the lead, and which ones are spoken of."""

    words: str
    lead: str = ""
    of: tuple[Group, ...] = ()


def flatter(groups: Sequence[Group]) -> Flat:
    """Largest eigenvalue and sharpness of the flattest against the next, with errors."""
    measured = [group for group in groups if group.measure("lambda_max") or group.measure("sharpness")]
    if not measured:
        near = [run.near for group in groups[:3] for run in group.runs[:1] if run.pate.missing]
        how = (
            f"saltflat landscape {' '.join(near)} does it"
            if near
            else "there is no landscape of a student of PATE"
        )
        return Flat(f"Not measured; {how}.")
    if len(measured) == 1:
        said = [_value(measured[0], key, name) for key, name in FLATNESS]
        return Flat(f"{measured[0].name}: {', '.join(filter(None, said))}. Nothing to compare it with.")
    taken = [run.shapes.measures.value for group in measured for run in group.runs]
    unlike = differing([each for each in taken if each])
    if unlike:
        return Flat(f"Not comparable: measured with other {', '.join(unlike)}.")
    parts = [part for key, name in FLATNESS if (part := _lower(measured, key, name))]
    named = [g for g in measured if any(g in part.of for part in parts)]
    loss = ", ".join(f"{g.name} {rounded(m[0])}" for g in named if (m := g.measure("loss")))
    told = ". ".join(part.words for part in parts)
    return Flat(f"{told}. Loss: {loss}." if loss else f"{told}.", ", ".join(part.lead for part in parts))


def _value(group: Group, key: str, name: str) -> str:
    found = group.measure(key)
    return "" if found is None else f"{name} {with_error(found)}"


def with_error(found: tuple[float, float | None]) -> str:
    value, error = found
    return rounded(value) + (f" ± {rounded(error, 2)}" if error is not None and math.isfinite(error) else "")


def _lower(groups: Sequence[Group], key: str, name: str) -> Flat | None:
    """The lowest against the highest: by how much, and whether that is more than the errors; names stay as they are."""
    found = [(m, g) for g in groups if (m := g.measure(key)) is not None]
    there = sorted(found, key=lambda each: each[0][0])
    if len(there) < 2:
        return None
    (low, flat), (high, other) = there[0], there[-1]
    share = f"{100 * (high[0] - low[0]) / abs(high[0]):.0f} %" if high[0] else "0 %"
    title = name[0].upper() + name[1:]
    values = f"{with_error(low)} against {with_error(high)} of {other.name}"
    values += f", lowest and highest of {len(there)}" if len(there) > 2 else ""
    sure, both = _apart(flat, other, key, low, high), (flat, other)
    if sure is None:
        lead = f"{name} {share} lower, errors unknown"
        return Flat(f"{title}: {flat.name} {share} lower, {values} (errors unknown)", lead, both)
    if not sure:
        return Flat(f"{title}: within error, {flat.name} {values}", f"{name} within error", both)
    return Flat(f"{title}: {flat.name} {share} lower, {values}", f"{flat.name}'s {name} {share} lower", both)


def _apart(
    flat: Group, other: Group, key: str, low: tuple[float, float | None], high: tuple[float, float | None]
) -> bool | None:
    """Whether two values differ by more than their errors at 5 %: Welch over repeats, else by their own errors."""
    spread = welch(flat.measured(key), other.measured(key))
    if spread is not None:
        return spread.shown
    if low[1] is None or high[1] is None:
        return None
    return abs(high[0] - low[0]) > 1.96 * math.hypot(low[1], high[1])
