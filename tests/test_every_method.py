"""One table for all: methods x invariants. A new method is one file and one row.

The first three invariants are links of one chain: one unit moves a sum by at most its declared sensitivity; the
noise is the multiplier times that sensitivity; a step's multipliers together cost no more than was charged;
and what is charged is what the plan announced. Every check is shown to fail on a mutant at the end.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from reference import FixedNoise, Tree, flat
from steps import CRITERION, beside, by_number, examples, network, phase, plan

from saltflat import Checkpoints, Plan, Public, Safeguards, clipping, per_example, supervised, train
from saltflat.clipping import Automatic, Counted, PerLayer, as_clip
from saltflat.core import ask as door
from saltflat.core import contribution, mechanism, resume, step
from saltflat.core import draw as drawing
from saltflat.core import train as loop
from saltflat.core.contribution import Private
from saltflat.core.mechanism import Bounded
from saltflat.data import TensorUnits
from saltflat.door import Door
from saltflat.errors import PrivacyError
from saltflat.frames import Frame, Precondition, Shift, Shifted
from saltflat.methods import (
    DOPE,
    DPLIS,
    DPSGD,
    SAM,
    SAT,
    AdaDPS,
    Antithetic,
    Coin,
    Earlier,
    Gap,
    Masked,
    Mirror,
    Plateau,
    PublicSharpness,
    Quantile,
    Rescaled,
    Secant,
    WeightMultiplicity,
)
from saltflat.optimizers import SGD, Adam, AdamBC, AntiNoise, Torch
from saltflat.privacy.accounting.events import ChosenDpEvent, leaves
from saltflat.privacy.noise import SeededNoise
from saltflat.schedules import Cosine, Linear, Piecewise, QuarterCosine
from saltflat.tree import climb, mul, norm, zeros_like

SIZE, RATE, LR = 12, 0.5, 0.2
BASE = {"steps": 5, "noise_multiplier": 0.7, "clip_norm": 0.4, "optimizer": SGD(lr=LR, momentum=0.9)}
QUICK = Plateau(window=1, patience=1)
NEVER = 10**6

Phases = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Row:
    """A method, the same method at strength zero, and what it must then equal (DP-SGD unless said otherwise)."""

    phases: Phases
    zero: Phases
    plain: Phases = ({},)
    views: int = 1  # at strength zero there is one


def one(zero: dict[str, Any], *, plain: dict[str, Any] | None = None, **changes: Any) -> Row:
    return Row((changes,), (zero,), (plain or {},))


def two(method: Any, zero: Any, *, until: Any = None) -> Row:
    """SAI: a sharpness-aware phase, then DP-SGD with three times the noise, its optimizer started anew."""
    first = {"steps": 4, "until": until}
    rest = {"steps": 3, "noise_multiplier": 2.1, "optimizer": SGD(lr=0.05)}
    quiet = {"steps": 4}
    return Row(({**first, "method": method}, rest), ({**quiet, "method": zero}, rest), (quiet, rest))


def public(params: Tree) -> float:
    return float(norm(params))


@dataclass(frozen=True)
class InFrame:
    """DP-SGD in a frame that is made of the last release, as methods with public knowledge have it.

    ``apart`` asks the even and the odd units by themselves, ``gap`` also asks how the loss rises along that release.
    """

    frame: Callable[[Tree, float], Frame]
    strength: float
    apart: bool = False
    gap: bool = False

    def init(self, params: Tree) -> Tree:
        return zeros_like(params)

    def step(self, ask: Door, params: Tree, last: Tree) -> tuple[Tree, Tree]:
        frame = self.frame(last, self.strength)
        if self.gap:
            ask.gap(params, climb(params, last, 0.3), bound=0.01, share=0.1, frame=frame)
            ask = ask.part(0.9)
        if self.apart:
            answer = ask.apart(lambda group: [params], weights=[1.0], groups=2, frame=frame)
        else:
            answer = ask(params, frame=frame)
        return answer, answer


def shifted(last: Tree, strength: float) -> Frame:
    return Shift(mul(last, strength))


def scaled(last: Tree, strength: float) -> Frame:
    return Precondition({name: 1 / (1 + strength * leaf.abs()) for name, leaf in last.items()})


def framed(frame: Callable[[Tree, float], Frame], **how: bool) -> Row:
    return one({"method": InFrame(frame, 0.0)}, method=InFrame(frame, 0.7, **how))


KNOWN = Public(
    per_example(network(1), supervised(CRITERION)), TensorUnits(examples(20, seed=9)), "made-up examples"
)


def weights(radius: float, **settings: Any) -> WeightMultiplicity:
    return WeightMultiplicity(public=KNOWN, radius=radius, copies=3, batch=4, **settings)


def around(method: Callable[[float], Any], strength: float, *, views: int = 1) -> dict[str, Row]:
    """A method with public examples by itself, and inside methods that ask units apart, count, and ask for a gap."""
    plain, quick = ({"method": method(0.0)},), {"steps": 2}  # they take their time
    apart = Quantile(DPLIS(method=method(strength), lr=LR, copies=2, per_example=True), share=0.2)
    gap = Gap(method=method(strength), radius=0.2, bound=0.02)
    return {
        "": Row(({"method": method(strength), "steps": 3},), plain, views=views),
        ", apart": Row(({"method": apart, **quick},), plain, views=views),
        ", gap": Row(({"method": gap, **quick},), plain, views=views),
    }


def named(name: str, rows: dict[str, Row]) -> dict[str, Row]:
    return {name + way: row for way, row in rows.items()}


TABLE: dict[str, Row] = {
    "DP-SGD": one({"method": DPSGD()}, method=DPSGD()),
    "DP-Adam": one(
        {"optimizer": Adam(lr=0.05)},
        plain={"optimizer": Torch(lambda p: torch.optim.Adam(p, 0.05))},
        optimizer=Adam(lr=0.05),
    ),
    "DP-AdamBC": one(
        {"optimizer": AdamBC(lr=0.05, floor=1e-30), "noise_multiplier": 0.0},
        plain={"optimizer": Adam(lr=0.05, eps=1e-15), "noise_multiplier": 0.0},
        optimizer=AdamBC(lr=0.05, floor=1e-4),
    ),
    "DP-SAM": one({"method": SAM(0.3, ascent_share=0.0)}, method=SAM(0.3)),
    "DP-SAM, fresh batch": one(
        {"method": SAM(0.3, ascent_share=0.0, fresh=True)}, method=SAM(0.3, fresh=True)
    ),
    "DP-SAT": one({"method": SAT(0.0)}, method=SAT(0.3)),
    "DP-SAT-Momentum": one({"method": SAT(0.0, momentum=0.9)}, method=SAT(0.3, momentum=0.9)),
    "DP-SAT, legacy drift": one(
        {"method": SAT(0.0, drift=3), "optimizer": AntiNoise(BASE["optimizer"], 0.0)},
        method=SAT(0.3, drift=3),
        optimizer=AntiNoise(BASE["optimizer"], 0.6),
    ),
    "DPLIS": one({"method": DPLIS(lr=LR, copies=3, reach=0.0)}, method=DPLIS(lr=LR, copies=3)),
    "DPLIS, antithetic": one(
        {"method": DPLIS(lr=LR, copies=4, reach=0.0, antithetic=True)},
        method=DPLIS(lr=LR, copies=4, antithetic=True),
    ),
    "DPLIS, per example": one(
        {"method": DPLIS(lr=LR, copies=2, reach=0.0, per_example=True)},
        method=DPLIS(lr=LR, copies=2, per_example=True),
    ),
    "DPLIS, legacy sum": one(
        {"method": DPLIS(lr=LR, copies=1, reach=0.0, total=True)}, method=DPLIS(lr=LR, copies=3, total=True)
    ),
    "augmentation": Row(({"method": DPSGD()},), ({"method": DPSGD()},), views=3),
    "per-layer clipping": one({"clip_norm": PerLayer({"": 0.4})}, clip_norm=PerLayer(0.4)),
    "per-layer bounds": one(
        {"clip_norm": PerLayer({"": 0.4})}, clip_norm=PerLayer({"0": 0.3, "2.weight": 0.1, "": 0.2})
    ),
    "automatic clipping": one(  # where everything is clipped, scaling to the bound is clipping to it
        {"clip_norm": Automatic(1e-3, gamma=1e-30)}, plain={"clip_norm": 1e-3}, clip_norm=Automatic()
    ),
    "adaptive clipping": one({"method": Quantile(DPSGD(), share=0.0)}, method=Quantile(DPSGD(), share=0.2)),
    "rescaled": one(
        {"method": Rescaled(DPSGD())},
        plain={"optimizer": SGD(lr=LR / 0.4, momentum=0.9)},
        method=Rescaled(SAT(0.3)),
    ),
    "rescaled, adaptive clipping": one(
        {"method": Quantile(Rescaled(DPSGD()), share=0.0)},
        plain={"optimizer": SGD(lr=LR / 0.4, momentum=0.9)},
        method=Quantile(Rescaled(DPSGD()), share=0.2),
    ),
    "noise schedule": one(
        {"noise_schedule": Piecewise((1.0, 1.0), ends=(2,))},
        noise_schedule=Linear(1.0, 0.5, steps=4, levels=2),
    ),
    "learning-rate schedule": one(
        {"optimizer": SGD(lr=Cosine(LR, LR, steps=4), momentum=0.9)},
        optimizer=SGD(lr=Cosine(LR, 0.0, steps=4), momentum=0.9),
    ),
    "shifted frame": framed(shifted),
    "shifted frame, apart": framed(shifted, apart=True),
    "shifted frame, gap": framed(shifted, gap=True),
    "scaled frame": framed(scaled),
    "scaled frame, apart": framed(scaled, apart=True),
    "scaled frame, gap": framed(scaled, gap=True),
    "shifted frame + adaptive clipping + DPLIS per example": one(
        {"method": Quantile(DPLIS(method=InFrame(shifted, 0.0), lr=LR, reach=0.0), share=0.0)},
        method=Quantile(DPLIS(method=InFrame(shifted, 0.7), lr=LR, copies=2, per_example=True), share=0.2),
    ),
    **named("weight multiplicity", around(weights, 0.3, views=3)),
    "weight multiplicity, adaptive + SAT": one(
        {"method": weights(0.0, method=SAT(0.0))},
        method=weights(0.3, method=SAT(0.3), adaptive=True),
        steps=3,
    ),
    **named("DOPE", around(lambda strength: DOPE(public=KNOWN, batch=4, strength=strength), 1.0)),
    **named("AdaDPS", around(lambda power: AdaDPS(public=KNOWN, batch=4, power=power, every=2), 0.5)),
    "mirror": one(
        {"method": Mirror(public=KNOWN, batch=4, weight=1.0)},
        method=Mirror(public=KNOWN, batch=4, weight=0.6),
    ),
    "mirror, cosine": one(
        {"method": Mirror(public=KNOWN, batch=4, weight=QuarterCosine(1.0, 1.0, steps=5))},
        method=Mirror(public=KNOWN, batch=4, weight=QuarterCosine(1.0, 0.0, steps=5), method=SAT(0.3)),
        optimizer=AdamBC(lr=0.05, floor=1e-4),
    ),
    "mask by releases": one(
        {"method": Masked(DPSGD(), keep=1.0)}, method=Masked(DPSGD(), by=Earlier(every=2))
    ),
    "mask by a coin": one({"method": Masked(SAT(0.0), keep=1.0)}, method=Masked(SAT(0.3), by=Coin(5))),
    "mask by public data": one(
        {"method": Masked(DPSGD(), keep=1.0)},
        method=Masked(DPSGD(), by={name: p.detach() for name, p in network(seed=3).named_parameters()}),
    ),
    "adaptive clipping + mask + DPLIS in a frame": one(
        {"method": Quantile(Masked(DPLIS(lr=LR, reach=0.0), keep=1.0), share=0.0)},
        method=Quantile(Masked(DPLIS(method=InFrame(shifted, 0.7), lr=LR, copies=2), by=Coin()), share=0.2),
    ),
    "mask + SAM, fresh batch": one(
        {"method": Masked(SAM(0.3, ascent_share=0.0, fresh=True), keep=1.0)},
        method=Masked(SAM(0.3, fresh=True), by=Coin()),
    ),
    "SAI": two(SAT(0.3), SAT(0.0)),
    "SAI, public switch": two(
        PublicSharpness(SAT(0.3), public), PublicSharpness(SAT(0.0), public), until=QUICK
    ),
    "SAI, secant switch": two(Secant(SAT(0.3), lr=LR), Secant(SAT(0.0), lr=LR), until=QUICK),
    "SAI, antithetic switch": two(
        Antithetic(method=SAT(0.3), radius=0.2, every=2),
        Antithetic(method=SAT(0.0), radius=0.2, every=NEVER),
        until=Plateau(window=1, patience=1, least=3),
    ),
    "SAI, paid switch": two(
        Gap(method=SAT(0.3), radius=0.2, bound=0.02),
        Gap(method=SAT(0.0), radius=0.2, bound=0.02, every=NEVER),
        until=QUICK,
    ),
    "SAI + DPLIS": two(DPLIS(method=SAT(0.3), lr=LR, copies=2), DPLIS(method=SAT(0.0), lr=LR, reach=0.0)),
    "SAT + augmentation": Row(({"method": SAT(0.3)},), ({"method": SAT(0.0)},), views=3),
    "SAM + adaptive clipping": one(
        {"method": Quantile(SAM(0.3, ascent_share=0.0), share=0.0)}, method=Quantile(SAM(0.3), share=0.2)
    ),
    "SAM, fresh batch + adaptive clipping + DPLIS": one(
        {"method": Quantile(DPLIS(method=SAM(0.3, 0.0, fresh=True), lr=LR, reach=0.0), share=0.0)},
        method=Quantile(DPLIS(method=SAM(0.3, fresh=True), lr=LR, copies=2), share=0.2),
    ),
    "all at once": Row(
        (
            {
                "method": Quantile(
                    Gap(method=DPLIS(method=SAT(0.3), lr=LR, copies=2), radius=0.2, bound=0.02), share=0.1
                ),
                "optimizer": AdamBC(lr=0.05, floor=1e-4),
                "noise_schedule": Linear(1.0, 0.5, steps=4, levels=2),
            },
        ),
        (
            {
                "method": Quantile(
                    Gap(method=DPLIS(method=SAT(0.0), lr=LR, reach=0.0), radius=0.2, bound=0.02, every=NEVER),
                    share=0.0,
                )
            },
        ),
        views=3,
    ),
}


# How a row is run, and what is written down on the way


@dataclass
class Tape:
    """What happened, in order: what was charged, and what went into and came out of the noise."""

    replay: bool = False  # answer with noise alone, so that two runs hear the same whatever the data
    charges: list[list[float]] = field(default_factory=list)  # one list per step
    sums: list[tuple[int, Bounded, float]] = field(default_factory=list)  # (step, sum, multiplier)
    added: list[float] = field(default_factory=list)  # the noise's size over that of its Gaussians
    steps: int = 0

    def step(self, rate: float, noise_multiplier: float) -> None:
        """The meter."""
        if len(self.charges) == self.steps:
            self.charges.append([])
        self.charges[-1].append(noise_multiplier)

    def watch(self, progress: Any) -> None:
        self.steps += 1

    def noised(self, bounded: Bounded, multiplier: float, noise: Any) -> Tree:
        total = {name: leaf.clone() for name, leaf in bounded.total.items()}
        self.sums.append((self.steps, Bounded(total, bounded.sensitivity), multiplier))
        if self.replay:
            bounded = Bounded(zeros_like(bounded.total), bounded.sensitivity)
        last: list[Tree] = []
        answer = NOISED(bounded, multiplier, Overheard(noise, last))
        before = bounded.total if self.replay else total
        if multiplier > 0:
            out = {name: leaf - before[name] for name, leaf in answer.items()}
            self.added.append(float(norm(out)) / float(norm(last[0])))
        return answer


NOISED = mechanism.noised


@dataclass
class Overheard:
    """A source of noise whose draws are kept."""

    source: Any
    drawn: list[Tree]
    private: bool = False  # what is drawn here is nobody's secret

    def normal(self, like: Tree) -> Tree:
        fresh = self.source.normal(like)
        self.drawn.append({name: leaf.clone() for name, leaf in fresh.items()})
        return fresh


def three_views(batch: Any) -> Any:
    x, y = batch
    return torch.stack([x, -x, 2 * x], 1).flatten(0, 1), y.repeat_interleave(3)


def plan_of(phases: Phases) -> Plan:
    return plan(*(phase(**{**BASE, **changes}) for changes in phases), rate=RATE, size=SIZE)


def run(
    phases: Phases,
    *,
    views: int = 1,
    tape: Tape | None = None,
    draw: Callable[..., Any] | None = None,
    data: Sequence[Any] | None = None,
    noise: Any = None,
    physical: int = 5,
    meter: Any = None,
    kept: Checkpoints | None = None,
) -> Tree:
    tape = tape or Tape()
    around = beside(
        noise=noise or FixedNoise(3),
        sampling=np.random.default_rng(3),
        physical=physical,
        meter=meter or tape,
        checkpoints=kept,
        watch=tape.watch,
    )
    unit = per_example(
        network(), supervised(CRITERION), views=views, augment=three_views if views > 1 else None
    )
    torch.seed()  # no result may depend on torch's own source
    with (
        patch.object(door, "noised", tape.noised),
        patch.object(drawing, "poisson", draw or drawing.poisson),
        patch.object(contribution.chunks_of, "apart", by_number),
    ):
        return train(plan_of(phases), unit, TensorUnits(tuple(data or examples(SIZE))), **around)


# The invariants


def check_sensitivity(row: Row) -> None:
    """Without unit j, every sum of the run moves by at most what it declares; nothing else changes."""
    for j, spoil in ((0, None), (5, 1e4), (11, float("nan"))):
        x, y = examples(SIZE)
        if spoil is not None:
            x[j] *= spoil
        pair = [Tape(replay=True), Tape(replay=True)]
        for tape, there in zip(pair, (np.arange(SIZE), np.delete(np.arange(SIZE), j)), strict=True):
            run(row.phases, views=row.views, tape=tape, draw=lambda *_, there=there: there, data=(x, y))
        assert [(s, m) for s, _, m in pair[0].sums] == [(s, m) for s, _, m in pair[1].sums]
        for (_, with_it, _), (_, without, _) in zip(pair[0].sums, pair[1].sums, strict=True):
            assert with_it.sensitivity == without.sensitivity
            assert with_it.total.keys() == without.total.keys()
            gap = torch.cat([(with_it.total[n] - without.total[n]).flatten() for n in with_it.total]).norm()
            assert float(gap) <= with_it.sensitivity * (1 + 1e-6)


def check_noise(row: Row) -> None:
    """The noise is the multiplier times the sensitivity, of an empty sample too."""
    for draw in (None, lambda *_: np.arange(0)):
        tape = Tape()
        run(row.phases, views=row.views, tape=tape, draw=draw)
        for (_, bounded, multiplier), added in zip(tape.sums, tape.added, strict=True):
            assert added == pytest.approx(multiplier * bounded.sensitivity, rel=1e-9)


def check_budget(row: Row) -> None:
    """A step's answers cost what was charged for it, and the charges are the plan's event."""
    the_plan, tape = plan_of(row.phases), Tape()
    run(row.phases, views=row.views, tape=tape)
    assert tape.steps == the_plan.steps
    for number, charged in enumerate(tape.charges):
        spent = math.fsum(multiplier**-2 for when, _, multiplier in tape.sums if when == number)
        assert spent <= math.fsum(noise**-2 for noise in charged) * (1 + 1e-9)
        assert spent >= 0.999 * math.fsum(noise**-2 for noise in charged)  # nothing is paid for in vain
    if any(p.until for p in the_plan.phases):
        assert isinstance(the_plan.event(), ChosenDpEvent)
        run(row.phases, views=row.views, meter=the_plan.filter(1e-5))  # which would refuse to overspend
    else:
        announced = {leaf.event.noise_multiplier: count for leaf, count in leaves(the_plan.event())}
        assert Counter(noise for step in tape.charges for noise in step) == announced


def check_split(row: Row) -> None:
    """The physical batch never changes a result, nor how often noise is drawn."""
    first = FixedNoise(3)
    whole = run(row.phases, views=row.views, physical=100, noise=first)
    for most in (1, 3, 7):
        noise = FixedNoise(3)
        torch.testing.assert_close(
            flat(run(row.phases, views=row.views, physical=most, noise=noise)),
            flat(whole),
            rtol=1e-8,
            atol=1e-11,
        )
        assert noise.calls == first.calls


def check_zero(row: Row) -> None:
    """At strength zero a method is DP-SGD, and at its own strength it is not."""
    plain = flat(run(row.plain))
    torch.testing.assert_close(flat(run(row.zero)), plain, rtol=1e-9, atol=1e-12)
    if row.phases != row.plain and row is not TABLE["DP-SGD"] and row is not TABLE["DP-Adam"]:
        assert not torch.allclose(flat(run(row.phases, views=row.views)), plain, rtol=1e-4)


def check_seeded(row: Row) -> None:
    """One seed, one result, bit for bit; another seed, another."""
    go = lambda seed: flat(run(row.phases, views=row.views, noise=SeededNoise(seed)))
    assert torch.equal(go(7), go(7))
    assert not torch.equal(go(7), go(8))


def check_state(row: Row) -> None:
    """State is plain values: a phase stopped after each step, its state stored and read, goes on as before."""
    for changes in row.phases:
        assert torch.equal(last_weights(row, changes), last_weights(row, changes, stored=True))


def check_resume(row: Row) -> None:
    """Broken off after each step and resumed from its checkpoint by new objects, a run ends where it would have."""
    noise = FixedNoise(3)
    with TemporaryDirectory() as folder:
        kept = Checkpoints(folder, every=1)
        for _ in range(1, plan_of(row.phases).steps):
            with pytest.raises(BrokenOff):
                run(copy.deepcopy(row.phases), views=row.views, noise=noise, kept=kept, tape=OneStep())
        ended = run(copy.deepcopy(row.phases), views=row.views, noise=noise, kept=kept)
    assert torch.equal(flat(ended), flat(run(row.phases, views=row.views)))


class BrokenOff(Exception):
    """As by a crash."""


class OneStep(Tape):
    """Breaks a run off when its second step is about to begin."""

    def step(self, rate: float, noise_multiplier: float) -> None:
        if self.steps == 1:
            raise BrokenOff
        super().step(rate, noise_multiplier)


def last_weights(row: Row, changes: dict[str, Any], *, stored: bool = False) -> torch.Tensor:
    """With ``stored`` as if every step were another process: nothing but the state survives."""
    the_plan, through = plan_of((changes,)), stored_copy if stored else (lambda state: state)
    guards = Safeguards(noise=FixedNoise(3), sampling=np.random.default_rng(3))
    unit = per_example(
        network(), supervised(CRITERION), views=row.views, augment=three_views if row.views > 1 else None
    )
    private = Private(unit, TensorUnits(examples(SIZE)), SIZE)
    at = step.start(the_plan, loop.trainable(unit.model))
    while (here := step.begin(copy.deepcopy(the_plan) if stored else the_plan, at)) is not None:
        own = copy.deepcopy(the_plan) if stored else the_plan
        drawn = step.draw(own, here, SIZE, guards.sampling)
        opened = step.open_door(own, here, drawn, private, safeguards=guards, physical=5)
        at = step.advance(own, replace(here, state=through(here.state), memory=through(here.memory)), opened)
    return flat(at.params)


def stored_copy(state: Any) -> Any:
    """What comes back from a file of tensors and JSON: plain containers and dataclasses, numbers, tensors, None."""
    if state is None or isinstance(state, bool | int | float):
        return state
    if isinstance(state, torch.Tensor):
        return state.clone()
    if dataclasses.is_dataclass(state):
        fields = {each.name: stored_copy(getattr(state, each.name)) for each in dataclasses.fields(state)}
        return type(state)(**fields)
    if isinstance(state, dict):
        assert all(isinstance(key, str) for key in state)
        return {key: stored_copy(value) for key, value in state.items()}
    assert type(state) in (tuple, list), f"{type(state).__name__} cannot be stored"
    return type(state)(stored_copy(value) for value in state)


CHECKS = {
    "sensitivity": check_sensitivity,
    "noise": check_noise,
    "budget": check_budget,
    "split": check_split,
    "zero": check_zero,
    "seeded": check_seeded,
    "state": check_state,
    "resume": check_resume,
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("check", CHECKS)
def test_every_method(name: str, check: str) -> None:
    CHECKS[check](TABLE[name])


# Mutants: a seeded bug for each invariant


def caught(check: Callable[[Row], None], row: Row | str) -> None:
    with pytest.raises((AssertionError, PrivacyError)):
        check(TABLE[row] if isinstance(row, str) else row)


class TestMutants:
    def test_per_layer_sensitivity_of_one_layer(self) -> None:
        largest = property(lambda self: max(self.bounds.values()))
        with patch.object(PerLayer, "sensitivity", largest):
            caught(check_sensitivity, "per-layer bounds")

    def test_a_count_that_nobody_pays_for(self) -> None:
        with patch.object(Counted, "sensitivity", property(lambda self: self.bound)):
            caught(check_sensitivity, "adaptive clipping")

    @pytest.mark.parametrize("name", ["shifted frame", "shifted frame, apart"])
    def test_a_frame_that_is_left_out_of_the_norm(self, name: str) -> None:
        with patch.object(Shifted, "norms", lambda self: self.chunk.norms()):
            caught(check_sensitivity, name)

    def test_a_frame_made_of_the_step_itself(self) -> None:
        """What a frame may not be: an origin that depends on who was drawn moves everybody's gradient."""

        def of_the_batch(self: Any, chunk: Any) -> Any:
            total = chunk.weighted_sum(torch.ones_like(chunk.norms()))
            return Shifted(chunk, total)

        with patch.object(Shift, "enter", of_the_batch):
            caught(check_sensitivity, "shifted frame")

    def test_public_examples_that_are_the_step_itself(self) -> None:
        """What is public may not depend on who was drawn: here the origin is the last question's own answer."""

        def of_the_batch(self: Any, chunk: Any) -> Any:
            return Shifted(chunk, chunk.weighted_sum(torch.ones_like(chunk.norms())))

        with patch.object(Shift, "enter", of_the_batch):
            caught(check_sensitivity, "DOPE")

    def test_views_dealt_out_by_place_in_the_batch(self) -> None:
        """Rows that are taken for views of other units: one that leaves moves them all."""

        sound = contribution.PerExample._asked

        def asked(self: Any, points: Any, weights: Any, batch: Any) -> Any:
            if not self.places:
                return sound(self, points, weights, batch)
            rows = torch.arange(len(batch[0])).view(self.views, -1)
            parts = [tuple(each[rows[place % self.views]] for each in batch) for place in self.places]
            losses = [lambda point, part=part: self.losses_at(point, part) for part in parts]
            return list(zip(losses, points, weights, strict=True))

        with patch.object(contribution.PerExample, "_asked", asked):
            caught(check_sensitivity, "weight multiplicity")

    def test_a_gap_that_is_not_clamped(self) -> None:
        def free(values: Any, bound: float) -> Bounded:
            return replace(mechanism.clamped_sum(values, 1e9), sensitivity=bound)

        with patch.object(door, "clamped_sum", free):
            caught(check_sensitivity, "SAI, paid switch")

    @pytest.mark.parametrize("name", ["DP-SAT, legacy drift", "DPLIS, per example"])
    def test_points_by_place_in_the_batch(self, name: str) -> None:
        """What public code does: a unit that leaves moves its successors to other points."""

        def apart(self: Any, points_of: Any, weights: Any, groups: int | None) -> Iterator[Any]:
            for place, unit in enumerate(self.drawn):
                label = place if groups is None else place * groups // len(self.drawn)
                yield from replace(self, drawn=np.array([unit]))(points_of(label), weights)

        with patch(f"{__name__}.by_number", apart):
            caught(check_sensitivity, name)

    def test_views_as_units(self) -> None:
        with patch.object(clipping, "clip_weights", lambda norms, bound: torch.ones_like(norms)):
            caught(check_sensitivity, "augmentation")

    @pytest.mark.parametrize("name", ["DP-SGD", "automatic clipping", "adaptive clipping"])
    def test_a_hundredth_less_noise(self, name: str) -> None:
        short = lambda bounded, multiplier, noise: SOUND(bounded, 0.99 * multiplier, noise)
        with patch(f"{__name__}.NOISED", short):
            caught(check_noise, name)

    def test_no_noise_for_an_empty_sample(self) -> None:
        def skipping(bounded: Bounded, multiplier: float, noise: Any) -> Tree:
            empty = not any(bool(leaf.any()) for leaf in bounded.total.values())
            return SOUND(bounded, 1e-9 if empty else multiplier, noise)

        with patch(f"{__name__}.NOISED", skipping):
            caught(check_noise, "DP-SGD")

    def test_a_door_that_does_not_count(self) -> None:
        @dataclass(frozen=True)
        class Greedy(SAM):
            def step(self, ask: Any, params: Tree, state: None) -> tuple[Tree, None]:
                ask(params)
                return ask(params), None

        row = one({}, method=Greedy(0.3))
        caught(check_budget, row)  # the door refuses
        with patch.object(door._Budget, "spend", lambda self, share: None):
            caught(check_budget, row)  # and a door that did not would be found out

    def test_a_second_sample_that_the_plan_does_not_know(self) -> None:
        simple = phase(**BASE).noises()
        with patch("saltflat.core.plan.Phase.noises", lambda self: simple):
            caught(check_budget, "DP-SAM, fresh batch")

    def test_a_schedule_that_the_plan_does_not_know(self) -> None:
        simple = phase(**BASE).noises()
        with patch("saltflat.core.plan.Phase.noises", lambda self: simple):
            caught(check_budget, "noise schedule")

    def test_an_early_end_accounted_as_if_planned(self) -> None:
        with patch.object(Plan, "data_driven", False):
            caught(check_budget, "SAI, secant switch")

    def test_noise_for_every_physical_batch(self) -> None:
        def noisy(chunks: Any, clip: Any, like: Tree) -> Bounded:
            parts = [mechanism.clipped_sum([chunk], clip, like) for chunk in chunks]
            noise = FixedNoise(9)
            total = {n: sum(p.total[n] + noise.normal(like)[n] for p in parts) + 0 * like[n] for n in like}
            return Bounded(total, as_clip(clip).sensitivity)

        with patch.object(door, "clipped_sum", noisy):
            caught(check_split, "DP-SGD")

    def test_a_climb_at_radius_zero(self) -> None:
        @dataclass(frozen=True)
        class Offset(SAT):
            def step(self, ask: Any, params: Tree, last: Tree) -> tuple[Tree, Tree]:
                return super().step(ask, {n: p + 1e-6 for n, p in params.items()}, last)

        caught(check_zero, one({"method": Offset(0.0)}, method=Offset(0.3)))

    def test_jitter_from_the_global_source(self) -> None:
        with patch("saltflat.methods.dplis.public_draws", lambda *key: torch.default_generator):
            caught(check_seeded, "DPLIS")

    def test_state_outside_the_state(self) -> None:
        class Forgetful:
            """Remembers its last answer on itself."""

            def init(self, params: Tree) -> None:
                self.last = zeros_like(params)

            def step(self, ask: Any, params: Tree, state: None) -> tuple[Tree, None]:
                last = getattr(self, "last", zeros_like(params))
                self.last = ask({n: p + last[n] for n, p in params.items()})
                return self.last, None

        caught(check_state, one({}, method=Forgetful()))

    def test_a_checkpoint_without_the_methods_state(self) -> None:
        whole = resume.unpack
        forgets = lambda owner, *kept: owner.init(kept[-1]) if isinstance(owner, SAT) else whole(owner, *kept)
        with patch.object(resume, "unpack", forgets):
            caught(check_resume, "DP-SAT")

    def test_state_that_cannot_be_stored(self) -> None:
        @dataclass(frozen=True)
        class Drawing(DPSGD):
            def init(self, params: Tree) -> Any:
                return torch.Generator()

        caught(check_state, one({}, method=Drawing()))


SOUND = mechanism.noised
