"""Keyword arguments of Opacus, and slips of the pen, are answered with ours in one line."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import pytest
import torch
from steps import CRITERION, examples, network

import saltflat as sf
from saltflat.errors import SettingError, UnknownSettingError
from saltflat.front.answers import OTHERS

OPACUS = (  # of PrivacyEngine.make_private, make_private_with_epsilon and the data loader's helpers
    *(
        "module",
        "criterion",
        "data_loader",
        "max_grad_norm",
        "batch_first",
        "loss_reduction",
        "poisson_sampling",
    ),
    *("clipping", "noise_generator", "grad_sample_mode", "target_epsilon", "target_delta", "secure_mode"),
    *("accountant", "max_physical_batch_size", "sample_rate"),
)


RUNNING = {each.name for each in dataclasses.fields(sf.Running)}
SETTINGS = RUNNING | {"lr", "reduction", "noise", "meter"}  # of classes that an answer names


def by_fit(**given: Any) -> None:
    sf.fit(network(), CRITERION, examples(), **given)


def by_loop(**given: Any) -> None:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    sf.make_private(model, CRITERION, examples(), optimizer=sgd, **given)


both = pytest.mark.parametrize("front", [by_fit, by_loop])


@both
@pytest.mark.parametrize("name", OPACUS)
def test_every_keyword_of_opacus(front: Any, name: str) -> None:
    with pytest.raises(UnknownSettingError, match=f"has no {name}: ") as caught:
        front(**{name: None})
    assert "\n" not in str(caught.value)
    assert "it takes" not in str(caught.value)  # a real answer
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, SettingError)


@both
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"target_epsilon": 3}, "say epsilon="),
        ({"max_grad_norm": 1.0}, "say clip_norm="),
        ({"epsilom": 3}, "did you mean epsilon="),
        ({"batchsize": 3}, "did you mean batch_size="),
        ({"xyzzy": 3}, "it takes model, loss, data"),
        ({"steps": 3}, "epochs is steps x batch_size / size"),
    ],
)
def test_what_is_meant(front: Any, given: dict, says: str) -> None:
    with pytest.raises(UnknownSettingError, match=says):
        front(**given)


def test_answers_name_what_there_is() -> None:
    known = {*inspect.signature(sf.fit).parameters, *inspect.signature(sf.make_private).parameters}
    for name, answer in OTHERS.items():
        assert name not in known
        assert {*re.findall(r"\b(\w+)=", answer)} <= known | SETTINGS, name
        for path in re.findall(r"sf\.([\w.]+)", answer):
            value: Any = sf
            for part in path.split("."):
                value = getattr(value, part)


def test_the_signature_stays_readable() -> None:
    assert list(inspect.signature(sf.fit).parameters)[:4] == ["model", "loss", "data", "epsilon"]
    assert "Train ``model`` on private ``data``" in sf.fit.__doc__
