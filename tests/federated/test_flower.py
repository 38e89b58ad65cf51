"""Flower's own messages and apps behind the post, without machines; and its real runtimes in the slow suite."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from posts import Clock, data, own_contribution
from reference import FixedNoise, flat, trained
from steps import beside, network, phase, plan

from saltflat import train
from saltflat.errors import SettingError
from saltflat.federated import Feedback, Local
from saltflat.federated.flower import Fleet, GridPost, flower, over_flower
from saltflat.methods import DPSGD, SAM, Gap
from saltflat.optimizers import SGD

pytest.importorskip(
    "flwr", reason="Flower is an extra: pip install 'saltflat[federated]'", exc_type=ImportError
)

from grids import FakeGrid, grid_of  # it builds Flower's records

C = 0.2


def rounds(grid: FakeGrid, the_plan, clients: int):
    fleet = Fleet(GridPost(grid), clients, seconds=20.0, patience=20.0, pause=0.0, clock=Clock())
    given = beside(noise=FixedNoise(), sampling=np.random.default_rng(5))
    return train(the_plan, over_flower(network(), fleet), fleet, **given)


def quiet(method=None, steps: int = 4, rate: float = 0.5, size: int = 10):
    return plan(
        phase(
            steps=steps,
            noise_multiplier=0.0,
            clip_norm=C,
            optimizer=SGD(lr=1.0),
            method=method or DPSGD(),
        ),
        rate=rate,
        size=size,
    )


LOCALS = {
    "plain": Local(batch_size=4, seed=3),
    "feedback": Local(batch_size=4, keep=0.3, feedback=Feedback(0.5), seed=3),
}


@pytest.mark.parametrize("method", [DPSGD(), SAM(0.1)], ids=["DPSGD", "SAM"])
@pytest.mark.parametrize("name", LOCALS)
def test_the_same_model_as_in_process(name: str, method) -> None:
    local = LOCALS[name]
    there = rounds(grid_of(10, local, C), quiet(method, steps=6), 10)
    given = beside(noise=FixedNoise(), sampling=np.random.default_rng(5))
    here = train(quiet(method, steps=6), own_contribution(local), data(), **given)
    torch.testing.assert_close(flat(there), flat(here), rtol=0, atol=1e-6)
    assert float((flat(here) - flat(trained(network()))).norm()) > 1e-3


def test_losses_go_over_messages_too() -> None:
    params = rounds(grid_of(6), quiet(Gap(method=DPSGD(), radius=0.1, bound=0.5), size=6), 6)
    assert torch.isfinite(flat(params)).all()


def total(change) -> torch.Tensor:
    """What everybody adds up to in one quiet round."""
    params = rounds(grid_of(4, change=change), quiet(steps=1, rate=1.0, size=4), 4)
    return (flat(trained(network())) - flat(params)) * 4


def only_first(how):
    """Change what the first node sends when it is asked to train."""

    def change(message, reply):
        mine = message.metadata.message_type == "train" and message.metadata.dst_node_id == 100
        return list(how(message, reply)) if mine else [reply]

    return change


def silent(message, reply):
    return []


def counting(number):
    """F2 on Flower's records: a reported number of examples, wherever Flower's own strategies would look for one."""

    def how(message, reply):
        app = flower().app
        reply.content["metrics"] = app.MetricRecord({"num-examples": number})
        reply.content["reply"]["num-examples"] = number
        return [reply]

    return how


@pytest.mark.parametrize("number", [1, 10**9, -1, math.nan])
def test_reported_examples_are_never_read(number) -> None:
    assert torch.equal(total(only_first(counting(number))), total(lambda message, reply: [reply]))


def failing(message, reply):
    app = flower().app
    return [app.Message(app.Error(code=1, reason="secret"), reply_to=message)]


def unreadable(message, reply):
    reply.__dict__["unreadable"] = True
    return [reply]


def without(*names):
    def how(message, reply):
        for name in names:
            del reply.content[name]
        return [reply]

    return how


def as_file(message, reply):
    """The same arrays in numpy's file format, which is not read."""
    app = flower().app
    update = reply.content["update"]
    for name in list(update):
        update[name] = app.Array(np.zeros(update[name].shape))
    return [reply]


def as_another(message, reply):
    reply.metadata.__dict__["_src_node_id"] = 101
    return [reply]


VOID = {
    "error": failing,
    "unreadable": unreadable,
    "no reply record": without("reply"),
    "no update": without("update"),
    "a file": as_file,
    "another's name": as_another,
}


@pytest.mark.parametrize("name", VOID)
def test_what_is_no_reply_adds_nothing(name: str) -> None:
    assert torch.equal(total(only_first(VOID[name])), total(only_first(silent)))


def test_two_replies_count_once() -> None:
    assert torch.equal(total(only_first(lambda m, reply: [reply, reply])), total(lambda m, reply: [reply]))


def test_a_client_that_fails_sends_nothing_of_why() -> None:
    """Flower would send the error's text, which may hold rows, to the server."""
    grid = grid_of(2)
    app = flower().app

    def rows(context):
        raise ValueError("patient 17 is ill")

    from saltflat.federated.flower import client_app

    failing_app = client_app(own_contribution(), rows, clip_norm=C)
    question = app.RecordDict(
        {"question": app.ConfigRecord({"kind": "train", "round": 0, "nonce": "n", "points": 0})}
    )
    asked = app.Message(question, dst_node_id=100, message_type="train")
    asked.metadata.__dict__["_message_id"] = "m"
    reply = failing_app(asked, grid.contexts[100])
    assert not reply.has_error()
    assert "patient" not in repr(reply.content)
    assert not reply.content["update"]


def test_telemetry_is_off_whoever_imported_flower_first() -> None:
    code = (
        "import flwr.supercore.telemetry as t; assert t.FLWR_TELEMETRY_ENABLED != '0'\n"
        "t.TELEMETRY_EVENTS_URL = 'http://127.0.0.1:9/'\n"  # so that a failure of this test tells nobody either
        "from saltflat.federated.flower import flower; flower()\n"
        "import os; print(t.create_event(t.EventType.PING, None), os.environ['FLWR_TELEMETRY_ENABLED'])"
    )
    around = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_TELEMETRY")}
    told = subprocess.run(
        [sys.executable, "-c", code], env=around, capture_output=True, text=True, check=False
    )
    assert told.stdout == "disabled 0\n", told.stderr


def test_without_flower_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(SettingError, match=r"pip install 'saltflat\[federated\]'"):
        flower()
