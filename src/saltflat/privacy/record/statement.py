"""The privacy statement of a run: what is promised to whom, what it rests on, and what it leaves out."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from dp_accounting.dp_event import DpEvent

from saltflat.errors import DataError, PrivacyError, SettingError
from saltflat.privacy.accounting import bounds, risk
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
    rounded_down,
    rounded_up,
)

NOT_COVERED = (
    "metrics, losses and logs computed on the private data",
    "choices made by looking at earlier runs on this data, unless charged above",
    "floating-point effects in the noise and the sum",
    "timing, memory and other side channels",
)

PLAIN = "In plain words"
TECHNICAL = "Technical statement"
_LATER = {
    "public": [],
    "features": "",
    "tradeoff": [],
    "posteriors": [],
    "risk_source": "",
}  # not in older ones

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
    """Everything that must be said together with an epsilon: in plain words, and in technical ones.

    Attributes:
        epsilon: An upper bound on epsilon at ``delta``.
        curve: (delta, epsilon) at other deltas.
        epsilon_unamplified: Epsilon if an observer knew who was in every batch.
        membership_advantage: The most by which any attack's true positive rate passes its false positive rate.
        membership_accuracy: The largest share of right guesses about one unit, from even odds.
        posterior: The largest share of right accusations at prior 0.5 and 1 % false positives.
        tradeoff: (false positive rate, largest true positive rate), from end to end.
        posteriors: (prior, largest posterior) at 1 % false positives.
        risk_source: What these figures were derived from. Empty in statements of older versions: theirs follow from
            one (epsilon, delta) pair, which overstates the risk.
    """

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
    tradeoff: tuple[tuple[float, float], ...] = ()
    posteriors: tuple[tuple[float, float], ...] = ()
    risk_source: str = ""

    def as_json(self) -> str:
        """The statement as JSON, one key per fact; null stands for infinity, which JSON does not have."""
        facts = {key: None if value == math.inf else value for key, value in asdict(self).items()}
        return json.dumps(facts, indent=2)

    def as_text(self) -> str:
        """The statement in sentences: a page for everybody, then the technical one.

        >>> from saltflat.privacy.accounting.events import phase_event
        >>> declared = Declared(delta=1e-5, size=60_000, unit="image")
        >>> text = state(phase_event(0.004266667, 1.1, 14062), declared).as_text()
        >>> print(text.splitlines()[0])
        In plain words
        >>> print(text.splitlines()[text.splitlines().index("Technical statement") + 1])
        This run is (2.39, 1e-05)-differentially private for each image (adjacency: add or remove one unit).
        """
        plain, technical = self.plain(), self.technical()
        if self.stamp == BARE or not plain:
            return "\n".join(technical)
        title = [] if self.stamp else [PLAIN]
        return "\n".join([*title, *plain, "", TECHNICAL, *technical])

    def __str__(self) -> str:
        return self.as_text()

    def plain(self) -> list[str]:
        """What the run promises, for readers who are not specialists; empty for a statement of an older version.

        >>> from saltflat.privacy.accounting.events import phase_event
        >>> run = state(phase_event(1024 / 50_000, 1.351, 180), Declared(delta=1e-6, size=50_000))
        >>> print(run.plain()[0])
        An attacker who sees what was released and knows all other examples guesses whether one given example was
        used right in at most 54.7 % of cases (50 % is a coin flip).
        """
        if self.stamp == BARE or not self.risk_source:
            return []
        one, lines = self.unit, []
        if self.stamp:
            lines.append(
                f"{self.stamp}. Whoever knows the seed can take the noise away, and then nothing is promised. With "
                "fresh secret noise this would hold:"
            )
        asked = f"which of two {one}s was used" if self._swapped else f"whether one given {one} was used"
        share = _percent(self.membership_accuracy)
        attacker = f"An attacker who sees what was released and knows all other {one}s"
        if share is None:
            lines.append(
                f"{attacker} may guess {asked} right in nearly every case: this run has too little noise to promise "
                "more. Take a smaller epsilon."
            )
        else:
            lines.append(
                f"{attacker} guesses {asked} right in at most {share} % of cases (50 % is a coin flip)."
            )
        found = dict(self.tradeoff)
        if not self._swapped and share is not None and all(rate in found for rate in risk.RATES):
            few, some = (
                "may find all" if limit is None else f"finds at most {limit} %"
                for limit in (_percent(found[rate]) for rate in risk.RATES)
            )
            lines.append(
                f"If it wrongly accuses 1 in 100 of the {one}s that were not used, it {some} of those that were; "
                f"accusing at random finds 1 %. If it wrongly accuses 1 in 1,000, it {few}."
            )
            believed = _percent(dict(self.posteriors).get(0.1, 1.0))
            if believed is not None:
                lines.append(
                    f"If one in ten of the {one}s that it looks at was used, then of those that it accuses at most "
                    f"{believed} % were (with 1 in 100 of the others wrongly accused)."
                )
        lines += [
            "These limits hold for every attack on what was released, whatever else it knows and however long it "
            "computes.",
            f"They are for one {one} at a time: "
            + (
                f"everything that one {one} has in the data is covered together."
                if one in ("user", "client")
                else f"a person with several {one}s in the data is protected less."
            ),
            "They do not hide what is true of people in general: what a model teaches about them it would also teach "
            f"if any one {one} had been left out.",
            f"What was released: {'; '.join(self.released)}.",
        ]
        if self.public:
            lines.append(f"Not protected, as it was declared public: {'; '.join(self.public)}.")
        lines.append("What the limits rest on and leave out, and any warning, is in the technical statement.")
        return lines

    def technical(self) -> list[str]:
        """The statement for specialists, line by line."""
        if self.stamp == BARE:
            return [f"{BARE}. Nothing is promised to any {self.unit}.", *self._limits()]
        return [*self._promise(), *self._meaning(), *self._limits()]

    @property
    def _swapped(self) -> bool:
        return self.adjacency == adjacency_words(REPLACE)

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
        if self.risk_source:
            rates = [
                f"{_limit(true)} at {100 * false:g} % false positives"
                for false, true in self.tradeoff
                if false in risk.RATES
            ]
            beliefs = [f"{_limit(after)} from prior {100 * before:g} %" for before, after in self.posteriors]
            return [
                f"Membership inference, upper bounds for any attack: advantage {rounded_up(self.membership_advantage)} "
                f"(true minus false positive rate); true positive rate {', '.join(rates)}; posterior at 1 % false "
                f"positives {', '.join(beliefs)}. Trade-off curve from: {self.risk_source}."
            ]
        if _percent(self.membership_accuracy) is None:
            return ["No limit on membership inference follows from this epsilon and delta alone."]
        question = (
            f"which of two {self.unit}s was used"
            if self._swapped
            else f"whether one given {self.unit} was used"
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
        facts = {**_LATER, **facts}
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
    attacked = risk.tradeoff(event, adjacency=adjacency)
    return Statement(
        epsilon=found.epsilon,
        delta=found.delta,
        unit=declared.unit,
        adjacency=adjacency_words(adjacency),
        sampling=describe_sampling(event),
        accountant=found.accountant,
        curve=_curve(event, declared.delta, adjacency),
        epsilon_unamplified=bounds.epsilon_unamplified(event, declared.delta, adjacency=adjacency),
        membership_advantage=attacked.advantage,
        membership_accuracy=attacked.accuracy,
        posterior=attacked.posterior(0.5),
        selection=describe_selection(event) or declared.selection,
        released=declared.released,
        not_covered=(*NOT_COVERED, *((COUNTED,) if declared.counted else ()), *declared.unknown),
        warnings=warnings,
        stamp=SEEDED if declared.seeded else "",
        public=declared.public,
        features=declared.features,
        tradeoff=attacked.curve(),
        posteriors=tuple((prior, attacked.posterior(prior)) for prior in risk.PRIORS),
        risk_source=attacked.source,
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


def _percent(share: float) -> str | None:
    """A share in per cent, rounded up; None where the rounding leaves no limit.

    >>> _percent(0.54432), _percent(0.9996)
    ('54.5', None)
    """
    said = rounded_up(100 * share)
    return None if float(said) >= 100 else said


def _limit(share: float) -> str:
    """As `_percent`, for a list of limits."""
    said = _percent(share)
    return "no limit" if said is None else f"{said} %"


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
