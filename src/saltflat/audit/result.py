"""What an audit found, and the words that say what it may and may not be taken for. Nothing here needs torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from saltflat.errors import SettingError
from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record.statement import Statement

CONFIDENCE = 0.95  # of the bounds that are reported
CERTAIN = 1 - 1e-4  # of a verdict: of ten thousand honest runs one is called refuted

OF_PUBLIC = "The examples are public."

REFUTED, IN_DOUBT, SURVIVES = "refuted", "in doubt", "survives"
VERDICTS = {
    REFUTED: "CLAIM REFUTED: the run leaks more than it claims. Do not rely on this epsilon.",
    IN_DOUBT: "The claim is in doubt: a bound is above it, but not beyond doubt. Audit again with more runs.",
    SURVIVES: "The claim survives: this adversary could not show that the run costs more than it says.",
}
MEANING = (
    "A lower bound below epsilon does not prove privacy: it is what this adversary could show with so many runs. "
    "A lower bound above epsilon disproves the claim, up to the stated confidence.",
    "Controls plant mistakes that the audit must see, and take away what it must not see. What passes them would have "
    "been caught in these mistakes; others it may miss.",
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is under test: an upper bound on epsilon, and for whom it is claimed.

    ``advantage`` is what the run claims of the membership advantage; 1: no more than follows from epsilon and delta.

    >>> Claim(epsilon=4.3772, delta=1e-5).as_text()
    'epsilon 4.38 at delta 1e-05; unit: one example; adjacency: add or remove one unit'
    """

    epsilon: float
    delta: float
    unit: str = "example"
    adjacency: str = "add or remove one unit"
    advantage: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.epsilon < math.inf and 0 < self.delta < 1):
            raise SettingError(
                f"a claim is a finite epsilon at a delta between 0 and 1; got {self.epsilon} at {self.delta}"
            )
        if not 0 <= self.advantage <= 1:
            raise SettingError(f"the advantage of a claim lies between 0 and 1; got {self.advantage}")

    @classmethod
    def of(cls, statement: Statement) -> Claim:
        """What a run's privacy statement claims."""
        return cls(
            epsilon=statement.epsilon,
            delta=statement.delta,
            unit=statement.unit,
            adjacency=statement.adjacency,
            advantage=statement.membership_advantage,
        )

    def as_text(self) -> str:
        return (
            f"epsilon {rounded_up(self.epsilon)} at delta {self.delta:g}; unit: one {self.unit}; adjacency: "
            f"{self.adjacency}"
        )


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on epsilon: ``epsilon`` at ``confidence``, and ``certain``, beyond doubt, at ``certainty``.

    ``by`` says how it was found.

    >>> print(Bound(by="counts", epsilon=2.347, certain=1.9).as_text())
    by counts: epsilon is at least 2.34 (confidence 95 %), at least 1.90 (99.99 %)
    """

    by: str
    epsilon: float
    certain: float
    confidence: float = CONFIDENCE
    certainty: float = CERTAIN

    def as_text(self) -> str:
        return (
            f"by {self.by}: epsilon is at least {floored(self.epsilon)} (confidence {percent(self.confidence)}), "
            f"at least {floored(self.certain)} ({percent(self.certainty)})"
        )


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A measured number and where it may lie."""

    name: str
    value: float
    low: float
    high: float
    confidence: float = CONFIDENCE

    def as_text(self) -> str:
        ends = f"from {self.low:.3f} to {self.high:.3f}"
        return f"{self.name} {self.value:.3f} ({ends}, confidence {percent(self.confidence)})"


