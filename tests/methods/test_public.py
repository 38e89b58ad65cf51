"""Methods with public examples against their formulas, one example at a time; and public and private kept apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import FixedNoise, Tree, clipped_loop, flat, gradient_loop, trained
from steps import CRITERION, beside, examples, network, phase, plan
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from saltflat import Public, fit, make_private, per_example, supervised, train
from saltflat.core.ask import Ask, Release
from saltflat.core.contribution import Copies, PerExample, Private, chunks_of
from saltflat.core.public import check_apart
from saltflat.core.sampling import DatasetUnits
from saltflat.data import TensorUnits
from saltflat.errors import DataError, ModelError, PrivacyError, SettingError
from saltflat.federated.clients import Clients
from saltflat.methods import DOPE, DPLIS, DPSGD, AdaDPS, Mirror, WeightMultiplicity
from saltflat.methods.draws import public_draws
from saltflat.optimizers import SGD, MirrorDescent
from saltflat.recipes import Network, Recipe, read
from saltflat.recipes.recipe import Stage
from saltflat.schedules import QuarterCosine
from saltflat.tree import Released, map_tree

SIZE, CLIP, SIGMA = 12, 0.4, 0.7
MODEL = network()
WEIGHTS = trained(MODEL)
KNOWN = TensorUnits(examples(20, seed=9))


def public(units: Any = KNOWN, model: nn.Module = MODEL) -> Public:
    return Public(per_example(model, supervised(CRITERION)), units, "made-up examples")


def three_views(batch: Any) -> Any:
    x, y = batch
    return torch.stack([x, -x, 2 * x], 1).flatten(0, 1), y.repeat_interleave(3)


def door(
    *, clip_norm: float = CLIP, noise: float = 0.0, views: int = 1, data: Sequence[Tensor] | None = None
) -> Ask:
    """All examples, as many as expected: the answer is their noisy mean."""
    units = TensorUnits(tuple(data or examples(SIZE)))
    own = per_example(MODEL, supervised(CRITERION), views=views, augment=three_views if views > 1 else None)
    release = Release(
        clip_norm=clip_norm, noise_multiplier=noise, expected_units=units.count, noise=FixedNoise(5)
    )
    return Ask(chunks_of(Private(own, units, units.count), np.arange(units.count), 5), release)


def tree(vector: Tensor) -> Tree:
    parts = vector.split([leaf.numel() for leaf in WEIGHTS.values()])
    return {n: v.view(p.shape) for (n, p), v in zip(WEIGHTS.items(), parts, strict=True)}


def noise(std: float) -> Tensor:
    return std * flat(FixedNoise(5).normal(WEIGHTS))


def known_gradient(batch: int, *key: int, at: Tree = WEIGHTS) -> Tensor:
    """The mean over the public examples that a key draws, by a loop."""
    x, y = KNOWN.tensors
    rows = torch.randint(20, (batch,), generator=public_draws(*key))
    return gradient_loop(MODEL, at, x[rows], y[rows], CRITERION).mean(0)


def stepped(method: Any, ask: Ask, state: Any = None) -> tuple[Tensor, Any]:
    direction, state = method.step(ask, WEIGHTS, method.init(WEIGHTS) if state is None else state)
    return flat(direction), state


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


class TestWeightMultiplicity:
    @pytest.mark.parametrize("adaptive", [False, True])
    @pytest.mark.parametrize("step", [0, 1])
    def test_view_k_is_asked_at_weights_k(self, adaptive: bool, step: int) -> None:
        method = WeightMultiplicity(public=public(), radius=0.3, copies=3, batch=4, adaptive=adaptive, seed=7)
        _, state = stepped(method, door(views=3))
        found, _ = stepped(method, door(views=3, noise=SIGMA), state if step else None)
        (x, y), w, means = examples(SIZE), flat(WEIGHTS), []
        for k, view in enumerate((x, -x, 2 * x)):
            h = known_gradient(4, 7, step, k)
            v = 0.3 * w**2 * h / (w * h).norm() if adaptive else 0.3 * h / h.norm()
            means.append(gradient_loop(MODEL, tree(w + v), view, y, CRITERION))
        total = clipped_loop(torch.stack(means).mean(0), CLIP)
        close(found, (total + noise(SIGMA * CLIP)) / SIZE)

    def test_an_adaptive_perturbation_is_as_long_as_the_radius_in_units_of_the_weights(self) -> None:
        method = WeightMultiplicity(public=public(), radius=0.3, copies=1, adaptive=True)
        ask = door()
        moved = flat(next(method._climbed(WEIGHTS, 0))) - flat(WEIGHTS)
        assert float((moved / flat(WEIGHTS)).norm()) == pytest.approx(0.3)
        stepped(method, ask)

    def test_at_radius_zero_it_is_augmentation_multiplicity(self) -> None:
        method = WeightMultiplicity(public=public(), radius=0.0, copies=3)
        close(stepped(method, door(views=3))[0], flat(door(views=3)(WEIGHTS)))

    def test_two_points_for_each_view(self) -> None:
        """Six copies of three views: copies k and k + 3 see view k."""
        method = WeightMultiplicity(public=public(), radius=0.3, copies=6, batch=4)
        (x, y), total = examples(SIZE), []
        for k, view in enumerate((x, -x, 2 * x) * 2):
            h = known_gradient(4, 0, 0, k)
            moved = tree(flat(WEIGHTS) + 0.3 * h / h.norm())
            total.append(gradient_loop(MODEL, moved, view, y, CRITERION))
        close(stepped(method, door(views=3))[0], clipped_loop(torch.stack(total).mean(0), CLIP) / SIZE)

    @pytest.mark.parametrize("outside", [True, False])
    def test_jitter_around_it_or_inside_it_leaves_views_where_they_belong(self, outside: bool) -> None:
        """With a radius of 0 both nestings are one mean over views and jitter, whichever is spread first."""
        none = WeightMultiplicity(public=public(), radius=0.0, copies=3)
        smooth = DPLIS(method=none if outside else DPSGD(), lr=0.1, copies=2)
        method = (
            smooth if outside else WeightMultiplicity(public=public(), radius=0.0, copies=3, method=smooth)
        )
        plain = DPLIS(lr=0.1, copies=2)
        close(stepped(method, door(views=3))[0], stepped(plain, door(views=3))[0])

    def test_a_large_batch_goes_in_parts_where_gradients_add_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Five units at a time, or three and two: the same answer, with less in memory."""
        method = WeightMultiplicity(public=public(), radius=0.3, copies=3, batch=4)
        whole, _ = stepped(method, door(views=3, noise=SIGMA))
        own, seen = per_example(MODEL, supervised(CRITERION)), []
        assert [own.at_once(5, [WEIGHTS] * points) for points in (1, 2)] == [5, 5]
        monkeypatch.setattr("saltflat.core.contribution.ROOM", 4 * flat(WEIGHTS).numel())
        assert own.at_once(25, [WEIGHTS] * 2) == 13  # not 4: a pass is to be worth its start
        monkeypatch.setattr("saltflat.core.contribution.FEWEST", 1)
        assert [own.at_once(most, [WEIGHTS] * 2) for most in (1, 4, 5, 6)] == [1, 4, 3, 3]
        halves = [own.at_once(most, [WEIGHTS] * 2) for most in (9, 16, 24)]
        assert halves == [5, 8, 12]  # more than 4, beside what one point would hold for the whole
        assert own.at_once(26, [WEIGHTS] * 2) == 9  # not 13: that is beyond three times the room
        assert own.at_once(5, [WEIGHTS]) == 5
        call = PerExample.__call__
        note = lambda self, points, weights, batch: (
            seen.append(len(batch[1])) or call(self, points, weights, batch)
        )
        monkeypatch.setattr(PerExample, "__call__", note)
        close(stepped(method, door(views=3, noise=SIGMA))[0], whole)
        assert seen == [3, 3, 3, 3]

    def test_a_point_is_copied_when_its_turn_comes(self) -> None:
        """And again when it is taken again: what a model does to one copy, no other sees."""
        points = Copies([WEIGHTS, WEIGHTS])
        assert len(points) == 2
        for point in points:
            for leaf in point.values():
                leaf.zero_()
        close(flat(points[1]), flat(WEIGHTS))
        assert [len(part) for part in (points[:1], points[1:])] == [1, 1]

    def test_copies_that_do_not_fit_the_views(self) -> None:
        method = WeightMultiplicity(public=public(), radius=0.3, copies=4, batch=4)
        with pytest.raises(SettingError, match="4 points cannot be dealt out to 3 views"):
            stepped(method, door(views=3))

    def test_once_is_enough(self) -> None:
        inner = WeightMultiplicity(public=public(), radius=0.3, copies=3, batch=4)
        outer = WeightMultiplicity(public=public(), radius=0.3, copies=3, batch=4, method=inner)
        with pytest.raises(SettingError, match="views cannot have points of their own twice"):
            stepped(outer, door(views=3))

    def test_an_offender_is_void_and_the_others_are_as_before(self) -> None:
        """A unit with a NaN in its rows, beside eleven others whose sum is what it was."""
        method = WeightMultiplicity(public=public(), radius=0.3, copies=3, batch=4)
        (x, y), spoilt = examples(SIZE), 4
        bad = x.clone()
        bad[spoilt] = float("nan")
        rest = torch.arange(SIZE) != spoilt
        alone = stepped(method, door(views=3, data=(x[rest], y[rest])))[0] * (SIZE - 1)
        close(stepped(method, door(views=3, data=(bad, y)))[0] * SIZE, alone)


