"""The privacy statement of a run: what is promised to whom, what it rests on, and what it leaves out."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from dp_accounting.dp_event import DpEvent

from saltflat.errors import DataError, PrivacyError, SettingError
from saltflat.privacy.accounting import bounds
from saltflat.privacy.accounting.events import (
    ADD_REMOVE,
    REPLACE,
    Adjacency,
    adjacency_words,
    describe_sampling,
)
from saltflat.privacy.accounting.selection import NOT_SELECTED, describe_selection
from saltflat.privacy.limits import (
    BARE,
    SEEDED,
    checked_count,
    checked_delta,
    checked_epsilon,
    real,
    rounded_down,
    rounded_up,
)

NOT_COVERED = (
    "metrics, losses and logs computed on the private data",
    "choices made by looking at earlier runs on this data, unless charged above",
    "floating-point effects in the noise and the sum",
    "timing, memory and other side channels",
)

COUNTED = "the number of units, which was read from the data and shows in the sampling rate"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a run declares about itself; none of it may be read from the private data.

    ``size`` is the public number of units, ``released`` what leaves the trusted side, ``selection`` one
    sentence on how hyper-parameters were chosen, ``seeded`` whether the noise could be repeated by anyone
    who knows the seed. ``reproduce=True`` permits a delta above 1 / size, to repeat a published setting. ``counted``
    says that ``size`` was read from the data, and so is public only if that number is. ``public`` says in words which
    public examples were used, which nothing protects; ``features`` how the fixed maps before the model were made,
    without private data; ``unknown`` what cannot be told of sources of noise or draws that are not saltflat's own.

    >>> Declared(delta=1e-5, size=60_000).unit
    'example'
    """

    delta: float
    size: int
    unit: str = "example"
    released: tuple[str, ...] = ("the final weights", "every intermediate update")
    selection: str = NOT_SELECTED
    seeded: bool = False
    reproduce: bool = False
    counted: bool = False
    public: tuple[str, ...] = ()
    features: str = ""
    unknown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_delta(self.delta)
        checked_count("the declared number of units", self.size, ceiling=10**15)
        for name in ("seeded", "counted", "reproduce"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name} is True or False; got {getattr(self, name)!r}")
        for name in ("unit", "selection"):
            if not (isinstance(getattr(self, name), str) and getattr(self, name).strip()):
                raise SettingError(
                    f"{name} is empty: say it in words, it is printed in the privacy statement"
                )


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Everything that must be said together with an epsilon."""

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    sampling: str
    accountant: str
    curve: tuple[tuple[float, float], ...]
    epsilon_unamplified: float
    membership_advantage: float
    membership_accuracy: float
    posterior: float
    selection: str
    released: tuple[str, ...]
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...]
    stamp: str
    public: tuple[str, ...] = ()  # examples that were used as public ones
    features: str = ""  # the fixed maps before the model

    def as_json(self) -> str:
        """The statement as JSON, one key per fact; null stands for infinity, which JSON does not have."""
        facts = {key: None if value == math.inf else value for key, value in asdict(self).items()}
        return json.dumps(facts, indent=2)

    def as_text(self) -> str:
        """The statement in plain sentences.

        >>> from saltflat.privacy.accounting.events import phase_event
        >>> declared = Declared(delta=1e-5, size=60_000, unit="image")
        >>> print(state(phase_event(0.004266667, 1.1, 14062), declared).as_text().splitlines()[0])
        This run is (2.39, 1e-05)-differentially private for each image (adjacency: add or remove one unit).
        """
        if self.stamp == BARE:
            return "\n".join([f"{BARE}. Nothing is promised to any {self.unit}.", *self._limits()])
        return "\n".join([*self._promise(), *self._meaning(), *self._limits()])

    def _promise(self) -> list[str]:
        headline = (
            f"This run is ({rounded_up(self.epsilon)}, {self.delta:g})-differentially private for each "
            f"{self.unit} (adjacency: {self.adjacency})."
        )
        if self.stamp:
            headline = f"{self.stamp}. With fresh secret noise it would be: {headline}"
        unamplified = rounded_up(self.epsilon_unamplified)
        pairs = ", ".join(f"{rounded_up(epsilon)} at {delta:g}" for delta, epsilon in self.curve)
        return [
            headline,
            f"Sampling: {self.sampling}. Accountant: {self.accountant}, an upper bound.",
            f"Epsilon at other deltas: {pairs}.",
            f"If someone knew who was in every batch: epsilon {unamplified} at {self.delta:g}.",
        ]

    def _meaning(self) -> list[str]:
        swapped = self.adjacency == adjacency_words(REPLACE)
        question = (
            f"which of two {self.unit}s was used" if swapped else f"whether one given {self.unit} was used"
        )
        return [
            f"Whoever sees the release and must guess {question}, from even odds, is right with probability "
            f"at most {rounded_up(100 * self.membership_accuracy)} % (advantage at most "
            f"{rounded_up(self.membership_advantage)}); of those whom an attack with 1 % false alarms "
            f"accuses, at most {rounded_up(100 * self.posterior)} % are rightly accused.",
        ]

    def _limits(self) -> list[str]:
        fixed = "made without private data, so that no statistic of private rows is in them"
        if "declared by its maker" in self.features:
            fixed = (
                "what is declared was not looked into: no epsilon covers a statistic of private rows in it"
            )
        fixed += "; pretrained models protect no one whom they were made from" * (
            "public data" in self.features
        )
        lines = [
            self.selection,
            *([f"Features: {self.features}; {fixed}."] if self.features else []),
            f"Released: {'; '.join(self.released)}.",
            *(
                [f"Used as public, and not protected at all: {'; '.join(self.public)}."]
                if self.public
                else []
            ),
            f"Not covered: {'; '.join(self.not_covered)}.",
        ]
        return lines + [f"Warning: {warning}" for warning in self.warnings]


def from_json(text: str) -> Statement:
    """The statement that `Statement.as_json` wrote; DataError if it is none.

    >>> from saltflat.privacy.accounting.events import phase_event
    >>> said = state(phase_event(0.004266667, 1.1, 14062), Declared(delta=1e-5, size=60_000))
    >>> from_json(said.as_json()) == said
    True
    """
    try:
        facts = json.loads(text)
        facts = {"public": [], "features": "", **facts}  # which older statements do not have
        given = {field.name: _fact(facts[field.name]) for field in fields(Statement)}
        if not (isinstance(given["epsilon"], float) and isinstance(given["stamp"], str)):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError("this is no privacy statement of saltflat, or a damaged one") from None
    return Statement(**given)


def _fact(value: object) -> Any:
    """Lists were tuples, null was infinity, and whole numbers were numbers like others."""
    if isinstance(value, list):
        return tuple(_fact(item) for item in value)
    if value is None:
        return math.inf
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def state(event: DpEvent, declared: Declared, *, adjacency: Adjacency = ADD_REMOVE) -> Statement:
    """The statement for a run whose whole private access is ``event``.

    *Guarantee*: sampling, adjacency and epsilon come from the event, not from what anyone typed in; a delta
    that would permit publishing a random unit is refused.
    """
    warnings = delta_warnings(declared)
    found = bounds.bound(event, declared.delta, adjacency=adjacency)
    advantage = membership_advantage(found.epsilon, found.delta)
    return Statement(
        epsilon=found.epsilon,
        delta=found.delta,
        unit=declared.unit,
        adjacency=adjacency_words(adjacency),
        sampling=describe_sampling(event),
        accountant=found.accountant,
        curve=_curve(event, declared.delta, adjacency),
        epsilon_unamplified=bounds.epsilon_unamplified(event, declared.delta, adjacency=adjacency),
        membership_advantage=advantage,
        membership_accuracy=(1 + advantage) / 2,
        posterior=posterior_bound(found.epsilon, found.delta, prior=0.5, false_positives=0.01),
        selection=describe_selection(event) or declared.selection,
        released=declared.released,
        not_covered=(*NOT_COVERED, *((COUNTED,) if declared.counted else ()), *declared.unknown),
        warnings=warnings,
        stamp=SEEDED if declared.seeded else "",
        public=declared.public,
        features=declared.features,
    )


def state_bare(event: DpEvent, declared: Declared) -> Statement:
    """The statement of a plain baseline, which ran as ``event`` says and with neither clip nor noise: no promise.

    >>> from saltflat.privacy.accounting.events import phase_event
    >>> bare = state_bare(phase_event(0.1, 1.0, 10), Declared(delta=1e-5, size=1000))
    >>> bare.epsilon, bare.stamp
    (inf, 'NOT PRIVATE: no clipping and no noise')
    """
    return Statement(
        epsilon=math.inf,
        delta=declared.delta,
        unit=declared.unit,
        adjacency=adjacency_words(ADD_REMOVE),
        sampling=describe_sampling(event),
        accountant="none",
        curve=(),
        epsilon_unamplified=math.inf,
        membership_advantage=1.0,
        membership_accuracy=1.0,
        posterior=1.0,
        selection=declared.selection,
        released=declared.released,
        not_covered=("anything: this is a baseline",),
        warnings=(),
        stamp=BARE,
        public=declared.public,
        features=declared.features,
    )


def membership_advantage(epsilon: float, delta: float) -> float:
    """The largest true positive rate minus false positive rate of any membership attack.

    ``(e^epsilon - 1 + 2 delta) / (e^epsilon + 1)``; right guesses from even odds: ``(1 + advantage) / 2``.

    >>> round(membership_advantage(1.0, 1e-5), 3)
    0.462

    Kairouz, Oh & Viswanath, "The Composition Theorem for Differential Privacy", 2015.
    """
    epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
    decay = math.exp(-epsilon)
    return min(1.0, (1 - decay + 2 * delta * decay) / (1 + decay))


def true_positive_bound(epsilon: float, delta: float, *, false_positives: float) -> float:
    """The largest share of members that an attack finds while accusing a share of the non-members.

    ``min(e^epsilon f + delta, 1 - e^-epsilon (1 - delta - f))``

    >>> round(true_positive_bound(1.0, 1e-5, false_positives=0.01), 4)
    0.0272
    """
    epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
    if not 0 <= real("false_positives", false_positives) <= 1:
        raise SettingError(f"false_positives is {false_positives}: it is a share, from 0 to 1")
    small = math.exp(min(epsilon, 700.0)) * false_positives + delta
    large = 1 - math.exp(-epsilon) * (1 - delta - false_positives)
    return min(1.0, small, large)


def posterior_bound(epsilon: float, delta: float, *, prior: float, false_positives: float) -> float:
    """The largest share of true members among those whom an attack accuses.

    ``prior t / (prior t + (1 - prior) f)``, where t is the :func:`true_positive_bound` at the share f of
    non-members that it accuses wrongly.

    >>> round(posterior_bound(1.0, 1e-5, prior=0.5, false_positives=0.01), 3)
    0.731
    """
    if not 0 <= real("prior", prior) <= 1:
        raise SettingError(f"prior is {prior}: it is a probability, from 0 to 1")
    found = prior * true_positive_bound(epsilon, delta, false_positives=false_positives)
    accused = found + (1 - prior) * false_positives
    return found / accused if accused > 0 else 1.0


def delta_warnings(declared: Declared) -> tuple[str, ...]:
    """What must be said about a delta of this size, or a refusal; nothing of it depends on how a run goes.

    >>> delta_warnings(Declared(delta=1e-5, size=60_000))
    ('delta 1e-05 is above 1/(10 x 60000); 1.6e-06 or less is advised',)
    """
    delta, size = float(declared.delta), declared.size
    bound, tenth, most = f"1/{size}", f"1/(10 x {size})", f"at most {rounded_down(0.1 / size)}"
    advised = f"{rounded_down(0.1 / size)} or less"
    if declared.counted:  # how many there are was not declared, and is not said
        bound, tenth = (
            f"1/n for the n {declared.unit}s of the data",
            f"1/(10 n) for the n {declared.unit}s of the data",
        )
        most = advised = "at most a tenth of 1/n"
    if delta * size > 1 + 1e-9 and not declared.reproduce:
        raise PrivacyError(
            f"delta {delta:g} is above {bound}: it would permit publishing one {declared.unit} at random; "
            f"take {most}, or say reproduce=True to repeat a published setting"
        )
    if delta * size > 1 + 1e-9:
        return (
            f"delta {delta:g} is above {bound}: one {declared.unit} at random could be published outright",
        )
    if delta * size > 0.1 + 1e-9:
        return (f"delta {delta:g} is above {tenth}; {advised} is advised",)
    return ()


def _curve(event: DpEvent, delta: float, adjacency: Adjacency) -> tuple[tuple[float, float], ...]:
    """Epsilon a factor of 10 and 100 below and above the declared delta, where it can be bounded."""
    deltas = [delta * factor for factor in (0.01, 0.1, 1.0, 10.0) if 1e-12 <= delta * factor < 0.1]
    return bounds.curve(event, deltas, adjacency=adjacency)
