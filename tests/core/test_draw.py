"""Draws of a fixed number: who is drawn, what it costs, what is said of it, and where it is refused."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steps import CRITERION, beside, examples, network, phase
from test_on_record import DELTA, WAYS, Secret, by_train

import saltflat as sf
from saltflat.core.resume import difference, outline, todays
from saltflat.core.sampling import without_replacement
from saltflat.errors import BudgetError, PrivacyError, SettingError
from saltflat.privacy import Budget, Ledger, SecureSampling, read
from saltflat.privacy.accounting import bounds, events
from saltflat.privacy.record.costs import FixedSize

FIXED = sf.WithoutReplacement()


def plan(noise: float = 8.0, steps: int = 3, **changes: Any) -> sf.Plan:
    given: dict[str, Any] = {"rate": 0.25, "size": 12, "draw": FIXED, **changes}
    return sf.Plan(phases=(phase(noise_multiplier=noise, steps=steps),), **given)


# who is drawn


def test_every_set_is_as_likely() -> None:
    """All 10 pairs of 5 units, 5000 draws: each is expected 500 times, with a standard deviation of 21."""
    source = np.random.default_rng(3)
    seen = Counter(tuple(without_replacement(5, 2, source).tolist()) for _ in range(5000))
    assert set(seen) == set(itertools.combinations(range(5), 2))
    assert all(abs(count - 500) < 4.5 * 21.3 for count in seen.values())


def test_exactly_so_many_are_drawn_and_anew_each_time() -> None:
    drawn = [FIXED.units(100, 0.1, 100, SecureSampling()) for _ in range(20)]
    assert {len(each) for each in drawn} == {10}
    assert all((np.diff(each) > 0).all() for each in drawn)
    assert len({tuple(each) for each in drawn}) == 20


def test_units_that_are_not_there_leave_their_places_empty() -> None:
    """60 of 100 declared are there: each joins as often as if all were, or amplification would be a lie."""
    source = np.random.default_rng(4)
    drawn = [FIXED.units(60, 0.5, 100, source) for _ in range(2000)]
    often = np.bincount(np.concatenate(drawn), minlength=60) / 2000
    assert len(often) == 60
    assert abs(often.mean() - 0.5) < 0.005
    assert (abs(often - 0.5) < 0.06).all()


def test_a_batch_that_is_no_whole_number_is_refused() -> None:
    for rate in (0.3, 1e-9):
        with pytest.raises(SettingError, match="whole number"):
            plan(rate=rate, size=12)
    assert plan(rate=1 / 3, size=12).expected_units == 4
    with pytest.raises(SettingError, match=r"Poisson\(\) or WithoutReplacement\(\)"):
        plan(draw="fixed")
    for batch in (0, 6, 2.0):
        with pytest.raises(SettingError, match="without replacement"):
            without_replacement(5, batch, np.random.default_rng())  # type: ignore[arg-type]


@WAYS
def test_more_units_than_declared_are_refused_and_not_counted_aloud(way: Any) -> None:
    """Twelve are there: the last ones would never be drawn."""
    with pytest.raises(SettingError, match=r"more than the 10 .*public bound") as caught:
        way(plan(draw=sf.WithoutReplacement(), rate=0.5, size=10))
    assert "12" not in str(caught.value)


@WAYS
def test_poisson_takes_one_unit_more_than_declared(way: Any) -> None:
    """A refusal would tell whether one unit more is there, and every unit is drawn at the declared rate anyway."""
    way(plan(draw=sf.Poisson(), rate=0.5, size=11))


# what it costs


def test_the_plan_costs_what_the_accountant_says_of_replaced_units() -> None:
    event = events.repeated(events.fixed_size_event(8.0, size=12, batch=3), 3)
    assert plan().epsilon(1e-5) == bounds.epsilon(event, 1e-5, adjacency=events.REPLACE)
    assert plan().by_cost() == {FixedSize(12, 3, 8.0): 3}
    assert plan().epsilon(1e-5) > 1.9 * plan(draw=sf.Poisson()).epsilon(1e-5)


def test_noise_is_calibrated_under_its_own_adjacency() -> None:
    fixed = sf.calibrate(plan(), epsilon=2.0, delta=1e-3)
    assert 1.98 <= fixed.epsilon(1e-3) <= 2.0
    usual = sf.calibrate(plan(draw=sf.Poisson()), epsilon=2.0, delta=1e-3)
    assert fixed.phases[0].noise_multiplier > 1.9 * usual.phases[0].noise_multiplier


def test_two_samples_in_a_step_are_two_draws_and_two_charges() -> None:
    fresh = sf.methods.SAM(0.1, fresh=True)
    two = replace(plan(), phases=(phase(method=fresh, noise_multiplier=8.0, steps=3),))
    assert sum(two.by_cost().values()) == 6


# what is put on record, and said


@WAYS
def test_it_runs_is_charged_and_stated(tmp_path: Path, way: Any) -> None:
    with (
        Ledger.open(tmp_path / "a.ledger", dataset="x") as ledger,
        ledger.run("one", adjacency="replace") as run,
    ):
        found = way(plan(), meter=run, noise=Secret())
    assert read(ledger.path).steps() == {FixedSize(12, 3, 8.0): 3}
    assert read(ledger.path).epsilon(1e-5) == plan().epsilon(1e-5)
    if found is not None:
        text = found.statement.as_text()
        assert "replace one unit by another" in text
        assert "3 of 12 units without replacement" in text
        assert found.statement.epsilon == plan().epsilon(DELTA)


@WAYS
def test_a_record_of_added_or_removed_units_is_refused(tmp_path: Path, way: Any) -> None:
    with Ledger.open(tmp_path / "a.ledger", dataset="x") as ledger, ledger.run("one") as run:
        with pytest.raises(
            PrivacyError, match=r"WithoutReplacement, and costs .* 'replace'; .* 'add-or-remove'"
        ):
            way(plan(), meter=run, noise=Secret())
        assert ledger.history.steps() == {}


def test_a_budget_ends_it(tmp_path: Path) -> None:
    budget, seen = Budget(epsilon=plan(steps=5).epsilon(1e-3) * 1.001, delta=1e-3), list[int]()
    with (
        Ledger.open(tmp_path / "a", dataset="x", budget=budget) as book,
        book.run("r", adjacency="replace") as run,
        pytest.raises(BudgetError, match="3 of 12 units"),
    ):
        by_train(plan(steps=50), meter=run, noise=Secret(), watch=lambda at: seen.append(at.step))
    assert seen[-1] == 5


def test_a_meter_that_counts_poisson_samples_only_is_refused() -> None:
    with pytest.raises(PrivacyError, match="a RdpFilter, charges for Poisson samples only"):
        by_train(plan(), meter=plan().filter(1e-3), noise=Secret())


def test_results_may_not_choose_when_the_noise_changes() -> None:
    until = [phase(noise_multiplier=8.0, until=lambda state: True), phase(noise_multiplier=9.0)]
    with pytest.raises(SettingError, match=r"with Poisson\(\) draws only"):
        sf.Plan(phases=tuple(until), rate=0.25, size=12, draw=FIXED)


def test_an_audit_says_that_it_plays_another_game() -> None:
    with pytest.raises(SettingError, match="audit the plan with draw=Poisson"):
        sf.audit.canary(plan(), 1e-3, runs=2, control_runs=0)


def test_units_that_remember_are_refused() -> None:
    fed = sf.federated
    local = fed.Local(keep=0.5, feedback=fed.Feedback(bound=1.0))
    contribution = fed.per_client(network(), sf.supervised(CRITERION), local=local)
    clients = fed.iid(len(examples()[0]), 12, seed=0).of(sf.data.TensorUnits(examples()))
    with pytest.raises(PrivacyError, match="feedback"):
        sf.train(plan(), contribution, clients, **beside(noise=Secret()))
    sf.train(plan(steps=1, draw=sf.Poisson()), contribution, clients, **beside(noise=Secret()))


def test_a_loop_keeps_and_loads_what_it_spent(tmp_path: Path) -> None:
    def loop() -> Any:
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        around = beside(noise=Secret())
        return sf.make_private(
            model, CRITERION, examples(), optimizer=sgd, plan=plan(), delta=DELTA, **around
        )

    one, other = loop(), loop()
    one.step(next(iter(one)))
    kept = one.state_dict()
    assert kept["spent"] == [[{"kind": "fixed-size", "size": 12, "batch": 3, "noise_multiplier": 8.0}, 1]]
    other.load_state_dict(kept, lost=1, allow_more=True)
    assert other.statement.epsilon == pytest.approx(plan(steps=4).epsilon(DELTA))
    assert "replace" in other.statement.adjacency


def test_a_checkpoint_of_before_is_one_of_poisson_draws() -> None:
    usual = replace(plan(), draw=sf.Poisson())
    before = {key: value for key, value in outline(usual).items() if key != "draw"}
    assert difference(todays(before), outline(usual)) is None
    assert "draw" in (difference(todays(before), outline(plan())) or "")


def test_recipes_have_it() -> None:
    recipe = sf.recipes.shipped("digits").but({"draw": "WithoutReplacement", "rate": 0.1, "size": 1440})
    found = sf.recipes.plan_of(recipe.but({"epsilon": 20}), 1440)
    assert (found.draw, found.adjacency) == (FIXED, "replace")
    assert sf.recipes.recipe_of(found, data="digits", model=recipe.model).draw == FIXED
    assert 'draw = "WithoutReplacement"' in recipe.as_toml()
