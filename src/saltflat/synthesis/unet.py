"""The denoising network: a class-conditional UNet of residual blocks, as DDPM++ has it.

Every block sees the noise level, the class, and which augmentation was applied, all through one embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import SettingError
from saltflat.settings import is_fraction, is_whole
from saltflat.synthesis.diffusion import Network

AUGMENTED = 9  # numbers that say how an example was augmented; see `saltflat.synthesis.NonLeaking`
HALF = 0.5**0.5  # a sum of two parts of variance 1 has variance 1 again
SMALL = 1e-5  # what a block's last layer begins with: at first a block passes its input on
LONGEST_WAVE = 10_000


@dataclass(frozen=True, kw_only=True)
class UNet:
    """The sizes of the network: ``channels`` times ``multipliers``, one for each resolution, with ``blocks`` blocks.

    Resolutions halve from one multiplier to the next; at those sides that ``attention`` names, pixels see each other.
    With ``patch`` 2 the network works on patches of 2 x 2 pixels, at half the side: a quarter of the time.

    The defaults are for a processor. The network of the papers, for 3x32x32, is `UNet.full()`: 55,735,299 parameters
    with 10 classes. Song et al. 2021, "Score-Based Generative Modeling through Stochastic Differential Equations"
    (DDPM++); Karras et al. 2022, "Elucidating the Design Space of Diffusion-Based Generative Models".

    >>> sum(p.numel() for p in UNet().made((1, 8, 8), classes=10).parameters())
    180513
    """

    channels: int = 16
    multipliers: tuple[int, ...] = (1, 2)
    blocks: int = 1
    attention: tuple[int, ...] = ()
    dropout: float = 0.0
    patch: int = 1

    def __post_init__(self) -> None:
        if not is_whole(self.channels, 4, 4096) or self.channels % 4:
            raise SettingError(f"channels is a multiple of 4, from 4 to 4096; got {self.channels!r}")
        if not self.multipliers or not all(is_whole(each, 1, 64) for each in self.multipliers):
            raise SettingError(
                f"multipliers are whole numbers from 1 to 64, at least one; got {self.multipliers!r}"
            )
        if not is_whole(self.blocks, 1, 64):
            raise SettingError(f"blocks is a whole number from 1 to 64; got {self.blocks!r}")
        if not all(is_whole(side, 1) for side in self.attention):
            raise SettingError(f"attention names sides in pixels; got {self.attention!r}")
        if not is_fraction(self.dropout):
            raise SettingError(f"dropout must lie in [0, 1); got {self.dropout!r}")
        if not is_whole(self.patch, 1, 16):
            raise SettingError(f"patch is a number of pixels, from 1 to 16; got {self.patch!r}")

    @classmethod
    def full(cls) -> UNet:
        """The class-conditional network of the papers for 32x32 images.

        >>> UNet.full().multipliers
        (2, 2, 2)
        """
        return cls(channels=128, multipliers=(2, 2, 2), blocks=4, attention=(16,), dropout=0.13)

    def made(self, shape: tuple[int, ...], classes: int) -> UNetwork:
        """The network for images of this shape (channels, side, side), with weights that torch's generator draws."""
        parts = self.patch * 2 ** (len(self.multipliers) - 1)
        if len(shape) != 3 or shape[1] != shape[2] or shape[1] % parts:
            raise SettingError(
                f"the generator takes square images whose side {parts} divides (patch {self.patch}, "
                f"{len(self.multipliers)} multipliers); got {shape}"
            )
        if not is_whole(classes):
            raise SettingError(f"classes is a whole number of 1 or more; got {classes!r}")
        return UNetwork(self, shape, classes)


