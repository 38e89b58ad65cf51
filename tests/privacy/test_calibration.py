"""Calibration: targets are met from below, published noise comes out, the impossible is refused."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

import pytest
from dp_accounting.dp_event import DpEvent

from saltflat.errors import AccountingError
from saltflat.privacy.accounting import calibration
from saltflat.privacy.accounting.bounds import epsilon, rdp_epsilon
from saltflat.privacy.accounting.calibration import (
    RENYI,
    calibrate_scale,
    noise_for,
    remaining_scale,
    steps_for,
    tight,
)
from saltflat.privacy.accounting.events import REPLACE, compose, phase_event
from saltflat.privacy.accounting.splits import SPLITS, joint_ratio, joint_share, phases_event, sequential

NAN, INF = math.nan, math.inf

GRID = [
    (1 / 25, 750, (4.205, 2.349, 1.724), (4.557, 2.522, 1.839)),
    (1 / 30, 1200, (4.411, 2.450, 1.790), (4.779, 2.631, 1.909)),
    (1 / 36, 1080, (3.526, 1.995, 1.486), (3.818, 2.138, 1.580)),
]


@pytest.mark.parametrize(("rate", "steps", "by_pld", "by_rdp"), GRID)
def test_the_noise_grid(
    rate: float, steps: int, by_pld: tuple[float, ...], by_rdp: tuple[float, ...]
) -> None:
    for target, expected, published in zip((1, 2, 3), by_pld, by_rdp, strict=True):
        run = {"epsilon": target, "delta": 1e-5, "rate": rate, "steps": steps}
        assert noise_for(**run) == pytest.approx(expected, rel=0.005)
        assert noise_for(**run, accountant=RENYI) == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(("target", "expected"), [(0.5, 2.432), (1, 1.465), (2, 1.007), (4, 0.764)])
def test_the_fine_tuning_noise(target: float, expected: float) -> None:
    assert noise_for(epsilon=target, delta=1e-5, rate=0.02, steps=250) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(("target", "needed", "epochs"), [(1, 5.95, 14.1), (2, 3.32, 12.6), (3, 2.44, 10.8)])
def test_dp_sam_needs_more_noise_or_fewer_epochs(target: float, needed: float, epochs: float) -> None:
    alone = noise_for(epsilon=target, delta=1e-5, rate=1 / 25, steps=750)
    assert math.sqrt(2) * alone == pytest.approx(needed, rel=0.005)
    steps = steps_for(epsilon=target, delta=1e-5, rate=1 / 25, noise_multiplier=alone / math.sqrt(2))
    assert steps / 25 == pytest.approx(epochs, rel=0.01)


# ---- C4 ---------------------------------------------------------------------------------------------------


def ratios(count: int, seed: int) -> list[float]:
    """Verified epsilon over target, for random budgets and runs."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        target, delta = 10 ** draw.uniform(-1, 1), 10 ** draw.uniform(-7, -3)
        rate, steps = min(1.0, 10 ** draw.uniform(-3, 0.1)), round(10 ** draw.uniform(0, 4))
        noise = noise_for(epsilon=target, delta=delta, rate=rate, steps=steps)
        found.append(epsilon(phase_event(rate, noise, steps), delta) / target)
    return found


def off_target(found: list[float]) -> list[float]:
    return [ratio for ratio in found if not 0.99 <= ratio <= 1]


def test_targets_are_met_from_below() -> None:
    assert off_target(ratios(25, seed=1)) == []


def test_a_lazy_search_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_WINDOW", 0.9)
    assert off_target(ratios(8, seed=1))


def test_an_optimistic_accountant_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    generous = lambda event, delta: 0.98 * epsilon(event, delta)
    lying = calibration.Accountant(measure=generous, draft=generous)
    noise = noise_for(epsilon=2.0, delta=1e-5, rate=0.04, steps=750, accountant=lying)
    assert off_target([epsilon(phase_event(0.04, noise, 750), 1e-5) / 2.0])


@pytest.mark.slow
def test_five_hundred_targets_are_met_from_below() -> None:
    assert off_target(ratios(500, seed=2)) == []


def test_replace_adjacency_is_calibrated_too() -> None:
    noise = noise_for(epsilon=2.0, delta=1e-5, rate=0.04, steps=750, accountant=tight(REPLACE))
    found = epsilon(phase_event(0.04, noise, 750), 1e-5, adjacency=REPLACE)
    assert off_target([found / 2.0]) == []


def test_the_common_case_is_fast() -> None:
    noise_for(epsilon=2.0, delta=1e-5, rate=0.05, steps=500)
    start = time.process_time()
    noise_for(epsilon=2.0, delta=1e-5, rate=0.04, steps=750)
    assert time.process_time() - start < 2


# ---- phases -----------------------------------------------------------------------------------------------

SAI = [
    (1, 0.8, 1 / 25, (250, 500), (3.200, 15.42), 0.794, (2.639, 12.72), 0.924),
    (2, 0.9, 1 / 25, (250, 500), (1.695, 15.42), 1.736, (1.537, 13.99), 0.980),
    (3, 0.9, 1 / 25, (375, 375), (1.480, 9.240), 2.611, (1.352, 8.444), 0.980),
    (1, 0.8, 1 / 30, (450, 750), (3.522, 15.73), 0.794, (2.896, 12.93), 0.926),
    (2, 0.9, 1 / 30, (450, 750), (1.826, 15.73), 1.739, (1.650, 14.21), 0.981),
    (3, 0.9, 1 / 30, (600, 600), (1.523, 9.716), 2.614, (1.390, 8.863), 0.981),
]


