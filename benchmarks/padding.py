"""What texts of different lengths cost: padded to the longest of all, or in batches of equal length.

python benchmarks/padding.py
python benchmarks/padding.py --batch 512 --rounds 5

The texts are made up. Every way trains by itself, in a process of its own, with the same model, texts and batch size;
stretches of steps are taken by turns, in an order left to chance. Ways:

fixed       one tensor in which every text is padded to the longest length that the data may have
collated    the same padding by a collate, which reads one text at a time
equal       a collate with pad_sequence: micro-batches are made of texts of equal length
eights      the same, and the collate pads a text's length to the next multiple of 8
max_tokens  as eights, with at most --max-tokens positions in a micro-batch
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from report import machine
from torch import Tensor, nn
from torch.nn import functional as F

import saltflat as sf

COUNT, LONGEST, WORDS, CLASSES, WIDTH = 4000, 64, 5000, 4, 64
WAYS = ("fixed", "collated", "equal", "eights", "max_tokens")


def texts() -> list[tuple[Tensor, int]]:
    """Made-up texts; most are short, as in comments: a median of 16 words, and 64 at the most."""
    source = torch.Generator().manual_seed(0)
    lengths = (16 * torch.randn(COUNT, generator=source).mul(0.6).exp()).round().clamp(3, LONGEST).long()
    return [
        (torch.randint(1, WORDS, (int(length),), generator=source), number % CLASSES)
        for number, length in enumerate(lengths)
    ]


def collate_to(length_of: Callable[[int], int]) -> Callable[[list], dict[str, Tensor]]:
    """A collate that pads to ``length_of`` the longest text that it gets."""

    def collate(items: list) -> dict[str, Tensor]:
        words = nn.utils.rnn.pad_sequence([words for words, _ in items], batch_first=True)
        words = F.pad(words, (0, length_of(words.shape[1]) - words.shape[1]))
        return {"words": words, "labels": torch.tensor([label for _, label in items])}

    return collate


LENGTHS: dict[str, Callable[[int], int]] = {
    "collated": lambda length: LONGEST,
    "equal": lambda length: length,
    "eights": lambda length: -(-length // 8) * 8,
    "max_tokens": lambda length: -(-length // 8) * 8,
}


def data_of(way: str) -> Any:
    """The texts as one of `WAYS` has them."""
    if way == "fixed":
        return sf.data.TensorUnits(collate_to(LENGTHS["collated"])(texts()))
    return sf.data.DatasetUnits.of(texts(), collate_to(LENGTHS[way]))  # type: ignore[arg-type]


class Reader(nn.Module):
    """A small transformer, and the mean over a text's own words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        here = words > 0
        found = self.layer(self.words(words), src_key_padding_mask=~here)
        mask = here.unsqueeze(2)
        return self.out((found * mask).sum(1) / mask.sum(1))


def loss(predict: Callable[..., Tensor], batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy, one number for each text."""
    return F.cross_entropy(predict(batch["words"]), batch["labels"], reduction="none")


def child(way: str, batch: int, max_tokens: int) -> None:
    """Train without end; for each number of steps on standard input, seconds a step and peak MB on standard output."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    phase = sf.Phase(
        method=sf.methods.DPSGD(),
        steps=10**6,
        noise_multiplier=1.0,
        clip_norm=0.1,
        optimizer=sf.optimizers.SGD(lr=0.1),
    )
    plan = sf.Plan(phases=(phase,), rate=batch / COUNT, size=COUNT)
    left, mark, length = [0], [0.0, 0.0], [1]

    def watch(progress: sf.Progress) -> bool:
        if left[0] == 0:  # the first step, and the end of a stretch
            spent, own = time.perf_counter() - mark[0], time.process_time() - mark[1]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            said = {"seconds": spent / length[0], "own": own / length[0], "peak": peak}
            print(json.dumps(said), flush=True)
            line = sys.stdin.readline()
            if not line.strip():
                return True
            left[0] = length[0] = int(line)
            mark[:] = time.perf_counter(), time.process_time()
        left[0] -= 1
        return False

    limit = max_tokens if way == "max_tokens" else None
    running = sf.Running(physical=2 * batch, max_tokens=limit, watch=watch)
    sf.train(plan, sf.per_example(Reader(), loss), data_of(way), running=running)


@dataclass
class Racer:
    """A child process, and what it has said."""

    way: str
    process: subprocess.Popen
    seconds: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    peak: float = 0.0

    @classmethod
    def started(cls, way: str, batch: int, max_tokens: int) -> Racer:
        command = [sys.executable, __file__, "--child", way, str(batch), str(max_tokens)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        racer = cls(
            way,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env),
        )
        racer._read()
        return racer

    def run(self, steps: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        said = self._read()
        self.seconds.append(said["seconds"])
        self.own.append(said["own"])

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.way} ended early; see above")
        said = json.loads(line)
        self.peak = said["peak"]
        return said


@dataclass(frozen=True)
class Row:
    """What was found for one way; the first stretch, which warms up, is left out."""

    way: str
    milliseconds: float
    ratio: float  # to "fixed"
    own: float  # milliseconds of the processor, which others on the machine change less,
    own_ratio: float  # and their ratio
    peak: float


def race(*, batch: int, max_tokens: int, steps: int, rounds: int) -> list[Row]:
    """Every way, stretch by stretch in turns."""
    racers: list[Racer] = []
    try:
        racers += [Racer.started(way, batch, max_tokens) for way in WAYS]
        for _ in range(rounds + 1):
            for racer in random.sample(racers, len(racers)):
                racer.run(steps)
        wall, own = (
            {racer.way: statistics.median(times(racer)[1:]) for racer in racers}
            for times in (lambda racer: racer.seconds, lambda racer: racer.own)
        )
        to_fixed = lambda found, way: found[way] / found["fixed"]
        return [
            Row(way, 1e3 * wall[way], to_fixed(wall, way), 1e3 * own[way], to_fixed(own, way), racer.peak)
            for racer in racers
            for way in [racer.way]
        ]
    finally:
        for racer in racers:
            racer.process.kill()
            racer.process.wait()


def table_of(rows: Sequence[Row]) -> str:
    """Markdown; ratios are of medians."""
    lines = [
        "| way | a step, ms | to fixed | processor's time, ms | to fixed | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = f"{row.milliseconds:.1f} | {row.ratio:.2f} | {row.own:.1f} | {row.own_ratio:.2f}"
        lines.append(f"| {row.way} | {times} | {row.peak:.0f} |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=3, help="steps of a stretch")
    parser.add_argument("--rounds", type=int, default=12, help="stretches of each")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    if asked.child:
        child(asked.child[0], int(asked.child[1]), int(asked.child[2]))
        return
    lengths = [len(words) for words, _ in texts()]
    rows = race(batch=asked.batch, max_tokens=asked.max_tokens, steps=asked.steps, rounds=asked.rounds)
    print(f"{machine(1)}\n")
    print(
        f"{COUNT} texts of {min(lengths)} to {max(lengths)} words, {statistics.mean(lengths):.1f} on average, "
        f"{len(set(lengths))} lengths; batches of {asked.batch}\n\n{table_of(rows)}"
    )
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
