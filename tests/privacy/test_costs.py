"""Kinds of cost in a ledger: what is charged is what is read, counted, gated and shown, whatever the kind."""

from __future__ import annotations

import doctest
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import UnsupportedEventError
from scipy.stats import norm
from test_ledger import damage, steps_until_refused
from typer.testing import CliRunner

from saltflat.errors import AccountingError, BudgetError, LedgerError, PrivacyError
from saltflat.privacy.accounting import bounds, events, renyi
from saltflat.privacy.record import format
from saltflat.privacy.record.costs import (
    BestOf,
    CappedUser,
    Cost,
    FixedSize,
    RenyiBound,
    check_adjacency,
    checked,
    event_of,
    from_body,
    from_row,
    to_body,
    to_row,
)
from saltflat.privacy.record.history import Budget, epsilon_of, read
from saltflat.privacy.record.ledger import Ledger

DELTA = 1e-5
ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0)
GAUSSIAN = tuple((order, order / (2 * 20.0**2)) for order in ORDERS)  # noise 20, everyone
FIXED, CAPPED = FixedSize(500, 50, 20.0), CappedUser(0.1, 20.0, cap=3)
BEST = BestOf(6.0, ((0.1, 4.0, 10), (0.1, 2.0, 50)))
VOTES = RenyiBound("votes of 250 teachers", GAUSSIAN)
KINDS = {"fixed": (FIXED, "replace"), "capped": (CAPPED, "add-or-remove"), "renyi": (VOTES, "add-or-remove")}
RELATION = {"replace": events.REPLACE, "add-or-remove": events.ADD_REMOVE}

each_kind = pytest.mark.parametrize(("cost", "adjacency"), KINDS.values(), ids=KINDS)


def spend(path: Path, cost: Cost, adjacency: str, *, steps: int = 5) -> None:
    with Ledger.open(path, dataset="digits") as ledger:
        ledger.run("one", adjacency=adjacency).pay(cost, steps)


@each_kind
def test_what_is_charged_is_what_is_read(tmp_path: Path, cost: Cost, adjacency: str) -> None:
    path = tmp_path / "a.ledger"
    spend(path, cost, adjacency)
    history = read(path)
    assert history.steps() == {cost: 5}
    whole = events.repeated(event_of(cost), 5)
    assert history.epsilon(DELTA) == bounds.epsilon(whole, DELTA, adjacency=RELATION[adjacency])


@each_kind
def test_a_cost_comes_back_from_json(cost: Cost, adjacency: str) -> None:
    assert from_body(json.loads(json.dumps(to_body(cost)))) == cost
    assert from_row(json.loads(json.dumps(to_row(cost)))) == cost


def test_numbers_of_numpy_are_kept_as_numbers(tmp_path: Path) -> None:
    cost = FixedSize(np.int64(500), np.int64(50), np.float32(2.0))  # type: ignore[arg-type]
    spend(tmp_path / "a.ledger", cost, "replace")
    assert read(tmp_path / "a.ledger").steps() == {FixedSize(500, 50, 2.0): 5}


@each_kind
def test_steps_of_a_block_are_on_disk_first_and_settled_at_the_end(
    tmp_path: Path, cost: Cost, adjacency: str
) -> None:
    path = tmp_path / "a.ledger"
    with (
        Ledger.open(path, dataset="digits") as ledger,
        ledger.run("one", adjacency=adjacency, block=4) as run,
    ):
        for begun in range(1, 7):
            run.take(cost)
            assert begun <= read(path).steps()[cost] < begun + 4
    assert read(path).steps() == {cost: 6}


@each_kind
def test_the_gate_stops_at_the_last_step_that_fits(tmp_path: Path, cost: Cost, adjacency: str) -> None:
    limit = 1.001 * epsilon_of({cost: 3}, DELTA, adjacency)
    with Ledger.open(tmp_path / "a.ledger", dataset="digits", budget=Budget(limit, DELTA)) as ledger:
        run = ledger.run("one", adjacency=adjacency, block=2)
        assert steps_until_refused(lambda: run.take(cost)) == 3
        assert ledger.room_for(cost, steps=10) == 0
        with pytest.raises(BudgetError, match="nothing was charged"):
            run.pay(cost)
    assert read(ledger.path).steps() == {cost: 3}


