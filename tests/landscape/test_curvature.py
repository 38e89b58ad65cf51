"""Products, eigenvalues, trace and density against Hessians that are written out."""

from __future__ import annotations

import numpy as np
import pytest
import shapes
import torch
from torch import Tensor, nn

from saltflat.errors import ModelError, SettingError
from saltflat.landscape import (
    PUBLIC,
    Differences,
    Hessian,
    Krylov,
    Objective,
    Product,
    analytic,
    ends,
    hessian,
    krylov,
    spectral_density,
    trace,
)
from saltflat.landscape.density import smooth
from saltflat.landscape.draws import rademacher, source

OUTLIERS = torch.cat([torch.linspace(10, 100, 10), torch.linspace(-0.5, 1.5, 50)])
SHAPES = {
    "quadratic": shapes.quadratic(OUTLIERS),
    "logistic regression": shapes.logistic(),
    "network": shapes.small_network(),
}


@pytest.fixture(params=SHAPES, name="shape")
def _shape(request: pytest.FixtureRequest) -> shapes.Shape:
    return SHAPES[request.param]


def near(found: float, true: float, relative: float = 1e-3) -> bool:
    return abs(found - true) <= relative * abs(true)


def test_the_network_has_about_200_parameters() -> None:
    assert 190 <= len(SHAPES["network"].dense) <= 240


def test_products_equal_the_dense_hessian_whatever_is_kept(shape: shapes.Shape) -> None:
    whole = torch.eye(len(shape.dense), dtype=torch.float64)
    for room in (0, 40_000, 1 << 30):
        operator = Hessian(shape.objective, shape.params, room=room)
        for turn in range(2):  # the first builds graphs, the second walks through those that were kept
            found = torch.stack([operator @ unit for unit in whole[:20]])
            assert torch.allclose(found, shape.dense[:20], rtol=1e-9, atol=1e-11), (room, turn)


def test_products_are_symmetric_to_1e_10(shape: shapes.Shape) -> None:
    draw = torch.Generator().manual_seed(0)
    operator = Hessian(shape.objective, shape.params)
    for _ in range(5):
        u, v = (torch.randn(len(shape.dense), generator=draw, dtype=torch.float64) for _ in range(2))
        assert (
            abs(u @ (operator @ v) - v @ (operator @ u)) <= 1e-10 * u.norm() * v.norm() * shape.dense.norm()
        )


def test_a_mean_of_batch_means_would_be_another_hessian() -> None:
    """Batches of 40, 40 and 10 rows must count by their rows."""
    shape = SHAPES["logistic regression"]
    v = torch.ones(12, dtype=torch.float64)
    parts = [
        Hessian(Objective(losses=shape.objective.losses, batches=[b], access=PUBLIC), shape.params) @ v
        for b in shape.objective.batches
    ]
    wrong = torch.stack(parts).mean(0)
    right = Hessian(shape.objective, shape.params) @ v
    assert torch.allclose(right, shape.dense @ v)
    assert not torch.allclose(wrong, right, rtol=1e-2)


def test_float32_weights_have_float32_products(shape: shapes.Shape) -> None:
    if isinstance(shape.objective.batches[0], tuple) and shape is SHAPES["network"]:
        x, y = shapes.examples()
        single = {name: leaf.float() for name, leaf in shape.params.items()}
        objective = Objective(
            losses=lambda p, b: shapes.LOSS(torch.func.functional_call(shapes.network(), p, (b[0],)), b[1]),
            batches=[(x.float(), y)],
            access=PUBLIC,
        )
        v = torch.ones(len(shape.dense))
        found = Hessian(objective, single) @ v
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), shape.dense @ v.double(), rtol=1e-3, atol=1e-4)


def test_central_differences_agree_with_the_exact_product(shape: shapes.Shape) -> None:
    v = torch.linspace(-1, 2, len(shape.dense), dtype=torch.float64)
    found = Differences(shape.objective, shape.params) @ v
    assert (found - shape.dense @ v).norm() <= 1e-4 * (shape.dense @ v).norm()
    assert torch.equal(Differences(shape.objective, shape.params) @ (0 * v), 0 * v)


