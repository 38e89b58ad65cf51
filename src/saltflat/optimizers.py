"""Update rules for released directions. All of this is post-processing, and free.

An optimizer is a pair of functions, ``init(params) -> state`` and
``step(params, direction, state) -> (params, state)``; state is a value, and nothing is changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from saltflat import tree
from saltflat.door import PublicGradients, check_pair, check_public
from saltflat.errors import SettingError
from saltflat.schedules import Schedule, at, first
from saltflat.settings import is_fraction, is_number, is_positive, is_whole
from saltflat.tree import Released, Tree

__all__ = ["EMA", "SGD", "Adam", "AdamBC", "AntiNoise", "MirrorDescent", "Torch"]


class Optimizer(Protocol):
    """An update rule."""

    def init(self, params: Tree) -> Any: ...

    def step(self, params: Tree, direction: Tree, state: Any) -> tuple[Tree, Any]: ...


@dataclass(frozen=True, kw_only=True)
class SGD:
    """v <- momentum v + g;  w <- w - lr v.  (Heavy ball, no dampening.)

    ``weight_decay`` adds weight_decay * w to g, after the noise.

    >>> sgd = SGD(lr=0.5, momentum=0.9)
    >>> w, g = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
    >>> w, state = sgd.step(w, g, sgd.init(w))
    >>> sgd.step(w, g, state)[0]
    {'w': tensor([-1.4500])}
    """

    lr: Schedule
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        _check_fraction("momentum", self.momentum)
        _check_decay(self.weight_decay)

    def init(self, params: Tree) -> tuple[int, Tree | None]:
        return 0, None

    def step(self, params: Tree, direction: Tree, state: tuple[int, Tree | None]) -> tuple[Tree, Any]:
        count, velocity = state
        if self.weight_decay:
            direction = tree.add(direction, params, scale=self.weight_decay)
        if self.momentum and velocity is not None:
            direction = tree.add(direction, velocity, scale=self.momentum)
        params = tree.add(params, direction, scale=-at(self.lr, count))
        return params, (count + 1, direction if self.momentum else None)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  w <- w - lr m^ / (sqrt(v^) + eps).

    m^ and v^ are m and v divided by 1 - b^t. Kingma and Ba, "Adam", ICLR 2015.
    """

    lr: Schedule
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        _check_betas(self.betas)
        _check_decay(self.weight_decay)
        if not is_positive(self.eps):
            raise SettingError(f"eps must be positive and finite; got {self.eps!r}")

    def init(self, params: Tree) -> tuple[int, Tree, Tree]:
        return 0, tree.zeros_like(params), tree.zeros_like(params)

    def step(self, params: Tree, direction: Tree, state: tuple[int, Tree, Tree]) -> tuple[Tree, Any]:
        count, mean, square = state
        (b1, b2), t = self.betas, count + 1
        if self.weight_decay:
            direction = tree.add(direction, params, scale=self.weight_decay)
        mean = tree.map_tree(lambda m, g: torch.lerp(m, g, 1 - b1), mean, direction)
        square = tree.map_tree(lambda v, g: torch.lerp(v, g * g, 1 - b2), square, direction)
        size = at(self.lr, count) / (1 - b1**t)
        root = math.sqrt(1 - b2**t)

        def moved(w: Tensor, m: Tensor, v: Tensor) -> Tensor:
            return torch.addcdiv(w, m, v.sqrt() / root + self.eps, value=-size)

        return tree.map_tree(moved, params, mean, square), (t, mean, square)


