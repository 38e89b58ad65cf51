"""Find every place where a weight meets data, and keep what its per-unit gradients are made of.

While a `Tape` is active it sees each torch function before it runs. Tensors are of two sorts:

* *shared*: the weights, the model's buffers, whatever the forward pass makes out of these alone
  (a transposed weight, a mask, ``torch.arange``);
* *data*: everything else; its first axis is the row of the batch.

A function of shared tensors only gives another shared tensor. A function in which a weight meets data
is a *use* of that weight: a rule (one per layer family, in `RULES`) runs it without asking for the
weight's gradient, and leaves a hook that, when the backward pass brings the output's gradient, keeps
the weight's part. So the plain weight gradient, which nobody needs, is never computed; a layer may be
called twice, tied, sliced or followed by an in-place activation; and the model is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saltflat.errors import ModelError
from saltflat.gradients.parts import Dense, Part, laid, precise
from saltflat.tree import Tree

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}  # a weight meets data; under None, the rule for every other function
DERIVATIONS: dict[Any, Rule] = {}  # weights alone


def rule(*functions: Any, table: dict[Any, Rule] = RULES) -> Callable[[Rule], Rule]:
    """Register ``run(tape, func, *args, **kwargs)`` as the way to run these torch functions."""

    def register(run: Rule) -> Rule:
        table.update(dict.fromkeys(functions, run))
        return run

    return register


class _Lift(torch.autograd.Function):
    """Make a tensor part of the graph, as if it depended on something that wants a gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(values)  # the same tensor, not a view of it: a later in-place activation is fine
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        return None, None