class _Once(torch.autograd.Function):
    """A square whose second derivative is not written."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def test_a_layer_without_second_derivative_is_differenced_and_says_so() -> None:
    w = {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}
    exact, rough = (
        hessian(analytic(f), w)
        for f in (lambda p: (p["w"] ** 4).sum(), lambda p: _Once.apply(p["w"]).square().sum())
    )
    assert (exact.kind, rough.kind) == ("double backward", "central differences")
    v = torch.ones(2, dtype=torch.float64)
    assert torch.allclose(rough @ v, exact @ v, rtol=1e-5)
    with pytest.raises(ModelError, match="only once"):  # torch itself would answer 0
        Hessian(analytic(lambda p: _Once.apply(p["w"]).square().sum()), w) @ v


def test_other_errors_are_not_swallowed() -> None:
    def broken(params: dict[str, Tensor]) -> Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        hessian(analytic(broken), {"w": torch.ones(2)})


def test_a_weight_that_takes_no_part_has_zero_curvature() -> None:
    params = {"w": torch.ones(2, dtype=torch.float64), "idle": torch.ones(1, dtype=torch.float64)}
    linear = Hessian(analytic(lambda p: p["w"].sum()), params)
    bent = Hessian(analytic(lambda p: (p["w"] ** 2).sum()), params)
    v = torch.ones(3, dtype=torch.float64)
    assert (linear @ v).tolist() == [0, 0, 0]
    assert (bent @ v).tolist() == [2, 2, 0]


def test_the_largest_eigenvalues_and_the_norm(shape: shapes.Shape) -> None:
    true = torch.linalg.eigvalsh(shape.dense)
    found = ends(Hessian(shape.objective, shape.params), count=5)
    assert found.converged
    assert all(near(a, float(b)) for a, b in zip(found.largest, true.flip(0)[:5], strict=True))
    assert near(found.norm, float(true.abs().max()))
    assert near(found.ratio, float(true[-1] / true[-5]))
    assert found.products < len(shape.dense) or len(shape.dense) < 20


def test_a_dense_matrix_a_function_and_an_array_give_the_same() -> None:
    dense = SHAPES["quadratic"].dense
    found = [ends(a).largest for a in (dense, dense.numpy(), Product(lambda v: dense @ v, len(dense)))]
    assert found[0] == found[1] == found[2]
    traces = [trace(a, seed=2).value for a in (dense, Product(lambda v: dense @ v, len(dense)))]
    assert traces[0] == traces[1]


def test_the_norm_is_of_the_negative_end_if_that_is_larger() -> None:
    found = ends(shapes.rotated(torch.cat([torch.tensor([-50.0]), torch.linspace(-1, 20, 60)])))
    assert near(found.norm, 50)
    assert near(found.smallest, -50)
    assert near(found.largest[0], 20)


def test_repeated_eigenvalues_are_found_as_often_as_they_occur() -> None:
    found = ends(shapes.rotated(torch.tensor([5.0, 5, 5, 4, 3, 2, 1, 1, 0, 0])))
    assert np.allclose(found.largest, [5, 5, 5, 4, 3], atol=1e-6)


def without_orthogonalisation(dense: Tensor, start: Tensor, steps: int) -> Krylov:
    """Lanczos as printed in textbooks, three terms only."""
    basis, alphas, betas = [start / start.norm()], [], []
    for k in range(steps):
        ahead = dense @ basis[k]
        alphas.append(float(ahead @ basis[k]))
        ahead = ahead - alphas[k] * basis[k] - (betas[k - 1] * basis[k - 1] if k else 0)
        betas.append(float(ahead.norm()))
        basis.append(ahead / betas[k])
    return Krylov(torch.stack(basis[:-1]), torch.tensor(alphas).double(), torch.tensor(betas).double())


def test_the_basis_stays_orthogonal_where_plain_lanczos_repeats_itself() -> None:
    dense = shapes.rotated(torch.cat([torch.tensor([1000.0, 400.0, 100.0]), torch.linspace(0, 1, 200)]))
    start = torch.randn(203, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain, ours = without_orthogonalisation(dense, start, 60), krylov(dense, start, steps=60)
    off = lambda space: float((space.basis @ space.basis.T - torch.eye(60, dtype=torch.float64)).abs().max())
    assert off(ours) < 1e-12
    assert off(plain) > 0.5
    assert (plain.ritz()[0] > 50).sum() > 3  # copies
    assert (ours.ritz()[0] > 50).sum() == 3


def test_what_did_not_converge_says_so() -> None:
    found = ends(shapes.rotated(torch.linspace(0, 1, 300)), steps=6)
    assert not found.converged
    assert found.products == 6


def test_trace_is_within_a_thousandth(shape: shapes.Shape) -> None:
    operator, true = Hessian(shape.objective, shape.params), float(shape.dense.trace())
    exact = trace(operator, probes=len(shape.dense))
    assert near(exact.value, true, 1e-9)
    assert exact.error == 0
    space = krylov(operator, shape.dense[0], steps=200)
    assert near(trace(operator, probes=30, known=space).value, true)


def test_a_lanczos_basis_lowers_the_error_and_keeps_it_honest(shape: shapes.Shape) -> None:
    if len(shape.dense) < 50:
        pytest.skip("the basis would be the whole space")
    true, space = float(shape.dense.trace()), krylov(shape.dense, shape.dense[0], steps=40)
    plain, ours = trace(shape.dense), [trace(shape.dense, seed=s, known=space) for s in range(20)]
    assert all(found.error < plain.error / 2 for found in ours)
    spread = np.sqrt(np.mean([((found.value - true) / found.error) ** 2 for found in ours]))
    assert 0.5 < spread < 2.0


def test_plain_hutchinson_lies_within_its_own_error(shape: shapes.Shape) -> None:
    true = float(shape.dense.trace())
    off = []
    for seed in range(20):
        found = trace(shape.dense, probes=11, seed=seed)
        assert found.error > 0
        off.append((found.value - true) / found.error)
    spread = float(np.sqrt(np.mean(np.square(off))))
    assert 0.5 < spread < 2.0  # 1 if the error is right; a deviation not divided by sqrt(11) gives 0.3
    assert abs(np.mean(off)) < 1.0  # and no bias: a trace of |H|, or a mean per parameter, is far off


def test_a_trace_may_be_negative_and_is_exact_with_enough_probes() -> None:
    dense = shapes.rotated(torch.tensor([-9.0, -4.0, 1.0, 2.0]))
    found = trace(dense, probes=4)
    assert near(found.value, -10, 1e-12)
    assert (found.error, found.products) == (0.0, 4)
    whole = ends(dense, count=4, tolerance=1e-12).krylov
    assert near(trace(dense, probes=2, known=whole).value, -10, 1e-9)


def test_density_has_mass_1_and_first_moment_trace_over_dimension(shape: shapes.Shape) -> None:
    operator, size = Hessian(shape.objective, shape.params), len(shape.dense)
    space = krylov(operator, shape.dense[0], steps=100)
    found = spectral_density(operator, probes=5, steps=40, known=space)
    assert near(found.mass, 1, 1e-4)
    assert near(found.mean, float(shape.dense.trace()) / size, 0.01)
    assert found.dimension == size


def test_density_is_the_histogram_of_all_eigenvalues() -> None:
    """The share below each place, against the true spectrum; heights that were not normalised would not fit."""
    shape = SHAPES["quadratic"]
    true = torch.linalg.eigvalsh(shape.dense).numpy()
    found = spectral_density(shape.dense, probes=60, steps=60)
    below = lambda t: float(found.weights[found.nodes <= t].sum())
    for t in (-0.2, 0.5, 1.2, 5.0, 35.0, 65.0, 95.0):
        assert abs(below(t) - float((true <= t).mean())) < 0.05, t
    assert near(found.mass, 1, 1e-4)
    assert near(found.mean, true.mean(), 0.2)  # three standard errors of 60 probes


def test_known_outliers_have_their_true_weight() -> None:
    shape = SHAPES["quadratic"]
    space = ends(shape.dense, count=10).krylov
    found = spectral_density(shape.dense, probes=1, steps=30, known=space)
    assert np.allclose(found.weights[np.abs(found.nodes - 100) < 0.01], 1 / 60)
    assert near(found.weights.sum(), 1, 1e-12)
    alone = spectral_density(shape.dense, probes=1, steps=30)
    assert not np.allclose(alone.weights[np.abs(alone.nodes - 100) < 0.01], 1 / 60, rtol=0.01)


def test_the_width_has_a_floor() -> None:
    flat = smooth(np.zeros(3), np.full(3, 1 / 3), dimension=3)
    assert flat.width == 1e-5
    assert near(flat.mass, 1, 1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ends(torch.ones(2, 3)), "square"),
        (lambda: ends(lambda v: v), "Product"),
        (lambda: ends(torch.ones(2, 2, dtype=torch.long)), "floats"),
        (lambda: ends(torch.eye(2), count=0), "count"),
        (lambda: krylov(torch.eye(2), torch.ones(2), steps=0), "steps"),
        (lambda: trace(torch.eye(2), probes=1), "2 probes"),
        (lambda: spectral_density(torch.eye(2), probes=0), "1 probe"),
        (
            lambda: Hessian(analytic(lambda p: p["w"]), {"w": torch.ones(2), "v": torch.ones(2).double()}),
            "one dtype",
        ),
        (
            lambda: Hessian(analytic(lambda p: p["w"].sum()), {"w": torch.ones(2)}) @ torch.ones(3),
            "2 numbers",
        ),
    ],
)
def test_wrong_input_is_refused_in_words(call, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        call()


def test_draws_do_not_depend_on_anything_but_the_key() -> None:
    assert torch.equal(rademacher(50, source(1, 2)), rademacher(50, source(1, 2)))
    assert not torch.equal(rademacher(50, source(1, 2)), rademacher(50, source(1, 3)))


def test_max_pooling_and_relu_have_the_hessian_of_their_piece() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    ).double()
    x, y = torch.randn(6, 1, 6, 6, dtype=torch.float64), torch.randint(3, (6,))
    from saltflat.landscape import of_model

    objective, params = of_model(model, shapes.LOSS, [(x, y)], access=PUBLIC, dtype=torch.float64)
    dense = shapes.dense_hessian(shapes.flat_loss(model, x, y), params)
    v = torch.linspace(-1, 1, len(dense), dtype=torch.float64)
    assert torch.allclose(Hessian(objective, params) @ v, dense @ v, atol=1e-10)
