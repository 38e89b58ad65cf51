"""Arithmetic on trees: a point or a direction in weight space, as ``{name: tensor}``.

Every function is pure: it returns a new tree and leaves its arguments alone. A leaf may be *sharded*, a `DTensor` of
PyTorch's: each process holds a part of it, and arithmetic leaf by leaf is on the parts. What is a number of the whole
tree (`dot`, `norm`) is one number in all processes, which then must all ask for it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Tree = dict[str, Tensor]


def is_sharded(leaf: Tensor) -> bool:
    """Whether processes hold a part of it each; by its form, as most runs never load what `DTensor` takes."""
    return type(leaf) is not Tensor and hasattr(leaf, "device_mesh")


def has_shards(tree: Tree) -> bool:
    """Whether the leaves are sharded: all of them are, or none (`saltflat.core.alike`)."""
    return any(is_sharded(leaf) for leaf in tree.values())


def whole(leaf: Any) -> Tensor:
    """All of a sharded leaf, in every process, which all must ask for; another leaf as it is."""
    return leaf.full_tensor() if is_sharded(leaf) else leaf


def cut(values: Tensor, like: Any) -> Tensor:
    """``values``, which this process has whole, on the device of ``like``; of a sharded leaf, this process's part."""
    values = values.to(like.device)
    if not is_sharded(like):
        return values
    from torch.distributed.tensor import DTensor, Replicate

    there = DTensor.from_local(values, like.device_mesh, [Replicate()], run_check=False)
    return there.redistribute(placements=like.placements)


def dense(gradient: Tensor) -> Tensor:
    """The same gradient with all its rows: `Embedding(sparse=True)` lists those that were looked up."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def own_part(leaf: Any) -> Tensor:
    """What this process itself holds: of a sharded leaf its part, the very memory of it."""
    return leaf.to_local() if is_sharded(leaf) else leaf


def own_parts(tree: Tree) -> Tree:
    """`own_part` of every leaf."""
    return {name: own_part(leaf) for name, leaf in tree.items()}


def as_part(part: Tensor, like: Any) -> Tensor:
    """This process's part of a leaf that is sharded as ``like`` is; where that is whole, the part is all of it."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


class Released(Tree):
    """A tree that came out of the door, and the standard deviation of the noise on each coordinate.

    That number is a public constant of the step. Arithmetic gives plain trees, which do not know theirs.

    >>> Released({"w": torch.zeros(2)}, noise_std=0.1).noise_std
    0.1
    """

    def __init__(self, tree: Tree, *, noise_std: float) -> None:
        super().__init__(tree)
        self.noise_std = noise_std


