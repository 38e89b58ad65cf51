"""Freed memory stays with the process: the next step does not pay for it again."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from steps import CRITERION, examples, network
from torch import nn

from saltflat import models, per_example, supervised
from saltflat.clipping import Chunk
from saltflat.core.contribution import PerExample, Private, chunks_of
from saltflat.core.mechanism import clipped_sum
from saltflat.core.train import trainable
from saltflat.data import TensorUnits

STEPS = """
import resource, statistics, sys, torch
from saltflat.core.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
counts = []
for step in range(21):
    before = faults()
    torch.zeros(12_000_000).add_(1)
    counts.append(faults() - before)
print(int(statistics.median(counts)))  # a small piece may settle behind a large one, which then moves once
"""


def faults_of_a_step(what: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", STEPS, what],
        capture_output=True,
        text=True,
        check=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")},
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_most_steps_take_no_new_pages() -> None:
    assert faults_of_a_step("keep") < 100 < faults_of_a_step("leave")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_the_users_own_setting_is_respected() -> None:
    code = "from saltflat.core.memory import keep_freed_memory; print(keep_freed_memory())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"MALLOC_ARENA_MAX": "2"},
    )
    assert done.stdout.strip() == "False"


class Steps(nn.Module):
    """Tied, repeated and standardised weights, a bare parameter. (nn.LSTM itself remembers what it was run with.)"""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 6)
        self.twice = nn.Linear(6, 6)
        self.conv = models.ScaledStdConv2d(1, 2, 3, stride=1, gain_bias=True)
        self.shift = nn.Parameter(torch.zeros(1, 5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.twice(self.twice(self.words(tokens)).tanh())
        picture = self.conv(states.unsqueeze(1)).mean((1, 2, 3))
        return (states @ self.words.weight.t()).mean(1) + self.shift + picture.unsqueeze(1)


class Folded(nn.Module):
    """Positions laid onto the first axis and picked from it: the tape follows both, and must not hold on to either."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 6)
        self.over = nn.Linear(6, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self.over(self.words(tokens).reshape(-1, 6))
        first = scores[torch.tensor([0, 7])].mean(0)
        return scores.view(*tokens.shape, 5).mean(1) + 0 * first.detach()


@pytest.mark.parametrize("kind", ["plain", "rich", "folded"])
def test_a_step_leaves_nothing_behind_in_cycles(kind: str) -> None:
    """Otherwise each step's weights and gradients would stay until Python looks for cycles."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(5, (4, 7), generator=generator), torch.randint(5, (4,), generator=generator)
    made = {"plain": network, "rich": Steps, "folded": Folded}
    model, batch = made[kind](), examples() if kind == "plain" else data
    contribution = per_example(model, supervised(CRITERION))
    gc.collect()
    gc.disable()
    try:
        params = trainable(model)
        watched = [weakref.ref(leaf) for leaf in params.values()]
        chunk = contribution([params], [1.0], batch)
        chunk.weighted_sum(chunk.norms())
        del chunk, params
        assert [ref for ref in watched if ref() is not None] == []
    finally:
        gc.enable()


def test_a_physical_batch_is_gone_before_the_next_one_is_computed() -> None:
    own, units = per_example(network(), supervised(CRITERION)), TensorUnits(examples(6))
    point, seen = trainable(own.model), []

    class Watched(PerExample):
        def __call__(self, *asked: Any) -> Chunk:
            assert [kept() for kept in seen] == [None] * len(seen)
            chunk = super().__call__(*asked)
            seen.append(weakref.ref(chunk))
            return chunk

    watched = Watched(own.model, own.loss)
    sample = chunks_of(Private(watched, units, 6), np.arange(6), most=2)
    clipped_sum(sample([point], [1.0]), 1.0, point)
    assert len(seen) == 3
