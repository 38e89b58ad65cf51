"""Find every place where a weight meets data, and keep what its per-unit gradients are made of.

While a `Tape` is active it sees each torch function before it runs. Tensors are of two sorts:

* *shared*: the weights, the model's buffers, whatever the forward pass makes out of these alone
  (a transposed weight, a mask, ``torch.arange``);
* *data*: everything else; its first axis is the row of the batch.

Data may be *folded*: positions of a row laid out on the first axis, all of one row before those of the next. The tape
believes that of a tensor only if it saw a reshape of (rows, positions, ...) make it. A model may also move the rows to
another axis, and back (`axes.py`). Where rows were picked by a mask
or an index (packed tokens, say), whose they are is unknown; such a tensor is *loose*, and may meet no weight.

A function of shared tensors only gives another shared tensor. A function in which a weight meets data
is a *use* of that weight: a rule (one per layer family, in `RULES`) runs it without asking for the
weight's gradient, and leaves a hook that, when the backward pass brings the output's gradient, keeps
the weight's part. So the plain weight gradient, which nobody needs, is never computed; a layer may be
called twice, tied, sliced or followed by an in-place activation; and the model is never changed.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saltflat.errors import ModelError
from saltflat.gradients.axes import (
    ALIGNED,
    LAST_AXES,
    LOST,
    MOVING,
    OWN_AXES,
    RECURRENT,
    SPREADING,
    axes_after,
    axis_written,
    in_front,
    raises,
    stays,
)
from saltflat.gradients.parts import Dense, Gathered, Part, Stretch, laid, precise
from saltflat.gradients.width import check_width
from saltflat.tree import Tree

Rule = Callable[..., Any]
Keep = Callable[[Tensor], Iterable[Part]]  # the gradient at an output -> parts
RULES: dict[Any, Rule] = {}  # a weight meets data; under None, the rule for every other function
DERIVATIONS: dict[Any, Rule] = {}  # weights alone
DATA_ALONE: dict[Any, Rule] = {}  # no weight at all: ``run(func, *args, **kwargs)``, the same in less time
in_transform = torch._C._are_functorch_transforms_active  # as in torch.func.vmap: none of these runs there


def rule(*functions: Any, table: dict[Any, Rule] = RULES) -> Callable[[Rule], Rule]:
    """Register ``run(tape, func, *args, **kwargs)`` as the way to run these torch functions."""

    def register(run: Rule) -> Rule:
        table.update(dict.fromkeys(functions, run))
        return run

    return register


FOLDING = {Tensor.reshape, Tensor.view, Tensor.flatten, torch.reshape, torch.flatten, Tensor.unflatten}
PICKING = {
    *(Tensor.masked_select, torch.masked_select, Tensor.index_select, torch.index_select),
    *(Tensor.gather, torch.gather, Tensor.take, torch.take, torch.take_along_dim, Tensor.take_along_dim),
    *(Tensor.__getitem__, torch.nonzero, Tensor.nonzero),
}


WATCHED = PICKING | MOVING


class _Lift(torch.autograd.Function):
    """Make a tensor part of the graph, as if it depended on something that wants a gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(values)  # the same tensor, not a view of it: a later in-place activation is fine
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        return None, None


class _NoView(torch.autograd.Function):
    """The same numbers, and no view of another tensor.

    A linear layer with more than two axes gives a view. An in-place activation replaces a view's place in the graph,
    and a hook on it would never be called.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.data

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _Copies(torch.autograd.Function):
    """(1, ...) -> (rows, ...) without copying, as part of the graph."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor, rows: int) -> Tensor:
        return value.expand(rows, *value.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        return None, None, None


class Numbers(Protocol):
    """A run of a checkpointed function (`recompute.py`), which gives a number to each ``keep``."""

    def numbered(self, keep: Keep) -> Keep: ...


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
        back: Callable[[Part], Part] | None = None,
        again: Callable[[], Tensor] | None = None,
    ):
        self.name = name
        self.value = value
        self._repeats = repeats
        self.how = how  # what a rule knows of a weight that it standardised
        self.back = back  # its part -> the parameter's, where that needs no automatic differentiation
        self._traced = traced
        self._again = again  # makes it once more inside a graph, if anybody asks

    @property
    def source(self) -> Weight:
        """The weight itself, or the one that it repeats for every row of the batch."""
        return self._repeats.source if self._repeats is not None else self

    @property
    def traced(self) -> Tensor:
        """The same value inside a graph of its own that leads back to the parameters."""
        return self.traced_as(self.value)

    def traced_as(self, value: Tensor) -> Tensor:
        """The same, by whoever still holds the ``value``: a weight that is elsewhere is here for a while only."""
        if self._traced is None and self._again is not None:
            with torch.enable_grad():
                self._traced = self._again()
        elif self._traced is None:
            self._traced = value.detach().requires_grad_(value.is_floating_point())
        return self._traced

    @property
    def is_traced(self) -> bool:
        return self._traced is not None


