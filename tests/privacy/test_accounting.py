"""Epsilon and delta: published values, two accountants, both adjacencies, groups, and every refusal."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections.abc import Callable

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from saltflat.errors import AccountingError, BudgetError
from saltflat.privacy.accounting import bounds, loss, renyi
from saltflat.privacy.accounting.bounds import bound, curve, epsilon, epsilon_unamplified, rdp_epsilon
from saltflat.privacy.accounting.bounds import delta as delta_of
from saltflat.privacy.accounting.calibration import noise_for
from saltflat.privacy.accounting.events import (
    ADD_REMOVE,
    REPLACE,
    compose,
    describe_sampling,
    effective_noise,
    fixed_size_event,
    group_step_event,
    leaves,
    phase_event,
    repeated,
    step_event,
    unamplified,
)
from saltflat.privacy.accounting.filters import RdpFilter, planned_order
from saltflat.privacy.accounting.selection import (
    counted_trials,
    geometric_trials,
    negative_binomial_trials,
    poisson_trials,
)

CIFAR = {"rate": 1 / 25, "steps": 750}


# ---- published values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "steps", "noise", "delta", "tight", "renyi_bound"),
    [
        (1, 1, 2.0, 1e-5, 1.9931, None),
        (256 / 60000, 14062, 1.1, 1e-5, 2.382, 2.597),
        (1 / 25, 750, 1.8408203125, 1e-5, 2.7436, 2.996),
        (1 / 30, 1200, 4.8046875, 1e-5, 0.9075, 0.994),
        (1 / 30, 1200, 2.63671875, 1e-5, 1.828, 1.995),
        (0.1, 200, 0.95, 2e-3, 7.30, 8.51),
        (0.1, 300, 0.95, 2e-3, 9.37, 10.79),
    ],
)
def test_reference_values(
    rate: float, steps: int, noise: float, delta: float, tight: float, renyi_bound: float | None
) -> None:
    event = phase_event(rate, noise, steps)
    assert epsilon(event, delta) == pytest.approx(tight, rel=0.005)
    if renyi_bound is not None:
        assert rdp_epsilon(event, delta) == pytest.approx(renyi_bound, rel=0.005)


@pytest.mark.parametrize(
    ("steps", "delta", "expected"),
    [(200, 2e-4, 9.02), (300, 2e-4, 11.38), (200, 1e-5, 10.99), (300, 1e-5, 13.66)],
)
def test_federated_reference_values(steps: int, delta: float, expected: float) -> None:
    assert epsilon(phase_event(0.1, 0.95, steps), delta) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(("seen", "expected"), [(20, 23.9), (30, 32.4)])
def test_a_predictable_sample_is_not_amplified(seen: int, expected: float) -> None:
    assert epsilon(phase_event(1, 0.95, seen), 2e-3) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(("steps", "expected"), [(6057, 1.51), (37356, 4.11), (69404, 5.86), (130770, 8.54)])
def test_dplis_true_epsilons(steps: int, expected: float) -> None:
    assert epsilon(phase_event(256 / 60000, 1.1, steps), 1e-5) == pytest.approx(expected, rel=0.006)


@pytest.mark.parametrize(
    ("target", "same", "fresh", "ascent"),
    [
        (1, 1.499, 1.458, (1.137, 1.062, 1.023)),
        (2, 3.162, 2.925, (2.305, 2.137, 2.050)),
        (3, 5.074, 4.397, (3.515, 3.230, 3.083)),
    ],
)
def test_dp_sam_costs(target: float, same: float, fresh: float, ascent: tuple[float, ...]) -> None:
    noise = noise_for(epsilon=target, delta=1e-5, **CIFAR)
    cost = lambda sigma, steps=750: epsilon(phase_event(1 / 25, sigma, steps), 1e-5)
    assert cost(effective_noise([noise, noise])) == pytest.approx(same, rel=0.005)
    assert cost(noise, 1500) == pytest.approx(fresh, rel=0.005)
    for factor, expected in zip((2, 3, 5), ascent, strict=True):
        assert cost(effective_noise([factor * noise, noise])) == pytest.approx(expected, rel=0.005)


# ---- C1: never below the optimistic bound, and close to it ------------------------------------------------


def grid_points(count: int, seed: int) -> list[tuple[float, float, int, float]]:
    """Runs of every kind whose epsilon is between 0.05 and 15."""
    draw, points = random.Random(seed), []
    while len(points) < count:
        rate = min(1.0, 10 ** draw.uniform(-3, 0.1))
        noise, steps = 10 ** draw.uniform(-0.15, 0.9), round(10 ** draw.uniform(0, 3))
        delta = 10 ** draw.uniform(-8, -3)
        if 0.05 <= rdp_epsilon(phase_event(rate, noise, steps), delta) <= 15:
            points.append((rate, noise, steps, delta))
    return points


def optimistic(rate: float, noise: float, steps: int, delta: float, near: float) -> float:
    """dp_accounting's lower bound: each loss is rounded down, so it is too low by steps * spacing / 2."""
    top = math.log1p(rate * math.expm1(10.5 / noise + 0.5 / noise**2))
    spacing = max(0.006 * near / steps, top / 60_000)
    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        pessimistic_estimate=False,
        value_discretization_interval=spacing,
        sampling_prob=rate,
        use_connect_dots=False,
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))


