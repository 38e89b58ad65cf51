"""What one client adds: the difference that its own training makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from saltflat import tree
from saltflat.clipping import Chunk
from saltflat.core.chance import secret
from saltflat.core.check import Take
from saltflat.core.contribution import Loss
from saltflat.core.layers import check_whole
from saltflat.core.reading import check_each_read
from saltflat.core.sampling import Indices, rows_in
from saltflat.core.spot import Spot, modes_of
from saltflat.errors import SettingError
from saltflat.federated.check import check_clients, usual_rows
from saltflat.federated.clients import Client
from saltflat.federated.local import Local, Memory, largest
from saltflat.federated.together import Trainer, most_at_once
from saltflat.federated.workers import Workers
from saltflat.gradients.chunk import Kept
from saltflat.gradients.parts import Dense
from saltflat.tree import Tree, called


@dataclass(frozen=True)
class PerClient:
    """See `per_client`."""

    model: nn.Module
    loss: Loss
    local: Local = field(default_factory=Local)
    step: int = 0  # the round, counted from 0
    unit: str = "client"
    memory: Memory = field(default_factory=Memory, repr=False)  # what clients keep for themselves
    ways: dict[tuple[bool, ...], int] = field(default_factory=dict, repr=False)  # clients at once, by mode
    workers: Workers = field(
        default_factory=Workers, repr=False, compare=False
    )  # who trains what cannot be stacked

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise SettingError(f"loss is a function loss(predict, batch); got a {type(self.loss).__name__}")
        if not isinstance(self.local, Local):
            raise SettingError(f"local is a Local(...); got {self.local!r}")

    @property
    def remembers(self) -> bool:
        """Whether what a client adds depends on the rounds in which it was drawn before."""
        return self.local.feedback is not None

    @property
    def trainer(self) -> Trainer:
        return Trainer(self.model, self.loss, self.local, self.step, self.workers)

    def at(self, step: int) -> PerClient:
        """The same in a later round: learning rates, keys and memories follow it."""
        return replace(self, step=step)

    def still(self) -> PerClient:
        """The same in a known order and without memory, for comparisons."""
        local = replace(self.local, seed=0, keep=1.0, feedback=None)
        return replace(self, local=local, memory=Memory())

    def __call__(self, points: Sequence[Tree], weights: Sequence[float], batch: Sequence[Client]) -> Chunk:
        at_once = self._at_once(points[0], batch)
        ways = [self.trainer.differences(point, batch, at_once) for point in points]
        totals = [_combined(each, weights) for each in zip(*ways, strict=True)]
        sent = [self.sent(client, total) for client, total in zip(batch, totals, strict=True)]
        return chunk_of(sent, points[0])

    def sent(self, client: Client, update: Tree | None) -> Tree | None:
        """What leaves a client of its update: the largest coordinates, if it keeps those only."""
        if update is None or self.local.keep == 1:
            return update
        if self.local.feedback is None:
            return largest(update, self.local.keep)
        return self.memory.sent(self.local, client.number, self.step, update)

    def losses(self, points: Sequence[Tree], batch: Sequence[Client]) -> Tensor:
        """The mean loss of every client's rows at each point; NaN where it fails. (points, clients)"""
        return torch.stack([torch.tensor([self._loss(p, client) for client in batch]) for p in points])

    def check(self, params: Tree, take: Take, count: int) -> Spot:
        """See `check_clients`."""
        spot = check_clients(self, params, take, count)
        if spot.like is not None:
            self.ways[modes_of(self.model)] = at_once = most_at_once(self.trainer, params, spot.like)
            if at_once == 1 and self.workers.count:
                self.workers.begin(self.trainer.one)  # so that what keeps them from it costs no round
        return spot

    def check_read(self, take: Take, units: Indices) -> None:
        """See `saltflat.core.reading`; asked again as training goes on, of clients that were drawn."""
        check_each_read(take, units, lambda client: client.rows)

    def _at_once(self, point: Tree, batch: Sequence[Client]) -> int:
        """Decided once for a mode of the model, by the form that most clients' rows have; one alone needs no trial."""
        modes = modes_of(self.model)
        if len(batch) > 1 and modes not in self.ways:
            for like in usual_rows(batch)[:1]:
                self.ways[modes] = most_at_once(self.trainer, point, like)
        return self.ways.get(modes, 1)

    def _loss(self, point: Tree, client: Client) -> float:
        try:
            if not rows_in(client.rows):
                return 0.0
            at = tree.copied(point)
            predict = lambda *args, **kwargs: called(self.model, at, args, kwargs)
            with secret(None), torch.no_grad():
                return float(self.loss(predict, client.rows).mean())
        except Exception:
            return float("nan")


def _combined(updates: Sequence[Tree | None], weights: Sequence[float]) -> Tree | None:
    """sum_k weights_k u_k over the points; None if the client failed at one of them."""
    total: Tree | None = None
    for update, weight in zip(updates, weights, strict=True):
        if update is None:
            return None
        if len(weights) == 1 and weight == 1:
            return update
        total = tree.mul(update, weight) if total is None else tree.add(total, update, scale=weight)
    return total


def chunk_of(updates: Sequence[Tree | None], like: Tree) -> Chunk:
    """Clients' updates as a chunk; whatever is no tree in the form of ``like`` is void: it weighs 0 in every sum.

    *Guarantee*: a void update is NaN everywhere, and so has no norm, in whatever frame and layer; clipping leaves it
    out. A NaN or an infinity that an update holds does the same to that update alone.
    """
    if not updates:
        return Kept(0, [], like)
    sound = [_in_form(update, like) for update in updates]
    parts = [
        Dense(
            name,
            torch.stack(
                [
                    torch.full_like(leaf, torch.nan) if each is None else each[name].detach().to(leaf)
                    for each in sound
                ]
            ),
        )
        for name, leaf in like.items()
    ]
    return Kept(len(updates), parts, like)


def _in_form(update: object, like: Tree) -> Tree | None:
    """The update, if it has the names and shapes of the weights and holds real numbers."""
    if not isinstance(update, dict) or update.keys() != like.keys():
        return None
    for name, leaf in like.items():
        found = update[name]
        if not (isinstance(found, Tensor) and found.shape == leaf.shape and found.is_floating_point()):
            return None
    return update


def per_client(model: nn.Module, loss: Loss, *, local: Local | None = None, workers: int = 0) -> PerClient:
    """One unit is one client: g_i = w - LOCAL_i(w), the difference that its own training makes, gradient-like.

    So ``SGD(lr=1.0)`` on the server is federated averaging, and momentum, Adam and every method work as they do for
    gradients. ``local`` says how a client trains. Small dense models are trained in stacks of many clients; for
    others, ``workers`` processes train clients side by side, 0: this one trains one after the other.

    *Guarantee*: a client's difference depends on that client alone, and is clipped once over all parameters; a client
    that fails in any way adds zero, and the others are computed exactly as they would have been.
    McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018.
    """
    check_whole(model)
    return PerClient(model, loss, local or Local(), workers=Workers(workers))
