"""What plans of several phases cost: SAI's splits, phases that end early, schedules, second samples."""

from __future__ import annotations

import pytest
from steps import phase, plan

from saltflat import calibrate, sai, split_budget
from saltflat.clipping import Automatic
from saltflat.errors import AccountingError, BudgetError, SettingError
from saltflat.methods import DPLIS, DPSGD, SAM, SAT, Plateau, Secant
from saltflat.privacy.accounting import bounds
from saltflat.privacy.accounting.events import (
    ChosenDpEvent,
    compose,
    describe_sampling,
    leaves,
    phase_event,
    step_event,
    unamplified,
)
from saltflat.privacy.accounting.selection import poisson_trials
from saltflat.privacy.record.statement import Declared, state
from saltflat.schedules import Linear, Piecewise

NEVER = lambda state: False
SETTING = {"steps": (20, 30), "rate": 0.1, "size": 1000, "epsilon": 2.0, "delta": 1e-5}


class TestSAI:
    @pytest.mark.parametrize("split", ["joint_ratio", "joint_share"])
    def test_joint_splits_spend_the_budget(self, split: str) -> None:
        spent = sai(**SETTING, budget_split=split).epsilon(1e-5)
        assert 0.99 * 2.0 <= spent <= 2.0

    def test_the_paper_s_rule_wastes(self) -> None:
        assert sai(**SETTING, budget_split="sequential").epsilon(1e-5) < 0.95 * 2.0

    def test_most_of_the_budget_goes_to_the_first_phase(self) -> None:
        first, second = sai(**SETTING).phases
        assert first.noise_multiplier < second.noise_multiplier / 3
        assert isinstance(first.method, SAT)
        assert isinstance(second.method, DPSGD)
        assert (first.optimizer.lr, second.optimizer.lr) == (2.0, 0.1)

    def test_any_two_methods_go_in(self) -> None:
        methods = (DPLIS(method=SAT(0.05), lr=2.0), SAM(0.1))
        mixed = sai(**SETTING, methods=methods, clip_norms=(Automatic(), 0.2))
        assert mixed.event() == sai(**SETTING).event()

    @pytest.mark.parametrize("split", ["sequential", "joint_ratio", "joint_share"])
    def test_a_switch_by_results_stays_within_the_budget(self, split: str) -> None:
        driven = sai(
            **SETTING,
            methods=(Secant(SAT(0.05), lr=2.0), DPSGD()),
            until=Plateau(window=5, patience=1),
            budget_split=split,
        )
        assert driven.data_driven
        assert driven.epsilon(1e-5) <= 2.0
        fixed = sai(**SETTING, budget_split=split)
        costs_more = driven.phases[0].noise_multiplier > fixed.phases[0].noise_multiplier
        assert costs_more == (split != "sequential")  # which wastes enough to have it for nothing

    @pytest.mark.parametrize(("epsilon", "portion"), [(1.0, 0.8), (2.0, 0.9)])
    def test_the_first_phase_has_the_paper_s_portion(self, epsilon: float, portion: float) -> None:
        setting = {**SETTING, "epsilon": epsilon}
        assert sai(**setting) == sai(**setting, portion=portion)

    @pytest.mark.parametrize("split", ["sequential", "joint_ratio"])
    def test_by_rdp_there_is_more_noise(self, split: str) -> None:
        given = {"portions": (0.9, 0.1), "epsilon": 2.0, "delta": 1e-5, "budget_split": split}
        tight, loose = (
            split_budget(sai(**SETTING), **given, accountant=accountant) for accountant in ("PLD", "RDP")
        )
        for before, after in zip(tight.phases, loose.phases, strict=True):
            assert before.noise_multiplier < after.noise_multiplier
        if split == "joint_ratio":
            assert 0.99 * 2.0 <= bounds.rdp_epsilon(loose.event(), 1e-5) <= 2.0
        with pytest.raises(SettingError, match="accountant is one of PLD, RDP; got 'rdp'"):
            split_budget(sai(**SETTING), **given, accountant="rdp")

    def test_unknown_split(self) -> None:
        with pytest.raises(SettingError, match="joint_ratio"):
            sai(**SETTING, budget_split="joint")

    def test_decimal_portions_are_those_of_sai(self) -> None:
        whole, budget = sai(**SETTING, portion=0.9), {"epsilon": 2.0, "delta": 1e-5}
        assert split_budget(whole, portions=(0.9, 0.1), **budget) == whole
        for wrong in ((0.9, 0.2), (0.9,), (0.5, 0.3, 0.2)):
            with pytest.raises(AccountingError, match="summing to 1"):
                split_budget(whole, portions=wrong, **budget)

    def test_second_samples_and_schedules_are_paid_for(self) -> None:
        phases = (
            phase(method=SAM(0.1, fresh=True), steps=10),
            phase(steps=10, noise_schedule=Piecewise((1.0, 0.8), ends=(5,))),
        )
        whole = split_budget(plan(*phases, rate=0.1), portions=(0.8, 0.2), epsilon=2.0, delta=1e-5)
        assert 0.99 * 2.0 <= whole.epsilon(1e-5) <= 2.0


def driven(first: float = 1.0, second: float = 3.0, **changes):
    return plan(
        phase(steps=20, noise_multiplier=first, until=NEVER, **changes),
        phase(steps=30, noise_multiplier=second),
        rate=0.1,
        size=1000,
    )


