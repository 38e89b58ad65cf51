"""What a model must be so that a client's difference depends on that client alone."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter

from saltflat import tree
from saltflat.clipping import Chunk
from saltflat.core.chance import seeded
from saltflat.core.check import Take, check_connected, of_other_sizes
from saltflat.core.layers import check_whole
from saltflat.core.sampling import Batch, mapped, pick, rows_in
from saltflat.core.spot import Held, modes_of
from saltflat.errors import ModelError
from saltflat.federated.clients import Client
from saltflat.federated.together import Trainer, apart, briefly, kind_of, made_up_clients
from saltflat.gradients.chunk import checked_losses
from saltflat.tree import Tree, called

_TOLERANCE = 1e-3  # of an update's length: rounding in float32 is far below, another client's data far above
_FIRST = 64  # clients among which one with rows that can be tried is looked for


class OfClients(Protocol):
    """A contribution whose units are clients that train here."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def trainer(self) -> Trainer: ...

    def still(self) -> OfClients: ...

    def __call__(
        self, points: Sequence[Tree], weights: Sequence[float], batch: Sequence[Client]
    ) -> Chunk: ...


def check_clients(contribution: OfClients, params: Tree, take: Take, count: int) -> LookAgain:
    """Try the model before the first round, and refuse it if anything is off; what comes back looks again later.

    On clients whose rows are made up in the form of the data, or on a client's own rows where the loss does not take
    those: the loss gives one number per row, every trained parameter takes part in it, no tensor of the model changes
    by training, and a client's difference is the same alone, after others and beside them. Rows of one client may
    depend on each other, as a batch norm without running statistics has it: the client is the unit.
    """
    _check_layers(contribution.model)
    held = Held.by(contribution.model)
    trainer = replace(contribution.trainer, local=briefly(contribution.trainer.local), workers=None)
    like, clients = _that_run(trainer, params, usual_rows(list(_some(take, count))))
    held.check(contribution.model)
    if clients:
        _check_connected(trainer, params, clients[-1].rows)
        _check_apart(trainer, params, clients)
        held.check(contribution.model)
    return LookAgain(contribution, held, {modes_of(contribution.model)}, like)


def usual_rows(clients: Sequence[Client]) -> list[Batch]:
    """A client's rows of every form that there is, those of most clients first; a few odd ones decide nothing."""
    kinds = Counter(filter(None, map(kind_of, clients)))
    first = {kind: next(c.rows for c in clients if kind_of(c) == kind) for kind in kinds}
    return [first[kind] for kind, _ in kinds.most_common()]


def _some(take: Take, count: int) -> Iterator[Client]:
    for place in range(min(count, _FIRST)):
        try:
            yield from take(np.array([place]))
        except Exception:  # the same
            continue


def _check_layers(model: nn.Module) -> None:
    check_whole(model)
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise ModelError("the model has lazy layers without a shape yet: run one batch through it first")
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training and module.running_mean is not None:
            raise ModelError(
                f"layer {name!r} is a {type(module).__name__} with running statistics: they come from clients' rows, "
                "reach the next client and would be released without noise; use saltflat.without_batchnorm(model), "
                "build it with track_running_stats=False, or, if its statistics are public, put it into eval mode"
            )


def _that_run(trainer: Trainer, params: Tree, forms: Sequence[Batch]) -> tuple[Batch | None, list[Client]]:
    """The first form of rows that the loss takes, and clients to try; an error if there are rows, and it takes none."""
    why = ""
    for like in forms:
        for made in (made_up_clients, _in_turns):
            try:
                clients = made(like)
                _losses(trainer, params, clients[-1].rows)
                return like, clients
            except ModelError:
                raise
            except Exception as error:  # the words of the first: of made-up rows, and of nothing private
                why = why or next(iter(str(error).strip().splitlines()), type(error).__name__)
    if forms:
        raise ModelError(
            f"the loss fails on clients' rows, and on made-up rows in their form with: {why}; it is called as "
            "loss(predict, batch); a criterion of (outputs, targets) is saltflat.supervised(criterion)"
        )
    return None, []


