"""The trace of an operator, estimated from products with random signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.landscape.draws import rademacher, source
from saltflat.landscape.lanczos import Krylov
from saltflat.landscape.operator import Operator, as_operator


@dataclass(frozen=True)
class Trace:
    """An estimate and its standard error (0: exact)."""

    value: float
    error: float
    products: int


def trace(operator: Any, *, probes: int = 30, seed: int = 0, known: Krylov | None = None) -> Trace:
    """tr H = E[v^T H v] over random signs v (Hutchinson), with the standard error of the mean.

    With a basis Q from Lanczos (``known``), tr H = tr T + E[(P v)^T H (P v)], P = I - Q Q^T: the first term is
    there already, and the large eigenvalues, which make the estimate vary, are no longer in the second. With as
    many probes as dimensions the diagonal is taken instead, which is exact.

    >>> trace(torch.diag(torch.tensor([1.0, 2.0, 3.0])), probes=2).value
    6.0

    Hutchinson, "A Stochastic Estimator of the Trace of the Influence Matrix", 1990; Meyer et al., "Hutch++:
    Optimal Stochastic Trace Estimation", SOSA 2021, for the second form.
    """
    given = as_operator(operator)
    dimension = given.shape[0]
    if not (isinstance(probes, int) and probes >= 2):
        raise SettingError(f"a standard error needs at least 2 probes; got {probes}")
    if known is not None and len(known.basis) == dimension:
        return Trace(float(known.alphas.sum()), 0.0, 0)
    if probes >= dimension:
        return Trace(sum(_diagonal(given, i) for i in range(dimension)), 0.0, dimension)
    drawn = source(seed, 1)
    samples = torch.tensor(
        [_sample(given, rademacher(dimension, drawn), known) for _ in range(probes)], dtype=torch.float64
    )
    first = 0.0 if known is None else float(known.alphas.sum())
    return Trace(first + float(samples.mean()), float(samples.std() / probes**0.5), probes)


def _sample(operator: Operator, signs: Tensor, known: Krylov | None) -> float:
    v = signs.to(device=operator.device, dtype=operator.dtype)
    if known is not None:
        v = v - known.basis.T @ (known.basis @ v)
    return float(torch.dot(v.double(), (operator @ v).double()))


def _diagonal(operator: Operator, i: int) -> float:
    unit = torch.zeros(operator.shape[0], device=operator.device, dtype=operator.dtype)
    unit[i] = 1.0
    return float((operator @ unit)[i])