@pytest.mark.parametrize("name", ["fixed", "renyi"])
def test_a_filter_adds_up_what_it_costs_at_its_order(tmp_path: Path, name: str) -> None:
    cost, adjacency = KINDS[name]
    budget = Budget(epsilon=3.0, delta=DELTA, order=8.0)
    with Ledger.open(tmp_path / "a.ledger", dataset="digits", budget=budget) as ledger:
        run = ledger.run("one", adjacency=adjacency)
        run.pay(cost, 4)
        relation = RELATION[adjacency]
        spent = renyi.rdp_curve(events.leaves(event_of(cost, 4)), (8.0,), adjacency=relation)[0]
        assert ledger.history.gone() == pytest.approx(spent / (3.0 - renyi.conversion(8.0, DELTA)), rel=1e-9)


def test_a_cost_without_a_bound_under_the_adjacency_is_refused_and_nothing_is_charged(tmp_path: Path) -> None:
    for cost, other in ((FIXED, "add-or-remove"), (CAPPED, "replace"), (BEST, "replace")):
        with (
            Ledger.open(tmp_path / other, dataset="digits") as ledger,
            ledger.run("one", adjacency=other) as run,
        ):
            for charge in (run.take, run.pay):
                with pytest.raises(PrivacyError, match="nothing was charged"):
                    charge(cost)
            assert ledger.history.steps() == {}
    check_adjacency(VOTES, "replace")


def test_the_best_of_several_trials_costs_what_the_theorem_says() -> None:
    trial = events.compose(events.phase_event(0.1, 2.0, 50), events.phase_event(0.1, 4.0, 10))
    orders = renyi.INTEGERS
    base = renyi.rdp_curve(events.leaves(trial), [float(a) for a in orders])
    # rdp(a) + 2 (1 - 1/b) rdp(b) + 2 ln(mean) / b + ln(mean) / (a - 1), best over b: gamma = 1/mean, E[K] = mean
    extra = min(2 * (1 - 1 / b) * rdp + 2 * math.log(6) / b for b, rdp in zip(orders, base, strict=True))
    by_hand = [rdp + extra + math.log(6) / (a - 1) for a, rdp in zip(orders, base, strict=True)]
    ends = [rdp + renyi.conversion(float(a), DELTA) for a, rdp in zip(orders, by_hand, strict=True)]
    assert epsilon_of({BEST: 1}, DELTA, "add-or-remove") == pytest.approx(min(ends), rel=1e-6)
    alone = bounds.epsilon(trial, DELTA)
    assert (
        alone < min(ends) < bounds.epsilon(events.repeated(trial, 6), DELTA)
    )  # here less than six that are counted


# what a bound is worth


def test_a_gaussian_by_its_curve_costs_what_renyi_accounting_says_of_it() -> None:
    whole = tuple((order, order / (2 * 20.0**2)) for order in renyi.ORDERS)
    found = epsilon_of({RenyiBound("one", whole[:500]): 30}, DELTA, "add-or-remove")
    assert found == pytest.approx(bounds.rdp_epsilon(events.phase_event(1.0, 20.0, 30), DELTA), rel=1e-6)


def test_a_curve_composes_with_steps_by_renyi_accounting() -> None:
    both = epsilon_of({VOTES: 10, (0.1, 2.0): 20}, DELTA, "add-or-remove")
    steps = events.leaves(events.phase_event(0.1, 2.0, 20))
    least = math.inf
    for order in sorted({*ORDERS, *(each for each in renyi.ORDERS if each <= ORDERS[-1])}):
        above = next(known for known in ORDERS if known >= order)
        curve = 10 * above / (2 * 20.0**2) + renyi.rdp_curve(steps, (order,))[0]
        least = min(least, curve + renyi.conversion(order, DELTA))
    assert both == pytest.approx(least, rel=1e-6)


def test_between_two_orders_the_larger_one_holds_and_beyond_the_last_nothing_is_known() -> None:
    event = events.RenyiDpEvent("it", ((2.0, 0.1), (4.0, 0.3)))
    assert [event.bound_at(order) for order in (1.1, 2.0, 2.1, 4.0, 4.1)] == [0.1, 0.1, 0.3, 0.3, math.inf]
    lumpy = events.RenyiDpEvent("it", ((2.0, 0.5), (4.0, 0.3)))  # sound: a divergence never falls
    assert lumpy.bound_at(2.0) == 0.3
    with pytest.raises(AccountingError, match="finite"):
        bounds.epsilon(events.RenyiDpEvent("it", ((2.0, math.nan),)), DELTA)


def test_only_renyi_accounting_answers_for_a_curve() -> None:
    event = events.compose(event_of(VOTES), events.step_event(1.0, 5.0))
    assert bounds.bound(event, DELTA).accountant == "RDP"
    assert "votes of 250 teachers" in events.describe_sampling(event)
    with pytest.raises((AccountingError, UnsupportedEventError)):
        bounds.epsilon(events.RepeatAndSelectDpEvent(event_of(VOTES), 3.0, 1.0), DELTA)