def excesses(points: list[tuple[float, float, int, float]], blur: float = 1.0) -> list[float]:
    """How far our bound is above the optimistic one; ``blur`` seeds the bug of claiming too much noise."""
    found = []
    for rate, noise, steps, delta in points:
        event = phase_event(rate, noise * blur, steps)
        ours = epsilon(event, delta)
        lower = optimistic(rate, noise, steps, delta, near=ours)
        assert ours >= lower, (rate, noise, steps, delta, ours, lower)
        assert ours <= rdp_epsilon(event, delta) * (1 + 1e-6)
        if lower > 0.01:
            found.append(ours / lower - 1)
    return found


def test_bounds_hold_on_a_grid() -> None:
    assert float(np.median(excesses(grid_points(40, seed=1)))) <= 0.01


def test_the_grid_catches_too_little_noise() -> None:
    with pytest.raises(AssertionError):
        excesses(grid_points(40, seed=1), blur=1.02)


@pytest.mark.slow
def test_bounds_hold_on_a_thousand_points() -> None:
    assert float(np.median(excesses(grid_points(1000, seed=2)))) <= 0.01


# ---- C5: an upper bound or a typed refusal ----------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("delta", [NAN, 0, 0.0, 1, 1.0, 2.0, -1e-5, INF, -INF, 1e-31, "1e-5", None, True])
def test_bad_deltas_are_refused(delta: object) -> None:
    for measure in (epsilon, rdp_epsilon, epsilon_unamplified, bounds.draft_epsilon):
        with pytest.raises(AccountingError, match="delta"):
            measure(step_event(0.01, 1.0), delta)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [NAN, 0, 0.0, -1.0, INF, 1e-7, 1e13, "1", None])
def test_bad_noise_is_refused(noise: object) -> None:
    for build in (lambda: step_event(0.01, noise), lambda: effective_noise([1.0, noise])):  # type: ignore[arg-type, list-item]
        with pytest.raises(AccountingError, match="noise multiplier"):
            build()
    with pytest.raises(AccountingError, match="noise multiplier"):
        epsilon(PoissonSampledDpEvent(0.01, GaussianDpEvent(noise)), 1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [NAN, 0, 0.0, -0.1, 1.0000001, 2, INF, "0.1", None])
def test_bad_rates_are_refused(rate: object) -> None:
    with pytest.raises(AccountingError, match="sampling rate"):
        step_event(rate, 1.0)  # type: ignore[arg-type]
    with pytest.raises(AccountingError, match="sampling rate"):
        epsilon(PoissonSampledDpEvent(rate, GaussianDpEvent(1.0)), 1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [NAN, 0, -1, 1.5, 10**10, "7", None, True])
