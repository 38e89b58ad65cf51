"""What is put on record is what runs: noise, sampling, unit, adjacency, and whether results chose the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import FixedNoise
from steps import CRITERION, beside, examples, network, phase, plan

import saltflat as sf
from saltflat.data import TensorUnits
from saltflat.errors import BudgetError, PrivacyError, SettingError
from saltflat.privacy import SecureSampling
from saltflat.privacy.accounting import bounds, renyi
from saltflat.privacy.accounting.events import compose, leaves, phase_event
from saltflat.privacy.noise import is_secret
from saltflat.privacy.record import history
from saltflat.privacy.record.history import Budget, epsilon_of, most, read
from saltflat.privacy.record.ledger import Ledger, Run

DELTA = 1e-3


class Secret(FixedNoise):
    """Fixed for the test, and passed off as private."""

    private = True


class Open(FixedNoise):
    """Noise that says it is not private by the one word that is promised, and by no other."""

    private = False


class Repeated(np.random.Generator):
    """A sampler that says it is not private."""

    private = False


def repeated() -> Repeated:
    return Repeated(np.random.PCG64(0))


def by_train(the_plan: sf.Plan, **around: Any) -> None:
    contribution = sf.per_example(network(), sf.supervised(CRITERION))
    sf.train(the_plan, contribution, TensorUnits(examples()), **beside(**around))


def by_fit(the_plan: sf.Plan, **around: Any) -> sf.front.Fitted:
    return sf.fit(network(), CRITERION, examples(), plan=the_plan, delta=DELTA, **beside(**around))


def by_loop(the_plan: sf.Plan, **around: Any) -> None:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    private = sf.make_private(
        model, CRITERION, examples(), optimizer=sgd, plan=the_plan, delta=DELTA, **beside(**around)
    )
    for batch in private:
        private.step(batch)


WAYS = pytest.mark.parametrize("way", [by_train, by_fit, by_loop])


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "noise": ({}, {"noise": Open()}, "the noise says that it is not private"),
    "sampling": ({}, {"sampling": repeated()}, "the sampling says that it is not private"),
    "unit": ({"unit": "user"}, {}, "one example is a unit here, and the ledger's run would say one user"),
    "adjacency": ({"adjacency": "replace"}, {}, "under adjacency 'add-or-remove'; .* would say 'replace'"),
}


class TestOneCheck:
    """The same words for every way in; nothing was charged and no noise drawn."""

    @WAYS
    @pytest.mark.parametrize("what", REFUSED)
    def test_what_the_record_would_not_say_is_refused(
        self, tmp_path: Path, way: Callable[..., Any], what: str
    ) -> None:
        recorded, given, words = REFUSED[what]
        noise = given.get("noise") or Secret()
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve") as ledger:
            run = ledger.run("one", **recorded)
            with pytest.raises(PrivacyError, match=words) as caught:
                way(plan(), **{"noise": noise, **given, "meter": run})
            assert "\n" not in str(caught.value)
            assert ledger.history.steps() == {}
        assert noise.calls == 0

    @WAYS
    @pytest.mark.parametrize("given", [{"noise": Open()}, {"sampling": repeated()}, {"noise": Secret()}])
    def test_a_run_that_is_stamped_takes_any_source(
        self, tmp_path: Path, way: Callable[..., Any], given: dict[str, Any]
    ) -> None:
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve") as ledger:
            way(plan(), **{"noise": Secret(), **given, "meter": ledger.run("one", private=False, block=1)})
            assert ledger.history.steps() == {(0.5, 1.0): 5}
            assert ledger.epsilon(DELTA) == float("inf")

    @WAYS
    def test_meters_that_are_no_ledgers_run_have_nothing_to_compare(self, way: Callable[..., Any]) -> None:
        class Counted:
            steps = 0

            def step(self, rate: float, noise_multiplier: float) -> None:
                self.steps += 1

        counter = Counted()
        way(plan(), noise=Open(), meter=counter)
        assert counter.steps == 5
        way(plan(), noise=Secret(), meter=plan(phase(steps=6)).filter(DELTA))

    def test_users_are_charged_as_users(self, tmp_path: Path) -> None:
        contribution = sf.per_user(network(), sf.supervised(CRITERION), rows=1)
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve") as ledger:
            around = beside(noise=Secret(), meter=ledger.run("one", unit="user", block=1))
            sf.train(plan(), contribution, TensorUnits(examples()), **around)
            assert sum(ledger.history.steps().values()) == 5

    def test_a_source_of_samples_that_does_not_say_counts_as_secret(self) -> None:
        assert is_secret(SecureSampling())
        assert not is_secret(np.random.default_rng())
        assert not is_secret(repeated())


class Counting:
    """DP-SGD that counts its steps, so that `until` can end a phase at any of them."""

    def init(self, params: Any) -> int:
        return 0

    def step(self, ask: Any, params: Any, state: int) -> tuple[Any, int]:
        return ask(params), state + 1


def chosen(switch: int = 1, noises: tuple[float, float] = (1.0, 4.0)) -> sf.Plan:
    """Results end the dear phase; here always after ``switch`` steps."""
    early = phase(steps=6, method=Counting(), noise_multiplier=noises[0], until=lambda state: state == switch)
    return plan(early, phase(steps=6, noise_multiplier=noises[1]))


class TestChosenByResults:
    @WAYS
    def test_a_budget_without_order_refuses_such_a_plan(
        self, tmp_path: Path, way: Callable[..., Any]
    ) -> None:
        noise = Secret()
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve", budget=Budget(99, DELTA)) as ledger:
            with pytest.raises(BudgetError, match=r"order=plan.filter\(0.001\).order\)") as caught:
                way(chosen(), noise=noise, meter=ledger.run("one"))
            assert "\n" not in str(caught.value)
            assert "Budget(epsilon=99, delta=0.001" in str(caught.value)
            assert ledger.history.steps() == {}
            way(plan(), noise=noise, meter=ledger.run("two"))  # a fixed list is what it is for
        assert noise.calls == 5

    @WAYS
    def test_a_budget_with_its_order_takes_it(self, tmp_path: Path, way: Callable[..., Any]) -> None:
        the_plan = chosen()
        budget = Budget(the_plan.epsilon(DELTA) * 1.0001, DELTA, order=the_plan.filter(DELTA).order)
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve", budget=budget) as ledger:
            way(the_plan, noise=Secret(), meter=ledger.run("one", block=1))
            assert ledger.history.steps() == {(0.5, 1.0): 1, (0.5, 4.0): 11}
            assert 0 < ledger.history.gone() < 1

    @WAYS
    @pytest.mark.parametrize("switch", [1, 3, 6])
    def test_its_epsilon_on_record_is_that_of_all_that_results_could_have_chosen(
        self, tmp_path: Path, way: Callable[..., Any], switch: int
    ) -> None:
        """Not that of the steps it took, which a loss distribution would put at less than a third."""
        the_plan = chosen(switch)
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve") as ledger:
            with ledger.run("one") as run:
                way(the_plan, noise=Secret(), meter=run)
                assert run.epsilon(DELTA) == pytest.approx(the_plan.epsilon(DELTA))
            assert ledger.epsilon(DELTA) == pytest.approx(the_plan.epsilon(DELTA))
            taken = epsilon_of(ledger.history.steps(), DELTA, "add-or-remove")
            assert taken < ledger.epsilon(DELTA) * (0.4 if switch == 1 else 0.99)

    def test_runs_beside_it_are_counted_by_renyi_accounting_too(self, tmp_path: Path) -> None:
        the_plan = chosen()
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve") as ledger:
            ledger.run("fixed").charge(0.5, 2.0, steps=30)
            by_train(the_plan, noise=Secret(), meter=ledger.run("chosen"))
            ledger.close()
        found = read(tmp_path / "a.ledger")
        everything = compose(
            phase_event(0.5, 2.0, 30), *(phase_event(*c, n) for c, n in the_plan.by_cost().items())
        )
        assert found.epsilon(DELTA) == pytest.approx(bounds.rdp_epsilon(everything, DELTA))
        alone = epsilon_of({(0.5, 2.0): 30}, DELTA, "add-or-remove")
        assert found.epsilon(DELTA, found.named("fixed")) == alone  # a list of its own, fixed in advance

    @pytest.mark.parametrize("allow_more", [False, True])
    def test_statement_and_ledger_agree_after_a_crash(self, tmp_path: Path, allow_more: bool) -> None:
        """Steps that ran again count as the dearest: on another path they could have been.

        Without ``allow_more`` they are taken from the plan's own.
        """

        class Crash(Exception):
            pass

        def crash(progress: Any) -> None:
            if progress.step == 5:
                raise Crash

        the_plan = chosen()

        def go(watch: Any) -> tuple[sf.front.Fitted, float]:
            with Ledger.open(tmp_path / "a.ledger", dataset="twelve") as ledger:
                run = ledger.run("one", block=1)
                kept = sf.Checkpoints(tmp_path / "kept", every=100, allow_more=allow_more)
                fitted = by_fit(the_plan, noise=Secret(), meter=run, checkpoints=kept, watch=watch)
                return fitted, ledger.epsilon(DELTA)

        with pytest.raises(Crash):
            go(crash)
        fitted, on_record = go(lambda progress: None)
        assert fitted.epsilon == pytest.approx(on_record)
        more = Counter({(0.5, 1.0): 4}) if allow_more else Counter()
        again = the_plan.by_cost() + more  # kept after step 1, broken off after step 5
        event = compose(*(phase_event(*cost, steps) for cost, steps in again.items()))
        assert on_record == pytest.approx(bounds.rdp_epsilon(event, DELTA))

    def test_mutant_the_epsilon_of_what_was_taken_is_caught(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(history, "most", lambda planned, charged: dict(charged))
        with pytest.raises(AssertionError):
            self.test_its_epsilon_on_record_is_that_of_all_that_results_could_have_chosen(
                tmp_path, by_train, 1
            )

    def test_a_ledger_with_such_a_run_takes_no_budget_without_order(self, tmp_path: Path) -> None:
        path = tmp_path / "a.ledger"
        with Ledger.open(path, dataset="twelve") as ledger:
            by_train(chosen(), noise=Secret(), meter=ledger.run("one"))
            with pytest.raises(BudgetError, match="fixed in advance"):
                ledger.set_budget(Budget(99, DELTA))
        with pytest.raises(BudgetError, match="fixed in advance"):
            Ledger.open(path, dataset="twelve", budget=Budget(99, DELTA))
        with Ledger.open(path, dataset="twelve", budget=Budget(99, DELTA, order=4.0)) as ledger:
            assert ledger.history.gone() > 0

    def test_a_declaration_without_a_step_costs_nothing(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve") as ledger:
            ledger.run("one").choose({(0.5, 1.0): 10})
            assert ledger.epsilon(DELTA) == 0

    def test_two_lists_in_one_run_are_both_counted_in_full(self, tmp_path: Path) -> None:
        one, other = {(0.5, 2.0): 10, (0.5, 4.0): 10}, {(0.5, 3.0): 5, (0.5, 6.0): 100}
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve") as ledger:
            run = ledger.run("one", block=64)
            for planned, cost, steps in [(one, (0.5, 4.0), 20), (other, (0.5, 6.0), 3), (one, (0.5, 2.0), 4)]:
                run.choose(planned)
                for _ in range(steps):
                    run.step(*cost)
            run.close()
            again = most(one, {(0.5, 4.0): 20, (0.5, 2.0): 4})
            expected = epsilon_of({}, DELTA, "add-or-remove", chosen=Counter(again) + Counter(other))
            assert ledger.epsilon(DELTA) == pytest.approx(expected)

    @pytest.mark.parametrize(
        "planned", [{}, {(0.5, 1.0): 1, (0.4, 2.0): 1}, {(0.5, 1.0 + k / 1000): 1 for k in range(501)}]
    )
    def test_a_list_that_no_line_could_hold_is_refused(self, tmp_path: Path, planned: Any) -> None:
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve") as ledger:
            run: Run = ledger.run("one")
            with pytest.raises(SettingError, match="one rate and at most 500 noise multipliers"):
                run.choose(planned)
            run.choose({(1 / 3, 1.0 + k / 7e9): 10**9 for k in range(500)})
        read(tmp_path / "a.ledger")


@given(
    dear=st.integers(1, 20),
    cheap=st.integers(1, 20),
    switch=st.integers(0, 20),
    again=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_the_most_is_at_least_every_path_and_what_was_charged(
    dear: int, cheap: int, switch: int, again: tuple[int, int]
) -> None:
    """At every Renyi order, for steps that ran again in either phase; and undisturbed it is the plan."""
    planned = {(0.5, 1.0): dear, (0.5, 4.0): cheap}
    first = min(switch, dear)
    charged = {(0.5, 1.0): first + again[0], (0.5, 4.0): dear + cheap - first + again[1]}
    found = most(planned, charged)
    orders = (1.5, 2.0, 8.0, 64.0)

    def costs(steps: dict[tuple[float, float], int]) -> np.ndarray:
        event = compose(*(phase_event(*cost, n) for cost, n in steps.items() if n))
        return renyi.rdp_curve(leaves(event), orders)

    anywhere = {**planned, (0.5, 1.0): dear + sum(again)}  # the same crashes, on the path that never switches
    for other in (planned, charged, anywhere):
        assert (costs(found) >= costs(other) * (1 - 1e-12)).all()
    if again == (0, 0):
        assert found == planned
