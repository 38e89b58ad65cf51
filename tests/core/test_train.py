"""The loop: plain training as a special case, determinism, what is charged and when, and the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from reference import FixedNoise, Tree, flat
from steps import CRITERION, beside, examples, network, phase, plan, point_of
from torch import nn

from saltflat import Phase, Plan, calibrate, per_example, supervised, train
from saltflat.core.train import Progress
from saltflat.data import DatasetUnits, TensorUnits
from saltflat.errors import AccountingError, BudgetError, SettingError
from saltflat.methods import DPSGD, SAM, SAT, Secant
from saltflat.optimizers import EMA, SGD, Adam, Torch
from saltflat.privacy.noise import SecureNoise, SecureSampling
from saltflat.privacy.record.history import Budget
from saltflat.privacy.record.ledger import Ledger

INFINITE = float("inf")


def run(the_plan: Plan, *, seed: int = 0, **surroundings) -> Tree:
    model = network()
    around = beside(
        **{"noise": FixedNoise(seed), "sampling": np.random.default_rng(seed), "physical": 5} | surroundings
    )
    return train(the_plan, per_example(model, supervised(CRITERION)), TensorUnits(examples()), **around)


class TestPlainTraining:
    """No clipping and no noise, every unit in every step: the very weights of ordinary training."""

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (SGD(lr=0.3), lambda p: torch.optim.SGD(p, 0.3)),
            (SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
            (SGD(lr=0.1, weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1)),
            (Adam(lr=0.05), lambda p: torch.optim.Adam(p, 0.05)),
            (Adam(lr=0.05, weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1)),
            (Torch(lambda p: torch.optim.AdamW(p, 0.05)), lambda p: torch.optim.AdamW(p, 0.05)),
            (Torch(lambda p: torch.optim.RMSprop(p, 0.01)), lambda p: torch.optim.RMSprop(p, 0.01)),
        ],
    )
    def test_equals_torch(self, ours, theirs) -> None:
        whole = plan(phase(noise_multiplier=0.0, clip_norm=INFINITE, optimizer=ours, steps=8), rate=1.0)
        model, (x, y) = network(), examples()
        optimizer = theirs(model.parameters())
        for _ in range(8):
            optimizer.zero_grad()
            CRITERION(model(x), y).mean().backward()
            optimizer.step()
        torch.testing.assert_close(flat(run(whole)), flat(point_of(model)), rtol=1e-9, atol=1e-12)

    def test_schedulers(self) -> None:
        decay = lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        ours = phase(optimizer=Torch(lambda p: torch.optim.SGD(p, 0.1), decay))
        same = phase(optimizer=SGD(lr=lambda step: 0.1 * 0.5**step))
        torch.testing.assert_close(flat(run(plan(ours))), flat(run(plan(same))), rtol=1e-12, atol=0)


class TestLoop:
    def test_same_sources_same_weights(self) -> None:
        assert torch.equal(flat(run(plan())), flat(run(plan())))
        assert not torch.equal(flat(run(plan())), flat(run(plan(), seed=1)))

    def test_fresh_sources_differ(self) -> None:
        model = network()
        go = lambda: flat(
            train(plan(phase(steps=1)), per_example(model, supervised(CRITERION)), TensorUnits(examples()))
        )
        first = go()
        model.load_state_dict(network().state_dict())
        assert not torch.equal(first, go())

    @pytest.mark.parametrize("method", [DPSGD(), SAT(0.1), SAT(0.1, momentum=0.9), SAM(0.1)])
    @pytest.mark.parametrize("most", [1, 3, 7])
    def test_any_split_gives_the_same_weights(self, method, most: int) -> None:
        whole = run(plan(phase(method=method)), physical=100)
        torch.testing.assert_close(
            flat(run(plan(phase(method=method)), physical=most)), flat(whole), rtol=1e-9, atol=0
        )

    def test_model_gets_the_weights(self) -> None:
        model = network()
        params = train(plan(), per_example(model, supervised(CRITERION)), TensorUnits(examples()))
        assert all(torch.equal(p, params[n]) for n, p in model.named_parameters())

    def test_charged_before_noise_is_drawn(self) -> None:
        events: list[object] = []

        class Source(FixedNoise):
            def normal(self, like: Tree) -> Tree:
                events.append("noise")
                return super().normal(like)

        class Meter:
            def step(self, rate: float, noise_multiplier: float) -> None:
                events.append((rate, noise_multiplier))

        two = plan(phase(steps=2), phase(steps=1, noise_multiplier=4.0, method=SAM(0.1)))
        run(two, noise=Source(), meter=Meter())
        assert events == [(0.5, 1.0), "noise", (0.5, 1.0), "noise", (0.5, 4.0), "noise", "noise"]

    def test_a_second_sample_is_charged_too(self) -> None:
        charged: list[float] = []

        class Meter:
            def step(self, rate: float, noise_multiplier: float) -> None:
                charged.append(noise_multiplier)

        run(plan(phase(steps=2, method=SAM(0.1, fresh=True))), meter=Meter())
        assert sorted(charged) == [1.0, 1.0, 3.0, 3.0]

    def test_a_ledger_is_a_meter(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "twelve.ledger", dataset="twelve") as ledger:
            with ledger.run("one", unit="example", block=2) as meter:
                run(plan(phase(steps=5)), meter=meter, noise=SecureNoise(), sampling=SecureSampling())
            assert ledger.history.steps() == {(0.5, 1.0): 5}
            assert ledger.epsilon(1e-5) == pytest.approx(plan(phase(steps=5)).epsilon(1e-5))

    def test_the_step_past_the_budget_is_not_taken(self, tmp_path: Path) -> None:
        class Secret(FixedNoise):
            private = True

        noise, most = Secret(), plan(phase(steps=3)).epsilon(1e-5)
        budget = Budget(epsilon=most * 1.001, delta=1e-5)
        with Ledger.open(tmp_path / "twelve.ledger", dataset="twelve", budget=budget) as ledger:
            meter = ledger.run("one", unit="example")
            with pytest.raises(BudgetError):
                run(plan(phase(steps=5)), meter=meter, noise=noise, sampling=SecureSampling())
        assert noise.calls == 3

    def test_progress(self) -> None:
        seen: list[Progress] = []
        run(plan(phase(steps=2), phase(steps=3)), watch=seen.append)
        assert [(p.step, p.phase) for p in seen] == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]

    def test_a_phase_that_ends_early_leaves_its_steps_to_the_next(self) -> None:
        seen: list[Progress] = []
        third = Secant(SAT(0.1), lr=0.1), lambda state: state.steps == 3
        early = phase(steps=5, method=third[0], until=third[1])
        run(plan(early, phase(steps=2, noise_multiplier=2.0)), watch=seen.append)
        assert [p.phase for p in seen] == [0, 0, 0, 1, 1, 1, 1]

    def test_the_last_phase_just_ends(self) -> None:
        seen: list[Progress] = []
        run(plan(phase(steps=2), phase(steps=5, until=lambda state: True)), watch=seen.append)
        assert [p.phase for p in seen] == [0, 0, 1]

    def test_length_is_never_read_on_the_way(self) -> None:
        class Shy(TensorUnits):
            reads = 0

            @property
            def count(self) -> int:
                Shy.reads += 1
                return len(self.tensors[0])

        model = network()
        train(plan(phase(steps=3)), per_example(model, supervised(CRITERION)), Shy(examples()))
        assert Shy.reads == 1

    def test_datasets_are_as_good_as_tensors(self) -> None:
        data = torch.utils.data.TensorDataset(*examples())
        around = beside(noise=FixedNoise(), sampling=np.random.default_rng(0), physical=5)
        params = train(plan(), per_example(network(), supervised(CRITERION)), DatasetUnits.of(data), **around)
        assert torch.equal(flat(params), flat(run(plan())))

    def test_an_empty_draw_is_a_step_like_any_other(self) -> None:
        noise = FixedNoise()
        run(plan(phase(steps=3), rate=1e-9), noise=noise)
        assert noise.calls == 3


class TestMethods:
    def test_sat_with_radius_0_is_dpsgd(self) -> None:
        assert torch.equal(flat(run(plan(phase(method=SAT(0.0))))), flat(run(plan(phase(method=DPSGD())))))

    def test_sam_with_shares_0_and_1_is_dpsgd(self) -> None:
        sam = SAM(0.1, ascent_share=0.0)
        assert torch.equal(flat(run(plan(phase(method=sam)))), flat(run(plan(phase(method=DPSGD())))))

    def test_sat_differs(self) -> None:
        assert not torch.allclose(
            flat(run(plan(phase(method=SAT(0.5))))), flat(run(plan(phase(method=DPSGD()))))
        )

    @pytest.mark.parametrize("wrong", [-1.0, float("nan"), INFINITE])
    def test_settings(self, wrong: float) -> None:
        for build in (SAT, SAM):
            with pytest.raises(SettingError, match="radius"):
                build(wrong)
        with pytest.raises(SettingError, match="momentum"):
            SAT(0.1, momentum=1.0)
        with pytest.raises(SettingError, match="ascent_share"):
            SAM(0.1, ascent_share=1.0)


class TestPlan:
    def test_published_epsilon(self) -> None:
        one = Phase(method=DPSGD(), steps=14062, noise_multiplier=1.1, clip_norm=1.0, optimizer=SGD(lr=0.1))
        assert Plan(phases=(one,), rate=256 / 60000, size=60000).epsilon(1e-5) == pytest.approx(
            2.382, rel=0.005
        )

    def test_what_a_method_asks_does_not_change_the_cost(self) -> None:
        cost = lambda method: plan(phase(method=method)).event()
        assert cost(DPSGD()) == cost(SAT(0.1)) == cost(SAM(0.1))

    def test_calibration_keeps_ratios_and_the_target(self) -> None:
        two = plan(phase(steps=20, noise_multiplier=1.0), phase(steps=30, noise_multiplier=5.0), rate=0.1)
        fitted = calibrate(two, epsilon=2.0, delta=1e-5)
        assert 0.99 * 2.0 <= fitted.epsilon(1e-5) <= 2.0
        first, second = (p.noise_multiplier for p in fitted.phases)
        assert second / first == pytest.approx(5.0)

    def test_no_noise_has_no_epsilon(self) -> None:
        with pytest.raises(AccountingError):
            plan(phase(noise_multiplier=0.0)).epsilon(1e-5)

    @pytest.mark.parametrize(
        ("setting", "value"),
        [
            *[("steps", value) for value in (0, 1.5)],
            *[("noise_multiplier", value) for value in (-1.0, float("nan"))],
            *[("clip_norm", value) for value in (0.0, float("nan"), INFINITE, "0.1", None)],
        ],
    )
    def test_wrong_phases(self, setting: str, value: float) -> None:
        with pytest.raises(SettingError, match=setting):
            phase(**{setting: value})

    @pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
    def test_wrong_rates(self, rate: float) -> None:
        with pytest.raises(SettingError, match="rate"):
            plan(rate=rate)

    def test_wrong_sizes(self) -> None:
        for size in (0, -3, 1.5):
            with pytest.raises(SettingError, match="size"):
                plan(size=size)
        with pytest.raises(SettingError, match="at least one phase"):
            Plan(phases=(), rate=0.1, size=10)


def test_ema_warms_up() -> None:
    ema, w = EMA(0.999), {"w": torch.ones(1)}
    state = ema.step(w, ema.init({"w": torch.zeros(1)}))
    assert float(state[1]["w"]) == pytest.approx(0.9)


def test_users_count_once() -> None:
    """Four rows of one user are clipped as one."""
    from saltflat import per_user

    model, (x, y) = network(), examples(8)
    chunk = per_user(model, supervised(CRITERION), rows=4)([point_of(model)], [1.0], (x, y))
    assert chunk.norms().shape == (2,)
    assert isinstance(model, nn.Module)