def _in_turns(rows: Batch) -> list[Client]:
    """Clients that have one client's rows, each in another order."""
    return [Client(k, pick(rows, torch.arange(rows_in(rows)).roll(k))) for k in range(3)]


def _losses(trainer: Trainer, params: Tree, rows: Batch) -> torch.Tensor:
    at = tree.copied(params)
    predict = lambda *args, **kwargs: called(trainer.model, at, args, kwargs)
    with seeded(0):
        return checked_losses(trainer.loss(predict, rows), rows_in(rows))


def _check_connected(trainer: Trainer, params: Tree, rows: Batch) -> None:
    check_connected(lambda leaves: _losses(trainer, leaves, rows), params)


def _check_apart(trainer: Trainer, params: Tree, clients: Sequence[Client]) -> None:
    """Every client's difference is the same in any company: after others, after none, and after two odd ones.

    One of these has NaN; the other far larger and smaller numbers, which a running maximum would remember.
    """
    whole, rows, most = trainer.differences(params, clients), clients[0].rows, len(clients)
    spoilt = mapped(lambda leaf: leaf * torch.nan if leaf.is_floating_point() else leaf, rows)
    odd = [Client(most, spoilt), Client(most + 1, mapped(of_other_sizes, rows))]
    turned = trainer.differences(params, [*odd, *reversed(clients)])[:1:-1]
    alone = [trainer.tried(params, client) for client in clients]
    for client, *found in zip(clients, whole, turned, alone, strict=True):
        _compare(trainer, params, client, found)


def _compare(trainer: Trainer, params: Tree, client: Client, found: Sequence[Tree | None]) -> None:
    first, *others = found
    for other in others:
        if (first is None) != (other is None):
            raise ModelError(_MIXED)
        if first is not None and other is not None:
            gap = apart(first, other)
            if gap > _TOLERANCE and gap > _TOLERANCE + _jitter(trainer, params, client):
                raise ModelError(_MIXED)


def _jitter(trainer: Trainer, params: Tree, client: Client) -> float:
    """What rounding may do to a client alone: many times what a change of each weight by its last digit does.

    Both are trained after the client itself, so that what a model remembers of others is not taken for rounding.
    """
    moved = tree.map_tree(
        lambda leaf: leaf * (1 + torch.finfo(leaf.dtype).eps * torch.randn_like(leaf)), params
    )
    _, alone, other = (trainer.tried(at, client) for at in (params, params, moved))
    return 0.0 if other is None or alone is None else min(0.05, 30 * apart(other, alone))


_MIXED = (
    "one client's update changes with who trained before it or beside it: the model or the loss remembers something of "
    "its calls (a state that is kept, a count, random numbers that are not torch's own); a client's update must depend "
    "on that client alone"
)


@dataclass(frozen=True)
class LookAgain:
    """The spot check: the model's tensors are as they were, and a client of the round adds what it adds alone."""

    contribution: OfClients
    held: Held
    modes: set[tuple[bool, ...]]  # in which clients were found to be apart
    like: Batch | None = field(default=None, repr=False)  # rows of the form that was tried

    def changed(self) -> bool:
        return modes_of(self.contribution.model) not in self.modes

    def __call__(self, params: Tree, batch: Sequence[Client] | None) -> None:
        self.held.check(self.contribution.model)
        if batch is None:
            self.held.clear(self.contribution.model)
        if self.changed():
            _check_layers(self.contribution.model)
        if batch is not None and len(batch) > 1:
            self._compare(params, batch[: max(8, len(batch) // 8)])
            self.modes.add(modes_of(self.contribution.model))
            self.held.check(self.contribution.model)

    def _compare(self, params: Tree, batch: Sequence[Client]) -> None:
        still, one = self.contribution.still(), secrets.randbelow(len(batch))
        chunk = still([params], [1.0], batch)
        norms = chunk.norms()
        if not bool(torch.isfinite(norms[one])):  # it is left out anyway
            return
        only = (torch.arange(len(norms), device=norms.device) == one).to(norms)
        alone = still([params], [1.0], [batch[one]])  # in the same way, in which rounding is the same as well
        found = [chunk.weighted_sum(only), alone.weighted_sum(torch.ones_like(alone.norms()))]
        _compare(still.trainer, params, batch[one], found)