@dataclass(frozen=True, kw_only=True)
class AdamBC:
    """Adam without the bias that the noise puts on its second moment (DP-AdamBC).

        m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  p <- b2 p + (1 - b2) s^2
        w <- w - lr m^ / sqrt(max(v^ - p^, floor))

    s = sigma C / expected is the standard deviation of the noise on g, which every answer of the door carries;
    it may change from step to step. ``floor`` wants tuning around s^2.

    *Guarantee*: free post-processing; it reads the noise's variance, a public constant, never the noise.
    Tang, Shpilevskiy and Lecuyer, "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias
    Correction)", AAAI 2024.

    >>> adam = AdamBC(lr=0.1)
    >>> w = {"w": torch.zeros(1)}
    >>> adam.step(w, Released({"w": torch.full((1,), 5.0)}, noise_std=3.0), adam.init(w))[0]
    {'w': tensor([-0.1250])}
    """

    lr: Schedule
    betas: tuple[float, float] = (0.9, 0.999)
    floor: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        _check_betas(self.betas)
        _check_decay(self.weight_decay)
        if not is_positive(self.floor):
            raise SettingError(f"floor must be positive and finite; got {self.floor!r}")

    def init(self, params: Tree) -> tuple[int, Tree, Tree, float]:
        return 0, tree.zeros_like(params), tree.zeros_like(params), 0.0

    def step(self, params: Tree, direction: Tree, state: tuple[int, Tree, Tree, float]) -> tuple[Tree, Any]:
        count, mean, square, noise = state
        (b1, b2), t = self.betas, count + 1
        noise = b2 * noise + (1 - b2) * _noise_std(direction) ** 2
        if self.weight_decay:
            direction = tree.add(direction, params, scale=self.weight_decay)
        mean = tree.map_tree(lambda m, g: torch.lerp(m, g, 1 - b1), mean, direction)
        square = tree.map_tree(lambda v, g: torch.lerp(v, g * g, 1 - b2), square, direction)
        size, whole = at(self.lr, count) / (1 - b1**t), 1 - b2**t

        def moved(w: Tensor, m: Tensor, v: Tensor) -> Tensor:
            return torch.addcdiv(w, m, ((v - noise) / whole).clamp(min=self.floor).sqrt(), value=-size)

        return tree.map_tree(moved, params, mean, square), (t, mean, square, noise)


@dataclass(frozen=True)
class AntiNoise:
    """w <- optimizer's w + distance g_(t-1) / ||g_(t-1)||: each step takes back some of the one before.

    What is left of the public DP-SAT code's drift when its climb is taken away: a control, and with `SAT`'s
    ``drift`` that code itself. Free post-processing. (See `saltflat.methods.sat`.)
    """

    optimizer: Optimizer
    distance: float

    def __post_init__(self) -> None:
        check_pair("optimizer", self.optimizer, "SGD(lr=2.0)")
        if not is_number(self.distance, 0):
            raise SettingError(f"distance must be 0 or more, and finite; got {self.distance!r}")

    def init(self, params: Tree) -> tuple[Any, Tree]:
        return self.optimizer.init(params), tree.zeros_like(params)

    def step(self, params: Tree, direction: Tree, state: tuple[Any, Tree]) -> tuple[Tree, Any]:
        memory, last = state
        params, memory = self.optimizer.step(params, direction, memory)
        return tree.climb(params, last, self.distance), (memory, direction)


@dataclass(frozen=True, kw_only=True)
class MirrorDescent:
    """w <- argmin_u lr <g, u> + B(u, w), with B the Bregman divergence of ||u||^2 / 2 + strength public_loss(u).

    The exact step of public-data mirror descent: it goes far where the public loss is flat, and not far where it is
    curved. At ``strength`` 0 it is SGD. The problem is solved by L-BFGS on all public examples, ``iterations`` at
    most, so it is offered for models whose outputs are linear in the weights, where it is convex (with
    cross-entropy or squared error); `saltflat.methods.Mirror` is the first-order form for any model.

    *Guarantee*: free post-processing by public examples.
    Amid et al., "Public Data-Assisted Mirror Descent for Private Model Training", ICML 2022.
    """

    public: PublicGradients
    lr: Schedule
    strength: float = 1.0
    iterations: int = 50

    def __post_init__(self) -> None:
        check_public(self.public)
        _check_rate(self.lr)
        if not is_number(self.strength, 0):
            raise SettingError(f"strength must be 0 or more, and finite; got {self.strength!r}")
        if not is_whole(self.iterations, 1):
            raise SettingError(f"iterations is a whole number, at least 1; got {self.iterations!r}")

    def init(self, params: Tree) -> int:
        self.public.check_linear(params)
        return 0

    def step(self, params: Tree, direction: Tree, state: int) -> tuple[Tree, int]:
        linear = tree.mul(direction, at(self.lr, state))
        if self.strength == 0:
            return tree.sub(params, linear), state + 1
        slope = tree.sub(linear, tree.mul(self.public.gradient(params), self.strength))
        return self._solved(params, slope), state + 1

    def _solved(self, params: Tree, slope: Tree) -> Tree:
        """The minimum of <slope, u - w> + ||u - w||^2 / 2 + strength loss(u)."""
        own = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
        solver = torch.optim.LBFGS(
            list(own.values()),
            max_iter=self.iterations,
            tolerance_grad=1e-9,
            tolerance_change=1e-18,
            line_search_fn="strong_wolfe",
        )

        def value() -> Tensor:
            here = {name: leaf.detach() for name, leaf in own.items()}
            moved, uphill = tree.sub(here, params), self.public.gradient(here)
            for name, leaf in own.items():
                leaf.grad = slope[name] + moved[name] + self.strength * uphill[name]
            loss = self.strength * self.public.loss(here)
            return tree.dot(slope, moved) + tree.dot(moved, moved) / 2 + loss

        solver.step(value)
        return {name: leaf.detach() for name, leaf in own.items()}