def test_bad_counts_are_refused(steps: object) -> None:
    with pytest.raises(AccountingError, match="whole number"):
        phase_event(0.01, 1.0, steps)  # type: ignore[arg-type]
    with pytest.raises(AccountingError, match="whole number"):
        epsilon(SelfComposedDpEvent(GaussianDpEvent(1.0), steps), 1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [NAN, -0.1, INF, "1", None])
def test_bad_epsilons_are_refused(value: object) -> None:
    with pytest.raises(AccountingError, match="epsilon"):
        delta_of(step_event(0.01, 1.0), value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "event",
    [NonPrivateDpEvent(), LaplaceDpEvent(1.0), PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)), "step", None],
)
def test_unknown_events_are_refused(event: object) -> None:
    with pytest.raises(AccountingError):
        epsilon(event, 1e-5)  # type: ignore[arg-type]


EXTREMES = [
    (rate, noise, steps, delta)
    for rate, noise, steps, delta in itertools.product(
        (1e-12, 1e-4, 0.3, 1 - 1e-12, 1.0), (1e-6, 0.05, 1.0, 1e12), (1, 10_000), (1e-30, 1e-20, 1e-5, 0.9)
    )
]


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE])
def test_extremes_give_a_bound_or_a_refusal(adjacency: dp_accounting.NeighboringRelation) -> None:
    for rate, noise, steps, delta in EXTREMES:
        try:
            found = epsilon(phase_event(rate, noise, steps), delta, adjacency=adjacency)
        except AccountingError:
            continue
        assert 0 < found < INF, (rate, noise, steps, delta)
        assert (
            found <= epsilon_unamplified(phase_event(rate, noise, steps), delta, adjacency=adjacency) * 1.001
        )


def test_a_tiny_delta_is_bounded_without_underflow() -> None:
    event = phase_event(0.01, 1.0, 1000)
    found = [epsilon(event, 10.0**-power) for power in (5, 8, 10, 12, 15, 20, 30)]
    assert found == sorted(found)
    assert bound(event, 1e-20).accountant == "RDP"


def test_nothing_costs_nothing() -> None:
    assert epsilon(NoOpDpEvent(), 1e-5) == 0
    assert delta_of(ComposedDpEvent([]), 1.0) == 0


# ---- rounding is charged ----------------------------------------------------------------------------------


def numerical(steps: int) -> loss.Loss:
    """A Gaussian with mu = 1, composed by Fourier transform, to hold against the exact curve."""
    found = loss.loss(((GaussianDpEvent(math.sqrt(steps)), steps),), ADD_REMOVE, loss.FINE)
    assert found is not None
    return found


def falls_below_exact(found: loss.Loss) -> bool:
    exact = lambda delta: dp_accounting.get_epsilon_gaussian(1.0, delta)
    return any(found.epsilon(delta) < exact(delta) for delta in np.geomspace(1e-13, 1e-3, 41))


@pytest.mark.parametrize("steps", [10, 1_000, 10_000, 100_000, 1_234_567])
def test_composition_stays_above_the_exact_curve(steps: int) -> None:
    assert not falls_below_exact(numerical(steps))


def test_without_slack_the_transform_would_fall_below() -> None:
    found = numerical(10_000)
    assert falls_below_exact(loss.Loss(found.distribution, slack=0.0, resolved=True))


def test_fractional_orders_agree_with_integer_ones() -> None:
    for rate, noise in [(0.1, 0.95), (0.004, 1.1), (0.5, 3.0), (1e-5, 5.0), (0.01, 0.4)]:
        leaf = step_event(rate, noise)
        known = renyi._library_curve(leaf, (2.0, 3.0, 8.0, 10.0), ADD_REMOVE)
        integrated = [renyi._integrated(leaf, order) for order in (2.0, 3.0, 8.0, 10.0)]
        np.testing.assert_allclose(integrated, known, rtol=1e-9, atol=1e-14)


