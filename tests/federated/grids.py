"""A grid of Flower without machines: real messages, real client apps, and nobody in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from posts import FIRST, data, own_contribution

from saltflat.federated.flower import client_app, flower

Change = Callable[[Any, Any], Iterable[Any]]  # a message and the honest reply -> what is sent back


def as_is(message: Any, reply: Any) -> list[Any]:
    return [reply]


class FakeGrid:
    """Runs the app of a node as soon as it is sent a message."""

    def __init__(self, apps: dict[int, Any], change: Change = as_is) -> None:
        app = flower().app
        # Not above: pytest reads this file where Flower is not installed, too.
        from flwr.supercore.task_identity import TaskIdentity as we

        we.run_id, we.node_id, we.task_id = 1, 0, 1  # who Flower thinks that we are
        self.apps, self.change, self.replies = apps, change, []
        self.pulls: list[int] = []
        self.contexts = {
            node: app.Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": node - FIRST},
                state=app.RecordDict(),
                run_config={},
            )
            for node in apps
        }

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        names = []
        for message in messages:
            name, node = uuid4().hex, message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = name
            reply = self.apps[node](message, self.contexts[node])
            reply.metadata.__dict__["_src_node_id"] = node
            self.replies += self.change(message, reply)
            names.append(name)
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Any]:
        wanted = set(names)
        self.pulls.append(len(wanted))
        found = [reply for reply in self.replies if reply.metadata.reply_to_message_id in wanted]
        self.replies = [reply for reply in self.replies if reply not in found]
        if any(getattr(reply, "unreadable", False) for reply in found):
            self.replies += [reply for reply in found if not getattr(reply, "unreadable", False)]
            raise ValueError("a reply cannot be inflated")
        return found


def grid_of(
    count: int, local: Any = None, clip_norm: float = float("inf"), change: Change = as_is
) -> FakeGrid:
    clients = data(count)
    apps = {
        FIRST + k: client_app(
            own_contribution(local), lambda context, k=k: clients.take([k])[0].rows, clip_norm=clip_norm
        )
        for k in range(count)
    }
    return FakeGrid(apps, change)
