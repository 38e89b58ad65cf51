"""The generator: the network's sizes, its fit, what it makes, and what pulls it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from saltflat.errors import DataError, SettingError
from saltflat.synthesis import (
    DDPM,
    EDM,
    Discriminator,
    Fit,
    Guidance,
    NonLeaking,
    UNet,
    even_labels,
    fit,
)
from saltflat.synthesis.fitting import Seen, Trained
from saltflat.synthesis.guidance import noise_in, time_of

SMALL = UNet(channels=8)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def squares(count: int = 24) -> tuple[Tensor, Tensor]:
    """Images of two classes: bright on the left, bright on the right."""
    images = 0.1 * torch.rand(count, 1, 8, 8, generator=source())
    labels = even_labels(count, 2)
    images[labels == 0, :, :, :4] += 0.8
    images[labels == 1, :, :, 4:] += 0.8
    return images, labels


class TestNetwork:
    @pytest.mark.parametrize(("classes", "count"), [(10, 55_735_299), (100, 55_746_819)])
    def test_the_full_one_has_as_many_parameters_as_the_papers(self, classes: int, count: int) -> None:
        with torch.device("meta"):  # no memory, and no time for random numbers
            network = UNet.full().made((3, 32, 32), classes)
        assert sum(p.numel() for p in network.parameters()) == count

    @pytest.mark.parametrize(
        ("sizes", "shape"),
        [
            (SMALL, (1, 8, 8)),
            (UNet(channels=8, patch=2, attention=(7,)), (1, 28, 28)),
            (UNet(channels=8, multipliers=(1, 1, 2), blocks=2, attention=(4,), dropout=0.2), (3, 16, 16)),
        ],
    )
    def test_it_gives_what_it_was_given(self, sizes: UNet, shape: tuple[int, ...]) -> None:
        network = sizes.made(shape, 3)
        x, labels = torch.randn(4, *shape), torch.arange(4) % 3
        assert network(x, torch.zeros(4), labels, torch.zeros(4, 9)).shape == x.shape

    def test_it_hears_level_class_and_augmentation(self) -> None:
        network = SMALL.made((1, 8, 8), 3)
        for p in network.parameters():
            nn.init.normal_(p, std=0.3, generator=source())
        x, none, zero = torch.randn(2, 1, 8, 8, generator=source()), torch.zeros(2).long(), torch.zeros(2)
        plain = network(x, zero, none, torch.zeros(2, 9))
        for other in (
            network(x, zero + 1, none, torch.zeros(2, 9)),
            network(x, zero, none + 1, torch.zeros(2, 9)),
            network(x, zero, none, torch.ones(2, 9)),
        ):
            assert not torch.allclose(plain, other)
        assert torch.equal(plain, network(x, zero, none))  # nothing said is nothing done

    @pytest.mark.parametrize(
        ("sizes", "shape"), [(SMALL, (1, 7, 7)), (SMALL, (1, 8, 6)), (UNet(patch=4), (1, 28, 28))]
    )
    def test_images_that_do_not_fit_are_refused(self, sizes: UNet, shape: tuple[int, ...]) -> None:
        with pytest.raises(SettingError, match="square images whose side"):
            sizes.made(shape, 10)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"channels": 6},
            {"multipliers": ()},
            {"blocks": 0},
            {"dropout": 1.0},
            {"patch": 0},
            {"attention": (0,)},
        ],
    )
    def test_wrong_sizes_are_refused(self, wrong: dict) -> None:
        with pytest.raises(SettingError):
            UNet(**wrong)


class TestNonLeaking:
    def test_nothing_done_is_nothing_said(self) -> None:
        images = torch.rand(50, 1, 8, 8, generator=source())
        changed, said = NonLeaking(probability=0.5)(images, source(1))
        same = (said == 0).all(1)
        assert 0 < int(same.sum()) < 50
        assert torch.equal(changed[same], images[same])
        assert not torch.equal(changed[~same], images[~same])

    def test_left_and_right_only_if_asked(self) -> None:
        images = torch.rand(200, 1, 4, 4, generator=source())
        assert not NonLeaking(probability=1.0)(images, source())[1][:, 0].any()
        assert NonLeaking(probability=1.0, mirrored=True)(images, source())[1][:, 0].all()

    def test_a_flip_alone_is_a_flip(self) -> None:
        """Drawn until one image was flipped and nothing else."""
        images = torch.rand(400, 1, 6, 6, generator=source())
        changed, said = NonLeaking(probability=0.3)(images, source(2))
        only = (said[:, 1] == 1) & (said[:, 2:] == 0).all(1)
        assert int(only.sum()) > 3
        torch.testing.assert_close(changed[only], images[only].flip(2), atol=1e-5, rtol=0)


class TestFit:
    how = Fit(network=SMALL, seen=640, batch=32, ramp=0)

    def test_a_fit_that_was_stopped_goes_on_as_if_it_had_not_been(self) -> None:
        images, labels = squares()
        kept: list[Trained] = []

        def keep(seen: Seen) -> None:
            if seen.step == 7:
                kept.append(seen.now())

        whole = fit(self.how, images, labels, classes=2, watch=keep)
        again = fit(self.how, images, labels, classes=2, start=kept[0])
        assert all(torch.equal(leaf, again.weights[name]) for name, leaf in whole.weights.items())

    def test_with_dropout_too(self) -> None:
        images, labels = squares()
        how = Fit(network=UNet(channels=8, dropout=0.3), seen=96, batch=32)
        one, other = (fit(how, images, labels, classes=2).weights for _ in range(2))
        assert all(torch.equal(leaf, other[name]) for name, leaf in one.items())

    @pytest.mark.slow
    @pytest.mark.parametrize(("diffusion", "steps"), [(EDM(), 8), (DDPM(), 50)])
    def test_what_it_makes_is_of_the_class_that_was_asked_for(
        self, diffusion: EDM | DDPM, steps: int
    ) -> None:
        images, labels = squares()
        how = Fit(
            network=SMALL,
            diffusion=diffusion,
            seen=6400,
            batch=32,
            ramp=0,
            lr=3e-3,
            half_life=500.0,
            augment=NonLeaking(probability=0.0),
        )
        made = fit(how, images, labels, classes=2).draw(even_labels(16, 2), steps=steps)
        assert made.shape == (16, 1, 8, 8)
        assert 0 <= float(made.min()) <= float(made.max()) <= 1
        left, right = made[:, :, :, :4].mean((1, 2, 3)), made[:, :, :, 4:].mean((1, 2, 3))
        assert int(((left > right) == (even_labels(16, 2) == 0)).sum()) >= 14

    def test_the_mean_follows_slowly_and_at_first_quickly(self) -> None:
        how = Fit(batch=100, half_life=1000.0)
        assert how.decay(0) == pytest.approx(0.5 ** (100 / 5))
        assert how.decay(10**6) == pytest.approx(0.5 ** (100 / 1000))
        assert [round(Fit(batch=100, ramp=400).rate(k) / 1e-3, 2) for k in (0, 1, 3, 9)] == [0.25, 0.5, 1, 1]

    @pytest.mark.parametrize(
        ("images", "labels"),
        [
            (torch.full((2, 1, 8, 8), 255, dtype=torch.uint8), torch.zeros(2)),
            (torch.rand(2, 1, 8, 8) * 2 - 1, torch.zeros(2)),
            (torch.rand(2, 8, 8), torch.zeros(2)),
            (torch.rand(2, 1, 8, 8), torch.tensor([0, 5])),
        ],
    )
    def test_what_are_no_images_from_0_to_1_is_refused(self, images: Tensor, labels: Tensor) -> None:
        with pytest.raises(DataError):
            fit(self.how, images, labels, classes=2)


class TestDDPM:
    def test_with_the_exact_noise_a_gaussian_comes_out_as_it_is(self) -> None:
        """For y ~ N(m, v) the noise that was added is known on average: a line in x."""
        ddpm, mean, variance = DDPM(), 0.3, 0.04
        kept = ddpm.kept()

        def exact(x: Tensor, time: Tensor) -> Tensor:
            left = kept[time.long()].view(-1, 1)
            spread = left * variance + 1 - left
            return (1 - left).sqrt() * (x - left.sqrt() * mean) / spread

        found = ddpm.drawn(exact, (4000, 1), source(), 1000)
        assert float(found.mean()) == pytest.approx(mean, abs=0.02)
        assert float(found.var()) == pytest.approx(variance, rel=0.1)


class TestGuidance:
    def test_times_and_levels_agree(self) -> None:
        levels = torch.tensor([0.01, 0.5, 3.0, 80.0], dtype=torch.float64)
        left = (-noise_in(time_of(levels))).exp()
        torch.testing.assert_close(((1 - left) / left).sqrt(), levels)

    def test_it_pulls_what_is_made_towards_what_is_public(self) -> None:
        """The generator is exact, of images whose left half is darker than the public ones': guided, it brightens.

        The classes say which half is brighter, so the features that the discriminator stands on know of brightness.
        """
        edm, dark, bright, spread = EDM(), -0.3, 0.3, 0.3

        def images(centre: float, seed: int) -> tuple[Tensor, Tensor]:
            halves = spread * torch.randn(400, 1, 1, 2, generator=source(seed)) + torch.tensor([centre, 0.0])
            labels = (halves[:, 0, 0, 0] > halves[:, 0, 0, 1]).long()
            return ((halves.repeat_interleave(4, 3).expand(-1, -1, 8, -1) + 1) / 2).clamp(0, 1), labels

        def exact(x: Tensor, s: Tensor) -> Tensor:
            noise, centres = s.view(-1, 1, 1, 1) ** 2 / 32, torch.tensor([dark, 0.0])
            halves = torch.stack([x[..., :4].mean((1, 2, 3)), x[..., 4:].mean((1, 2, 3))], 1).view(
                -1, 1, 1, 2
            )
            found = centres + spread**2 / (spread**2 + noise) * (halves - centres)
            return found.repeat_interleave(4, 3).expand_as(x)

        how = Guidance(weight=1.0, width=8, seen=9600, batch=64, lr=3e-3)
        judge = Discriminator.trained(how, images(bright, 0), images(dark, 1), classes=2)
        noise = edm.noise(200, 1, 8, 8, source=source(3))
        guides = [
            replace(judge, how=replace(how, weight=weight)).guide(even_labels(200, 2))
            for weight in (1.0, 4.0)
        ]
        plain, guided, more = (
            float(edm.sample(exact, noise, steps=12, guide=guide)[..., :4].mean())
            for guide in (None, *guides)
        )
        assert plain == pytest.approx(dark, abs=0.06)
        assert plain + 0.01 < guided < more - 0.03

    def test_at_weight_zero_nothing_is_pulled(self) -> None:
        images, labels = squares()
        how = Guidance(weight=0.0, width=4, seen=64, batch=16)
        judge = Discriminator.trained(how, (images, labels), (images, labels), classes=2)
        x = torch.randn(24, 1, 8, 8, dtype=torch.float64)
        assert not judge.guide(labels)(x, torch.tensor(1.0)).any()

    @pytest.mark.parametrize("wrong", [{"weight": -1.0}, {"width": 6}, {"lr": math.nan}, {"seen": 0}])
    def test_wrong_settings_are_refused(self, wrong: dict) -> None:
        with pytest.raises(SettingError):
            Guidance(**wrong)