class TestDOPE:
    @pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
    def test_without_clip_and_noise_it_is_plain_descent(self, strength: float) -> None:
        """Whatever the public examples are: a difference the other way round would give 2 h - g."""
        method = DOPE(public=public(), batch=4, strength=strength, public_clip_norm=1e3)
        x, y = examples(SIZE)
        mean = gradient_loop(MODEL, WEIGHTS, x, y, CRITERION).mean(0)
        close(stepped(method, door(clip_norm=float("inf")))[0], mean)

    @pytest.mark.parametrize("bound", [None, 0.2, 1e3])
    def test_the_formula(self, bound: float | None) -> None:
        method = DOPE(public=public(), batch=4, public_clip_norm=bound, seed=3)
        h = known_gradient(4, 3, 0)
        h = h * min(1.0, (bound or CLIP) / float(h.norm()))
        x, y = examples(SIZE)
        gradients = gradient_loop(MODEL, WEIGHTS, x, y, CRITERION) - h
        wanted = h + (clipped_loop(gradients, CLIP) + noise(SIGMA * CLIP)) / SIZE
        torch.testing.assert_close(stepped(method, door(noise=SIGMA))[0], wanted, rtol=1e-6, atol=1e-9)

    def test_every_step_draws_other_examples(self) -> None:
        method = DOPE(public=public(), batch=4)
        first, state = stepped(method, door())
        assert not torch.allclose(first, stepped(method, door(), state)[0])


