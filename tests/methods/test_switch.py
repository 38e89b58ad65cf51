"""Switch rules: their measures on problems whose curvature is known, and the rule that reads them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from reference import Tree, flat
from steps import CRITERION, ask_about, examples, network, point_of
from torch import Tensor

from saltflat.core.ask import Heard
from saltflat.errors import PrivacyError, SettingError
from saltflat.frames import Precondition, Shift
from saltflat.methods import SAM, SAT, Antithetic, Gap, Plateau, PublicSharpness, Secant
from saltflat.methods.quantile import Following
from saltflat.methods.switch import Readings
from saltflat.optimizers import SGD
from saltflat.tree import Released

WIDTH = 400
CURVATURE = torch.linspace(0.01, 0.2, WIDTH, dtype=torch.float64)
NOISE = 0.05


class Bowl:
    """A door to the loss sum(h w^2) / 2, whose answers have the noise that they say."""

    noise_std = NOISE

    def __init__(self, source: torch.Generator) -> None:
        self.source, self.heard, self.moved = source, [], lambda point: point

    def __call__(self, point: Tree, share: float = 1.0) -> Released:
        point = self.moved(point)
        noise = NOISE * torch.randn(WIDTH, generator=self.source, dtype=torch.float64)
        answer = Released({"w": CURVATURE * point["w"] + noise}, noise_std=NOISE)
        self.heard.append(Heard(point, answer))
        return answer

    def spread(self, spread) -> Bowl:
        self.moved = lambda point: spread(point, 0)[0][0]
        return self


def follow(method, optimizer, steps: int) -> tuple[float, list[Tensor]]:
    """The mean reading, and where the steps asked."""
    source = torch.Generator().manual_seed(0)
    params = {"w": torch.ones(WIDTH, dtype=torch.float64)}
    state, memory, asked = method.init(params), optimizer.init(params), []
    for _ in range(steps):
        door = Bowl(source)
        direction, state = method.step(door, params, state)
        asked.append(door.heard[-1].point["w"])
        params, memory = optimizer.step(params, direction, memory)
    return math.fsum(state.readings) / len(state.readings), asked


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("radius", [0.0, 0.5])
def test_secant_finds_the_curvature_along_the_way(momentum: float, radius: float) -> None:
    measured, asked = follow(Secant(SAT(radius), lr=2.0), SGD(lr=2.0, momentum=momentum), 600)
    moves = [b - a for a, b in pairwise(asked)]
    truth = sum(float((d * CURVATURE * d).sum() / d.square().sum()) for d in moves) / len(moves)
    assert measured == pytest.approx(truth, rel=0.1)


def test_mutant_secant_without_the_correction_is_caught() -> None:
    """A wrong learning rate is a wrong correction, and the estimate is far off."""
    measured, _ = follow(Secant(SAT(0.5), lr=0.0), SGD(lr=2.0), 300)
    right, _ = follow(Secant(SAT(0.5), lr=2.0), SGD(lr=2.0), 300)
    assert abs(measured - right) > 0.5 * abs(right)


def test_antithetic_probes_find_the_curvature() -> None:
    measured, _ = follow(Antithetic(method=SAT(0.0), radius=0.5, every=3), SGD(lr=1e-6), 3000)
    # The weights stay put at 1, so older releases, and u, lie along the curvature itself, plus noise.
    assert float(CURVATURE.min()) < measured < float(CURVATURE.max())
    u = CURVATURE / CURVATURE.norm()
    assert measured == pytest.approx(float((u * CURVATURE * u).sum()), rel=0.3)


def test_a_pair_looks_both_ways_along_older_releases() -> None:
    method = Antithetic(method=SAT(0.3), radius=0.5, every=4)
    _, asked = follow(method, SGD(lr=1e-12), 9)
    first, second = asked[3] - 1, asked[4] - 1
    torch.testing.assert_close(first, -second, rtol=1e-6, atol=1e-9)
    assert float(first.norm()) == pytest.approx(0.5)


class TestGap:
    def test_the_clamped_mean_of_differences(self) -> None:
        model, (x, y) = network(), examples()
        low, high = point_of(model), {n: p + 0.2 for n, p in point_of(model).items()}
        differences = losses(model, high, x, y) - losses(model, low, x, y)
        answer = ask_about(model, (x, y), most=5).gap(low, high, bound=0.3, share=0.1)
        assert answer == pytest.approx(float(differences.clamp(-0.3, 0.3).sum()))

    def test_relative_to_the_rise_that_a_frame_expects(self) -> None:
        """r + sum clamp(d_i - r): units near what was expected are not clamped, however large the rise is."""
        model, (x, y) = network(), examples()
        low, high = point_of(model), {n: p + 0.2 for n, p in point_of(model).items()}
        differences = losses(model, high, x, y) - losses(model, low, x, y)
        origin = {n: torch.full_like(p, 0.07) for n, p in low.items()}
        rise = float((flat(origin) * (flat(high) - flat(low))).sum())
        answer = ask_about(model, (x, y), most=5).gap(low, high, bound=0.3, share=0.1, frame=Shift(origin))
        assert answer == pytest.approx(rise + float((differences - rise).clamp(-0.3, 0.3).sum()))
        scale = {n: torch.full_like(p, 0.5) for n, p in low.items()}
        plain = ask_about(model, (x, y)).gap(low, high, bound=0.3, share=0.1)
        same = ask_about(model, (x, y)).gap(low, high, bound=0.3, share=0.1, frame=Precondition(scale))
        assert same == pytest.approx(plain)

    def test_a_record_that_breaks_the_loss_adds_nothing(self) -> None:
        model, (x, y) = network(), examples()
        low, high = point_of(model), {n: p + 0.2 for n, p in point_of(model).items()}
        y[4] = 99
        keep = torch.arange(12) != 4
        with_it = ask_about(model, (x, y), most=5).gap(low, high, bound=0.3, share=0.1)
        without = ask_about(model, (x[keep], y[keep])).gap(low, high, bound=0.3, share=0.1)
        assert with_it == pytest.approx(without)

    def test_it_is_paid_for(self) -> None:
        door = ask_about(network(), examples(), noise_multiplier=1.0)
        door.gap(point_of(network()), point_of(network()), bound=1.0, share=0.4)
        with pytest.raises(PrivacyError, match="at most 1"):
            door(point_of(network()), share=0.7)

    def test_it_reads_what_the_door_says(self) -> None:
        model = network()
        method = Gap(method=SAT(0.1), radius=0.2, bound=0.5)
        last = {n: torch.ones_like(p) for n, p in point_of(model).items()}
        state = replace(method.init(point_of(model)), last=last)
        _, after = method.step(ask_about(model, examples()), point_of(model), state)
        length = flat(last).norm()
        high = {n: p + 0.2 * last[n] / length for n, p in point_of(model).items()}
        x, y = examples()
        differences = losses(model, high, x, y) - losses(model, point_of(model), x, y)
        assert after.readings == pytest.approx((float(differences.clamp(-0.5, 0.5).sum()),))


def losses(model, point: Tree, x: Tensor, y: Tensor) -> Tensor:
    return CRITERION(torch.func.functional_call(model, point, (x,)), y).detach()


class TestPlateau:
    def state(self, *readings: float, steps: int = 100) -> Readings:
        return Readings(None, steps, readings)

    def test_falling_readings_go_on(self) -> None:
        assert not Plateau(window=2, patience=2)(self.state(*[10.0 - k for k in range(10)]))

    def test_a_better_window_within_patience_goes_on(self) -> None:
        until = Plateau(window=1, patience=2)
        assert not until(self.state(3.0, 2.0, 2.5, 1.0))
        assert until(self.state(3.0, 1.0, 2.5, 1.0))

    def test_tolerance(self) -> None:
        readings = [3.0, 2.95]
        assert not Plateau(window=1, patience=1)(self.state(*readings))
        assert Plateau(window=1, patience=1, tolerance=0.1)(self.state(*readings))

    def test_never_before_the_least_step(self) -> None:
        until = Plateau(window=1, patience=1, least=50)
        assert not until(self.state(1.0, 1.0, 1.0, steps=49))
        assert until(self.state(1.0, 1.0, 1.0, steps=50))

    def test_readings_of_a_method_inside_another(self) -> None:
        assert Plateau(window=1, patience=1)(Following(self.state(1.0, 1.0)))

    def test_a_method_that_reads_nothing_is_named(self) -> None:
        with pytest.raises(SettingError, match="put the phase's method into"):
            Plateau()(Following(None))

    def test_settings(self) -> None:
        for wrong in ({"window": 0}, {"patience": 0}, {"tolerance": math.nan}, {"least": -1}):
            with pytest.raises(SettingError):
                Plateau(**wrong)


def test_public_sharpness_is_read_every_so_many_steps() -> None:
    seen: list[float] = []
    method = PublicSharpness(SAT(0.1), lambda params: seen.append(1.0) or float(len(seen)), every=3)
    follow(method, SGD(lr=0.1), 7)
    assert len(seen) == 3


def test_settings() -> None:
    for build in (
        lambda: PublicSharpness(SAT(0.1), float, every=0),
        lambda: Antithetic(method=SAT(0.1), radius=0.0),
        lambda: Antithetic(method=SAT(0.1), radius=0.1, every=1),
        lambda: Antithetic(method=SAT(0.1), radius=0.1, decay=1.0),
        lambda: Gap(method=SAT(0.1), radius=0.1, bound=1.0, share=1.0),
        lambda: Secant(SAT(0.1, drift=2), lr=1.0),
        lambda: Secant(SAM(0.1), lr=1.0),
    ):
        with pytest.raises(SettingError):
            build()
    with pytest.raises(SettingError, match="bound"):
        ask_about(network(), examples()).gap({}, {}, bound=math.inf, share=0.1)