@pytest.mark.parametrize(
    ("size", "batch", "noise"), [(10, 9, 2.0), (500, 50, 2.0), (500, 250, 4.0), (20, 1, 1.0)]
)
def test_a_fixed_size_step_costs_at_least_what_a_replaced_unit_shows(
    size: int, batch: int, noise: float
) -> None:
    """An independent computation: one unit adds +C or -C and all others nothing, integrated numerically."""
    rate, grid = batch / size, np.linspace(-12 * noise, 12 * noise, 400_001)
    base, up, down = (norm.pdf(grid, shift, noise) for shift in (0.0, 1.0, -1.0))
    one, other = ((1 - rate) * base + rate * each for each in (up, down))
    for delta in (1e-2, 1e-4):
        epsilon = epsilon_of({FixedSize(size, batch, noise): 1}, delta, "replace")
        shown = np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0), grid)
        assert shown <= delta


def wang(size: int, batch: int, noise: float, order: int) -> float:
    """Theorem 9 of Wang, Balle & Kasiviswanathan (2019), for a Gaussian whose sum moves by 2C."""
    rate, single = batch / size, lambda j: j / (2 * (noise / 2) ** 2)
    second = min(4 * math.expm1(single(2)), 2 * math.exp(single(2)))
    total = 1 + rate**2 * math.comb(order, 2) * second
    total += sum(
        2 * rate**j * math.comb(order, j) * math.exp((j - 1) * single(j)) for j in range(3, order + 1)
    )
    return math.log(total) / (order - 1)


@pytest.mark.parametrize(("size", "batch", "noise"), [(500, 50, 4.0), (1000, 10, 3.0), (60_000, 600, 4.0)])
def test_a_fixed_size_step_costs_at_most_the_published_bound(size: int, batch: int, noise: float) -> None:
    parts = events.leaves(event_of(FixedSize(size, batch, noise)))
    for order in (2, 3, 4, 8):
        ours = renyi.rdp_curve(parts, (float(order),), adjacency=events.REPLACE)[0]
        assert ours <= wang(size, batch, noise, order) * (1 + 1e-6)
        assert ours > 0.05 * wang(size, batch, noise, order)


def test_everyone_in_every_step_is_the_plain_gaussian_of_twice_the_sensitivity() -> None:
    found = epsilon_of({FixedSize(50, 50, 20.0): 7}, DELTA, "replace")
    assert found == pytest.approx(epsilon_of({(1.0, 20.0): 7}, DELTA, "replace"), rel=1e-6)
    assert found > 1.9 * epsilon_of({(1.0, 20.0): 7}, DELTA, "add-or-remove")


def test_a_capped_user_of_one_example_is_that_example() -> None:
    assert event_of(CappedUser(0.1, 2.0, cap=1)) == events.step_event(0.1, 2.0)
    three = epsilon_of({CappedUser(1.0, 20.0, cap=3): 7}, DELTA, "add-or-remove")
    assert three == pytest.approx(epsilon_of({(1.0, 20.0 / 3): 7}, DELTA, "add-or-remove"))


# damage and nonsense


WRONG: list[Callable[[], Cost]] = [
    lambda: FixedSize(0, 0, 1.0),
    lambda: FixedSize(5, 6, 1.0),
    lambda: FixedSize(5, 2, 0.0),
    lambda: FixedSize(5, 2, math.nan),
    lambda: FixedSize(True, 1, 1.0),
    lambda: FixedSize(5.0, 1, 1.0),  # type: ignore[arg-type]
    lambda: CappedUser(0.0, 1.0, cap=2),
    lambda: CappedUser(0.1, 1.0, cap=0),
    lambda: CappedUser(0.1, math.inf, cap=2),
    lambda: RenyiBound("", GAUSSIAN),
    lambda: RenyiBound("two\nlines", GAUSSIAN),
    lambda: RenyiBound("x", ()),
    lambda: RenyiBound("x", ((1.0, 0.1),)),
    lambda: RenyiBound("x", ((2.0, -0.1),)),
    lambda: RenyiBound("x", ((2.0, math.inf),)),
    lambda: RenyiBound("x", ((2.0, 0.1), (2.0, 0.2))),
    lambda: RenyiBound("x", ((2.0,),)),  # type: ignore[arg-type]
    lambda: RenyiBound("x", 7),  # type: ignore[arg-type]
    lambda: BestOf(1.0, ((0.1, 2.0, 5),)),
    lambda: BestOf(math.inf, ((0.1, 2.0, 5),)),
    lambda: BestOf(3.0, ()),
    lambda: BestOf(3.0, ((0.1, 2.0),)),  # type: ignore[arg-type]
    lambda: BestOf(3.0, ((0.1, 0.0, 5),)),
    lambda: BestOf(3.0, ((0.1, 2.0, 0),)),
    lambda: BestOf(3.0, 7),  # type: ignore[arg-type]
    lambda: checked((0.1, 0.0)),
    lambda: checked((0.1, 1.0, 2.0)),
    lambda: checked(None),
]


