"""A state comes back as it was, from tensors and JSON alone; what cannot is refused in one line."""

from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saltflat.core.state import pack, unpack
from saltflat.errors import DataError, SettingError
from saltflat.optimizers import SGD, Adam, Torch

PARAMS = {"w": torch.ones(3), "b": torch.zeros(2, dtype=torch.float64)}


def again(owner: Any, state: Any) -> Any:
    leaves, shape = pack(owner, state)
    return unpack(owner, leaves, json.loads(json.dumps(shape, allow_nan=False)), PARAMS)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.integers(0, 4).map(lambda n: torch.arange(n, dtype=torch.float64)),
    st.just(torch.zeros(2, 0, dtype=torch.int64)),
    st.just(torch.tensor(True)),
)
key = st.one_of(st.text(), st.integers(), st.tuples(st.integers(), st.text()))


@given(
    st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(key, inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_plain_values_come_back(state: Any) -> None:
    assert same(again(None, state), state)


@dataclass(frozen=True)
class Inner:
    count: int
    tree: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Outer:
    inner: Inner
    parts: tuple[Inner, ...]


class Owner:
    def init(self, params: Any) -> Outer:
        inner = Inner(0, {})
        return Outer(inner, (inner, inner))


def test_dataclasses_come_back_as_the_owners_own() -> None:
    state = Outer(Inner(3, {"w": torch.ones(2)}), (Inner(1, {}), Inner(2, {"x": torch.zeros(1)})))
    found = again(Owner(), state)
    assert isinstance(found, Outer)
    assert isinstance(found.parts[1], Inner)
    assert found.inner.count == 3
    assert torch.equal(found.parts[1].tree["x"], torch.zeros(1))


@pytest.mark.parametrize(
    "shape",
    [
        {"record": "Other", "fields": []},
        {"record": "Outer", "fields": [["__class__", 3]]},
        {"tensor": "7", "cpu": True},
        {"unknown": 1},
        {"dict": [[{"list": []}, 1]]},
        {"float": "x"},
        {"array": "O9", "values": []},
    ],
)
def test_what_does_not_fit_is_one_typed_line(shape: Any) -> None:
    with pytest.raises(DataError, match="Owner"):
        unpack(Owner(), {}, shape, PARAMS)


@pytest.mark.parametrize(
    "state", [object(), {"x": {1, 2}}, lambda: 0, namedtuple("Pair", "a b")(1, 2), torch.Generator()]
)
def test_what_cannot_be_kept_is_refused(state: Any) -> None:
    with pytest.raises(SettingError, match="does not fit into a checkpoint"):
        pack(None, state)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_a_sampler_comes_back(kind: Any) -> None:
    old, new = np.random.Generator(kind(1)), np.random.Generator(kind(2))
    old.random(7)
    new.bit_generator.state = again(None, old.bit_generator.state)
    assert np.array_equal(old.random(5), new.random(5))


halve = lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3], 0.5)
decay = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(lr=0.1),
        SGD(lr=0.1, momentum=0.9),
        Adam(lr=0.1),
        Torch(lambda p: torch.optim.AdamW(p, 0.1)),
        Torch(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), halve),
        Torch(
            lambda p: torch.optim.Adagrad(p, 0.1),
            lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
        ),
    ],
)
def test_optimizers_go_on_as_if_nothing_had_been(optimizer: Any) -> None:
    direction = {name: torch.full_like(p, 0.3) for name, p in PARAMS.items()}
    params, state = PARAMS, optimizer.init(PARAMS)
    for _ in range(2):
        params, state = optimizer.step(params, direction, state)
    leaves, shape = pack(optimizer, state)
    leaves = {name: tensor.clone() for name, tensor in leaves.items()}
    other, restored = params, unpack(optimizer, leaves, json.loads(json.dumps(shape)), params)
    for _ in range(3):
        params, state = optimizer.step(params, direction, state)
        other, restored = optimizer.step(other, direction, restored)
    assert all(torch.equal(params[name], other[name]) for name in params)
