"""One unit moves the sum by at most the clip norm, however ordinary code reads the data; and that code trains."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from pipelines import ODD, PIPELINES, SIZE, Pipeline

import saltflat as sf
from saltflat.clipping import Flat
from saltflat.core import contribution, sampling
from saltflat.core.contribution import Private, chunks_of
from saltflat.core.mechanism import clipped_sum
from saltflat.core.rng import fenced_draws
from saltflat.core.train import trainable
from saltflat.errors import ModelError
from saltflat.tree import Tree, norm, sub

CLIP = 0.05
EVERYBODY = list(range(SIZE))
honest = pytest.mark.parametrize(
    "pipeline", [each for each in PIPELINES if not each.refused], ids=lambda each: each.name
)
by_name = pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda each: each.name)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the draws of a record follow its number, so that sums over neighbouring data can be compared."""
    waiting: list[int] = []

    def next_key() -> int:
        return waiting.pop(0) if waiting else 1

    for module in (sampling, contribution):
        monkeypatch.setattr(module, "fresh_key", next_key)
    return waiting


def private_of(pipeline: Pipeline, numbers: list[int], model: torch.nn.Module, **more: Any) -> Private:
    data = sf.data.DatasetUnits.of(pipeline.dataset(numbers), pipeline.collate, **more)
    return Private.of(sf.per_example(model, pipeline.loss), data)


def seed_everything() -> None:
    torch.manual_seed(42)
    np.random.seed(42)  # noqa: NPY002
    random.seed(42)


def sum_over(
    pipeline: Pipeline, numbers: list[int], model: torch.nn.Module, keys: list[int], most: int
) -> Tree:
    seed_everything()  # as every script does
    private, params = private_of(pipeline, numbers, model), trainable(model)
    # A generator may be made when the first unit is read, which is then read twice: before keys are dealt out.
    list(private.micro_batches([np.arange(1)], 1))
    seed_everything()
    keys[:] = [1000 + number for number in numbers]
    chunks = chunks_of(private, np.arange(len(numbers)), most)
    return clipped_sum(chunks([params], [1.0]), Flat(CLIP), params).total


@by_name
@pytest.mark.parametrize("most", [3, SIZE])
def test_one_unit_moves_the_sum_by_at_most_the_clip_norm(
    pipeline: Pipeline, most: int, keys: list[int]
) -> None:
    torch.manual_seed(0)
    model = pipeline.model()
    whole = sum_over(pipeline, EVERYBODY, model, keys, most)
    for left in (ODD, 0, 3, SIZE - 1):
        others = [number for number in EVERYBODY if number != left]
        moved = float(norm(sub(whole, sum_over(pipeline, others, model, keys, most))))
        assert moved <= CLIP * (1 + 1e-6), left


@by_name
def test_the_units_of_an_honest_pipeline_contribute(pipeline: Pipeline) -> None:
    torch.manual_seed(0)
    model = pipeline.model()
    private, params = private_of(pipeline, EVERYBODY, model), trainable(model)
    chunks = chunks_of(private, np.arange(SIZE), SIZE)([params], [1.0])
    norms = torch.cat([chunk.norms() for chunk in chunks])
    masked = pipeline.name == "masked words"  # a text in which no word is hidden has the gradient 0
    assert int(norms.isfinite().sum()) >= pipeline.counts - (masked and SIZE)
    assert int((norms > 0).sum()) >= (1 if masked else pipeline.counts)


@pytest.mark.parametrize("pipeline", [each for each in PIPELINES if each.refused], ids=lambda each: each.name)
def test_a_mistake_is_refused_with_the_reason(pipeline: Pipeline) -> None:
    data = sf.data.DatasetUnits.of(pipeline.dataset(EVERYBODY), pipeline.collate)
    with pytest.raises(ModelError, match=pipeline.refused):
        sf.fit(pipeline.model(), pipeline.loss, data, epsilon=8, batch_size=7, epochs=2)


@honest
def test_fit_trains(pipeline: Pipeline) -> None:
    model = pipeline.model()
    before = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    data = sf.data.DatasetUnits.of(pipeline.dataset(EVERYBODY), pipeline.collate)
    fitted = sf.fit(model, pipeline.loss, data, epsilon=8, batch_size=7, epochs=2)
    assert fitted.statement.epsilon <= 8
    assert any(not torch.equal(before[name], leaf) for name, leaf in model.state_dict().items())


@honest
def test_a_loop_of_ones_own_trains(pipeline: Pipeline) -> None:
    model = pipeline.model()
    data = sf.data.DatasetUnits.of(pipeline.dataset(EVERYBODY), pipeline.collate)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    private = sf.make_private(model, pipeline.loss, data, optimizer=sgd, epsilon=8, batch_size=7, epochs=2)
    for batch in private:
        private.step(batch)
    assert private.finished