# ---- two accountants --------------------------------------------------------------------------------------


def test_accountants_that_contradict_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    event, honest = phase_event(0.04, 2.0, 750), renyi.rdp_bound
    monkeypatch.setattr(renyi, "rdp_bound", lambda *args, **kwargs: honest(*args, **kwargs) / 2)
    with pytest.raises(AccountingError, match="contradict"):
        epsilon(event, 1e-5)


def test_a_loss_distribution_above_the_unsampled_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss.Loss, "epsilon", lambda self, delta: 1e6)
    with pytest.raises(AccountingError, match="contradict"):
        epsilon(phase_event(0.04, 2.0, 750), 1e-5, adjacency=REPLACE)


def test_where_the_loss_distribution_fails_the_renyi_bound_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = phase_event(0.04, 2.0, 750)
    monkeypatch.setattr(loss, "loss", lambda *args: None)
    found = bound(event, 1e-5)
    assert (found.accountant, found.epsilon) == ("RDP", rdp_epsilon(event, 1e-5))


# ---- shape of the bound -----------------------------------------------------------------------------------


def test_epsilon_grows_with_steps_and_rate_and_falls_with_noise_and_delta() -> None:
    base = {"rate": 0.02, "noise": 1.5, "steps": 300}
    cost = lambda delta=1e-5, **change: epsilon(
        phase_event(*(dict(base, **change)[k] for k in ("rate", "noise", "steps"))), delta
    )
    ladders: list[list[float]] = [
        [cost(steps=n) for n in (1, 3, 10, 100, 1000, 20_000)],
        [cost(rate=q) for q in (1e-4, 1e-3, 0.01, 0.1, 0.5, 1.0)],
        [cost(noise=s) for s in (20.0, 5.0, 2.0, 1.0, 0.5)],
        [cost(delta=d) for d in (1e-2, 1e-4, 1e-6, 1e-8)],
    ]
    for ladder in ladders:
        assert all(a < b for a, b in itertools.pairwise(ladder)), ladder


def test_joint_cost_is_below_the_sum() -> None:
    first, second = phase_event(0.04, 1.695, 250), phase_event(0.04, 15.42, 500)
    apart = epsilon(first, 5e-6) + epsilon(second, 5e-6)
    assert epsilon(compose(first, second), 1e-5) < apart


def test_single_steps_cost_what_their_phase_costs() -> None:
    phase = phase_event(0.01, 1.1, 3000)
    assert epsilon(compose(*[step_event(0.01, 1.1)] * 3000), 1e-5) == epsilon(phase, 1e-5)


def test_deep_nesting_is_walked() -> None:
    event = step_event(0.01, 2.0)
    for _ in range(5000):
        event = compose(event, step_event(0.01, 2.0))
    assert leaves(event) == ((step_event(0.01, 2.0), 5001),)


def test_two_answers_on_one_sample_are_one_answer_with_less_noise() -> None:
    both = PoissonSampledDpEvent(0.02, compose(GaussianDpEvent(3.0), GaussianDpEvent(1.5)))
    assert epsilon(repeated(both, 100), 1e-5) == pytest.approx(
        epsilon(phase_event(0.02, effective_noise([3.0, 1.5]), 100), 1e-5)
    )


def test_delta_inverts_epsilon() -> None:
    for event in (phase_event(0.04, 2.0, 750), step_event(1, 2.0), phase_event(0.3, 9.0, 40)):
        for target in (1e-3, 1e-5, 1e-7):
            assert delta_of(event, epsilon(event, target)) == pytest.approx(target, rel=1e-3)


def test_delta_is_an_upper_bound_everywhere() -> None:
    exact = GaussianPrivacyLoss(2.0).get_delta_for_epsilon
    for value in (0.0, 0.1, 1.0, 5.0, 20.0):
        assert delta_of(step_event(1, 2.0), value) >= exact(value)
    assert delta_of(phase_event(0.04, 2.0, 750), 0.0) <= 1


