"""Data whose reading cannot be repeated is refused; row-wise data keeps its form when one row cannot be read."""

from __future__ import annotations

import itertools
import random
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from steps import CRITERION, network
from torch import Tensor

import saltflat as sf
from saltflat.core.contribution import Private, each_view
from saltflat.core.rng import find_generators
from saltflat.core.train import trainable
from saltflat.errors import DataError

COUNT = 40


class Items(torch.utils.data.Dataset):
    """Forty items that a function reads."""

    def __init__(self, read: Any) -> None:
        self.read = read

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        x = torch.randn(4, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
        return x + self.read(), place % 3


class Transform:
    """A transform that holds a generator, as a global variable of a script."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self) -> float:
        return float(self.rng.normal())


TRANSFORM = Transform()
GENERATORS = {"view": np.random.default_rng(1)}
SETTINGS = types.ModuleType("settings_of_a_script")
SETTINGS.RNG = random.Random(3)


class Shared:
    rng = np.random.RandomState(4)


def from_global_transform() -> float:
    return TRANSFORM()


def from_global_dictionary() -> float:
    return float(GENERATORS["view"].normal())


def from_module() -> float:
    return SETTINGS.RNG.gauss(0, 1)


def from_class() -> float:
    return float(Shared.rng.normal())


def from_comprehension() -> float:
    return sum(TRANSFORM.rng.normal() for _ in range(3))


REACHED = [from_global_transform, from_global_dictionary, from_module, from_class, from_comprehension]


@pytest.mark.parametrize("read", REACHED, ids=lambda read: read.__name__)
def test_generators_of_global_variables_are_found(read: Any) -> None:
    assert len(find_generators(Items(read))) == 1


def test_generators_in_a_closure_of_the_librarys_own_are_found() -> None:
    """`each_view` is a function of saltflat that holds a user's augmentation."""
    held = np.random.default_rng(0)
    assert find_generators(each_view(lambda batch: batch + held.normal(), 2)) == [held]


@pytest.mark.parametrize("read", REACHED, ids=lambda read: read.__name__)
def test_data_that_draws_from_global_generators_trains(read: Any) -> None:
    fitted = sf.fit(network(), CRITERION, Items(read), epsilon=8, batch_size=10, epochs=1)
    assert fitted.statement.epsilon <= 8


class Hidden:
    """A stream that no search finds: a counter inside a module that is imported by name at every call."""

    name = "saltflat_tests_hidden_stream"


def from_hidden() -> float:
    return next(sys.modules[Hidden.name].stream) / 7


@pytest.fixture
def hidden() -> Any:
    module = types.ModuleType(Hidden.name)
    module.stream = itertools.count()
    sys.modules[Hidden.name] = module
    yield module
    del sys.modules[Hidden.name]


def longer(items: list) -> tuple[Tensor, Tensor]:
    """Texts of different lengths, which do not fit into one batch."""
    rows = [x.repeat(1 + y) for x, y in items]
    return torch.stack(rows), torch.tensor([y for _, y in items])


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize("collate", [None, longer])
def test_a_stream_that_is_not_found_is_refused(collate: Any) -> None:
    data = sf.data.DatasetUnits.of(Items(from_hidden), *([] if collate is None else [collate]))
    model = network()
    with pytest.raises(DataError, match="from a generator that saltflat cannot reach"):
        Private.of(sf.per_example(model, sf.supervised(CRITERION)), data).check(trainable(model))


class Rows:
    """Row-wise units of float64, of which one row cannot be read."""

    is_row_wise = True
    count = 6

    def __init__(self, broken: int | None) -> None:
        self.broken = broken

    def take(self, indices: Any) -> tuple[Tensor, Tensor]:
        if self.broken in indices:
            raise OSError("cannot be read")
        x = torch.from_numpy(np.asarray(indices)).double().unsqueeze(1) / 3
        return x, torch.zeros(len(x), dtype=torch.int32)


def test_a_row_is_the_same_beside_one_that_cannot_be_read() -> None:
    """The types of a row may not depend on whether its batch could be read."""

    def read(broken: int | None) -> dict[float, Any]:
        private = Private.of(sf.per_example(torch.nn.Linear(1, 2), sf.supervised(CRITERION)), Rows(broken))
        batches = private.micro_batches([np.arange(6)], 6)
        return {float(x): (x.dtype, y.dtype) for batch in batches for x, y in zip(*batch, strict=True)}

    whole = read(None)
    assert read(2) == {x: types for x, types in whole.items() if x != pytest.approx(2 / 3)}
