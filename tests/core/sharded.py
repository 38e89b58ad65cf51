"""What processes with sharded weights run in `test_shards.py`; `ranks.started` starts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ranks
import torch
from reference import flat
from torch import Tensor, distributed, nn
from torch.nn import functional as F

import saltflat as sf
from saltflat.clipping import Automatic, PerLayer
from saltflat.core import shards
from saltflat.data import TensorUnits
from saltflat.errors import SaltflatError
from saltflat.tree import Tree, own_part, whole

SIZE, WORDS, LENGTH, WIDTH, LAYERS = 24, 11, 6, 12, 3


class Block(nn.Module):
    """Attention and a small network, as language models have them."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Language(nn.Module):
    """A small transformer whose table of words is used twice: to read them and to say them."""

    def __init__(self, width: int = WIDTH, layers: int = LAYERS, words: int = WORDS) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(1, LENGTH, width) / 9)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(predict: Any, batch: Any) -> Tensor:
    """The mean over an example's own words."""
    tokens, following = batch
    each = F.cross_entropy(predict(tokens).transpose(1, 2), following, reduction="none")
    return each.mean(1)


def sentences(count: int = SIZE) -> tuple[Tensor, Tensor]:
    words = torch.randint(WORDS, (count, LENGTH + 1), generator=torch.Generator().manual_seed(4))
    return words[:, :-1], words[:, 1:]


def language(*, sharded: bool, dtype: torch.dtype = torch.float64, **sizes: int) -> Language:
    torch.manual_seed(5)
    model = Language(**sizes).to(dtype)
    return shard(model) if sharded else model


def shard(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def in_group() -> bool:
    return distributed.is_initialized()


def adamw(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=0.01)


METHODS: dict[str, dict[str, Any]] = {
    "DP-SGD": {"method": sf.methods.DPSGD()},
    "DP-SAT": {"method": sf.methods.SAT(radius=0.1), "optimizer": sf.optimizers.SGD(lr=0.5, momentum=0.5)},
    "DP-SAM": {"method": sf.methods.SAM(radius=0.1)},
    "DPLIS": {"method": sf.methods.DPLIS(lr=0.2, copies=3, reach=300.0)},
    "DPLIS by unit": {"method": sf.methods.DPLIS(lr=0.2, copies=2, reach=300.0, per_example=True), "steps": 1},
    "DP-SAT drift": {"method": sf.methods.SAT(radius=0.1, drift=2)},
    "Quantile": {"method": sf.methods.Quantile(sf.methods.DPSGD())},
    "by layer": {"method": sf.methods.DPSGD(), "clip_norm": PerLayer(0.3)},
    "automatic, AdamW": {
        "method": sf.methods.DPSGD(),
        "clip_norm": Automatic(0.3),
        "optimizer": sf.optimizers.Torch(adamw),
    },
    "AdamBC": {"method": sf.methods.DPSGD(), "optimizer": sf.optimizers.AdamBC(lr=0.01)},
}


def plan(*, noise: float = 0.0, steps: int = 3, rate: float = 0.5, ema: Any = None, **changes: Any) -> sf.Plan:
    given = {"clip_norm": 0.3, "optimizer": sf.optimizers.SGD(lr=0.5), **changes}
    phase = sf.Phase(steps=steps, noise_multiplier=noise, **given)
    return sf.Plan(phases=(phase,), rate=rate, size=SIZE, ema=ema)


def trained(
    model: Any, of: sf.Plan, *, noise: Any = None, sampling: Any = None, units: Any = None, **more: Any
) -> Tree:
    """The weights at the end, whole."""
    safeguards = {"noise": noise} if noise is not None else {}
    ended = sf.train(
        of,
        sf.per_example(model, loss),
        units or TensorUnits(sentences()),
        safeguards=sf.Safeguards(sampling=sampling or np.random.default_rng(3), **safeguards),
        running=sf.Running(physical=4, **more),
    )
    return {name: whole(leaf).clone() for name, leaf in ended.items()}


def every_method(rank: int, folder: Path) -> Any:
    return {name: trained(language(sharded=in_group()), plan(**row)) for name, row in METHODS.items()}
