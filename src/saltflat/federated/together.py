"""The in-process engine: many small clients trained at once, larger ones one after the other; the same numbers.

Together, the weights of several clients are one stack, and `torch.func.vmap` runs a local step for all of them.
Measured on one core: with dense networks of up to some 100,000 weights it is 1.5 to 25 times faster than one by one;
with more weights the stack leaves the cache, and it is slower. Convolutions are slower together in any case, whether as
grouped convolutions or as products of unfolded images: one by one, with channels last, they take half the time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from saltflat import tree
from saltflat.core.chance import seeded
from saltflat.core.contribution import Loss
from saltflat.core.sampling import Batch, form_of, joined, leaves, mapped, pick, rows_in
from saltflat.federated.clients import Client
from saltflat.federated.local import Local, Training, descend, objective
from saltflat.federated.workers import Workers
from saltflat.gradients.width import NARROW
from saltflat.tree import Tree, called

STACK = 1_000_000  # weights of all clients at once: more do not stay in the cache
FEWEST, MOST = 8, 128  # clients at once: fewer are no faster than one by one, more gain nothing

log = logging.getLogger("saltflat")


@dataclass(frozen=True)
class Trainer:
    """A model, a loss and how a client trains: all that a round needs beside the point and the clients."""

    model: nn.Module
    loss: Loss
    local: Local
    step: int = 0
    workers: Workers | None = None

    @property
    def one(self) -> Training:
        """What trains one client by itself."""
        return Training(self.model, self.loss, self.local, self.step)

    def alone(self, point: Tree, client: Client) -> Tree:
        """w - LOCAL(w) of one client."""
        return self.one.alone(point, client)

    def tried(self, point: Tree, client: Client) -> Tree | None:
        """The same; None where anything fails, and nothing is said of it."""
        return self.one.tried(point, client)

    def differences(self, point: Tree, clients: Sequence[Client], at_once: int = 1) -> list[Tree | None]:
        """w - LOCAL(w) of every client, in their order; None for one that fails.

        *Guarantee*: a client's difference is made of its rows, its number, the point and the round. Its minibatches are
        as wide as its own rows ask for, and one that nobody stands beside is a stack of one, so that who else is there
        does not even decide about rounding, which many local steps may magnify.
        """
        found: list[Tree | None] = [None] * len(clients)
        alone = list[int]()
        for places in _groups(clients, at_once, self.local):
            if at_once == 1 or not kind_of(clients[places[0]]):
                alone += places
                continue
            some = self._without_offenders(point, [clients[place] for place in places])
            for place, each in zip(places, some, strict=True):
                found[place] = each
        for place, each in zip(alone, self._one_by_one(point, [clients[k] for k in alone]), strict=True):
            found[place] = each
        return found

    def _one_by_one(self, point: Tree, clients: Sequence[Client]) -> list[Tree | None]:
        """Clients that are no stack: side by side where there are workers, else one after the other."""
        if self.workers is None or self.workers.count == 0 or len(clients) < 2:
            return [self.tried(point, client) for client in clients]
        return self.workers.differences(self.one, point, clients)

    def _without_offenders(self, point: Tree, clients: Sequence[Client]) -> list[Tree | None]:
        """A client that fails alone is void, and another stands in for it, so that the others' shapes stay the same."""
        try:
            return list(self.together(point, clients))
        except Exception:
            sound = [self.tried(point, client) is not None for client in clients]
        if not any(sound):
            return [None] * len(clients)
        stand_in = clients[sound.index(True)]
        try:
            some = self.together(point, [c if ok else stand_in for c, ok in zip(clients, sound, strict=True)])
        except Exception:  # together they cannot run, though each can: one by one then
            return [self.tried(point, client) for client in clients]
        return [each if ok else None for each, ok in zip(some, sound, strict=True)]

    def together(self, point: Tree, clients: Sequence[Client]) -> list[Tree]:
        """w - LOCAL(w) of clients of one kind (see `kind_of`), trained as one stack."""
        laid = _Laid.out(clients, self.local, self.step)
        lr, blur = self.local.rate_at(self.step), self.local.blur

        def one(at: Tree, velocity: Tree, batch: Batch, weights: Tensor) -> tuple[Tree, Tree]:
            def value(here: Tree) -> Tensor:
                predict = lambda *args, **kwargs: called(self.model, here, args, kwargs)
                return objective((self.loss(predict, batch) * weights).sum(), blur, here, point)

            return descend(self.local, lr, grad(value), at, velocity)

        at = tree.map_tree(lambda leaf: leaf.expand(len(clients), *leaf.shape).clone(), point)
        velocity, done = tree.zeros_like(at), list[Tree]()
        for batch, weights in laid.minibatches():
            left, done = len(weights), [_from(at, len(weights)), *done]  # who is through stays where it is
            at, velocity = _upto(at, left), _upto(velocity, left)
            at, velocity = vmap(one)(at, velocity, batch, weights.to(next(iter(at.values()))))
        ends = tree.map_tree(lambda *parts: torch.cat(parts), at, *done)
        gone = tree.map_tree(lambda leaf, stack: leaf - stack, point, ends)
        found = {k: {name: leaf[row] for name, leaf in gone.items()} for row, k in enumerate(laid.ranks)}
        return [found[k] for k in range(len(clients))]


def _upto(stack: Tree, count: int) -> Tree:
    return tree.map_tree(lambda leaf: leaf[:count], stack)


def _from(stack: Tree, count: int) -> Tree:
    return tree.map_tree(lambda leaf: leaf[count:], stack)


