"""Lanczos with full re-orthogonalisation: the ends of a spectrum from a few products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.landscape.draws import source
from saltflat.landscape.operator import Operator, as_operator


@dataclass(frozen=True)
class Krylov:
    """H Q = Q T + beta_m q_(m+1) e_m: an orthonormal basis Q, and H as the tridiagonal T in it."""

    basis: Tensor  # (m, D), a row for each q
    alphas: Tensor  # (m,), the diagonal of T
    betas: Tensor  # (m,), beside the diagonal; the last one leads out of the basis

    def ritz(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues of T, ascending, and its eigenvectors as columns."""
        inner = self.betas[:-1]
        return torch.linalg.eigh(torch.diag(self.alphas) + torch.diag(inner, 1) + torch.diag(inner, -1))

    def residuals(self, vectors: Tensor) -> Tensor:
        """||H x - theta x|| = beta_m |s_m| for each Ritz pair: an eigenvalue lies that near."""
        return self.betas[-1] * vectors[-1].abs()

    def lifted(self, vectors: Tensor) -> Tensor:
        """Ritz vectors in weight space, a row for each column of ``vectors``."""
        return vectors.T.to(self.basis) @ self.basis


def krylov(
    operator: Any, start: Tensor, *, steps: int, enough: Callable[[Krylov], bool] = lambda found: False
) -> Krylov:
    """At most ``steps`` Lanczos steps from ``start``, ended early when ``enough`` says so.

    Every new direction is made orthogonal to all earlier ones, again and again until nothing more is lost: without
    that, rounding brings converged eigenvalues back as copies. Where the space ends (beta = 0) the search goes on
    from a fresh direction, so that repeated eigenvalues are found as often as they occur.
    """
    given = as_operator(operator)
    steps = _checked_steps(steps, given.shape[0])
    fresh, ended = source(given.shape[0], steps), False
    basis = start.new_empty(steps, given.shape[0])
    alphas, betas, q = start.new_empty(steps).double(), start.new_empty(steps).double(), start / start.norm()
    for k in range(steps):
        basis[k] = q
        ahead = given @ q
        alphas[k] = torch.dot(ahead.double(), q.double())
        ahead, length = _orthogonal(ahead, basis[: k + 1])
        scale = float(torch.cat([alphas[: k + 1].abs(), betas[:k]]).max())
        over = length <= 100 * torch.finfo(q.dtype).eps * scale
        betas[k], ended = (0.0, True) if over else (length, ended)
        found = Krylov(basis[: k + 1], alphas[: k + 1], betas[: k + 1])
        if k + 1 == steps or (not ended and enough(found)):  # a space that ended hides further copies
            break
        if over:
            draw = torch.randn(len(q), generator=fresh, dtype=torch.float64).to(q)
            ahead, length = _orthogonal(draw, basis[: k + 1])
        q = ahead / length
    return found


def start_of(operator: Operator, *key: int) -> Tensor:
    """A Gaussian vector for the first step; one key, one vector."""
    draw = torch.randn(operator.shape[0], generator=source(*key), dtype=torch.float64)
    return draw.to(device=operator.device, dtype=operator.dtype)


@dataclass(frozen=True)
class Ends:
    """The ends of a spectrum. ``largest`` is signed and descending; ``norm`` is the largest magnitude."""

    largest: tuple[float, ...]
    smallest: float
    norm: float
    products: int
    converged: bool  # every number above is an eigenvalue up to ``tolerance``, relative
    krylov: Krylov

    @property
    def ratio(self) -> float:
        """lambda_max over the last of the largest: lambda_max / lambda_5 if five were asked for."""
        return self.largest[0] / self.largest[-1] if self.largest[-1] else float("inf")

    @property
    def top(self) -> Tensor:
        """The Ritz vector of the largest eigenvalue, in weight space."""
        return self.krylov.lifted(self.krylov.ritz()[1][:, -1:])[0]


def ends(operator: Any, *, count: int = 5, steps: int = 100, tolerance: float = 1e-3, seed: int = 0) -> Ends:
    """The ``count`` largest eigenvalues and the 2-norm, with as few products as they need, at most ``steps``.

    A Ritz value counts as found when its residual is at most ``tolerance`` of it; its own error is about the
    residual's square over the gap to its neighbours, so usually far smaller.

    >>> found = ends(torch.diag(torch.tensor([-7.0, 0.0, 1.0, 2.0, 5.0])), count=2)
    >>> [round(value, 4) for value in (*found.largest, found.norm)]
    [5.0, 2.0, 7.0]
    """
    given = as_operator(operator)
    count = min(count, given.shape[0])
    if count < 1 or not tolerance > 0:
        raise SettingError(f"count must be at least 1 and tolerance above 0; got {count} and {tolerance}")
    enough = lambda found: _converged(found, count, tolerance)
    space = krylov(given, start_of(given, seed), steps=max(steps, count), enough=enough)
    values = space.ritz()[0]
    return Ends(
        largest=tuple(float(value) for value in values.flip(0)[:count]),
        smallest=float(values[0]),
        norm=float(values.abs().max()),
        products=len(space.alphas),
        converged=enough(space),
        krylov=space,
    )


def _converged(found: Krylov, count: int, tolerance: float) -> bool:
    """Whether the ``count`` largest and the one of largest magnitude are found."""
    if len(found.alphas) < count:
        return False
    values, vectors = found.ritz()
    near = found.residuals(vectors) <= tolerance * values.abs()
    near |= found.residuals(vectors) <= 1e-12 * values.abs().max()  # an eigenvalue 0 has no relative error
    return bool(near[-count:].all()) and bool(near[values.abs().argmax()])


def _orthogonal(vector: Tensor, basis: Tensor) -> tuple[Tensor, float]:
    """The part of ``vector`` that is orthogonal to the rows of ``basis``, and its length."""
    length = float(vector.norm())
    for _ in range(4):
        before = length
        vector = vector - basis.T @ (basis @ vector)
        length = float(vector.norm())
        if length > 0.7 * before:  # little was taken off, so rounding left little behind
            break
    return vector, length


def _checked_steps(steps: int, dimension: int) -> int:
    if not (isinstance(steps, int) and steps >= 1):
        raise SettingError(f"Lanczos takes a whole number of steps, at least 1; got {steps}")
    return min(steps, dimension)