def test_curve_and_unamplified() -> None:
    event = phase_event(0.01, 2.0, 100)
    assert curve(event, (1e-6, 1e-5)) == ((1e-6, epsilon(event, 1e-6)), (1e-5, epsilon(event, 1e-5)))
    assert epsilon_unamplified(event, 1e-5) == pytest.approx(dp_accounting.get_epsilon_gaussian(0.2, 1e-5))


# ---- replace adjacency ------------------------------------------------------------------------------------


def test_replacing_doubles_the_sensitivity_of_an_unsampled_step() -> None:
    exact = dp_accounting.get_epsilon_gaussian(2.0, 1e-5)
    assert epsilon(step_event(1, 4.0), 1e-5, adjacency=REPLACE) == pytest.approx(exact)
    assert epsilon(phase_event(1 - 1e-9, 4.0, 1), 1e-5, adjacency=REPLACE) == pytest.approx(exact, rel=2e-3)


def test_replacing_costs_more_than_adding_and_less_than_two_changes() -> None:
    event, delta = phase_event(0.01, 1.0, 1000), 1e-5
    one, swapped = epsilon(event, delta), epsilon(event, delta, adjacency=REPLACE)
    parts = [(epsilon(event, d), d) for d in np.geomspace(1e-9, 5e-6, 30)]
    two = min(2 * value for value, d in parts if d * (1 + math.exp(value)) <= delta)
    assert one < swapped <= two


def test_the_replace_pair_dominates_swaps_in_any_direction() -> None:
    """The pair that the accountant uses, against swaps u -> v of length up to 1 in the plane."""
    draw = np.random.default_rng(0)
    for rate, noise in [(0.05, 1.0), (0.5, 0.7), (0.9, 2.0)]:
        pair = GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=AdjacencyType.REPLACE)
        line = np.linspace(-8 * noise - 1, 8 * noise + 1, 400)
        x, y = np.meshgrid(line, line)
        bump = lambda at, s=noise, x=x, y=y: np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / (2 * s * s))
        mass = bump((0, 0)).sum()
        for _ in range(6):
            u, v = draw.normal(size=(2, 2))
            u, v = u / max(1, np.linalg.norm(u)), v / max(1, np.linalg.norm(v))
            here, there = ((1 - rate) * bump((0, 0)) + rate * bump(at) for at in (u, v))
            for value in (-0.3, 0.0, 0.1, 0.7, 2.0):
                divergence = np.maximum(here - math.exp(value) * there, 0).sum() / mass
                assert divergence <= pair.get_delta_for_epsilon(value) + 1e-9


def fixed_size_curve() -> float:
    whole = fixed_size_event(4.0, size=100, batch=100)
    return float(renyi.rdp_curve(leaves(whole), (8.0,), adjacency=REPLACE)[0])


def test_a_full_fixed_size_batch_is_a_gaussian_with_doubled_sensitivity() -> None:
    assert fixed_size_curve() == pytest.approx(8.0 / (2 * 2.0**2))


def test_forgetting_to_double_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    renyi._leaf_curve.cache_clear()
    monkeypatch.setattr(renyi, "_halved", lambda leaf: leaf)
    assert fixed_size_curve() != pytest.approx(8.0 / (2 * 2.0**2))
    renyi._leaf_curve.cache_clear()


def test_fixed_size_sampling_needs_replace_adjacency() -> None:
    event = repeated(fixed_size_event(4.0, size=1000, batch=10), 500)
    with pytest.raises(AccountingError, match="add or remove"):
        epsilon(event, 1e-5)
    with pytest.raises(AccountingError, match="add or remove"):
        rdp_epsilon(event, 1e-5)
    amplified = epsilon(event, 1e-5, adjacency=REPLACE)
    assert amplified < epsilon_unamplified(event, 1e-5, adjacency=REPLACE) / 10