class TestAdaDPS:
    def test_scale_first_then_clip(self) -> None:
        method = AdaDPS(public=public(), batch=4, floor=1e-3, decay=0.8)
        (x, y), square = examples(SIZE), torch.zeros_like(flat(WEIGHTS))
        state = None
        for step in range(2):
            found, state = stepped(method, door(noise=SIGMA), state)
            square = 0.8 * square + 0.2 * known_gradient(4, 0, step) ** 2
            scaled = gradient_loop(MODEL, WEIGHTS, x, y, CRITERION) / (square + 1e-3).sqrt()
            close(found, (clipped_loop(scaled, CLIP) + noise(SIGMA * CLIP)) / SIZE)

    def test_the_scale_is_made_anew_every_so_many_steps(self) -> None:
        method = AdaDPS(public=public(), batch=4, every=2)
        _, first = stepped(method, door())
        _, second = stepped(method, door(), first)
        _, third = stepped(method, door(), second)
        close(flat(first.square), flat(second.square))
        assert not torch.allclose(flat(second.square), flat(third.square))


class TestMirror:
    @pytest.mark.parametrize("weight", [0.25, QuarterCosine(0.25, 0.0, steps=4)])
    def test_the_mixture(self, weight: Any) -> None:
        method = Mirror(public=public(), weight=weight, batch=4)
        direction, _ = method.step(door(noise=SIGMA), WEIGHTS, method.init(WEIGHTS))
        answer = door(noise=SIGMA)(WEIGHTS)
        close(flat(direction), 0.25 * flat(answer) + 0.75 * known_gradient(4, 0, 0))
        assert isinstance(direction, Released)
        assert direction.noise_std == pytest.approx(0.25 * answer.noise_std)

    def test_a_schedule_that_leaves_the_interval(self) -> None:
        method = Mirror(public=public(), weight=lambda step: 2.0, batch=4)
        with pytest.raises(SettingError, match=r"gives 2\.0 at step 0"):
            stepped(method, door())


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1) - targets) ** 2 / 2