class TestEarlyEnds:
    def test_renyi_accounting_of_the_dearest_path(self) -> None:
        dearest = compose(phase_event(0.1, 1.0, 20), phase_event(0.1, 3.0, 30))
        assert driven().epsilon(1e-5) == pytest.approx(bounds.rdp_epsilon(dearest, 1e-5))
        assert driven().epsilon(1e-5) > bounds.epsilon(dearest, 1e-5)

    def test_one_noise_level_throughout_is_an_ordinary_run(self) -> None:
        """Every step is dominated by the same pair, whatever decides between them."""
        assert not driven(second=1.0).data_driven
        assert leaves(driven(second=1.0).event()) == leaves(phase_event(0.1, 1.0, 50))

    def test_the_last_phase_may_end_early(self) -> None:
        only = plan(phase(steps=20, until=NEVER), rate=0.1)
        assert leaves(only.event()) == leaves(phase_event(0.1, 1.0, 20))

    @pytest.mark.parametrize("second", [0.9, 0.999])
    def test_saved_steps_may_not_become_dearer(self, second: float) -> None:
        with pytest.raises(SettingError, match="less noise"):
            driven(second=second)

    def test_nor_draw_more_samples(self) -> None:
        with pytest.raises(SettingError, match="samples"):
            plan(phase(until=NEVER), phase(method=SAM(0.1, fresh=True), noise_multiplier=2.0))

    def test_schedules_are_refused_there(self) -> None:
        with pytest.raises(SettingError, match="noise_schedule"):
            driven(noise_schedule=Linear(1.0, 2.0, steps=20))

    def test_the_filter_lets_the_dearest_path_pass_and_no_more(self) -> None:
        meter = driven().filter(1e-5)
        for sigma, steps in ((1.0, 20), (3.0, 30)):
            for _ in range(steps):
                meter.step(0.1, sigma)
        with pytest.raises(BudgetError):
            meter.step(0.1, 1.0)

    def test_every_path_costs_less_at_every_order(self) -> None:
        from saltflat.privacy.accounting.renyi import ORDERS, rdp_curve

        most = rdp_curve(leaves(driven().event()), ORDERS)
        for taken in range(1, 21):
            path = compose(phase_event(0.1, 1.0, taken), phase_event(0.1, 3.0, 50 - taken))
            assert (rdp_curve(leaves(path), ORDERS) <= most * (1 + 1e-12)).all()

    def test_calibration(self) -> None:
        fitted = calibrate(driven(), epsilon=2.0, delta=1e-5)
        assert 0.99 * 2.0 <= fitted.epsilon(1e-5) <= 2.0


class TestChosenEvents:
    EVENT = ChosenDpEvent(compose(phase_event(0.1, 1.0, 20), phase_event(0.1, 3.0, 30)))

    def test_no_loss_distribution_answers_for_it(self) -> None:
        assert bounds.bound(self.EVENT, 1e-5).accountant == "RDP"

    def test_mutant_accounted_as_if_planned_is_smaller(self) -> None:
        assert bounds.epsilon(self.EVENT.event, 1e-5) < 0.99 * bounds.epsilon(self.EVENT, 1e-5)

    def test_statement(self) -> None:
        statement = state(self.EVENT, Declared(delta=1e-5, size=1000))
        assert statement.accountant == "RDP"
        assert statement.sampling == "Poisson sampling at rate 0.1"
        assert statement.epsilon_unamplified >= statement.epsilon

    def test_it_composes_with_planned_steps(self) -> None:
        more = bounds.epsilon(compose(self.EVENT, step_event(0.1, 5.0)), 1e-5)
        assert more > bounds.epsilon(self.EVENT, 1e-5)
        assert describe_sampling(unamplified(self.EVENT)) == "every unit in every step"

    def test_selection_over_it_is_refused(self) -> None:
        with pytest.raises(AccountingError):
            bounds.epsilon(poisson_trials(self.EVENT, mean=3), 1e-5)


class TestSchedules:
    def test_the_event_holds_every_level(self) -> None:
        falling = plan(phase(steps=10, noise_schedule=Linear(1.0, 0.5, steps=10, levels=2)), rate=0.1)
        both = compose(phase_event(0.1, 1.0, 5), phase_event(0.1, 0.5, 5))
        assert leaves(falling.event()) == leaves(both)

    def test_calibration_keeps_the_schedule(self) -> None:
        falling = plan(phase(steps=10, noise_schedule=Linear(1.0, 0.5, steps=10, levels=2)), rate=0.1)
        fitted = calibrate(falling, epsilon=2.0, delta=1e-5)
        (only,) = fitted.phases
        assert only.noise_at(9)[0] == pytest.approx(only.noise_at(0)[0] / 2)
        assert 0.99 * 2.0 <= fitted.epsilon(1e-5) <= 2.0

    @pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
    def test_factors_are_positive(self, wrong: float) -> None:
        with pytest.raises(SettingError, match=r"noise_schedule|finite numbers"):
            phase(noise_schedule=Piecewise((1.0, wrong), ends=(2,)))

    def test_settings(self) -> None:
        for build in (
            lambda: Piecewise((1.0,), ends=(1,)),
            lambda: Piecewise((1.0, 2.0, 3.0), ends=(5, 5)),
            lambda: Linear(1.0, 0.0, steps=0),
            lambda: Linear(1.0, 0.0, steps=5, levels=1),
        ):
            with pytest.raises(SettingError):
                build()


def test_a_fresh_batch_is_one_more_event() -> None:
    fresh = plan(phase(method=SAM(0.1, fresh=True), steps=10, noise_multiplier=2.0), rate=0.1)
    both = compose(phase_event(0.1, 2.0, 10), phase_event(0.1, 6.0, 10))
    assert leaves(fresh.event()) == leaves(both)
