"""A client on its own machine: it trains on its own rows, clips, and sends the difference. Nothing else leaves it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from saltflat import tree
from saltflat.core.sampling import Batch
from saltflat.core.train import trainable
from saltflat.errors import SettingError
from saltflat.federated.clients import Client
from saltflat.federated.contribution import PerClient
from saltflat.federated.flower.post import QUESTION, REPLY, UPDATE, arrays_of, parcel_of, read_question
from saltflat.federated.flower.quiet import flower
from saltflat.federated.flower.wire import LOSSES, TRAIN, Packed, Question, packed, unpacked
from saltflat.settings import is_positive, is_whole
from saltflat.tree import Tree

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

LOG = logging.getLogger(__name__)
LEEWAY = 1.001  # a client clips a little above the bound, so that an adaptive one still sees who was clipped
MEMORY, BEFORE, AFTER = "memory", "memory-before", "memory-after"  # records of a client's own state
NUMBER = "partition-id"  # what says in a node's configuration which client it is; simulations give it by themselves


@dataclass(frozen=True)
class Answering:
    """What one client answers to a question: the same training as everywhere, clipped before it leaves.

    *Guarantee*: no update longer than 1.001 ``clip_norm`` leaves, and none that is not finite. Whatever fails, the
    answer is empty, and says nothing of why.
    """

    contribution: PerClient
    clip_norm: float

    def __post_init__(self) -> None:
        if not (is_positive(self.clip_norm) or self.clip_norm == math.inf):
            raise SettingError(
                f"clip_norm is what no update may leave longer than, and positive; got {self.clip_norm!r}"
            )

    def __call__(self, question: Question, client: Client) -> dict[str, Packed]:
        try:
            return packed(self._answer(question, client))
        except Exception:
            LOG.warning("a question could not be answered; an empty answer is sent", exc_info=True)
            return {}

    def _answer(self, question: Question, client: Client) -> Tree:
        points = self._points(question)
        own = self.contribution.at(question.round)
        if question.kind == LOSSES:
            return {LOSSES: own.losses(points, [client]).double().flatten()}
        if question.kind != TRAIN:
            raise ValueError(f"no question of kind {question.kind!r} is known")
        chunk = own(points, question.weights, [client])
        return clipped(chunk.weighted_sum(torch.ones(1)), LEEWAY * self.clip_norm, points[0])

    def _points(self, question: Question) -> Sequence[Tree]:
        like = trainable(self.contribution.model)
        points = [unpacked(point, like) for point in question.points]
        sound = [point for point in points if point is not None]
        if not points or len(sound) < len(points):
            raise ValueError("the points that were sent are not weights of this model")
        return sound


def clipped(update: Tree, bound: float, like: Tree) -> Tree:
    """The update, at most ``bound`` long, in the types of ``like``; an error if it is not finite."""
    length = float(tree.norm({name: leaf.double() for name, leaf in update.items()}))
    if not math.isfinite(length):
        raise ValueError("the update is not finite")
    shorter = tree.mul(update, bound / length) if length > bound else update
    return {name: leaf.to(like[name].dtype) for name, leaf in shorter.items()}


def client_app(contribution: PerClient, rows: Callable[[Context], Batch], *, clip_norm: float) -> ClientApp:
    """Flower's app of a client: it answers `over_flower`'s questions from the rows that ``rows(context)`` gives.

    Which client it is says ``partition-id`` in the node's configuration. Rows are asked for at every question, and
    may be kept by the function that gives them. What `Feedback` remembers stays in the node's own state.

    *Guarantee*: see `Answering`. Flower would send an error's text to the server; here nothing of it leaves.
    """
    answering, app = Answering(contribution, clip_norm), flower().clientapp.ClientApp()

    def answered(message: Message, context: Context) -> Message:
        try:
            question, number = read_question(message.content), _number(context)
            with _remembered(contribution, context, number):
                parcel = answering(question, Client(number, rows(context)))
        except Exception:
            LOG.warning("a question could not be answered; an empty answer is sent", exc_info=True)
            return _reply(message, {})
        return _reply(message, parcel)

    def who(message: Message, context: Context) -> Message:
        return _reply(message, {}, client=_number(context))

    app.train()(answered)
    app.query("losses")(answered)
    app.query("who")(who)
    return app


@contextmanager
def _remembered(contribution: PerClient, context: Context, number: int) -> Iterator[None]:
    """What the client left out of earlier updates, from its own state and back into it; it is never sent."""
    kept, like = contribution.memory.kept, trainable(contribution.model)
    kept.clear()  # in a simulation several clients share a process
    if contribution.local.feedback is not None and MEMORY in context.state:
        before, after = (unpacked(parcel_of(context.state[name]), like) for name in (BEFORE, AFTER))
        last = context.state[MEMORY]["round"]
        if after is not None and is_whole(last, 0):
            kept[number] = (last, before, after)
    yield
    if number in kept:
        app, (step, before, after) = flower().app, kept[number]
        context.state[MEMORY] = app.ConfigRecord({"round": step})
        context.state[BEFORE] = arrays_of(packed(before or {}))
        context.state[AFTER] = arrays_of(packed(after))


def _number(context: Context) -> int:
    number = context.node_config.get(NUMBER)
    if not is_whole(number, 0):
        LOG.warning(
            "this node has no number: start it with --node-config '%s=0', another number for each", NUMBER
        )
        return -1
    return number


def _reply(message: Message, parcel: dict[str, Packed], client: int | None = None) -> Message:
    """A reply that says which question it answers; an empty parcel is nothing to add."""
    app = flower().app
    asked = message.content[QUESTION]
    numbers = {"round": asked["round"], "nonce": asked["nonce"]} | (
        {} if client is None else {"client": client}
    )
    content = app.RecordDict({REPLY: app.ConfigRecord(numbers), UPDATE: arrays_of(parcel)})
    return app.Message(content, reply_to=message)
