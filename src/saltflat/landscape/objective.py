"""The loss whose shape is measured: a mean over fixed examples, as a function of the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from saltflat.errors import DataError, SettingError
from saltflat.landscape.access import PUBLIC, Access, declared
from saltflat.landscape.draws import gaussian, source
from saltflat.tree import Tree, add, called, dense, map_tree, mul, zeros_like

Batch = Any
Losses = Callable[[Tree, Batch], Tensor]
Judged = Callable[[Tree, Batch], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Evaluation:
    """The mean loss, and the share of right answers (NaN where there are no classes)."""

    loss: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Objective:
    """L(w) = (1/N) sum_i l_i(w) over the examples of ``batches``, in their order, added up in float64.

    ``losses(params, batch)`` gives one number per example; how examples are put into batches bounds the memory and
    changes no result. ``judged`` gives the losses and, from the same pass, which answers are right. ``watch`` is
    called after every pass over the examples.

    *Guarantee*: it cannot be made without a declaration (``access``) of who may see what it tells.

    >>> square = Objective(losses=lambda w, x: (w["w"] - x) ** 2, batches=[torch.ones(3)], access=PUBLIC)
    >>> square.value({"w": torch.tensor(3.0)})
    4.0
    """

    losses: Losses
    batches: Sequence[Batch] = field(repr=False)
    access: Access | None = None
    judged: Judged | None = None
    watch: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        declared(self.access, "the shape of a loss")
        if not len(self.batches):
            raise DataError("a loss over no examples has no shape; give at least one batch")

    @property
    def status(self) -> str:
        """What must be written beside every number that comes from here."""
        return declared(self.access).status

    def value(self, params: Tree) -> float:
        """L(w)."""
        return self.evaluated(params).loss

    @torch.no_grad()
    def evaluated(self, params: Tree) -> Evaluation:
        """Loss and accuracy from one pass."""
        total, right, rows = 0.0, 0.0, 0
        for batch in self.batches:
            losses, hits = self.judged(params, batch) if self.judged else (self.losses(params, batch), None)
            total += float(_one_per_row(losses).sum(dtype=torch.float64))
            right += math.nan if hits is None else float(hits.sum())
            rows += len(losses)
        self.watch()
        return Evaluation(total / rows, right / rows)

    def gradient(self, params: Tree) -> tuple[float, Tree]:
        """L(w) and its gradient."""
        leaves, total, rows = leaves_of(params), 0.0, 0
        gradient = zeros_like(params)
        for batch in self.batches:
            losses = _one_per_row(self.losses(leaves, batch))
            total += float(losses.detach().sum(dtype=torch.float64))
            rows += len(losses)
            gradient = add(gradient, gradient_of(losses.sum(), leaves))
        self.watch()
        return total / rows, mul(gradient, 1 / rows)


def leaves_of(params: Tree) -> Tree:
    """The same point, as the variables of a new graph."""
    return map_tree(lambda leaf: leaf.detach().clone().requires_grad_(), params)


def gradient_of(total: Tensor, leaves: Tree, *, graph: bool = False) -> Tree:
    """The gradient of a sum; a weight that it does not depend on has gradient 0."""
    found = torch.autograd.grad(
        total, list(leaves.values()), create_graph=graph, allow_unused=True, materialize_grads=True
    )
    return {name: dense(leaf) for name, leaf in zip(leaves, found, strict=True)}


def analytic(function: Callable[[Tree], Tensor]) -> Objective:
    """A loss given by a formula: there are no examples, so there is nothing to protect.

    >>> analytic(lambda w: (w["w"] ** 2).sum()).value({"w": torch.tensor([3.0])})
    9.0
    """
    return Objective(losses=lambda params, _: function(params).reshape(1), batches=[None], access=PUBLIC)


def of_model(
    model: nn.Module,
    criterion: Callable[[Tensor, Tensor], Tensor],
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    access: Access | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Objective, Tree]:
    """The loss of a classifier over (inputs, targets), and the point where it stands.

    The model is copied, put in eval mode and brought to ``dtype``; ``criterion`` has ``reduction="none"``.
    """
    declared(access, "the loss of a model")
    frozen = copy.deepcopy(model).eval().to(dtype)
    ready = [(_laid_out(x.to(dtype)) if x.is_floating_point() else x, y) for x, y in batches]

    def outputs(params: Tree, batch: Batch) -> Tensor:
        return called(frozen, map_tree(_laid_out, params), (batch[0],))

    def judged(params: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
        found = outputs(params, batch)
        return criterion(found, batch[1]), found.detach().argmax(1) == batch[1]

    objective = Objective(
        losses=lambda params, batch: criterion(outputs(params, batch), batch[1]),
        batches=ready,
        access=access,
        judged=judged,
    )
    return objective, {name: p.detach() for name, p in frozen.named_parameters() if p.requires_grad}


def _laid_out(leaf: Tensor) -> Tensor:
    """Images and kernels with their channels last, as pooling on a CPU is several times faster on them."""
    return leaf.to(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf


def smoothed(objective: Objective, like: Tree, *, std: float, copies: int = 10, seed: int = 0) -> Objective:
    """The loss that DPLIS descends on: L_s(w) = (1/K) sum_k L(w + u_k),   u_k ~ N(0, std^2 I), drawn once.

    The same u_k serve every point, so that a landscape of L_s is a surface and not a cloud.
    Wang et al., "DPlis: Boosting Utility of Differentially Private Deep Learning via Randomized Smoothing",
    PoPETs 2021.
    """
    if not (0 <= std < math.inf and copies >= 1):
        raise SettingError(f"smoothing needs std 0 or more and copies 1 or more; got {std} and {copies}")
    drawn = source(seed, copies)
    jitter = [mul(gaussian(like, drawn), std) for _ in range(copies)]

    def losses(params: Tree, batch: Batch) -> Tensor:
        return torch.stack([objective.losses(add(params, u), batch) for u in jitter]).mean(0)

    def judged(params: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
        assert objective.judged is not None
        found = [objective.judged(add(params, u), batch) for u in jitter]
        return torch.stack([each[0] for each in found]).mean(0), torch.stack(
            [each[1].double() for each in found]
        ).mean(0)

    return replace(objective, losses=losses, judged=judged if objective.judged else None)


def _one_per_row(losses: Tensor) -> Tensor:
    if losses.ndim != 1:
        raise SettingError(
            f"losses must give one number per example, a vector; got shape {tuple(losses.shape)}: use "
            'reduction="none"'
        )
    return losses