def test_seeded_streams_go_on_as_if_nothing_had_been_read() -> None:
    def drawn(read: bool) -> list[float]:
        seed_everything()
        if read:
            pipeline = next(each for each in PIPELINES if each.name == "draws in a collate")
            private = private_of(pipeline, EVERYBODY, pipeline.model())
            seed_everything()
            assert len(list(private.micro_batches([np.arange(SIZE)], SIZE))) == 1
        return [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002

    assert drawn(read=True) == drawn(read=False)


def test_a_unit_draws_anew_each_time_it_is_read() -> None:
    pipeline = PIPELINES[0]
    private = private_of(pipeline, EVERYBODY, pipeline.model())

    def read() -> torch.Tensor:
        seed_everything()
        (batch,) = private.micro_batches([np.arange(2)], 2)
        return batch[0]

    assert not torch.equal(read(), read())


@pytest.fixture
def workers() -> Iterator[list[Any]]:
    opened: list[Any] = []
    yield opened
    for units in opened:
        units.close()


@pytest.mark.parametrize("name", ["numpy draws in an item", "a generator that is made later"])
def test_worker_processes_draw_for_each_unit_anew(name: str, workers: list[Any]) -> None:
    """Workers that are forked from a seeded process share its streams: their draws must not be alike."""
    seed_everything()
    pipeline = next(each for each in PIPELINES if each.name == name)
    units = sf.data.DatasetUnits.of(pipeline.dataset([5] * 8), pipeline.collate, workers=2)
    workers.append(units)
    rows = torch.cat([unit[0] for unit in units.read_each(np.arange(8)) if unit is not None])
    assert len(torch.unique(rows, dim=0)) == 8


@pytest.mark.parametrize(
    "name", ["a transform of the module that replays", "characters", "a data set with set_transform"]
)
def test_it_trains_with_workers(name: str, workers: list[Any]) -> None:
    pipeline = next(each for each in PIPELINES if each.name == name)
    units = sf.data.DatasetUnits.of(pipeline.dataset(EVERYBODY), pipeline.collate, workers=2)
    workers.append(units)
    assert len([unit for unit in units.read_each(np.arange(SIZE)) if unit is not None]) == SIZE
    assert sf.fit(pipeline.model(), pipeline.loss, units, epsilon=8, batch_size=7, epochs=1).epsilon <= 8


def test_a_generator_that_is_made_at_the_first_read_is_fenced() -> None:
    """With rows that are made up, no check reads a unit before training does."""
    pipeline = next(each for each in PIPELINES if each.name == "a generator that is made later")

    def read() -> torch.Tensor:
        (batch,) = private_of(pipeline, EVERYBODY, pipeline.model()).micro_batches([np.arange(2)], 2)
        return batch[0]

    assert not torch.equal(read(), read())


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("inside", range(3))
def test_numpys_normal_numbers_go_on(before: int, inside: int) -> None:
    """They are made in pairs, and the second of a pair waits for the next call."""

    def drawn(fenced: bool) -> list[float]:
        seed_everything()
        np.random.normal(size=before)  # noqa: NPY002
        if fenced:
            with fenced_draws() as start_from:
                start_from(7)
                np.random.normal(size=inside)  # noqa: NPY002
        return [*np.random.normal(size=3), *np.random.rand(2)]  # noqa: NPY002

    assert drawn(fenced=True) == drawn(fenced=False)


def test_variable_length_text_is_read_in_batches_of_equal_length() -> None:
    pipeline = next(each for each in PIPELINES if each.name == "padding to the longest text")
    private = private_of(pipeline, EVERYBODY, pipeline.model())
    batches = list(private.micro_batches([np.arange(7), np.arange(7, SIZE)], 7))
    assert all(bool(batch["attention_mask"].all()) for batch in batches)  # nothing is padded
    assert sum(len(batch["labels"]) for batch in batches) == SIZE
    assert len(batches) == len({batch["labels"].shape + batch["input_ids"].shape[1:] for batch in batches})


def test_max_tokens_bounds_a_micro_batch() -> None:
    pipeline = next(each for each in PIPELINES if each.name == "padding to the longest text")
    contribution_of, numbers = sf.per_example(pipeline.model(), pipeline.loss), EVERYBODY
    data = sf.data.DatasetUnits.of(pipeline.dataset(numbers), pipeline.collate)
    private = Private.of(contribution_of, data, max_tokens=6)
    sizes = [batch["input_ids"].numel() for batch in private.micro_batches([np.arange(SIZE)], SIZE)]
    assert max(sizes) == 12  # the one long text, alone
    assert sorted(sizes)[-2] <= 6
    rows = sf.data.TensorUnits((torch.zeros(10, 3), torch.zeros(10, dtype=torch.long)))
    fixed = Private.of(sf.per_example(torch.nn.Linear(3, 2), pipeline.loss), rows, max_tokens=6)
    assert [len(batch[0]) for batch in fixed.micro_batches([np.arange(10)], 10)] == [2, 2, 2, 2, 2]


def test_ints_become_floats_only_where_the_loss_needs_it() -> None:
    contribution_of = sf.per_example(torch.nn.Linear(2, 3), lambda p, b: sf.supervised(_criterion)(p, b))
    assert contribution_of.integers_to_cast((torch.zeros(1, 2).long(), torch.zeros(1).long())) == (0,)
    assert contribution_of.integers_to_cast((torch.zeros(1, 2), torch.zeros(1).long())) == ()


_criterion = torch.nn.CrossEntropyLoss(reduction="none")
