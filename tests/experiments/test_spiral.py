"""The spiral: its closed form, and a trained network whose loss comes near it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import toy_spiral

from saltflat.errors import SettingError
from saltflat.synthesis import EDM


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_arms_thin_out_and_stand_opposite() -> None:
    points = toy_spiral.Points.drawn(4000, source())
    counts = points.region.bincount(minlength=4).tolist()
    assert counts == sorted(counts, reverse=True)
    along = torch.tensor([0.3, 0.8])
    torch.testing.assert_close(
        toy_spiral.place(along, torch.zeros(2)), -toy_spiral.place(along, torch.ones(2))
    )


def test_the_closed_form_is_the_mean_of_clean_points_given_a_noisy_one() -> None:
    """Against a weighted mean over many points of the spiral itself."""
    edm, level, here = EDM(), torch.tensor([0.4]), torch.tensor([[0.3, -0.2]])
    clean = toy_spiral.Points.drawn(200_000, source(1))
    mine = clean.x[clean.arm == 1].double()
    weight = (-(here - mine).square().sum(1) / (2 * level**2)).softmax(0)
    network = toy_spiral.exact(edm, torch.tensor([1]))
    found = edm.denoiser(network)(here.double(), level.double())
    torch.testing.assert_close(found[0], weight @ mine, atol=5e-3, rtol=0)


def test_nothing_beats_the_closed_form() -> None:
    edm, fresh = EDM(), toy_spiral.Points.drawn(1000, source(2))
    torch.manual_seed(0)
    own, best = toy_spiral.losses(edm, toy_spiral.MLP(), fresh)
    assert best < own


@pytest.mark.slow
def test_a_trained_network_comes_near_it() -> None:
    edm, points = EDM(), toy_spiral.Points.drawn(2500, source(3))
    own, best = toy_spiral.losses(
        edm, toy_spiral.fitted(edm, points, 1000), toy_spiral.Points.drawn(4000, source(9))
    )
    assert best < own < 1.3 * best


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    toy_spiral.main(["--points", "100", "--steps", "3"])
    assert capsys.readouterr().out.splitlines()[2].startswith("| 100 |")
    with pytest.raises(SettingError):
        toy_spiral.main(["--points", "1"])