class UNetwork(nn.Module):
    """F(x, code; labels, augmented); see `UNet`. Labels are class numbers (n,), ``augmented`` is (n, 9) or None."""

    def __init__(self, sizes: UNet, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, side = shape[0] * sizes.patch**2, shape[1] // sizes.patch
        self.sizes, self.shape, self.classes = sizes, tuple(shape), classes
        self.embedding = Embedding(sizes.channels, classes)
        make = lambda inside, outside, at=0, **how: Block(
            inside, outside, 4 * sizes.channels, sizes.dropout, attends=at in sizes.attention, **how
        )
        widths = [sizes.channels * each for each in sizes.multipliers]
        sides = [side >> level for level in range(len(widths))]
        self.enters = nn.Conv2d(channels, sizes.channels, 3, padding=1)
        self.down, skips, width = nn.ModuleList(), [sizes.channels], sizes.channels
        for level, outside in enumerate(widths):
            steps = [] if level == 0 else [make(width, width, resampled="down")]
            for _ in range(sizes.blocks):
                steps.append(make(width, outside, sides[level]))
                width = outside
            self.down.extend(steps)
            skips += [step.width for step in steps]
        self.middle = nn.ModuleList([make(width, width, sides[-1]), make(width, width)])
        self.middle[0].attention = self.middle[0].attention or Attention(width)
        self.up = nn.ModuleList()
        self.takes: list[bool] = []  # which of these are given what the way down kept
        for level in reversed(range(len(widths))):
            if level < len(widths) - 1:
                self._add_up(make(width, width, resampled="up"), skip=False)
            for k in range(sizes.blocks + 1):
                last = sides[level] if k == sizes.blocks else 0
                self._add_up(make(width + skips.pop(), widths[level], last), skip=True)
                width = widths[level]
        self.norm, self.leaves = _norm(width), nn.Conv2d(width, channels, 3, padding=1)
        self.apply(_begin)
        for module in self.modules():
            if isinstance(module, Block | Attention):
                module.last.weight.data *= SMALL
        self.leaves.weight.data *= SMALL

    def _add_up(self, block: Block, *, skip: bool) -> None:
        self.up.append(block)
        self.takes.append(skip)

    def forward(self, x: Tensor, code: Tensor, labels: Tensor, augmented: Tensor | None = None) -> Tensor:
        known = self.embedding(code.float(), labels, augmented)
        x = self.enters(F.pixel_unshuffle(x.float(), self.sizes.patch))
        kept = [x]
        for block in self.down:
            x = block(x, known)
            kept.append(x)
        for block in self.middle:
            x = block(x, known)
        for block, takes in zip(self.up, self.takes, strict=True):
            x = block(torch.cat([x, kept.pop()], 1) if takes else x, known)
        return F.pixel_shuffle(self.leaves(F.silu(self.norm(x))), self.sizes.patch)

    def given(self, labels: Tensor, augmented: Tensor | None = None) -> Network:
        """The network of (x, code) alone, for examples of these classes."""
        return lambda x, code: self(x, code, labels, augmented)


class Embedding(nn.Module):
    """What a block is told: waves of the noise level's code, the class, the augmentation; two layers over their sum."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.channels, self.classes = channels, classes
        self.label = nn.Linear(classes, channels)
        self.augmented = nn.Linear(AUGMENTED, channels, bias=False)
        self.layers = nn.Sequential(
            *(nn.Linear(channels, 4 * channels), nn.SiLU(), nn.Linear(4 * channels, 4 * channels), nn.SiLU())
        )

    def forward(self, code: Tensor, labels: Tensor, augmented: Tensor | None) -> Tensor:
        known = waves(code, self.channels)
        known = known + self.label(F.one_hot(labels, self.classes).float() * math.sqrt(self.classes))
        if augmented is not None:
            known = known + self.augmented(augmented.float())
        return self.layers(known)


def waves(code: Tensor, channels: int) -> Tensor:
    """(n, channels): sines and cosines of a number, of wavelengths that grow geometrically.

    >>> waves(torch.zeros(1), 4)
    tensor([[0., 0., 1., 1.]])
    """
    half = channels // 2
    part = torch.arange(half, device=code.device) / max(1, half - 1)
    angle = code.float().view(-1, 1) * (1 / LONGEST_WAVE) ** part
    return torch.cat([angle.sin(), angle.cos()], 1)


class Block(nn.Module):
    """Norm, SiLU, convolution (at another resolution, if ``resampled``); plus the embedding; norm, SiLU, dropout,
    convolution; added to the input, and attention behind it.
    """

    def __init__(
        self,
        inside: int,
        outside: int,
        known: int,
        dropout: float,
        *,
        attends: bool = False,
        resampled: str = "",
    ) -> None:
        super().__init__()
        self.width, self.dropout, self.resampled = outside, dropout, resampled
        self.norm_in, self.first = _norm(inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.told = nn.Linear(known, outside)
        self.norm_out, self.last = _norm(outside), nn.Conv2d(outside, outside, 3, padding=1)
        same = inside == outside and not resampled
        self.skip: nn.Module = nn.Identity() if same else nn.Conv2d(inside, outside, 1)
        self.attention: Attention | None = Attention(outside) if attends else None

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        inner = self.first(self._moved(F.silu(self.norm_in(x))))
        inner = F.silu(self.norm_out(inner + self.told(known)[:, :, None, None]))
        inner = self.last(F.dropout(inner, self.dropout, self.training))
        x = (self.skip(self._moved(x)) + inner) * HALF
        return x if self.attention is None else self.attention(x)

    def _moved(self, x: Tensor) -> Tensor:
        """At the resolution of the output, by boxes of 2 x 2 pixels."""
        if self.resampled == "down":
            return F.avg_pool2d(x, 2)
        return F.interpolate(x, scale_factor=2.0, mode="nearest") if self.resampled == "up" else x


class Attention(nn.Module):
    """One head of self-attention between pixels, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.asks, self.last = (
            _norm(width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        count, width, height, across = x.shape
        query, key, value = self.asks(self.norm(x)).view(count, 3, width, -1).transpose(2, 3).unbind(1)
        seen = F.scaled_dot_product_attention(query, key, value)  # (n, pixels, width)
        return (self.last(seen.transpose(1, 2).reshape(count, width, height, across)) + x) * HALF


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, width // 4), width, eps=1e-6)


def _begin(module: nn.Module) -> None:
    """Xavier's uniform weights, and no bias."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
