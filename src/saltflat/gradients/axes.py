"""Where the rows of a batch are, when a model moves them off the first axis (sequence-first layers, heads in front).

A tensor is followed from the function that moves its rows (a transpose, a permutation, a stack) to the one that brings
them back. In between, layers that act on the last axes alone are run with the rows in front (`in_front`); recurrent and
attention layers know themselves where their batch is. What cannot be followed is *lost*, and may meet no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

AXES_MOVE = {
    *(Tensor.transpose, torch.transpose, Tensor.swapaxes, torch.swapaxes, Tensor.swapdims, torch.swapdims),
    *(Tensor.permute, torch.permute, Tensor.movedim, torch.movedim, Tensor.moveaxis, torch.moveaxis),
    *(Tensor.t, torch.t, Tensor.unsqueeze, torch.unsqueeze, Tensor.T.__get__, Tensor.mT.__get__),  # type: ignore[attr-defined]
}
RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
MOVING = {*AXES_MOVE, *RECURRENT, torch.stack, F.multi_head_attention_forward}
VIEWS = {
    *AXES_MOVE,
    *(
        Tensor.__getitem__,
        Tensor.unbind,
        torch.unbind,
        Tensor.select,
        torch.select,
        Tensor.narrow,
        torch.narrow,
    ),
    *(Tensor.split, torch.split, Tensor.chunk, torch.chunk, Tensor.squeeze, torch.squeeze),
}
RESHAPES = {Tensor.reshape, Tensor.view, Tensor.flatten, torch.reshape, torch.flatten, Tensor.unflatten}
OWN_AXES = {*RECURRENT, F.multi_head_attention_forward}  # they know where their batch is
LAST_AXES = {  # of the first argument: the others are weights
    *(F.linear, F.layer_norm, F.rms_norm, F.embedding, torch.matmul, Tensor.matmul, Tensor.__matmul__),
}
ALIGNED: set[Any] = set()  # functions whose arguments are broadcast against each other
SPREADING = {Tensor.expand, Tensor.expand_as, Tensor.repeat, torch.broadcast_to, Tensor.broadcast_to}
LOST = -1


def stays(func: Any, args: Sequence[Any]) -> bool:
    """Whether a function that could move the first axis clearly does not: most transposes are of later axes."""
    if func in (Tensor.transpose, torch.transpose):
        return len(args) == 3 and args[1] not in (0, -args[0].ndim) and args[2] not in (0, -args[0].ndim)
    if func in (Tensor.permute, torch.permute) and len(args) > 1:
        return (args[1][0] if isinstance(args[1], list | tuple) else args[1]) == 0
    return (
        func in (Tensor.unsqueeze, torch.unsqueeze)
        and len(args) == 2
        and args[1] not in (0, -args[0].ndim - 1)
    )


def axes_after(
    func: Any,
    args: Any,
    kwargs: dict[str, Any],
    axis_of: Callable[[Tensor], int | None],
    rows: int,
    made: list[Tensor],
) -> list[int | None]:
    """The rows' axis in each tensor that was made; None where nothing is known of it, `LOST` where they are lost.

    ``axis_of`` says where an argument's rows are: None for whatever is no data, or is unknown.
    """
    if func in RECURRENT and made[0].ndim != 3:  # a packed sequence
        return [LOST] * len(made)
    if func in RECURRENT:  # output, then states: (layers, rows, width)
        batch_first = bool(args[-1]) if args else False
        return [0 if batch_first else 1, *[1] * (len(made) - 1)]
    if func is F.multi_head_attention_forward:
        return [1, *[0] * (len(made) - 1)]
    if func is torch.stack:
        return [_stacked(args, kwargs, axis_of)]
    source, axis = _leading(args, kwargs, axis_of)
    if source is None or axis is None:
        return [None] * len(made)
    if func in VIEWS:
        return _viewed(func, args, kwargs, source, axis, rows, made)
    if func in RESHAPES:
        return [_reshaped(source, axis, rows, made[0])]
    if raises(func, source.ndim, made[0]):  # new axes come first
        place = made[0].ndim - source.ndim + axis
        return [place if made[0].shape[place] == source.shape[axis] else LOST]
    if func is torch.einsum:
        return [_by_letter(args, axis_of, made[0])]
    return [_elsewhere(args, kwargs, source, axis, rows, each) for each in made]


def raises(func: Any, ndim: int, made: Any) -> bool:
    """Whether a function spread data of ``ndim`` axes over more of them: (rows, width) + (time, 1, width)."""
    return isinstance(made, Tensor) and made.ndim > ndim and (func in ALIGNED or func in SPREADING)


def axis_written(index: Any, value: Tensor, axis: int, whole: Tensor) -> int | None:
    """The rows' axis of a tensor, if ``whole[index] = value`` writes data there whose rows are on ``axis``."""
    if any(isinstance(part, Tensor | list) for part in (index if isinstance(index, tuple) else (index,))):
        return None
    for place, length in enumerate(whole.shape):
        if length == value.shape[axis]:
            found = _probe(whole, place)[index]
            aligned = found.ndim - value.ndim + axis
            if 0 <= aligned < found.ndim and found.stride(aligned) and found.shape[aligned] == length:
                return place
    return None