@dataclass(frozen=True)
class _Laid:
    """The rows of several clients, one after the other, and which of them each client takes at each local step.

    Clients stand by their number of steps, those with most first, so that who is through leaves at the stack's end; a
    minibatch that is not full is padded with a row of its own that weighs nothing.
    """

    rows: Batch = field(repr=False)
    ranks: Sequence[int] = field(repr=False)  # the clients, in the order of the stack
    steps: Sequence[tuple[Tensor, Tensor]] = field(repr=False)  # places and weights, (clients left, width)

    @classmethod
    def out(cls, clients: Sequence[Client], local: Local, step: int) -> _Laid:
        orders = [_order(client, local, step) for client in clients]
        ranks = sorted(range(len(clients)), key=lambda k: -len(orders[k]))
        sizes, width = [rows_in(client.rows) for client in clients], max(_width(c, local) for c in clients)
        firsts = [sum(sizes[:k]) for k in range(len(clients))]
        steps = [
            _padded([firsts[k] + orders[k][t] for k in ranks if len(orders[k]) > t], width)
            for t in range(len(orders[ranks[0]]))
        ]
        return cls(joined([client.rows for client in clients]), ranks, steps)

    def minibatches(self) -> Iterator[tuple[Batch, Tensor]]:
        """Of every local step: rows (clients left, width, ...) and their weights (clients left, width)."""
        for places, weights in self.steps:
            yield pick(self.rows, places), weights


def _width(client: Client, local: Local) -> int:
    """How wide a client's minibatches are laid: the next power of two, by its own rows alone, or the whole batch."""
    return min(local.batch_size, 1 << (rows_in(client.rows) - 1).bit_length())


def _padded(parts: Sequence[Tensor], width: int) -> tuple[Tensor, Tensor]:
    """Minibatches as a table of places, and the weight of each: a mean over those that are real."""
    places = torch.stack([torch.cat([part, part[:1].expand(width - len(part))]) for part in parts])
    sizes = torch.tensor([len(part) for part in parts], dtype=torch.float64).unsqueeze(1)
    return places, (torch.arange(width) < sizes) / sizes


def _order(client: Client, local: Local, step: int) -> list[Tensor]:
    with seeded(local.key(step, client.number)):
        return local.order(rows_in(client.rows))


def _groups(clients: Sequence[Client], at_once: int, local: Local) -> Iterator[list[int]]:
    """Places of clients that are trained together: of one kind, with about as many rows; others each by itself."""
    kinds: dict[str, list[int]] = {}
    for place, client in enumerate(clients):
        kind = kind_of(client)
        kinds.setdefault(f"{kind} {_width(client, local)}" if kind else "", []).append(place)
    for kind, places in kinds.items():
        if at_once == 1 or not kind:
            yield from ([place] for place in places)
            continue
        by_size = sorted(places, key=lambda place: rows_in(clients[place].rows))
        yield from (by_size[first : first + at_once] for first in range(0, len(by_size), at_once))


def kind_of(client: Client) -> str:
    """The form of a client's rows; empty for one without rows, or whose tensors are no rows of one number.

    In a stack, a client with more labels than images would move the labels of all that come after it.
    """
    try:
        (rows,) = {len(leaf) for leaf in leaves(client.rows)}
        return str(form_of(client.rows)) if rows else ""
    except Exception:
        return ""


def most_at_once(trainer: Trainer, point: Tree, like: Batch) -> int:
    """How many clients to train together, 1 for one by one; tried on clients made up in the form of ``like``.

    Nothing of the data but its form is used. A model that cannot be trained together (random layers, recurrent ones, a
    batch statistic, control flow) is trained one by one, and a log line says so; so is one with convolutions.
    """
    most = min(MOST, STACK // max(1, tree.size(point)))
    narrow = any(leaf.dtype in NARROW for leaf in point.values())  # whose kernels round by who is beside
    if most < FEWEST or narrow or any(leaf.ndim == 4 for leaf in point.values()):
        return 1
    clients = made_up_clients(like)
    brief = replace(trainer, local=briefly(trainer.local))
    try:
        mine, other = brief.together(point, clients), [brief.alone(point, client) for client in clients]
    except Exception as error:
        log.info(
            "clients are trained one by one: this model cannot be run together (%s)", type(error).__name__
        )
        return 1
    if max(map(apart, mine, other)) > 1e-3:
        log.info("clients are trained one by one: this model's rows depend on each other within a minibatch")
        return 1
    return most


def briefly(local: Local) -> Local:
    """The same training in a few small steps and in a known order, for trials."""
    return replace(local, epochs=min(local.epochs, 2), batch_size=3, seed=0, keep=1.0, feedback=None)


def made_up_clients(like: Batch, sizes: Sequence[int] = (2, 3, 5, 8)) -> list[Client]:
    """Clients whose rows have the form of ``like`` and nothing else of it."""
    source = torch.Generator().manual_seed(0)

    def made(rows: int) -> Batch:
        def leaf_of(leaf: Tensor) -> Tensor:
            shape = (rows, *leaf.shape[1:])
            if not leaf.is_floating_point():  # 0 and 1 are classes, tokens and masks almost anywhere
                return torch.randint(2, shape, generator=source).to(leaf)
            return torch.randn(shape, generator=source).to(leaf)

        return mapped(leaf_of, like)

    return [Client(number, made(rows)) for number, rows in enumerate(sizes)]


def apart(mine: Tree, other: Tree) -> float:
    """How far two updates are apart, beside their length."""
    length = float(tree.norm(mine)) + float(tree.norm(other))
    return float(tree.norm(tree.sub(mine, other))) / (length + 1e-12)
