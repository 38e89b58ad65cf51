"""Next-word prediction on Reddit comments, one comment being the unit: DP-SGD and DPLIS, warmed up on Brown or not.

python experiments/reddit.py --choose       # learning rates, on sentences of the Brown corpus alone
python experiments/reddit.py                # the comparison; goes on where it was stopped
python experiments/reddit.py --table        # the finished runs
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import results
import torch
from torch import nn
from torch.func import functional_call

import saltflat as sf
from saltflat.data import Examples, Split, Vocabulary, text
from saltflat.door import AnyMethod
from saltflat.errors import SaltflatError
from saltflat.methods import DPLIS, DPSGD
from saltflat.models import next_word_loss, next_word_lstm
from saltflat.optimizers import SGD
from saltflat.tree import Tree

WORDS, LENGTH = 2_000, 16  # of the vocabulary, and of a comment
BATCH, EPOCHS, EPSILON, DELTA = 512, 1, 3.0, 1e-6
COPIES, REACH = 3, 4.0  # of DPLIS; the reach is the published one
RATES = (0.5, 2.0, 8.0)
STARTS, METHODS = ("cold", "warm"), ("DP-SGD", "DPLIS")
HERE = Path(__file__).parent
KEPT, CHOSEN = HERE / "reddit.jsonl", HERE / "reddit_choose.jsonl"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run. ``brown``: sentences of the Brown corpus stand for the comments, to choose a learning rate."""

    method: str = "DP-SGD"
    start: str = "cold"
    lr: float = 2.0
    seed: int = 0  # of the first weights, where they are cold; samples and noise are secret
    brown: bool = False


def method_of(settings: Settings) -> AnyMethod:
    """How the private step asks."""
    if settings.method == "DP-SGD":
        return DPSGD()
    return DPLIS(lr=settings.lr, copies=COPIES, reach=REACH)


def plan_of(settings: Settings, size: int) -> sf.Plan:
    """One epoch of Poisson samples at the noise that epsilon leaves, SGD without momentum as in the paper."""
    phase = sf.Phase(
        method=method_of(settings),
        steps=round(EPOCHS * size / BATCH),
        noise_multiplier=1.0,
        clip_norm=1.0,
        optimizer=SGD(lr=settings.lr),
    )
    plan = sf.Plan(phases=(phase,), rate=BATCH / size, size=size)
    return sf.calibrate(plan, epsilon=EPSILON, delta=DELTA)


@dataclass(frozen=True)
class Texts:
    """What a run reads: public sentences to warm up on, private units, public ones to test on."""

    public: Examples
    split: Split


@cache
def texts(data_dir: Path | None, brown: bool) -> Texts:
    """The comments; or, to choose settings, half of Brown's sentences in their place and a twentieth as the test."""
    sentences = text.brown(data_dir)
    vocabulary = Vocabulary.of(sentences, WORDS)
    if not brown:
        public = text.sequences(sentences, vocabulary, length=LENGTH)
        return Texts(public, text.reddit(data_dir, vocabulary=vocabulary, length=LENGTH))
    test = sentences[::20]
    rest = [each for place, each in enumerate(sentences) if place % 20]
    parts = [text.sequences(part, vocabulary, length=LENGTH) for part in (rest[::2], rest[1::2], test)]
    return Texts(parts[0], Split(parts[1], parts[2], vocabulary.size))


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return next_word_lstm(WORDS)


