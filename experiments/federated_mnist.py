"""Seven federated methods side by side: MNIST over 500 clients, client-level privacy, equal rounds and equal noise.

python experiments/federated_mnist.py                # 21 runs and the legacy clipping; goes on where it was stopped
python experiments/federated_mnist.py --choose       # the search on Fashion-MNIST that the settings come from
python experiments/federated_mnist.py --table        # the finished runs
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import results
import torch
from torch import nn
from torch.func import functional_call

import saltflat as sf
from saltflat.core.train import trainable
from saltflat.data import Examples, Split, load
from saltflat.door import AnyMethod
from saltflat.errors import SaltflatError
from saltflat.federated import Blur, Climb, Local, per_client
from saltflat.federated.legacy import per_tensor
from saltflat.federated.partition import dirichlet
from saltflat.methods import DPSGD, Coin, Earlier, Masked
from saltflat.models import mlp
from saltflat.optimizers import SGD
from saltflat.tree import Tree

CLIENTS, RATE, ALPHA, NOISE, DELTA = 500, 0.1, 0.6, 0.95, 2e-3
HERE = Path(__file__).parent
KEPT, CHOSEN = HERE / "federated.jsonl", HERE / "federated_choose.jsonl"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run: a method as its parts, and what all methods share."""

    data: str = "mnist"
    method: str = "DP-FedAvg"
    seed: int = (
        0  # of the division into clients and of the first weights; samples, noise and orders are secret
    )
    rounds: int = 200
    epochs: int = 1
    lr: float = 0.1
    clip_norm: float = 0.4
    radius: float = 0.0
    adaptive: bool = False
    blur: float = 0.0  # its weight; its bound is the clip norm
    lus: float = 1.0  # the part of its update that a client keeps
    mask: str = ""  # of the server: "coin" or "earlier"
    keep: float = 1.0
    legacy: bool = False


def local_of(settings: Settings) -> Local:
    """How a client trains."""
    return Local(
        epochs=settings.epochs,
        batch_size=32,
        lr=settings.lr,
        momentum=0.5,
        weight_decay=5e-4,
        lr_decay=0.998,
        climb=Climb(settings.radius, settings.adaptive) if settings.radius else None,
        blur=Blur(settings.clip_norm, settings.blur) if settings.blur else None,
        keep=settings.lus,
    )


def method_of(settings: Settings) -> AnyMethod:
    """How the server asks."""
    by = {"coin": Coin(settings.seed), "earlier": Earlier(every=10)}
    return Masked(DPSGD(), keep=settings.keep, by=by[settings.mask]) if settings.mask else DPSGD()


def plan_of(settings: Settings, params: Tree) -> sf.Plan:
    """Poisson draws of clients, noise on the sum, federated averaging on the server."""
    given = {"clip_norm": settings.clip_norm, "noise_multiplier": NOISE}
    clipped = per_tensor(params, **given) if settings.legacy else given
    phase = sf.Phase(method=method_of(settings), steps=settings.rounds, optimizer=SGD(lr=1.0), **clipped)
    return sf.Plan(phases=(phase,), rate=RATE, size=CLIENTS)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return mlp(784, 10)


def measured(model: nn.Module, params: Tree, examples: Examples) -> tuple[float, float]:
    """Accuracy and mean loss; these images are public here, whoever they stand for."""
    hits, loss = 0.0, 0.0
    with torch.no_grad():
        for images, labels in examples.batches(2000):
            outputs = functional_call(model, params, (images,))
            hits += float((outputs.argmax(1) == labels).sum())
            loss += float(nn.functional.cross_entropy(outputs, labels, reduction="sum"))
    return hits / examples.count, loss / examples.count