class TestMirrorDescent:
    def linear(self) -> tuple[Public, Tree, Tensor]:
        """Least squares: a model without bias, its weights, and the public inputs."""
        source = torch.Generator().manual_seed(0)
        inputs = torch.randn(30, 4, generator=source, dtype=torch.float64)
        targets = torch.randn(30, generator=source, dtype=torch.float64)
        model = nn.Linear(4, 1, bias=False).double()
        known = Public(per_example(model, supervised(squares)), TensorUnits((inputs, targets)))
        return known, trained(model), inputs

    def test_a_quadratic_loss_has_a_closed_form(self) -> None:
        """The step solves (I + s X^T X / n) (w - u) = lr g."""
        known, w, inputs = self.linear()
        g = map_tree(torch.ones_like, w)
        mirror = MirrorDescent(public=known, lr=0.5, strength=3.0)
        found, _ = mirror.step(w, g, mirror.init(w))
        curved = torch.eye(4, dtype=torch.float64) + 3.0 * inputs.T @ inputs / 30
        wanted = flat(w) - torch.linalg.solve(curved, 0.5 * flat(g))
        torch.testing.assert_close(flat(found), wanted, rtol=1e-7, atol=1e-9)

    def test_at_strength_zero_it_is_sgd(self) -> None:
        known, w, _ = self.linear()
        g = map_tree(torch.ones_like, w)
        sgd, mirror = SGD(lr=0.5), MirrorDescent(public=known, lr=0.5, strength=0.0)
        found, plain = mirror.step(w, g, mirror.init(w))[0], sgd.step(w, g, sgd.init(w))[0]
        close(flat(found), flat(plain))

    def test_the_step_of_a_logistic_model_is_where_the_gradients_meet(self) -> None:
        """grad(u) - grad(w) = -lr g, for the mirror map's gradient."""
        x, y = examples(20, seed=9)
        model = nn.Linear(4, 3).double()
        known = Public(per_example(model, supervised(CRITERION)), TensorUnits((x, y)))
        w, g = trained(model), map_tree(torch.ones_like, trained(model))
        mirror = MirrorDescent(public=known, lr=0.1, strength=2.0, iterations=200)
        u, _ = mirror.step(w, g, mirror.init(w))
        map_gradient = lambda at: flat(at) + 2.0 * flat(known.gradient(at))
        torch.testing.assert_close(map_gradient(u) - map_gradient(w), -0.1 * flat(g), rtol=0, atol=1e-6)

    def test_it_is_for_linear_models(self) -> None:
        with pytest.raises(ModelError, match="not linear in its weights"):
            MirrorDescent(public=public(), lr=0.1).init(WEIGHTS)


class Rows(Dataset):
    """A dataset of one's own around an array."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: int) -> Any:
        return torch.from_numpy(self.array[place])


class Held:
    """Units of one's own, by other names."""

    def __init__(self, x: torch.Tensor) -> None:
        self.features, self.count = x, len(x)

    def take(self, which: Any) -> Any:
        return (self.features[torch.as_tensor(which)],)


def from_array(array: Any) -> TensorUnits:
    return TensorUnits((torch.from_numpy(array),))


