"""Discriminator guidance: a network that tells real from made images, noisy as they are, pulls samples to the real."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from saltflat.errors import DataError, SettingError
from saltflat.methods.draws import check_seed, public_draws
from saltflat.settings import is_number, is_positive, is_whole
from saltflat.synthesis.diffusion import Guide, beside
from saltflat.synthesis.fitting import one_hot
from saltflat.synthesis.unet import waves

SLOW, FAST = 0.1, 20.0  # how fast noise comes in at the beginning and the end of the time from 0 to 1
FROM, TO = 0.01, 1.0  # where in that time the discriminator is asked
SUREST = math.log((1 - 1e-5) / 1e-5)  # log odds at which it is no longer followed
Watch = Callable[[int, int], None]


def noise_in(time: Tensor) -> Tensor:
    """b(t) = SLOW t + (FAST - SLOW) t^2 / 2: at time t an example y is exp(-b/2) y + sqrt(1 - exp(-b)) n."""
    return SLOW * time + (FAST - SLOW) * time.square() / 2


def time_of(level: Tensor) -> Tensor:
    """The time whose noise is ``level`` times the example: b(t) = ln(1 + level^2).

    >>> level = torch.tensor(2.0)
    >>> round(float((noise_in(time_of(level)).exp() - 1).sqrt()), 4)
    2.0
    """
    steep = FAST - SLOW
    return (-SLOW + (SLOW**2 + 2 * steep * torch.log1p(level.square())).sqrt()) / steep


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """How a discriminator is trained, and how strongly (``weight``) it pulls.

    First a small network learns the classes of noisy images, public and made; then, on its features and the label,
    which of them are public. Both by Adam on ``seen`` images each. At weight 0 nothing is pulled. Where the warm-up
    augments what was made, the published gain is gone.
    Kim et al., "Refining Generative Process with Discriminator Guidance in Score-based Diffusion Models", ICML 2023.
    """

    weight: float = 3.0
    width: int = 16
    seen: int = 20_000
    batch: int = 128
    lr: float = 3e-4
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_number(self.weight, 0):
            raise SettingError(f"weight is 0 or more, and finite; got {self.weight!r}")
        for name in ("width", "seen", "batch"):
            if not is_whole(getattr(self, name), 4, 10**9):
                raise SettingError(f"{name} is a whole number of 4 or more; got {getattr(self, name)!r}")
        if self.width % 4:
            raise SettingError(f"width is a multiple of 4; got {self.width}")
        if not is_positive(self.lr):
            raise SettingError(f"lr must be above 0, and finite; got {self.lr!r}")
        check_seed(self.seed)


@dataclass(frozen=True)
class Discriminator:
    """The log odds that a noisy image is public rather than made."""

    how: Guidance
    classes: int
    trunk: Trunk = field(repr=False)
    head: nn.Module = field(repr=False)

    @classmethod
    def trained(
        cls,
        how: Guidance,
        public: tuple[Tensor, Tensor],
        made: tuple[Tensor, Tensor],
        *,
        classes: int,
        watch: Watch = lambda done, total: None,
    ) -> Discriminator:
        """Trained on images from 0 to 1 with their labels; all of them public or made from public ones."""
        if public[0].shape[1:] != made[0].shape[1:]:
            raise DataError("public and made images have one shape; these have two")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(how.seed)
            trunk = Trunk(public[0].shape[1], how.width, classes)
            head = nn.Sequential(
                nn.Linear(trunk.features + classes, how.width), nn.SiLU(), nn.Linear(how.width, 1)
            )
        found, steps = cls(how, classes, trunk, head), -(-how.seen // how.batch)
        told = lambda before: lambda step: watch(before + step, 2 * steps)
        pairs = [(2 * images.float() - 1, labels.long()) for images, labels in (public, made)]
        _descend(how, steps, trunk.parameters(), lambda source: found._classed(pairs, source), told(0))
        trunk.requires_grad_(False).eval()
        _descend(how, steps, head.parameters(), lambda source: found._told_apart(pairs, source), told(steps))
        head.requires_grad_(False)
        return found

    def odds(self, noisy: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        """ln(d / (1 - d)) for images at these times, (n,)."""
        seen = self.trunk(noisy.float(), time.float())
        return self.head(torch.cat([seen, one_hot(labels, self.classes)], 1)).squeeze(1)

    def guide(self, labels: Tensor) -> Guide:
        """weight s grad_x ln(d / (1 - d)), for samples of these classes at noise level s; 0 where it is not asked.

        x of the sampler is seen as x / sqrt(1 + s^2), at the time of that level.
        """

        def pull(x: Tensor, level: Tensor) -> Tensor:
            time = time_of(level.float())
            if self.how.weight == 0 or not FROM <= float(time) <= TO:
                return torch.zeros_like(x)
            with torch.enable_grad():
                here = x.detach().float().requires_grad_()
                times = time.expand(len(x)).to(here)
                odds = self.odds(here / (1 + level.float().square()).sqrt(), times, labels)
                (slope,) = torch.autograd.grad(odds.clamp(-SUREST, SUREST).sum(), here)
            return self.how.weight * level * slope.to(x)

        return pull

    def _classed(self, pairs: list[tuple[Tensor, Tensor]], source: Generator) -> Tensor:
        images, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        chosen = torch.randint(len(images), (self.how.batch,), generator=source)
        noisy, time = _noised(images[chosen], source)
        return F.cross_entropy(self.trunk.classed(self.trunk(noisy, time)), labels[chosen])

    def _told_apart(self, pairs: list[tuple[Tensor, Tensor]], source: Generator) -> Tensor:
        losses = []
        for (images, labels), answer in zip(pairs, (1.0, 0.0), strict=True):
            chosen = torch.randint(len(images), (self.how.batch // 2,), generator=source)
            noisy, time = _noised(images[chosen], source)
            odds = self.odds(noisy, time, labels[chosen])
            losses.append(F.binary_cross_entropy_with_logits(odds, torch.full_like(odds, answer)))
        return (losses[0] + losses[1]) / 2


class Trunk(nn.Module):
    """Features of noisy images: three convolutions that are told the time, the mean over all places, and classes."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        widths, inside = (width, 2 * width, 2 * width), channels
        self.layers, self.told = nn.ModuleList(), nn.ModuleList()
        for outside in widths:
            self.layers.append(nn.Conv2d(inside, outside, 3, padding=1))
            self.told.append(nn.Linear(32, outside))
            inside = outside
        self.norms = nn.ModuleList([nn.GroupNorm(min(8, each // 4), each) for each in widths])
        self.features = inside
        self.classed = nn.Linear(inside, classes)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        known = waves(1000 * time, 32)
        for place, (layer, told, norm) in enumerate(zip(self.layers, self.told, self.norms, strict=True)):
            x = F.silu(norm(layer(x) + told(known)[:, :, None, None]))
            x = F.avg_pool2d(x, 2) if place < 2 and min(x.shape[2:]) > 3 else x
        return x.mean((2, 3))


def _noised(clean: Tensor, source: Generator) -> tuple[Tensor, Tensor]:
    """Images at times drawn for each, and the times."""
    time = FROM + (TO - FROM) * torch.rand(len(clean), generator=source)
    left = beside((-noise_in(time)).exp(), clean)
    return left.sqrt() * clean + (1 - left).sqrt() * torch.randn(clean.shape, generator=source), time


def _descend(
    how: Guidance,
    steps: int,
    parameters: object,
    loss: Callable[[Generator], Tensor],
    watch: Callable[[int], None],
) -> None:
    optimizer = torch.optim.Adam(parameters, lr=how.lr, weight_decay=1e-7)  # type: ignore[arg-type]
    for step in range(steps):
        optimizer.zero_grad()
        loss(public_draws(how.seed, step, 5)).backward()
        optimizer.step()
        watch(step + 1)
