"""Clients behind a post: the same contribution, from machines that nobody here can look into or rely on.

`train` is the loop, as everywhere: it charges the round, then asks; this room sends the question and takes what comes
back in time. A round asks each drawn client that is there, and whatever is missing, late or wrong adds nothing.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from saltflat.clipping import Chunk
from saltflat.core.check import Take
from saltflat.core.layers import check_whole
from saltflat.core.sampling import Indices
from saltflat.core.spot import Spot
from saltflat.errors import DataError, SettingError
from saltflat.federated.contribution import chunk_of
from saltflat.federated.flower.wire import LOSSES, TRAIN, WHO, Post, Question, Reply, packed, unpacked
from saltflat.settings import is_number, is_positive, is_whole
from saltflat.tree import Tree

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fleet:
    """Clients on other machines as units: ``clients`` places, each for the client of that number, 0 the first.

    ``clients`` is declared and public. It never changes with who is there, so neither do rate, noise and denominator.
    A round waits ``seconds`` for its replies; the first one waits up to ``patience`` for the clients to report.

    A node says once which client it is. Nodes that give the same number are all left out while more than one of them is
    there; so are those whose number is no place.

    *Guarantee*: every place is drawn by a coin of its own, whoever sits there. One client more or less changes the
    vector of at most one place, and nobody moves up into a place that someone left.
    """

    post: Post = field(repr=False)
    clients: int
    seconds: float = 600.0
    patience: float = 120.0
    pause: float = 0.05  # between two looks at what has arrived
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    _roll: Roll = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_whole(self.clients):
            raise SettingError(f"clients is a public number of clients, at least 1; got {self.clients!r}")
        if not is_positive(self.seconds) or not is_number(self.patience, 0) or not is_number(self.pause, 0):
            raise SettingError(
                "seconds is positive, patience and pause are 0 or more, all finite; got "
                f"{self.seconds!r}, {self.patience!r} and {self.pause!r}"
            )
        object.__setattr__(self, "_roll", Roll(self.clients))

    @property
    def count(self) -> int:
        return self.clients

    def take(self, indices: Indices) -> list[int]:
        """The numbers of these clients: all that is known of them here."""
        return [int(number) for number in indices]

    def assemble(self) -> None:
        """Wait until every place is taken, or patience is out; refuse to begin where nobody is there."""
        until = self.clock() + self.patience
        while len(self.present()) < self.clients and self.clock() < until:
            time.sleep(self.pause)
        here = len(self.present())
        if not here:
            raise DataError(
                f"no client reported within {self.patience:g} seconds, and nothing was charged; see that the nodes "
                'run, and that each has a number of its own below the declared one: --node-config "partition-id=0"'
            )
        LOG.info("%d of %d declared clients reported", here, self.clients)

    def present(self) -> dict[int, int]:
        """Which node each client is at, of those who are there now; new nodes are asked who they are."""
        nodes = self.post.nodes()
        asked = self._roll.unasked(nodes, self.clock() - self.seconds)
        if asked:
            question = Question(WHO, 0, secrets.token_hex(16))
            self._roll.asked(question.nonce, asked, self.clock())
            self.post.send(question, asked, seconds=self.seconds)
        for reply in self.post.receive():
            self._roll.told(reply)
        return self._roll.places(nodes)

    def ask(self, question: Question, numbers: Sequence[int]) -> list[Reply]:
        """The first reply of each of these clients to this very question, of those that come in time.

        *Guarantee*: at most one reply of each client, from the node that was asked, in this round, to this question.
        """
        here = self.present()
        open_at = {here[number] for number in numbers if number in here}
        found: dict[int, Reply] = {}
        if open_at:
            self.post.send(question, sorted(open_at), seconds=self.seconds)
        until = self.clock() + self.seconds
        while open_at:
            for reply in self.post.receive():
                if reply.node in open_at and (reply.round, reply.nonce) == (question.round, question.nonce):
                    open_at.discard(reply.node)
                    found[reply.node] = reply
                else:
                    self._roll.told(reply)
            if self.clock() >= until:
                break
            time.sleep(self.pause if open_at else 0)
        return [found[here[number]] for number in numbers if here.get(number) in found]


@dataclass
class Roll:
    """Who is who: which client each node says that it is."""

    clients: int
    _open: dict[int, tuple[str, float]] = field(
        default_factory=dict
    )  # node -> question, and when it was asked
    _claims: dict[int, int] = field(default_factory=dict)  # node -> client

    def unasked(self, nodes: Set[int], since: float) -> list[int]:
        """Nodes that gave no number yet, and were not asked since then; those that are gone are forgotten."""
        self._open = {node: asked for node, asked in self._open.items() if node in nodes}
        self._claims = {node: client for node, client in self._claims.items() if node in nodes}
        waiting = {node for node, (_, when) in self._open.items() if when >= since}
        return sorted(nodes - self._claims.keys() - waiting)

    def asked(self, nonce: str, nodes: Iterable[int], now: float) -> None:
        self._open.update(dict.fromkeys(nodes, (nonce, now)))

    def told(self, reply: Reply) -> None:
        """Take a node's word for who it is, once; whatever is no answer to that question says nothing."""
        nonce, _ = self._open.get(reply.node, (None, 0.0))
        if nonce is None or reply.nonce != nonce or reply.node in self._claims:
            return
        if is_whole(reply.client, 0, self.clients - 1):
            self._claims[reply.node] = reply.client

    def places(self, nodes: Set[int]) -> dict[int, int]:
        """The node of each client; a number that two nodes give belongs to neither.

        *Guarantee*: a node that gives another's number can silence that client, and adds nothing in its place: so one
        client more or less still changes one place by at most the clip norm.
        """
        claims = {node: client for node, client in self._claims.items() if node in nodes}
        times = Counter(claims.values())
        return {client: node for node, client in claims.items() if times[client] == 1}


