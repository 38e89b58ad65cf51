"""Augmentations: what they do to pixels, that rows are drawn independently, and that they fit the private step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from steps import beside
from torch import Generator, Tensor, nn

from saltflat import Phase, Plan, per_example, supervised, train
from saltflat.core.train import trainable
from saltflat.data import Cutout, Flip, PadCrop, TensorUnits, augment
from saltflat.errors import DataError, ModelError, SettingError
from saltflat.methods import DPSGD
from saltflat.optimizers import SGD

ALL = [PadCrop(2), PadCrop(2, reflect=False), Flip(), Cutout(3)]
LOSS = supervised(nn.CrossEntropyLoss(reduction="none"))


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def images(count: int = 6, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.rand(count, 3, 8, 10, generator=seeded(1)) * 200 + 1).to(dtype)


@pytest.mark.parametrize("transform", ALL, ids=str)
class TestEveryTransform:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
    def test_shape_type_and_input_are_kept(self, transform, dtype: torch.dtype) -> None:
        x = images(dtype=dtype)
        before = x.clone()
        out = transform(x, seeded())
        assert out.shape == x.shape
        assert out.dtype == dtype
        assert torch.equal(x, before)
        assert transform(x[:0], seeded()).shape == (0, 3, 8, 10)

    def test_the_generator_decides(self, transform) -> None:
        x = images(32)
        assert torch.equal(transform(x, seeded(3)), transform(x, seeded(3)))
        assert not torch.equal(transform(x, seeded(3)), transform(x, seeded(4)))
        state = torch.get_rng_state()
        transform(x, seeded())
        assert torch.equal(torch.get_rng_state(), state), "torch's own generator is left alone"

    def test_no_row_sees_another(self, transform) -> None:
        x = images()
        other = x.clone()
        other[2] = 7
        same, changed = transform(x, seeded()), transform(other, seeded())
        rest = torch.arange(len(x)) != 2
        assert torch.equal(same[rest], changed[rest])

    def test_equal_rows_are_drawn_apart(self, transform) -> None:
        out = transform(images(1).repeat(64, 1, 1, 1), seeded())
        assert len(out.flatten(1).unique(dim=0)) > 1

    def test_only_images(self, transform) -> None:
        with pytest.raises(DataError, match=r"\(n, c, h, w\)"):
            transform(torch.zeros(3, 4), seeded())


class TestPixels:
    @pytest.mark.parametrize("reflect", [True, False])
    def test_every_crop_is_a_window_of_the_padded_image(self, reflect: bool) -> None:
        """And every window appears, about equally often."""
        padding, count = 2, 2500
        x = images(1)
        padded = F.pad(x, (padding,) * 4, mode="reflect" if reflect else "constant")
        windows = {
            padded[0, :, top : top + 8, left : left + 10].numpy().tobytes(): (top, left)
            for top in range(5)
            for left in range(5)
        }
        out = PadCrop(padding, reflect=reflect)(x.expand(count, -1, -1, -1), seeded())
        found = [windows[row.numpy().tobytes()] for row in out]
        times = np.unique(np.array(found), axis=0, return_counts=True)[1]
        assert len(times) == 25
        assert ((times - 100) ** 2 / 100).sum() < 60  # chi-squared with 24 degrees: p < 1e-4

    def test_no_padding_changes_nothing(self) -> None:
        assert torch.equal(PadCrop(0)(images(), seeded()), images())

    def test_flip(self) -> None:
        x = images()
        assert torch.equal(Flip(1.0)(x, seeded()), x.flip(-1))
        assert torch.equal(Flip(0.0)(x, seeded()), x)
        many = Flip(0.25)(images(1).expand(4000, -1, -1, -1), seeded())
        assert (many == images(1).flip(-1)).flatten(1).all(1).float().mean() == pytest.approx(0.25, abs=0.03)

    @pytest.mark.parametrize("size", [1, 3, 4])
    def test_cutout_is_one_square(self, size: int) -> None:
        out = Cutout(size)(torch.ones(3000, 2, 8, 10), seeded())
        assert torch.equal(out[:, 0], out[:, 1])
        gone = out[:, 0] == 0
        down, across = gone.any(2).sum(1), gone.any(1).sum(1)
        assert torch.equal(gone.sum((1, 2)), down * across), "a full rectangle"
        assert int(down.max()) == int(across.max()) == size
        assert int(down.min()) >= 1
        assert bool(gone.any(0).all()), "every pixel is reached"

    def test_settings_are_checked(self) -> None:
        for wrong in (
            lambda: PadCrop(-1),
            lambda: PadCrop(1.5),
            lambda: Flip(1.1),
            lambda: Flip(float("nan")),
            lambda: Cutout(0),
            lambda: augment(Flip(), views=0),
        ):
            with pytest.raises(SettingError):
                wrong()
        with pytest.raises(SettingError, match="at most 7 pixels"):
            PadCrop(8)(images(), seeded())
        assert PadCrop(7)(images(), seeded()).shape == (6, 3, 8, 10)


class TestViews:
    def test_views_lie_next_to_each_other_and_differ(self) -> None:
        x, y = images(5), torch.arange(5)
        rows, labels = augment(PadCrop(3), Flip(), views=8, generator=seeded())((x, y))
        assert rows.shape == (40, 3, 8, 10)
        assert torch.equal(labels, y.repeat_interleave(8))
        for unit in rows.view(5, 8, -1):
            assert len(unit.unique(dim=0)) > 4
        plain, _ = augment(views=8)((x, y))
        assert torch.equal(plain.view(5, 8, 3, 8, 10), x.unsqueeze(1).expand(5, 8, 3, 8, 10))

    def test_transforms_are_chained_in_order(self) -> None:
        x = images()
        generator = seeded()
        expected = Cutout(3)(PadCrop(2)(x, generator), generator)
        assert torch.equal(augment(PadCrop(2), Cutout(3), generator=seeded())(x), expected)

    def test_kinds_of_batches(self) -> None:
        x, y = images(2), torch.arange(2)
        flip = augment(Flip(1.0), images="pixels", views=2)
        out = flip({"pixels": x, "rest": (y, y)})
        assert torch.equal(out["pixels"], x.flip(-1).repeat_interleave(2, 0))
        assert out["rest"][1].tolist() == [0, 0, 1, 1]
        assert torch.equal(augment(Flip(1.0), images=1)([y, x])[1], x.flip(-1))
        with pytest.raises(SettingError, match="images='pixels' is not in a batch"):
            flip((x, y))
        with pytest.raises(SettingError, match="images=0 is not in a batch"):
            augment(Flip())({"pixels": x})

    def test_without_a_generator_nobody_can_repeat_the_draws(self) -> None:
        x = images(64)
        torch.manual_seed(0)
        first = augment(PadCrop(3))(x)
        torch.manual_seed(0)
        assert not torch.equal(first, augment(PadCrop(3))(x))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 6 * 8, 5))


class TestInThePrivateStep:
    def test_views_are_averaged_and_counted_as_one_unit(self) -> None:
        model, batch = network(), (images() / 255, torch.arange(6) % 5)
        make = lambda: augment(PadCrop(2), Flip(), views=4, generator=seeded())
        point = trainable(model)
        chunk = per_example(model, LOSS, views=4, augment=make()).still(alike=False)([point], [1.0], batch)
        rows, labels = make()(batch)
        for unit in range(6):
            own = slice(4 * unit, 4 * unit + 4)
            loss = F.cross_entropy(model(rows[own]), labels[own])
            grads = torch.autograd.grad(loss, list(model.parameters()))
            norm = torch.cat([g.flatten() for g in grads]).norm()
            torch.testing.assert_close(chunk.norms()[unit], norm, rtol=1e-4, atol=0)

    @pytest.mark.parametrize(("declared", "made"), [(1, 4), (2, 4), (4, 1), (4, 2)])
    def test_views_that_were_not_declared_are_refused(self, declared: int, made: int) -> None:
        """Four undeclared views of one example would be four units, each with a clip of its own."""
        contribution = per_example(network(), LOSS, views=declared, augment=augment(Flip(), views=made))
        with pytest.raises(SettingError, match=f"views={declared} were declared"):
            contribution([trainable(network())], [1.0], (images(), torch.arange(6) % 5))

    def test_the_first_check_gives_the_draws_back(self) -> None:
        model, units = network(), TensorUnits((images() / 255, torch.arange(6) % 5))
        own = augment(PadCrop(2), Flip(), views=2)
        state = own.generator.get_state()
        per_example(model, LOSS, views=2, augment=own).check(trainable(model), units.take, 6)
        assert torch.equal(own.generator.get_state(), state)

    def test_an_augmentation_that_mixes_examples_is_refused(self) -> None:
        def mixup(x: Tensor, generator: Generator) -> Tensor:
            share = torch.rand(len(x), 1, 1, 1, generator=generator)
            return share * x + (1 - share) * x.roll(1, 0)

        units = TensorUnits((images() / 255, torch.arange(6) % 5))
        contribution = per_example(network(), LOSS, augment=augment(mixup))
        with pytest.raises(ModelError, match="mixes"):
            contribution.check(trainable(network()), units.take, 6)

    def test_it_trains(self) -> None:
        model, units = network(), TensorUnits((images(40) / 255, torch.arange(40) % 5))
        phase = Phase(method=DPSGD(), steps=4, noise_multiplier=1.0, clip_norm=0.1, optimizer=SGD(lr=0.1))
        contribution = per_example(model, LOSS, views=3, augment=augment(PadCrop(2), Flip(), views=3))
        plan = Plan(phases=(phase,), rate=0.05, size=40)  # some draws are empty
        weights = train(plan, contribution, units, **beside(physical=7))
        assert all(bool(torch.isfinite(leaf).all()) for leaf in weights.values())
