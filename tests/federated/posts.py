"""A post without machines: nodes that answer at once, each as it is told to behave, honest ones by the real code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from steps import CRITERION, examples, network
from torch import Tensor

from saltflat import supervised
from saltflat.federated import Client, Clients, Local, per_client
from saltflat.federated.flower.client import Answering
from saltflat.federated.flower.remote import Fleet, Remote, over_flower
from saltflat.federated.flower.wire import TRAIN, WHO, Packed, Question, Reply, packed, unpacked

FIRST = 100  # the number of the first node; client k is node FIRST + k unless a test says otherwise
Behaviour = Callable[["Node", Question], "Iterable[Reply]"]


@dataclass
class Node:
    """A node: which client it says that it is, what it knows, and what it remembers of earlier rounds."""

    number: int
    client: object
    answer: Callable[[Question], dict[str, Packed]]
    behave: Behaviour
    sent: list[Reply] = field(default_factory=list)

    def honest(self, question: Question) -> Reply:
        client = self.client if question.kind == WHO else None
        parcel = {} if question.kind == WHO else self.answer(question)
        return Reply(self.number, question.round, question.nonce, parcel, client)


class FakePost:
    """Delivers at once, and hands out what came back at the next look."""

    def __init__(
        self, nodes: Iterable[Node], seen: Callable[[Question], None] = lambda question: None
    ) -> None:
        self.all = {node.number: node for node in nodes}
        self.away: set[int] = set()
        self.waiting: list[Reply] = []
        self.seen = seen  # told of every broadcast, before anybody answers
        self.asked: list[tuple[int, int]] = []  # (round, node) of every question to train

    def nodes(self) -> set[int]:
        return set(self.all) - self.away

    def send(self, question: Question, nodes: Iterable[int], *, seconds: float) -> None:
        if question.kind != WHO:
            self.seen(question)
        for number in nodes:
            node = self.all[number]
            if question.kind == TRAIN:
                self.asked.append((question.round, number))
            replies = [node.honest(question)] if question.kind == WHO else list(node.behave(node, question))
            node.sent += replies
            self.waiting += replies

    def receive(self) -> list[Reply]:
        arrived, self.waiting = self.waiting, []
        return arrived


class Clock:
    """Time that passes only when it is looked at: nobody waits in a test."""

    def __init__(self, tick: float = 1.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def honest(node: Node, question: Question) -> list[Reply]:
    return [node.honest(question)]


def gone(node: Node, question: Question) -> list[Reply]:
    return []


def sends(change: Callable[[dict[str, Packed]], object]) -> Behaviour:
    """An honest reply with another parcel."""
    return lambda node, question: [
        replace(node.honest(question), parcel=change(dict(node.honest(question).parcel)))
    ]


def filled(value: float) -> Callable[[dict[str, Packed]], object]:
    """A parcel of the right form, with one number everywhere."""
    return lambda parcel: {
        name: replace(each, data=packed({"": torch.full(each.shape, value, dtype=torch.float64)})[""].data)
        for name, each in parcel.items()
    }


def replayed(node: Node, question: Question) -> list[Reply]:
    """What it sent in the first round, again, in the place of an answer."""
    first = [reply for reply in node.sent if reply.client is None]
    return [first[0]] if first else [node.honest(question)]


def twice(node: Node, question: Question) -> list[Reply]:
    return [node.honest(question), node.honest(question)]


def flooding(node: Node, question: Question) -> list[Reply]:
    """Ten replies, most of them in other nodes' names that do not exist."""
    own = node.honest(question)
    return [own, *(replace(own, node=10**6 + k) for k in range(9))]


def reports(count: object) -> Behaviour:
    """An honest update, and beside it a number of examples in the one field that could hold it."""
    return lambda node, question: [replace(node.honest(question), client=count)]


BAD: dict[str, Behaviour] = {
    "nan": sends(filled(math.nan)),
    "infinite": sends(filled(math.inf)),
    "huge": sends(filled(1e300)),
    "zero": sends(filled(0.0)),
    "wrong shape": sends(lambda parcel: {n: replace(p, shape=(*p.shape, 1)) for n, p in parcel.items()}),
    "too few bytes": sends(lambda parcel: {n: replace(p, data=p.data[:-1]) for n, p in parcel.items()}),
    "wrong type": sends(lambda parcel: {n: replace(p, dtype="int64") for n, p in parcel.items()}),
    "a key too many": sends(lambda parcel: {**parcel, "more": next(iter(parcel.values()))}),
    "a key missing": sends(lambda parcel: dict(list(parcel.items())[1:])),
    "no parcel": sends(lambda parcel: None),
    "a list": sends(list),
    "twice": twice,
    "flooding": flooding,
    "replayed": replayed,
    "gone": gone,
    "another nonce": lambda node, question: [replace(node.honest(question), nonce="0" * 32)],
    "another round": lambda node, question: [replace(node.honest(question), round=question.round + 1)],
    "odd round": lambda node, question: [replace(node.honest(question), round="0", nonce=None)],
}


def data(count: int = 10) -> Clients:
    """Clients with 3, 4, 5, ... examples; the last one has none."""
    from saltflat.data import TensorUnits

    sizes = [3 + k for k in range(count - 1)] + [0]
    ends = torch.tensor(sizes).cumsum(0)
    parts = [torch.arange(int(end) - size, int(end)).numpy() for end, size in zip(ends, sizes, strict=True)]
    return Clients(TensorUnits(examples(sum(sizes))), parts)


def own_contribution(local: Local | None = None, model: Any = None) -> Any:
    return per_client(model or network(), supervised(CRITERION), local=local or Local(batch_size=4, seed=3))


def nodes(
    clients: Clients, behave: Sequence[Behaviour], local: Local | None = None, clip_norm: float = math.inf
) -> list[Node]:
    """One node for each client, with a model of its own."""
    found = []
    for k, how in enumerate(behave):
        (client,) = clients.take(torch.tensor([k]).numpy())
        answering = Answering(own_contribution(local), clip_norm)
        found.append(Node(FIRST + k, k, lambda q, a=answering, c=client: a(q, c), how))
    return found


def fixed(number: int, vector: dict[str, Tensor], behave: Behaviour = honest) -> Node:
    """A node that always sends the same."""
    return Node(FIRST + number, number, lambda question: packed(vector), behave)


def fleet(post: Any, clients: int, **more: Any) -> Fleet:
    return Fleet(post, clients, **({"seconds": 5.0, "patience": 5.0, "pause": 0.0, "clock": Clock()} | more))


def remote(the_fleet: Fleet, model: Any = None) -> Remote:
    return over_flower(model or network(), the_fleet)


def as_client(number: int, rows: Any) -> Client:
    return Client(number, rows)


__all__ = [name for name in dir() if not name.startswith("_")] + ["unpacked"]