def test_an_unamplified_fixed_size_draw_swaps_units_under_add_remove() -> None:
    event = fixed_size_event(4.0, size=1000, batch=10)
    assert unamplified(event) == GaussianDpEvent(2.0)
    assert unamplified(event, adjacency=REPLACE) == GaussianDpEvent(4.0)


# ---- groups -----------------------------------------------------------------------------------------------


def test_a_group_of_one_is_a_unit() -> None:
    assert group_step_event(0.01, 2.0, cap=1) == step_event(0.01, 2.0)
    assert group_step_event(1.0, 8.0, cap=4) == GaussianDpEvent(2.0)


def test_a_group_costs_more_than_a_unit_and_at_most_the_general_group_bound() -> None:
    cap, delta, unit = 3, 1e-5, phase_event(0.01, 2.0, 500)
    group = epsilon(repeated(group_step_event(0.01, 2.0, cap=cap), 500), delta)
    general = []
    for each in np.geomspace(1e-8, delta / cap, 20):
        value = epsilon(unit, float(each))
        if each * math.expm1(cap * value) / math.expm1(value) <= delta:
            general.append(cap * value)
    assert epsilon(unit, delta) < group <= min(general)


def test_groups_under_replace_are_refused() -> None:
    with pytest.raises(AccountingError, match="replace one unit"):
        epsilon(group_step_event(0.01, 2.0, cap=3), 1e-5, adjacency=REPLACE)


# ---- selected trials --------------------------------------------------------------------------------------


def independent_poisson(rdp: Callable[[float], float], order: float, mean: float) -> float:
    """rdp(a) + mean d + ln(mean) / (a - 1), with d from Canonne et al. at ln(1 + 1/(a - 1))."""
    level = math.log1p(1 / (order - 1))
    grid = [float(b) for b in renyi.INTEGERS]
    log_delta = min(
        min(
            (b - 1) * (rdp(b) - level + math.log1p(-1 / b)) - math.log(b),
            0.5 * math.log1p(-math.exp(-rdp(b))),
        )
        for b in grid
    )
    return rdp(order) + mean * math.exp(log_delta) + math.log(mean) / (order - 1)


def independent_geometric(rdp: Callable[[float], float], order: float, mean: float) -> float:
    """rdp(a) + 2 (1 - 1/b) rdp(b) + 2 ln(mean) / b + ln(mean) / (a - 1), best over b."""
    extra = min(2 * (1 - 1 / b) * rdp(b) + 2 * math.log(mean) / b for b in map(float, renyi.INTEGERS))
    return rdp(order) + extra + math.log(mean) / (order - 1)


@pytest.mark.parametrize(
    ("trials", "formula"), [(poisson_trials, independent_poisson), (geometric_trials, independent_geometric)]
)
def test_selected_trials_follow_the_formula(trials: Callable, formula: Callable) -> None:
    run = phase_event(0.01, 2.0, 1000)
    rdp = lambda order: float(renyi.rdp_curve(leaves(run), (order,))[0])
    found = epsilon(trials(run, mean=10), 1e-6)
    curve_of = [formula(rdp, float(a), 10.0) + renyi.conversion(float(a), 1e-6) for a in renyi.INTEGERS]
    assert found == pytest.approx(min(curve_of), rel=1e-4)
    assert rdp_epsilon(run, 1e-6) < found < epsilon(counted_trials(run, 10), 1e-6) * 2


def test_negative_binomial_trials() -> None:
    run = phase_event(0.01, 2.0, 1000)
    few = epsilon(negative_binomial_trials(run, mean=5, shape=0.5), 1e-6)
    assert few < epsilon(negative_binomial_trials(run, mean=50, shape=0.5), 1e-6)
    for mean, shape in [(0.5, 1.0), (NAN, 1.0), (INF, 1.0), (5, -1.0), (5, NAN), (5, INF)]:
        with pytest.raises(AccountingError):
            negative_binomial_trials(run, mean=mean, shape=shape)
    with pytest.raises(AccountingError):
        poisson_trials(run, mean=NAN)