def run(settings: Settings, split: Split) -> results.Result:
    """Divide, train and measure once."""
    model = network(settings.seed)
    plan = plan_of(settings, trainable(model))
    loss = sf.supervised(nn.CrossEntropyLoss(reduction="none"))
    clients = dirichlet(split.train.targets.numpy(), CLIENTS, alpha=ALPHA, seed=settings.seed).of(split.train)
    started = time.perf_counter()
    params = sf.train(plan, per_client(model, loss, local=local_of(settings)), clients)
    seconds = time.perf_counter() - started
    train, test = (measured(model, params, some) for some in (split.train, split.test))
    return {
        "settings": asdict(settings),
        "phase": str(plan.phases[0]),
        "local": str(local_of(settings)),
        "epsilon": plan.epsilon(DELTA),
        "train_accuracy": train[0],
        "test_accuracy": test[0],
        "train_loss": train[1],
        "test_loss": test[1],
        "seconds": seconds,
    }


def kept(settings: Settings, found: Sequence[results.Result]) -> results.Result | None:
    """The finished run with these settings, if there is one."""
    return next((one for one in found if one["settings"] == asdict(settings)), None)


def series(runs: Iterable[Settings], given: argparse.Namespace) -> None:
    """Every run that the file does not hold yet, each written when it ends; at most as many as were asked for."""
    results.check_writable(given.out)
    for settings in runs:
        if kept(settings, results.read(given.out)):
            continue
        if given.runs == 0:
            return
        found = run(settings, load(settings.data, given.data_dir))
        results.append(given.out, found)
        given.runs -= 1
        print(
            f"{settings.data}, {settings.method}, seed {settings.seed}: test {found['test_accuracy']:.4f}, train "
            f"{found['train_accuracy']:.4f}, epsilon {found['epsilon']:.3f}, {found['seconds']:.0f} s",
            flush=True,
        )


# The search: on Fashion-MNIST, with a division and first weights that the comparison does not use, and 60 rounds.
# Clip norm and learning rate are chosen for DP-FedAvg and shared by all; each method's own setting comes after that.
OTHER = Settings(data="fashion-mnist", seed=100, rounds=60)
COMMON = [{"clip_norm": clip_norm, "lr": lr} for clip_norm in (0.2, 0.4, 0.8) for lr in (0.03, 0.1, 0.3)]
KEEP = (0.4, 0.6, 0.8)
CLIMBS = [{"radius": radius} for radius in (0.01, 0.05, 0.1)]
CLIMBS += [{"radius": radius, "adaptive": True} for radius in (0.1, 0.5, 1.0)]
OWN: dict[
    str, tuple[tuple[str, ...], list[dict[str, Any]]]
] = {  # a method: what it is built on, and what it tries
    "DP-FedAvg": ((), COMMON),
    "Fed-SMP-rand": (("DP-FedAvg",), [{"mask": "coin", "keep": keep} for keep in KEEP]),
    "Fed-SMP-top": (("DP-FedAvg",), [{"mask": "earlier", "keep": keep} for keep in KEEP]),
    "BLUR": (("DP-FedAvg",), [{"blur": weight} for weight in (0.1, 0.4, 2.0)]),
    "BLUR+LUS": (("DP-FedAvg", "BLUR"), [{"lus": keep} for keep in KEEP]),
    "DP-FedSAM": (("DP-FedAvg",), CLIMBS),
    "DP-FedSAM-top_k": (("DP-FedAvg", "DP-FedSAM"), [{"mask": "earlier", "keep": keep} for keep in KEEP]),
}


def tries(method: str, found: Sequence[results.Result]) -> list[Settings]:
    """What a method tries, on top of what was chosen for those that it is built on."""
    below, own = OWN[method]
    base = {name: value for each in below for name, value in chosen(each, found).items()}
    return [replace(OTHER, method=method, **{**base, **each}) for each in own]


def chosen(method: str, found: Sequence[results.Result]) -> dict[str, Any]:
    """The setting of its own with which a method had the best test accuracy in the search."""
    done = [(kept(each, found), own) for each, own in zip(tries(method, found), OWN[method][1], strict=True)]
    if any(one is None for one, _ in done):
        raise SaltflatError(f"the search for {method} is not over: run with --choose first")
    return max(done, key=lambda pair: pair[0]["test_accuracy"])[1]  # type: ignore[index]