@pytest.mark.parametrize("make", WRONG)
def test_a_cost_that_nobody_can_count_is_refused(make: Callable[[], Cost]) -> None:
    with pytest.raises(AccountingError) as caught:
        make()
    assert "\n" not in str(caught.value)


GOOD = {kind: to_body(cost)["cost"] for kind, (cost, _) in KINDS.items()}
CHANGED: list[dict[str, Any]] = [
    {"cost": {**GOOD["fixed"], "batch": 501}},
    {"cost": {**GOOD["fixed"], "batch": "50"}},
    {"cost": {**GOOD["fixed"], "batch": None}},
    {"cost": {**GOOD["fixed"], "noise_multiplier": -2.0}},
    {"cost": {**GOOD["fixed"], "kind": "fixed"}},
    {"cost": {**GOOD["fixed"], "kind": ["fixed-size"]}},
    {"cost": {**GOOD["fixed"], "more": 1}},
    {"cost": {k: v for k, v in GOOD["fixed"].items() if k != "batch"}},
    {"cost": GOOD["fixed"], "rate": 0.1, "noise_multiplier": 1e9},
    {"cost": {**GOOD["capped"], "cap": 2.5}},
    {"cost": {**GOOD["capped"], "rate": 1.5}},
    {"cost": {**GOOD["renyi"], "points": []}},
    {"cost": {**GOOD["renyi"], "points": [[2.0, -1.0]]}},
    {"cost": {**GOOD["renyi"], "points": [[8.0, 0.1], [2.0, 0.1]]}},
    {"cost": {**GOOD["renyi"], "points": {"2.0": 1.0}}},
    {"cost": {**GOOD["renyi"], "what": 3}},
    {"cost": 7},
    {"cost": []},
    {"cost": None},
]


@pytest.mark.parametrize("change", CHANGED)
def test_a_charge_that_makes_no_sense_is_refused_though_its_hash_is_right(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "a.ledger"
    spend(path, FIXED, "replace")
    entry = format.entry_after(read(path).entries[-1], "charge", {"run": 1, "steps": 5, **change})
    path.write_bytes(path.read_bytes() + format.line(entry))
    path.with_name("a.ledger.head").write_bytes(format.head_line(entry))
    with pytest.raises(LedgerError, match="damaged"):
        read(path)


def test_d5_damage_to_other_kinds_is_noticed(tmp_path: Path) -> None:
    """Whatever is changed in a ledger of all kinds or in its head, no charge is lost or made cheaper in silence."""
    path, rng = tmp_path / "a.ledger", random.Random(5)
    with Ledger.open(path, dataset="digits") as ledger:
        run = ledger.run("one")
        for cost in (CAPPED, (0.1, 2.0), VOTES):
            run.pay(cost, 64)
    files = [path, path.with_name("a.ledger.head")]
    good, truth = [file.read_bytes() for file in files], read(path).steps()
    for _ in range(300):
        spoiled = rng.choice([0, 1])
        files[spoiled].write_bytes(damage(good[spoiled], rng))
        try:
            assert read(path).steps() == truth
        except LedgerError as error:
            assert "\n" not in str(error)  # noqa: PT017
        for file, data in zip(files, good, strict=True):
            file.write_bytes(data)


@each_kind
def test_the_command_line_shows_them(tmp_path: Path, cost: Cost, adjacency: str) -> None:
    from saltflat.cli import app

    path = tmp_path / "a.ledger"
    spend(path, cost, adjacency)
    shown = CliRunner().invoke(app, ["budget", "show", str(path), "--delta", "1e-5"], env={"COLUMNS": "200"})
    word = {"fixed-size": "50 of 500", "capped-user": "3 per user", "renyi": "votes of 250 teachers"}
    assert word[cost.kind] in shown.output  # type: ignore[union-attr]
    facts = json.loads(
        CliRunner().invoke(app, ["budget", "show", str(path), "--delta", "1e-5", "--json"]).output
    )
    assert facts["runs"][0]["steps"] == [{**to_body(cost)["cost"], "steps": 5}]


def test_the_page_is_true() -> None:
    page = Path(__file__).parents[2] / "docs" / "ledger.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted > 3
    assert found.failed == 0
