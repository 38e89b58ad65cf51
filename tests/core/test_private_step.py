"""The step as a whole: clipping against a loop, physical batches (A4), hostile records (A6), noise, shares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import FixedNoise, clipped_loop, flat, gradient_loop
from steps import CRITERION, ask_about, examples, network, point_of
from torch import Tensor, nn

from saltflat import per_example, supervised
from saltflat.clipping import LARGEST, SMALLEST
from saltflat.core import mechanism
from saltflat.errors import PrivacyError, SettingError
from saltflat.frames import Precondition, Shift
from saltflat.gradients.chunk import Kept

BATCHES = [1, 3, 7, 100]


def reference_sum(model: nn.Module, x: Tensor, y: Tensor, bound: float) -> Tensor:
    return clipped_loop(gradient_loop(model, point_of(model), x, y, CRITERION), bound)


@pytest.mark.parametrize("bound", [1e-3, 0.5, 5.0, 1e6])
def test_answer_is_the_clipped_sum(bound: float) -> None:
    model, (x, y) = network(), examples()
    answer = ask_about(model, (x, y), clip_norm=bound)(point_of(model))
    torch.testing.assert_close(flat(answer), reference_sum(model, x, y, bound), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("most", BATCHES)
def test_the_physical_batch_never_changes_a_result(most: int) -> None:
    model, (x, y) = network(), examples()
    noise = FixedNoise()
    answer = ask_about(model, (x, y), noise_multiplier=1.0, most=most, noise=noise)(point_of(model))
    whole = ask_about(model, (x, y), noise_multiplier=1.0, noise=FixedNoise())(point_of(model))
    torch.testing.assert_close(flat(answer), flat(whole), rtol=1e-9, atol=1e-12)
    assert noise.calls == 1


def test_mutant_noise_per_physical_batch_is_caught() -> None:
    """What the test above guards against: noise drawn once per physical batch has a larger spread."""
    model, (x, y) = network(), examples()
    chunk_sum = lambda part, noise: flat(
        mechanism.noised(
            mechanism.clipped_sum(
                [per_example(model, supervised(CRITERION))([point_of(model)], [1.0], part)], 1.0, {}
            ),
            1.0,
            noise,
        )
    )
    noise = FixedNoise()
    mutant = sum(chunk_sum((x[i : i + 3], y[i : i + 3]), noise) for i in range(0, 12, 3))
    right = flat(ask_about(model, (x, y), noise_multiplier=1.0, most=3)(point_of(model)))
    assert not torch.allclose(mutant, right)
    assert noise.calls == 4


def test_an_empty_batch_is_pure_noise() -> None:
    model, (x, y) = network(), examples()
    answer = ask_about(model, (x[:0], y[:0]), noise_multiplier=2.0, clip_norm=0.5)(point_of(model))
    expected = FixedNoise().normal(point_of(model))
    torch.testing.assert_close(flat(answer), flat(expected) * 1.0)


def test_noise_is_multiplier_times_clip_norm() -> None:
    model = nn.Linear(400, 50).double()
    x, y = torch.zeros(1, 400, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    answer = ask_about(model, (x, y), noise_multiplier=3.0, clip_norm=0.1)(point_of(model))
    assert abs(float(answer["weight"].std()) / 0.3 - 1) < 0.02


class TestPoints:
    def test_mean_over_points_before_the_clip(self) -> None:
        model, (x, y) = network(), examples()
        points = [point_of(model), {n: p + 0.1 for n, p in point_of(model).items()}]
        mean = torch.stack([gradient_loop(model, p, x, y, CRITERION) for p in points]).mean(0)
        answer = ask_about(model, (x, y), clip_norm=0.3, most=5)(*points)
        torch.testing.assert_close(flat(answer), clipped_loop(mean, 0.3), rtol=1e-9, atol=1e-12)

    def test_public_weights(self) -> None:
        model, (x, y) = network(), examples()
        points = [point_of(model), {n: p + 0.1 for n, p in point_of(model).items()}]
        each = [gradient_loop(model, p, x, y, CRITERION) for p in points]
        answer = ask_about(model, (x, y), clip_norm=0.3)(*points, weights=[2.0, -1.0])
        torch.testing.assert_close(
            flat(answer), clipped_loop(2 * each[0] - each[1], 0.3), rtol=1e-9, atol=1e-12
        )

    def test_wrong_numbers(self) -> None:
        model, data = network(), examples()
        with pytest.raises(SettingError, match="2 weights for 1 points"):
            ask_about(model, data)(point_of(model), weights=[1.0, 2.0])
        with pytest.raises(SettingError, match="at least one point"):
            ask_about(model, data)()


class TestViews:
    def test_views_are_averaged_before_the_clip(self) -> None:
        model, (x, y) = network(), examples()
        views = lambda batch: (
            torch.stack([batch[0], -batch[0], 2 * batch[0]], 1).flatten(0, 1),
            batch[1].repeat_interleave(3),
        )
        contribution = per_example(model, supervised(CRITERION), views=3, augment=views)
        chunk = contribution([point_of(model)], [1.0], (x, y))
        xs, ys = views((x, y))
        mean = gradient_loop(model, point_of(model), xs, ys, CRITERION).view(12, 3, -1).mean(1)
        torch.testing.assert_close(chunk.norms(), mean.norm(dim=1), rtol=1e-9, atol=0)


class TestFrames:
    def test_around_an_origin(self) -> None:
        model, (x, y) = network(), examples()
        point = point_of(model)
        origin = {n: torch.randn_like(p) * 0.1 for n, p in point.items()}
        gradients = gradient_loop(model, point, x, y, CRITERION) - flat(origin)
        answer = ask_about(model, (x, y), clip_norm=0.3, most=5)(point, frame=Shift(origin))
        expected = clipped_loop(gradients, 0.3) + flat(origin)
        torch.testing.assert_close(flat(answer), expected, rtol=1e-9, atol=1e-12)

    def test_apart_in_a_frame(self) -> None:
        """Units that are asked by themselves at the same point: the frame sees each of them."""
        model, (x, y) = network(), examples()
        point = point_of(model)
        for frame in (
            Shift({n: torch.full_like(p, 0.05) for n, p in point.items()}),
            Precondition({n: torch.full_like(p, 0.3) for n, p in point.items()}),
        ):
            together = ask_about(model, (x, y), clip_norm=0.3, most=5)(point, frame=frame)
            door = ask_about(model, (x, y), clip_norm=0.3, most=5)
            apart = door.apart(lambda group: [point], weights=[1.0], groups=3, frame=frame)
            torch.testing.assert_close(flat(apart), flat(together), rtol=1e-9, atol=1e-12)

    def test_preconditioned(self) -> None:
        model, (x, y) = network(), examples()
        point = point_of(model)
        scale = {n: torch.rand_like(p) for n, p in point.items()}
        gradients = gradient_loop(model, point, x, y, CRITERION) * flat(scale)
        answer = ask_about(model, (x, y), clip_norm=0.3)(point, frame=Precondition(scale))
        torch.testing.assert_close(flat(answer), clipped_loop(gradients, 0.3), rtol=1e-9, atol=1e-12)


class TestShares:
    def test_two_questions_share_one_step(self) -> None:
        model, data = network(), examples()
        ask = ask_about(model, data, noise_multiplier=1.0, noise=FixedNoise(3))
        first, second = ask(point_of(model), share=0.25), ask(point_of(model), share=0.75)
        noise, clean = FixedNoise(3), flat(ask_about(model, data)(point_of(model)))
        for answer, share in ((first, 0.25), (second, 0.75)):
            drawn = flat(noise.normal(point_of(model)))
            torch.testing.assert_close(flat(answer), clean + drawn / share**0.5, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("shares", [(1.0, 1.0), (0.6, 0.6), (1.1,), (0.0,), (-0.5,), (float("nan"),)])
    def test_no_more_than_one_step(self, shares: tuple[float, ...]) -> None:
        model, data = network(), examples()
        ask = ask_about(model, data, noise_multiplier=1.0)

        def spend_all() -> None:
            for share in shares:
                ask(point_of(model), share=share)

        with pytest.raises(PrivacyError, match="at most 1"):
            spend_all()


BAD = {
    "nan": lambda x, y: x.fill_(float("nan")),
    "inf": lambda x, y: x.fill_(float("inf")),
    "-inf": lambda x, y: x.fill_(float("-inf")),
    "1e38": lambda x, y: x.fill_(1e38),
    "largest": lambda x, y: x.fill_(torch.finfo(x.dtype).max),
    "bad label": lambda x, y: y.fill_(99),
}


def fails_on_seven(predict, batch) -> Tensor:
    if bool((batch[0][:, 0] == 777).any()):
        raise RuntimeError("a record that breaks the loss")
    return CRITERION(predict(batch[0]), batch[1])


class TestHostileRecords:
    """A6: one of 64 examples is poisoned."""

    ONE = 17

    def poisoned(self, kind: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        x, y = examples(64)
        x = x.to(dtype)
        if kind == "exception":
            x[self.ONE, 0] = 777
        else:
            BAD[kind](x[self.ONE], y[self.ONE])
        return x, y

    def answer(self, x: Tensor, y: Tensor, dtype: torch.dtype = torch.float64, **options) -> Tensor:
        model = network().to(dtype)
        return flat(ask_about(model, (x, y), clip_norm=0.5, loss=fails_on_seven, **options)(point_of(model)))

    @pytest.mark.parametrize("kind", [*BAD, "exception"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("most", [10, 64])
    def test_it_moves_the_sum_by_at_most_the_clip_norm(
        self, kind: str, dtype: torch.dtype, most: int
    ) -> None:
        x, y = self.poisoned(kind, dtype)
        rest = torch.arange(64) != self.ONE
        with_it = self.answer(x, y, dtype, most=most)
        without = self.answer(x[rest], y[rest], dtype, most=most)
        assert torch.isfinite(with_it).all()
        assert float((with_it - without).norm()) <= 0.5 * (1 + 1e-5)

    def test_the_others_are_bit_identical(self) -> None:
        """All records that are void give one and the same sum: what they hold does not show."""
        answers = [
            self.answer(*self.poisoned(kind)) for kind in ("nan", "inf", "-inf", "bad label", "exception")
        ]
        for answer in answers[1:]:
            assert torch.equal(answer, answers[0])

    def test_a_batch_of_nothing_but_failures_is_an_empty_one(self) -> None:
        x, y = examples(5)
        x[:, 0] = 777
        assert torch.equal(
            self.answer(x, y), torch.zeros(flat(point_of(network())).numel(), dtype=torch.float64)
        )

    def test_mutant_multiply_by_zero_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Kept, "weighted_sum", _weighted_without_erasing)
        assert not torch.isfinite(self.answer(*self.poisoned("nan"))).all()

    def test_mutant_nan_to_num_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cleaning up after the sum throws the other 63 away with the one."""
        monkeypatch.setattr(Kept, "weighted_sum", _weighted_without_erasing)
        cleaned = torch.nan_to_num(self.answer(*self.poisoned("nan")))
        monkeypatch.undo()
        rest = torch.arange(64) != self.ONE
        x, y = self.poisoned("nan")
        assert float((cleaned - self.answer(x[rest], y[rest])).norm()) > 0.5


