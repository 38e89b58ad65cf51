"""Diffusion models by the equations of EDM: what a network is asked for, the loss that it is trained by, the sampler.

A network F(x, c) takes inputs of about unit variance and a number for the noise level, and gives outputs of about
unit variance; `EDM` makes a denoiser of it, D(x, sigma), the mean of clean examples given a noisy one. Everything
here is about public examples: a generator knows those by heart that it was fitted to (see `metrics.copies`). Written
out rather than taken from diffusers: it is one page, and that library is a large dependency for it.
docs/synthesis.md says more on this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Generator, Tensor

from saltflat.errors import SettingError
from saltflat.settings import is_number, is_positive, is_whole

Network = Callable[[Tensor, Tensor], Tensor]  # scaled inputs (n, ...), noise levels' code (n,) -> (n, ...)
Denoiser = Callable[[Tensor, Tensor], Tensor]  # noisy examples (n, ...), noise levels (n,) -> clean ones
Guide = Callable[[Tensor, Tensor], Tensor]  # states (n, ...), a noise level () -> what is taken off the slope
MOST_CHURN = 2**0.5 - 1  # of a noise level that one step may add


class Diffusion(Protocol):
    """What a network is trained by, and how examples are drawn from it: `EDM`, or the older `DDPM`."""

    def loss(self, network: Network, clean: Tensor, source: Generator) -> Tensor: ...

    def drawn(self, network: Network, shape: Sequence[int], source: Generator, steps: int = 18) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class EDM:
    """D(x, s) = c_skip x + c_out F(c_in x, ln(s) / 4), with d the standard deviation of data.

        c_skip = d^2 / (s^2 + d^2)     c_out = s d / sqrt(s^2 + d^2)     c_in = 1 / sqrt(s^2 + d^2)

    So F's inputs and targets have variance 1 at every noise level. Noise levels in training are log-normal,
    ln s ~ N(``log_mean``, ``log_std``^2); in sampling they fall from ``most`` to ``least`` along a power ``bend``.
    Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models", NeurIPS 2022.

    >>> [round(float(level), 3) for level in EDM().levels(4)]
    [80.0, 9.723, 0.47, 0.002, 0.0]
    """

    deviation: float = 0.5
    least: float = 0.002
    most: float = 80.0
    bend: float = 7.0
    log_mean: float = -1.2
    log_std: float = 1.2

    def __post_init__(self) -> None:
        for name in ("deviation", "least", "most", "bend", "log_std"):
            if not is_positive(getattr(self, name)):
                raise SettingError(f"{name} must be positive and finite; got {getattr(self, name)!r}")
        if not is_number(self.log_mean):
            raise SettingError(f"log_mean is a finite number; got {self.log_mean!r}")
        if self.least >= self.most:
            raise SettingError(f"noise falls from most to least; got {self.most} to {self.least}")

    def denoiser(self, network: Network) -> Denoiser:
        """D, made of F."""

        def denoise(noisy: Tensor, level: Tensor) -> Tensor:
            s = beside(level, noisy)
            both = (s.square() + self.deviation**2).sqrt()
            asked = network((noisy / both).to(noisy.dtype), level.log() / 4)
            return (self.deviation / both) ** 2 * noisy + s * self.deviation / both * asked

        return denoise

    def loss(self, network: Network, clean: Tensor, source: Generator) -> Tensor:
        """The weighted squared error of D on each example, a mean over its coordinates; (n,).

        (s^2 + d^2) / (s d)^2 ||D(y + s n, s) - y||^2: a network that gives 0 has loss 1 at every noise level, if the
        data has mean 0 and deviation d.
        """
        draw = lambda *shape: torch.randn(*shape, generator=source, dtype=clean.dtype).to(clean.device)
        level = (self.log_mean + self.log_std * draw(len(clean))).exp()
        s = beside(level, clean)
        weight = (s.square() + self.deviation**2) / (s * self.deviation).square()
        error = self.denoiser(network)(clean + s * draw(*clean.shape), level) - clean
        return (weight * error.square()).flatten(1).mean(1)

    def levels(self, steps: int) -> Tensor:
        """t_0 > ... > t_n = 0, float64: (most^(1/bend) + i / (n - 1) (least^(1/bend) - most^(1/bend)))^bend."""
        if not is_whole(steps, 2):
            raise SettingError(f"sampling takes at least 2 steps; got {steps!r}")
        part = torch.arange(steps, dtype=torch.float64) / (steps - 1)
        high, low = self.most ** (1 / self.bend), self.least ** (1 / self.bend)
        return torch.cat([(high + part * (low - high)) ** self.bend, torch.zeros(1, dtype=torch.float64)])

    def noise(self, *shape: int, source: Generator) -> Tensor:
        """Where sampling begins: noise of the highest level."""
        return self.most * torch.randn(*shape, generator=source, dtype=torch.float64)

    def sample(
        self,
        denoiser: Denoiser,
        noise: Tensor,
        *,
        steps: int = 18,
        churn: float = 0.0,
        source: Generator | None = None,
        guide: Guide | None = None,
    ) -> Tensor:
        """Follow dx/dt = (x - D(x, t)) / t from ``noise`` down to 0 by Heun's method; 2 ``steps`` - 1 evaluations.

        With ``churn`` every step first adds noise, churn / steps of its level at most, which forgets errors and needs
        a ``source``. What a ``guide`` gives is taken off the slope at the beginning of each step; Heun's correction
        goes without. States are float64, as many small steps add up.
        """
        if not is_number(churn, 0) or (churn > 0 and source is None):
            raise SettingError(f"churn is 0 or more, and draws from a source; got {churn!r} and {source!r}")
        levels, x = self.levels(steps), noise.double()
        for here, there in pairwise(levels):
            if churn > 0:
                raised = here * (1 + min(churn / steps, MOST_CHURN))
                fresh = torch.randn(x.shape, generator=source, dtype=x.dtype).to(x.device)
                x, here = x + (raised.square() - here.square()).sqrt() * fresh, raised
            slope = self._slope(denoiser, x, here)
            if guide is not None:
                slope = slope - guide(x, here)
            moved = x + (there - here) * slope
            if there > 0:
                moved = x + (there - here) * (slope + self._slope(denoiser, moved, there)) / 2
            x = moved
        return x

    def drawn(
        self,
        network: Network,
        shape: Sequence[int],
        source: Generator,
        steps: int = 18,
        *,
        guide: Guide | None = None,
    ) -> Tensor:
        """Examples of this shape from a trained network, by noise that ``source`` draws; float64."""
        return self.sample(
            self.denoiser(network), self.noise(*shape, source=source), steps=steps, guide=guide
        )

    def _slope(self, denoiser: Denoiser, x: Tensor, level: Tensor) -> Tensor:
        with torch.no_grad():
            return (x - denoiser(x, level.expand(len(x)).to(x.device)).double()) / level


def beside(level: Tensor, like: Tensor) -> Tensor:
    """One number for each example, in the shape that multiplies it."""
    return level.view(-1, *[1] * (like.ndim - 1))
