"""Images that programs make: the same for one seed however they are taken, and with the statistics of their process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.synthesis import DeadLeaves, Fractals, Images, SpectrumNoise, Strokes

PROCESSES = (DeadLeaves(), Fractals(points=300), SpectrumNoise(), Strokes())
EVERY = pytest.mark.parametrize("process", PROCESSES, ids=lambda process: type(process).__name__)


@EVERY
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 17)])
def test_form_and_range(process: Any, channels: int, side: int) -> None:
    images = Images(process=process, channels=channels, side=side).first(300)
    assert images.shape == (300, channels, side, side)
    assert images.dtype == torch.uint8
    assert images.float().std() > 20  # neither black nor flat
    assert len(torch.unique(images.flatten(1), dim=0)) == 300  # no image twice
    values = process.painted(20, channels, side, np.random.default_rng(0))
    assert bool(torch.isfinite(values).all())


@EVERY
def test_an_image_is_a_function_of_the_seed_and_its_number(process: Any) -> None:
    made = Images(process=process, side=8)
    first = made.first(600)
    assert torch.equal(made.first(260), first[:260])
    assert torch.equal(made.take([599, 3, 256, 3]), first[[599, 3, 256, 3]])
    assert torch.equal(Images(process=process, side=8).first(600), first)
    assert not torch.equal(Images(process=process, side=8, seed=1).first(600), first)
    assert made.take([]).shape == (0, 1, 8, 8)


@EVERY
def test_torchs_source_is_left_alone(process: Any) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    Images(process=process, side=8).first(5)
    assert torch.equal(torch.get_rng_state(), before)


class TestDeadLeaves:
    def test_an_image_has_as_many_greys_as_shapes_and_ground(self) -> None:
        images = Images(process=DeadLeaves(fewest=4, most=4, spread=0.0), side=64).first(200)
        greys = [len(torch.unique(image)) for image in images]
        assert max(greys) == 5  # small shapes that seldom meet
        assert min(greys) >= 1

    def test_a_shape_is_as_large_as_it_says(self) -> None:
        """One shape of half-axes 8 and 8 on an empty ground: pi r^2 or (2 r)^2 pixels, where it is not cut off."""
        one = DeadLeaves(fewest=1, most=1, least=8.0, spread=0.0, narrow=1.0)
        images = one.painted(400, 1, 28 * 4, np.random.default_rng(0))
        areas = (images != images[:, :, :1, :1]).sum((1, 2, 3)).double()
        areas = torch.minimum(areas, 112**2 - areas)  # the corner may be the shape's
        radius = 8 * 4
        assert float(areas.max()) == pytest.approx((2 * radius) ** 2, rel=0.03)
        near = lambda area: float(((areas / area - 1).abs() < 0.03).double().mean())
        assert near(np.pi * radius**2) > 0.05
        assert near((2 * radius) ** 2) > 0.05

    def test_grey_leaves_have_no_colour(self) -> None:
        images = Images(process=DeadLeaves(tint=0.0), channels=3, side=16).first(50)
        assert torch.equal(images[:, 0], images[:, 1])


class TestSpectrumNoise:
    @pytest.mark.parametrize("exponent", [1.0, 2.0])
    def test_the_spectrum_falls_off_as_it_says(self, exponent: float) -> None:
        """Along the axis f_y = 0 the amplitude is |f_x|^-a: a line of slope -a in a log-log picture."""
        images = SpectrumNoise(gentle=exponent, steep=exponent).painted(600, 1, 64, np.random.default_rng(0))
        images = images / images.flatten(1).std(1).view(-1, 1, 1, 1)
        amplitude = torch.fft.rfft2(images)[:, 0, 0, 2:24].abs().square().mean(0).sqrt()
        frequency = torch.arange(2, 24, dtype=torch.float32)
        slope = np.polyfit(frequency.log(), amplitude.log(), 1)[0]
        assert slope == pytest.approx(-exponent, abs=0.08)


class TestFractals:
    def test_points_lie_on_the_attractor(self) -> None:
        """Two halvings of an interval leave the interval: every point of the line, and none beside it."""
        from saltflat.synthesis import fractals

        maps = np.tile(np.eye(2) / 2, (1, 2, 1, 1))
        shifts = np.array([[[0.0, 0.0], [0.5, 0.0]]])
        chosen = np.random.default_rng(0).integers(0, 2, (1, 500))
        places = fractals._played(maps, shifts, chosen)[0]
        assert np.all(places[:, 1] == 0)
        assert places[:, 0].min() >= 0
        assert places[:, 0].max() <= 1
        assert places[:, 0].std() == pytest.approx(12**-0.5, abs=0.03)

    def test_contractions_contract(self) -> None:
        maps, _, chosen = Fractals(fewest=2, most=3)._system(200, np.random.default_rng(0))
        assert np.linalg.norm(maps, 2, axis=(2, 3)).max() <= 0.8 + 1e-9
        assert {len(np.unique(row)) for row in chosen} == {2, 3}


def test_a_process_of_ones_own() -> None:
    class Plain:
        def painted(self, count: int, channels: int, side: int, source: np.random.Generator) -> Tensor:
            return torch.full((count, channels, side, side), 2.0)  # brighter than white is white

    assert int(Images(process=Plain(), side=4).first(3).min()) == 255


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Images(process=DeadLeaves), "process"),
        (lambda: Images(process="leaves"), "process"),
        (lambda: Images(process=DeadLeaves(), channels=2), "channels"),
        (lambda: Images(process=DeadLeaves(), side=0), "side"),
        (lambda: Images(process=DeadLeaves(), seed=-1), "seed"),
        (lambda: Images(process=DeadLeaves()).first(0), "count"),
        (lambda: Images(process=DeadLeaves()).take([-1]), "negative"),
        (lambda: DeadLeaves(fewest=5, most=3), "fewest"),
        (lambda: DeadLeaves(least=float("nan")), "least"),
        (lambda: DeadLeaves(narrow=0.0), "narrow"),
        (lambda: Fractals(fewest=1), "contractions"),
        (lambda: Fractals(points=0), "points"),
        (lambda: SpectrumNoise(gentle=3, steep=1), "gentle"),
    ],
)
def test_settings_that_are_none(make: Any, match: str) -> None:
    with pytest.raises(SettingError, match=match):
        make()


def test_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "synthesis.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", page, flags=re.S):
        exec(compile(code, "synthesis.md", "exec"), {})


def test_a_character_is_painted_in_views_that_differ_less_than_characters() -> None:
    made = Images(process=Strokes(views=4), seed=3).first(64).float().unflatten(0, (16, 4))
    within = (made - made.mean(1, keepdim=True)).square().mean()
    between = (made.mean(1) - made.mean((0, 1))).square().mean()
    assert 0 < within < between


def test_strokes_lie_in_the_middle_and_leave_a_border() -> None:
    made = Images(process=Strokes(), side=32).first(200).float() / 255
    places = torch.arange(32) + 0.5
    for axis in (2, 3):
        along = made.sum((1, 5 - axis))
        assert ((along @ places) / along.sum(1) - 16).abs().mean() < 1.5
    assert made.amax((1, 2, 3)).min() > 0.7
    assert made[..., 0].mean() < 0.01


@pytest.mark.parametrize(
    "wrong", [{"views": 3}, {"views": 0}, {"fewest": 3, "most": 2}, {"thin": 5.0, "thick": 2.0}, {"reach": 9}]
)
def test_strokes_refuse_settings_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        Strokes(**wrong)  # type: ignore[arg-type]