def _probe(like: Tensor, axis: int) -> Tensor:
    """A tensor of the same shape that has a stride along one axis alone; it takes no memory to speak of."""
    length = like.shape[axis]
    return torch.empty(length).view(*[1] * axis, length, *[1] * (like.ndim - axis - 1)).expand(like.shape)


def _leading(
    args: Any, kwargs: dict[str, Any], axis_of: Callable[[Tensor], int | None]
) -> tuple[Tensor | None, int | None]:
    """The argument of most axes whose rows are known, and where they are.

    Numbers go before indices: a table of positions that torch.jit made may be as long as the batch by accident.
    """
    known = [(t, axis_of(t)) for t in _tensors((args, kwargs))]
    known = [(t, axis) for t, axis in known if axis is not None]
    return (
        max(known, key=lambda pair: (pair[0].is_floating_point(), pair[0].ndim, pair[1]))
        if known
        else (None, None)
    )


def _tensors(item: Any) -> list[Tensor]:
    if isinstance(item, Tensor):
        return [item]
    if isinstance(item, dict):
        item = list(item.values())
    return [t for each in item for t in _tensors(each)] if isinstance(item, list | tuple) else []


def _stacked(args: Any, kwargs: dict[str, Any], axis_of: Callable[[Tensor], int | None]) -> int | None:
    items = kwargs.get("tensors", args[0] if args else ())
    found = {axis_of(t) for t in items} - {None}
    if len(found) != 1:
        return LOST if found else None
    (axis,), ndim = found, items[0].ndim + 1
    at = kwargs.get("dim", args[1] if len(args) > 1 else 0) % ndim
    return axis + 1 if axis is not None and at <= axis else axis


def _viewed(
    func: Any, args: Any, kwargs: dict[str, Any], source: Tensor, axis: int, rows: int, made: list[Tensor]
) -> list[int | None]:
    """Run the same view of a probe of the same shape that has a stride along the rows alone."""
    if any(isinstance(part, Tensor | list) for part in _index(func, args)):
        return [_elsewhere((), {}, source, axis, rows, each) for each in made]
    length, probe = source.shape[axis], _probe(source, axis)
    seen = func(probe, *args[1:], **{k: v for k, v in kwargs.items() if k != "input"})
    seen = [seen] if isinstance(seen, Tensor) else list(seen)
    found: list[int | None] = []
    for each in seen:
        places = [place for place, stride in enumerate(each.stride()) if stride and each.shape[place] > 1]
        whole = len(places) == 1 and each.shape[places[0]] == length
        found.append(places[0] if whole else LOST)
    return found


def _index(func: Any, args: Any) -> tuple:
    if func is not Tensor.__getitem__:
        return ()
    return args[1] if isinstance(args[1], tuple) else (args[1],)


def _reshaped(source: Tensor, axis: int, rows: int, made: Tensor) -> int:
    """The axis that has as many entries before it as the rows had, and a whole number of positions for each row."""
    before = source.shape[:axis].numel()
    places = (place for place in range(made.ndim) if made.shape[:place].numel() == before)
    return next((place for place in places if made.shape[place] % rows == 0), LOST)


def _by_letter(args: Any, axis_of: Callable[[Tensor], int | None], made: Tensor) -> int | None:
    """Follow the letter of the rows through an equation."""
    operands = args[1] if isinstance(args[1], list | tuple) else args[1:]
    left, arrow, answer = str(args[0]).replace(" ", "").partition("->")
    if not arrow or "." in left:
        return 0 if "." in left and made.ndim else LOST
    letters = {
        term[axis]
        for term, t in zip(left.split(","), operands, strict=True)
        if (axis := axis_of(t)) is not None
    }
    return answer.index(letters.pop()) if len(letters) == 1 and letters <= set(answer) else LOST


def _elsewhere(
    args: Any, kwargs: dict[str, Any], source: Tensor, axis: int, rows: int, made: Tensor
) -> int | None:
    """Any other function: it reduces axes that it names, or leaves them where they are."""
    if made.ndim == source.ndim and made.shape[axis] == source.shape[axis]:
        return axis
    named = kwargs.get("dim", args[1] if len(args) > 1 else None)
    dims = (named,) if isinstance(named, int) else named
    if isinstance(dims, list | tuple) and all(isinstance(d, int) for d in dims):
        gone = {d % source.ndim for d in dims}
        if made.ndim == source.ndim - len(gone):
            return LOST if axis in gone else axis - sum(d < axis for d in gone)
    return None if made.ndim == 0 or len(made) == rows else LOST


def in_front(again: Callable[..., Any], func: Any, args: Any, kwargs: dict[str, Any], axis: int) -> Tensor:
    """Run a function with the rows of its arguments in front, and put them back; ``again`` runs a function on the tape.

    Arguments that are broadcast against each other turn together, unless they have the last axes only.
    """
    ndim = max(t.ndim for t in _tensors(args))

    def turned(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim < ndim - axis:
            return value
        if value.ndim < ndim:
            value = again(Tensor.reshape, value, (*[1] * (ndim - value.ndim), *value.shape))
        return again(Tensor.movedim, value, axis, 0)

    first, *rest = args
    args = [turned(value) for value in args] if func in ALIGNED else [turned(first), *rest]
    return again(Tensor.movedim, again(func, *args, **kwargs), 0, axis)
