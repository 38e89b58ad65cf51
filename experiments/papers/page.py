"""The page and the list of rows, from declared rows and finished runs: nothing on it is written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

from papers.rows import Arm, Paper, Row

Result = dict[str, Any]
Find = Callable[[Row, Arm, int], Result | None]

TOP = """\
# The papers on their own ground

<!-- made by `python experiments/papers/run.py --write` from experiments/papers/results.jsonl; do not edit -->

Each row is a row of a paper's table, trained with the paper's own network, epochs and settings, beside controls of
ours. After reading you know which published gains show here, what causes them, and how to repeat a row:

    export SALTFLAT_DATA=...                              # the folder that holds the data sets
    python experiments/papers/run.py --list               # every row, with its expected time
    python experiments/papers/run.py --row cifar10-eps1   # one row; a killed run goes on when it is called again

A row whose arms are a single recipe is that recipe too: `saltflat train sai-cifar10-cnn-tanh-eps1`.

How to read the tables:

- **last** is the test accuracy in percent of the weights after the last step, **best** that of the best epoch. Best
  epochs are chosen on the test data, as some papers do; they are for comparison with such papers only.
- Figures are the mean over seeds ± its standard error. A figure without ± has one seed, which decides nothing.
- **epsilon** is by privacy loss distributions (PLD), then by RDP, which most papers used; both are upper bounds at the
  recipe's delta, for one example added or removed, under Poisson sampling. It is that of one run.
- **hours** are those of one processor for one run, on a machine that other processes used too.
- *Reproduced* means: at least three seeds of both arms, a difference of more than two standard errors, and the
  published difference within two standard errors of the measured one. Differences are paired by seed.
"""


class Figure(NamedTuple):
    """A mean over seeds, its standard error (None for one seed), and the number of seeds."""

    mean: float
    error: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.error is None else f" ± {self.error:.2f}")

    @property
    def signed(self) -> str:
        """With its sign, as a difference is written."""
        return f"{self.mean:+.2f}" + ("" if self.error is None else f" ± {self.error:.2f}")


def figure(values: Sequence[float]) -> Figure | None:
    """The mean of some values and its standard error; None of none.

    >>> str(figure([1.0, 2.0, 3.0])), figure([])
    ('2.00 ± 0.58', None)
    """
    if not values:
        return None
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Figure(mean(values), error, len(values))


def finder(found: Sequence[Result]) -> Find:
    """The finished run of an arm's recipe, changes and seed; whichever row asked for it."""

    def find(row: Row, arm: Arm, seed: int) -> Result | None:
        wished = {"recipe": arm.recipe, "changes": dict(arm.changes), "seed": seed}
        return next((one for one in found if wished.items() <= one["settings"].items()), None)

    return find


def difference(find: Find, row: Row, first: str, second: str) -> Figure | None:
    """What the last weights of the first arm have more than those of the second, over the seeds that both have."""
    pairs = [[find(row, row.arm(name), seed) for name in (first, second)] for seed in row.seeds]
    return figure([100 * (a["last"] - b["last"]) for a, b in pairs if a is not None and b is not None])


def listed(rows: Sequence[tuple[Row, Sequence[Arm], Sequence[int]]], found: Sequence[Result]) -> str:
    """A line for each row and each of its arms: published, measured, finished runs and the expected time of one."""
    find, lines = finder(found), []
    for row, arms, seeds in rows:
        lines.append(f"\n{row.name}: {row.title}")
        for arm in arms:
            done = [one for seed in seeds if (one := find(row, arm, seed)) is not None]
            left, took = len(seeds) - len(done), [one["cpu_seconds"] / 60 for one in done]
            minutes = mean(took) if took else row.minutes
            said = figure([100 * one["last"] for one in done])
            expected = f"{left} left, about {minutes:.0f} minutes each" if left else "finished"
            lines.append(
                f"  {arm.name:<20} published {arm.published or '-'!s:<14} measured {said or '-'!s:<14} {expected}"
            )
    return "\n".join(lines).lstrip("\n")


def page(papers: Sequence[Paper], found: Sequence[Result]) -> str:
    """The whole page."""
    find = finder(found)
    every = [
        (row, arm, seed) for paper in papers for row in paper.rows for arm in row.arms for seed in row.seeds
    ]
    ended = [one for each in every if (one := find(*each)) is not None]
    hours = sum(one["cpu_seconds"] for one in ended) / 3600
    lines = [
        TOP,
        f"{len(ended)} of {len(every)} runs are finished, in {hours:.1f} hours of one processor.",
        "",
    ]
    for paper in papers:
        lines += [f"## {paper.title}", "", *_answers(paper, find)]
        for row in paper.rows:
            lines += _section(row, find)
    lines += ["## Out of reach here", "", *OUT_OF_REACH]
    return "\n".join(lines) + "\n"


def readme(row: Row, found: Sequence[Result]) -> str:
    """What the README says of one row: the arms that have finished runs, or that there are none."""
    find = finder(found)
    known = [
        (arm, done)
        for arm in row.arms
        if (done := [one for seed in row.seeds if (one := find(row, arm, seed)) is not None])
    ]
    if not known:
        begin = f"python experiments/papers/run.py --row {row.name}"
        return f"{row.title}: no run has finished yet; `{begin}` begins one.\n"
    lines = [f"{row.title}; test accuracy of the last weights, in percent:", ""]
    lines += ["| | published | measured | epsilon | seeds |", "|---|---|---|---|---|"]
    for arm, done in known:
        last, _, epsilon, *_ = _cells(done)
        lines.append(
            f"| {arm.title} | {arm.published or '-'} | {last} | {epsilon.split(' / ')[0]} | {_of(done, row)} |"
        )
    return "\n".join(lines) + "\n\nOne seed decides nothing.\n"


