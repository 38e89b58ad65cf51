"""A model and losses that can go to another process, and clients whose rows do something there."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from reference import trained
from torch import Tensor, nn

from saltflat.federated import Client, Local, per_client

RAISES, DIES = 90.0, 91.0  # a first number of rows that the loss does not survive, or its process


def network() -> nn.Module:
    """It convolves, and draws: such models are trained one client at a time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 3)
    )


def loss(predict: Any, batch: Any) -> Tensor:
    x, y = batch
    if bool((x.flatten() == RAISES).any()):
        raise ValueError("rows that this loss does not take")
    if bool((x.flatten() == DIES).any()):
        os._exit(1)
    return nn.functional.cross_entropy(predict(x), y, reduction="none")


class Remembers(nn.Module):
    """It keeps a mean of what it saw, once it has seen enough: clients in one process would hear of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = network(), 0
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 3:
            self.mean.copy_(x.mean())
        return self.inner(x)


class Leaves(nn.Module):
    """It leaves its last rows behind, and never looks at them again: that is its own business."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = network(), torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.detach()
        return self.inner(x)


def client(number: int, rows: int, first: float | None = None) -> Client:
    source = torch.Generator().manual_seed(number)
    x, y = torch.randn(rows, 1, 8, 8, generator=source), torch.randint(3, (rows,), generator=source)
    if first is not None:
        x[0, 0, 0, 0] = first
    return Client(number, (x, y))


def until_killed() -> None:
    """Have two workers, say who they are, and wait."""
    own = per_client(network(), loss, local=Local(batch_size=4, seed=0), workers=2)
    own([trained(own.model)], [1.0], [client(k, 4) for k in range(3)])
    print(*(hand.process.pid for hand in own.workers._hands), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    sys.exit(until_killed())
