"""Warm-up on public examples against plain loops, and what made images are worth to a classifier."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import saltflat as sf
from saltflat.data import Cutout, Examples, PadCrop
from saltflat.errors import ModelError, SettingError
from saltflat.methods.draws import public_draws
from saltflat.synthesis import SpectrumNoise
from saltflat.warmup import Contrast, Extractor, Known, Supervised, cas, judged
from saltflat.warmup.contrast import alignment, last_linear, uniformity
from saltflat.warmup.scores import right
from saltflat.warmup.supervised import cutmix

QUIET: Any = lambda done, total: None


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def digits(count: int = 200) -> Examples:
    train = sf.data.digits().train
    return Examples(train.inputs[:count], train.targets[:count])


def made(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return sf.models.digits_cnn()


def known(**parts: Any) -> Known:
    return Known((1, 8, 8), 10, None, **parts)


class TestSupervised:
    def test_it_is_a_plain_loop_with_momentum_decay_and_a_cosine(self) -> None:
        how = Supervised(epochs=2, batch_size=30, lr=0.1, weight_decay=0.01)
        model, plain, examples = made(), made(), digits(60)
        how.trained(model, examples, seed=5)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        for step in range(4):
            order = torch.randperm(60, generator=public_draws(5, step // 2))[30 * (step % 2) :][:30]
            optimizer.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * step / 4)) / 2
            optimizer.zero_grad()
            F.cross_entropy(plain(examples.inputs[order]), examples.targets[order]).backward()
            optimizer.step()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, other)

    @pytest.mark.parametrize("adaptive", [False, True])
    def test_sam_takes_the_gradient_where_it_has_climbed_to(self, adaptive: bool) -> None:
        """On ||A w - b||^2 / 2, whose gradients are known, where w is the one layer's weight."""
        model = nn.Linear(3, 1, bias=False).double()
        matrix, aim = (
            torch.randn(4, 3, generator=source()).double(),
            torch.randn(4, generator=source(1)).double(),
        )
        loss = lambda predict: ((predict(matrix).squeeze(1) - aim) ** 2).sum() / 2
        w = model.weight.detach().flatten()
        at = lambda point: matrix.T @ (matrix @ point - aim)
        h = at(w)
        climb = w**2 * h / (w * h).norm() if adaptive else h / h.norm()
        how = Supervised(radius=0.1, adaptive=adaptive)
        found = how.gradient(model, {"weight": model.weight.detach()}, loss)["weight"].flatten()
        torch.testing.assert_close(found, at(w + 0.1 * climb))
        plain = Supervised(radius=0.0).gradient(model, {"weight": model.weight.detach()}, loss)["weight"]
        torch.testing.assert_close(plain.flatten(), h)

    def test_everything_drawn_is_a_function_of_the_seed(self) -> None:
        how = Supervised(epochs=1, batch_size=50, augment=(PadCrop(1), Cutout(3)), cutmix=0.5, radius=0.05)
        one, other, third = made(), made(), made()
        how.trained(one, digits(), seed=1)
        torch.rand(100)
        how.trained(other, digits(), seed=1)
        how.trained(third, digits(), seed=2)
        same = lambda a, b: all(
            torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True)
        )
        assert same(one, other)
        assert not same(one, third)

    def test_it_learns(self) -> None:
        model, test = made(), sf.data.digits().test
        Supervised(epochs=25, batch_size=20, lr=0.05, augment=(PadCrop(1),)).trained(model, digits())
        assert right(model, test) > 0.8

    def test_a_warm_up_that_diverges_says_so(self) -> None:
        with pytest.raises(ModelError, match="lower its lr"):
            Supervised(epochs=3, lr=1e30, batch_size=20).trained(made(), digits())

    @pytest.mark.parametrize(
        "wrong",
        [
            {"on": "private"},
            {"epochs": 0},
            {"lr": 0.0},
            {"cutmix": 1.5},
            {"radius": -1.0},
            {"momentum": 1.0},
            {"adaptive": 1},
        ],
    )
    def test_wrong_settings_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(SettingError):
            Supervised(**wrong)

    @pytest.mark.parametrize("name", ["public", "synthetic"])
    def test_without_examples_it_says_what_to_add(self, name: str) -> None:
        with pytest.raises(SettingError, match=rf"add \[{name}\]"):
            Supervised(on=name).warmed(made(), known(), seed=0, watch=QUIET)