@dataclass(frozen=True)
class Remote:
    """See `over_flower`."""

    model: nn.Module
    fleet: Fleet
    step: int = 0  # the round, counted from 0
    unit: str = "client"

    def at(self, step: int) -> Remote:
        """The same in a later round."""
        return replace(self, step=step)

    def __call__(self, points: Sequence[Tree], weights: Sequence[float], batch: Sequence[int]) -> Chunk:
        replies = self.fleet.ask(self._question(TRAIN, points, weights), batch)
        updates = [unpacked(reply.parcel, points[0]) for reply in replies]
        return chunk_of([update for update in updates if update is not None], points[0])

    def losses(self, points: Sequence[Tree], batch: Sequence[int]) -> Tensor:
        """The losses that clients report at each point, each as it likes: the sum clamps them. (points, replies)"""
        like = {LOSSES: torch.zeros(len(points), dtype=torch.float64)}
        replies = self.fleet.ask(self._question(LOSSES, points, ()), batch)
        told = [unpacked(reply.parcel, like) for reply in replies]
        sound = [each[LOSSES] for each in told if each is not None]
        return torch.stack(sound, 1) if sound else like[LOSSES].new_empty(len(points), 0)

    def check(self, params: Tree, take: Take, count: int) -> Spot:
        """Wait for the clients. What a client does on its own machine cannot be looked at; its clip is what counts."""
        self.fleet.assemble()
        return _Unwatched()

    def _question(self, kind: str, points: Sequence[Tree], weights: Sequence[float]) -> Question:
        parcels = tuple(packed(point) for point in points)
        return Question(kind, self.step, secrets.token_hex(16), parcels, tuple(map(float, weights)))


class _Unwatched:
    def changed(self) -> bool:
        return False

    def __call__(self, params: Tree, batch: Sequence[int] | None) -> None: ...


def over_flower(model: nn.Module, fleet: Fleet) -> Remote:
    """One unit is one client on a machine of its own: g_i = w - LOCAL_i(w), as the client sends it.

    For `train`, with the fleet as units: ``train(plan, over_flower(model, fleet), fleet)``.

    *Guarantee*: whatever clients send, one of them moves the sum by at most the clip norm: the server clips every reply
    itself, adds them without weights, and divides by the declared number. A client that is gone, late, repeats itself
    or sends what is no update adds nothing; noise, rate and charge are the same.
    *What it rests on*: the server sees each clipped update as it is, and adds the noise. Whoever runs it is trusted.
    """
    check_whole(model)
    return Remote(model, fleet)
