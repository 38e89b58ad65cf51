"""Rounds per minute of the in-process engine, and of Flower's simulation of the same work on the same cores.

python benchmarks/federated.py                         # 100 clients x 600 examples, one local epoch of the EMNIST CNN
python benchmarks/federated.py --clients 10 --rounds 2

Every engine runs by itself, in turns: saltflat's clients in a worker for each core; Flower's own FedAvg, with a client
that is a bare loop, one on each core, and with a client as Flower's PyTorch quickstart has it, with the settings that
it comes with; and saltflat's clients and server over Flower. The data is made up, in the shape of MNIST padded to
32 x 32: time does not depend on what it shows.

Beside them stands what no engine can beat: the sums and products of a round, at the pace of a large matrix product.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import machine
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from saltflat import Phase, Plan, Running, Safeguards, supervised, train
from saltflat.data import TensorUnits
from saltflat.federated import Clients, Local, per_client
from saltflat.federated.flower import Fleet, GridPost, client_app, flower, over_flower
from saltflat.methods import DPSGD
from saltflat.models import emnist_cnn
from saltflat.optimizers import SGD
from saltflat.privacy import Ledger

CORES, BATCH, LR = 2, 32, 0.1
LOSS = supervised(nn.CrossEntropyLoss(reduction="none"))
LOCAL = Local(epochs=1, batch_size=BATCH, lr=LR)
TIMES_FASTER, MOST_ADDED = 5.0, 0.05  # the targets
AGAINST = {"flower": "a loop tuned by hand", "flower-quickstart": "a client as its quickstart has it"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return emnist_cnn(classes=10)


def made_up(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 1, 32, 32, generator=source), torch.randint(10, (rows,), generator=source)


def plan(clients: int, rounds: int) -> Plan:
    phase = Phase(method=DPSGD(), steps=rounds, noise_multiplier=1.0, clip_norm=0.2, optimizer=SGD(lr=1.0))
    return Plan(phases=(phase,), rate=1.0, size=clients)


@dataclass(frozen=True)
class Timed:
    """A contribution that notes how long clients train: what is left of a round is clip, sum, noise and record."""

    inner: Any
    spent: list[float] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def at(self, step: int) -> Timed:
        self.spent.append(0.0)
        return replace(self, inner=self.inner.at(step))

    def __call__(self, points: Any, weights: Any, batch: Any) -> Any:
        started = time.perf_counter()
        chunk = self.inner(points, weights, batch)
        self.spent[-1] += time.perf_counter() - started
        return chunk


def in_process(clients: int, rows: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round, and of these the seconds in which clients trained.

    A worker for each core: this network convolves, and minibatches of 32 are too small to be divided among threads. One
    round more than is counted, because the last of a run is looked at again, as one in several hundred is.
    """
    torch.set_num_threads(1)
    x, y = made_up(clients * rows, 0)
    units = Clients(TensorUnits((x, y)), list(np.arange(clients * rows).reshape(clients, rows)))
    own = per_client(network(), LOSS, local=LOCAL, workers=CORES)
    contribution, stamps = Timed(own), list[float]()
    everybody, workers = list[float](), list[float]()

    def after(progress: object) -> None:
        stamps.append(time.perf_counter())
        everybody.append(sum(map(processor_seconds, family())))
        workers.append(sum(map(processor_seconds, own.workers.pids)))

    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(Path(folder) / "ledger", dataset="made up") as book,
    ):
        run = book.run("rounds", unit="client", block=1)
        running = Running(physical=clients, watch=after)
        began = time.perf_counter()
        more = plan(clients, rounds + 1)
        train(more, contribution, units, safeguards=Safeguards(meter=run), running=running)
    counted = list(np.diff(stamps))[:-1]
    return {
        "first": stamps[0] - began,
        "rounds": counted,
        "training": contribution.spent[1:-1],
        "processor": float(np.median(np.diff(workers)[:-1])) / clients,
        "everybody": list(np.diff(everybody))[:-1],
    }