@cache
def warmed(data_dir: Path | None, brown: bool) -> Tree:
    """Weights after one plain epoch over the public sentences, with Adam: nothing private is read."""
    model, public = network(0), texts(data_dir, brown).public
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    order = np.random.default_rng(0).permutation(public.count)
    for part in np.array_split(order, -(-public.count // 128)):
        inputs, targets = public.take(part)
        optimizer.zero_grad()
        next_word_loss(model(inputs), targets).mean().backward()
        optimizer.step()
    return {name: leaf.detach() for name, leaf in model.state_dict().items()}


def perplexity(model: nn.Module, params: Tree, examples: Examples) -> float:
    """exp(mean loss of a word), on public examples."""
    total, count = 0.0, 0
    with torch.no_grad():
        for inputs, targets in examples.batches(256):
            logits, real = functional_call(model, params, (inputs,)), targets != 0
            total += float(nn.functional.cross_entropy(logits[real], targets[real], reduction="sum"))
            count += int(real.sum())
    return math.exp(total / count)


def run(settings: Settings, data_dir: Path | None) -> results.Result:
    """Train and measure once."""
    split, model = texts(data_dir, settings.brown).split, network(settings.seed)
    if settings.start == "warm":
        model.load_state_dict(warmed(data_dir, settings.brown))
    before = perplexity(model, dict(model.named_parameters()), split.test)
    plan = plan_of(settings, split.train.count)
    contribution = sf.per_example(model, sf.supervised(next_word_loss))
    started = time.perf_counter()
    params = sf.train(plan, contribution, split.train, running=sf.Running(physical=128))
    return {
        "settings": asdict(settings),
        "phase": str(plan.phases[0]),
        "noise_multiplier": plan.phases[0].noise_multiplier,
        "epsilon": plan.epsilon(DELTA),
        "before": before,
        "perplexity": perplexity(model, params, split.test),
        "seconds": time.perf_counter() - started,
    }


def kept(settings: Settings, found: Sequence[results.Result]) -> results.Result | None:
    """The finished run with these settings, if there is one."""
    return next((one for one in found if one["settings"] == asdict(settings)), None)


def search() -> Iterator[Settings]:
    """DP-SGD's learning rate, for each start; DPLIS takes the same."""
    for start in STARTS:
        yield from (Settings(start=start, lr=lr, brown=True) for lr in RATES)


def chosen(start: str, found: Sequence[results.Result]) -> float:
    """The learning rate of the least perplexity in the search."""
    done = [(kept(each, found), each.lr) for each in search() if each.start == start]
    if any(one is None for one, _ in done):
        raise SaltflatError("the search is not over: run with --choose first")
    return min(done, key=lambda pair: pair[0]["perplexity"])[1]  # type: ignore[index]


def comparison(seeds: Sequence[int], found: Sequence[results.Result]) -> Iterator[Settings]:
    """Both methods from both starts, seed by seed."""
    for seed in seeds:
        for start in STARTS:
            for method in METHODS:
                yield Settings(method=method, start=start, lr=chosen(start, found), seed=seed)


def series(runs: Iterator[Settings], given: argparse.Namespace) -> None:
    """Every run that the file does not hold yet, each written when it ends."""
    results.check_writable(given.out)
    for settings in runs:
        if kept(settings, results.read(given.out)):
            continue
        found = run(settings, given.data_dir)
        results.append(given.out, found)
        print(f"{settings}: {found['perplexity']:.1f}, {found['seconds']:.0f} s", flush=True)


def table(found: Sequence[results.Result]) -> str:
    """Means over seeds, with their standard errors."""
    lines = [
        "| first weights | method | learning rate | runs | perplexity before | perplexity after | epsilon |",
        "|---|---|---|---|---|---|---|",
    ]
    for start in STARTS:
        for method in METHODS:
            own = [
                one
                for one in found
                if (one["settings"]["start"], one["settings"]["method"]) == (start, method)
            ]
            if own:
                before, after = ([one[key] for one in own] for key in ("before", "perplexity"))
                rates = " ".join(sorted({f"{one['settings']['lr']:g}" for one in own}))
                epsilon = max(one["epsilon"] for one in own)
                cells = (start, method, rates, len(own), mean_of(before), mean_of(after), f"{epsilon:.2f}")
                lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def mean_of(values: Sequence[float]) -> str:
    """A mean and its standard error; of one run, or of equal ones, the number alone."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    error = f" ± {spread / math.sqrt(len(values)):.1f}" if spread else ""
    return f"{statistics.mean(values):.1f}{error}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data-dir", type=Path, help="the folder that holds the data sets (default: SALTFLAT_DATA)")
    add("--choose", action="store_true", help="search for learning rates on Brown instead")
    add("--table", action="store_true", help="print the finished runs and end")
    add("--seed", type=int, nargs="+", default=[0, 1], help="(default: 0 1)")
    add("--out", type=Path, help="(default: reddit.jsonl, or reddit_choose.jsonl, beside this file)")
    given = parser.parse_args(words)
    given.out = given.out or (CHOSEN if given.choose else KEPT)
    if given.table:
        print(table(results.read(given.out)))
    else:
        series(search() if given.choose else comparison(given.seed, results.read(CHOSEN)), given)


if __name__ == "__main__":
    main()
