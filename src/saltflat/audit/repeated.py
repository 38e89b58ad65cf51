"""The canary audit: a plan run many times with and without one unit, by an adversary who sees every update."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from saltflat import Plan, Safeguards
from saltflat.audit.game import Done, Watch, checked, play, stamp_of
from saltflat.audit.rates import Errors, Worlds, advantage, best_threshold
from saltflat.audit.result import CERTAIN, CONFIDENCE, Audited, Bound, Claim, Control
from saltflat.errors import AccountingError, SettingError

NULL = 0.5  # the most that may be shown where there is nothing to see
_SLACK = 1e-5  # below such an epsilon nobody can be told from anybody; see `_contradicted`
_SCALES = (2.0**-4, 2.0**4)  # noise that is looked for, relative to the plan's, to a part in a thousand

ABOUT = (
    "One canary in made-up data: a unit whose gradient points the same way in every step, longer than the clip norm, "
    "and nobody else with a gradient. The adversary saw the weights after every step and knew everything but whether "
    "the canary was there. Nothing was counted on any ledger.",
    "Thresholds were chosen on one half of the runs, and the bounds are from the other half. By counts: nothing is "
    "assumed but that runs are independent. By noise level: the epsilon of the same plan with the most noise that "
    "could explain so few errors; above the claim it contradicts the plan's own curve of (epsilon, delta), below it "
    "assumes that nothing but the noise is in doubt.",
)


def canary(
    plan: Plan,
    delta: float,
    *,
    runs: int = 2000,
    together: int = 100,
    control_runs: int | None = None,
    safeguards: Safeguards | None = None,
    watch: Watch = lambda done: None,
) -> Audited:
    """Run ``plan`` 2 x ``runs`` times, with and without a canary, and bound epsilon from below by telling them apart.

        epsilon >= max(log((1 - delta - b) / a), log((1 - delta - a) / b))

    a and b are upper ends (Clopper-Pearson) of the rates of false positives and false negatives. A second bound is the
    `level_epsilon` of the same runs, far tighter, but below the claim only if nothing but the noise is in doubt.

    ``together`` runs share one training, each with a canary and a coordinate of its own: they are as independent as
    the library's noise and its sampling are, and nearly a hundred times cheaper; 1 gives each run its own training.
    Where a method ties all units together (`Quantile`, whose clip norm follows them all), take 1.
    ``control_runs`` (as many as ``runs`` unless given; 0: none) is how often each control is run in each world: the
    plan at half its noise, which must be refuted, and with no canary anywhere, where at most `NULL` may be shown.

    *May be taken for*: see `saltflat.audit.MEANING`. What is played is the worst case of the analysis, so the
    bound of a correct plan comes close to its epsilon; it is called refuted once in ten thousand audits.

    >>> import numpy as np, saltflat as sf
    >>> phase = sf.Phase(
    ...     method=sf.methods.DPSGD(), steps=4, noise_multiplier=2.0, clip_norm=1.0, optimizer=sf.optimizers.SGD(lr=1)
    ... )
    >>> plan = sf.Plan(phases=(phase,), rate=1.0, size=100)
    >>> repeatable = sf.Safeguards(noise=sf.privacy.SeededNoise(0), sampling=np.random.default_rng(0))
    >>> audited = canary(plan, 1e-5, runs=400, safeguards=repeatable)
    >>> audited.refuted, audited.lower > 1.5, audited.failed
    (False, True, ())

    Nasr et al., "Adversary Instantiation: Lower Bounds for Differentially Private Machine Learning", S&P 2021; "Tight
    Auditing of Differentially Private Machine Learning", USENIX Security 2023.
    """
    began, claim = time.monotonic(), Claim(epsilon=plan.epsilon(delta), delta=delta)
    many = runs if control_runs is None else control_runs
    for name, number, least in (("runs", runs, 2), ("together", together, 1), ("control_runs", many, 0)):
        if not (isinstance(number, int) and number >= least):
            raise SettingError(f"{name} is a whole number of at least {least}; got {number}")
    table = _Table(plan, claim, together, checked(safeguards), watch)
    found = table.judged("the claim", plan, runs)
    controls: tuple[Control, ...] = ()
    if many:
        half = table.judged("half noise", plan.scaled(0.5), many)
        null = table.judged("no canary", plan, many, canaries=False)
        controls = (above(claim, half.bounds, "half noise"), at_most(NULL, null.bounds, "no canary"))
    return Audited(
        kind="canary",
        claim=claim,
        bounds=found.bounds,
        counts={
            "runs": 2 * runs,
            **found.counts,
            "in one training": together,
            "runs of each control": 2 * many,
        },
        controls=controls,
        seconds=time.monotonic() - began,
        about=ABOUT,
        stamp=stamp_of(table.safeguards),
    )


class _Judged(NamedTuple):
    bounds: tuple[Bound, Bound]
    counts: dict[str, int]


@dataclass(frozen=True)
class _Table:
    """Where the game is played: what is claimed, and with what."""

    plan: Plan
    claim: Claim
    together: int
    safeguards: Safeguards
    watch: Watch

    def judged(self, part: str, played: Plan, runs: int, *, canaries: bool = True) -> _Judged:
        """The bounds that ``runs`` runs in each world give; without ``canaries`` both worlds are the same."""
        worlds = self._worlds(part, played, runs, canaries=canaries)
        choosing, judging = worlds.halves()
        counted = judging.errors(best_threshold(choosing, lambda e: e.epsilon(self.claim.delta, CONFIDENCE)))
        level = judging.errors(best_threshold(choosing, lambda e: -e.wrong(0.5)))
        by_counts = lambda confidence: float(counted.epsilon(self.claim.delta, confidence))
        by_noise = lambda confidence: level_epsilon(self.plan, level, self.claim.delta, confidence)
        told = {
            "judged in each world": judging.without.size,
            "false positives": int(counted.false_positives),
            "false negatives": int(counted.false_negatives),
            "wrong at even odds": int(level.false_positives + level.false_negatives),
        }
        return _Judged((_bound("counts", by_counts), _bound("noise level", by_noise)), told)

    def _worlds(self, part: str, played: Plan, runs: int, *, canaries: bool) -> Worlds:
        """Every second run has the canary."""
        labels, scores = np.arange(2 * runs) % 2 == 1, []
        for first in range(0, len(labels), self.together):
            inside = labels[first : first + self.together] & canaries
            scores.append(play(played, inside, claimed=self.plan, safeguards=self.safeguards))
            self.watch(Done(part, min(first + self.together, len(labels)), len(labels)))
        every = np.concatenate(scores)
        return Worlds(every[~labels], every[labels])


def _bound(by: str, at: Callable[[float], float]) -> Bound:
    """The reported bound and the one for the verdict, which must hold for both estimators together."""
    return Bound(by=by, epsilon=at(CONFIDENCE), certain=at(1 - (1 - CERTAIN) / 2))


def level_epsilon(plan: Plan, errors: Errors, delta: float, confidence: float) -> float:
    """Epsilon at ``delta`` of the same plan with the most noise that could explain so few errors.

        the largest s such that plan.scaled(s) permits 1 - a - b;   without sampling: mu = 2 Phi^-1(1 - (a + b) / 2)

    *Guarantee*: above ``plan.epsilon(delta)`` only if the plan itself, at its own noise, claims a smaller total
    variation than was seen: that refutes it, whatever else is assumed. Below, it is an estimate of what this adversary
    sees for plans whose noise alone is in doubt; for every step on all units it is the Gaussian-DP bound.

    Dong, Roth and Su, "Gaussian Differential Privacy", 2022.
    """
    seen = advantage(errors, confidence) - 2 * _SLACK
    if seen <= 0:
        return 0.0
    low, high = _SCALES
    if not _contradicted(plan.scaled(high), seen):
        return 0.0
    for _ in range(12):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _contradicted(plan.scaled(middle), seen) else (middle, high)
    return plan.scaled(high).epsilon(delta)


def _contradicted(plan: Plan, seen: float) -> bool:
    """Whether the plan claims that two neighbours can hardly be told apart by more than ``seen``.

    (e, d)-DP permits an advantage of d + e^e - 1 at most: with d = seen - 2 e it is less than what was seen.
    """
    try:
        return plan.epsilon(seen) <= _SLACK
    except AccountingError:  # no claim, no contradiction
        return False


def above(claim: Claim, bounds: tuple[Bound, ...], name: str) -> Control:
    """A planted mistake, which must be refuted by the same rule as a real one."""
    came = max(bound.certain for bound in bounds)
    must = f"come out above the claim, {claim.epsilon:.2f}"
    return Control(name=name, must=must, came=came, passed=came > claim.epsilon)


def at_most(most: float, bounds: tuple[Bound, ...], name: str) -> Control:
    """Nothing to see, where next to nothing may be seen."""
    came = max(bound.epsilon for bound in bounds)
    return Control(name=name, must=f"come out at {most:g} or below", came=came, passed=came <= most)
