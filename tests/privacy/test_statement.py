"""The statement: says all that belongs to an epsilon, and refuses a delta that protects nobody."""

from __future__ import annotations

import json
import math

import pytest

from saltflat.errors import AccountingError, PrivacyError, SettingError
from saltflat.privacy.accounting.bounds import epsilon, epsilon_unamplified
from saltflat.privacy.accounting.events import REPLACE, fixed_size_event, phase_event, repeated, step_event
from saltflat.privacy.accounting.risk import tradeoff
from saltflat.privacy.accounting.selection import NOT_SELECTED, PUBLIC_PROXY, poisson_trials
from saltflat.privacy.record.statement import (
    NOT_COVERED,
    PLAIN,
    SEEDED,
    TECHNICAL,
    Declared,
    delta_warnings,
    from_json,
    rounded_up,
    state,
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


def test_plain_words_come_first_and_the_technical_statement_after_them() -> None:
    found = state(RUN, HONEST)
    first, second = str(found).split(f"\n\n{TECHNICAL}\n")
    assert first.startswith(PLAIN)
    assert second.splitlines() == found.technical()
    share = rounded_up(100 * found.membership_accuracy)
    assert f"right in at most {share} % of cases (50 % is a coin flip)" in first
    assert "epsilon" not in first
    assert "delta" not in first
    assert "epsilon" in second


def test_the_risk_is_that_of_the_trade_off_curve() -> None:
    found, curve = state(RUN, HONEST), tradeoff(RUN)
    assert found.membership_advantage == curve.advantage
    assert found.membership_accuracy == (1 + curve.advantage) / 2
    assert (found.posterior, found.tradeoff) == (curve.posterior(0.5), curve.curve())
    assert dict(found.posteriors) == {prior: curve.posterior(prior) for prior in (0.01, 0.1, 0.5)}
    assert found.risk_source == "PLD"
    for part in (found.plain(), found.technical()):
        said = " ".join(part)
        for rate in (0.001, 0.01):
            assert f"{rounded_up(100 * curve.true_positives(rate))} %" in said
    swapped = state(RUN, HONEST, adjacency=REPLACE)
    assert swapped.membership_advantage == tradeoff(RUN, adjacency=REPLACE).advantage > curve.advantage


@pytest.mark.parametrize("noise", [0.01, 0.3, 0.5])
def test_no_sentence_promises_a_hundred_per_cent(noise: float) -> None:
    text = state(step_event(1.0, noise), HONEST).as_text()
    assert "100 %" not in text
    if noise == 0.01:
        assert "may guess whether one given image was used right in nearly every case" in text
        assert "no limit at 1 % false positives" in text


def test_a_statement_of_an_older_version_shows_what_it_had() -> None:
    """It has no curve: its advantage followed from one pair of epsilon and delta."""
    facts = json.loads(state(RUN, HONEST).as_json())
    for name in ("tradeoff", "posteriors", "risk_source"):
        del facts[name]
    facts |= {"membership_advantage": 0.46, "membership_accuracy": 0.73}
    old = from_json(json.dumps(facts))
    assert (old.plain(), old.tradeoff) == ([], ())
    assert "right with probability at most 73 % (advantage at most 0.46)" in str(old)
    assert PLAIN not in str(old)
    nearly = from_json(json.dumps({**facts, "membership_accuracy": 0.9999}))
    assert "100 %" not in str(nearly)


def test_it_comes_back_from_json() -> None:
    for event in (RUN, step_event(1.0, 0.01)):
        assert from_json(state(event, HONEST).as_json()) == state(event, HONEST)


def test_printing_never_lowers_a_bound() -> None:
    for value in (2.38112, 1.0, 0.99951, 6269.53, 1e-6, 123456.7, 9.999, 0.000123456):
        assert value <= float(rounded_up(value)) <= value * 1.01


def test_noise_ledger_and_statement_use_one_stamp() -> None:
    from saltflat.privacy import limits, noise
    from saltflat.privacy.record import ledger, statement

    assert {limits.SEEDED, noise.SEEDED, ledger.SEEDED, statement.SEEDED} == {"NOT PRIVATE: seeded"}
