"""The state of a method or an optimizer as a tree of tensors and plain JSON, and back. No pickle, no code.

A state is made of tensors, numbers, texts and None, and of tuples, lists, dictionaries and dataclasses of
them. What holds more than that (`saltflat.Torch`, which wraps an object) says itself how it is packed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from saltflat.errors import DataError, SettingError
from saltflat.tree import Tree, cut, has_shards


@runtime_checkable
class Packing(Protocol):
    """A method or optimizer whose state is not made of plain values: it turns it into such, and back."""

    def pack(self, state: Any) -> Any: ...

    def unpack(self, packed: Any, params: Tree) -> Any: ...


def pack(owner: Any, state: Any) -> tuple[Tree, Any]:
    """The tensors of a state, by number, and everything else as JSON; ``owner`` made the state.

    >>> leaves, shape = pack(None, (3, {"w": torch.ones(2)}))
    >>> leaves, shape
    ({'0': tensor([1., 1.])}, {'tuple': [3, {'dict': [['w', {'tensor': '0', 'cpu': True}]]}]})
    """
    leaves: Tree = {}
    return leaves, _encode(owner.pack(state) if isinstance(owner, Packing) else state, leaves)


def unpack(owner: Any, leaves: Tree, shape: Any, params: Tree) -> Any:
    """The state that `pack` took apart; DataError if ``owner`` cannot have made it.

    *Guarantee*: no name found in a file is looked up: a dataclass is taken from the place in a new state
    where the owner itself puts one.
    """
    device = next(iter(params.values())).device if params else torch.device("cpu")
    like = None if owner is None or isinstance(owner, Packing) else owner.init(params)
    try:
        value = _decode(shape, leaves, like, device)
        if isinstance(owner, Packing):
            return owner.unpack(value, params)
        return cut_alike(value, params) if has_shards(params) else value
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(
            f"the state in the checkpoint is not one of {type(owner).__name__} ({error}); give the plan that "
            "the checkpoint was made with, or another folder"
        ) from None


def cut_alike(value: Any, params: Tree) -> Any:
    """A state with whole tensors -> this process's parts of those that have a sharded parameter's name and shape."""
    if isinstance(value, dict):
        return {
            key: cut(item, params[key])
            if isinstance(item, Tensor) and key in params and item.shape == params[key].shape
            else cut_alike(item, params)
            for key, item in value.items()
        }
    if type(value) in (tuple, list):
        return type(value)(cut_alike(item, params) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = object.__new__(type(value))
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, cut_alike(getattr(value, field.name), params))
        return made
    return value


def _encode(value: Any, leaves: Tree) -> Any:
    if isinstance(value, Tensor):
        name = str(len(leaves))
        leaves[name] = value
        return {"tensor": name, "cpu": value.device.type == "cpu"}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, np.generic):
        return _encode(value.item(), leaves)
    if isinstance(value, np.ndarray):
        return {"array": value.dtype.str, "values": value.tolist()}
    return _encode_many(value, leaves)


def _encode_many(value: Any, leaves: Tree) -> Any:
    if isinstance(value, dict):
        return {"dict": [[_encode(key, leaves), _encode(item, leaves)] for key, item in value.items()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        fields = [[name, _encode(getattr(value, name), leaves)] for name in names]
        return {"record": type(value).__name__, "fields": fields}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_encode(item, leaves) for item in value]}
    raise SettingError(
        f"a {type(value).__name__} does not fit into a checkpoint: a state is made of tensors, numbers, texts, "
        "None, and tuples, lists, dictionaries and dataclasses of them; or its owner has pack and unpack"
    )


def _decode(shape: Any, leaves: Tree, like: Any, device: torch.device) -> Any:
    if not isinstance(shape, dict):
        return shape
    if "tensor" in shape:
        leaf = leaves[shape["tensor"]]
        return leaf if shape["cpu"] else leaf.to(device)
    if "float" in shape:
        return float(shape["float"])
    if "array" in shape:
        return np.array(shape["values"], dtype=np.dtype(shape["array"]))
    if "record" in shape:
        return _record(shape["record"], shape["fields"], leaves, like, device)
    if "dict" in shape and dataclasses.is_dataclass(like):  # as checkpoints of version 0.1 have it
        return _record(type(like).__name__, shape["dict"], leaves, like, device)
    if "dict" in shape:
        known = like if isinstance(like, dict) else {}
        pairs = [(_decode(key, leaves, None, device), item) for key, item in shape["dict"]]
        return {key: _decode(item, leaves, known.get(key), device) for key, item in pairs}
    kind = tuple if "tuple" in shape else list
    row = like if isinstance(like, kind) else ()
    items = enumerate(shape[kind.__name__])
    return kind(_decode(item, leaves, row[i] if i < len(row) else None, device) for i, item in items)


def _record(kind: str, fields: Any, leaves: Tree, like: Any, device: torch.device) -> Any:
    """A dataclass like the one at this place of a new state, with the fields of the old."""
    if not dataclasses.is_dataclass(like) or type(like).__name__ != kind:
        raise TypeError(f"there is no {kind} at this place of a new one")
    made = object.__new__(type(like))  # as it was left: nothing is computed or checked anew
    for name, item in fields:
        if name not in {field.name for field in dataclasses.fields(like)}:
            raise TypeError(f"{kind} has no field {name}")
        object.__setattr__(made, name, _decode(item, leaves, getattr(like, name, None), device))
    return made
