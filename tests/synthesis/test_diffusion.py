"""EDM on problems with a formula: the denoiser of a mixture of Gaussians is known, and so is where sampling ends."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saltflat.errors import SettingError
from saltflat.synthesis import EDM

CENTRES = torch.tensor([[-0.6, 0.2], [0.5, -0.3]], dtype=torch.float64)
WIDTH, SHARES = 0.15, torch.tensor([0.3, 0.7], dtype=torch.float64)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mixture(noisy: Tensor, level: Tensor) -> Tensor:
    """E[y | y + s n] for y from the two Gaussians."""
    s = level.view(-1, 1).double()
    spread = WIDTH**2 + s.square()
    away = noisy.unsqueeze(1) - CENTRES  # (n, 2, 2)
    logs = SHARES.log() - away.square().sum(2) / (2 * spread)
    part = logs.softmax(1).unsqueeze(2)
    return (part * (CENTRES + (WIDTH**2 / spread).unsqueeze(2) * away)).sum(1)


def moments() -> tuple[Tensor, Tensor]:
    mean = SHARES @ CENTRES
    away = CENTRES - mean
    return mean, away.T @ (SHARES.view(-1, 1) * away) + WIDTH**2 * torch.eye(2).double()


def euler(edm: EDM, x: Tensor, steps: int) -> Tensor:
    """The same path by the simpler method, one evaluation a step."""
    levels = edm.levels(steps)
    for here, there in pairwise(levels):
        x = x + (there - here) * (x - mixture(x, here.expand(len(x)))) / here
    return x


class TestSampler:
    @pytest.mark.parametrize(("steps", "churn"), [(36, 0.0), (80, 4.0)])
    def test_two_gaussians_come_out_as_they_are(self, steps: int, churn: float) -> None:
        """With the 18 steps that are usual, variances come out 7 to 8 % too large: steps of finite length."""
        edm, start = EDM(), EDM().noise(10_000, 2, source=source())
        found = edm.sample(mixture, start, steps=steps, churn=churn, source=source(1))
        mean, covariance = moments()
        torch.testing.assert_close(found.mean(0), mean, rtol=0.05, atol=0.01)
        torch.testing.assert_close(torch.cov(found.T), covariance, rtol=0.05, atol=0.002)

    def test_heun_with_18_steps_beats_euler_with_36(self) -> None:
        """By how far they end from the exact path: 35 evaluations against 36."""
        edm = EDM()
        noise = edm.noise(500, 2, source=source())
        exact = edm.sample(mixture, noise, steps=300)
        error = lambda found: float((found - exact).square().sum(1).mean().sqrt())
        assert error(edm.sample(mixture, noise)) < 0.5 * error(euler(edm, noise, 36))

    def test_it_asks_as_often_as_it_says(self) -> None:
        asked: list[float] = []

        def counted(noisy: Tensor, level: Tensor) -> Tensor:
            asked.append(float(level[0]))
            return mixture(noisy, level)

        EDM().sample(counted, EDM().noise(3, 2, source=source()))
        assert len(asked) == 35
        assert asked[0] == 80
        assert min(asked) == pytest.approx(0.002)

    def test_a_point_is_reached_exactly(self) -> None:
        """Data that is one point: every path is straight, and ends there."""
        point = torch.tensor([[0.3, -0.7]], dtype=torch.float64)
        edm = EDM()
        found = edm.sample(
            lambda noisy, level: point.expand_as(noisy), edm.noise(5, 2, source=source()), steps=5
        )
        torch.testing.assert_close(found, point.expand(5, 2))

    def test_images_too(self) -> None:
        edm = EDM()
        grey = lambda noisy, level: torch.zeros_like(noisy, dtype=torch.float32)
        found = edm.sample(grey, edm.noise(2, 1, 4, 4, source=source()), steps=3)
        assert found.shape == (2, 1, 4, 4)
        assert found.dtype == torch.float64


class TestLoss:
    def test_a_network_of_zeros_has_loss_one_at_every_level(self) -> None:
        clean = 0.5 * torch.randn(40_000, 3, generator=source(), dtype=torch.float64)
        losses = EDM().loss(lambda x, code: torch.zeros_like(x), clean, source(1))
        assert float(losses.mean()) == pytest.approx(1, abs=0.02)
        far = EDM(log_mean=3.0, log_std=0.01).loss(lambda x, code: torch.zeros_like(x), clean, source(2))
        near = EDM(log_mean=-5.0, log_std=0.01).loss(lambda x, code: torch.zeros_like(x), clean, source(2))
        assert float(far.mean()) == pytest.approx(1, abs=0.03)
        assert float(near.mean()) == pytest.approx(1, abs=0.03)

    def test_the_network_sees_unit_variance_and_the_code_of_the_level(self) -> None:
        seen: list[tuple[Tensor, Tensor]] = []

        def network(x: Tensor, code: Tensor) -> Tensor:
            seen.append((x, code))
            return torch.zeros_like(x)

        clean = 0.5 * torch.randn(50_000, 1, generator=source(), dtype=torch.float64)
        EDM().loss(network, clean, source(1))
        (x, code), levels = seen[0], (4 * seen[0][1]).exp()
        for part in (levels < 0.2, levels > 0.8):
            assert float(x[part].std()) == pytest.approx(1, abs=0.03)
        assert float((4 * code).mean()) == pytest.approx(-1.2, abs=0.03)
        assert float((4 * code).std()) == pytest.approx(1.2, abs=0.03)

    def test_no_denoiser_beats_the_exact_one(self) -> None:
        """The exact denoiser as a network: its loss is below that of zeros, and any change of it is worse."""
        edm = EDM(deviation=float(moments()[1].diagonal().mean().sqrt()))
        which = torch.multinomial(SHARES, 20_000, replacement=True, generator=source())
        clean = CENTRES[which] + WIDTH * torch.randn(20_000, 2, generator=source(1), dtype=torch.float64)

        def exact(x: Tensor, code: Tensor, shift: float = 0.0) -> Tensor:
            s, d = (4 * code).exp().view(-1, 1), edm.deviation
            both = (s.square() + d**2).sqrt()
            noisy = x * both
            return (mixture(noisy, s.view(-1)) - (d / both) ** 2 * noisy) * both / (s * d) + shift

        best = float(edm.loss(exact, clean, source(2)).mean())
        zero = float(edm.loss(lambda x, code: torch.zeros_like(x), clean, source(2)).mean())
        moved = float(edm.loss(lambda x, code: exact(x, code, 0.1), clean, source(2)).mean())
        assert best < 0.8 * zero
        assert best < moved


def test_a_small_network_learns_the_two_gaussians() -> None:
    """Trained by the loss, sampled by Heun: the two centres are found, in their shares."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 2)).double()
    network = lambda x, code: net(torch.cat([x, code.view(-1, 1)], 1))
    edm, draws = EDM(), source()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    which = torch.multinomial(SHARES, 4000, replacement=True, generator=draws)
    clean = CENTRES[which] + WIDTH * torch.randn(4000, 2, generator=draws, dtype=torch.float64)
    for _ in range(300):
        rows = torch.randint(4000, (256,), generator=draws)
        optimizer.zero_grad()
        edm.loss(network, clean[rows], draws).mean().backward()
        optimizer.step()
    found = edm.sample(edm.denoiser(network), edm.noise(2000, 2, source=draws))
    nearest = torch.cdist(found, CENTRES).min(1)
    assert float((nearest.indices == 1).double().mean()) == pytest.approx(0.7, abs=0.1)
    assert float(nearest.values.median()) < 2 * WIDTH


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: EDM(deviation=0.0), "deviation"),
        (lambda: EDM(least=2.0, most=1.0), "falls"),
        (lambda: EDM(log_mean=float("nan")), "log_mean"),
        (lambda: EDM().levels(1), "2 steps"),
        (lambda: EDM().sample(mixture, torch.zeros(1, 2), churn=1.0), "source"),
        (lambda: EDM().sample(mixture, torch.zeros(1, 2), churn=-1.0, source=source()), "churn"),
    ],
)
def test_settings_that_are_none(make: Any, match: str) -> None:
    with pytest.raises(SettingError, match=match):
        make()