class TestPublic:
    @pytest.mark.parametrize(("batch", "passes"), [(4, 1), (30, 2), (60, 3), (128, 5)])
    def test_small_minibatches_share_a_pass(self, batch: int, passes: int) -> None:
        """One gradient for each source all the same: the one that it draws alone."""
        seen: list[int] = []

        def loss(predict: Any, rows: Any) -> Tensor:
            seen.append(len(rows[1]))
            return CRITERION(predict(rows[0]), rows[1])

        known = Public(per_example(MODEL, loss), KNOWN)
        sources = lambda: [public_draws(5, k) for k in range(5)]
        found = list(known.gradients(WEIGHTS, batch=batch, sources=sources()))
        assert len(seen) == passes
        assert sum(seen) == 5 * batch
        for mean, source in zip(found, sources(), strict=True):
            close(flat(mean), flat(known.gradient(WEIGHTS, batch=batch, source=source)))

    def test_minibatches_of_examples_with_views_share_a_pass(self) -> None:
        own = per_example(MODEL, supervised(CRITERION), views=3, augment=three_views)
        sources = lambda: [public_draws(5, k) for k in range(3)]
        known = Public(own, KNOWN)
        for mean, source in zip(known.gradients(WEIGHTS, batch=2, sources=sources()), sources(), strict=True):
            close(flat(mean), flat(known.gradient(WEIGHTS, batch=2, source=source)))

    def test_a_minibatch_with_a_nan_is_refused_in_company_too(self) -> None:
        x, y = KNOWN.tensors
        known = public(TensorUnits((x * float("inf"), y)))
        with pytest.raises(DataError, match="not finite"):
            list(known.gradients(WEIGHTS, batch=2, sources=[public_draws(k) for k in range(3)]))

    def test_minibatches_of_half_precision_go_one_by_one(self) -> None:
        """A tape takes float32 or better; public gradients by plain automatic differentiation need not."""
        narrow = nn.Sequential(nn.Linear(5, 3)).bfloat16()
        units = TensorUnits((torch.randn(6, 5).bfloat16(), torch.arange(6) % 3))
        known = Public(per_example(narrow, supervised(CRITERION)), units)
        at = {name: leaf.detach() for name, leaf in narrow.named_parameters()}
        sources = lambda: [public_draws(5, k) for k in range(3)]
        for mean, source in zip(known.gradients(at, batch=2, sources=sources()), sources(), strict=True):
            torch.testing.assert_close(mean, known.gradient(at, batch=2, source=source))

    def test_the_gradient_is_the_mean_over_what_is_drawn(self) -> None:
        found = public().gradient(WEIGHTS, batch=300, source=public_draws(1, 2))  # more than fit one chunk
        close(flat(found), known_gradient(300, 1, 2))

    def test_all_of_them(self) -> None:
        x, y = KNOWN.tensors
        close(flat(public().gradient(WEIGHTS)), gradient_loop(MODEL, WEIGHTS, x, y, CRITERION).mean(0))
        assert public().loss(WEIGHTS) == pytest.approx(CRITERION(MODEL(x), y).mean().item())

    def test_a_gradient_that_is_no_number(self) -> None:
        x, y = examples(20)
        with pytest.raises(DataError, match="not finite"):
            public(TensorUnits((x * float("inf"), y))).gradient(WEIGHTS)

    def test_the_units_of_the_run_are_not_public(self) -> None:
        private = TensorUnits(examples(SIZE))
        method = DOPE(public=public(private), batch=4)
        with pytest.raises(PrivacyError, match="keep the two apart"):
            train(plan(phase(method=method)), per_example(network(), supervised(CRITERION)), private)
        model = network()
        own = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "plan": plan(phase(method=method))}
        with pytest.raises(PrivacyError, match="keep the two apart"):
            make_private(model, CRITERION, private, delta=1e-2, **own)

    def test_nor_are_some_of_them_that_lie_in_the_same_memory(self) -> None:
        x, y = examples(SIZE)
        own, some = per_example(network(), supervised(CRITERION)), TensorUnits((x[:6], y[:6]))
        run = plan(phase(method=DOPE(public=public(some), batch=4)))
        with pytest.raises(PrivacyError, match="keep the two apart"):
            train(run, own, TensorUnits((x, y)))
        train(run, own, TensorUnits((x[6:], y[6:])))  # the others are private ones

    @pytest.mark.parametrize(
        "way", ["numpy", "every second", "joined", "own dataset", "own units", "a list", "clients"]
    )
    def test_nor_are_they_by_another_way_to_the_same_memory(self, way: str) -> None:
        """Arrays that share memory and no torch storage, every second row, and holders that nobody here knows."""
        x, y = examples(100)
        array, pairs = x.numpy(), list(zip(x, y, strict=True))
        private, known = {
            "numpy": (from_array(array[:40]), from_array(array[30:])),
            "every second": (TensorUnits((x[::2],)), TensorUnits((x[-6:],))),
            "joined": (
                DatasetUnits.of(ConcatDataset([TensorDataset(x, y)])),
                DatasetUnits.of(TensorDataset(x, y)),
            ),
            "own dataset": (DatasetUnits.of(Rows(array)), DatasetUnits.of(Rows(array[:6]))),
            "own units": (Held(x), TensorUnits((x[:6],))),
            "a list": (DatasetUnits.of(pairs), DatasetUnits.of(pairs)),
            "clients": (
                Clients(TensorUnits((x, y)), np.arange(100).reshape(20, 5)),
                TensorUnits((x[:6], y[:6])),
            ),
        }[way]
        with pytest.raises(PrivacyError, match="keep the two apart"):
            check_apart([public(known)], private)

    def test_what_both_may_hold(self) -> None:
        """The other rows of one tensor, a mean over colours, and the names of the classes."""
        x, mean, names = examples(400)[0], torch.zeros(3), [f"class {k}" for k in range(100)]
        one, other = Rows(x.numpy()[:200]), Rows(x.numpy()[200:].copy())
        for each in (one, other):
            each.mean, each.names = mean, names
        check_apart([public(DatasetUnits.of(other))], DatasetUnits.of(one))
        check_apart([public(Held(x[200:]))], Held(x[:200]))

    @pytest.mark.parametrize("where", ["method", "inside", "optimizer"])
    def test_the_statement_names_them(self, where: str) -> None:
        model = nn.Linear(4, 3).double()
        known = public(model=model)
        owner = {
            "method": {"method": DOPE(public=known, batch=4)},
            "inside": {"method": DPLIS(method=Mirror(public=known, weight=0.5, batch=4), lr=0.1, copies=2)},
            "optimizer": {"optimizer": MirrorDescent(public=known, lr=0.1)},
        }[where]
        done = fit(model, CRITERION, TensorUnits(examples(SIZE)), plan=plan(phase(**owner)), delta=1e-2)
        said = done.statement.as_text()
        assert "Used as public, and not protected at all: made-up examples (20 examples)." in said

    def test_no_public_examples_no_line(self) -> None:
        done = fit(network(), CRITERION, TensorUnits(examples(SIZE)), plan=plan(), delta=1e-2)
        assert "public" not in done.statement.as_text()

    def test_a_recipe_names_them(self, tmp_path: Any) -> None:
        known = public()
        stage = Stage(
            steps=3,
            noise_multiplier=1.0,
            method=WeightMultiplicity(public=known, radius=0.1),
            clip_norm=1.0,
            optimizer=SGD(lr=0.1),
        )
        whole = Recipe(
            data="digits", model=Network("digits_cnn"), phase=(stage,), rate=0.1, using={"pool": known}
        )
        file = tmp_path / "mine.toml"
        file.write_text(whole.as_toml())
        assert 'public.name = "pool"' in file.read_text() or 'name = "pool"' in file.read_text()
        assert read(file, using={"pool": known}) == whole
        with pytest.raises(SettingError, match="hand it in"):
            read(file)

    @pytest.mark.parametrize(
        ("make", "match"),
        [
            (lambda: DOPE(public=None), "Public"),
            (lambda: DOPE(public=public(), batch=0), "batch"),
            (lambda: DOPE(public=public(), strength=2), "strength"),
            (lambda: DOPE(public=public(), public_clip_norm=float("nan")), "public_clip_norm"),
            (lambda: AdaDPS(public=public(), power=float("nan")), "power"),
            (lambda: AdaDPS(public=public(), floor=0.0), "floor"),
            (lambda: AdaDPS(public=public(), decay=1.0), "decay"),
            (lambda: AdaDPS(public=public(), every=0), "every"),
            (lambda: Mirror(public=public(), weight=1.5), "weight"),
            (lambda: WeightMultiplicity(public=public(), radius=-1.0), "radius"),
            (lambda: WeightMultiplicity(public=public(), radius=0.1, copies=0), "copies"),
            (lambda: WeightMultiplicity(public=Public, radius=0.1), "Public"),
            (lambda: MirrorDescent(public=public(), lr=0.1, strength=-1), "strength"),
            (lambda: Public(None, KNOWN), "per_example"),
            (lambda: public(TensorUnits((torch.zeros(0, 4), torch.zeros(0)))), "at least one"),
            (lambda: Public(per_example(MODEL, supervised(CRITERION)), KNOWN, " "), "named"),
        ],
    )
    def test_settings_that_are_none(self, make: Any, match: str) -> None:
        with pytest.raises(SettingError, match=match):
            make()


def test_clients_have_no_views() -> None:
    class Client:
        unit = "client"

    sample = chunks_of(Private(Client(), KNOWN, 20), np.arange(3), 5)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="a client has no views"):
        sample.by_view([0, 1])


def test_the_page() -> None:
    """The code in docs/public.md runs as printed."""
    page = (Path(__file__).parents[2] / "docs" / "public.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    exec(compile(code, "public.md", "exec"), {})


def test_runs_end_to_end() -> None:
    """Beside noise and sampling, with every method in a plan of four phases."""
    known = public()
    methods = (
        WeightMultiplicity(public=known, radius=0.1, copies=3, batch=4),
        DOPE(public=known, batch=4),
        AdaDPS(public=known, batch=4),
        Mirror(public=known, weight=QuarterCosine(1.0, 0.0, steps=3), batch=4),
    )
    own = per_example(network(), supervised(CRITERION), views=3, augment=three_views)
    phases = [phase(method=method, steps=2) for method in methods]
    ended = train(plan(*phases), own, TensorUnits(examples(SIZE)), **beside())
    assert bool(flat(ended).isfinite().all())
