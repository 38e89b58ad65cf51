"""One clear line for each mistake, before anything private is read."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steps import CRITERION, beside, examples, network, phase, plan
from torch import nn
from torch.nn import functional as F

import saltflat as sf
from saltflat.data import Examples, Split, npz
from saltflat.errors import DataError, ModelError, PrivacyError, SaltflatError, SettingError

SOUND: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-3, "batch_size": 6, "epochs": 1, "clip_norm": 1.0}


class Guarded(sf.data.TensorUnits):
    """Data that must not be read."""

    def take(self, indices: Any) -> Any:
        raise AssertionError("an example was read")


def by_call(model: Any, loss: Any, data: Any, **settings: Any) -> None:
    sf.fit(model, loss, data, **SOUND | settings)


def by_loop(model: Any, loss: Any, data: Any, **settings: Any) -> None:
    own = model if isinstance(model, nn.Module) else network()
    optimizer = torch.optim.SGD([p for p in own.parameters() if p.requires_grad] or [torch.zeros(1)], lr=1.0)
    sf.make_private(model, loss, data, optimizer=optimizer, **SOUND | settings)


both = pytest.mark.parametrize("front", [by_call, by_loop])


def refused(kind: type[SaltflatError], says: str, call: Any, *args: Any, **settings: Any) -> None:
    with pytest.raises(kind, match=says) as caught:
        call(*args, **settings)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@both
@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("epsilon", float("nan"), "epsilon is nan"),
        ("epsilon", -1.0, "epsilon is -1"),
        ("epsilon", 0.0, "epsilon must be positive"),
        ("epsilon", float("inf"), "epsilon is inf"),
        ("epsilon", "3", "epsilon is '3': it must be a number"),
        ("epsilon", None, "epsilon is missing"),
        ("delta", float("nan"), "delta is nan"),
        ("delta", 0.0, "delta is 0"),
        ("delta", 1.0, "delta is 1"),
        ("clip_norm", 0.0, "clip_norm must be positive"),
        ("clip_norm", float("nan"), "clip_norm must be positive"),
        ("clip_norm", "0.1", "clip_norm is a number or a clipping rule"),
        ("clip_norm", float("inf"), "finite clip_norm"),
        ("batch_size", 13, "batch_size 13 is larger than the data; take half"),
        ("noise_multiplier", 1.0, "give epsilon or noise_multiplier, not both"),
        ("private", "no", "private is True, or False"),
        ("workers", 2, "workers read the items of a dataset"),
        ("workers", -1, "workers is a number of processes"),
        ("batch_size", 0, "batch_size"),
        ("batch_size", 2.5, "batch_size"),
        ("epochs", 0, "epochs"),
        ("epochs", float("nan"), "epochs"),
        ("method", "sat", "method is a value with init and step, such as DPSGD.*got 'sat'"),
        ("method", sf.methods.SAT, "method is a value.*got <class"),
        ("method", object(), "method is a value.*got a object"),
        ("method", None, "method is a value.*got None"),
        ("plan", "sai", "plan is a Plan"),
        ("views", 0, "at least one view"),
    ],
)
def test_settings(front, setting: str, value: object, says: str) -> None:
    refused(SettingError, says, front, network(), CRITERION, Guarded(examples()), **{setting: value})


@both
def test_a_plan_and_settings_of_its_own(front) -> None:
    refused(
        SettingError,
        "give it, or batch_size, epochs, clip_norm, not both",
        front,
        network(),
        CRITERION,
        examples(),
        plan=plan(phase(steps=1)),
    )


def test_a_plan_and_an_optimizer() -> None:
    few = plan(phase(steps=1))
    go = lambda: sf.fit(
        network(), CRITERION, examples(), plan=few, delta=1e-3, optimizer=sf.optimizers.SGD(lr=1.0)
    )
    refused(SettingError, "give it, or optimizer, not both", go)


@both
def test_a_delta_that_would_permit_publishing_an_example(front) -> None:
    refused(
        PrivacyError,
        "above 1/n for the n examples",
        front,
        network(),
        CRITERION,
        Guarded(examples()),
        delta=0.5,
    )


@pytest.mark.parametrize("optimizer", ["sgd", None, sf.optimizers.SGD, torch.optim.SGD])
def test_update_rules(optimizer: object) -> None:
    refused(
        SettingError, "optimizer is a value", by_call, network(), CRITERION, examples(), optimizer=optimizer
    )


def test_a_built_optimizer_belongs_to_the_other_tier() -> None:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    refused(SettingError, "got a SGD", by_call, model, CRITERION, examples(), optimizer=sgd)


@both
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "layer '1' is a BatchNorm1d"),
        (lambda x: x, "the model is an nn.Module; got a function"),
        (nn.Linear(4, 3).requires_grad_(False), "unfreeze at least one"),
        (nn.Flatten(), "no parameter"),
    ],
)
def test_models(front, model: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        front(model, CRITERION, Guarded(examples()))
    assert "\n" not in str(caught.value)


@both
@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (nn.CrossEntropyLoss(), r'averages.*pass CrossEntropyLoss\(reduction="none"\)'),
        (nn.MSELoss(reduction="sum"), r'sums.*pass MSELoss\(reduction="none"\)'),
        (F.cross_entropy, "cross_entropy is a criterion"),
        (F.mse_loss, "mse_loss is a criterion"),
        (partial(F.cross_entropy, reduction="none"), "supervised"),
        ("cross entropy", "the loss is a criterion .*got 'cross entropy'"),
        (None, "got None"),
    ],
)
def test_losses(front, loss: Any, says: str) -> None:
    refused(SettingError, says, front, network(), loss, Guarded(examples()))


@both
def test_a_loss_that_averages_on_its_own(front) -> None:
    average = lambda predict, batch: F.cross_entropy(predict(batch[0]), batch[1])
    refused(ModelError, "one loss per example", front, network(), average, examples())


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(())


@both
@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("digits", "got 'digits'"),
        (None, "got None"),
        (Stream(), "map-style.*got a Stream"),
        (torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*examples())), "give its dataset"),
        (list(examples()), "put them in a tuple"),
        ([t.numpy() for t in examples()], "put them in a tuple"),
        (np.array(["a", "b"]), "no array of numbers"),
        ((np.zeros((4, 2)), np.array([None] * 4)), "array of object is no array of numbers"),
        ((np.zeros((4, 2)), [0, 1, 0, 1]), "got a tuple: give tensors or arrays of numpy"),
        ({}, "got a dict"),
        ((torch.zeros(4, 4), torch.zeros(5)), "one length.*got 2 different lengths"),
        ((torch.zeros(4, 4), torch.tensor(1)), "one length.*got 2 different lengths"),
        ((torch.zeros(0, 4), torch.zeros(0)), "no example"),
        (Split(Examples(*examples()), Examples(*examples()), 3), "give its .train"),
    ],
)
def test_data(front, data: Any, says: str) -> None:
    refused(DataError, says, front, network(), CRITERION, data)


def test_rows_that_are_no_tensors() -> None:
    words = [{"x": row, "text": "words"} for row in examples()[0]]
    loss = lambda predict, batch: predict(batch["x"]).sum(1)
    refused(ModelError, "made of tensors.*got str", by_call, network(), loss, words)


@both
def test_a_loss_of_outputs_and_targets(front) -> None:
    criterion = lambda out, y: F.cross_entropy(out, y, reduction="none")
    refused(
        ModelError,
        r"takes \(outputs, targets\): pass saltflat.supervised",
        front,
        network(),
        criterion,
        examples(),
    )
    front(network(), sf.supervised(criterion), examples())


@both
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            dict(zip(("x", "label"), examples(), strict=True)),
            "gives dictionaries with 'x', 'label': pass a function",
        ),
        (examples()[0], "gives one tensor: pass a function"),
        ((examples()[0],), "gives tuples of one item"),
    ],
)
def test_a_criterion_without_pairs(front, data: Any, says: str) -> None:
    refused(ModelError, says, front, network(), CRITERION, data)


class Columns:
    """As Hugging Face has them: rows as dictionaries of Python lists, until another format is asked for."""

    def __init__(self, kind: str | None = None) -> None:
        self.format = {"type": kind, "columns": ["x", "y"]}

    def with_format(self, kind: str) -> Columns:
        return Columns(kind)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, place: int) -> dict[str, Any]:
        x, y = (t[place] for t in examples())
        return {"x": x, "y": y} if self.format["type"] == "torch" else {"x": x.tolist(), "y": int(y)}


@both
def test_columns_of_lists(front) -> None:
    loss = lambda predict, batch: CRITERION(predict(batch["x"]), batch["y"])
    refused(DataError, r'data.with_format\("torch"\)', front, network(), loss, Columns())
    front(network(), loss, Columns().with_format("torch"))


@both
def test_items_of_unequal_length(front) -> None:
    items = [(torch.ones(3 + place % 2, 4, dtype=torch.float64), place % 3) for place in range(12)]
    loss = lambda predict, batch: CRITERION(predict(batch[0]).mean(1), batch[1])
    front(network(), loss, items)  # each micro-batch has items of one length


@both
def test_a_loss_that_draws_from_a_generator_of_its_own(front) -> None:
    noise = np.random.default_rng(0)
    front(
        network(), lambda predict, batch: CRITERION(predict(batch[0]) * noise.random(), batch[1]), examples()
    )
    assert (
        noise.random() == np.random.default_rng(0).random()
    )  # the generator continues as if nothing was drawn


@both
def test_a_batch_on_another_axis(front) -> None:
    model, x = nn.LSTM(4, 3).double(), torch.randn(12, 5, 4, dtype=torch.float64)
    loss = lambda predict, batch: CRITERION(predict(batch[0])[0].mean(1), batch[1])
    with pytest.raises(ModelError, match=r"takes its axis 1 for the batch.*batch_first=True") as caught:
        front(model, loss, (x, examples()[1]))
    assert "\n" not in str(caught.value)


@both
def test_draws_that_cannot_be_repeated(front) -> None:
    noise = random.SystemRandom()
    loss = lambda predict, batch: CRITERION(predict(batch[0]) * noise.random(), batch[1])
    with pytest.raises(ModelError, match="random numbers that are not torch's own") as caught:
        front(network(), loss, examples())
    assert "\n" not in str(caught.value)


@both
def test_examples_that_mix(front) -> None:
    loss = lambda predict, batch: CRITERION(predict(batch[0] - batch[0].mean(0)), batch[1])
    with pytest.raises(ModelError, match="mixes the batch") as caught:
        front(network(), loss, examples())
    assert "\n" not in str(caught.value)


def test_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    x = np.zeros((12, 2, 2), np.uint8)
    np.savez(path, x_train=x, y_train=np.arange(12) % 3, x_test=x, y_test=np.arange(12) % 3)
    path.write_bytes(path.read_bytes()[:400])
    refused(DataError, "truncated", lambda: by_call(network(), CRITERION, npz(path, classes=3).train))


def test_what_belongs_to_train_is_refused_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    model, criterion = nn.Linear(5, 2), nn.CrossEntropyLoss(reduction="none")
    data = torch.zeros(100, 5), torch.zeros(100, dtype=torch.long)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = beside(checkpoints=sf.Checkpoints(tmp_path))
    with pytest.raises(SettingError, match="belong to fit and train"):
        sf.make_private(model, criterion, data, optimizer=sgd, epsilon=3, batch_size=10, epochs=1, **kept)
