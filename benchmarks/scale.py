"""What a step costs in one process and in two that train together, and against batch and model size.

    python benchmarks/scale.py                                  # both models, every series, about ten minutes
    python benchmarks/scale.py --series strong --models gnresnet10 --seconds 60
    python benchmarks/scale.py --series parts                   # what a projection is made of: messages, noise, update

*strong*: one batch, by one process with one thread, one with two threads, and two processes ("ranks") of one thread.
*weak*: twice the batch on two ranks beside the batch on one. *batch*, *model*: one rank and two, the batch or the width
of an MLP growing. Every engine is `saltflat.train` itself, with secret noise, in processes of its own that wait between
their turns; a round is a turn of each in a new order, and medians are compared (see race.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import race
from cases import CASES, MNIST, Case
from report import machine
from torch import nn

TARGET = 0.9  # of the throughput of one process with two threads, by two ranks of one thread
MODELS = ("gnresnet10", "small-vit")
WIDTHS, BATCHES = (64, 256, 1024, 4096), (16, 32, 64, 128)
TIMED = 3  # steps of a turn, after one that is not timed
DEVICES = (8, 64)
SERIES: dict[str, Callable[[Sequence[str]], list[Engine]]] = {}  # another one is a function more


@dataclass(frozen=True)
class Engine:
    """One way to take a step: a model, the units of a step, how many processes, and the threads of each."""

    model: str
    units: int
    ranks: int
    threads: int

    @property
    def name(self) -> str:
        """As child processes are told it.

        >>> Engine("small-vit", 128, 2, 1).name
        'small-vit:128:2:1'
        """
        return f"{self.model}:{self.units}:{self.ranks}:{self.threads}"

    @classmethod
    def of(cls, name: str) -> Engine:
        model, *numbers = name.split(":")
        return cls(model, *map(int, numbers))


def case_of(engine: Engine) -> Case:
    """The model and its made-up data; ``wide-512`` is an MLP 784-512-10."""
    if engine.model.startswith("wide-"):
        width = int(engine.model.removeprefix("wide-"))
        build = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.Tanh(), nn.Linear(width, 10))
        return Case(title=f"MLP 784-{width}-10", build=build, units=engine.units, shape=MNIST)
    given = CASES[engine.model]
    return Case(
        title=given.title, build=given.build, units=engine.units, shape=given.shape, answers=given.answers
    )


def series(make: Callable[[Sequence[str]], list[Engine]]) -> Callable[[Sequence[str]], list[Engine]]:
    SERIES[make.__name__] = make
    return make


@series
def strong(models: Sequence[str]) -> list[Engine]:
    ways = ((1, 1), (1, 2), (2, 1))
    return [Engine(model, CASES[model].units, *way) for model in models for way in ways]


@series
def weak(models: Sequence[str]) -> list[Engine]:
    return [Engine(model, CASES[model].units * ranks, ranks, 1) for model in models for ranks in (1, 2)]


@series
def batch(models: Sequence[str]) -> list[Engine]:
    return [Engine(models[0], units, ranks, 1) for units in BATCHES for ranks in (1, 2)]


@series
def model(models: Sequence[str]) -> list[Engine]:
    return [Engine(f"wide-{width}", 512, ranks, 1) for width in WIDTHS for ranks in (1, 2)]


class Ranks:
    """The processes of an engine; the first one answers for all. What `race.Race` calls a runner."""

    def __init__(self, name: str) -> None:
        engine, self._folder = Engine.of(name), tempfile.TemporaryDirectory()
        threads = str(engine.threads)
        limits = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the engine leaves)
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--child", name, f"--rank={rank}", f"--meet={self._folder.name}"],
                env=os.environ | limits,
                stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=self._errors,
                text=True,
            )
            for rank in range(engine.ranks)
        ]

    def turn(self) -> race.Turn:
        first = self._processes[0]
        assert first.stdin is not None
        assert first.stdout is not None
        try:
            first.stdin.write(f"{TIMED}\n")
            first.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone, and the line that it did not write says so
        line = first.stdout.readline()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
            self.leave()
            raise race.Dropped(next(reversed(said), "no reason given")[:160])
        return race.Turn(json.loads(line), 0.0)

    def leave(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self._errors.close()
        self._folder.cleanup()


def child(engine: Engine, rank: int, meet: str) -> None:
    """One process of an engine: the private loop itself, which waits after the last step of a turn."""
    import torch
    from saltflat_engine import MOMENTUM, losses
    from torch import distributed

    from saltflat import Phase, Plan, Running, per_example, supervised, train
    from saltflat.data import TensorUnits
    from saltflat.methods import DPSGD

    torch.set_num_threads(engine.threads)
    if engine.ranks > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{meet}/meet", rank=rank, world_size=engine.ranks
        )
    case = case_of(engine)
    phase = Phase(method=DPSGD(), steps=10**6, noise_multiplier=1.0, clip_norm=1.0, optimizer=MOMENTUM)
    turns = _Turns()
    train(
        Plan(phases=(phase,), rate=1.0, size=engine.units),
        per_example(case.model(), supervised(losses)),
        TensorUnits(case.batch()),
        running=Running(physical=engine.units, watch=turns),
    )


class _Turns:
    """Watches the loop: waits for a number on standard input, times so many steps after one more, and answers."""

    def __init__(self) -> None:
        self.left, self.seconds, self.since = 0, list[float](), 0.0

    def __call__(self, progress: Any) -> bool:
        self.seconds.append(time.perf_counter() - self.since)
        if self.left == 0:
            if self.since:
                print(json.dumps(self.seconds[1:]), flush=True)
            line = sys.stdin.readline()
            if not line:
                return True
            self.left, self.seconds = int(line) + 1, []
        self.left -= 1
        self.since = time.perf_counter()
        return False


@dataclass(frozen=True)
class Parts:
    """What a step of several processes is made of beside the units' gradients, in seconds, measured on two of them."""

    parameters: int
    message: float  # a small one: what a step's bookkeeping costs each time
    up: float  # the sum of all leaves to the first process
    down: float  # the release to all others
    noise: float
    update: float


