"""Canaries among real units: their gradients, and what is seen of them in one training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from games import plan, quick, seeded
from torch import nn

import saltflat.core.ask as ask
import saltflat.core.step as step
from saltflat import per_example, supervised
from saltflat.audit import Company, one_run
from saltflat.audit.planted import Among, Both, Planted, Spikes, chosen_places, flat
from saltflat.clipping import PerLayer
from saltflat.data import TensorUnits
from saltflat.errors import PrivacyError, SettingError
from saltflat.landscape import STAYS_PRIVATE
from saltflat.methods import SAT, Quantile

CRITERION = nn.CrossEntropyLoss(reduction="none")


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))


def units(count: int = 40) -> TensorUnits:
    torch.manual_seed(1)
    return TensorUnits((torch.randn(count, 6), torch.randint(3, (count,))))


def company(seed: int = 0) -> Company:
    return Company(per_example(network(seed), supervised(CRITERION)), units(), STAYS_PRIVATE)


def dense(chunk: Both | Spikes, count: int, like: dict) -> torch.Tensor:
    """(units, coordinates): every unit's gradient, by itself."""
    eye = torch.eye(count)
    return torch.stack(
        [flat({n: leaf for n, leaf in chunk.weighted_sum(row).items() if n in like}) for row in eye]
    )


@pytest.fixture
def both() -> tuple[Both, dict]:
    model = network()
    params = {name: p.detach() for name, p in model.named_parameters()}
    planted = Planted(per_example(model, supervised(CRITERION)), 7.0, 40)
    batch = Among(units(), torch.tensor([0, 5, 130])).take(np.array([2, 3, 9, 40, 42]))
    return planted([params], [1.0], batch), params


def test_canaries_stand_beside_the_units(both: tuple[Both, dict]) -> None:
    chunk, params = both
    rows = dense(chunk, 5, params)
    own = per_example(network(), supervised(CRITERION))([params], [1.0], units().take(np.array([2, 3, 9])))
    torch.testing.assert_close(rows[:3], torch.stack([flat(own.weighted_sum(row)) for row in torch.eye(3)]))
    expected = torch.zeros(2, rows.shape[1])
    expected[0, 0] = expected[1, 130] = 7.0
    torch.testing.assert_close(rows[3:], expected)


def test_a_chunk_answers_as_its_gradients_do(both: tuple[Both, dict]) -> None:
    chunk, params = both
    rows = dense(chunk, 5, params)
    direction = {name: torch.randn_like(leaf) for name, leaf in params.items()}
    torch.testing.assert_close(chunk.norms(), rows.norm(dim=1))
    torch.testing.assert_close(chunk.dot(direction), rows @ flat(direction))
    scaled = chunk.scaled(direction)
    torch.testing.assert_close(dense(scaled, 5, params), rows * flat(direction), rtol=1e-5, atol=1e-5)
    for names in (["0.weight"], ["0.bias", "2.weight"], list(params)):
        inside = flat({n: torch.full_like(leaf, n in names) for n, leaf in params.items()}).bool()
        part = chunk.only(names)
        torch.testing.assert_close(part.norms(), rows[:, inside].norm(dim=1))
        torch.testing.assert_close(dense(part, 5, {n: params[n] for n in names}), rows[:, inside])


def test_losses_have_the_gradients_of_the_chunk(both: tuple[Both, dict]) -> None:
    _, params = both
    planted = Planted(per_example(network(), supervised(CRITERION)), 7.0, 40)
    batch = Among(units(), torch.tensor([0, 5, 130])).take(np.array([2, 41]))
    moved = {name: leaf + 1.0 for name, leaf in params.items()}
    low, high = planted.losses([params, moved], batch)
    assert float(high[1] - low[1]) == pytest.approx(7.0, rel=1e-4)
    only = Among(units(), torch.tensor([3])).take(np.array([40]))
    assert planted.losses([params], only).shape == (1, 1)


def test_no_two_canaries_share_a_weight() -> None:
    params = {"w": torch.zeros(5, 4), "b": torch.zeros(3)}
    places = chosen_places(params, 23, np.random.default_rng(0))
    assert sorted(places.tolist()) == list(range(23))
    with pytest.raises(SettingError, match="24 canaries do not fit into 23 weights"):
        chosen_places(params, 24, np.random.default_rng(0))


def test_alone() -> None:
    found = one_run(quick(), 1e-5, canaries=600, safeguards=seeded())
    assert not found.refuted
    assert 0.5 < found.lower < found.claim.epsilon
    assert found.failed == ()
    assert found.counts["canaries"] == 600


@pytest.mark.parametrize(
    "settings",
    [{}, {"method": SAT(0.05)}, {"method": Quantile(SAT(0.05))}, {"clip_norm": PerLayer(1.0)}],
    ids=["plain", "SAT", "Quantile", "PerLayer"],
)
def test_in_company(settings: dict) -> None:
    with_them = company()
    before = {name: p.clone() for name, p in with_them.contribution.model.state_dict().items()}
    the_plan = replace(plan(noise=5.0, steps=24, rate=0.5, **settings), size=40)
    found = one_run(the_plan, 1e-5, canaries=190, company=with_them, safeguards=seeded())
    assert not found.refuted
    assert found.claim.unit == "example"
    assert "private: keep this file" in found.as_text()
    assert found.failed == ()
    for name, leaf in with_them.contribution.model.state_dict().items():
        assert torch.equal(leaf, before[name]), name


def test_no_company_without_a_declaration() -> None:
    with pytest.raises(PrivacyError, match="access=PUBLIC"):
        Company(per_example(network(), supervised(CRITERION)), units())


def test_what_the_others_add_is_taken_away() -> None:
    """Without noise nothing is left but the canaries, however many others there are."""
    found = one_run(replace(quick(), size=40), 1e-5, canaries=200, company=company(), safeguards=seeded())
    (no_noise,) = (control for control in found.controls if control.name == "no noise")
    assert no_noise.came == pytest.approx(3.52, abs=0.01)  # the most that 200 right guesses can show


def test_the_same_seed_gives_the_same_result() -> None:
    one, two = (one_run(quick(), 1e-5, canaries=100, safeguards=seeded(1)) for _ in range(2))
    assert replace(one, seconds=0.0) == replace(two, seconds=0.0)


def test_noise_that_is_missing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "noised", lambda bounded, noise_multiplier, noise: bounded.total)
    monkeypatch.setattr(
        step, "check_answer", lambda answer, params: answer
    )  # would see that there is none at all
    found = one_run(plan(noise=4.0, steps=4), 1e-5, canaries=400, controls=False, safeguards=seeded())
    assert found.refuted
    assert found.as_text().splitlines()[1].startswith("CLAIM REFUTED")


def test_few_canaries_cannot_refute_a_large_epsilon_and_say_so() -> None:
    found = one_run(quick(), 1e-5, canaries=20, safeguards=seeded())
    assert [control.name for control in found.failed] == ["no noise"]


def test_a_lonely_canary_is_refused() -> None:
    with pytest.raises(SettingError, match="at least 2"):
        one_run(quick(), 1e-5, canaries=1)
