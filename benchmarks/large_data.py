"""What a private step costs when the data stays on disk: cost per example and memory against the number of examples.

python benchmarks/large_data.py                                # 10,000, 100,000 and 1,000,000 images of 28 x 28 bytes
python benchmarks/large_data.py --sizes 10000 100000 --layouts npy --rounds 5
python benchmarks/large_data.py --draws                        # only how long it takes to draw a sample of many units

The images are made up, in a temporary folder (3 GB for all layouts of a million), which is removed at the end. Every
layout and size trains by itself, in a process of its own, with the same network, batch and loop; stretches of steps are
taken by turns, in an order left to chance. "memory" stands beside them: 10,000 examples that are not on disk.

Memory is the most that a process held: all of it, and without pages of files that the system may take back at any
time, which is what mapped files fill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import machine

import saltflat as sf
from saltflat.core.sampling import poisson
from saltflat.data import HALF, Array, Category, Examples, Table, on_disk, parquet
from saltflat.front.given import units_of
from saltflat.privacy import SecureSampling

SIDE, CLASSES, SHARDS = 28, 10, 10
LAYOUTS = ("npy", "npy-ahead", "memmap", "parquet")
TABLE = Table(
    columns=(Array("image", (1, SIDE, SIDE), 0, 255),),
    target=Category("label", tuple(str(number) for number in range(CLASSES))),
)


# the data


def make(folder: Path, count: int, layouts: Sequence[str]) -> None:
    """So many made-up images and labels, in shards; random bytes, as nothing depends on what they show."""
    source = np.random.default_rng(count)
    for number, rows in enumerate(np.array_split(np.arange(count), SHARDS)):
        images = source.integers(0, 256, (len(rows), SIDE, SIDE), dtype=np.uint8)
        labels = source.integers(0, CLASSES, len(rows))
        np.save(folder / f"x-{number}.npy", images)
        np.save(folder / f"y-{number}.npy", labels)
        if "parquet" in layouts:
            _write_parquet(folder / f"train-{number}.parquet", images, labels)
    if "memmap" in layouts:
        _write_whole(folder, count)


def _write_parquet(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    import pyarrow
    import pyarrow.parquet

    pixels = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(images.reshape(-1)), SIDE * SIDE)
    pyarrow.parquet.write_table(
        pyarrow.table({"image": pixels, "label": labels}), path, row_group_size=10_000
    )


def _write_whole(folder: Path, count: int) -> None:
    """One file of floats would be four times as large: the mapped arrays hold bytes, and the loss scales them."""
    for name, shape, kind in (("x", (SIDE, SIDE), np.uint8), ("y", (), np.int64)):
        into = np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=(count, *shape))
        at = 0
        for number in range(SHARDS):
            part = np.load(folder / f"{name}-{number}.npy")
            into[at : at + len(part)] = part
            at += len(part)
        into.flush()


def opened(folder: Path, layout: str) -> Any:
    """The units of a layout."""
    if layout == "parquet":
        return parquet(folder, table=TABLE)
    if layout == "memmap":
        return units_of(tuple(np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy"))
    workers = 1 if layout == "npy-ahead" else 0
    stored = on_disk(str(folder / "x-*.npy"), str(folder / "y-*.npy"), classes=CLASSES, workers=workers)
    if layout != "memory":
        return stored
    images = np.concatenate([np.load(file) for file in sorted(folder.glob("x-*.npy"))])
    labels = np.concatenate([np.load(file) for file in sorted(folder.glob("y-*.npy"))])
    return Examples(torch.from_numpy(images[:, None]), torch.from_numpy(labels), HALF)


# one layout and size, in a process of its own


def loss(predict: Callable[..., torch.Tensor], batch: Any) -> torch.Tensor:
    """Cross-entropy; bytes, as mapped arrays have them, are scaled here."""
    inputs, targets = batch
    if inputs.dtype == torch.uint8:
        inputs = HALF(inputs.unsqueeze(1))
    return torch.nn.functional.cross_entropy(predict(inputs), targets, reduction="none")


def child(folder: Path, layout: str, batch: int) -> None:
    """Train without end; for each number of steps on standard input, seconds and memory so far on standard output."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    started = time.perf_counter()
    units = opened(folder, layout)
    opening = time.perf_counter() - started
    model = sf.models.tutorial_cnn()
    phase = sf.Phase(
        method=sf.methods.DPSGD(),
        steps=10**6,
        noise_multiplier=1.0,
        clip_norm=0.1,
        optimizer=sf.optimizers.SGD(lr=0.1),
    )
    plan = sf.Plan(phases=(phase,), rate=batch / units.count, size=units.count)
    left = [0]
    mark = [0.0, 0.0]

    def watch(progress: sf.Progress) -> bool:
        if left[0] == 0:  # the first step, and the end of a stretch
            spent, own = time.perf_counter() - mark[0], time.process_time() - mark[1]
            print(json.dumps({"seconds": spent, "own": own, "opening": opening, **memory()}), flush=True)
            line = sys.stdin.readline()
            if not line.strip():
                return True
            left[0] = int(line)
            mark[:] = time.perf_counter(), time.process_time()
        left[0] -= 1
        return False

    sf.train(plan, sf.per_example(model, loss), units, running=sf.Running(physical=batch * 2, watch=watch))


