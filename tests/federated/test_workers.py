"""Clients in processes of their own: the numbers of one by one, whatever happens to a process."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hired
import pytest
import torch
from reference import flat, trained
from steps import phase, plan

from saltflat import Safeguards, supervised, train
from saltflat.errors import ModelError, SettingError
from saltflat.federated import Client, Local, PerClient, per_client, workers
from saltflat.federated.workers import Workers
from saltflat.tree import Tree

LOCAL = Local(epochs=2, batch_size=4, momentum=0.5, seed=0)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def hired_two() -> PerClient:
    return per_client(hired.network(), hired.loss, local=LOCAL, workers=2)


def vectors(own: PerClient, clients: list[Client], step: int = 1) -> list[Tree | None]:
    return own.at(step).trainer.differences(trained(own.model), clients)


def assert_same(found: list[Tree | None], other: list[Tree | None]) -> None:
    for one, two in zip(found, other, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            assert torch.equal(flat(one), flat(two))


def test_side_by_side_as_one_by_one_bit_for_bit(hired_two: PerClient) -> None:
    """Clients without rows, of many sizes, and one that fails; in every round, wherever they stand."""
    here = per_client(hired_two.model, hired.loss, local=LOCAL)
    own = [hired.client(k, rows) for k, rows in enumerate([5, 1, 0, 9, 4])]
    own.append(hired.client(9, 3, hired.RAISES))
    for step, some in ((1, own), (2, own[::-1])):
        found = vectors(hired_two, some, step)
        assert_same(found, vectors(here, some, step))
        assert sum(each is None for each in found) == 1


def test_whoever_ends_its_process_is_void_and_the_others_are_identical(
    hired_two: PerClient, caplog: pytest.LogCaptureFixture
) -> None:
    own = [hired.client(k, 4) for k in range(4)]
    found = vectors(hired_two, [own[0], hired.client(7, 3, hired.DIES), *own[1:]])
    assert found.pop(1) is None
    assert_same(found, vectors(per_client(hired_two.model, hired.loss, local=LOCAL), own))
    assert "another takes its place" in caplog.text


def test_rows_that_cannot_be_sent_are_void_though_nobody_else_is_there(hired_two: PerClient) -> None:
    """A round of such clients only ends at once: there is nobody to wait for."""
    odd, own = [Client(k, object()) for k in range(3)], [hired.client(k, 4) for k in range(2)]
    assert hired_two.workers.differences(hired_two.trainer.one, trained(hired_two.model), odd) == [None] * 3
    found = hired_two.workers.differences(
        hired_two.trainer.one, trained(hired_two.model), [odd[0], *own, odd[1]]
    )
    assert found[0] is None
    assert found[3] is None
    assert_same(found[1:3], [hired_two.trainer.alone(trained(hired_two.model), client) for client in own])


@pytest.mark.slow
def test_a_worker_that_ended_meanwhile_is_replaced(hired_two: PerClient) -> None:
    own = [hired.client(k, 4) for k in range(3)]
    before = vectors(hired_two, own)
    gone = hired_two.workers._hands[0].process
    assert gone.pid is not None
    os.kill(gone.pid, signal.SIGKILL)
    gone.join()
    assert_same(vectors(hired_two, own), before)


@pytest.mark.slow
def test_after_an_interrupt_no_answer_is_taken_for_anothers(
    hired_two: PerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [hired.client(k, 4) for k in range(3)]
    before = vectors(hired_two, own)

    def pressed(channels: object) -> list[object]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workers, "wait", pressed)
        with pytest.raises(KeyboardInterrupt):
            vectors(hired_two, own[::-1])
    assert hired_two.workers._hands == []
    assert_same(vectors(hired_two, own), before)


@pytest.mark.slow
def test_they_follow_the_models_modes_and_its_frozen_tensors() -> None:
    model = hired.network()
    model[0].weight.requires_grad_(False)
    own, some = per_client(model, hired.loss, local=LOCAL, workers=1), [hired.client(k, 4) for k in range(2)]
    vectors(own, some)
    model.eval()
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert_same(vectors(own, some), vectors(per_client(model, hired.loss, local=LOCAL), some))


def test_orders_are_secret_and_fresh_in_every_process(hired_two: PerClient) -> None:
    """Two clients with the same rows, in two rounds: four orders, which nobody could repeat."""
    rows = hired.client(0, 12).rows
    own = PerClient(hired_two.model, hired.loss, Local(batch_size=1), workers=hired_two.workers)
    twice = [vectors(own, [Client(0, rows), Client(1, rows)], step=1) for _ in range(2)]
    found = [flat(each) for some in twice for each in some if each is not None]
    assert len({tuple(each.tolist()) for each in found}) == 4


def test_a_model_that_begins_to_remember_is_refused() -> None:
    own = per_client(hired.Remembers(), hired.loss, local=LOCAL, workers=1)
    with pytest.raises(ModelError, match="a tensor of the model changes when a client trains"):
        vectors(own, [hired.client(k, 9) for k in range(3)])
    assert own.workers._hands == []


def test_what_forward_leaves_behind_is_no_reason_to_refuse_or_to_begin_anew() -> None:
    own, some = (
        per_client(hired.Leaves(), hired.loss, local=LOCAL, workers=1),
        [hired.client(k, 4) for k in range(2)],
    )
    before = vectors(own, some)
    pids = own.workers.pids
    assert_same(
        vectors(per_client(own.model, hired.loss, local=LOCAL), some), before
    )  # rows are left in it here
    assert_same(vectors(own, some), before)
    assert own.workers.pids == pids


def test_what_cannot_be_sent_is_refused_before_a_round_is_charged() -> None:
    def own_loss(predict: object, batch: object) -> torch.Tensor:
        return hired.loss(predict, batch)

    class Clients:
        count = 4

        def take(self, indices: object) -> list[Client]:
            return [hired.client(int(k), 4) for k in indices]  # type: ignore[attr-defined]

    class Meter:
        def step(self, rate: float, noise_multiplier: float) -> None:
            raise AssertionError("a round was charged")

    own = per_client(hired.network(), own_loss, local=LOCAL, workers=2)
    with pytest.raises(SettingError, match=r'a process could not begin .*if __name__ == "__main__":'):
        train(plan(phase(steps=2), rate=1.0, size=4), own, Clients(), safeguards=Safeguards(meter=Meter()))
    assert own.workers._hands == []


@pytest.mark.parametrize("count", [-1, 1.5, True, "two", 5000])
def test_a_number_of_workers(count: object) -> None:
    with pytest.raises(SettingError, match="workers is a whole number from 0 to 1024"):
        per_client(hired.network(), hired.loss, workers=count)  # type: ignore[arg-type]


def test_copies_have_workers_of_their_own(hired_two: PerClient) -> None:
    for other in (copy.deepcopy(hired_two.workers), pickle.loads(pickle.dumps(hired_two.workers))):
        assert isinstance(other, Workers)
        assert (other.count, other._hands) == (2, [])


def test_rows_go_alone_even_where_they_are_a_part_of_a_table() -> None:
    table = torch.zeros(1000, 4)
    assert len(workers._pickled(workers._by_itself(table[3:5]))) < 2000
    assert workers._by_itself(table) is not None


def test_a_supervised_loss_can_be_sent() -> None:
    again = pickle.loads(pickle.dumps(supervised(torch.nn.CrossEntropyLoss(reduction="none"))))
    x, y = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    assert again(lambda inputs: inputs, (x, y)).shape == (2,)


@pytest.mark.slow
def test_workers_end_with_who_sent_for_them() -> None:
    own = per_client(hired.network(), hired.loss, local=LOCAL, workers=1)
    vectors(own, [hired.client(k, 4) for k in range(2)])
    process = own.workers._hands[0].process
    del own
    gc.collect()
    process.join(20)
    assert not process.is_alive()


@pytest.mark.slow
def test_a_kill_of_the_server_leaves_no_worker_behind() -> None:
    script, around = Path(hired.__file__), {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=around) as server:
        assert server.stdout is not None
        pids = [int(word) for word in server.stdout.readline().split()]
        server.kill()
    assert len(pids) == 2
    until = time.monotonic() + 30
    while any(map(_there, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(_there, pids))


def _there(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