@pytest.mark.parametrize(("target", "share", "rate", "steps", "alone", "joint", "scaled", "cost_share"), SAI)
def test_the_three_splits(
    target: float,
    share: float,
    rate: float,
    steps: tuple[int, int],
    alone: tuple[float, float],
    joint: float,
    scaled: tuple[float, float],
    cost_share: float,
) -> None:
    run = {"epsilon": target, "delta": 1e-5, "rate": rate, "steps": steps}
    apart = sequential(**run, shares=(share, 1 - share))
    assert apart == pytest.approx(alone, rel=0.01)
    assert epsilon(phases_event(rate, apart, steps), 1e-5) == pytest.approx(joint, rel=0.01)
    together = joint_ratio(**run, shares=(share, 1 - share))
    assert together == pytest.approx(scaled, rel=0.01)
    costs = [count * math.expm1(sigma**-2) for count, sigma in zip(steps, together, strict=True)]
    first = costs[0] / sum(costs)
    assert first == pytest.approx(cost_share, abs=0.003)
    assert joint_share(**run, shares=(first, 1 - first)) == pytest.approx(together, rel=0.01)


@pytest.mark.parametrize("split", SPLITS.values())
def test_every_split_stays_within_the_budget(split: Callable[..., tuple[float, ...]]) -> None:
    run = {"epsilon": 2.0, "delta": 1e-5, "rate": 0.04}
    noises = split(**run, steps=(100, 200, 300), shares=(0.6, 0.3, 0.1))
    assert epsilon(phases_event(0.04, noises, (100, 200, 300)), 1e-5) <= 2.0
    assert split(**run, steps=(750,), shares=(1.0,))[0] == pytest.approx(2.349, rel=0.005)


@pytest.mark.parametrize(
    "shares", [(), (1.0,), (0.9, 0.2), (0.5, 0.4), (1.0, 0.0), (1.2, -0.2), (NAN, 0.5), (0.5, "0.5")]
)
def test_bad_shares_are_refused(shares: tuple[float, ...]) -> None:
    for split in SPLITS.values():
        with pytest.raises(AccountingError, match="share"):
            split(epsilon=2.0, delta=1e-5, rate=0.04, steps=(250, 500), shares=shares)


# ---- what is left -----------------------------------------------------------------------------------------


def test_the_rest_of_a_budget() -> None:
    spent, future = phase_event(0.04, 3.0, 300), lambda scale: phase_event(0.04, 2.0 * scale, 450)
    scale = remaining_scale(spent, future, epsilon=2.0, delta=1e-5)
    assert off_target([epsilon(compose(spent, future(scale)), 1e-5) / 2.0]) == []


def test_a_spent_budget_has_no_rest() -> None:
    with pytest.raises(AccountingError, match="already spent"):
        remaining_scale(
            phase_event(0.04, 1.0, 750), lambda scale: phase_event(0.04, scale, 1), epsilon=2.0, delta=1e-5
        )


def test_steps_are_the_largest_that_fit() -> None:
    run = {"epsilon": 1.5, "delta": 1e-6, "rate": 0.01, "noise_multiplier": 1.2}
    steps = steps_for(**run)
    cost = lambda count: epsilon(phase_event(0.01, 1.2, count), 1e-6)
    assert cost(steps) <= 1.5 < cost(steps + 1)


def test_no_step_fits() -> None:
    with pytest.raises(AccountingError, match="not one step"):
        steps_for(epsilon=0.1, delta=1e-6, rate=0.5, noise_multiplier=0.5)


# ---- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [NAN, 0, -1.0, INF, 1e-6, "2", None])
def test_bad_targets_are_refused(target: float) -> None:
    with pytest.raises(AccountingError, match="epsilon"):
        noise_for(epsilon=target, delta=1e-5, rate=0.04, steps=750)


@pytest.mark.parametrize(
    "setting", [{"delta": NAN}, {"rate": 0}, {"rate": NAN}, {"steps": 0}, {"steps": 1.5}]
)
def test_bad_settings_are_refused(setting: dict[str, float]) -> None:
    run = {"epsilon": 2.0, "delta": 1e-5, "rate": 0.04, "steps": 750, **setting}
    with pytest.raises(AccountingError):
        noise_for(**run)  # type: ignore[arg-type]


def test_a_target_out_of_reach_is_refused() -> None:
    fixed = phase_event(0.04, 1.0, 750)
    stuck: Callable[[float], DpEvent] = lambda scale: compose(fixed, phase_event(0.04, scale, 10))
    with pytest.raises(AccountingError, match="out of reach"):
        calibrate_scale(stuck, epsilon=1.0, delta=1e-5)
    with pytest.raises(AccountingError, match="lower it"):
        calibrate_scale(lambda scale: phase_event(0.04, 50 + scale, 1), epsilon=5.0, delta=1e-5)


def test_renyi_calibration_meets_its_own_target() -> None:
    noise = noise_for(epsilon=3.0, delta=1e-5, rate=1 / 25, steps=750, accountant=RENYI)
    assert off_target([rdp_epsilon(phase_event(1 / 25, noise, 750), 1e-5) / 3.0]) == []
