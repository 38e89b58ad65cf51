"""What gradients look like: their norms, how many are clipped, and how steps follow each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from saltflat.errors import SettingError
from saltflat.landscape.access import Access, declared
from saltflat.landscape.objective import Objective
from saltflat.tree import Released, Tree, add, dot, norm, size, sub

EDGES = np.concatenate([np.arange(20) * 0.05, np.arange(1.0, 11.0)])  # width 0.05 up to 1, then 1 up to 10


@dataclass(frozen=True)
class Norms:
    """A histogram of per-example gradient norms; ``counts[i]`` lie in [edges[i], edges[i + 1])."""

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    overflow: int  # norms of the last edge and above
    void: int  # norms that are not finite: such an example contributes zero
    clip_norm: float
    clipped_share: float  # of the finite ones: P(norm > clip_norm)
    status: str


def norm_histogram(norms: Iterable[torch.Tensor], *, clip_norm: float, access: Access | None = None) -> Norms:
    """Count per-example gradient norms, given in parts (a chunk's ``norms()`` each), and the share clipped.

    >>> from saltflat.landscape.access import PUBLIC
    >>> found = norm_histogram([torch.tensor([0.01, 0.2, 12.0])], clip_norm=0.1, access=PUBLIC)
    >>> found.overflow, round(found.clipped_share, 2)
    (1, 0.67)
    """
    status = declared(access, "a histogram of gradient norms").status
    if not clip_norm > 0:
        raise SettingError(f"clip_norm must be above 0; got {clip_norm}")
    every = np.concatenate([np.zeros(0), *(part.detach().double().cpu().numpy() for part in norms)])
    finite = every[np.isfinite(every)]
    if not len(finite):
        raise SettingError("there is no finite gradient norm to count")
    place = np.searchsorted(EDGES, finite, side="right")  # i + 1 for [edges[i], edges[i + 1])
    counts = np.bincount(place, minlength=len(EDGES) + 1)[1:-1]
    return Norms(
        edges=EDGES,
        counts=counts,
        overflow=int((finite >= EDGES[-1]).sum()),
        void=len(every) - len(finite),
        clip_norm=clip_norm,
        clipped_share=float((finite > clip_norm).mean()),
        status=status,
    )


def cosine(a: Tree, b: Tree) -> float:
    """<a, b> / (||a|| ||b||); 0 if one of them is 0."""
    lengths = float(norm(a)) * float(norm(b))
    return float(dot(a, b)) / lengths if lengths else 0.0


def successive_cosines(directions: Iterable[Tree], *, access: Access | None = None) -> list[float]:
    """The cosine of each direction with the one before it.

    Answers of the door (`Released`) are free to look at; clipped sums before their noise are not, and need a
    declaration. Noise shrinks the cosine of releases by about `signal_share`.
    """
    found: list[float] = []
    last: Tree | None = None
    for direction in directions:
        if not isinstance(direction, Released):
            declared(access, "a direction that was not released")
        if last is not None:
            found.append(cosine(direction, last))
        last = direction
    return found


def signal_share(released: Released) -> float:
    """The share of a release's squared length that is not noise: (||g||^2 - D s^2) / ||g||^2, at least 0. Free."""
    total = float(norm(released)) ** 2
    return max(0.0, 1 - size(released) * released.noise_std**2 / total) if total else 0.0


@dataclass(frozen=True)
class Compared:
    """Two data sets' losses and gradients at one point."""

    private_loss: float
    public_loss: float
    private_norm: float
    public_norm: float
    cosine: float
    status: str


def compared(private: Objective, public: Objective, params: Tree) -> Compared:
    """The mean gradient on private examples beside the one on public ones."""
    (loss, gradient), (other_loss, other) = private.gradient(params), public.gradient(params)
    return Compared(
        private_loss=loss,
        public_loss=other_loss,
        private_norm=float(norm(gradient)),
        public_norm=float(norm(other)),
        cosine=cosine(gradient, other),
        status=private.status,
    )


def noise_effect(objective: Objective, params: Tree, clean: Tree, noisy: Tree, *, lr: float) -> float:
    """||dL(w - lr clean) - dL(w - lr noisy)||: what one step's noise does to the next gradient.

    To second order it is at most lr ||H|| ||noisy - clean||, which is how the DP-SAT paper argues for flatness.
    Park et al., "Differentially Private Sharpness-Aware Training", ICML 2023.
    """
    ends = (objective.gradient(add(params, step, scale=-lr))[1] for step in (clean, noisy))
    return float(norm(sub(*ends)))
