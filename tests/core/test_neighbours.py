"""A1: record a run, replay it on a neighbouring data set, and nothing but the clipped sums may differ.

The replay is given the answers that the recorded run released, as the definition of privacy has it: the same
points are asked for again, so the sums can be compared one by one. The noise is whatever makes the sum of the
neighbour into the recorded release; whoever scales or counts by the data shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from reference import FixedNoise, Tree, flat
from steps import CRITERION, beside
from torch import Tensor, nn

from saltflat import Phase, Plan, per_example, supervised, train
from saltflat.core import ask as door
from saltflat.core import step
from saltflat.data import TensorUnits
from saltflat.errors import SaltflatError
from saltflat.methods import DPSGD, SAM, SAT
from saltflat.optimizers import SGD, Adam

KINDS = ("add", "remove", "replace")
COUNT = [0]  # the length of the data in use; only the mutant reads it


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x).mean(1))


def mlp(rng: np.random.Generator) -> nn.Module:
    width = int(rng.integers(2, 9))
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.LayerNorm(width), nn.Linear(width, 3))


def conv(rng: np.random.Generator) -> nn.Module:
    width = 2 * int(rng.integers(1, 4))
    layers = (nn.Conv1d(1, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU(), nn.Flatten())
    return nn.Sequential(nn.Unflatten(1, (1, 4)), *layers, nn.Linear(4 * width, 3))


@dataclass
class Trace:
    """What a run did, in order, and the sums that it made on the way."""

    events: list[Any] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)
    answers: list[Tree] = field(default_factory=list)
    releases: list[Tree] = field(default_factory=list)  # sum + noise, before any division
    bounds: list[float] = field(default_factory=list)
    std: float = 0.0


@dataclass
class Recorded:
    """Noise and meter that write down what they are asked, and play back a recorded run's releases."""

    trace: Trace
    past: Trace | None
    source: FixedNoise
    private: bool = False

    def step(self, rate: float, noise_multiplier: float) -> None:
        self.trace.events.append(("charge", rate, noise_multiplier))

    def normal(self, like: Tree) -> Tree:
        trace, number = self.trace, len(self.trace.sums)
        trace.events.append(("noise", [(name, leaf.shape, leaf.dtype) for name, leaf in like.items()]))
        trace.sums.append(flat(like).clone())
        noise = self.source.normal(like)
        if self.past is not None and number < len(self.past.releases):
            noise = {n: (self.past.releases[number][n] - leaf) / trace.std for n, leaf in like.items()}
        trace.releases.append({name: leaf + trace.std * noise[name] for name, leaf in like.items()})
        return {name: leaf.clone() for name, leaf in noise.items()}


@dataclass(frozen=True)
class Heard:
    """A method whose questions and answers are written down; in a replay it hears the recorded answers."""

    method: Any
    trace: Trace
    past: Trace | None
    noise_multiplier: float
    clip_norm: float

    def init(self, params: Tree) -> Any:
        return self.method.init(params)

    def step(self, ask: Callable[..., Tree], params: Tree, state: Any) -> Any:
        def heard(*points: Tree, share: float = 1.0) -> Tree:
            trace, number = self.trace, len(self.trace.answers)
            trace.std = self.noise_multiplier / share**0.5 * self.clip_norm
            trace.events.append(("ask", share, [flat(point) for point in points]))
            trace.bounds.append(self.clip_norm)
            answer = ask(*points, share=share)
            trace.answers.append({name: leaf.clone() for name, leaf in answer.items()})
            replay = self.past is not None and number < len(self.past.answers)
            return {**self.past.answers[number]} if replay else answer

        return self.method.step(heard, params, state)