# ---- filters ----------------------------------------------------------------------------------------------


def drain(budget: RdpFilter, seed: int, rate: float) -> list:
    """An adversary that picks every next noise by looking at what is left, and never stops asking."""
    draw, accepted, refused = random.Random(seed), [], 0
    while refused < 30 and len(accepted) < 80:
        left = 1 - budget.spent
        noise = min(
            10 ** draw.uniform(-0.3, 1.5) * (1.0 if draw.random() < 0.5 else left**-0.5 if left > 0 else 50),
            1e5,
        )
        event = phase_event(rate, noise, draw.choice((1, 1, 10, 100)))
        before = budget.spent
        try:
            budget.spend(event)
            accepted.append(event)
        except BudgetError:
            refused += 1
            assert budget.spent == before
    return accepted


def overspent(accepted: list, order: float, target: float, delta: float) -> bool:
    total = sum(float(renyi.rdp_curve(leaves(event), (order,))[0]) for event in accepted)
    return total + renyi.conversion(order, delta) > target * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_filter_never_overspends(seed: int) -> None:
    budget = RdpFilter(epsilon=3.0, delta=1e-5, order=8.0)
    accepted = drain(budget, seed, rate=0.05)
    assert len(accepted) > 3
    assert not overspent(accepted, 8.0, 3.0, 1e-5)
    assert rdp_epsilon(compose(*accepted), 1e-5) <= 3.0


def test_a_filter_that_checks_too_late_overspends(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: RdpFilter, event: object) -> None:
        if self.spent > 1:
            raise BudgetError("late")
        self._spent += self.cost(event) * self._budget  # type: ignore[arg-type]

    monkeypatch.setattr(RdpFilter, "spend", late)
    runs = [drain(RdpFilter(epsilon=3.0, delta=1e-5, order=8.0), seed, rate=0.05) for seed in range(8)]
    assert any(overspent(run, 8.0, 3.0, 1e-5) for run in runs)


def test_filters_refuse_what_they_cannot_bound() -> None:
    for order in (NAN, 1.0, 0.5, 5000.0):
        with pytest.raises(AccountingError, match="order"):
            RdpFilter(epsilon=3.0, delta=1e-5, order=order)
    with pytest.raises(AccountingError, match="nothing to spend"):
        RdpFilter(epsilon=0.1, delta=1e-5, order=2.0)
    with pytest.raises(BudgetError, match="more noise"):
        RdpFilter(epsilon=3.0, delta=1e-5, order=8.0).spend(step_event(1, 0.1))


def test_the_planned_order_wastes_little() -> None:
    plan = phase_event(0.04, 1.84, 750)
    order = planned_order(plan, 1e-5)
    budget = RdpFilter(epsilon=rdp_epsilon(plan, 1e-5) * 1.0001, delta=1e-5, order=order)
    for _ in range(750):
        budget.spend(step_event(0.04, 1.84))
    assert budget.spent == pytest.approx(1, abs=1e-3)


# ---- words, and what is not imported ----------------------------------------------------------------------


def test_sampling_is_described_from_the_event() -> None:
    both = compose(phase_event(0.04, 1.5, 250), phase_event(0.04, 14.0, 500))
    assert describe_sampling(both) == "Poisson sampling at rate 0.04"
    assert describe_sampling(step_event(1, 2.0)) == "every unit in every step"
    assert "10 of 1000" in describe_sampling(fixed_size_event(2.0, size=1000, batch=10))
    assert "3 per user" in describe_sampling(group_step_event(0.1, 2.0, cap=3))


def test_accounting_does_not_import_torch() -> None:
    rooms = "saltflat.privacy.record.statement, saltflat.privacy.accounting.splits"
    code = f"import sys, {rooms}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