class _Copies(torch.autograd.Function):
    """(1, ...) -> (rows, ...) without copying, as part of the graph."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor, rows: int) -> Tensor:
        return value.expand(rows, *value.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        return None, None, None


class Weight:
    """A tensor that depends on parameters only: its name on the tape, and how it came about.

    It holds no reference to itself, not even through others: a cycle would keep a step's weights in memory until
    Python looks for cycles, many steps later.
    """

    def __init__(
        self,
        name: str,
        value: Tensor,
        *,
        traced: Tensor | None = None,
        repeats: Weight | None = None,
        how: Any = None,
    ):
        self.name = name
        self.value = value
        self._repeats = repeats
        self.how = how  # a rule's own way back to the parameters, where it has one
        self._traced = traced

    @property
    def source(self) -> Weight:
        """The weight itself, or the one that it repeats for every row of the batch."""
        return self._repeats.source if self._repeats is not None else self

    @property
    def traced(self) -> Tensor:
        """The same value inside a graph of its own that leads back to the parameters."""
        if self._traced is None:
            self._traced = self.value.detach().requires_grad_(self.value.is_floating_point())
        return self._traced

    @property
    def is_traced(self) -> bool:
        return self._traced is not None


class Tape(TorchFunctionMode):
    """Record the uses of ``weights`` while ``rows`` rows, ``views`` of them per unit, pass through a model.

    ``points``: how many points in weight space the units are asked at; their parts will be added to each other.
    """

    def __init__(
        self, weights: Tree, *, rows: int, views: int = 1, points: int = 1, constants: Iterable[Tensor] = ()
    ):
        super().__init__()
        self.rows, self.views, self.points = rows, views, points
        self.uses: dict[str, list[Part]] = {}
        self.derived: dict[str, Weight] = {}
        self.roots = {name: Weight(name, value) for name, value in weights.items()}
        self._weights = {id(root.value): root for root in self.roots.values()}
        self._shared: dict[int, Tensor] = {id(t): t for t in (*weights.values(), *constants)}
        some = next(iter(weights.values()))
        self._anchor = torch.zeros((), device=some.device, requires_grad=True)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = list(tensors_in((args, kwargs)))
        shared = [id(t) in self._shared for t in tensors]
        if tensors and not any(shared):
            return func(*args, **kwargs)
        if all(shared):
            return self._derive(func, args, kwargs, tensors)
        if not any(id(t) in self._weights for t in tensors):
            return self._run_and_watch_writes(func, args, kwargs, tensors)
        return RULES.get(func, RULES[None])(self, func, *args, **kwargs)

    # What rules use ---------------------------------------------------------------------------------

    def weight(self, value: Any) -> Weight | None:
        """The weight that this tensor is, or None for data, constants and everything else."""
        return self._weights.get(id(value)) if isinstance(value, Tensor) else None

    def is_shared(self, value: Tensor) -> bool:
        """Whether this tensor is the same for every row."""
        return id(value) in self._shared

    def watch(self, output: Tensor, keep: Callable[[Tensor], Iterable[Part]]) -> Tensor:
        """Call ``keep`` with the gradient at ``output`` when it is known, and store the parts it returns."""
        if not output.requires_grad:
            output = _Lift.apply(output, self._anchor)
        output.register_hook(lambda grad: self._store(keep(grad.detach())))
        return output

    def per_row(self, weight: Weight, axes: int) -> Tensor:
        """One copy of the weight for each row, with ``axes`` axes, that collects each row's gradient.

        The copies share memory. Ordinary automatic differentiation then keeps the rows apart by itself.
        """
        source, value = weight.source, weight.source.value
        if value.ndim < axes:
            value = value.view(*[1] * (axes - value.ndim), *value.shape)
        if value.ndim > axes or value.shape[0] != 1:
            raise ModelError(
                f"parameter {source.name!r} of shape {tuple(source.value.shape)} meets data along the batch axis; "
                "each example must see the parameter in the same way: give it a leading axis of length 1"
            )
        copies = _Copies.apply(value, self._anchor, self.rows)
        return self.watch(
            copies, lambda grad: [self.stack(source.name, grad.reshape(-1, *source.value.shape))]
        )

    def stack(self, name: str, rows: Tensor) -> Dense:
        """Gradients per row -> gradients per unit."""
        values = precise(rows)
        if self.views > 1:
            values = values.view(-1, self.views, *values.shape[1:]).sum(1)
        return Dense(name, values)

    def by_unit(self, rows: Tensor) -> Tensor:
        """(rows, ..., width) -> (units, positions, width)."""
        return rows.reshape(self.rows // self.views, -1, rows.shape[-1])

    def again(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function as if the model had called it, from inside a rule."""
        return self.__torch_function__(func, (), args, kwargs)

    def by_vmap(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function with the rule for functions without a rule."""
        return RULES[None](self, func, *args, **kwargs)

    def share(self, traced: Tensor, repeats: Weight | None = None, how: Any = None) -> Tensor:
        """Put a tensor made from weights on the tape; the value is what the model goes on with."""
        value = traced.detach()
        weight = Weight(f"#{len(self.derived)}", value, traced=traced, repeats=repeats, how=how)
        self.derived[weight.name] = self._weights[id(value)] = weight
        self._shared[id(value)] = value
        return value

    def traced(self, item: Any) -> Any:
        """The same arguments with every weight inside its own graph."""
        if isinstance(item, Tensor):
            weight = self._weights.get(id(item))
            return weight.traced if weight else item
        if isinstance(item, (list, tuple)):
            return type(item)(self.traced(x) for x in item)
        if isinstance(item, dict):
            return {key: self.traced(x) for key, x in item.items()}
        return item

    # ------------------------------------------------------------------------------------------------

    def _store(self, parts: Iterable[Part]) -> None:
        for part in parts:
            name = part.names[0]
            self.uses[name] = laid(self.uses.get(name, []), part)

    def _run_and_watch_writes(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """Run a function of data and constants; a constant that data was written into is data from now on."""
        before = [(t, t._version) for t in tensors if id(t) in self._shared]
        result = func(*args, **kwargs)
        for tensor, version in before:
            if tensor._version != version:
                del self._shared[id(tensor)]
        return result

    def _derive(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if not any(id(t) in self._weights for t in tensors):
            return self._remember(func(*args, **kwargs))
        if func in DERIVATIONS:
            return DERIVATIONS[func](self, func, *args, **kwargs)
        with torch.enable_grad():
            result = func(*self.traced(args), **self.traced(kwargs))
        return self._release(result)

    def _release(self, item: Any) -> Any:
        """Traced tensors -> values that the model may go on with."""
        if isinstance(item, Tensor):
            return self.share(item) if item.requires_grad else self._remember(item.detach())
        if isinstance(item, (list, tuple)) and any(isinstance(x, Tensor) for x in item):
            return tuple(self._release(x) for x in item)
        return item

    def _remember(self, item: Any) -> Any:
        for tensor in tensors_in(item):
            self._shared[id(tensor)] = tensor
        return item


def tensors_in(item: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dictionaries."""
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, (list, tuple)):
        for x in item:
            yield from tensors_in(x)
    elif isinstance(item, dict):
        for x in item.values():
            yield from tensors_in(x)
