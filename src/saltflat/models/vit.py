"""A small vision transformer, in plain PyTorch operations.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", ICLR 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.models.common import check_sizes


class Patches(nn.Module):
    """Cut images into side x side squares: (units, channels, H, W) -> (units, patches, channels * side^2).

    >>> Patches(4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64, 48])
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        return F.unfold(images, self.side, stride=self.side).transpose(1, 2)


class Places(nn.Module):
    """Put the class token first, and add what was learned about each position."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, tokens + 1, width))

    def forward(self, tokens: Tensor) -> Tensor:
        first = self.first.expand(tokens.shape[0], -1, -1)
        return torch.cat([first, tokens], dim=1) + self.position


class Attention(nn.Module):
    """softmax(q k^T / sqrt(head width)) v for every head, then a linear mix of the heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        units, length, width = tokens.shape
        split = self.qkv(tokens).view(units, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.mix(mixed.transpose(1, 2).reshape(units, length, width))


class Encoder(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); the MLP is four times as wide inside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        attended = tokens + self.attention(tokens)
        return attended + self.mlp(attended)


class Head(nn.Module):
    """Class logits from the class token, the first one."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.linear(self.norm(tokens[:, 0]))


def small_vit(classes: int = 10) -> nn.Module:
    """Four encoders, 192 wide with 3 heads, on the 64 patches of a 3x32x32 image: 1,803,850 parameters.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(small_vit())
    1803850

    Dosovitskiy et al., ICLR 2021, at the width of ViT-Ti and a third of its depth.
    """
    check_sizes(classes=classes)
    width, heads, depth = 192, 3, 4
    encoders = [Encoder(width, heads) for _ in range(depth)]
    return nn.Sequential(
        Patches(4), nn.Linear(3 * 4 * 4, width), Places(64, width), *encoders, Head(width, classes)
    )