def _answers(paper: Paper, find: Find) -> list[str]:
    """What the finished runs of a paper say: does it reproduce, what causes the gain, when to take it."""
    lines = ["**Does it reproduce?**", ""]
    for row in paper.rows:
        lines += [f"- {row.title}: {said}" for said in _verdicts(row, find)]
    lines += ["", "**What causes the gain?**", ""]
    for row in paper.rows:
        parts = [(words, difference(find, row, a, b)) for words, a, b in row.parts]
        known = [f"{words} {part.signed} ({_seeds(part.count)})" for words, part in parts if part is not None]
        missing = len(parts) - len(known)
        said = "; ".join(known) + (
            f"; {missing} of {len(parts)} parts not run yet" if missing and known else ""
        )
        lines.append(f"- {row.title}: {said or 'not run yet'}.")
    lines += ["", "**When should a user take it?**", ""]
    lines += [f"- {row.title}: {_advice(row, find)}" for row in paper.rows]
    return [*lines, ""]


def _verdicts(row: Row, find: Find) -> list[str]:
    """A sentence for each published gain of a row."""
    base = row.arm(row.baseline or row.arms[0].name)
    said = []
    for arm in row.arms:
        if arm is base or arm.published is None or base.published is None:
            continue
        gain = difference(find, row, arm.name, base.name)
        published = arm.published.accuracy - base.published.accuracy
        said.append(f"{arm.title}: {verdict(gain, published, same_network=row.same_network)}")
    return said


def verdict(gain: Figure | None, published: float, *, same_network: bool) -> str:
    """Whether a measured gain is the published one, in words.

    >>> verdict(Figure(6.0, 0.5, 3), 6.55, same_network=True)
    'reproduced: +6.00 ± 0.50 over DP-SGD (3 seeds), published +6.55.'
    >>> verdict(Figure(6.0, None, 1), 6.55, same_network=True)
    'not decided: +6.00 over DP-SGD (1 seed), published +6.55.'
    """
    told = f"published {published:+.2f}" + ("" if same_network else " with another network")
    if gain is None:
        return f"not run yet ({told})."
    words = f"{gain.signed} over DP-SGD ({_seeds(gain.count)}), {told}."
    if gain.error is None or gain.count < 3:
        return f"not decided: {words}"
    if abs(gain.mean) <= 2 * gain.error:
        return f"no difference of two standard errors: {words}"
    shown = "a gain shows" if gain.mean > 0 else "it loses"
    if not same_network:
        return f"{shown}: {words}"
    close = abs(gain.mean - published) <= 2 * gain.error
    return f"reproduced: {words}" if close else f"{shown}, and not the published difference: {words}"


def _advice(row: Row, find: Find) -> str:
    """Which arm has the best last weights, once every arm has three seeds; the test set chose it, as it must."""
    scores = {}
    for arm in row.arms:
        done = [one for seed in row.seeds if (one := find(row, arm, seed)) is not None]
        known = figure([100 * one["last"] for one in done])
        if known is not None and known.count >= 3:
            scores[arm.name] = known
    if len(scores) < len(row.arms):
        return f"not decided: {len(scores)} of {len(row.arms)} arms have three seeds."
    best = max(scores, key=lambda name: scores[name].mean)
    gain = difference(find, row, best, row.arms[0].name)
    if best == row.arms[0].name or gain is None:
        return f"never here: {row.arms[0].title} has the best last weights, {scores[best]}."
    return f"{row.arm(best).title} has the best last weights, {scores[best]}: {gain.signed} over {row.arms[0].title}."


def _section(row: Row, find: Find) -> list[str]:
    """The table of a row."""
    published = "published" if row.same_network else "published, other network"
    headings = ("arm", published, "last", "best", "epsilon", "noise", "hours", "seeds")
    lines = [f"### {row.title}", "", f"`--row {row.name}`. Published: {row.source}.", ""]
    lines += [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    ended = 0
    for arm in row.arms:
        done = [one for seed in row.seeds if (one := find(row, arm, seed)) is not None]
        ended += len(done)
        lines.append(
            f"| {' | '.join((arm.title, str(arm.published or '-'), *_cells(done), _of(done, row)))} |"
        )
    return [*lines, "", f"{ended} of {len(row.arms) * len(row.seeds)} runs are finished.", ""]


def _of(done: Sequence[Result], row: Row) -> str:
    return f"{len(done)} of {len(row.seeds)}"


def _cells(done: Sequence[Result]) -> tuple[str, ...]:
    """What is measured of one arm."""
    if not done:
        return ("not run yet", "-", "-", "-", "-")
    last, best = figure([100 * one["last"] for one in done]), figure([100 * one["best"] for one in done])
    return (
        str(last),
        str(best),
        f"{max(one['epsilon_pld'] for one in done):.2f} / {max(one['epsilon_rdp'] for one in done):.2f}",
        ", then ".join(f"{noise:.2f}" for noise in done[0]["noise_multipliers"]),
        f"{mean(one['cpu_seconds'] for one in done) / 3600:.2f}",
    )


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


OUT_OF_REACH = (
    "Hours of one run on two cores, derived from the time of an epoch: DPNAS on CIFAR-10 5.5, GNResNet-10 9.4,",
    "WRN-16-4 with 16 augmentations about 100. There is no data here for CIFAR-100, SVHN, EMNIST and faces. Rows on",
    "federated training (DP-FedSAM) and on weight multiplicity with real public images are not declared yet.",
)