def _weighted_without_erasing(self: Kept, weights: Tensor) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for part in self.parts:
        total.update(part.weighted(weights))
    return {name: total[name] for name in self.like}


class Cancelling(nn.Module):
    """A linear layer at 24 positions whose gradients can be made to cancel by the data."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


HUGE = [1e2, 1e4, 1e6, 1e8]


def norm_of_a_cancelling_record(huge: float) -> float:
    """How far one record moves the sum, clip norm 1, whose two positions nearly undo each other in float32."""
    model = Cancelling()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 16, generator=generator) * huge
    x[:, 1] = x[:, 0] * (1 + 3e-7)
    pull = torch.randn(32, generator=generator) * huge

    def loss(predict, batch) -> Tensor:
        y = predict(batch[0])
        return (y[:, 0] * pull).sum(1) - (y[:, 1] * pull).sum(1)

    return float(flat(ask_about(model, (x,), loss=loss)(point_of(model))).norm())


@pytest.mark.parametrize("huge", HUGE)
def test_a_record_whose_positions_cancel_is_still_clipped(huge: float) -> None:
    """The ghost norm of such a record is mere rounding error."""
    assert norm_of_a_cancelling_record(huge) <= 1.0 + 1e-3


def test_mutant_plain_ghost_norm_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from saltflat.gradients import parts

    monkeypatch.setattr(parts, "gram_square", parts.Gram.inner)
    assert max(map(norm_of_a_cancelling_record, HUGE)) > 1.5


def test_an_adaptive_clip_norm_stays_where_norms_can_be_told_apart() -> None:
    for factor, expected in ((1e-40, SMALLEST), (1e40, LARGEST), (0.5, 0.5)):
        door = ask_about(network(), examples(), clip_norm=1.0).counting(factor, 0.1)
        assert door.sensitivity == pytest.approx(expected)


def test_denominator_is_a_constant() -> None:
    """Twice the units give twice the answer: nothing divides by how many were drawn."""
    model, (x, y) = network(), examples()
    once = flat(ask_about(model, (x, y))(point_of(model)))
    twice = flat(ask_about(model, (torch.cat([x, x]), torch.cat([y, y])))(point_of(model)))
    torch.testing.assert_close(twice, 2 * once, rtol=1e-9, atol=1e-12)


def test_sensitivity_of_random_neighbours() -> None:
    generator = np.random.default_rng(0)
    for trial in range(30):
        model, (x, y) = network(trial), examples(9, trial)
        bound = float(generator.uniform(0.01, 3))
        keep = torch.arange(9) != int(generator.integers(9))
        whole = flat(ask_about(model, (x, y), clip_norm=bound)(point_of(model)))
        less = flat(ask_about(model, (x[keep], y[keep]), clip_norm=bound)(point_of(model)))
        assert float((whole - less).norm()) <= bound * (1 + 1e-6)
