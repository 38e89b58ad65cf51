"""DDPM, the baseline: a network says which noise was added, and a sampler takes it off again in many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from saltflat.errors import SettingError
from saltflat.settings import is_positive, is_whole
from saltflat.synthesis.diffusion import Network, beside


@dataclass(frozen=True, kw_only=True)
class DDPM:
    """x_t = sqrt(a_t) y + sqrt(1 - a_t) n,   a_t = prod_{s <= t} (1 - b_s),   b from ``first`` to ``last`` in a line.

    The network F(x_t, t) is trained to give n back. Sampling goes through all ``times`` from the last to the first, or
    through fewer of them at equal distances. Ho et al., "Denoising Diffusion Probabilistic Models", NeurIPS 2020.

    >>> round(float(DDPM().kept()[-1]), 7)
    4.04e-05
    """

    first: float = 1e-4
    last: float = 0.02
    times: int = 1000

    def __post_init__(self) -> None:
        if not (is_positive(self.first) and is_positive(self.last) and self.first <= self.last < 1):
            raise SettingError(
                f"noise grows from first to last, both in (0, 1); got {self.first!r} to {self.last!r}"
            )
        if not is_whole(self.times, 2, 10**6):
            raise SettingError(f"times is a whole number from 2 to 10^6; got {self.times!r}")

    def kept(self) -> Tensor:
        """a_0 > a_1 > ...: how much of an example's variance is left; float64."""
        return (1 - torch.linspace(self.first, self.last, self.times, dtype=torch.float64)).cumprod(0)

    def loss(self, network: Network, clean: Tensor, source: Generator) -> Tensor:
        """||n - F(x_t, t)||^2 at a time drawn for each example, a mean over its coordinates; (n,)."""
        time = torch.randint(self.times, (len(clean),), generator=source)
        noise = torch.randn(clean.shape, generator=source, dtype=clean.dtype).to(clean.device)
        left = beside(self.kept()[time].to(clean), clean)
        noisy = left.sqrt() * clean + (1 - left).sqrt() * noise
        return (network(noisy, time.to(clean)) - noise).square().flatten(1).mean(1)

    def drawn(self, network: Network, shape: Sequence[int], source: Generator, steps: int = 100) -> Tensor:
        """Examples of this shape, by ``steps`` ancestral steps; float64.

        From time t to an earlier s, with b = 1 - a_t / a_s:
            x_s = (x_t - b / sqrt(1 - a_t) F) / sqrt(1 - b) + sqrt(b (1 - a_s) / (1 - a_t)) z
        """
        if not is_whole(steps, 1, self.times):
            raise SettingError(f"steps is a whole number from 1 to {self.times}; got {steps!r}")
        normal = lambda: torch.randn(*shape, generator=source, dtype=torch.float64)
        kept, x = self.kept(), normal()
        path = torch.linspace(self.times - 1, 0, steps).round().long().tolist()
        for time, before in zip(path, [*path[1:], None], strict=True):
            left = kept[time]
            earlier = kept[before] if before is not None else torch.ones((), dtype=torch.float64)
            part = 1 - left / earlier
            with torch.no_grad():
                noise = network(x, torch.full((shape[0],), float(time))).double()
            x = (x - part / (1 - left).sqrt() * noise) / (1 - part).sqrt()
            if before is not None:
                x = x + (part * (1 - earlier) / (1 - left)).sqrt() * normal()
        return x
