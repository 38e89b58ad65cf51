"""Sharpness, gaps, directions, surfaces, paths and gradient statistics, where the answer is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import shapes
import torch
from reference import gradient_loop
from torch import nn

from saltflat.core.contribution import per_example, supervised
from saltflat.errors import DataError, PrivacyError, SettingError
from saltflat.landscape import (
    PUBLIC,
    STAYS_PRIVATE,
    Objective,
    adaptive_gap,
    analytic,
    average_gap,
    compared,
    cosine,
    filter_normalised,
    interpolation,
    line,
    m_sharpness,
    noise_effect,
    noise_growth,
    noise_tolerance,
    norm_histogram,
    of_model,
    random_directions,
    sam_gap,
    sharpness,
    signal_share,
    smoothed,
    successive_cosines,
    surface,
    trajectory_plane,
)
from saltflat.landscape.draws import gaussian, source
from saltflat.landscape.flat import flatten
from saltflat.landscape.sampled import curvature_error, loss_error, rise_error
from saltflat.landscape.subset import evenly, fingerprint
from saltflat.optimizers import SGD
from saltflat.tree import Released, Tree, add, norm, size

SPECTRUM = torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
BOWL = shapes.quadratic(SPECTRUM)
HERE = flatten(BOWL.params)
NETWORK = shapes.small_network()


def straight(*slope: float) -> tuple[Objective, Tree]:
    """L(w) = 5 + slope . w at w = (1, 2, ...)."""
    b = torch.tensor(slope, dtype=torch.float64)
    w = {"w": torch.arange(1.0, len(slope) + 1, dtype=torch.float64)}
    return analytic(lambda p: 5 + b @ p["w"] - b @ w["w"]), w


# The declaration.


@pytest.mark.parametrize("wrong", [None, True, "public"])
def test_nothing_reads_examples_without_a_declaration(wrong: object) -> None:
    x, y = shapes.examples()
    with pytest.raises(PrivacyError, match="access=PUBLIC"):
        Objective(losses=lambda p, b: b, batches=[x], access=wrong)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="STAYS_PRIVATE"):
        of_model(shapes.network(), shapes.LOSS, [(x, y)], access=wrong)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="no epsilon covers it"):
        norm_histogram([torch.ones(2)], clip_norm=1.0, access=wrong)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="not released"):
        successive_cosines([{"w": torch.ones(2)}], access=wrong)  # type: ignore[arg-type]


def test_a_model_is_refused_before_an_example_is_looked_at() -> None:
    def examples() -> list:
        raise AssertionError("looked")

    class Watched(list):
        __iter__ = __len__ = __getitem__ = lambda *_: examples()  # type: ignore[assignment]

    with pytest.raises(PrivacyError):
        of_model(shapes.network(), shapes.LOSS, Watched(), access=None)
    with pytest.raises(PrivacyError):
        Objective(losses=lambda p, b: b, batches=Watched(), access=None)


def test_results_carry_their_status() -> None:
    x, y = shapes.examples()
    made = [of_model(shapes.network(), shapes.LOSS, [(x, y)], access=a)[0] for a in (PUBLIC, STAYS_PRIVATE)]
    assert [each.status for each in made] == ["public", "private: keep this file"]
    assert norm_histogram([torch.ones(2)], clip_norm=1.0, access=STAYS_PRIVATE).status.startswith("private")
    params = {name: p.detach() for name, p in shapes.network().named_parameters()}
    assert compared(made[1], made[0], params).status.startswith("private")


# The objective.


def test_batches_change_no_value_no_gradient() -> None:
    x, y = shapes.examples()
    model = shapes.network()
    whole, params = of_model(model, shapes.LOSS, [(x, y)], access=PUBLIC, dtype=torch.float64)
    parts, _ = of_model(
        model,
        shapes.LOSS,
        list(zip(x.split(32), y.split(32), strict=True)),
        access=PUBLIC,
        dtype=torch.float64,
    )
    assert math.isclose(whole.value(params), parts.value(params), rel_tol=1e-12)
    assert math.isclose(whole.value(params), shapes.LOSS(model.double()(x), y).mean().item(), rel_tol=1e-9)
    assert whole.evaluated(params).accuracy == parts.evaluated(params).accuracy
    a, b = (flatten(each.gradient(params)[1]) for each in (whole, parts))
    assert torch.allclose(a, b, rtol=1e-10)
    loop = gradient_loop(model, params, x, y, shapes.LOSS).mean(0)
    assert torch.allclose(a, loop, rtol=1e-8, atol=1e-12)


def test_sums_are_taken_in_float64() -> None:
    """A million float32 losses of 1 + 1e-7 or so: a float32 sum is off in the third digit of what matters."""
    row = torch.full((2_000_000,), 0.1)
    objective = Objective(losses=lambda p, b: b, batches=[row, row], access=PUBLIC)
    assert math.isclose(objective.value({}), float(row[0].double()), rel_tol=1e-12)


def test_a_model_is_looked_at_in_eval_mode_and_left_alone() -> None:
    model = nn.Sequential(nn.Linear(12, 3), nn.Dropout(0.5)).train()
    x, y = shapes.examples()
    objective, params = of_model(model, shapes.LOSS, [(x, y)], access=PUBLIC, dtype=torch.float64)
    assert objective.value(params) == objective.value(params)
    assert model.training
    assert next(model.parameters()).dtype == torch.float32


def test_passes_are_counted() -> None:
    passed: list[int] = []
    objective = Objective(
        losses=lambda p, b: (p["w"] * b) ** 2,
        batches=[torch.ones(2)] * 3,
        access=PUBLIC,
        watch=lambda: passed.append(1),
    )
    objective.value({"w": torch.ones(1)})
    objective.gradient({"w": torch.ones(1)})
    assert len(passed) == 2


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Objective(losses=lambda p, b: b, batches=[], access=PUBLIC), DataError, "no examples"),
        (
            lambda: Objective(losses=lambda p, b: b.mean(), batches=[torch.ones(2)], access=PUBLIC).value({}),
            SettingError,
            "one number per example",
        ),
        (lambda: smoothed(BOWL.objective, BOWL.params, std=-1.0), SettingError, "std 0 or more"),
        (lambda: sharpness(BOWL.objective, BOWL.params, eps=0.0), SettingError, "eps"),
        (lambda: sharpness(BOWL.objective, BOWL.params, subspace=99), SettingError, "1 to 6"),
        (lambda: sam_gap(BOWL.objective, BOWL.params, radius=0.0), SettingError, "radius"),
        (lambda: average_gap(BOWL.objective, BOWL.params, radius=math.inf), SettingError, "finite"),
        (lambda: average_gap(BOWL.objective, BOWL.params, radius=1.0, draws=0), SettingError, "draws"),
        (lambda: noise_tolerance(BOWL.objective, BOWL.params, std=math.nan), SettingError, "std"),
        (lambda: noise_growth(3, momentum=1.0), SettingError, "momentum must lie in"),
        (
            lambda: surface(BOWL.objective, BOWL.params, [BOWL.params], [0], [0]),
            SettingError,
            "two directions",
        ),
        (lambda: line(BOWL.objective, BOWL.params, BOWL.params, [math.nan]), SettingError, "finite numbers"),
        (lambda: interpolation(BOWL.objective, BOWL.params, {}, [0]), SettingError, "one architecture"),
        (lambda: trajectory_plane([BOWL.params] * 2), SettingError, "three points"),
        (lambda: trajectory_plane([BOWL.params] * 4), SettingError, "no plane"),
        (lambda: norm_histogram([], clip_norm=1.0, access=PUBLIC), SettingError, "no finite"),
        (lambda: norm_histogram([torch.ones(1)], clip_norm=0.0, access=PUBLIC), SettingError, "clip_norm"),
        (lambda: evenly(5, 0), SettingError, "at least one"),
    ],
)
def test_wrong_input_is_refused_in_words(make, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


# Sharpness and gaps.


def test_sharpness_of_a_slope_is_its_closed_form() -> None:
    """The maximum over a box is at a corner: sum |b_i| eps (|w_i| + 1), over 1 + L, in percent."""
    objective, w = straight(1.0, -2.0, 3.0)
    rise = 0.01 * (1 * 2 + 2 * 3 + 3 * 4)
    assert math.isclose(sharpness(objective, w, eps=0.01).value, 100 * rise / (1 + 5), rel_tol=1e-6)
    assert math.isclose(sharpness(objective, w, eps=0.01).worst, 5 + rise, rel_tol=1e-9)


def test_sharpness_of_a_bowl_finds_the_best_corner() -> None:
    centre = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64)}
    matrix = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    objective = analytic(lambda p: (p["w"] - centre["w"]) @ matrix @ (p["w"] - centre["w"]) / 2)
    y = torch.tensor([0.1 * 2, 0.1 * 3], dtype=torch.float64)
    assert math.isclose(
        sharpness(objective, centre, eps=0.1).value, float(100 * y @ matrix @ y / 2), rel_tol=1e-6
    )


def test_sharpness_in_a_subspace_moves_along_its_directions_only() -> None:
    objective, w = straight(1.0, -2.0, 3.0)
    a = torch.randn(3, 2, generator=source(0, 3), dtype=torch.float64)  # the A of seed 0
    bound = 0.01 * (torch.linalg.pinv(a) @ w["w"]).abs() + 0.01
    rise = float((a.T @ torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)).abs() @ bound)
    found = sharpness(objective, w, eps=0.01, subspace=2)
    assert math.isclose(found.value, 100 * rise / 6, rel_tol=1e-6)
    assert "2 random directions" in found.solver


def test_sharpness_is_zero_on_a_plain_and_more_restarts_never_find_less() -> None:
    assert sharpness(analytic(lambda p: 0 * p["w"].sum() + 1), {"w": torch.zeros(3).double()}).value == 0
    few, many = (sharpness(NETWORK.objective, NETWORK.params, restarts=k).value for k in (1, 3))
    assert 0 < few <= many


def test_the_sam_gap_of_a_slope_is_radius_times_its_length() -> None:
    objective, w = straight(3.0, 4.0)
    assert math.isclose(sam_gap(objective, w, radius=0.1), 0.1 * 5, rel_tol=1e-9)
    scaled = np.array([1 * 3.0, 2 * 4.0])  # |w| g
    assert math.isclose(adaptive_gap(objective, w, radius=0.1), 0.1 * np.linalg.norm(scaled), rel_tol=1e-9)


def test_the_adaptive_gap_does_not_see_a_change_of_scale_that_the_function_does_not_see() -> None:
    a, b = (
        {"u": torch.tensor([2.0 * k], dtype=torch.float64), "v": torch.tensor([3.0 / k], dtype=torch.float64)}
        for k in (1, 10)
    )
    objective = analytic(lambda p: (p["u"] * p["v"] - 5).square().sum())
    assert math.isclose(adaptive_gap(objective, a), adaptive_gap(objective, b), rel_tol=1e-9)
    assert not math.isclose(sam_gap(objective, a), sam_gap(objective, b), rel_tol=0.5)


def test_m_sharpness_climbs_in_each_batch_by_itself() -> None:
    batches = [torch.tensor([[3.0, 4.0]]).double(), torch.tensor([[-3.0, -4.0]]).double()]
    objective = Objective(losses=lambda p, b: b @ p["w"], batches=batches, access=PUBLIC)
    w = {"w": torch.zeros(2).double()}
    assert math.isclose(m_sharpness(objective, w, radius=0.1), 0.5, rel_tol=1e-9)
    assert abs(sam_gap(objective, w, radius=0.1)) < 1e-12


def test_the_average_gap_of_a_bowl_is_radius_squared_trace_over_twice_the_dimension() -> None:
    expected = 0.3**2 * float(SPECTRUM.sum()) / (2 * 6)
    assert math.isclose(
        average_gap(BOWL.objective, BOWL.params, radius=0.3, draws=1000), expected, rel_tol=0.05
    )


def test_noise_tolerance_of_a_bowl_grows_with_the_number_of_steps() -> None:
    """t std^2 tr(H) / 2: linear in t, so the noise itself grows with sqrt(t)."""
    found = noise_tolerance(BOWL.objective, BOWL.params, std=0.1, steps=(1, 4, 100), draws=600)
    for t, rise in found:
        assert math.isclose(rise, t * 0.1**2 * float(SPECTRUM.sum()) / 2, rel_tol=0.08), t
    assert math.isclose(found[1][1] / found[0][1], 4, rel_tol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 10, 60])
def test_the_noise_of_many_steps_is_what_sgd_makes_of_it(momentum: float, steps: int) -> None:
    """Noise alone through the optimizer itself: what it leaves on each of 20,000 weights."""
    lr, s, drawn = 0.3, 0.02, torch.Generator().manual_seed(7)
    sgd, weights = SGD(lr=lr, momentum=momentum), {"w": torch.zeros(20_000).double()}
    state = sgd.init(weights)
    for _ in range(steps):
        noise = {"w": s * torch.randn(20_000, generator=drawn).double()}
        weights, state = sgd.step(weights, noise, state)
    left = float(weights["w"].std())
    assert math.isclose(left, lr * s * noise_growth(steps, momentum=momentum), rel_tol=0.02)


def test_momentum_multiplies_the_noise_of_many_steps() -> None:
    assert math.isclose(noise_growth(10**5, momentum=0.9), 10 * math.sqrt(10**5), rel_tol=1e-3)
    without, carried = (
        noise_tolerance(BOWL.objective, BOWL.params, std=0.1, momentum=m, steps=(1, 1000)) for m in (0.0, 0.9)
    )
    assert carried[0] == without[0]  # one step knows no momentum
    growth = noise_growth(1000, momentum=0.9) ** 2 / 1000
    assert math.isclose(carried[1][1] / without[1][1], growth, rel_tol=1e-6)


# Directions and surfaces.


def test_each_filter_is_as_long_as_the_models_own() -> None:
    torch.manual_seed(0)
    params = {
        "conv": torch.randn(4, 3, 2, 2),
        "linear": 5 * torch.randn(2, 6),
        "bias": torch.randn(4),
        "dead": torch.zeros(2, 2),
    }
    for direction in random_directions(params, count=2, seed=1):
        for name in ("conv", "linear", "dead"):
            ours, theirs = (t.reshape(len(t), -1).norm(dim=1) for t in (params[name], direction[name]))
            assert torch.allclose(ours, theirs, rtol=1e-5), name
        assert not direction["bias"].any()
    one, other = random_directions(params, count=2, seed=1)
    assert not torch.equal(one["conv"], other["conv"])
    taken = random_directions(params, count=1, seed=1, vectors=True)[0]["bias"]
    assert math.isclose(float(taken.norm()), float(params["bias"].norm()), rel_tol=1e-5)


def test_the_ratio_is_the_right_way_round_and_by_filter() -> None:
    """Plausible wrong forms: divided instead of multiplied, one factor for a whole layer."""
    d, w = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[10.0, 0.0], [0.0, 2.0]])
    assert torch.allclose(filter_normalised({"w": d}, {"w": w})["w"], torch.tensor([[6.0, 8.0], [0.0, 2.0]]))


def test_a_larger_model_is_looked_at_farther_away_by_the_same_draw() -> None:
    params = {"w": torch.randn(3, 4)}
    (near,), (far,) = (random_directions({"w": k * params["w"]}, count=1) for k in (1, 3))
    assert torch.allclose(far["w"], 3 * near["w"], rtol=1e-5)


def test_lines_and_surfaces_are_values_at_their_points() -> None:
    d, e = (gaussian(BOWL.params, source(0, k)) for k in (1, 2))
    value = lambda a, b: BOWL.objective.value(add(add(BOWL.params, d, scale=a), e, scale=b))
    found = surface(BOWL.objective, BOWL.params, (d, e), [-1, 0, 2], [0, 0.5])
    assert found.loss.shape == (3, 2)
    for i, a in enumerate(found.alphas):
        for j, b in enumerate(found.betas):
            assert math.isclose(found.loss[i, j], value(a, b), rel_tol=1e-12)
    along = line(BOWL.objective, BOWL.params, d, [-1, 0, 2])
    assert np.allclose(along.loss, found.loss[:, 0])
    assert np.isnan(along.accuracy).all()


def test_accuracy_is_the_share_of_right_answers() -> None:
    x, y = shapes.examples()
    found = line(NETWORK.objective, NETWORK.params, NETWORK.params, [0.0, -1.0])
    model = shapes.network().double()
    model.load_state_dict(NETWORK.params)
    assert math.isclose(found.accuracy[0], float((model(x).argmax(1) == y).double().mean()))
    assert math.isclose(found.loss[1], math.log(3), rel_tol=1e-9)  # all weights 0


def test_interpolation_ends_at_both_models() -> None:
    a, b = BOWL.params, gaussian(BOWL.params, source(7))
    found = interpolation(BOWL.objective, a, b, [-0.5, 0, 0.5, 1])
    assert math.isclose(found.loss[1], BOWL.objective.value(a))
    assert math.isclose(found.loss[3], BOWL.objective.value(b))
    middle = {name: (a[name] + b[name]) / 2 for name in a}
    assert math.isclose(found.loss[2], BOWL.objective.value(middle))


def test_the_smoothed_bowl_is_lifted_by_half_the_noises_curvature() -> None:
    """E L(w + u) = L(w) + std^2 tr(H) / 2; and it is one fixed function, with derivatives of its own."""
    smooth = smoothed(BOWL.objective, BOWL.params, std=0.5, copies=2000, seed=1)
    few = smoothed(BOWL.objective, BOWL.params, std=0.5, copies=5)
    lift = 0.5**2 * float(SPECTRUM.sum()) / 2
    assert math.isclose(smooth.value(BOWL.params) - BOWL.objective.value(BOWL.params), lift, rel_tol=0.1)
    assert few.value(BOWL.params) == few.value(BOWL.params)
    assert smoothed(NETWORK.objective, NETWORK.params, std=0.0).evaluated(
        NETWORK.params
    ).accuracy == pytest.approx(NETWORK.objective.evaluated(NETWORK.params).accuracy)


def test_the_plane_of_a_path_that_lies_in_one() -> None:
    d, e = (gaussian(BOWL.params, source(9, k)) for k in (1, 2))
    points = [add(add(BOWL.params, d, scale=3 - t), e, scale=(3 - t) ** 2) for t in (0.0, 1.0, 2.0, 3.0)]
    plane = trajectory_plane(points)
    assert math.isclose(sum(plane.share), 1, rel_tol=1e-9)
    assert np.allclose(plane.places[-1], 0)
    one, other = plane.directions
    assert math.isclose(float(norm(one)), 1, rel_tol=1e-9)
    assert abs(cosine(one, other)) < 1e-9
    for point, (a, b) in zip(points, plane.places, strict=True):
        back = add(add(points[-1], one, scale=float(a)), other, scale=float(b))
        assert torch.allclose(flatten(back), flatten(point))


# Gradients.


def test_norms_are_counted_in_the_papers_bins() -> None:
    norms = torch.tensor(
        [0.0, 0.049, 0.05, 0.99, 1.0, 9.99, 10.0, 50.0, math.nan, math.inf], dtype=torch.float64
    )
    found = norm_histogram([norms[:4], norms[4:]], clip_norm=0.05, access=PUBLIC)
    assert len(found.edges) == 30
    assert np.allclose(np.diff(found.edges), [0.05] * 20 + [1.0] * 9)
    assert found.counts.tolist() == [2, 1] + [0] * 17 + [1, 1] + [0] * 7 + [1]
    assert (found.overflow, found.void) == (2, 2)
    assert found.counts.sum() + found.overflow + found.void == len(norms)
    assert found.clipped_share == pytest.approx(5 / 8)  # above C, not at it


def test_norms_of_a_chunk_are_the_loops() -> None:
    x, y = shapes.examples(9)
    model = shapes.network().double()
    params = {name: p.detach() for name, p in model.named_parameters()}
    chunk = per_example(model, supervised(shapes.LOSS))([params], [1.0], (x, y))
    true = gradient_loop(model, params, x, y, shapes.LOSS).norm(dim=1)
    above = float(true.median()) * (1 + 1e-9)  # the two ways to the median itself differ in the last digit
    found = norm_histogram([chunk.norms()], clip_norm=above, access=PUBLIC)
    assert found.clipped_share == pytest.approx(4 / 9)


def test_successive_cosines_and_what_is_free() -> None:
    way = [torch.tensor(v) for v in ([1.0, 0.0], [1.0, 1.0], [0.0, -2.0], [0.0, 0.0])]
    released = [Released({"w": v}, noise_std=0.1) for v in way]
    assert successive_cosines(released) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5), 0])
    assert successive_cosines([{"w": v} for v in way], access=STAYS_PRIVATE) == successive_cosines(released)


def test_noise_shrinks_a_cosine_by_the_signal_share() -> None:
    drawn = source(3)
    signal = {"w": torch.full((5000,), 0.02)}
    noisy = [Released(add(signal, gaussian(signal, drawn), scale=0.01), noise_std=0.01) for _ in range(2)]
    true = size(signal) * 0.02**2 / (size(signal) * (0.02**2 + 0.01**2))
    assert signal_share(noisy[0]) == pytest.approx(true, rel=0.05)
    assert successive_cosines(noisy)[0] == pytest.approx(true, rel=0.05)
    assert signal_share(Released({"w": torch.zeros(3)}, noise_std=0.1)) == 0


def test_private_and_public_gradients_are_compared() -> None:
    make = lambda b, access: Objective(losses=lambda p, x: x @ p["w"], batches=[b.double()], access=access)
    private, public = (
        make(torch.tensor([[3.0, 4.0]]), STAYS_PRIVATE),
        make(torch.tensor([[0.0, 2.0]]), PUBLIC),
    )
    found = compared(private, public, {"w": torch.ones(2).double()})
    assert (found.private_norm, found.public_norm) == pytest.approx((5, 2))
    assert (found.private_loss, found.public_loss) == pytest.approx((7, 2))
    assert found.cosine == pytest.approx(0.8)


def test_noise_in_a_step_moves_the_next_gradient_by_at_most_the_hessians_norm() -> None:
    clean, noise = gaussian(BOWL.params, source(1)), gaussian(BOWL.params, source(2))
    moved = noise_effect(BOWL.objective, BOWL.params, clean, add(clean, noise), lr=0.1)
    assert moved == pytest.approx(0.1 * float((BOWL.dense @ flatten(noise)).norm()))
    assert moved <= 0.1 * 16 * float(norm(noise)) * (1 + 1e-9)


# The subset.


def test_the_subset_is_fixed_even_and_has_a_name() -> None:
    assert evenly(6, 3).tolist() == [0, 2, 4]
    assert evenly(3, 2000).tolist() == [0, 1, 2]
    assert len(set(evenly(10_000, 2_000).tolist())) == 2_000
    a = torch.arange(4)
    assert fingerprint(a) == fingerprint(a.clone())
    assert (
        len({fingerprint(a), fingerprint(a.flip(0)), fingerprint(a.view(2, 2)), fingerprint(a.float())}) == 4
    )


def test_errors_over_examples_are_those_of_the_mean() -> None:
    """A quadratic loss whose curvature is an example's own: the standard error of its mean is known."""
    curvatures = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64)
    objective = Objective(
        losses=lambda w, c: c * (w["w"] ** 2).sum() / 2,
        batches=[curvatures[:3], curvatures[3:]],
        access=PUBLIC,
    )
    params = {"w": torch.tensor([0.3, 0.0], dtype=torch.float64)}
    expected = float(curvatures.std() / 2)
    assert curvature_error(objective, params, torch.tensor([2.0, 0.0])) == pytest.approx(expected, rel=1e-6)
    assert loss_error(objective, params) == pytest.approx(expected * 0.09 / 2)
    found = sharpness(objective, params)
    assert found.error > 0
    drawn = torch.Generator().manual_seed(0)
    again = []  # the error of a rise at fixed points, by drawing examples anew
    worst = {"w": torch.tensor([0.5, 0.1], dtype=torch.float64)}
    for _ in range(4000):
        batch = curvatures[torch.randint(4, (4,), generator=drawn)]
        one = replace(objective, batches=[batch])
        here = one.value(params)
        again.append(100 * (one.value(worst) - here) / (1 + here))
    spread = (
        float(torch.tensor(again).std()) * (4 / 3) ** 0.5
    )  # drawn from four: their own variance, with n - 1
    assert rise_error(objective, params, worst) == pytest.approx(spread, rel=0.1)