class ReadsValues(Exception):
    """Code of the user's read values of a batch in Python, so what it did may depend on all of its units."""


# Functions by which a Python number, list or truth value is made of a tensor: an `assert` or an `if` calls one of them.
VALUE_READS = {
    *(Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.__index__, Tensor.item, Tensor.tolist),
    *(Tensor.numpy, Tensor.__array__, Tensor.__contains__, Tensor.is_nonzero, Tensor.equal, Tensor.allclose),
    *(torch.equal, torch.allclose, torch.is_nonzero),
}
# Packages whose branches choose between ways to compute the same, or refuse values row by row.
TRUSTED_PACKAGES = ("torch", "transformers", "timm", "peft", "accelerate", "saltflat")


class OwnFunction(Exception):
    """A custom `torch.autograd.Function` takes a weight, and only its own backward knows the weight's gradient."""


def own_function_of(weights: Collection[int]) -> str:
    """The custom function that is running and was given one of these tensors (by id); "" if there is none.

    Functions of this package do not count: their backward passes are the rules' own.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _APPLY and any(id(t) in weights for t in tensors_in(frame.f_locals.get("args"))):
            function = frame.f_locals["cls"]
            if function.__module__.partition(".")[0] != "saltflat":
                return str(function.__name__)
        frame = frame.f_back
    return ""


_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


def is_called_by_user() -> bool:
    """Whether the function that a mode is looking at was called by code outside `TRUSTED_PACKAGES`."""
    frame = sys._getframe(1)
    passed = (__name__, "torch.overrides", "torch._tensor", "torch._jit_internal")
    while frame.f_back is not None and frame.f_globals.get("__name__") in passed:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith("torch.testing") or name.partition(".")[0] not in TRUSTED_PACKAGES


class WatchValueReads(TorchFunctionMode):
    """Notice whether the user's code reads values of tensors in Python; see `ReadsValues`."""

    def __init__(self) -> None:
        super().__init__()
        self.noticed = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.noticed = self.noticed or (func in VALUE_READS and is_called_by_user())
        return func(*args, **(kwargs or {}))