def memory() -> dict[str, float]:
    """Resident memory in MB: its peak, and now what is not of files."""
    said = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return {name: int(said[key].split()[0]) / 1024 for name, key in (("peak", "VmHWM"), ("held", "RssAnon"))}


@dataclass(frozen=True)
class Row:
    """What was found for one layout and size."""

    layout: str
    count: int
    microseconds: float  # for an example of a step, the median over stretches,
    own: float  # and the same of the processor's time, which others on the machine change less
    peak: float  # MB, all of it,
    held: float  # and without pages of files
    opening: float


class Racer:
    """A child process, and what it has said."""

    def __init__(self, folder: Path, layout: str, count: int, batch: int) -> None:
        self.layout, self.count, self.batch = layout, count, batch
        command = [sys.executable, __file__, "--child", str(folder), layout, str(batch)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.said: list[dict[str, float]] = []
        self.seconds: list[tuple[float, float]] = []
        self._heard()

    def run(self, steps: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        said = self._heard()
        self.seconds.append((said["seconds"] / (steps * self.batch), said["own"] / (steps * self.batch)))

    def _heard(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.layout} of {self.count:,} examples ended early; see above")
        self.said.append(json.loads(line))
        return self.said[-1]

    def found(self) -> Row:
        most = lambda key: max(each[key] for each in self.said)
        wall, own = (
            statistics.median(each) for each in zip(*(self.seconds[1:]), strict=True)
        )  # the first warms up
        opening = self.said[0]["opening"]
        return Row(self.layout, self.count, 1e6 * wall, 1e6 * own, most("peak"), most("held"), opening)


def race(sizes: Sequence[int], layouts: Sequence[str], *, batch: int, steps: int, rounds: int) -> list[Row]:
    """Every layout at every size, stretch by stretch in turns."""
    with tempfile.TemporaryDirectory(prefix="saltflat-large-") as base:
        racers = []
        try:
            for count in sizes:
                folder = Path(base) / str(count)
                folder.mkdir()
                print(f"making {count:,} examples", file=sys.stderr)
                make(folder, count, layouts)
                more = ("memory",) if count == min(sizes) else ()
                racers += [Racer(folder, layout, count, batch) for layout in (*more, *layouts)]
            for number in range(rounds + 1):
                print(f"round {number} of {rounds}", file=sys.stderr)
                for racer in random.sample(racers, len(racers)):
                    racer.run(steps)
            return [racer.found() for racer in racers]
        finally:
            for racer in racers:
                racer.process.kill()
                racer.process.wait()


def draws(counts: Sequence[int], batch: int) -> list[tuple[int, float, float]]:
    """Milliseconds for a sample of ``batch`` expected units: as it is drawn, and by a coin for each unit."""
    source, found = SecureSampling(), []
    for count in counts:
        scattered, coins = [], []
        for _ in range(5):
            for kept, way in (
                (scattered, lambda n=count: poisson(n, batch / n, source)),
                (coins, lambda n=count: np.flatnonzero(source.random(n) < batch / n)),
            ):
                started = time.perf_counter()
                way()
                kept.append(1e3 * (time.perf_counter() - started))
        found.append((count, statistics.median(scattered), statistics.median(coins)))
    return found


def table_of(rows: Sequence[Row]) -> str:
    """Markdown; ratios and differences are to the smallest of the same layout."""
    lines = [
        "| layout | examples | us an example | to the smallest | processor's time | to the smallest | peak MB | more | "
        "without pages of files | more | opening, s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        first = next(each for each in rows if each.layout == row.layout)
        lines.append(
            f"| {row.layout} | {row.count:,} | {row.microseconds:.1f} | {row.microseconds / first.microseconds:.3f} | "
            f"{row.own:.1f} | {row.own / first.own:.3f} | {row.peak:.0f} | {row.peak - first.peak:+.0f} | "
            f"{row.held:.0f} | {row.held - first.held:+.0f} | {row.opening:.2f} |"
        )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5, help="steps of a stretch")
    parser.add_argument("--rounds", type=int, default=10, help="stretches of each")
    parser.add_argument("--draws", action="store_true", help="only how long it takes to draw")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    if asked.child:
        child(Path(asked.child[0]), asked.child[1], int(asked.child[2]))
        return
    if asked.draws:
        print("| units | a sample of 256, ms | a coin for each unit, ms |\n|---|---|---|")
        for count, scattered, coins in draws([10**4, 10**6, 10**7], asked.batch):
            print(f"| {count:,} | {scattered:.2f} | {coins:.2f} |")
        return
    rows = race(asked.sizes, asked.layouts, batch=asked.batch, steps=asked.steps, rounds=asked.rounds)
    print(f"{machine(1)}\n\n{table_of(rows)}")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
