"""Every method against its formula, written out with one-example-at-a-time gradients and the same noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import FixedNoise, Tree, clipped_loop, flat, gradient_loop
from steps import CRITERION, ask_about, beside, examples, network, phase, plan, point_of
from torch import Tensor

from saltflat import per_example, supervised, train
from saltflat.core.sampling import poisson
from saltflat.data import TensorUnits
from saltflat.methods import DPSGD, SAM, SAT
from saltflat.optimizers import SGD

STEPS, RATE, SIZE, CLIP, SIGMA, LR, MOMENTUM = 6, 0.5, 12, 0.4, 0.7, 0.2, 0.9
RADIUS = 0.3


class Loop:
    """The private step by hand, on flat vectors."""

    def __init__(self) -> None:
        self.model, (self.x, self.y) = network(), examples(SIZE)
        self.shapes = point_of(self.model)
        self.noise, self.sampling = FixedNoise(5), np.random.default_rng(5)

    def tree(self, vector: Tensor) -> Tree:
        parts = vector.split([p.numel() for p in self.shapes.values()])
        return {n: v.view(p.shape) for (n, p), v in zip(self.shapes.items(), parts, strict=True)}

    def draw(self) -> np.ndarray:
        return poisson(SIZE, RATE, self.sampling)

    def ask(self, w: Tensor, drawn: np.ndarray, sigma: float = SIGMA) -> Tensor:
        rows = torch.from_numpy(drawn)
        total = torch.zeros_like(w)
        if len(drawn):
            total = clipped_loop(
                gradient_loop(self.model, self.tree(w), self.x[rows], self.y[rows], CRITERION), CLIP
            )
        return (total + sigma * CLIP * flat(self.noise.normal(self.shapes))) / (RATE * SIZE)


def climb(w: Tensor, d: Tensor) -> Tensor:
    return w + RADIUS * d / (d.norm() + 1e-16)


def dpsgd(loop: Loop, w: Tensor, drawn: np.ndarray, past: list[Tensor]) -> Tensor:
    return loop.ask(w, drawn)


def sat(loop: Loop, w: Tensor, drawn: np.ndarray, past: list[Tensor]) -> Tensor:
    return loop.ask(climb(w, past[-1]) if past else w, drawn)


def sat_momentum(loop: Loop, w: Tensor, drawn: np.ndarray, past: list[Tensor]) -> Tensor:
    """The direction is the sum over j >= 1 of momentum^j times the j-th last release."""
    direction = sum((MOMENTUM**j * g for j, g in enumerate(reversed(past), 1)), torch.zeros_like(w))
    return loop.ask(climb(w, direction) if past else w, drawn)


def sam(loop: Loop, w: Tensor, drawn: np.ndarray, past: list[Tensor]) -> Tensor:
    """Shares 0.1 and 0.9: three times as much noise on the ascent, and together one sigma."""
    ascent = loop.ask(w, drawn, SIGMA / 0.1**0.5)
    return loop.ask(climb(w, ascent), drawn, SIGMA / 0.9**0.5)


METHODS = {
    "DP-SGD": (DPSGD(), dpsgd),
    "DP-SAT": (SAT(RADIUS), sat),
    "DP-SAT-Momentum": (SAT(RADIUS, momentum=MOMENTUM), sat_momentum),
    "DP-SAM": (SAM(RADIUS), sam),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("most", [1, 4, 100])
def test_method_equals_its_formula(name: str, most: int) -> None:
    method, formula = METHODS[name]
    loop = Loop()
    w, velocity, past = flat(loop.shapes).clone(), torch.zeros_like(flat(loop.shapes)), []
    for _ in range(STEPS):
        past.append(formula(loop, w, loop.draw(), past))
        velocity = MOMENTUM * velocity + past[-1]
        w = w - LR * velocity
    the_plan = plan(
        phase(
            method=method,
            steps=STEPS,
            noise_multiplier=SIGMA,
            clip_norm=CLIP,
            optimizer=SGD(lr=LR, momentum=MOMENTUM),
        ),
        rate=RATE,
        size=SIZE,
    )
    sources = beside(physical=most, noise=FixedNoise(5), sampling=np.random.default_rng(5))
    contribution = per_example(network(), supervised(CRITERION))
    result = train(the_plan, contribution, TensorUnits(examples(SIZE)), **sources)
    torch.testing.assert_close(flat(result), w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("name", METHODS)
def test_weights_stay_where_they_are(name: str, most: int) -> None:
    """No question moves the weights, however the batch is split: a climb is a value, never a move."""
    method, _ = METHODS[name]
    model = network()
    point, before = point_of(model), flat(point_of(model)).clone()
    state = {n: torch.ones_like(p) for n, p in point.items()} if isinstance(method, SAT) else None
    method.step(ask_about(model, examples(), noise_multiplier=1.0, most=most), point, state)
    assert torch.equal(flat(point), before)
    assert torch.equal(flat(point_of(model)), before)


def test_mutant_climb_for_every_physical_batch_is_caught() -> None:
    """The drift found in public code: the climb added again for each part of the batch and taken off once."""
    model, data = network(), examples()
    last = {n: torch.ones_like(p) for n, p in point_of(model).items()}
    right = flat(SAT(RADIUS).step(ask_about(model, data), point_of(model), last)[0])
    moved, drifting = flat(point_of(model)), torch.zeros_like(right)
    for part in range(0, 12, 4):
        moved = climb(moved, flat(last))
        rows = slice(part, part + 4)
        gradients = gradient_loop(model, Loop().tree(moved), data[0][rows], data[1][rows], CRITERION)
        drifting += clipped_loop(gradients, 1.0)
    assert not torch.allclose(drifting, right, rtol=1e-3)