@dataclass(frozen=True)
class Torch:
    """Any `torch.optim` optimizer, with any of its schedulers, on released directions.

    ``scheduler`` is stepped after every step.

    >>> adamw = Torch(lambda ps: torch.optim.AdamW(ps, lr=0.1))
    >>> w = {"w": torch.zeros(1)}
    >>> adamw.step(w, {"w": torch.ones(1)}, adamw.init(w))[0]
    {'w': tensor([-0.1000])}
    """

    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None

    def __post_init__(self) -> None:
        for name, made in (("optimizer", self.optimizer), ("scheduler", self.scheduler)):
            if not (callable(made) or (name == "scheduler" and made is None)):
                raise SettingError(
                    f"{name} is a function that builds one, such as lambda p: torch.optim.AdamW(p, lr=1e-3); got a "
                    f"{type(made).__name__}"
                )

    def init(self, params: Tree) -> Any:
        own = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
        optimizer = self.optimizer(own.values())
        return own, optimizer, self.scheduler(optimizer) if self.scheduler else None

    def step(self, params: Tree, direction: Tree, state: Any) -> tuple[Tree, Any]:
        own, optimizer, scheduler = state
        for name, leaf in own.items():
            leaf.grad = direction[name]
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        return {name: leaf.detach().clone() for name, leaf in own.items()}, state

    def pack(self, state: Any) -> Any:
        """The state in plain values, for a checkpoint; the weights are the run's own."""
        _, optimizer, scheduler = state
        return optimizer.state_dict(), scheduler.state_dict() if scheduler is not None else None

    def unpack(self, packed: Any, params: Tree) -> Any:
        """A new optimizer and scheduler with what `pack` gave."""
        own, optimizer, scheduler = self.init(params)
        optimizer.load_state_dict(packed[0])
        if tree.has_shards(params):  # what was kept is whole
            for leaf in own.values():
                for name, value in optimizer.state[leaf].items():
                    if isinstance(value, Tensor) and value.shape == leaf.shape and value.ndim:
                        optimizer.state[leaf][name] = tree.cut(value, leaf)
        if scheduler is not None:
            scheduler.load_state_dict(packed[1])
        return own, optimizer, scheduler


@dataclass(frozen=True)
class EMA:
    """The running mean of the weights, m <- d m + (1 - d) w with d = min(decay, (1 + t) / (10 + t)).

    The second form of d lets it warm up. Free post-processing.
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        _check_fraction("decay", self.decay)

    def init(self, params: Tree) -> tuple[int, Tree]:
        return 0, params

    def step(self, params: Tree, state: tuple[int, Tree]) -> tuple[int, Tree]:
        count, mean = state
        decay = min(self.decay, (1 + count) / (10 + count))
        return count + 1, tree.map_tree(lambda m, w: torch.lerp(m, w, 1 - decay), mean, params)


def _noise_std(direction: Tree) -> float:
    if isinstance(direction, Released):
        return direction.noise_std
    raise SettingError(
        "AdamBC needs the noise level of its direction, which an answer of ask carries; this method returned "
        "another tree: wrap it as Released(tree, noise_std=...), or take Adam"
    )


def _check_rate(rate: Schedule) -> None:
    by_step = is_number(first(rate), 0) if callable(rate) and not isinstance(rate, type) else False
    if not (by_step or is_positive(rate)):
        raise SettingError(
            f"a learning rate is positive and finite, or a function of the step that gives such; got lr={rate!r}"
        )


def _check_fraction(name: str, value: float) -> None:
    if not is_fraction(value):
        raise SettingError(f"{name} must lie in [0, 1); got {value!r}")


def _check_betas(betas: tuple[float, float]) -> None:
    if not (isinstance(betas, tuple | list) and len(betas) == 2 and all(map(is_fraction, betas))):
        raise SettingError(f"betas must be two numbers that lie in [0, 1); got {betas!r}")


def _check_decay(decay: float) -> None:
    if not is_number(decay, 0):
        raise SettingError(f"weight_decay must be 0 or more, and finite; got {decay!r}")
