"""The statement: says all that belongs to an epsilon, and refuses a delta that protects nobody."""

from __future__ import annotations

import json
import math

import pytest

from saltflat.errors import AccountingError, PrivacyError, SettingError
from saltflat.privacy.accounting.bounds import epsilon, epsilon_unamplified
from saltflat.privacy.accounting.events import REPLACE, fixed_size_event, phase_event, repeated, step_event
from saltflat.privacy.accounting.selection import NOT_SELECTED, PUBLIC_PROXY, poisson_trials
from saltflat.privacy.record.statement import (
    NOT_COVERED,
    SEEDED,
    Declared,
    delta_warnings,
    membership_advantage,
    posterior_bound,
    rounded_up,
    state,
    true_positive_bound,
)

RUN = phase_event(0.01, 1.5, 1000)
HONEST = Declared(delta=1e-6, size=60_000, unit="image")


def test_it_says_what_belongs_to_an_epsilon() -> None:
    found = state(RUN, HONEST)
    assert found.epsilon == epsilon(RUN, 1e-6)
    assert found.epsilon_unamplified == epsilon_unamplified(RUN, 1e-6)
    assert dict(found.curve)[1e-6] == found.epsilon
    text = found.as_text()
    facts = ("image", "add or remove one unit", "Poisson sampling at rate 0.01", "1e-06", "PLD", NOT_SELECTED)
    for fact in (*facts, *NOT_COVERED, *HONEST.released, "in every batch", "advantage"):
        assert fact in text
    assert (found.warnings, found.stamp) == ((), "")
    assert "NOT PRIVATE" not in text


def test_json_holds_every_fact() -> None:
    found = state(RUN, HONEST)
    facts = json.loads(found.as_json())
    assert facts["epsilon"] == found.epsilon
    assert {"delta", "unit", "adjacency", "sampling", "curve", "selection", "released", "not_covered"} <= set(
        facts
    )


def test_a_seeded_run_is_stamped_first() -> None:
    found = state(RUN, Declared(delta=1e-6, size=60_000, seeded=True))
    assert found.stamp == SEEDED == "NOT PRIVATE: seeded"
    assert found.as_text().startswith(SEEDED)


def test_selection_comes_from_the_event_if_it_is_charged() -> None:
    charged = state(poisson_trials(RUN, mean=10), HONEST)
    assert "Poisson with mean 10; charged" in charged.selection
    assert charged.epsilon > state(RUN, HONEST).epsilon
    public = Declared(delta=1e-6, size=60_000, selection=PUBLIC_PROXY)
    assert PUBLIC_PROXY in state(RUN, public).as_text()


def test_replace_adjacency_is_named_and_asks_another_question() -> None:
    text = state(
        repeated(fixed_size_event(4.0, size=60_000, batch=600), 100), HONEST, adjacency=REPLACE
    ).as_text()
    assert "replace one unit by another" in text
    assert "which of two images" in text
    assert "600 of 60000 units without replacement" in text


@pytest.mark.parametrize(
    ("delta", "warned"), [(1e-6, False), (1.6e-6, False), (1e-5, True), (1 / 60_000, True)]
)
def test_a_large_delta_is_warned_about(delta: float, warned: bool) -> None:
    found = state(RUN, Declared(delta=delta, size=60_000))
    assert bool(found.warnings) is warned
    assert ("Warning: delta" in found.as_text()) is warned


@pytest.mark.parametrize("size", [60_000, 1437, 7, 10**6, 73_257])
def test_the_advised_delta_is_never_rounded_up(size: int) -> None:
    (warning,) = delta_warnings(Declared(delta=0.9 / size, size=size))
    advised = float(warning.split("; ")[1].split(" or less")[0])
    assert 0.09 / size < advised <= 0.1 / size * (1 + 1e-9)
    assert delta_warnings(Declared(delta=advised, size=size)) == ()


def test_a_delta_above_one_over_n_is_refused_unless_reproducing() -> None:
    with pytest.raises(PrivacyError, match="reproduce=True"):
        state(RUN, Declared(delta=5e-3, size=500))
    found = state(RUN, Declared(delta=5e-3, size=500, reproduce=True))
    assert "outright" in found.warnings[0]


@pytest.mark.parametrize(
    "setting",
    [{"delta": math.nan}, {"delta": 0}, {"delta": 1}, {"size": 0}, {"size": math.nan}, {"size": 2.5}],
)
def test_bad_declarations_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(AccountingError):
        Declared(**{"delta": 1e-6, "size": 60_000, **setting})  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", [{"unit": ""}, {"unit": "  "}, {"selection": ""}])
def test_empty_words_are_refused(setting: dict[str, str]) -> None:
    with pytest.raises(SettingError, match="empty"):
        Declared(delta=1e-6, size=60_000, **setting)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_attack_bounds_hold_for_the_best_attack_on_a_gaussian(noise: float) -> None:
    """Threshold tests on N(0, s^2) against N(1, s^2) are the best attacks there are."""
    delta = 1e-5
    value = epsilon(step_event(1, noise), delta)
    normal = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))
    for threshold in [k / 10 for k in range(-40, 51)]:
        found, alarms = normal((1 - threshold) / noise), normal(-threshold / noise)
        assert found - alarms <= membership_advantage(value, delta)
        assert found <= true_positive_bound(value, delta, false_positives=alarms) + 1e-12
        precision = found / (found + alarms)
        assert precision <= posterior_bound(value, delta, prior=0.5, false_positives=alarms) + 1e-12


def test_attack_bounds_at_the_ends() -> None:
    assert membership_advantage(0.0, 1e-30) == pytest.approx(0, abs=1e-12)
    assert membership_advantage(1e4, 1e-5) == 1
    assert true_positive_bound(1e4, 1e-5, false_positives=0.01) == 1
    assert posterior_bound(1.0, 1e-5, prior=0.0, false_positives=0.01) == 0
    for bad in (math.nan, -0.1, 1.1):
        with pytest.raises(SettingError):
            true_positive_bound(1.0, 1e-5, false_positives=bad)
        with pytest.raises(SettingError):
            posterior_bound(1.0, 1e-5, prior=bad, false_positives=0.01)


def test_printing_never_lowers_a_bound() -> None:
    for value in (2.38112, 1.0, 0.99951, 6269.53, 1e-6, 123456.7, 9.999, 0.000123456):
        assert value <= float(rounded_up(value)) <= value * 1.01


def test_noise_ledger_and_statement_use_one_stamp() -> None:
    from saltflat.privacy import limits, noise
    from saltflat.privacy.record import ledger, statement

    assert {limits.SEEDED, noise.SEEDED, ledger.SEEDED, statement.SEEDED} == {"NOT PRIVATE: seeded"}