def family() -> list[int]:
    """This process and all that descend from it; only this one where the system does not say."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
    found, new = {os.getpid()}, {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in new} - found:
        found |= new
    return sorted(found)


def processor_seconds(pid: int) -> float:
    """What a process has taken of its core so far; NaN where the system does not say."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return float("nan") if pid == os.getpid() else 0.0  # one that is gone meanwhile


def least_seconds(clients: int, rows: int) -> dict[str, float]:
    """What a round takes at least, on all cores: the operations of all epochs, at the pace of a matrix product."""
    torch.set_num_threads(1)
    (x, y), model = made_up(BATCH, 0), network()
    with FlopCounterMode(display=False) as counter:
        LOSS(model, (x, y)).mean().backward()
    operations = counter.get_total_flops() * rows / BATCH * clients
    square, paces = torch.rand(1024, 1024), list[float]()
    for _ in range(20):
        started = time.process_time()
        square @ square
        paces.append(2 * 1024**3 / (time.process_time() - started))
    return {"operations": operations, "pace": max(paces), "seconds": operations / (CORES * max(paces))}


@cache
def own_rows(rows: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return made_up(rows, number)


def flower_plain(clients: int, rows: int, rounds: int) -> dict[str, Any]:
    """Flower's own FedAvg, and a client that is a bare loop over tensors, kept from round to round.

    This is tuned by hand: no loader, no transforms, and one client at a time on each core, on one thread.
    """

    def epoch(model: nn.Module, number: int) -> None:
        x, y = own_rows(rows, number)
        optimizer, criterion = torch.optim.SGD(model.parameters(), LR), nn.CrossEntropyLoss()
        for part in torch.randperm(rows).split(BATCH):
            optimizer.zero_grad()
            criterion(model(x[part]), y[part]).backward()
            optimizer.step()

    return averaged(epoch, clients, rows, rounds, how=ONE_CORE_EACH)


def flower_quickstart(clients: int, rows: int, rounds: int) -> dict[str, Any]:
    """Flower's own FedAvg, and a client as its PyTorch quickstart has it, with the settings that it comes with.

    Images in a table of Hugging Face, as their hub has MNIST; a client's part of it, transforms for each image, a
    `DataLoader` that shuffles; and two cores for one client, whose threads divide its minibatches. Left out are what
    the other engines do not do either: a part for testing, an evaluation, momentum.
    """
    with tempfile.TemporaryDirectory() as folder:
        pictures(clients * rows).save_to_disk(folder)

        def epoch(model: nn.Module, number: int) -> None:
            loader = part_of(folder, number, clients)
            optimizer, criterion = torch.optim.SGD(model.parameters(), LR), nn.CrossEntropyLoss()
            model.train()
            for batch in loader:
                optimizer.zero_grad()
                criterion(model(batch["image"]), batch["label"]).backward()
                optimizer.step()

        return averaged(epoch, clients, rows, rounds, how=AS_IT_COMES)


def pictures(rows: int) -> Any:
    """Made-up digits as PNG, black around something grey: noise would take longer to decode than MNIST does."""
    datasets = wanted("datasets")
    image = wanted("PIL.Image")
    source = np.random.default_rng(0)
    canvas = np.zeros((rows, 32, 32), np.uint8)
    canvas[:, 8:24, 12:20] = source.integers(0, 256, (rows, 16, 8))
    table = {"image": [image.fromarray(each) for each in canvas], "label": source.integers(0, 10, rows)}
    form = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    return datasets.Dataset.from_dict(table, features=form)


@cache
def table_in(folder: str) -> Any:
    """Opened once in each process, as the quickstart keeps it."""
    return wanted("datasets").load_from_disk(folder)


def part_of(folder: str, number: int, clients: int) -> Iterable[dict[str, torch.Tensor]]:
    """The loader of one client: a contiguous part of the table, an image at a time through the transforms."""

    def transformed(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {**batch, "image": [scaled(each) for each in batch["image"]]}

    part = table_in(folder).shard(clients, number, contiguous=True).with_transform(transformed)
    return DataLoader(part, batch_size=BATCH, shuffle=True)


def scaled(image: Any) -> torch.Tensor:
    """The quickstart's two transforms, `ToTensor` and `Normalize`, in the fewest calls: numbers from -1 to 1."""
    return torch.from_numpy(np.array(image)).unsqueeze(0).float().div_(127.5).sub_(1)


def wanted(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SystemExit(
            f"flower-quickstart needs {name}: pip install datasets pillow, or leave it out of --engines"
        ) from error


def averaged(
    epoch: Callable[[nn.Module, int], None],
    clients: int,
    rows: int,
    rounds: int,
    how: dict[str, Any],
) -> dict[str, Any]:
    """Rounds of Flower's own FedAvg, over clients that load what they are sent, train by ``epoch`` and answer."""
    parts, stamps, everybody, told = flower(), list[float](), list[float](), list[float]()
    from flwr.serverapp.strategy import FedAvg

    app, records = parts.clientapp.ClientApp(), parts.app

    @app.train()
    def trained(message: Any, context: Any) -> Any:
        model, number = network(), context.node_config["partition-id"]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        began = time.process_time()
        epoch(model, number)
        content = {
            "arrays": records.ArrayRecord(model.state_dict()),
            "metrics": records.MetricRecord({"num-examples": rows, "processor": time.process_time() - began}),
        }
        return records.Message(records.RecordDict(content), reply_to=message)

    class Complete(FedAvg):
        """Flower goes on without those that fail, and such a round is soon over."""

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            sound = sum(not each.has_error() for each in replies)
            if sound != clients:
                raise RuntimeError(f"{sound} of {clients} clients answered in round {server_round}")
            return super().aggregate_train(server_round, replies)

    def main(grid: Any, context: Any) -> None:
        strategy = Complete(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=clients)
        first = records.ArrayRecord(network().state_dict())

        def stamp(number: int, arrays: Any) -> None:
            stamps.append(time.perf_counter())
            everybody.append(sum(map(processor_seconds, family())))

        found = strategy.start(grid, first, num_rounds=rounds, evaluate_fn=stamp)
        told.extend(each["processor"] for each in found.train_metrics_clientapp.values())

    simulate(app, main, clients, how)
    return {
        "first": stamps[1] - stamps[0],
        "rounds": list(np.diff(stamps[1:])),
        "processor": float(np.median(told[1:])),  # the loop alone, without what brings the message
        "everybody": list(np.diff(everybody[1:])),
    }


def flower_saltflat(clients: int, rows: int, rounds: int) -> dict[str, Any]:
    """The same clients and the same server as in process, with Flower in between."""
    stamps: list[float] = []
    contribution = per_client(network(), LOSS, local=LOCAL)
    app = client_app(
        contribution, lambda context: own_rows(rows, context.node_config["partition-id"]), clip_norm=0.2
    )

    def main(grid: Any, context: Any) -> None:
        fleet = Fleet(GridPost(grid), clients, seconds=600, patience=600)
        running = Running(physical=clients, watch=lambda progress: stamps.append(time.perf_counter()))
        stamps.append(time.perf_counter())
        train(plan(clients, rounds), over_flower(network(), fleet), fleet, running=running)

    simulate(app, main, clients, ONE_CORE_EACH)
    return {"first": stamps[1] - stamps[0], "rounds": list(np.diff(stamps[1:]))}


def simulate(client: Any, main: Callable[[Any, Any], None], nodes: int, how: dict[str, Any]) -> None:
    """Flower's simulation runtime.

    Ray lets its processes step back behind all others of the machine (nice 15), which costs nothing on an idle machine,
    and would be held against Flower on a busy one; here it does not.
    """
    from flwr.simulation import run_simulation

    os.environ.setdefault("RAY_worker_niceness", "0")
    server = flower().serverapp.ServerApp()
    server.main()(main)
    run_simulation(server, client, nodes, backend_config=how)


AS_IT_COMES = {"init_args": {"num_cpus": CORES}}  # 2 CPUs for each client, so one at a time
ONE_CORE_EACH = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": CORES}}
ENGINES = {
    "in-process": in_process,
    "flower": flower_plain,
    "flower-quickstart": flower_quickstart,
    "saltflat-over-flower": flower_saltflat,
}


def turns(engines: Sequence[str], count: int) -> list[str]:
    """What is compared takes turns, since other work comes and goes; saltflat over Flower has one, at the end."""
    compared = [each for each in ENGINES if each in engines and each != "saltflat-over-flower"]
    return compared * count + [each for each in engines if each not in compared]


def measured(engine: str, given: argparse.Namespace) -> dict[str, Any]:
    """An engine's figures, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        begin = "import federated; federated.main()"  # by its name: Ray's processes look for functions in it
        command = [sys.executable, "-c", begin, "--engine", engine, "--json", str(out)]
        for name in ("clients", "rows", "rounds"):
            command += [f"--{name}", str(getattr(given, name))]
        here = str(Path(__file__).parent)
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
        )
        if done.returncode:
            raise SystemExit(f"{engine} failed:\n{done.stderr[-3000:]}")
        return json.loads(out.read_text())


def joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The figures of two turns of an engine: all rounds, and the mean of what was worked out for each."""
    lists = {name: one[name] + other[name] for name in ("rounds", "training", "everybody") if name in one}
    means = {name: (one[name] + other[name]) / 2 for name in ("first", "processor") if name in one}
    return {**means, **lists}


def shown(found: dict[str, dict[str, Any]]) -> str:
    """The table, and whether the targets are met."""
    lines = [
        "| engine | seconds a round | rounds a minute | processor seconds of a round | of training one client |",
        "|---|---|---|---|---|",
    ]
    pace = {name: 60 / float(np.median(each["rounds"])) for name, each in found.items() if "rounds" in each}
    for name, rate in pace.items():
        own = found[name]
        more = f"{np.median(own['everybody']):.2f} | {own['processor']:.3f}" if "everybody" in own else "|"
        lines.append(f"| {name} | {60 / rate:.2f} | {rate:.3g} | {more} |")
    own = found.get("in-process", {})
    if own:
        whole, inner = sum(own["rounds"]), sum(own["training"])
        added = (whole - inner) / inner
        met = "met" if added <= MOST_ADDED else "missed"
        lines.append(f"\nclip, sum, noise and record add {100 * added:.2f} % to a round (at most 5 %: {met})")
    for name in [name for name in AGAINST if own and name in pace]:
        ratio = pace["in-process"] / pace[name]
        met = "met" if ratio >= TIMES_FASTER else "missed"
        lines.append(
            f"in-process / Flower's simulation, {AGAINST[name]}: {ratio:.2f} times (at least 5: {met})"
        )
        if "everybody" in own and "everybody" in found[name]:
            less = np.median(found[name]["everybody"]) / np.median(own["everybody"])
            lines.append(
                f"processor seconds of a round, which other work on the machine does not add to: {less:.2f} times less"
            )
    if "least" in found and "flower" in pace:
        least = found["least"]
        times = 60 / pace["flower"] / least["seconds"]
        lines.append(
            f"a round is {least['operations'] / 1e9:.0f} GFLOP; at {least['pace'] / 1e9:.0f} GFLOP/s on {CORES} cores "
            f"it takes {least['seconds']:.2f} s at least, {times:.2f} times less than in Flower"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rows", type=int, default=600, help="examples of each client")
    parser.add_argument("--rounds", type=int, default=3, help="the first one is not counted")
    parser.add_argument("--turns", type=int, default=2, help="how often each engine begins anew")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args(arguments)
    if given.rounds < 2:
        parser.error("--rounds is at least 2: the first one is not counted")
    if given.turns < 1:
        parser.error("--turns is at least 1")
    if given.engine:
        found: Any = ENGINES[given.engine](given.clients, given.rows, given.rounds)
    else:
        found = {"least": least_seconds(given.clients, given.rows)}
        for engine in turns(given.engines, given.turns):
            new = measured(engine, given)
            print(f"{engine}: {', '.join(f'{each:.1f} s' for each in new['rounds'])}", flush=True)
            found[engine] = joined(found[engine], new) if engine in found else new
        print(
            f"{machine(1)}; {given.clients} clients x {given.rows} examples, "
            f"{given.rounds - 1} rounds counted of each turn"
        )
        print(shown(found))
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
