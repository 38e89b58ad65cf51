"""Models, losses and data as people bring them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from reference import FixedNoise
from steps import beside
from torch import Tensor, nn
from torch.nn import functional as F


class Secret(FixedNoise):
    """Fixed for the test, and passed off as private, so that an epsilon is reported."""

    private = True


class SecretCoins:
    """The same for draws of units."""

    private = True

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed).random


def around(seed: int = 0, **more: Any) -> dict[str, Any]:
    """Equal noise and equal samples at every call."""
    given = {"noise": Secret(seed), "sampling": SecretCoins(seed), "physical": 5}
    return beside(**given | more)


class Tagger(nn.Module):
    """In the manner of Hugging Face: called by keywords, answers with an object that has logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        seen = attention_mask.unsqueeze(-1).to(self.embed.weight.dtype)
        mean = (self.embed(input_ids) * seen).sum(1) / seen.sum(1).clamp(min=1)
        return SimpleNamespace(logits=self.head(mean))


def sentences(count: int = 12) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(11, (count, 5), generator=g),
        "attention_mask": torch.randint(2, (count, 5), generator=g),
        "labels": torch.randint(3, (count,), generator=g),
    }


def tagging(predict: Any, batch: dict[str, Tensor]) -> Tensor:
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    return F.cross_entropy(predict(**inputs).logits, batch["labels"], reduction="none")


class Items(torch.utils.data.Dataset):
    """A map-style dataset of dictionaries."""

    def __init__(self, rows: dict[str, Tensor]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows["labels"])

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {key: value[i] for key, value in self.rows.items()}
