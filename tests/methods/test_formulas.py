"""The newer methods and clipping rules against their formulas, written out one example at a time."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from reference import FixedNoise, Tree, clipped_loop, flat, gradient_loop
from steps import CRITERION, ask_about, beside, by_number, examples, network, phase, plan, point_of
from torch import Tensor, nn

from saltflat import each_view, per_example, supervised, train
from saltflat.clipping import Automatic, PerLayer
from saltflat.core.contribution import chunks_of
from saltflat.core.sampling import poisson
from saltflat.data import TensorUnits
from saltflat.errors import PrivacyError, SettingError
from saltflat.frames import Shift
from saltflat.gradients.standardised import standardised
from saltflat.methods import DPLIS, DPSGD, SAM, SAT, Quantile
from saltflat.methods.dplis import Smoothing
from saltflat.methods.quantile import Following
from saltflat.optimizers import SGD, AdamBC, AntiNoise
from saltflat.privacy.noise import SecureNoise
from saltflat.tree import Released

EXACT = {"rtol": 1e-9, "atol": 1e-12}


def gradients(model: nn.Module, point: Tree) -> Tensor:
    return gradient_loop(model, point, *examples(), CRITERION)


def shifted(point: Tree, vector: Tensor) -> Tree:
    parts = vector.split([leaf.numel() for leaf in point.values()])
    return {n: leaf + v.view(leaf.shape) for (n, leaf), v in zip(point.items(), parts, strict=True)}


class TestDPLIS:
    def test_the_mean_over_copies_is_clipped(self) -> None:
        model = network()
        method = DPLIS(lr=0.5, copies=3, reach=2.0)
        door = ask_about(model, examples(), clip_norm=0.3, noise_multiplier=0.7, most=5)
        answer, _ = method.step(door, point_of(model), method.init(point_of(model)))
        jitter = method._jitter(point_of(model), 2.0 * 0.5 * 0.7 * 0.3, (0, 0, 0))
        each = [gradients(model, shifted(point_of(model), flat(u))) for u in jitter]
        clean = clipped_loop(torch.stack(each).mean(0), 0.3)
        torch.testing.assert_close(
            flat(answer), clean + 0.7 * 0.3 * flat(FixedNoise().normal(point_of(model))), **EXACT
        )

    def test_every_example_has_its_own(self) -> None:
        model = network()
        method = DPLIS(lr=0.5, copies=2, per_example=True)
        door = ask_about(model, examples(), clip_norm=0.3, noise_multiplier=0.7, most=5)
        with patch.object(chunks_of, "apart", by_number):
            answer, _ = method.step(door, point_of(model), Smoothing(None, 4))
        rows = []
        for unit in range(12):
            jitter = method._jitter(point_of(model), 10 * 0.5 * 0.7 * 0.3, (0, 4, unit))
            rows.append(
                torch.stack([gradients(model, shifted(point_of(model), flat(u)))[unit] for u in jitter]).mean(
                    0
                )
            )
        expected = clipped_loop(torch.stack(rows), 0.3) + 0.21 * flat(FixedNoise().normal(point_of(model)))
        torch.testing.assert_close(flat(answer), expected, **EXACT)

    def test_jitter_is_the_noise_of_reach_steps(self) -> None:
        like = {"w": torch.zeros(200, 200)}
        (drawn,) = DPLIS(lr=1.0, copies=1)._jitter(like, 0.3, (0, 1))
        assert float(drawn["w"].std()) == pytest.approx(0.3, rel=0.02)

    def test_antithetic_pairs_cancel(self) -> None:
        draws = DPLIS(lr=1.0, copies=6, antithetic=True)._jitter(point_of(network()), 1.0, (0, 1))
        assert len(draws) == 6
        for u, opposite in zip(draws[:3], draws[3:], strict=True):
            assert torch.equal(flat(u), -flat(opposite))

    def test_the_legacy_sum_is_harder_clipping_and_larger_steps(self) -> None:
        """clip(K g, C) = K clip(g, C / K)."""
        model, state = network(), Smoothing(None)
        go = lambda total, bound: flat(
            DPLIS(lr=0.5, copies=4, reach=0.0, total=total).step(
                ask_about(model, examples(), clip_norm=bound), point_of(model), state
            )[0]
        )
        torch.testing.assert_close(go(True, 0.4), 4 * go(False, 0.1), **EXACT)

    def test_settings(self) -> None:
        for wrong in ({"copies": 0}, {"copies": 3, "antithetic": True}, {"reach": -1.0}, {"reach": math.nan}):
            with pytest.raises(SettingError):
                DPLIS(lr=0.1, **wrong)
        with pytest.raises(SettingError, match="twice"):
            DPLIS(lr=0.1, method=SAT(0.1, drift=2), per_example=True).step(
                ask_about(network(), examples()),
                point_of(network()),
                Smoothing(SAT(0.1).init(point_of(network()))),
            )


RADIUS, LR, CLIP, SIGMA, SIZE, RATE = 0.3, 0.2, 0.4, 0.7, 12, 0.5


def by_hand(step, *, steps: int = 5) -> Tensor:
    """w after some steps of ``step(ask, draw, w, past) -> (g, where to go besides)``."""
    model, (x, y) = network(), examples(SIZE)
    noise, sampling = FixedNoise(5), np.random.default_rng(5)
    draw = lambda: poisson(SIZE, RATE, sampling)

    def ask(point_of_unit, drawn, sigma: float = SIGMA) -> Tensor:
        total = torch.zeros_like(flat(point_of(model)))
        for unit in drawn:
            one = gradient_loop(
                model,
                shifted(point_of(model), point_of_unit(unit) - flat(point_of(model))),
                x[unit : unit + 1],
                y[unit : unit + 1],
                CRITERION,
            )
            total += clipped_loop(one, CLIP)
        return (total + sigma * CLIP * flat(noise.normal(point_of(model)))) / (RATE * SIZE)

    w, past = flat(point_of(model)).clone(), []
    for _ in range(steps):
        gradient, aside = step(ask, draw, w, past)
        past.append(gradient)
        w = w - LR * gradient + aside
    return w


def by_library(**changes) -> Tensor:
    the_phase = {"noise_multiplier": SIGMA, "clip_norm": CLIP, "optimizer": SGD(lr=LR), **changes}
    sources = beside(physical=4, noise=FixedNoise(5), sampling=np.random.default_rng(5))
    unit = per_example(network(), supervised(CRITERION))
    return flat(
        train(plan(phase(**the_phase), rate=RATE, size=SIZE), unit, TensorUnits(examples(SIZE)), **sources)
    )


def along(direction: Tensor) -> Tensor:
    return RADIUS * direction / (direction.norm() + 1e-16)


def test_sam_on_a_fresh_batch() -> None:
    def step(ask, draw, w, past):
        fresh, drawn = draw(), draw()
        up = along(ask(lambda unit: w, fresh, 3 * SIGMA))
        return ask(lambda unit: w + up, drawn), 0

    torch.testing.assert_close(by_library(method=SAM(RADIUS, fresh=True)), by_hand(step), **EXACT)


def test_a_fresh_batch_must_be_declared() -> None:
    with pytest.raises(PrivacyError, match="fresh_noise"):
        _ = ask_about(network(), examples()).fresh


def test_the_drift_of_public_code() -> None:
    """Part j of three is asked at w + j climbs, and the weights keep two climbs."""

    def step(ask, draw, w, past):
        up = along(past[-1]) if past else torch.zeros_like(w)
        return ask(lambda unit: w + (unit % 3 + 1) * up, draw()), 2 * up

    with patch.object(chunks_of, "apart", by_number):
        ours = by_library(method=SAT(RADIUS, drift=3), optimizer=AntiNoise(SGD(lr=LR), 2 * RADIUS))
    torch.testing.assert_close(ours, by_hand(step), **EXACT)


def test_pure_anti_noise() -> None:
    def step(ask, draw, w, past):
        return ask(lambda unit: w, draw()), along(past[-1]) if past else 0

    torch.testing.assert_close(by_library(optimizer=AntiNoise(SGD(lr=LR), RADIUS)), by_hand(step), **EXACT)


def test_drift_settings() -> None:
    for wrong in ({"drift": 0}, {"drift": 1.5}, {"drift": 2, "momentum": 0.9}):
        with pytest.raises(SettingError, match="drift"):
            SAT(0.1, **wrong)


class TestClippingRules:
    def test_per_layer(self) -> None:
        model = network()
        bounds = {"0": 0.3, "2.weight": 0.1, "": 0.2}
        names = list(point_of(model))
        layer = {n: "0" if n[0] == "0" else ("2.weight" if n == "2.weight" else "") for n in names}
        sizes = [p.numel() for p in point_of(model).values()]
        expected = torch.zeros(sum(sizes), dtype=torch.float64)
        for g in gradients(model, point_of(model)):
            leaves = dict(zip(names, g.split(sizes), strict=True))
            for prefix, bound in bounds.items():
                length = torch.cat([leaves[n] for n in names if layer[n] == prefix]).norm()
                for n in names:
                    if layer[n] == prefix:
                        leaves[n] = leaves[n] * min(1.0, bound / float(length))
            expected += torch.cat(list(leaves.values()))
        answer = ask_about(model, examples(), clip_norm=PerLayer(bounds), most=5)(point_of(model))
        torch.testing.assert_close(flat(answer), expected, **EXACT)

    def test_one_number_is_shared_by_the_layers(self) -> None:
        layers = PerLayer(0.6).layers(point_of(network()))
        assert [names for names, _ in layers] == [[f"{k}.weight", f"{k}.bias"] for k in (0, 2, 4)]
        assert math.hypot(*(bound for _, bound in layers)) == pytest.approx(PerLayer(0.6).sensitivity)

    def test_automatic(self) -> None:
        model = network()
        expected = sum(0.5 * g / (g.norm() + 0.01) for g in gradients(model, point_of(model)))
        answer = ask_about(model, examples(), clip_norm=Automatic(0.5), most=5)(point_of(model))
        torch.testing.assert_close(flat(answer), expected, **EXACT)

    @pytest.mark.parametrize("clip", [PerLayer(0.5), Automatic(0.5)])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
    def test_a_hostile_record_is_bounded(self, clip, bad: float) -> None:
        model, (x, y) = network(), examples()
        x[3] = bad
        keep = torch.arange(12) != 3
        with_it = flat(ask_about(model, (x, y), clip_norm=clip)(point_of(model)))
        without = flat(ask_about(model, (x[keep], y[keep]), clip_norm=clip)(point_of(model)))
        assert torch.isfinite(with_it).all()
        assert float((with_it - without).norm()) <= 0.5 * (1 + 1e-6)

    def test_per_layer_around_an_origin(self) -> None:
        model = network()
        point = point_of(model)
        origin = {n: 0.1 * torch.ones_like(p) for n, p in point.items()}
        whole = ask_about(model, examples(), clip_norm=PerLayer({"": 0.3}))(point, frame=Shift(origin))
        same = ask_about(model, examples(), clip_norm=0.3)(point, frame=Shift(origin))
        torch.testing.assert_close(flat(whole), flat(same), **EXACT)

    def test_a_part_that_straddles_two_layers(self) -> None:
        """A standardised weight and its gain are kept together; their layers may differ."""

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.weight = nn.Parameter(torch.randn(3, 1, 3, 3))
                self.gain = nn.Parameter(torch.rand(3) + 0.5)
                self.head = nn.Linear(3, 3)

            def forward(self, x: Tensor) -> Tensor:
                y = nn.functional.conv2d(x, standardised(self.weight, self.gain), padding=1)
                return self.head(y.tanh().mean((2, 3)))

        model = Net().double()
        x, y = torch.randn(6, 1, 6, 6, dtype=torch.float64), torch.randint(3, (6,))
        rule = PerLayer({"gain": 1e-2, "": 0.5})
        answer = ask_about(model, (x, y), clip_norm=rule)(point_of(model))
        total = {n: torch.zeros_like(p) for n, p in point_of(model).items()}
        for g in gradient_loop(model, point_of(model), x, y, CRITERION):
            parts = shifted({n: torch.zeros_like(p) for n, p in total.items()}, g)
            rest = torch.cat([parts[n].flatten() for n in parts if n != "gain"]).norm()
            for n, leaf in parts.items():
                bound, length = (1e-2, leaf.norm()) if n == "gain" else (0.5, rest)
                total[n] += leaf * min(1.0, bound / float(length))
        torch.testing.assert_close(flat(answer), flat(total), rtol=1e-7, atol=1e-10)

    def test_settings(self) -> None:
        for wrong in (0.0, -1.0, math.nan, math.inf, {}, {"0": math.nan}):
            with pytest.raises(SettingError):
                PerLayer(wrong)
        with pytest.raises(SettingError, match="gamma"):
            Automatic(gamma=0.0)
        with pytest.raises(SettingError, match=r"'2\.weight' has no bound"):
            PerLayer({"0": 1.0}).layers(point_of(network()))
        with pytest.raises(SettingError, match="7"):
            PerLayer({"": 1.0, "7": 1.0}).layers(point_of(network()))


class TestAdaptiveClipping:
    def test_one_step(self) -> None:
        """Noise off: the count is exact, and C moves by exp(-rate (b - quantile))."""
        model, method = network(), Quantile(DPSGD(), quantile=0.3, speed=0.5, share=0.2)
        norms = gradients(model, point_of(model)).norm(dim=1)
        bound = float(norms.sort()[0][7:9].mean())  # 8 of 12 are within
        state = Following(None, 1.0)
        door = ask_about(model, examples(), clip_norm=bound)
        answer, after = method.step(door, point_of(model), state)
        # expected_units is 1 here, so the fraction is sum(b - 1/2) + 1/2 = 2.5, and is taken as 1
        assert door.fraction == pytest.approx(0.5 * (8 - 4) + 0.5)
        assert after.factor == pytest.approx(math.exp(-0.5 * (1 - 0.3)))
        torch.testing.assert_close(
            flat(answer), clipped_loop(gradients(model, point_of(model)), bound), **EXACT
        )

    def test_it_finds_the_median(self) -> None:
        """All units in every step, weights that hardly move, little noise."""
        factors: list[float] = []

        class Noting(Quantile):
            def step(self, ask, params, state):
                direction, state = super().step(ask, params, state)
                factors.append(state.factor)
                return direction, state

        changes = {"method": Noting(DPSGD(), share=0.5), "steps": 120, "noise_multiplier": 0.05}
        one = phase(**changes, clip_norm=20.0, optimizer=SGD(lr=1e-9))
        sources = beside(noise=FixedNoise(5), sampling=np.random.default_rng(5))
        train(
            plan(one, rate=1.0, size=12),
            per_example(network(), supervised(CRITERION)),
            TensorUnits(examples()),
            **sources,
        )
        norms = gradients(network(), point_of(network())).norm(dim=1).sort()[0]
        assert float(norms[4]) <= 20.0 * factors[-1] <= float(norms[7])

    def test_noise_of_the_count_and_of_the_gradients(self) -> None:
        """sigma / (2 sqrt(share)) on the count and sigma C / sqrt(1 - share) on each coordinate."""
        model, (x, y) = network(), examples()
        noise, counts, directions = FixedNoise(1), [], []
        for _ in range(3000):
            door = ask_about(model, (x[:0], y[:0]), noise_multiplier=3.0, clip_norm=0.5, noise=noise)
            counting = door.counting(1.0, 0.1)
            directions.append(counting(point_of(model)))
            counts.append(counting.fraction - 0.5)
        assert float(np.std(counts)) == pytest.approx(3.0 / (2 * 0.1**0.5), rel=0.05)
        expected = 3.0 * 0.5 / 0.9**0.5
        assert float(torch.stack([flat(d) for d in directions]).std()) == pytest.approx(expected, rel=0.01)
        assert directions[0].noise_std == pytest.approx(expected)
        assert "" not in directions[0]

    def test_single_precision_and_secret_noise(self) -> None:
        model, (x, y) = network().float(), examples()
        door = ask_about(model, (x.float(), y), noise_multiplier=1.0, noise=SecureNoise()).counting(1.0, 0.1)
        answer = door(point_of(model))
        assert {leaf.dtype for leaf in answer.values()} == {torch.float32}
        assert math.isfinite(door.fraction)

    def test_factors_multiply(self) -> None:
        door = ask_about(network(), examples(), clip_norm=2.0).counting(0.5, 0.1).counting(0.1, 0.0)
        assert door.sensitivity == pytest.approx(0.1)

    def test_flat_clipping_only(self) -> None:
        with pytest.raises(SettingError, match="give the phase a number"):
            ask_about(network(), examples(), clip_norm=Automatic()).counting(1.0, 0.1)

    def test_settings(self) -> None:
        for wrong in ({"quantile": 1.1}, {"speed": -1.0}, {"share": 1.0}, {"share": math.nan}):
            with pytest.raises(SettingError):
                Quantile(DPSGD(), **wrong)


class TestAdamBC:
    def test_the_formula_with_changing_noise(self) -> None:
        generator = torch.Generator().manual_seed(0)
        adam, b1, b2 = AdamBC(lr=0.1, floor=1e-3), 0.9, 0.999
        w = {"w": torch.zeros(50, dtype=torch.float64)}
        state, m, v, p, expected = adam.init(w), 0.0, 0.0, 0.0, w["w"]
        for t, std in enumerate((0.5, 0.5, 0.2, 0.1), 1):
            g = torch.randn(50, generator=generator, dtype=torch.float64)
            w, state = adam.step(w, Released({"w": g}, noise_std=std), state)
            m, v, p = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2, b2 * p + (1 - b2) * std**2
            corrected = (v / (1 - b2**t) - p / (1 - b2**t)).clamp(min=1e-3)
            expected = expected - 0.1 * (m / (1 - b1**t)) / corrected.sqrt()
        torch.testing.assert_close(w["w"], expected, **EXACT)

    def test_the_noise_level_comes_with_the_answer(self) -> None:
        """sigma C / expected, more for a part of a step; a share of DP-SAM's step is not the whole."""
        model = network()
        ask = lambda: ask_about(model, examples(), noise_multiplier=2.0, clip_norm=0.3)
        assert ask()(point_of(model)).noise_std == pytest.approx(0.6) == ask().noise_std
        assert SAM(0.1).step(ask(), point_of(model), None)[0].noise_std == pytest.approx(0.6 / 0.9**0.5)

    def test_a_direction_without_its_noise_level_is_refused(self) -> None:
        w = {"w": torch.zeros(2)}
        with pytest.raises(SettingError, match="noise level"):
            AdamBC(lr=0.1).step(w, {"w": torch.ones(2)}, AdamBC(lr=0.1).init(w))


def test_each_view() -> None:
    model, (x, y) = network(), examples()
    twice = each_view(lambda batch: (batch[0] * 1.0, batch[1]), 2)
    chunk = per_example(model, supervised(CRITERION), views=2, augment=twice)(
        [point_of(model)], [1.0], (x, y)
    )
    torch.testing.assert_close(chunk.norms(), gradients(model, point_of(model)).norm(dim=1), **EXACT)
