"""What an attacker may learn: against closed forms, a direct computation, and riskcal; always from above."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, NonPrivateDpEvent
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

import saltflat as sf
from saltflat.errors import AccountingError, SettingError
from saltflat.privacy.accounting import loss as losses
from saltflat.privacy.accounting.bounds import epsilon
from saltflat.privacy.accounting.calibration import calibrate_scale, noise_for, steps_for, tight
from saltflat.privacy.accounting.events import (
    ADD_REMOVE,
    REPLACE,
    ChosenDpEvent,
    compose,
    fixed_size_event,
    phase_event,
    repeated,
    step_event,
)
from saltflat.privacy.accounting.risk import RENYI, TradeOff, advantage, advantage_of_pair, tradeoff
from saltflat.privacy.accounting.selection import poisson_trials

Array = NDArray[np.float64]
RATES = (0.001, 0.01, 0.1, 0.3, 0.5, 0.9)
NEAR = 2e-4  # how much too high a figure may be where its limit is known


@pytest.mark.parametrize(
    ("noise", "steps"), [(0.2, 1), (0.7, 1), (1.0, 1), (10.0, 5), (50.0, 1), (30.0, 2000)]
)
def test_a_gaussian_has_the_curve_of_its_closed_form(noise: float, steps: int) -> None:
    """The best attack on N(0, s^2) against N(1, s^2) is a threshold: t = Phi(Phi^-1(f) + 1/s)."""
    mu = math.sqrt(steps) / noise
    found = tradeoff(phase_event(1.0, noise, steps))
    assert 0 <= found.advantage - (2 * ndtr(mu / 2) - 1) < 1e-9
    assert found.accuracy == (1 + found.advantage) / 2
    for rate in RATES:
        assert 0 <= found.true_positives(rate) - ndtr(ndtri(rate) + mu) + 1e-13 < NEAR


def sampled_once(rate: float, noise: float) -> tuple[Array, Array]:
    """(f, t) of every threshold attack on one sampled step, a unit added and a unit removed."""
    z = np.linspace(-12 * noise, 1 + 12 * noise, 20_001)
    without = ndtr(-z / noise)
    within = (1 - rate) * without + rate * ndtr((1 - z) / noise)
    return np.concatenate([without, 1 - within]), np.concatenate([within, 1 - without])


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.5), (0.3, 0.8), (0.9, 0.3), (0.5, 5.0)])
def test_one_sampled_step_is_bounded_in_both_directions(rate: float, noise: float) -> None:
    found = tradeoff(step_event(rate, noise))
    assert 0 <= found.advantage - rate * (2 * ndtr(0.5 / noise) - 1) + 1e-13 < NEAR
    false, true = sampled_once(rate, noise)
    slopes = np.exp(np.linspace(0, 12, 600))
    most = np.array(
        [(true - slope * false).max() for slope in slopes]
    )  # delta at each epsilon, by the attacks
    for f, t in zip(false[::997], true[::997], strict=True):
        limit = min((most + slopes * f).min(), (1 - (1 - most - f) / slopes).min(), 1.0)
        assert t <= found.true_positives(float(f)) + 1e-12
        if f > 1e-4:  # below it the lines are further apart
            assert found.true_positives(float(f)) <= limit + NEAR


def composed(rate: float, noise: float, steps: int, *, up: bool) -> tuple[Array, Array]:
    """The losses of several sampled steps and their odds with the unit, by convolution, each rounded up or down."""
    spacing, reach = 5e-4, 10.0
    z = np.linspace(-9 * noise, 1 + 9 * noise, 100_001)
    odds = np.diff((1 - rate) * ndtr(z / noise) + rate * ndtr((z - 1) / noise))
    loss = np.log1p(rate * np.expm1((2 * z - 1) / (2 * noise**2)))
    places = np.ceil(loss[1:] / spacing) if up else np.floor(loss[:-1] / spacing)
    half = round(reach / spacing)
    assert np.abs(places).max() <= half
    one = np.bincount((places + half).astype(int), weights=odds, minlength=2 * half + 1)
    size = 2 * half * steps + 1
    total = np.fft.irfft(np.fft.rfft(one, 2 * size) ** steps, 2 * size)[:size]
    return (np.arange(size) - half * steps) * spacing, np.maximum(total, 0)


def test_several_sampled_steps_agree_with_a_convolution() -> None:
    rate, noise, steps = 0.1, 0.8, 4
    found = tradeoff(phase_event(rate, noise, steps))
    low, high = (
        float((odds * np.maximum(-np.expm1(-loss), 0)).sum())
        for loss, odds in (composed(rate, noise, steps, up=up) for up in (False, True))
    )
    assert low <= found.advantage <= high + NEAR
    assert high - low < 4e-3


@pytest.mark.parametrize("steps", [1, 1000, 100_000])
def test_a_loss_distribution_is_never_below_the_exact_advantage(steps: int) -> None:
    """Rounding inside the Fourier transform is charged."""
    noise = 3 * math.sqrt(steps)
    found = losses.loss(((GaussianDpEvent(noise), steps),), ADD_REMOVE, losses.FINE)
    assert found is not None
    for e in (0.0, 0.3, 1.0):
        exact = ndtr(1 / 6 - 3 * e) - math.exp(e) * ndtr(-1 / 6 - 3 * e)
        assert exact <= found.delta(e) < exact * 1.01 + 1e-6


def test_the_figures_of_a_usual_run() -> None:
    """Rate 1024/50000, 180 steps: one pair of epsilon and delta allows 0.46, 0.90, 1.00."""
    found = []
    for target, noise in ((1.0, 1.3506), (3.0, 0.8212), (8.0, 0.5764)):
        run = phase_event(1024 / 50_000, noise, 180)
        assert epsilon(run, 1e-5) == pytest.approx(target, rel=3e-3)
        found.append(tradeoff(run).advantage)
    assert [round(each, 2) for each in found] == [0.09, 0.18, 0.33]
    assert [round(advantage_of_pair(e, 1e-5), 2) for e in (1, 3, 8)] == [0.46, 0.91, 1.0]


def test_a_curve_is_concave_symmetric_and_never_below_chance() -> None:
    found = tradeoff(phase_event(0.02, 0.8, 180))
    points = found.curve()
    false, true = np.array(points).T
    assert (points[0][0], points[-1]) == (0.0, (1.0, 1.0))
    assert (true >= false).all()
    slopes = np.diff(true) / np.diff(false)
    assert (np.diff(slopes) <= 1e-9).all()
    for f, t in points[1:-1]:
        assert found.true_positives(1 - t) == pytest.approx(1 - f, abs=1e-9)  # the other direction
    assert max(t - f for f, t in points) <= found.advantage + 1e-12


@pytest.mark.parametrize("noise", [0.7, 4.0])
def test_renyi_bounds_alone_give_a_looser_curve_and_say_so(noise: float) -> None:
    event = step_event(1.0, noise)
    exact, found = tradeoff(event), tradeoff(ChosenDpEvent(event))
    assert found.source == RENYI
    assert exact.advantage <= found.advantage < min(1.35 * exact.advantage, 0.95)
    assert found.advantage < advantage_of_pair(epsilon(ChosenDpEvent(event), 1e-5), 1e-5)
    assert advantage(ChosenDpEvent(event)) == found.advantage
    for rate in RATES:
        assert exact.true_positives(rate) - NEAR <= found.true_positives(rate)
    assert found.true_positives(0.0) == 0.0


def test_a_fixed_draw_and_selected_trials_have_a_bound() -> None:
    drawn = repeated(fixed_size_event(4.0, size=60_000, batch=600), 100)
    found = tradeoff(drawn, adjacency=REPLACE)
    assert (found.source, advantage(drawn, adjacency=REPLACE)) == (RENYI, found.advantage)
    assert 0.01 < found.advantage < 0.2  # without the help of sampling it would be 0.99
    run = phase_event(0.01, 1.5, 100)
    assert tradeoff(run).advantage < tradeoff(poisson_trials(run, mean=10)).advantage < 0.5


def test_replacing_a_unit_costs_more_than_removing_it() -> None:
    run = phase_event(0.02, 1.0, 180)
    assert tradeoff(run, adjacency=REPLACE).advantage > 1.5 * tradeoff(run).advantage


def test_ends() -> None:
    nothing = tradeoff(compose())
    assert (nothing.advantage, nothing.true_positives(0.01), nothing.posterior(0.2)) == (0.0, 0.01, 0.2)
    loud = tradeoff(step_event(1.0, 0.01))
    assert loud.advantage == loud.true_positives(0.001) == 1.0
    with pytest.raises(AccountingError, match="without any privacy"):
        tradeoff(NonPrivateDpEvent())
    for bad in (math.nan, -0.1, 1.1, "0.5", None):
        with pytest.raises(AccountingError):
            nothing.true_positives(bad)  # type: ignore[arg-type]
        with pytest.raises(AccountingError):
            nothing.posterior(bad)  # type: ignore[arg-type]


def test_posteriors_follow_from_the_curve() -> None:
    found = tradeoff(step_event(1.0, 1.0))
    t = found.true_positives(0.01)
    assert found.posterior(0.1) == pytest.approx(0.1 * t / (0.1 * t + 0.9 * 0.01))
    assert found.posterior(0.0) == 0.0
    assert found.posterior(1.0) == 1.0
    assert found.posterior(0.5, 0.001) > found.posterior(0.5, 0.01) > found.posterior(0.5, 0.5) > 0.5


# ---- as a target ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "rate", "steps"), [(0.1, 0.04, 750), (0.3, 1.0, 1), (0.05, 0.3, 5), (0.9, 0.5, 60)]
)
def test_an_advantage_is_met_from_below(target: float, rate: float, steps: int) -> None:
    noise = noise_for(advantage=target, rate=rate, steps=steps)
    assert 0.99 * target <= tradeoff(phase_event(rate, noise, steps)).advantage <= target


def test_an_advantage_is_met_where_a_unit_is_replaced() -> None:
    noise = noise_for(advantage=0.1, rate=0.04, steps=100, accountant=tight(REPLACE))
    assert 0.099 <= tradeoff(phase_event(0.04, noise, 100), adjacency=REPLACE).advantage <= 0.1


def test_steps_of_an_advantage() -> None:
    steps = steps_for(advantage=0.1, rate=1.0, noise_multiplier=100.0)
    run = lambda count: tradeoff(phase_event(1.0, 100.0, count)).advantage
    assert run(steps) <= 0.1 < run(steps + 1)


@pytest.mark.parametrize("target", [0, 1, 1.5, -0.1, math.nan, "0.1", True, 1e-7])
def test_what_is_no_advantage(target: object) -> None:
    with pytest.raises(AccountingError, match="advantage"):
        noise_for(advantage=target, rate=0.04, steps=750)  # type: ignore[arg-type]


def test_one_target_is_given() -> None:
    for given in ({}, {"epsilon": 1.0, "delta": 1e-5, "advantage": 0.1}):
        with pytest.raises(AccountingError, match="give one of the two"):
            calibrate_scale(lambda scale: step_event(1.0, scale), **given)  # type: ignore[arg-type]
    with pytest.raises(AccountingError, match="leave delta out"):
        calibrate_scale(lambda scale: step_event(1.0, scale), advantage=0.1, delta=1e-5)
    with pytest.raises(AccountingError, match="more than the run costs with next to no noise"):
        noise_for(advantage=0.5, rate=0.1, steps=5)  # who is in no sample is never seen: 1 - 0.9^5 = 0.41


def plan(noise: float = 1.0, **more: object) -> sf.Plan:
    phase = sf.Phase(
        method=sf.methods.DPSGD(),
        steps=40,
        noise_multiplier=noise,
        clip_norm=0.1,
        optimizer=sf.optimizers.SGD(lr=1.0),
    )
    return sf.Plan(phases=(phase,), rate=0.1, size=1000, **more)  # type: ignore[arg-type]


def test_a_plan_is_calibrated_to_an_advantage() -> None:
    found = sf.calibrate(plan(), advantage=0.15)
    assert 0.1485 <= found.tradeoff().advantage <= 0.15
    with pytest.raises(SettingError, match="plan is a Plan"):
        sf.calibrate(None, advantage=0.15)  # type: ignore[arg-type]


@pytest.mark.slow  # Renyi bounds of such draws take a second each
def test_a_plan_of_fixed_draws_is_calibrated_to_an_advantage() -> None:
    fixed = sf.calibrate(plan(draw=sf.WithoutReplacement()), advantage=0.15)
    assert 0.1485 <= fixed.tradeoff().advantage <= 0.15
    assert fixed.tradeoff().source == RENYI


def test_a_pair_allows_more_than_a_curve() -> None:
    run = phase_event(0.02, 1.0, 180)
    assert advantage_of_pair(epsilon(run, 1e-5), 1e-5) > 2 * tradeoff(run).advantage
    assert advantage_of_pair(0.0, 0.0) == 0.0
    assert advantage_of_pair(1e4, 1e-5) == 1.0
    assert isinstance(tradeoff(run), TradeOff)


PLANS = [  # (rate, noise multiplier, steps)
    *((1024 / 50_000, 1.3506, 180), (1024 / 50_000, 0.8212, 180), (1024 / 50_000, 0.5764, 180)),
    *((256 / 60_000, 1.1, 14_062), (0.04, 2.35, 750), (0.5, 2.0, 10), (0.01, 0.5, 50)),
    *((0.1, 0.35, 3), (0.9, 0.5, 2), (1.0, 10.0, 5)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise", "steps"), PLANS)
def test_riskcal_finds_the_same(rate: float, noise: float, steps: int) -> None:
    """riskcal 1.5.1 works out its figures anew here, from a distribution on a grid of its own."""
    analysis = pytest.importorskip(
        "riskcal.analysis", reason="riskcal is in the bench extra: pip install riskcal"
    )
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    theirs = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-4)
    theirs = theirs.self_compose(steps)
    found = tradeoff(phase_event(rate, noise, steps))
    assert found.advantage == pytest.approx(analysis.get_advantage_from_pld(theirs), abs=1e-3)
    false = np.array([0.001, 0.01, 0.1, 0.5])
    true = 1 - analysis.get_beta_from_pld(theirs, alpha=false)
    assert [found.true_positives(float(each)) for each in false] == pytest.approx(list(true), abs=1e-3)