def parts_child(engine: Engine, rank: int, meet: str) -> None:
    import torch
    from saltflat_engine import MOMENTUM
    from torch import distributed

    from saltflat.core.group import Group
    from saltflat.core.train import trainable
    from saltflat.privacy.noise import SecureNoise

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meet}/meet", rank=rank, world_size=2)
    params, noise, group = trainable(case_of(engine).model()), SecureNoise(), Group.here()
    flat = torch.cat([leaf.flatten() for leaf in params.values()])
    memory = MOMENTUM.init(params)
    work: dict[str, Callable[[], Any]] = {
        "message": lambda: group.told(lambda: [1, 2, 3]),
        "up": lambda: distributed.reduce(flat, dst=0),
        "down": lambda: distributed.broadcast(flat, src=0),
        "noise": lambda: noise.normal(params),
        "update": lambda: MOMENTUM.step(params, params, memory),
    }
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(30):
        for name, do in work.items():
            distributed.barrier()
            begun = time.perf_counter()
            do()
            found[name].append(time.perf_counter() - begun)
    if rank == 0:
        medians = {name: statistics.median(seconds[5:]) for name, seconds in found.items()}
        print(json.dumps({"parameters": flat.numel(), **medians}), flush=True)


def parts_of(name: str) -> Parts:
    """Measure the parts of a model's step on two processes."""
    with tempfile.TemporaryDirectory() as meet:
        command = [sys.executable, __file__, "--parts", Engine(name, 1, 2, 1).name, f"--meet={meet}"]
        both = [
            subprocess.Popen([*command, f"--rank={rank}"], stdout=subprocess.PIPE, text=True)
            for rank in (0, 1)
        ]
        said = [process.communicate()[0] for process in both]
    return Parts(**json.loads(said[0]))


MESSAGES = (
    4  # small ones of a step: who is drawn, that it is on record, whether to leave, what the watch says
)


def projected(parts: Parts, *, example: float, units: int, devices: int, pace: float = 1.0) -> float:
    """Seconds of a step of ``units`` on so many devices, each ``pace`` times as fast as a core here: no measurement.

        units / devices * example / pace + (noise + update) / pace + ceil(log2 devices) (up + down + 4 message)

    As if each message passed through a tree of processes, every level of it as slow as the link between two processes
    of this machine; noise is drawn by the first device alone.

    >>> one = Parts(parameters=10, message=0.0, up=0.0, down=0.0, noise=0.0, update=0.0)
    >>> projected(one, example=0.5, units=64, devices=8)
    4.0
    """
    levels = math.ceil(math.log2(devices)) if devices > 1 else 0
    alone = units / devices * example + parts.noise + parts.update
    return alone / pace + levels * (parts.up + parts.down + MESSAGES * parts.message)


