"""How one client trains: a pure function of the weights that it is sent, its own rows and its own key.

Nothing here needs noise or a clip: the whole client is the unit, and only the difference that training makes leaves it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from saltflat import tree
from saltflat.core.chance import seeded
from saltflat.core.contribution import Loss
from saltflat.core.sampling import Batch, pick, rows_in
from saltflat.errors import SettingError
from saltflat.federated.clients import Client
from saltflat.settings import is_fraction, is_number, is_positive, is_whole
from saltflat.tree import Tree, called

Gradient = Callable[[Tree], Tree]
Laying = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Climb:
    """Sharpness-aware local steps: the gradient is taken at w + e.

        e = radius g / ||g||,   and adaptive   e = radius w^2 g / || |w| g ||

    The adaptive climb is the same function of the model when layers are rescaled against each other; it wants a radius
    about ten times larger. Radius 0 is plain training, bit for bit.
    Foret et al., "Sharpness-Aware Minimization", ICLR 2021; Kwon et al., "ASAM", ICML 2021.
    """

    radius: float
    adaptive: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.radius, 0):
            raise SettingError(f"the radius of the climb must be 0 or more, and finite; got {self.radius!r}")
        if not isinstance(self.adaptive, bool):
            raise SettingError(f"adaptive is True or False; got {self.adaptive!r}")


@dataclass(frozen=True)
class Blur:
    """Bounded local updates: weight / 2 max(0, ||w - w_t||^2 - bound^2) is part of the local objective.

    With ``bound`` about the clip norm, a client that would be clipped is pulled back while it trains.
    Cheng et al., "Differentially Private Federated Learning with Local Regularization and Sparsification", CVPR 2022.
    """

    bound: float
    weight: float = 0.4

    def __post_init__(self) -> None:
        for name in ("bound", "weight"):
            if not is_number(getattr(self, name), 0):
                raise SettingError(
                    f"{name} of Blur must be 0 or more, and finite; got {getattr(self, name)!r}"
                )


@dataclass(frozen=True)
class Feedback:
    """What a client leaves out of its update it keeps, at most ``bound`` long, and adds when it is drawn again."""

    bound: float

    def __post_init__(self) -> None:
        if not is_positive(self.bound):
            raise SettingError(f"bound of Feedback must be positive and finite; got {self.bound!r}")


@dataclass(frozen=True, kw_only=True)
class Local:
    """A client's training: ``epochs`` over its own rows in minibatches, by gradient descent.

        v <- momentum v + (g + weight_decay w),   w <- w - lr lr_decay^round v

    ``climb`` takes g uphill of w (`Climb`), ``blur`` adds to the objective (`Blur`). ``keep`` < 1 leaves the client the
    largest coordinates of its update only, that part of all of them, and nobody else learns which: the noise covers
    every coordinate. ``feedback`` remembers the rest (`Feedback`).

    The order of a client's rows, and whatever its random layers draw, come from its own key: secret and fresh, or with
    a ``seed`` from (seed, round, client's number), for runs that are to be repeated; never from its place in a round.
    """

    epochs: int = 1
    batch_size: int = 32
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    climb: Climb | None = None
    blur: Blur | None = None
    keep: float = 1.0
    feedback: Feedback | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if not is_whole(getattr(self, name)):
                raise SettingError(f"{name} is a whole number, at least 1; got {getattr(self, name)!r}")
        if not (is_positive(self.lr_decay) and self.lr_decay <= 1):
            raise SettingError(
                f"lr_decay is what the learning rate is multiplied by each round, in (0, 1]; got {self.lr_decay!r}"
            )
        if not is_number(self.lr, 0) or not is_number(self.weight_decay, 0):
            raise SettingError(
                f"lr and weight_decay are 0 or more, and finite; got {self.lr!r} and {self.weight_decay!r}"
            )
        if not is_fraction(self.momentum):
            raise SettingError(f"momentum must lie in [0, 1); got {self.momentum!r}")
        self._check_parts()

    def _check_parts(self) -> None:
        if not (is_positive(self.keep) and self.keep <= 1):
            raise SettingError(
                f"keep is the part of an update's coordinates that stays, in (0, 1]; got {self.keep!r}"
            )
        if self.feedback is not None and self.keep == 1:
            raise SettingError(
                "feedback remembers what keep < 1 leaves out, and nothing is left out; set keep, or drop feedback"
            )
        if not (self.seed is None or is_whole(self.seed, 0, 2**63 - 1)):
            raise SettingError(
                f"seed is a whole number from 0 on, or None for secret orders; got {self.seed!r}"
            )
        kinds = {"climb": Climb, "blur": Blur, "feedback": Feedback}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind | None):
                raise SettingError(f"{name} is a {kind.__name__}(...), or None; got {getattr(self, name)!r}")

    def rate_at(self, step: int) -> float:
        """The learning rate of a round, counted from 0."""
        return self.lr * self.lr_decay**step

    def key(self, step: int, number: int) -> int:
        """Where a client's draws of a round begin."""
        if self.seed is None:
            return secrets.randbits(63)
        return int(np.random.SeedSequence([self.seed, step, number]).generate_state(1, np.uint64)[0] >> 1)

    def order(self, rows: int) -> list[Tensor]:
        """The minibatches of all epochs, as places among the client's rows; drawn from the stream that is set."""
        epochs = (torch.randperm(rows) for _ in range(self.epochs)) if rows else ()
        return [part for epoch in epochs for part in epoch.split(self.batch_size)]


def difference(model: nn.Module, loss: Loss, local: Local, *, point: Tree, client: Client, step: int) -> Tree:
    """w - LOCAL(w): what one client adds at one point, before anything is left out of it.

    ``step`` is the round, counted from 0. A client without rows adds 0.
    """
    key, convolves = local.key(step, client.number), any(leaf.ndim == 4 for leaf in point.values())
    try:
        with seeded(key):
            after = _trained(model, loss, local, point, client.rows, step, laid=_with_channels_last)
    except RuntimeError:  # a view of a tensor whose channels are last, perhaps
        if not convolves:
            raise
        with seeded(key):
            after = _trained(model, loss, local, point, client.rows, step)
    return tree.map_tree(lambda before, found: (before - found).contiguous(), point, after)


@dataclass(frozen=True)
class Training:
    """A model, a loss and how a client trains in a round: all that one client needs beside the point and its rows."""

    model: nn.Module
    loss: Loss
    local: Local
    step: int = 0

    def alone(self, point: Tree, client: Client) -> Tree:
        """w - LOCAL(w) of one client."""
        return difference(self.model, self.loss, self.local, point=point, client=client, step=self.step)

    def tried(self, point: Tree, client: Client) -> Tree | None:
        """The same; None where anything fails, and nothing is said of it."""
        try:
            return self.alone(point, client)
        except Exception:
            return None


def _with_channels_last(leaf: Tensor) -> Tensor:
    """Convolutions and poolings on a CPU take half the time so.

    It is asked for at every step: sums of such tensors forget it where there is one channel only.
    """
    return leaf.to(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf


def _trained(
    model: nn.Module,
    loss: Loss,
    local: Local,
    point: Tree,
    rows: Batch,
    step: int,
    *,
    laid: Laying | None = None,
) -> Tree:
    at, velocity, lr = tree.copied(point), tree.zeros_like(point), local.rate_at(step)
    for part in local.order(rows_in(rows)):
        batch = pick(rows, part)

        def value(here: Tree, batch: Batch = batch) -> Tensor:
            here = here if laid is None else tree.map_tree(laid, here)
            predict = lambda *args, **kwargs: called(model, here, args, kwargs)
            return objective(loss(predict, batch).mean(), local.blur, here, point)

        at, velocity = descend(local, lr, lambda here: gradient_of(value, here), at, velocity)
    return at


def gradient_of(value: Callable[[Tree], Tensor], at: Tree) -> Tree:
    """The gradient of a number at a point; 0 for what takes no part in it."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in at.items()}
    with torch.enable_grad():
        grads = torch.autograd.grad(value(leaves), list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), grads, strict=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else tree.dense(grad) for (name, leaf), grad in pairs
    }


def objective(mean: Tensor, blur: Blur | None, at: Tree, start: Tree) -> Tensor:
    """What a client minimises: its mean loss, and what `Blur` adds."""
    if blur is None:
        return mean
    square = torch.stack([(at[name] - leaf).square().sum() for name, leaf in start.items()]).sum()
    return mean + blur.weight / 2 * (square - blur.bound**2).clamp(min=0)


def descend(local: Local, lr: float, gradient: Gradient, at: Tree, velocity: Tree) -> tuple[Tree, Tree]:
    """One local step: the weights after it, and the velocity."""
    g = gradient(at)
    if local.climb is not None and local.climb.radius > 0:
        g = gradient(climbed(at, g, local.climb))
    if local.weight_decay:
        g = tree.add(g, at, scale=local.weight_decay)
    velocity = tree.add(g, velocity, scale=local.momentum) if local.momentum else g
    return tree.add(at, velocity, scale=-lr), velocity


def climbed(at: Tree, gradient: Tree, climb: Climb) -> Tree:
    """w + e, see `Climb`; where the gradient is 0 it is w."""
    along = tree.map_tree(lambda g, w: g * w.abs(), gradient, at) if climb.adaptive else gradient
    square = torch.stack([leaf.square().sum() for leaf in along.values()]).sum()
    scale = climb.radius / (square.sqrt() + 1e-16)
    if climb.adaptive:
        along = tree.map_tree(lambda g, w: g * w.abs(), along, at)
    return tree.map_tree(lambda w, e: w + scale * e, at, along)


def largest(update: Tree, keep: float) -> Tree:
    """The update with all but its largest coordinates 0, whichever parameters these belong to.

    >>> largest({"w": torch.tensor([1.0, -3.0]), "b": torch.tensor([2.0, 0.5])}, keep=0.5)
    {'w': tensor([ 0., -3.]), 'b': tensor([2., 0.])}
    """
    return update if keep == 1 else tree.times(update, tree.largest(update, keep))


@dataclass
class Memory:
    """What clients left out of their updates so far: each its own, in this process, and in no file.

    r <- (u + r) - largest(u + r),   ||r|| at most `Feedback`'s bound. A second question in one round begins where the
    first one did. A run that goes on after a stop begins with empty memories: a checkpoint is the server's, and these
    numbers have no noise.

    *Guarantee*: r enters through clipped updates of its own client only, so that every round costs what it would
    without. It depends on the rounds in which its client was drawn: under Poisson sampling those of the others say
    nothing of it, and may be taken as known. Under draws of a fixed size they may not, so do not use it there.
    """

    kept: dict[int, tuple[int, Tree | None, Tree]] = field(default_factory=dict, repr=False)

    def sent(self, local: Local, number: int, step: int, update: Tree) -> Tree:
        """The part of update and memory that leaves; the rest is kept for the next time."""
        assert local.feedback is not None
        before = self._before(number, step)
        whole = update if before is None else tree.add(update, before)
        sent = largest(whole, local.keep)
        rest = tree.sub(whole, sent)
        length = float(tree.norm(rest))
        if not math.isfinite(length):  # the update is void, and the memory stays
            return whole
        self.kept[number] = (step, before, tree.mul(rest, min(1.0, local.feedback.bound / (length or 1.0))))
        return sent

    def _before(self, number: int, step: int) -> Tree | None:
        """What the client had kept when this round began; nothing, where rounds begin anew."""
        last, before, after = self.kept.get(number, (-1, None, {}))
        if last == step:
            return before
        return after if 0 <= last < step else None
