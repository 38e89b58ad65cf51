"""The canary audit: what it finds in a sound library, and in one with a planted mistake."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from games import plan, quick, seeded
from scipy.stats import norm

import saltflat.clipping as clipping
import saltflat.core.ask as ask
import saltflat.core.draw as draw
import saltflat.core.step as step
from saltflat import Phase, Plan, Safeguards
from saltflat.audit import Audited, canary
from saltflat.audit.game import Done, log_ratio, play
from saltflat.clipping import Automatic, PerLayer
from saltflat.errors import AccountingError, SettingError
from saltflat.methods import DPLIS, DPSGD, SAM, SAT, Gap, Quantile
from saltflat.optimizers import EMA, SGD, Adam
from saltflat.privacy import DiscreteNoise, Ledger


def audited(the_plan: Plan, *, runs: int = 500, **settings) -> Audited:
    """Without controls: the mistake is planted in the library itself."""
    return canary(the_plan, 1e-5, runs=runs, control_runs=0, safeguards=seeded(), **settings)


def test_small_b6() -> None:
    found = canary(quick(), 1e-5, runs=1000, safeguards=seeded())
    assert round(found.claim.epsilon, 2) == 4.38
    assert not found.refuted
    assert 2.5 < found.lower < 5
    assert found.failed == ()
    assert [control.name for control in found.controls] == ["half noise", "no canary"]
    assert found.counts["judged in each world"] == 500


def test_the_same_seed_gives_the_same_result() -> None:
    one, two = (canary(quick(), 1e-5, runs=60, safeguards=seeded(3)) for _ in range(2))
    other = canary(quick(), 1e-5, runs=60, safeguards=seeded(4))
    same = lambda found: replace(found, seconds=0.0)
    assert same(one) == same(two)
    assert same(one) != same(other)
    assert "NOT PRIVATE: seeded" in one.as_text()


def half(noised: Callable) -> Callable:
    return lambda bounded, noise_multiplier, noise: noised(bounded, noise_multiplier / 2, noise)


def none(noised: Callable) -> Callable:
    return lambda bounded, noise_multiplier, noise: bounded.total


@pytest.mark.parametrize("mutant", [half, none])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_noise_that_is_too_small_is_caught(
    mutant: Callable, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "noised", mutant(ask.noised))
    monkeypatch.setattr(
        step, "check_answer", lambda answer, params: answer
    )  # would see that there is none at all
    assert audited(quick(rate=rate)).refuted


def test_a_clip_that_does_not_clip_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "clip_weights", lambda norms, bound: torch.ones_like(norms))
    assert audited(quick()).refuted


def test_a_sampler_that_takes_everybody_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    the_plan = plan(noise=2.0, steps=30, rate=0.2)
    assert not audited(the_plan).refuted
    monkeypatch.setattr(draw, "poisson", lambda count, rate, source: np.arange(count))
    assert audited(the_plan).refuted


def test_noise_for_the_mean_in_the_place_of_the_sum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classic one: noise that is divided by the batch once more."""
    real = ask.noised
    monkeypatch.setattr(ask, "noised", lambda bounded, noise, source: real(bounded, noise / 100, source))
    assert audited(quick()).refuted


def test_a_quarter_less_noise_is_in_doubt_or_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """About what an audit of this size can see."""
    real = ask.noised
    monkeypatch.setattr(ask, "noised", lambda bounded, noise, source: real(bounded, 0.7 * noise, source))
    assert audited(quick(), runs=2000).verdict != "survives"