@dataclass(frozen=True, kw_only=True)
class Control:
    """A run with a known answer: what it had to come out at, and what it did."""

    name: str
    must: str
    came: float
    passed: bool

    def as_text(self) -> str:
        verdict = "as it must" if self.passed else "NOT AS IT MUST"
        return f"{self.name}: {floored(self.came)}, had to {self.must}: {verdict}"


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What an audit found.

    ``bounds`` are lower bounds on epsilon, each by itself; ``about`` says what was done; ``stamp`` is there if the
    noise was seeded, ``access`` if the result must be kept as private as the examples that it was read from.

    *What it may be taken for*: `MEANING`. A claim is refuted by a bound that is above it beyond doubt.
    """

    kind: str
    claim: Claim
    bounds: tuple[Bound, ...]
    counts: Mapping[str, int]
    controls: tuple[Control, ...]
    seconds: float
    about: tuple[str, ...] = ()
    intervals: tuple[Interval, ...] = ()
    stamp: str = ""
    access: str = ""
    meaning: tuple[str, ...] = field(default=MEANING)

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if any(bound.certain > self.claim.epsilon for bound in self.bounds):
            return REFUTED
        return IN_DOUBT if any(bound.epsilon > self.claim.epsilon for bound in self.bounds) else SURVIVES

    @property
    def refuted(self) -> bool:
        """Whether the claim is disproved."""
        return self.verdict == REFUTED

    @property
    def stays_private(self) -> bool:
        """Whether it was read from examples that nobody declared public."""
        return self.access not in ("", OF_PUBLIC)

    @property
    def lower(self) -> float:
        """The largest of the lower bounds, each of which has its own `Bound.confidence`; 0 if there is none."""
        return max((bound.epsilon for bound in self.bounds), default=0.0)

    @property
    def failed(self) -> tuple[Control, ...]:
        """The controls that did not come out as they must: if there are any, nothing else counts."""
        return tuple(control for control in self.controls if not control.passed)

    def as_text(self) -> str:
        """The result in plain sentences; what makes it worthless comes first."""
        return "\n".join([*self.headline(), *self.numbers(), *self.about, *self.meaning])

    def headline(self) -> list[str]:
        """Whether the audit is worth anything, what it found, and who may see it."""
        lines = []
        if self.failed:
            names = ", ".join(control.name for control in self.failed)
            lines += [
                f"CONTROLS FAILED ({names}): this audit cannot tell a good run from a bad one, so its bounds say "
                "nothing; take more runs or more canaries, or look for a mistake in the adversary."
            ]
        elif not self.controls:
            lines += ["No controls were run: whether this audit could have seen a mistake is not known."]
        if self.bounds and not (self.failed and self.verdict == SURVIVES):
            lines += [VERDICTS[self.verdict]]
        return [
            *lines,
            *filter(None, [self.access, self.stamp and f"The noise that was audited is {self.stamp}."]),
        ]

    def numbers(self) -> list[str]:
        """Claim, bounds, measures, controls and counts, a sentence each."""
        return [
            f"Claim: {self.claim.as_text()}.",
            *(f"Lower bound {bound.as_text()}." for bound in self.bounds),
            *(f"Measured: {interval.as_text()}." for interval in self.intervals),
            *(f"Control {control.as_text()}." for control in self.controls),
            f"{self.kind}: {', '.join(f'{count:,} {name}' for name, count in self.counts.items())}; "
            f"{self.seconds:.1f} seconds.",
        ]

    def as_json(self) -> str:
        """The result as JSON, verdict included; `saltflat.audit.read` takes it back."""
        told = {"version": 1, "verdict": self.verdict, "controls_failed": bool(self.failed), **asdict(self)}
        return json.dumps(told, indent=2, allow_nan=False) + "\n"


def percent(share: float) -> str:
    """
    >>> percent(0.95), percent(CERTAIN)
    ('95 %', '99.99 %')
    """
    return f"{100 * share:g} %"


def floored(value: float) -> str:
    """To two places, downwards: a lower bound may not grow on its way to the page.

    >>> floored(3.299), floored(0.0)
    ('3.29', '0.00')
    """
    return f"{math.floor(value * 100 + 1e-9) / 100:.2f}"
