"""Odd values for every public setting, and an oracle that knows which of them may be taken (D8).

A `Place` is a constructor or an entry point, with settings that are good and the `Kind` of each. A case changes some
settings, each to a good value or to an odd one. The oracle does not share code with the library: it says itself which
values are numbers in range.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

import saltflat as sf
from saltflat.privacy.accounting import bounds, calibration, events, filters, risk, selection, splits
from saltflat.privacy.record.statement import Declared


class Odd:
    """An object that nobody has heard of."""

    def __repr__(self) -> str:
        return "Odd()"


ODD: tuple[Any, ...] = (
    *(
        math.nan,
        math.inf,
        -math.inf,
        -1.0,
        -1e-9,
        0.0,
        -0.0,
        0.5,
        1.0,
        1.5,
        3.4e38,
        1e39,
        1e308,
        5e-324,
        1e-30,
    ),
    *(-1, 0, 1, 2, 7, 2**31, 2**63, 2**64, 10**30, -(10**30), 10**400, True, False, None),
    *("", "1", "0.5", "nan", "inf", "none", "ü\n", b"1", 1j, Fraction(1, 3), Fraction(10**400, 1)),
    *(np.float32(0.25), np.float64("nan"), np.int64(3), np.bool_(True), np.zeros(3)),
    *(torch.tensor(0.5), torch.tensor(math.nan), torch.zeros(2), torch.zeros(0)),
    *([], [1], [math.nan, 1], (), (0.5,), (0.5, 0.5), (1, 2, 3), {}, {"a": 1}, {1: 2}, {1, 2}),
    *(
        Odd(),
        Odd,
        int,
        float,
        len,
        lambda *args, **kwargs: None,
        range(3),
        slice(1),
        Ellipsis,
        NotImplemented,
    ),
)


@dataclass(frozen=True)
class Kind:
    """What a setting may be: ``good`` examples of it, and whether an odd value is one too."""

    good: tuple[Any, ...]
    takes: Callable[[Any], bool] = lambda value: False


def is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def number(low: float, high: float, *good: float, above: bool = False, below: bool = False) -> Kind:
    """A finite number in [low, high]; ``above`` and ``below``: without that end."""

    def takes(value: Any) -> bool:
        if not is_real(value) or not is_finite(value):
            return False
        return (low < value if above else low <= value) and (value < high if below else value <= high)

    return Kind(good, takes)


def whole(low: float, high: float, *good: int) -> Kind:
    return Kind(
        good, lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    )


def counted(low: float, high: float, *good: int) -> Kind:
    """As `whole`, of numpy too."""
    integral = lambda value: isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return Kind(good, lambda value: integral(value) and low <= value <= high)


def maybe(kind: Kind) -> Kind:
    return Kind((*kind.good, None), lambda value: value is None or kind.takes(value))


def or_function(kind: Kind, *good: Any) -> Kind:
    """A schedule: a number, or a function of the step that gives such numbers."""
    return Kind((*kind.good, *good), kind.takes)


def only(*good: Any) -> Kind:
    return Kind(good)


def pair(kind: Kind, *good: Any) -> Kind:
    return Kind(good, lambda v: isinstance(v, tuple | list) and len(v) == 2 and all(map(kind.takes, v)))


@dataclass(frozen=True)
class Place:
    """Something public that takes settings; a case may also be refused for how good settings go together."""

    name: str
    make: Callable[..., Any]
    kinds: dict[str, Kind]
    words: dict[str, str] = field(default_factory=dict)  # what a message calls a setting, if not by its name
    weight: int = 4


POSITIVE = number(0, math.inf, 1e-12, 0.5, 3.0, above=True)
NOT_NEGATIVE = number(0, math.inf, 0.0, 0.03, 2.0)
ANY = number(-math.inf, math.inf, 0.0, -1.0, 3.0)
FRACTION = number(0, 1, 0.0, 0.9, below=True)
INNER = number(0, 1, 0.1, 0.9, above=True, below=True)
RATE = number(0, 1, 0.01, 1.0, above=True)
FLAG = Kind((True, False), lambda value: isinstance(value, bool))
SEED = whole(-(2**63), 2**63, 0, 17)
FUNCTION = Kind((lambda *args: 1.0,), lambda value: callable(value) and not isinstance(value, type))
PUBLIC = only(
    sf.Public(
        sf.per_example(torch.nn.Linear(2, 2), len),  # type: ignore[arg-type]
        sf.data.TensorUnits((torch.zeros(3, 2), torch.zeros(3, dtype=torch.long))),
    )
)
ANY_FUNCTION = Kind((lambda *args: 1.0,), callable)
LR = or_function(POSITIVE, sf.schedules.Cosine(1.0, 0.1, steps=3))
AT_ONCE = Kind((1.0,), RATE.takes)  # quick to account for
DELTA = number(1e-30, 1, 1e-5, 1e-3, below=True)
EPSILON = number(1e-5, math.inf, 1.0, 3.0)
NOISE = number(1e-6, 1e12, 0.7, 2.0)
METHOD = only(sf.methods.DPSGD(), sf.methods.SAT(0.1), sf.methods.SAM(0.1))
OPTIMIZER = only(sf.optimizers.SGD(lr=0.1), sf.optimizers.Adam(lr=0.1))
CLIP = Kind((0.1, 1.0, sf.clipping.Automatic(), sf.clipping.PerLayer(1.0)), number(1e-12, 1e12).takes)
TREE = only({"weight": torch.ones(2, 3)})
NAME = Kind(("one", "two"), lambda v: isinstance(v, str) and 0 < len(v) <= 200 and v.isprintable())


def is_bounds(value: Any) -> bool:
    named = isinstance(value, dict) and all(isinstance(name, str) for name in value)
    return POSITIVE.takes(value) or (named and bool(value) and all(map(POSITIVE.takes, value.values())))


BOUNDS = Kind((1.0, {"a": 1.0}, {"": 2.0}), is_bounds)
RATE_OF_SECANT = Kind(
    (0.1, sf.schedules.Linear(1.0, 0.5, 3)), lambda value: NOT_NEGATIVE.takes(value) or FUNCTION.takes(value)
)
PRINTED = Kind(
    (2.345, 5e-324, 0), lambda v: is_real(v) and not v < 0 and (is_finite(v) or isinstance(v, float))
)


def phase(**changes: Any) -> sf.Phase:
    given: dict[str, Any] = {
        "method": sf.methods.DPSGD(),
        "steps": 2,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "optimizer": sf.optimizers.SGD(lr=0.1),
    }
    return sf.Phase(**{**given, **changes})


def a_plan() -> sf.Plan:
    return sf.Plan(phases=(phase(),), rate=0.5, size=12)


PLAN, EVENT = a_plan(), events.phase_event(0.1, 2.0, 10)
m, o, s, p, f = sf.methods, sf.optimizers, sf.schedules, sf.privacy, sf.federated
ALPHA = number(1e-3, 1e6, 0.3, 0.6)
POINTS = only(((2.0, 0.1),), [[2, 0.1], (8.0, 0.4)])

VALUES = (
    Place(
        "DPLIS",
        m.DPLIS,
        {
            "method": METHOD,
            "lr": NOT_NEGATIVE,
            "copies": whole(1, 1024, 2, 4),
            "reach": NOT_NEGATIVE,
            "antithetic": FLAG,
            "per_example": FLAG,
            "total": FLAG,
            "seed": SEED,
        },
    ),
    Place(
        "WeightMultiplicity",
        m.WeightMultiplicity,
        {
            "public": PUBLIC,
            "radius": NOT_NEGATIVE,
            "method": METHOD,
            "copies": whole(1, 1024, 2, 4),
            "batch": whole(1, 1 << 20, 1, 64),
            "adaptive": FLAG,
            "seed": SEED,
        },
    ),
    Place(
        "DOPE",
        m.DOPE,
        {
            "public": PUBLIC,
            "batch": whole(1, 1 << 20, 1, 64),
            "strength": number(0, 1, 0.0, 0.5, 1.0),
            "public_clip_norm": maybe(POSITIVE),
            "seed": SEED,
        },
    ),
    Place(
        "AdaDPS",
        m.AdaDPS,
        {
            "public": PUBLIC,
            "batch": whole(1, 1 << 20, 1, 64),
            "power": number(0, 1, 0.0, 0.5, 1.0),
            "decay": FRACTION,
            "floor": POSITIVE,
            "every": whole(1, math.inf, 1, 9),
            "seed": SEED,
        },
    ),
    Place(
        "Mirror",
        m.Mirror,
        {
            "public": PUBLIC,
            "weight": Kind(
                (0.5, s.QuarterCosine(1.0, 0.0, 9)), lambda v: number(0, 1).takes(v) or FUNCTION.takes(v)
            ),
            "method": METHOD,
            "batch": whole(1, 1 << 20, 1, 64),
            "seed": SEED,
        },
    ),
    Place(
        "MirrorDescent",
        o.MirrorDescent,
        {"public": PUBLIC, "lr": LR, "strength": NOT_NEGATIVE, "iterations": whole(1, math.inf, 1, 50)},
    ),
    Place(
        "DeadLeaves",
        sf.synthesis.DeadLeaves,
        {
            "fewest": whole(1, 4096, 1, 3),
            "most": whole(1, 4096, 3, 25),
            "least": POSITIVE,
            "spread": NOT_NEGATIVE,
            "narrow": number(0.01, 1, 0.3, 1.0),
            "tint": number(0, 1, 0.0, 0.35),
        },
    ),
    Place(
        "Fractals",
        sf.synthesis.Fractals,
        {"fewest": whole(2, 64, 2, 3), "most": whole(2, 64, 3, 6), "points": whole(100, 10**7, 100)},
    ),
    Place(
        "SpectrumNoise",
        sf.synthesis.SpectrumNoise,
        {"gentle": number(0, 8, 0.0, 0.5), "steep": number(0, 8, 0.5, 3.5)},
    ),
    Place(
        "Images",
        sf.synthesis.Images,
        {
            "process": only(sf.synthesis.DeadLeaves()),
            "channels": Kind((1, 3), lambda value: whole(1, 3).takes(value) and value != 2),
            "side": whole(4, 4096, 4, 28),
            "seed": whole(0, 2**63, 0, 17),
        },
    ),
    Place(
        "EDM",
        sf.synthesis.EDM,
        {
            "deviation": POSITIVE,
            "least": number(0, math.inf, 0.002, above=True),
            "most": number(0, math.inf, 80.0, above=True),
            "bend": POSITIVE,
            "log_mean": ANY,
            "log_std": POSITIVE,
        },
    ),
    Place("Scattering", sf.features.Scattering, {"scales": whole(1, 8, 1, 2), "angles": whole(1, 64, 4, 8)}),
    Place("HOG", sf.features.HOG, {"bins": whole(2, 360, 2, 9), "cell": whole(1, 1024, 1, 4)}),
    Place(
        "RandomConvolutions",
        sf.features.RandomConvolutions,
        {
            "filters": whole(1, 1 << 16, 1, 8),
            "size": Kind((1, 5), lambda value: whole(1, 255).takes(value) and value % 2 == 1),
            "pool": whole(1, 1024, 1, 4),
            "seed": whole(0, 2**63 - 1, 0, 17),
        },
    ),
    Place("Grouped", sf.features.Grouped, {"groups": whole(1, math.inf, 1, 27)}),
    Place("RowScaled", sf.features.RowScaled, {"norm": POSITIVE}),
    Place(
        "Whitened",
        sf.features.Whitened,
        {
            "process": only(sf.synthesis.DeadLeaves()),
            "images": whole(2, 10**7, 2, 3000),
            "power": number(0, 1, 0.0, 0.5),
            "floor": number(1e-9, 1e9, 0.1, 1.0),
            "channels_only": FLAG,
            "seed": whole(0, 2**63, 0),
        },
    ),
    Place("SAM", m.SAM, {"radius": NOT_NEGATIVE, "ascent_share": FRACTION, "fresh": FLAG}),
    Place("SAT", m.SAT, {"radius": NOT_NEGATIVE, "momentum": FRACTION, "drift": whole(1, 1024, 1, 2)}),
    Place(
        "Quantile",
        m.Quantile,
        {"method": METHOD, "quantile": number(0, 1, 0.5), "speed": number(0, 100, 0.2), "share": FRACTION},
    ),
    Place("Rescaled", m.Rescaled, {"method": METHOD}),
    Place(
        "Antithetic",
        m.Antithetic,
        {
            "method": METHOD,
            "radius": POSITIVE,
            "every": whole(2, math.inf, 2, 9),
            "decay": FRACTION,
            "seed": SEED,
        },
    ),
    Place(
        "Gap",
        m.Gap,
        {
            "method": METHOD,
            "radius": POSITIVE,
            "bound": POSITIVE,
            "share": INNER,
            "every": whole(1, math.inf, 1, 5),
        },
    ),
    Place(
        "PublicSharpness",
        m.PublicSharpness,
        {"method": METHOD, "measure": FUNCTION, "every": whole(1, math.inf, 1)},
    ),
    Place("Secant", m.Secant, {"method": only(m.SAT(0.1)), "lr": RATE_OF_SECANT}),
    Place(
        "Plateau",
        m.Plateau,
        {
            "window": whole(1, math.inf, 5),
            "patience": whole(1, math.inf, 2),
            "tolerance": NOT_NEGATIVE,
            "least": whole(0, math.inf, 0, 3),
        },
    ),
    Place("SGD", o.SGD, {"lr": LR, "momentum": FRACTION, "weight_decay": NOT_NEGATIVE}),
    Place(
        "Adam",
        o.Adam,
        {"lr": LR, "betas": pair(FRACTION, (0.9, 0.99)), "eps": POSITIVE, "weight_decay": NOT_NEGATIVE},
    ),
    Place(
        "AdamBC",
        o.AdamBC,
        {"lr": LR, "betas": pair(FRACTION, (0.9, 0.99)), "floor": POSITIVE, "weight_decay": NOT_NEGATIVE},
    ),
    Place("AntiNoise", o.AntiNoise, {"optimizer": OPTIMIZER, "distance": NOT_NEGATIVE}),
    Place("Torch", o.Torch, {"optimizer": ANY_FUNCTION, "scheduler": maybe(ANY_FUNCTION)}),
    Place("EMA", o.EMA, {"decay": FRACTION}),
    Place(
        "Piecewise",
        s.Piecewise,
        {
            "values": Kind(((2.0, 0.1),), lambda v: isinstance(v, tuple | list) and all(map(ANY.takes, v))),
            "ends": Kind(
                ((3,),), lambda v: isinstance(v, tuple | list) and all(map(whole(0, math.inf).takes, v))
            ),
        },
    ),
    *(
        Place(
            each.__name__,
            each,
            {
                "start": ANY,
                "end": ANY,
                "steps": whole(1, math.inf, 4),
                "levels": maybe(whole(2, math.inf, 2)),
            },
        )
        for each in (s.Linear, s.Cosine, s.QuarterCosine)
    ),
    Place(
        "Flat", sf.clipping.Flat, {"bound": Kind(POSITIVE.good, lambda v: POSITIVE.takes(v) or v is math.inf)}
    ),
    Place("Automatic", sf.clipping.Automatic, {"bound": POSITIVE, "gamma": POSITIVE}),
    Place("PerLayer", sf.clipping.PerLayer, {"bounds": BOUNDS}, {"bounds": "bound"}),
    Place("Shift", sf.frames.Shift, {"origin": TREE}),
    Place("Precondition", sf.frames.Precondition, {"scale": TREE}),
    Place(
        "Phase",
        phase,
        {
            "method": METHOD,
            "steps": whole(1, 10**9, 1, 9),
            "noise_multiplier": NOT_NEGATIVE,
            "clip_norm": Kind(
                CLIP.good, lambda value: CLIP.takes(value) or value is math.inf
            ),  # without noise
            "optimizer": OPTIMIZER,
            "noise_schedule": or_function(POSITIVE, s.Linear(1.0, 0.5, 3)),
            "until": maybe(ANY_FUNCTION),
        },
        weight=12,
    ),
    Place(
        "Plan",
        lambda **given: sf.Plan(**{"phases": (phase(),), "rate": 0.5, "size": 12, **given}),
        {
            "phases": only((phase(),), (phase(), phase(noise_multiplier=2.0))),
            "rate": RATE,
            "size": whole(1, 10**15, 12, 1000),
            "ema": maybe(only(o.EMA())),
            "draw": only(sf.Poisson(), sf.WithoutReplacement()),
        },
        weight=8,
    ),
    Place(
        "Checkpoints",
        sf.Checkpoints,
        {"folder": Kind(("kept",), lambda v: isinstance(v, str)), "every": whole(1, math.inf, 5)},
    ),
    Place(
        "Running",
        sf.Running,
        {
            "physical": whole(1, math.inf, 8),
            "checkpoints": maybe(only(sf.Checkpoints("kept"))),
            "watch": maybe(ANY_FUNCTION),
        },
    ),
    Place(
        "Safeguards",
        sf.Safeguards,
        {
            "noise": only(p.SecureNoise(), p.SeededNoise(1)),
            "sampling": only(p.SecureSampling(), np.random.default_rng(0)),
            "meter": maybe(only(PLAN.filter(1e-3))),
        },
    ),
    Place(
        "Budget",
        p.Budget,
        {
            "epsilon": number(0, math.inf, 3.0, above=True),
            "delta": DELTA,
            "order": maybe(number(1.1, 1024, 8.0)),
        },
    ),
    Place("DiscreteNoise", p.DiscreteNoise, {"resolution": whole(1, 2**18, 1024)}),
    Place("SeededNoise", p.SeededNoise, {"seed": whole(-math.inf, math.inf, 3)}),
    Place(
        "Declared",
        Declared,
        {
            "delta": DELTA,
            "size": counted(1, 10**15, 100),
            "unit": Kind(("example",), lambda v: isinstance(v, str) and bool(v.strip())),
            "seeded": FLAG,
            "counted": FLAG,
            "reproduce": FLAG,
        },
        {"size": "units"},
    ),
    Place("PadCrop", sf.data.PadCrop, {"padding": whole(0, 2**20, 2), "reflect": FLAG}),
    Place("Flip", sf.data.Flip, {"probability": number(0, 1, 0.5)}),
    Place("Cutout", sf.data.Cutout, {"size": whole(1, 2**20, 3)}),
    Place(
        "each_view",
        sf.each_view,
        {"augment": ANY_FUNCTION, "views": whole(1, math.inf, 2)},
        {"views": "view"},
    ),
    Place(
        "per_example",
        lambda **given: sf.per_example(**{"loss": len, **given}),
        {
            "model": only(nn.Linear(2, 2)),
            "loss": ANY_FUNCTION,
            "views": whole(1, math.inf, 2),
            "augment": maybe(ANY_FUNCTION),
        },
    ),
    Place(
        "per_user",
        lambda **given: sf.per_user(loss=len, **given),
        {"model": only(nn.Linear(2, 2)), "rows": whole(1, math.inf, 2)},
    ),
    Place(
        "without_batchnorm",
        sf.without_batchnorm,
        {"model": only(nn.BatchNorm1d(4)), "groups": whole(1, math.inf, 2)},
    ),
    Place("check_model", sf.check_model, {"model": only(nn.Linear(2, 2))}),
    Place("Climb", f.Climb, {"radius": NOT_NEGATIVE, "adaptive": FLAG}),
    Place("Blur", f.Blur, {"bound": NOT_NEGATIVE, "weight": NOT_NEGATIVE}),
    Place("Feedback", f.Feedback, {"bound": POSITIVE}),
    Place(
        "Local",
        f.Local,
        {
            "epochs": whole(1, math.inf, 1, 5),
            "batch_size": whole(1, math.inf, 1, 32),
            "lr": NOT_NEGATIVE,
            "momentum": FRACTION,
            "weight_decay": NOT_NEGATIVE,
            "lr_decay": RATE,
            "climb": maybe(only(f.Climb(0.1))),
            "blur": maybe(only(f.Blur(0.1))),
            "keep": RATE,
            "seed": maybe(whole(0, 2**63 - 1, 3)),
        },
        weight=8,
    ),
    Place("Dirichlet", f.Dirichlet, {"alpha": ALPHA}),
    Place("DirichletEqual", f.DirichletEqual, {"alpha": ALPHA}),
    Place(
        "iid",
        f.iid,
        {"count": whole(0, 10**8, 0, 10), "clients": whole(1, 10**8, 3), "seed": whole(0, 2**63 - 1, 0)},
    ),
    Place(
        "Federation",
        lambda **given: sf.recipes.Federation(**{"split": f.IID(), **given}),
        {"count": whole(1, 10**15, 100), "seed": whole(0, 2**63 - 1, 0)},
    ),
    Place(
        "FixedSize",
        p.FixedSize,
        {"size": counted(10, 10**9, 10, 100), "batch": counted(1, 10, 1, 10), "noise_multiplier": NOISE},
        {"size": "units"},
    ),
    Place("CappedUser", p.CappedUser, {"rate": RATE, "noise_multiplier": NOISE, "cap": counted(1, 1000, 3)}),
    Place("RenyiBound", p.RenyiBound, {"what": NAME, "points": POINTS}),
)

ACCOUNTS = (
    Place(
        "phase_event",
        events.phase_event,
        {"rate": RATE, "noise_multiplier": NOISE, "steps": counted(1, 10**9, 5, 100)},
    ),
    Place(
        "group_step_event",
        events.group_step_event,
        {"rate": RATE, "noise_multiplier": number(1e-3, 1e12, 2.0), "cap": counted(1, 1000, 3)},
    ),
    Place(
        "fixed_size_event",
        events.fixed_size_event,
        {"noise_multiplier": NOISE, "size": counted(1, 10**9, 100), "batch": counted(1, 100, 10)},
        {"size": "units"},
    ),
    Place(
        "epsilon",
        bounds.epsilon,
        {"event": only(EVENT), "delta": number(1e-12, 1, 1e-5, below=True)},
        weight=1,
    ),
    Place("delta", bounds.delta, {"event": only(EVENT), "epsilon": number(0, math.inf, 1.0)}, weight=1),
    Place(
        "noise_for",
        calibration.noise_for,
        {
            "epsilon": number(1e-5, math.inf, 2.0),
            "delta": number(1e-12, 1, 1e-5, below=True),
            "rate": AT_ONCE,
            "steps": counted(1, 10**9, 5),
        },
        weight=2,
    ),
    Place(
        "steps_for",
        calibration.steps_for,
        {
            "epsilon": number(1e-5, math.inf, 2.0),
            "delta": DELTA,
            "rate": AT_ONCE,
            "noise_multiplier": Kind((5.0,), NOISE.takes),
        },
        weight=2,
    ),
    Place(
        "RdpFilter",
        filters.RdpFilter,
        {"epsilon": number(0, math.inf, 3.0), "delta": DELTA, "order": number(1.1, 1024, 8.0)},
    ),
    Place(
        "poisson_trials",
        lambda **given: selection.poisson_trials(EVENT, **given),
        {"mean": number(1, math.inf, 5.0)},
    ),
    Place(
        "negative_binomial_trials",
        lambda **given: selection.negative_binomial_trials(EVENT, **given),
        {"mean": number(1, math.inf, 5.0), "shape": number(0, math.inf, 1.0)},
    ),
    Place(
        "joint_ratio",
        splits.joint_ratio,
        {
            "epsilon": number(1e-4, math.inf, 2.0),
            "delta": number(1e-12, 1, 1e-5, below=True),
            "rate": AT_ONCE,
            "steps": only((5, 9)),
            "shares": only((0.9, 0.1)),
        },
        {"shares": "share", "steps": "step"},
        weight=1,
    ),
    Place(
        "tradeoff",
        lambda **given: risk.TradeOff("", 0.3, ((0.0, 0.3),)).posterior(**given),
        {
            "prior": number(0, 1, 0.5),
            "false_positives": number(0, 1, 0.01),
        },
    ),
    Place(
        "calibrate to an advantage",
        lambda **given: sf.calibrate(sf.Plan(phases=(phase(),), rate=1.0, size=12), **given),
        {"advantage": number(1e-5, 1, 0.1, below=True)},
        weight=1,
    ),
    Place("rounded_up", p.rounded_up, {"value": PRINTED, "digits": counted(1, 15, 3)}),
    Place(
        "calibrate",
        lambda **given: sf.calibrate(**{"plan": sf.Plan(phases=(phase(),), rate=1.0, size=12), **given}),
        {
            "plan": only(sf.Plan(phases=(phase(),), rate=1.0, size=12)),
            "epsilon": number(1e-5, math.inf, 2.0),
            "delta": number(1e-12, 1, 1e-5, below=True),
        },
        weight=1,
    ),
    Place(
        "sai",
        sf.sai,
        {
            "steps": only((3, 4)),
            "rate": AT_ONCE,
            "size": whole(1, 10**15, 12),
            "epsilon": number(1e-3, math.inf, 2.0),
            "delta": number(1e-12, 1, 1e-5, below=True),
            "clip_norms": only((0.1, 0.1)),
            "portion": maybe(INNER),
            "budget_split": only("joint_ratio", "sequential"),
        },
        {"clip_norms": "clip_norm"},
        weight=1,
    ),
)


def data(count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, generator=source), torch.randint(2, (count,), generator=source)


def fitted(**given: Any) -> Any:
    settings = {"epsilon": 2.0, "delta": 1e-3, "batch_size": 12, "epochs": 1, "method": m.DPSGD(), **given}
    return sf.fit(nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"), data(), quiet=True, **settings)


def looped(**given: Any) -> Any:
    model = nn.Linear(3, 2)
    settings = {"epsilon": 2.0, "delta": 1e-3, "batch_size": 12, "epochs": 1, "method": m.DPSGD(), **given}
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    private = sf.make_private(
        model, nn.CrossEntropyLoss(reduction="none"), data(), **{"optimizer": sgd, **settings}
    )
    for batch in private:
        private.step(batch)
    return private


FRONT = {
    "epsilon": EPSILON,
    "delta": maybe(number(1e-12, 1 / 12, 1e-3)),
    "noise_multiplier": only(None),  # an epsilon is there already
    "batch_size": maybe(whole(1, 12, 6, 12)),
    "epochs": maybe(number(0, 1e3, 0.5, 2, above=True)),
    "clip_norm": maybe(CLIP),
    "method": METHOD,
    "size": maybe(whole(12, 10**4, 12, 24)),
    "views": only(1),
    "augment": only(None),
    "plan": only(None),
    "safeguards": only(None),
    "running": only(None),
    "private": only(True, False),
    "workers": only(0),  # the rows are in memory
}
RUNS = (
    Place("fit", fitted, {**FRONT, "optimizer": OPTIMIZER}, {"views": "view"}, weight=3),
    Place("make_private", looped, FRONT, {"views": "view"}, weight=2),
)
v = sf.pate
VOTES: Sequence[Place] = (
    Place("Cap", v.Cap, {"queries": whole(1, 10**9, 300), "answers": whole(1, 10**9, 1, 200)}),
    Place("Filter", v.Filter, {"epsilon": number(1e-5, 1e4, 1.0), "delta": DELTA}),
    Place(
        "ConfidentGNMax",
        v.ConfidentGNMax,
        {
            "threshold": ANY,
            "sigma1": number(1e-3, 1e9, 20.0),
            "sigma2": number(1e-3, 1e9, 5.0),
            "limit": only(v.Cap(queries=3, answers=2), v.Filter(epsilon=3.0, delta=1e-5)),
        },
    ),
    Place("Smooth", v.Smooth.at, {"order": number(1.05, 1024, 3.0), "miss": number(1e-12, 0.4, 1e-3)}),
    Place(
        "SmoothedStudent",
        v.SmoothedStudent,
        {
            "epochs": whole(1, 10**9, 3),
            "batch_size": whole(1, 10**9, 8),
            "lr": POSITIVE,
            "momentum": FRACTION,
            "copies": whole(1, 1024, 4),
            "sigma": NOT_NEGATIVE,
        },
    ),
    Place(
        "by_user",
        lambda teachers, seed: v.by_user(["ann", "bob"], teachers, seed=seed),
        {"teachers": whole(2, 1 << 20, 2, 50), "seed": whole(0, 2**63, 0, 7)},
    ),
)

PLACES: Sequence[Place] = (*VALUES, *ACCOUNTS, *RUNS, *VOTES)


@dataclass(frozen=True)
class Case:
    """Settings for a place, and which of them are odd."""

    place: Place
    given: dict[str, Any]
    odd: tuple[str, ...]
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.given.items())
        return f"{self.place.name}({given}), wrong: {self.wrong}"


def case(random: Random) -> Case:
    """Mostly one odd setting, sometimes several, sometimes none."""
    place = random.choices(PLACES, [each.weight for each in PLACES])[0]
    odd = random.sample(list(place.kinds), min(random.choice([0, 1, 1, 1, 1, 2, 3]), len(place.kinds)))
    given = {name: random.choice(ODD if name in odd else kind.good) for name, kind in place.kinds.items()}
    wrong = tuple(
        name for name in odd if not place.kinds[name].takes(given[name]) and not is_good(place, name, given)
    )
    return Case(place, given, tuple(odd), wrong)


USUAL = (math.nan, math.inf, -1, True, "1", None, 10**400)


def with_one(place: Place, name: str, odd: Any) -> Case:
    """A good case with one setting as it should not be, perhaps."""
    given = {each: odd if each == name else kind.good[0] for each, kind in place.kinds.items()}
    fits = place.kinds[name].takes(odd) or is_good(place, name, given)
    return Case(place, given, (name,), () if fits else (name,))


def is_good(place: Place, name: str, given: dict[str, Any]) -> bool:
    return any(given[name] is good for good in place.kinds[name].good)