def map_tree(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Apply ``function`` leaf by leaf.

    >>> map_tree(torch.add, {"w": torch.ones(2)}, {"w": torch.ones(2)})
    {'w': tensor([2., 2.])}
    """
    first, *rest = trees
    for other in rest:
        if other.keys() != first.keys():
            odd = sorted(first.keys() ^ other.keys())
            raise ValueError(f"trees have different leaves: {odd} are in one of them only")
    return {name: function(leaf, *(tree[name] for tree in rest)) for name, leaf in first.items()}


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 or better: sums, norms and noise are never taken in half precision.

    >>> wide(torch.bfloat16), wide(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


def zeros_like(tree: Tree) -> Tree:
    """0, in the shape of ``tree``."""
    return map_tree(torch.zeros_like, tree)


def copied(tree: Tree) -> Tree:
    """The same numbers in memory of their own: what a model is handed it may change in place, and some do."""
    return map_tree(torch.clone, tree)


def add(a: Tree, b: Tree, scale: float = 1.0) -> Tree:
    """a + scale * b, in the types of a."""

    def added(x: Tensor, y: Tensor) -> Tensor:
        if x.dtype == wide(x.dtype):
            return torch.add(x, y, alpha=scale)
        return torch.add(x.to(wide(x.dtype)), y, alpha=scale).to(x.dtype)  # float16 cannot hold every scale

    return map_tree(added, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """a - b."""
    return map_tree(torch.sub, a, b)


def mul(tree: Tree, factor: float) -> Tree:
    """factor * tree."""
    return map_tree(lambda x: x * factor, tree)


def times(a: Tree, b: Tree) -> Tree:
    """a * b, coordinate by coordinate."""
    return map_tree(torch.mul, a, b)


def dot(a: Tree, b: Tree) -> Tensor:
    """<a, b>, summed in float64 so that a long tree loses nothing."""
    parts = map_tree(lambda x, y: torch.sum(x * y, dtype=torch.float64), a, b)
    return whole(torch.stack(list(parts.values())).sum())


def norm(tree: Tree) -> Tensor:
    """||tree||_2 over all leaves jointly.

    >>> norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])}).item()
    5.0
    """
    norms = [torch.linalg.vector_norm(x, dtype=wide(x.dtype)).double() for x in tree.values()]
    return whole(torch.linalg.vector_norm(torch.stack(norms)))


def size(tree: Tree) -> int:
    """The number of coordinates.

    >>> size({"w": torch.zeros(2, 3), "b": torch.zeros(3)})
    9
    """
    return sum(leaf.numel() for leaf in tree.values())


def largest(tree: Tree, keep: float) -> Tree:
    """1 at the ceil(keep D) coordinates of all D that are largest by size, and 0 elsewhere.

    >>> largest({"w": torch.tensor([1.0, -3.0]), "b": torch.tensor([2.0, 0.5])}, keep=0.5)
    {'w': tensor([0., 1.]), 'b': tensor([1., 0.])}
    """
    flat = torch.cat([leaf.abs().flatten() for leaf in tree.values()])
    kept = torch.zeros_like(flat)
    kept[flat.topk(math.ceil(keep * len(flat)), sorted=False).indices] = 1
    parts = kept.split([leaf.numel() for leaf in tree.values()])
    return {name: part.view_as(leaf) for (name, leaf), part in zip(tree.items(), parts, strict=True)}


def climb(point: Tree, direction: Tree, radius: float) -> Tree:
    """point + radius * direction / ||direction||: the step uphill of the sharpness-aware methods.

    A zero direction leaves the point where it is.

    >>> climb({"w": torch.zeros(2)}, {"w": torch.tensor([0.0, 2.0])}, radius=0.5)
    {'w': tensor([0.0000, 0.5000])}
    """
    length = float(norm(direction)) + 1e-16
    return add(point, direction, scale=radius / length)


def called(model: nn.Module, at: Tree, args: Any, kwargs: Any = None) -> Any:
    """What the model gives with the weights ``at`` in the place of its own, which are back when it returns.

    As `torch.func.functional_call`, which leaves the given weight in a *module* that the model holds under several
    names: it takes the weight out, and puts it back, once for each name.
    """
    placed = _placed(model, at)
    _calls.running.append((model, placed))
    try:
        return functional_call(model, placed, args, kwargs or {}, tie_weights=False)
    finally:
        _calls.running.pop()


def is_calling() -> bool:
    """Whether this thread is inside `called`."""
    return bool(_calls.running)


def with_weights_of_now(function: Callable[[], Any]) -> Callable[[], Any]:
    """The same function, which later meets the weights that the call of `called` around this one has put in place."""
    for model, placed in reversed(_calls.running):
        at = {f"model.{name}": leaf for name, leaf in placed.items()}
        holder = _Holder(model, function)
        function = partial(functional_call, holder, at, (), {}, tie_weights=False)
    return function


class _Holder(nn.Module):
    """A function as the forward of a module that holds a model, whose weights `functional_call` then replaces."""

    def __init__(self, model: nn.Module, function: Callable[[], Any]) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self) -> Any:
        return self.function()


class _Calls(threading.local):
    """The models that `called` is running in this thread, and their weights by place."""

    def __init__(self) -> None:
        self.running: list[tuple[nn.Module, Tree]] = []


_calls = _Calls()


def _placed(model: nn.Module, at: Tree) -> Tree:
    """The weights by their places in the model: a tied one has several, a module with several names is one."""
    tied: dict[int, list[str]] = {}
    for path, module in model.named_modules():  # each module once
        for name, leaf in (*module._parameters.items(), *module._buffers.items()):
            if leaf is not None:
                tied.setdefault(id(leaf), []).append(f"{path}.{name}" if path else name)
    places = {name: names for names in tied.values() for name in names}
    return {place: leaf for name, leaf in at.items() for place in places.get(name, [name])}
