"""Plain training on public examples: SGD with momentum and a cosine, at the weights or where SAM climbs from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saltflat.errors import ModelError, SettingError
from saltflat.settings import check_descent, is_number
from saltflat.tree import Tree, add, called, dense, mul, norm, times
from saltflat.warmup.known import Watch

LEAST = 1e-12  # what is added to a length before it divides
Predict = Callable[..., Tensor]
Loss = Callable[[Predict, int], Tensor]  # the model at some weights, a step's number -> the step's mean loss


@dataclass(frozen=True, kw_only=True)
class Descent:
    """w <- w - lr_t v,   v <- momentum v + (g + weight_decay w),   lr_t = lr (1 + cos(pi t / T)) / 2

        g = grad L(w)                                            plain, ``radius`` 0
        g = grad L(w + radius h / ||h||),     h = grad L(w)      SAM (Foret et al., ICLR 2021)
        g = grad L(w + radius w^2 h / ||w h||)                   ``adaptive`` (Kwon et al., ICML 2021)

    One minibatch serves both gradients of a step.
    """

    epochs: int = 20
    batch_size: int = 100
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    radius: float = 0.0
    adaptive: bool = False

    def __post_init__(self) -> None:
        check_descent(self.epochs, self.batch_size, self.lr, self.momentum)
        for name in ("weight_decay", "radius"):
            if not is_number(getattr(self, name), 0):
                raise SettingError(f"{name} must be 0 or more, and finite; got {getattr(self, name)!r}")
        if not isinstance(self.adaptive, bool):
            raise SettingError(f"adaptive is True or False; got {self.adaptive!r}")

    def descended(self, model: nn.Module, loss: Loss, steps: int, *, seed: int, watch: Watch) -> None:
        """Move the model's trained weights by so many steps; its random layers draw from the public ``seed``."""
        params = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        speed: Tree = {}
        model.train()
        for step in range(steps):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed((seed * 1_000_003 + step) % 2**63)
                gradient = self.gradient(model, params, lambda predict, step=step: loss(predict, step))  # type: ignore[misc]
            gradient = add(gradient, params, scale=self.weight_decay) if self.weight_decay else gradient
            speed = add(gradient, speed, scale=self.momentum) if speed and self.momentum else gradient
            rate = self.lr * (1 + math.cos(math.pi * step / steps)) / 2
            params = add(params, speed, scale=-rate)
            watch(step + 1, steps)
        if not all(bool(leaf.isfinite().all()) for leaf in params.values()):
            raise ModelError("the warm-up diverged: its weights are not finite; lower its lr")
        model.load_state_dict(params, strict=False)
        model.eval()

    def gradient(self, model: nn.Module, params: Tree, loss: Callable[[Predict], Tensor]) -> Tree:
        """g at these weights."""
        found = gradient_of(model, params, loss)
        if self.radius == 0:
            return found
        uphill = times(found, params) if self.adaptive else found
        length = float(norm(uphill)) + LEAST
        climb = mul(times(uphill, params) if self.adaptive else uphill, self.radius / length)
        return gradient_of(model, add(params, climb), loss)


def gradient_of(model: nn.Module, params: Tree, loss: Callable[[Predict], Tensor]) -> Tree:
    """The gradient of a loss at ``params``, by plain automatic differentiation; 0 where a weight takes no part."""
    at = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    predict = lambda *inputs: called(model, at, inputs)
    found = torch.autograd.grad(loss(predict), list(at.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else dense(gradient)
        for (name, leaf), gradient in zip(at.items(), found, strict=True)
    }