METHODS = [
    DPSGD(),
    SAT(0.1),
    SAM(0.1),
    SAM(0.1, fresh=True),
    DPLIS(lr=1.0, copies=2),
    Quantile(DPSGD()),
    Gap(method=DPSGD(), radius=0.1, bound=1.0),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_every_method_survives_and_is_seen(method) -> None:
    found = audited(quick(method=method), runs=400)
    assert not found.refuted
    assert found.lower > 1


@pytest.mark.parametrize("clip_norm", [0.01, Automatic(2.0), PerLayer(3.0)], ids=str)
@pytest.mark.parametrize(
    "optimizer", [SGD(lr=0.5, momentum=0.9), Adam(lr=0.1)], ids=lambda o: type(o).__name__
)
def test_clip_and_optimizer_make_no_difference(clip_norm, optimizer) -> None:
    found = audited(quick(clip_norm=clip_norm, optimizer=optimizer), runs=300)
    assert not found.refuted
    assert found.lower > 2


def test_phases_schedules_and_means() -> None:
    first = Phase(
        method=SAT(0.1),
        steps=3,
        noise_multiplier=2.0,
        clip_norm=1.0,
        optimizer=SGD(lr=1),
        noise_schedule=lambda step: 1.0 + 0.5 * step,
    )
    second = replace(first, method=DPSGD(), clip_norm=0.1, noise_multiplier=3.0, noise_schedule=1.0)
    found = canary(
        Plan(phases=(first, second), rate=1.0, size=50, ema=EMA()), 1e-5, runs=500, safeguards=seeded()
    )
    assert not found.refuted
    assert found.lower > 0.5 * found.claim.epsilon
    assert found.failed == ()


def test_other_sources_of_noise() -> None:
    found = canary(quick(), 1e-5, runs=200, control_runs=0, safeguards=Safeguards(noise=DiscreteNoise()))
    assert not found.refuted
    assert found.stamp == ""


def test_the_score_is_the_log_of_the_likelihood_ratio() -> None:
    z = torch.linspace(-9, 9, 50, dtype=torch.float64)
    without = norm(0, 2.5).pdf(z.numpy())
    within = 0.7 * without + 0.3 * norm(1, 2.5).pdf(z.numpy())
    np.testing.assert_allclose(log_ratio(z, 0.3, 2.5).numpy(), np.log(within / without), rtol=1e-10)


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_the_scores_are_what_the_analysis_says(rate: float) -> None:
    """E exp(score) = 1 without the canary, and E exp(-score) = 1 with it; on all units they are N(-+mu^2/2, mu^2)."""
    inside = np.arange(400) % 2 == 1
    the_plan = plan(noise=4.0, steps=16, rate=rate)
    scores = np.concatenate(
        [play(the_plan, inside, claimed=the_plan, safeguards=seeded(seed)) for seed in range(20)]
    )
    labels = np.tile(inside, 20)
    for signed in (scores[~labels], -scores[labels]):
        ratio = np.exp(signed)
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(len(ratio))
    if rate == 1:
        assert abs(scores[labels].mean() - 0.5) < 4 / math.sqrt(len(scores) / 2)
        assert abs(scores.std() - math.sqrt(1.25)) < 0.05


def test_runs_in_one_training_are_as_independent_as_runs_in_many() -> None:
    """No correlation between neighbours, and the errors of trainings are no more spread than a binomial's."""
    the_plan, inside = plan(noise=2.0, steps=4), np.arange(100) % 2 == 1
    scores = np.stack([play(the_plan, inside, claimed=the_plan, safeguards=seeded(k)) for k in range(60)])
    centred = scores - np.where(inside, 0.5, -0.5)
    assert abs((centred[:, ::2] * centred[:, 1::2]).mean()) < 4 / math.sqrt(3000)
    wrong = ((scores > 0) != inside).sum(1)
    assert wrong.var(ddof=1) < 100 * 0.3085 * 0.6915 * 1.9  # a chi-square with 59 degrees, at 1e-4


def test_one_training_for_each_run() -> None:
    seen: list[Done] = []
    found = canary(quick(), 1e-5, runs=10, together=1, safeguards=seeded(), watch=seen.append)
    assert len(seen) == 60
    assert seen[-1] == Done("no canary", 20, 20)
    assert found.counts["in one training"] == 1


def test_too_few_runs_fail_their_controls_and_say_so_first() -> None:
    found = canary(quick(), 1e-5, runs=6, safeguards=seeded())
    assert [control.name for control in found.failed] == ["half noise"]
    assert found.as_text().startswith("CONTROLS FAILED (half noise)")
    assert "survives" not in found.as_text()


@pytest.mark.parametrize("wrong", [{"runs": 1}, {"together": 0}, {"control_runs": -1}, {"runs": 2.5}])
def test_wrong_numbers_are_refused(wrong: dict) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        canary(quick(), 1e-5, **{"runs": 4, **wrong})


def test_a_plan_without_noise_claims_nothing() -> None:
    with pytest.raises(AccountingError):
        canary(plan(noise=0.0), 1e-5, runs=4)


def test_no_ledger_is_charged(tmp_path) -> None:
    with Ledger.open(tmp_path / "ledger", dataset="x") as ledger:
        run = ledger.run("one", unit="example")
        with pytest.raises(SettingError, match="counts on no ledger"):
            canary(quick(), 1e-5, runs=4, safeguards=Safeguards(meter=run))
        assert run.charged() == {}