class Coins:
    """Unit i tosses the same coin in step t whoever else is there."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def random(self, count: int) -> Any:
        return self.generator.random(64)[:count]


@dataclass(frozen=True)
class Case:
    """A random model, data set and plan."""

    seed: int

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def network(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return (Words() if self.seed % 3 == 2 else (mlp, conv)[self.seed % 3](self.rng())).double()

    def units(self, count: int, salt: int = 0) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(1000 * self.seed + salt)
        x = torch.randn(count, 4, generator=g, dtype=torch.float64) * 10 ** (self.seed % 7 - 1)
        words = torch.randint(5, (count, 4), generator=g)
        return words if self.seed % 3 == 2 else x, torch.randint(3, (count,), generator=g)

    def neighbours(self, kind: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        rng = self.rng()
        data = self.units(int(rng.integers(1, 9)))
        x, y = self.units(1, salt=1)
        if self.seed % 5 == 0 and x.is_floating_point():
            x.fill_(float(rng.choice([np.nan, np.inf, 1e300])))
        rest = tuple(part[:-1] for part in data)
        more = lambda some: tuple(torch.cat([a, b]) for a, b in zip(some, (x, y), strict=True))
        return data, {"add": more(data), "remove": rest, "replace": more(rest)}[kind]

    def phase(self, rng: np.random.Generator, trace: Trace, past: Trace | None) -> Phase:
        noise, clip = float(rng.uniform(0.3, 5)), float(10 ** rng.uniform(-3, 1))
        method = [DPSGD(), SAT(0.1), SAT(0.1, momentum=0.9), SAM(0.1, 0.3)][int(rng.integers(4))]
        optimizer = [SGD(lr=0.1), SGD(lr=0.1, momentum=0.9), Adam(lr=0.01)][int(rng.integers(3))]
        return Phase(
            method=Heard(method, trace, past, noise, clip),
            steps=int(rng.integers(1, 4)),
            noise_multiplier=noise,
            clip_norm=clip,
            optimizer=optimizer,
        )

    def run(self, data: tuple[Tensor, Tensor], past: Trace | None = None) -> Trace:
        rng, trace = self.rng(), Trace()
        phases = tuple(self.phase(rng, trace, past) for _ in range(int(rng.integers(1, 3))))
        plan = Plan(phases=phases, rate=float(rng.choice([0.05, 0.3, 1.0])), size=int(rng.integers(1, 20)))
        recorded = Recorded(trace, past, FixedNoise(self.seed))
        around = beside(
            physical=int(rng.integers(1, 6)),
            noise=recorded,
            meter=recorded,
            sampling=Coins(self.seed),  # type: ignore[arg-type]
            watch=lambda progress: trace.events.append(("watch", progress.step, progress.phase)),
        )
        COUNT[0] = len(data[1])
        train(plan, per_example(self.network(), supervised(CRITERION)), TensorUnits(data), **around)
        return trace


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def divergence(case: Case, kind: str) -> tuple[str, float]:
    """What differs between the two runs that may not, or ""; and the largest share of the sensitivity."""
    data, neighbour = case.neighbours(kind)
    try:
        past = case.run(data)
        again = case.run(neighbour, past)
    except SaltflatError as error:
        return f"raised: {error}", 0.0
    if not same(past.events, again.events):
        return "calls, shapes or steps", 0.0
    if not len(past.sums) == len(again.sums) == len(past.bounds):
        return "an answer without noise", 0.0
    for one, other in zip(past.answers, again.answers, strict=True):
        if not torch.allclose(flat(one), flat(other), rtol=1e-9, atol=1e-12 * float(flat(one).abs().max())):
            return "scaling", 0.0
    most = 2 if kind == "replace" else 1
    pairs = zip(past.sums, again.sums, past.bounds, strict=True)
    share = max(float((a - b).norm()) / (most * bound) for a, b, bound in pairs)
    return "" if share <= 1 + 1e-6 else f"sensitivity {share}", share


def check(seeds: range) -> tuple[list[tuple[str, float]], int]:
    found = [divergence(Case(seed), kind) for seed in seeds for kind in KINDS]
    return found, sum(words == "" for words, _ in found)


def test_a1_neighbours() -> None:
    found, good = check(range(15))
    assert good == 45, [words for words, _ in found if words]


@pytest.mark.slow
def test_a1_neighbours_600() -> None:
    found, good = check(range(200))
    assert good == 600, [words for words, _ in found if words]
    assert max(share for _, share in found) > 0.99  # the bound is met, so a larger sum would be seen


def test_a1_meets_the_bound() -> None:
    """The test could see a sum that moves too far: some neighbours use up the whole sensitivity."""
    found, _ = check(range(15))
    assert max(share for _, share in found) > 0.99


def by_length(self: Plan) -> float:
    return self.rate * max(COUNT[0], 1)


def test_mutant_divide_by_the_length_of_the_data_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "expected_units", property(by_length))
    found, _ = check(range(15))
    add, remove, swap = ([words for words, _ in found[number::3]] for number in range(3))
    assert add == ["scaling"] * 15
    assert remove.count("scaling") >= 10  # from one unit to none the mutant divides by 1 both times
    assert swap == [""] * 15


def test_mutant_skip_an_empty_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise where nobody was drawn; the check at the first step, which sees it too, is switched off."""
    real = door.noised
    monkeypatch.setattr(step, "check_answer", lambda answer, params: answer)
    monkeypatch.setattr(step, "check_moved", lambda before, after: True)

    def skipping(bounded: Any, noise_multiplier: float, noise: Any) -> Tree:
        empty = all(bool((leaf == 0).all()) for leaf in bounded.total.values())
        return bounded.total if empty else real(bounded, noise_multiplier, noise)

    monkeypatch.setattr(door, "noised", skipping)
    found, _ = check(range(15))
    words = [words for words, _ in found]
    assert "calls, shapes or steps" in words  # drawn here, nobody there
    assert "an answer without noise" in words  # nobody on either side


def test_mutant_clip_twice_as_far_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = door.clipped_sum

    def loose(chunks: Any, clip: Any, like: Tree) -> Any:
        return replace(real(chunks, clip.times(2), like), sensitivity=clip.sensitivity)

    monkeypatch.setattr(door, "clipped_sum", loose)
    found, _ = check(range(15))
    assert any(words.startswith("sensitivity") for words, _ in found)
