"""Symmetric matrices that are known by their products only; the Hessian of a loss is one.

An operator is whatever has ``shape``, ``dtype``, ``device`` and ``operator @ vector``: a dense torch matrix, a
`Hessian`, a `Product` around a function, an operator of another library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from saltflat.errors import ModelError, SettingError
from saltflat.landscape.flat import flatten, unflatten
from saltflat.landscape.objective import Batch, Objective, gradient_of, leaves_of
from saltflat.tree import Tree, add, size, sub

ROOM = 1 << 30  # bytes of graphs that a Hessian keeps between products


class Operator(Protocol):
    """A symmetric matrix as far as the estimators need it."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def __matmul__(self, vector: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Product:
    """A function v -> H v on vectors of ``dimension`` numbers, as an operator.

    >>> Product(lambda v: 2 * v, 3) @ torch.ones(3)
    tensor([2., 2., 2.])
    """

    function: Callable[[Tensor], Tensor]
    dimension: int
    dtype: torch.dtype = torch.float64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def shape(self) -> tuple[int, int]:
        return self.dimension, self.dimension

    def __matmul__(self, vector: Tensor) -> Tensor:
        return self.function(vector)


def as_operator(given: Any) -> Operator:
    """``given`` itself if it is a square operator; a numpy matrix becomes a torch one.

    >>> as_operator(np.eye(2)) @ torch.ones(2, dtype=torch.float64)
    tensor([1., 1.], dtype=torch.float64)
    """
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(given)
    shape = tuple(getattr(given, "shape", ()))
    if len(shape) != 2 or shape[0] != shape[1] or not hasattr(given, "__matmul__"):
        raise SettingError(
            f"a square matrix or operator is needed, such as Hessian(objective, params) or Product(function, "
            f"dimension); got {type(given).__name__} of shape {shape}"
        )
    if isinstance(given, Tensor) and not given.is_floating_point():
        raise SettingError(f"a matrix of floats is needed; got {given.dtype}")
    return given


class Hessian:
    """H = the second derivative of L at w, by its products H v = d/dw <dL/dw, v>: exact, one batch at a time.

    The graph of dL/dw does not depend on v. Graphs of as many batches as fit into ``room`` bytes are kept from the
    first product on, and later products only walk through them, in two thirds of the time or less; the other
    batches are computed anew each time. With ReLU or max-pooling H is that of the piece in which w lies.
    Pearlmutter, "Fast Exact Multiplication by the Hessian", Neural Computation 1994.
    """

    kind = "double backward"

    def __init__(self, objective: Objective, params: Tree, *, room: int = ROOM) -> None:
        self._objective, self._params, self._room = objective, params, room
        self._kept: dict[int, tuple[Tree, Tree, int]] = {}
        self.dtype, self.device = _kind_of(params)
        self.shape = (size(params), size(params))

    def __matmul__(self, vector: Tensor) -> Tensor:
        """H v."""
        direction = unflatten(vector, self._params)
        total, rows = torch.zeros_like(vector), 0
        for number, batch in enumerate(self._objective.batches):
            leaves, gradient, count = self._kept.get(number) or self._graph(number, batch)
            total += _pulled(leaves, gradient, direction, keep=number in self._kept)
            rows += count
        self._objective.watch()
        return total / rows

    def _graph(self, number: int, batch: Batch) -> tuple[Tree, Tree, int]:
        """The gradient of one batch's sum as a graph; kept if there is room."""
        held = 0

        def weigh(tensor: Tensor) -> Tensor:
            nonlocal held
            held += tensor.untyped_storage().nbytes()
            return tensor

        leaves = leaves_of(self._params)
        with saved_tensors_hooks(weigh, lambda tensor: tensor):
            losses = self._objective.losses(leaves, batch)
            graph = leaves, gradient_of(losses.sum(), leaves, graph=True), len(losses)
        if number == 0:
            _check_differentiable(graph[1])
        if held <= self._room:
            self._room -= held
            self._kept[number] = graph
        return graph


class Differences:
    """H v ~ (dL(w + h v) - dL(w - h v)) / 2h with h = 1e-3 / ||v||: for losses without a second derivative by graph."""

    kind = "central differences"

    def __init__(self, objective: Objective, params: Tree, *, reach: float = 1e-3) -> None:
        self._objective, self._params, self._reach = objective, params, reach
        self.dtype, self.device = _kind_of(params)
        self.shape = (size(params), size(params))

    def __matmul__(self, vector: Tensor) -> Tensor:
        """H v, up to O(h^2)."""
        length = float(vector.norm())
        if length == 0:
            return torch.zeros_like(vector)
        h, direction = self._reach / length, unflatten(vector, self._params)
        ahead, behind = (self._objective.gradient(add(self._params, direction, scale=s))[1] for s in (h, -h))
        return flatten(sub(ahead, behind)) / (2 * h)


def hessian(objective: Objective, params: Tree) -> Hessian | Differences:
    """The exact Hessian, or finite differences where a layer has no second derivative; ``kind`` says which."""
    exact = Hessian(objective, params)
    try:
        exact @ torch.zeros(exact.shape[0], dtype=exact.dtype, device=exact.device)
    except ModelError:
        return Differences(objective, params)
    except (RuntimeError, NotImplementedError) as error:
        if not re.search("derivative|differentiate twice|double backward", str(error), flags=re.I):
            raise
        return Differences(objective, params)
    return exact


def _check_differentiable(gradient: Tree) -> None:
    """Refuse a gradient with a layer of which torch would silently take the second derivative for 0."""
    seen: set[Any] = set()
    ahead = [leaf.grad_fn for leaf in gradient.values() if leaf.grad_fn is not None]
    while ahead:
        node = ahead.pop()
        if node.name().split("::")[-1] in ("Error", "NotImplemented"):
            raise ModelError("a layer of this model can be differentiated only once; use Differences")
        fresh = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= fresh
        ahead += fresh


def _pulled(leaves: Tree, gradient: Tree, direction: Tree, *, keep: bool) -> Tensor:
    """d/dw <gradient, direction>; leaves of which the gradient is constant are left out."""
    names = [name for name in gradient if gradient[name].requires_grad]
    if not names:
        return flatten(direction) * 0
    found = torch.autograd.grad(
        [gradient[name] for name in names],
        list(leaves.values()),
        [direction[name] for name in names],
        retain_graph=keep,
        allow_unused=True,
        materialize_grads=True,
    )
    return torch.cat([leaf.reshape(-1) for leaf in found])


def _kind_of(params: Tree) -> tuple[torch.dtype, torch.device]:
    """The one dtype and device of all weights."""
    kinds = {(leaf.dtype, leaf.device) for leaf in params.values()}
    if len(kinds) != 1:
        raise SettingError(
            f"all weights must have one dtype and one device; got {sorted(map(str, kinds)) or 'no weights'}"
        )
    return kinds.pop()