def test_cutmix_takes_as_much_as_it_says() -> None:
    images = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 1, 10, 10)
    for seed in range(20):
        mixed, others, share = cutmix(images, source(seed))
        taken = (mixed != images).float().mean((1, 2, 3))
        moved = others != torch.arange(6)
        torch.testing.assert_close(taken[moved], torch.full_like(taken[moved], share))


class TestContrast:
    def test_alignment_and_uniformity_by_their_formulas(self) -> None:
        one, other = (F.normalize(torch.randn(7, 4, generator=source(k)), dim=1) for k in (0, 1))
        torch.testing.assert_close(alignment(one, other), ((one - other) ** 2).sum(1).mean())
        pairs = [math.exp(-2 * float((one[i] - one[j]).square().sum())) for i in range(7) for j in range(i)]
        assert float(uniformity(one)) == pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-5)

    def test_features_align_and_spread_and_the_last_layer_stays(self) -> None:
        model = made()
        before = {name: leaf.clone() for name, leaf in model.state_dict().items()}
        how = Contrast(epochs=4, images=500, batch_size=100, lr=0.1, process=SpectrumNoise())
        losses: list[Tensor] = []
        loss = how._loss(last_linear(model), torch.rand(100, 1, 8, 8, generator=source()), 9, 1)
        losses.append(loss(model, 0).detach())
        how.warmed(model, known(), seed=0, watch=QUIET)
        losses.append(loss(model, 0).detach())
        after = model.state_dict()
        assert losses[1] < losses[0]
        assert torch.equal(before["9.weight"], after["9.weight"])
        assert torch.equal(before["9.bias"], after["9.bias"])
        assert not torch.equal(before["0.weight"], after["0.weight"])
        assert all(p.requires_grad for p in model.parameters())

    def test_a_model_without_features_is_refused(self) -> None:
        flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        with pytest.raises(ModelError, match="no features"):
            Contrast(epochs=1, images=300).warmed(flat, known(), seed=0, watch=QUIET)

    def test_rows_of_a_table_are_no_images(self) -> None:
        with pytest.raises(SettingError, match="leave Contrast out"):
            Contrast().warmed(made(), Known((14,), 2), seed=0, watch=QUIET)

    @pytest.mark.parametrize("wrong", [{"images": 1}, {"batch_size": 1}, {"weight": -0.1}, {"spread": 0.0}])
    def test_wrong_settings_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(SettingError):
            Contrast(**wrong)


class TestScores:
    def test_cas_is_the_test_accuracy_of_what_saw_made_examples_only(self) -> None:
        how, test = Supervised(epochs=20, batch_size=20), sf.data.digits().test
        good = cas(sf.models.digits_cnn, digits(150), test, how=how)
        wrong = Examples(digits(150).inputs, (digits(150).targets + 1) % 10)
        assert good > 0.75
        assert cas(sf.models.digits_cnn, wrong, test, how=how) < 0.1

    def test_copies_of_the_public_images_are_found_out(self) -> None:
        public = digits(100)
        extractor = Extractor.trained(public, 10, how=Supervised(epochs=3, batch_size=20))
        found = judged(known(public=public, synthetic=digits(100)), extractor)
        assert (found["precision"], found["recall"], found["copied"]) == (1.0, 1.0, 1.0)
        assert found["frechet"] == pytest.approx(0, abs=1e-6)
        assert 1 <= found["inception_score"] <= 10

    def test_other_digits_are_no_copies(self) -> None:
        train = sf.data.digits().train
        others = Examples(train.inputs[300:500], train.targets[300:500])
        found = judged(known(public=digits(), synthetic=others))
        assert found["copied"] < 0.05
        assert 0.5 < found["precision"] <= 1