def table(found: dict[str, float]) -> str:
    """Seconds by engine, as lines of a table; each beside what it is compared with."""
    lines = [
        "| model | units | ranks x threads | ms | units/s | of one thread | of two threads |",
        "|" + "---|" * 7,
    ]
    for name, seconds in found.items():
        engine = Engine.of(name)
        rate = engine.units / seconds
        beside = [_rate(found, engine, ranks=1, threads=threads) for threads in (1, 2)]
        ratios = [f"{rate / other:.2f}" if other else "" for other in beside]
        way = f"{engine.ranks} x {engine.threads}"
        lines.append(
            f"| {case_of(engine).title} | {engine.units} | {way} | {seconds * 1e3:.1f} | {rate:,.0f} | "
            f"{ratios[0]} | {ratios[1]} |"
        )
    return "\n".join(lines)


def _rate(found: dict[str, float], like: Engine, **way: int) -> float | None:
    """The throughput of another way to train that model: on this batch, or else on the nearest smaller one."""
    others = [Engine.of(name) for name in found]
    same = [
        each
        for each in others
        if (each.model, each.ranks, each.threads) == (like.model, way["ranks"], way["threads"])
        and each.units <= like.units
    ]
    nearest = max(same, key=lambda each: each.units, default=None)
    return None if nearest is None else nearest.units / found[nearest.name]


def verdicts(found: dict[str, float]) -> list[str]:
    """Whether two ranks of one thread keep up with one process of two."""
    said = []
    for name in found:
        engine = Engine.of(name)
        other = Engine(engine.model, engine.units, 1, 2)
        if (engine.ranks, engine.threads) == (2, 1) and other.name in found:
            ratio = found[other.name] / found[name]
            word = "met" if ratio >= TARGET else "MISSED"
            title = case_of(engine).title
            said.append(f"{title}: two ranks reach {ratio:.3f} of two threads; at least {TARGET}: {word}")
    return said


def projection(models: Sequence[str], found: dict[str, float], parts: dict[str, Parts]) -> str:
    lines = [
        "A projection, not a measurement: steps of 4,096 units on devices like one core here, and 100 times as fast.",
        *("", "| model | devices | pace | ms | efficiency |", "|---|---|---|---|---|"),
    ]
    for name in models:
        alone = found.get(Engine(name, CASES[name].units, 1, 1).name)
        if alone is None or name not in parts:
            continue
        own = parts[name]
        example = (alone - own.noise - own.update) / CASES[name].units
        for pace in (1, 100):
            one = projected(own, example=example, units=4096, devices=1, pace=pace)
            for devices in DEVICES:
                step = projected(own, example=example, units=4096, devices=devices, pace=pace)
                share = one / devices / step
                lines.append(
                    f"| {CASES[name].title} | {devices} | {pace} | {step * 1e3:,.1f} | {share:.2f} |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", nargs="+", choices=[*SERIES, "parts"], default=[*SERIES, "parts"])
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=list(MODELS))
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="for each series, after its engines began"
    )
    parser.add_argument("--heats", type=int, default=2, help="how often everybody starts afresh")
    parser.add_argument("--json", type=Path, help="keep the medians here, beside what is there already")
    for hidden in ("--child", "--parts", "--meet"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child or given.parts:
        work = child if given.child else parts_child
        work(Engine.of(given.child or given.parts), given.rank, given.meet)
        return
    print(machine(2))
    kept = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    found: dict[str, float] = dict(kept.get("seconds", {}))
    parts = {name: Parts(**each) for name, each in kept.get("parts", {}).items()}
    for each in given.series:
        if each == "parts":
            parts |= {name: parts_of(name) for name in given.models}
            print(f"\nparts\n{json.dumps({name: asdict(own) for name, own in parts.items()}, indent=1)}")
            continue
        names = [engine.name for engine in SERIES[each](given.models)]
        heats = race.run(Ranks, names, budget=given.seconds, least=2, heats=given.heats, slow=math.inf)
        own = {name: seconds for name in names if (seconds := heats.median(name)) is not None}
        for name in names:
            if heats.error(name):
                print(f"{name}: {heats.error(name)}", file=sys.stderr)
        found |= own
        print(f"\n{each}\n{table(own)}", *verdicts(own), sep="\n", flush=True)
        if given.json:
            given.json.write_text(
                json.dumps({"seconds": found, "parts": {n: asdict(p) for n, p in parts.items()}})
            )
    if given.json:
        given.json.write_text(
            json.dumps({"seconds": found, "parts": {n: asdict(p) for n, p in parts.items()}})
        )
    print(f"\n{projection(given.models, found, parts)}")


if __name__ == "__main__":
    main()