class Tape(TorchFunctionMode):
    """Record the uses of ``weights`` while ``rows`` rows, ``views`` of them per unit, pass through a model.

    ``points``: how many points in weight space the units are asked at; their parts are added to each other in
    ``found``, which tapes of several points share.
    """

    def __init__(
        self,
        weights: Tree,
        *,
        rows: int,
        views: int = 1,
        points: int = 1,
        constants: Iterable[Tensor] = (),
        found: dict[str, Gathered] | None = None,
    ):
        super().__init__()
        self.rows, self.views, self.points = rows, views, points
        self.reads_values = False  # whether the user's code made a Python value of data
        self.found: dict[str, Gathered] = {} if found is None else found  # of the weights themselves
        self.uses: dict[str, list[Part]] = {}  # of what forward made out of them
        self.times: dict[str, int] = {}  # how often that was used
        self.derived: dict[str, Weight] = {}
        self.roots = {name: Weight(name, value) for name, value in weights.items()}
        self._weights = {id(root.value): root for root in self.roots.values()}
        self._shared: dict[int, Tensor] = {id(t): t for t in (*weights.values(), *constants)}
        # Tensors, held while the model runs: no other tensor takes over an address. See `hold_loosely`.
        self._folded: dict[int, Any] = {}
        self._loose: dict[int, Any] = {}
        self._lost: set[int] = set()  # those of them that were lost on another axis, not picked
        self._axes: dict[int, tuple[Any, int]] = {}  # data whose rows are on another axis than the first
        self.segment: Numbers | None = None  # the checkpointed function that is running
        self.segments: list[Any] = []  # all that ran
        some = next(iter(weights.values()))
        self._anchor = torch.zeros((), device=some.device, requires_grad=True)

    def __exit__(self, *error: Any) -> None:
        """Let go of what was followed: tensors lead to hooks, and hooks to the tape, a circle that keeps them all."""
        super().__exit__(*error)
        for followed in (self._folded, self._loose, self._axes):
            followed.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self._run(func, args, kwargs or {})
        check_width(result)
        return result

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = tensors_in(args, kwargs)
        shared = [id(t) in self._shared for t in tensors]
        if all(shared):  # tensors made of nothing, such as zeros, are shared too
            return self._derive(func, args, kwargs, tensors)
        if not any(shared):
            if func in VALUE_READS and not self.reads_values:
                self.reads_values = is_called_by_user()
            faster = None if in_transform() else DATA_ALONE.get(func)
            result = func(*args, **kwargs) if faster is None else faster(func, *args, **kwargs)
        elif not any(id(t) in self._weights for t in tensors):
            result = self._run_and_watch_writes(func, args, kwargs, tensors)
        else:
            self._refuse_loose(func, tensors)
            if not torch.is_grad_enabled():
                result = self._run_without_gradients(func, args, kwargs, tensors)
            else:
                if func in OWN_AXES:
                    self._check_own_axis(func, args)
                elif self._axes and any(id(t) in self._axes for t in tensors):
                    return self._run_in_front(func, args, kwargs, tensors)
                result = RULES.get(func, RULES[None])(self, func, *args, **kwargs)
        if self.rows > self.views:  # of one unit alone everything is its own
            self._follow(func, args, kwargs, tensors, result)
        return result

    def stand_in(self, whole: Tensor, leaf: Tensor) -> None:
        """From now on ``whole`` is ``leaf``: a weight, or a constant, that is elsewhere (`away.py`)."""
        self._shared[id(whole)] = whole
        if (root := self._weights.get(id(leaf))) is not None:
            self._weights[id(whole)], root.value = root, whole

    def stand_down(self, whole: Tensor, leaf: Tensor) -> None:
        """Nothing here holds ``whole`` any more."""
        self._shared.pop(id(whole), None)
        if (root := self._weights.pop(id(whole), None)) is not None:
            root.value = leaf

    def known(self) -> dict[str, dict[int, Any]]:
        """What is known of tensors now, for `know` at a second run; they are held by the answer."""
        live = lambda table: {key: t for key, held in table.items() if (t := _held(held)) is not None}
        axes = {key: (t, axis) for key, (held, axis) in self._axes.items() if (t := _held(held)) is not None}
        lost = dict.fromkeys(self._lost)
        return {"folded": live(self._folded), "loose": live(self._loose), "lost": lost, "axes": axes}

    def know(self, known: dict[str, dict[int, Any]]) -> None:
        """Take over what was `known`."""
        self._folded.update(known["folded"])
        self._loose.update(known["loose"])
        self._lost.update(known["lost"])
        self._axes.update(known["axes"])

    def hold_loosely(self, before: dict[str, dict[int, Any]]) -> None:
        """Hold what came after ``before`` only as long as others do: a checkpointed function's tensors shall go."""
        loosely = lambda table, key, held: weakref.ref(held, lambda _: table.pop(key, None))
        for table, then in ((self._folded, before["folded"]), (self._loose, before["loose"])):
            for key in table.keys() - then.keys():
                if isinstance(table[key], Tensor):
                    table[key] = loosely(table, key, table[key])
        for key in self._axes.keys() - before["axes"].keys():
            held, axis = self._axes[key]
            if isinstance(held, Tensor):
                self._axes[key] = (loosely(self._axes, key, held), axis)

    # What rules use ---------------------------------------------------------------------------------

    def weight(self, value: Any) -> Weight | None:
        """The weight that this tensor is, or None for data, constants and everything else."""
        return self._weights.get(id(value)) if isinstance(value, Tensor) else None

    def is_shared(self, value: Tensor) -> bool:
        """Whether this tensor is the same for every row."""
        return id(value) in self._shared

    def as_rows(self, value: Tensor) -> Tensor:
        """A first state such as ``torch.zeros(rows, width)``, made of nothing in forward, as data from here on."""
        return value.clone() if self.is_shared(value) and value.ndim and len(value) == self.rows else value

    def holds_rows(self, value: Tensor) -> bool:
        """Whether the first axis is the rows, or positions folded into them, row by row."""
        return value.shape[0] == self.rows or self.rows == self.views or id(value) in self._folded

    def check_rows(self, func: Any, value: Tensor) -> None:
        """Refuse data that a rule would take for rows, or for positions folded into them, and that is neither."""
        if value.ndim and not self.holds_rows(value):
            self._refuse_axis(func, value)

    def watch(self, output: Tensor, keep: Keep) -> Tensor:
        """Call ``keep`` with the gradient at ``output`` when it is known, and store the parts it returns."""
        if not output.requires_grad:
            output = _Lift.apply(output, self._anchor)
        elif output._is_view():
            output = _NoView.apply(output)
        if self.segment is not None:
            keep = self.segment.numbered(keep)
        output.register_hook(lambda grad: self._store(keep(grad.detach())))
        return output

    def per_row(self, weight: Weight, axes: int) -> Tensor:
        """One copy of the weight for each row, with ``axes`` axes, that collects each row's gradient.

        The copies share memory. Ordinary automatic differentiation then keeps the rows apart by itself.
        """
        source, value = weight.source, weight.source.value
        own_or_derived = self.rows == self.views or source.name not in self.roots
        if own_or_derived and value.ndim == axes and value.shape[:1] != (1,):
            return self._along_rows(source)
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

    def _along_rows(self, weight: Weight) -> Tensor:
        """A weight that forward spread over the batch itself, such as a bias of attention with every row's mask added.

        Each unit sees its own stretch of the first axis. For one unit alone, the whole is its own.
        """
        units = self.rows // self.views
        if len(weight.value) % self.rows and units > 1:
            raise ModelError(
                f"a tensor of shape {tuple(weight.value.shape)} that is made of parameters meets data along the batch "
                "axis; each example must see the parameter in the same way: give it a leading axis of length 1"
            )
        by_unit = lambda grad: precise(grad).reshape(units, -1, *grad.shape[1:])
        return self.watch(weight.value.clone(), lambda grad: [Stretch(weight.name, by_unit(grad))])

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

    def share(self, traced: Tensor, again: Callable[[], Tensor] | None = None, **ways: Any) -> Tensor:
        """Put a tensor made from weights on the tape; the value is what the model goes on with.

        ``again`` makes one inside a graph where ``traced`` is a value alone: few weights are ever asked for it.
        """
        value = traced.detach()
        own = None if again else traced
        weight = Weight(f"#{len(self.derived)}", value, traced=own, again=again, **ways)
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

    def _refuse_loose(self, func: Any, tensors: list[Tensor]) -> None:
        for tensor in tensors if self._loose else ():
            if id(tensor) in self._loose:
                why = (
                    "its batch was reshaped or reduced on another axis, so it is not known whose the rows are; put the "
                    "batch on the first axis before that (batch_first=True)"
                    if id(tensor) in self._lost
                    else "rows or tokens were picked by a mask or an index, so it is not known whose they are; keep "
                    "the padding, and give padded positions the loss 0"
                )
                raise ModelError(
                    f"{getattr(func, '__name__', func)} got a tensor of shape {tuple(tensor.shape)} whose first axis "
                    f"is not the batch ({self.rows} rows) any more: {why}"
                )

    def _run_in_front(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """A weight meets data whose rows are on another axis: they are put in front for as long as it takes."""
        (axis, *others) = {self._axes[id(t)][1] for t in tensors if id(t) in self._axes}
        first = func in LAST_AXES and id(args[0]) in self._axes
        if others or not (first or func in ALIGNED) or (not first and tensors_in(kwargs)):
            self._refuse_axis(func, next(t for t in tensors if id(t) in self._axes))
        return in_front(self.again, func, args, kwargs, axis)

    def _check_own_axis(self, func: Any, args: Any) -> None:
        """Refuse a recurrent or attention layer that would take the batch for time."""
        expected = 0 if func in RECURRENT and args[-1] is True else 1
        apart = self.rows > self.views and args[0].ndim == 3
        if apart and self._axis(args[0]) not in (expected, None):
            raise ModelError(
                f"{func.__name__} got a tensor of shape {tuple(args[0].shape)} and takes its axis {expected} for the "
                "batch, which is on another, so that examples would be read as time: build the layer with "
                "batch_first=True, and keep the batch on the first axis"
            )

    def _refuse_axis(self, func: Any, value: Tensor) -> None:
        raise ModelError(
            f"{getattr(func, '__name__', func)} got a tensor of shape {tuple(value.shape)} whose first axis is not "
            f"the batch ({self.rows} rows); keep the batch on the first axis (batch_first=True), or fold positions "
            "into it by a reshape of (batch, positions, ...)"
        )

    def _follow_axes(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Take note of where the rows are, after a function that moves them or gets them on another axis."""
        made = tensors_in(result)
        axes = axes_after(func, args, kwargs, self._axis, self.rows, made) if made else []
        for tensor, axis in zip(made, axes, strict=True):
            if axis is None or tensor.ndim == 0:
                continue
            if axis > 0:
                self._axes[id(tensor)] = (tensor, axis)
            elif axis == LOST or len(tensor) % self.rows:
                self._loose[id(tensor)] = tensor
                self._lost.add(id(tensor))
            elif len(tensor) != self.rows:
                self._folded[id(tensor)] = tensor

    def _axis(self, value: Tensor) -> int | None:
        """On which axis the rows of a tensor are; None if it is no data, or nobody knows."""
        if id(value) in self._axes:
            return self._axes[id(value)][1]
        known = value.ndim and id(value) not in self._shared and id(value) not in self._loose
        return 0 if known and self.holds_rows(value) else None

    def _follow(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], result: Any) -> None:
        """Take note of what becomes of the first axis."""
        if isinstance(result, Tensor) and not self._loose and not self._axes and func not in WATCHED:
            shape = result.shape
            if not shape or (shape[0] == self.rows and self.rows not in shape[1:]):
                return  # nearly always: it is on every function's way
        moves = (func in MOVING and not stays(func, args)) or any(id(t) in self._axes for t in tensors)
        if not moves and (func in ALIGNED or func in SPREADING):
            moves = raises(
                func, max((t.ndim for t in tensors if id(t) not in self._shared), default=0), result
            )
        if moves and not any(id(t) in self._loose for t in tensors):
            return self._follow_axes(func, args, kwargs, result)
        for made in tensors_in(result):
            if made.ndim == 0:
                continue
            if (func in PICKING and self._picks_rows(func, args, made)) or self._comes_loose(tensors, made):
                self._loose[id(made)] = made
                if any(id(t) in self._lost for t in tensors):
                    self._lost.add(id(made))
            elif len(made) != self.rows and self._is_folded(func, tensors, made):
                self._folded[id(made)] = made

    def _picks_rows(self, func: Any, args: Any, made: Tensor) -> bool:
        """Whether the first axis was picked from, by anything but a plain slice of a later axis."""
        if func is not Tensor.__getitem__:
            return func in (torch.nonzero, Tensor.nonzero, Tensor.masked_select, torch.masked_select) or (
                len(made) != len(args[0]) or 0 in args[1:2]
            )
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        first = next((part for part in index if part is not None), slice(None))
        if isinstance(first, Tensor):
            return not self._is_each_row(first)
        return isinstance(first, list) or (isinstance(first, slice) and first.step not in (None, 1))

    def _is_each_row(self, index: Tensor) -> bool:
        """Whether an index along the first axis says: every row, in its place."""
        if index.dtype == torch.bool or index.ndim == 0 or len(index) != self.rows:
            return False
        rows = torch.arange(self.rows, device=index.device).view(-1, *[1] * (index.ndim - 1))
        return bool((index == rows).all())

    def _comes_loose(self, tensors: list[Tensor], made: Tensor) -> bool:
        """What is made of loose data is loose, until it is put back onto the rows."""
        if not self._loose:
            return False
        known = any(id(t) not in self._loose and t.ndim and self.holds_rows(t) for t in tensors)
        return any(id(t) in self._loose for t in tensors) and not (known and len(made) == self.rows)

    def _is_folded(self, func: Any, tensors: list[Tensor], made: Tensor) -> bool:
        """Whether a first axis that is longer than the rows holds them row by row."""
        data = [t for t in tensors if t.ndim and id(t) not in self._shared]
        if len(made) % self.rows:
            return False
        if func in FOLDING:
            return all(self.holds_rows(t) for t in data)
        return any(id(t) in self._folded and len(t) == len(made) for t in data)

    def _store(self, parts: Iterable[Part]) -> None:
        """At once: a layer's gradients are added to those of other points before the next layer has any."""
        for part in parts:
            name = part.names[0]
            if name in self.roots:
                self.keep(part)
            else:
                self.uses[name] = laid(self.uses.get(name, []), part)
                self.times[name] = self.times.get(name, 0) + 1

    def keep(self, part: Part) -> None:
        """A part of the weights themselves, to which those of other points are added."""
        name = part.names[0]
        if name not in self.found:
            self.found[name] = Gathered(self.points)
        self.found[name].add(part)

    def _run_and_watch_writes(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """Run a function of data and constants; a constant that data was written into is data from now on."""
        before = [(t, t._version) for t in tensors if id(t) in self._shared]
        result = func(*args, **kwargs)
        for tensor, version in before:
            if tensor._version != version:
                del self._shared[id(tensor)]
                self._follow_write(func, args, tensor)
        return result

    def _follow_write(self, func: Any, args: Any, whole: Tensor) -> None:
        """``states[time] = state``, into a tensor that forward made: the rows may be on another axis than the first."""
        value = args[2] if func is Tensor.__setitem__ and self.rows > self.views else None
        axis = self._axis(value) if isinstance(value, Tensor) else None
        if (
            isinstance(value, Tensor)
            and axis is not None
            and (place := axis_written(args[1], value, axis, whole))
        ):
            self._axes[id(whole)] = (whole, place)

    def _derive(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if not any(id(t) in self._weights for t in tensors):
            return self._remember(func(*args, **kwargs))
        if not torch.is_grad_enabled():
            self._raise_own_function()
            with torch.enable_grad():  # in which a weight cannot be written into
                made = func(*self.traced(args), **self.traced(kwargs))
            return self._remember(torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, made))
        if func in DERIVATIONS:
            return DERIVATIONS[func](self, func, *args, **kwargs)
        with torch.enable_grad():
            result = func(*self.traced(args), **self.traced(kwargs))
        return self._release(result)

    def _run_without_gradients(
        self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        """A weight meets data under `torch.no_grad`, or in a custom function, which alone knows what to do about it."""
        self._raise_own_function()
        weights = [(t, t._version) for t in tensors if id(t) in self._weights]
        result = func(*args, **kwargs)
        for weight, version in weights:
            if weight._version != version:
                raise ModelError(
                    f"{getattr(func, '__name__', func)} writes data into parameter "
                    f"{self._weights[id(weight)].name!r}, which would be released without noise; change weights in the "
                    "optimizer only"
                )
        return result

    def _raise_own_function(self) -> None:
        if name := own_function_of(self._weights):
            raise OwnFunction(name)

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


def _held(held: Any) -> Tensor | None:
    return held() if isinstance(held, weakref.ref) else held


PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})


def tensors_in(*items: Any) -> list[Tensor]:
    """Every tensor in nested tuples, lists and dictionaries."""
    found: list[Tensor] = []
    _collect(items, found)
    return found


def _collect(items: Iterable[Any], found: list[Tensor]) -> None:
    for item in items:  # no generator, and numbers first: this is on every function's way
        if type(item) in PLAIN:
            continue
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            _collect(item, found)
        elif isinstance(item, dict):
            _collect(item.values(), found)
