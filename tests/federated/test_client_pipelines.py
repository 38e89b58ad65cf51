"""Clients whose data is read by ordinary code: one client that leaves or changes moves the sum by at most C."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "adversary"))
from pipelines import PIPELINES, SIZE, Pipeline

import saltflat as sf
from saltflat.clipping import Flat
from saltflat.core.contribution import Private, chunks_of
from saltflat.core.mechanism import clipped_sum
from saltflat.core.train import trainable
from saltflat.federated import Clients, Local, clients, per_client
from saltflat.tree import Tree, norm, sub

CLIP = 0.01
PARTS = ([0, 1, 2], [3], [4, 9, 5, 6], [7, 8], [10, 11, 12, 13])  # number 9 is the record that differs
FEW = ("draws in a collate", "padding to the longest text", "one row of ints")  # the others are slow together
by_name = pytest.mark.parametrize(
    "pipeline",
    [
        pytest.param(each, id=each.name, marks=() if each.name in FEW else pytest.mark.slow)
        for each in PIPELINES
        if not each.refused
    ],
)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the draws of a client follow its number, so that sums over neighbouring data can be compared."""
    waiting: list[int] = []
    monkeypatch.setattr(clients, "fresh_key", lambda: waiting.pop(0))
    return waiting


def clients_of(pipeline: Pipeline, numbers: Sequence[int], replaced: int | None = None) -> Clients:
    """Some of the clients; of one that is replaced, other records stand in the places of its own."""
    records = [SIZE - 1 - k if replaced is not None and k in PARTS[replaced] else k for k in range(SIZE)]
    data = sf.data.DatasetUnits.of(pipeline.dataset(records), pipeline.collate)
    return Clients(data, [np.array(PARTS[number]) for number in numbers], list(numbers))


def sum_over(
    pipeline: Pipeline, model: torch.nn.Module, keys: list[int], numbers: Sequence[int], **changed: Any
) -> Tree:
    torch.manual_seed(42)
    np.random.seed(42)  # noqa: NPY002
    random.seed(42)
    contribution = per_client(model, pipeline.loss, local=Local(batch_size=4, epochs=2, lr=0.3, seed=0))
    private, params = Private.of(contribution, clients_of(pipeline, numbers, **changed)), trainable(model)
    keys[:] = [1]
    list(private.micro_batches([np.arange(1)], 1))  # a generator may be made at the first read
    keys[:] = [1000 + number for number in numbers]
    chunks = chunks_of(private, np.arange(len(numbers)), 2)
    return clipped_sum(chunks([params], [1.0]), Flat(CLIP), params).total


@by_name
def test_one_client_moves_the_sum_by_at_most_the_clip_norm(pipeline: Pipeline, keys: list[int]) -> None:
    torch.manual_seed(0)
    model, everybody = pipeline.model(), list(range(len(PARTS)))
    whole = sum_over(pipeline, model, keys, everybody)
    assert float(norm(whole)) > CLIP / 2
    for gone in (0, 2, 4):
        left = sum_over(pipeline, model, keys, [number for number in everybody if number != gone])
        assert float(norm(sub(whole, left))) <= CLIP * (1 + 1e-6), gone
        other = sum_over(pipeline, model, keys, everybody, replaced=gone)
        assert float(norm(sub(whole, other))) <= 2 * CLIP * (1 + 1e-6), gone


@by_name
def test_a_clients_rows_are_read_inside_the_fence(pipeline: Pipeline) -> None:
    def drawn(read: bool) -> list[float]:
        torch.manual_seed(42)
        np.random.seed(42)  # noqa: NPY002
        random.seed(42)
        if read:
            found = clients_of(pipeline, range(len(PARTS))).read_each(np.arange(len(PARTS)))
            assert all(client is not None for client in found)
        return [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002

    assert drawn(read=True) == drawn(read=False)


def test_a_client_draws_anew_in_each_round() -> None:
    own = clients_of(PIPELINES[0], range(len(PARTS)))
    first, second = own.read_each(np.arange(1)), own.read_each(np.arange(1))
    assert first[0] is not None
    assert second[0] is not None
    assert not torch.equal(first[0].rows[0], second[0].rows[0])


@pytest.mark.parametrize("name", ["numpy draws in an item", "padding to the longest text"])
def test_rounds_train(name: str) -> None:
    pipeline = next(each for each in PIPELINES if each.name == name)
    phase = sf.Phase(
        method=sf.methods.DPSGD(),
        steps=2,
        noise_multiplier=1.0,
        clip_norm=CLIP,
        optimizer=sf.optimizers.SGD(lr=1.0),
    )
    model = pipeline.model()
    contribution = per_client(model, pipeline.loss, local=Local(batch_size=4, epochs=1))
    run = sf.train(
        sf.Plan(phases=(phase,), rate=0.5, size=5), contribution, clients_of(pipeline, range(len(PARTS)))
    )
    assert run is not None