def search(found: Path) -> Iterator[Settings]:
    """The tries of every method, in an order in which what they build on is known."""
    for method in OWN:
        yield from tries(method, results.read(found))


def comparison(seeds: Sequence[int], found: Sequence[results.Result]) -> Iterator[Settings]:
    """All methods with what was chosen, seed by seed; then DP-FedSAM with the legacy clipping, once."""
    for seed in seeds:
        for method, (below, _) in OWN.items():
            own = {name: value for each in (*below, method) for name, value in chosen(each, found).items()}
            yield Settings(method=method, seed=seed, **own)
    if 0 in seeds:
        sam = {**chosen("DP-FedAvg", found), **chosen("DP-FedSAM", found)}
        yield Settings(method="DP-FedSAM", seed=0, legacy=True, **sam)


def table(found: Sequence[results.Result]) -> str:
    """Means over seeds, with their standard errors, in per cent."""
    groups: dict[str, list[results.Result]] = {}
    once = {str(one["settings"]): one for one in found}  # two processes may have run the same
    for one in sorted(once.values(), key=lambda one: list(OWN).index(one["settings"]["method"])):
        name = one["settings"]["method"] + (", legacy clipping" if one["settings"]["legacy"] else "")
        groups.setdefault(name, []).append(one)
    lines = [
        "| method | runs | test accuracy | train accuracy | train - test | epsilon |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in groups.items():
        test, train = ([100 * one[f"{part}_accuracy"] for one in runs] for part in ("test", "train"))
        gap = [a - b for a, b in zip(train, test, strict=True)]
        epsilon = max(one["epsilon"] for one in runs)
        cells = (name, len(runs), *map(mean_of, (test, train, gap)), f"{epsilon:.2f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def paired(found: Sequence[results.Result], against: str = "DP-FedAvg") -> str:
    """Test accuracy less that of another method, seed by seed: both have the same clients and first weights."""
    tests: dict[str, dict[int, float]] = {}
    for one in found:
        settings = one["settings"]
        if not settings["legacy"]:
            tests.setdefault(settings["method"], {})[settings["seed"]] = 100 * one["test_accuracy"]
    lines = [f"| method | less {against}, by seed | mean |", "|---|---|---|"]
    for method in (each for each in OWN if each in tests and each != against):
        both = sorted(tests[method].keys() & tests.get(against, {}).keys())
        gains = [tests[method][seed] - tests[against][seed] for seed in both]
        if gains:
            lines.append(f"| {method} | {', '.join(f'{gain:+.2f}' for gain in gains)} | {mean_of(gains)} |")
    return "\n".join(lines)


def mean_of(values: Sequence[float]) -> str:
    """A mean and its standard error; of one run, the number alone."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return f"{statistics.mean(values):.2f}" + (f" ± {error:.2f}" if error is not None else "")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data-dir", type=Path, help="the folder that holds the data sets (default: SALTFLAT_DATA)")
    add("--choose", action="store_true", help="search for settings on Fashion-MNIST instead")
    add("--table", action="store_true", help="print the finished runs and end")
    add("--seed", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    add("--runs", type=int, default=-1, help="end after so many new runs (default: all)")
    add(
        "--out",
        type=Path,
        help="(default: federated.jsonl, or federated_choose.jsonl for the search, beside this file)",
    )
    given = parser.parse_args(words)
    given.out = given.out or (CHOSEN if given.choose else KEPT)
    torch.set_num_threads(1)  # many small products: a second thread only waits
    if given.table:
        found = results.read(given.out)
        print(table(found), paired(found), sep="\n\n")
    else:
        series(search(given.out) if given.choose else comparison(given.seed, results.read(CHOSEN)), given)


if __name__ == "__main__":
    main()
