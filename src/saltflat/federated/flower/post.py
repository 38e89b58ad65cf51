"""Flower's grid as a post: messages out, replies back, and nothing that a client sends is trusted on the way."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any

from saltflat.federated.flower.parent import end_with_parent
from saltflat.federated.flower.quiet import flower
from saltflat.federated.flower.wire import LOSSES, TRAIN, WHO, Packed, Parcel, Question, Reply

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.serverapp import Grid

LOG = logging.getLogger(__name__)
TYPES = {TRAIN: "train", LOSSES: "query.losses", WHO: "query.who"}
STYPE = "saltflat.tensor"  # bytes as `wire` has them, and no file format
QUESTION, REPLY, UPDATE, POINT = "question", "reply", "update", "point"  # names of records


class GridPost:
    """Questions as Flower's messages. One reply is read for each message that was sent, whatever else arrives.

    The process ends when the one of Flower that started it is gone. Flower's grid would wait for a killed SuperLink
    without end, and a run that waits holds its folder: the next start would find it taken.
    """

    def __init__(self, grid: Grid) -> None:
        flower()
        end_with_parent()
        self._grid = grid
        self._open: dict[str, tuple[int, Question, float]] = {}  # message -> node, question, until when

    def nodes(self) -> Set[int]:
        return set(self._grid.get_node_ids())

    def send(self, question: Question, nodes: Iterable[int], *, seconds: float) -> None:
        until, content = time.monotonic() + seconds, written(question)
        messages = {node: _message(content, question, node, seconds) for node in nodes}
        taken = set(self._grid.push_messages(list(messages.values())))
        for node, message in messages.items():
            if message.metadata.message_id in taken:  # a node that has just left takes none
                self._open[message.metadata.message_id] = (node, question, until)

    def receive(self) -> Iterator[Reply]:
        for message in self._pulled():
            try:
                node, question, _ = self._open.pop(message.metadata.reply_to_message_id)
            except Exception:  # a second reply, or an answer to nothing
                continue
            yield _read(message, node, question)
        now = time.monotonic()
        self._open = {name: asked for name, asked in self._open.items() if asked[2] > now}

    def _pulled(self) -> list[Message]:
        """What has arrived. Where a reply makes reading fail, the others are read one by one."""
        try:
            return list(self._grid.pull_messages(list(self._open))) if self._open else []
        except Exception:
            LOG.debug("replies cannot be read together; reading them one by one")
        found: list[Message] = []
        for name in list(self._open):
            try:
                found.extend(self._grid.pull_messages([name]))
            except Exception:
                LOG.debug("a reply cannot be read; it counts as none")
        return found


def _message(content: RecordDict, question: Question, node: int, seconds: float) -> Message:
    return flower().app.Message(
        content,
        dst_node_id=node,
        message_type=TYPES[question.kind],
        ttl=seconds,
        group_id=str(question.round),
    )


def _read(message: Message, node: int, question: Question) -> Reply:
    """The reply; where the way says that nothing will come, or it cannot be read, one without a parcel."""
    nothing = Reply(node, question.round, question.nonce, None)
    try:
        if message.has_error() or message.metadata.src_node_id != node:
            return nothing
        said, update = message.content[REPLY], message.content.get(UPDATE)
        parcel = None if update is None else parcel_of(update)
        return Reply(node, said["round"], said["nonce"], parcel, said.get("client"))
    except Exception:
        return nothing


def written(question: Question) -> RecordDict:
    """A question as records: the numbers in one, each point in one of its own."""
    app = flower().app
    numbers: dict[str, Any] = {"kind": question.kind, "round": question.round, "nonce": question.nonce}
    numbers["points"] = len(question.points)
    if question.weights:
        numbers["weights"] = list(question.weights)
    points = {f"{POINT}-{k}": arrays_of(point) for k, point in enumerate(question.points)}
    return app.RecordDict({QUESTION: app.ConfigRecord(numbers), **points})


def read_question(content: RecordDict) -> Question:
    """The question that `written` wrote; any error if it is none."""
    numbers: Any = content[QUESTION]
    points = tuple(parcel_of(content[f"{POINT}-{k}"]) for k in range(numbers["points"]))
    return Question(
        str(numbers["kind"]),
        int(numbers["round"]),
        str(numbers["nonce"]),
        points,
        tuple(numbers.get("weights", ())),
    )


def arrays_of(parcel: Parcel) -> ArrayRecord:
    """A parcel as Flower's record of arrays."""
    app = flower().app
    return app.ArrayRecord(
        {name: app.Array(each.dtype, each.shape, STYPE, each.data) for name, each in parcel.items()}
    )


def parcel_of(arrays: Any) -> dict[str, Packed]:
    """The parcel in a record of arrays; what is written in another way is left out, and so missing."""
    return {
        name: Packed(each.dtype, tuple(each.shape), each.data)
        for name, each in arrays.items()
        if each.stype == STYPE
    }
