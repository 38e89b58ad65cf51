"""Generated attacks through the public API: whatever the model, data and rule are, one unit moves a sum by at most C.

A case draws a network, a type, a clipping rule, a method, a batch split and data with hostile records, and a neighbour:
any unit removed, added or replaced. One step on each, and the sums before the noise are compared. The noise's source
sees them: it is asked for noise in the shape of a sum, and keeps the sum. What is found is shrunk to a small example.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Tree
from torch import Tensor

import saltflat as sf
from saltflat.errors import SaltflatError

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
from layers import FAMILIES, Family, per_example_loss

BOUND = 0.5
RULES: dict[str, Any] = {
    "flat": BOUND,
    "per layer": sf.clipping.PerLayer(BOUND),
    "automatic": sf.clipping.Automatic(BOUND),
}
METHODS: dict[str, Any] = {
    "DP-SGD": sf.methods.DPSGD(),
    "DP-SAM": sf.methods.SAM(0.1),
    "DP-SAT": sf.methods.SAT(0.1),
    "DPLIS": sf.methods.DPLIS(lr=0.1, copies=2, reach=0.01),
    "adaptive": sf.methods.Quantile(sf.methods.DPSGD(), share=0.1),
}
SLOW_IN_HALF = ("conv3d", "transposed 3d", "transposed", "multilinear, no rule")  # torch has no such kernels


@dataclass
class Witness:
    """A source of noise that keeps every sum it is asked to hide."""

    private: bool = False
    seen: list[Tree] = field(default_factory=list)

    def normal(self, like: Tree) -> Tree:
        self.seen.append({name: leaf.detach().double().clone() for name, leaf in like.items()})
        return {name: torch.randn(leaf.shape, dtype=leaf.dtype) for name, leaf in like.items()}


@dataclass(frozen=True)
class Attack:
    """Everything that a case is made of."""

    family: str
    dtype: torch.dtype
    rule: str
    method: str
    physical: int
    units: int
    gone: int
    kind: str  # of neighbour
    scale: float  # of the unit that differs

    def data(self) -> tuple[Any, Any]:
        """Two neighbouring data sets."""
        family: Family = FAMILIES[self.family]
        x, y = family.data(self.units + 1)
        x, spare = self._typed(x[: self.units]), self._typed(x[self.units :])
        y, other = y[: self.units], y[self.units :]
        if x.is_floating_point():
            x = x.clone()
            x[self.gone] = x[self.gone] * self.scale
        keep = torch.arange(self.units) != self.gone
        rest = (x[keep], y[keep])
        if self.kind == "remove":
            return (x, y), rest
        swapped = (torch.cat([rest[0], spare]), torch.cat([rest[1], other]))
        return ((x, y), swapped) if self.kind == "replace" else (rest, swapped)

    def _typed(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x

    def sums(self, data: Any) -> tuple[Tree, float]:
        torch.manual_seed(1)
        model = FAMILIES[self.family].build().to(self.dtype)
        phase = sf.Phase(
            method=METHODS[self.method],
            steps=1,
            noise_multiplier=1.0,
            clip_norm=RULES[self.rule] if self.method != "adaptive" else BOUND,
            optimizer=sf.optimizers.SGD(lr=1e4),
        )
        witness = Witness()
        sf.train(
            sf.Plan(phases=(phase,), rate=1.0, size=self.units + 1),
            sf.per_example(model, sf.supervised(per_example_loss)),
            sf.data.TensorUnits(data),
            safeguards=sf.Safeguards(noise=witness),
            running=sf.Running(physical=self.physical),
        )
        declared = BOUND / (1 - 0.1) ** 0.5 if self.method == "adaptive" else BOUND
        return witness.seen[0], declared

    def moved(self) -> float:
        """How far the neighbour moves the first sum, in units of its sensitivity."""
        (one, bound), (other, _) = (self.sums(each) for each in self.data())
        gap = torch.cat([(one[name] - other[name]).flatten() for name in one]).norm()
        length = torch.cat([leaf.flatten() for leaf in one.values()]).norm()
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        rounding = 8 * torch.finfo(wide).eps * float(length)  # of the sum itself, which both of them have
        return (float(gap) - rounding) / (bound * (2 if self.kind == "replace" else 1))


@st.composite
def attacks(draw: Any) -> Attack:
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    families = [name for name in FAMILIES if dtype != torch.bfloat16 or name not in SLOW_IN_HALF]
    units = draw(st.integers(2, 6))
    return Attack(
        family=draw(st.sampled_from(families)),
        dtype=dtype,
        rule=draw(st.sampled_from(sorted(RULES))),
        method=draw(st.sampled_from(sorted(METHODS))),
        physical=draw(st.integers(1, 7)),
        units=units,
        gone=draw(st.integers(0, units - 1)),
        kind=draw(st.sampled_from(["remove", "add", "replace"])),
        scale=draw(st.sampled_from([1.0, 0.0, 1e-30, 1e-8, 1e4, 1e12, 1e30, float("inf"), float("nan")])),
    )


def survives(attack: Attack) -> None:
    try:
        moved = attack.moved()
    except SaltflatError:
        return  # refused, in one line, before anything was released
    assert moved <= 1 + 1e-6, f"one unit moved the sum by {moved} of its sensitivity: {attack}"


@settings(max_examples=200)
@given(attacks())
def test_no_unit_moves_a_sum_by_more_than_its_bound(attack: Attack) -> None:
    survives(attack)


@pytest.mark.slow
@settings(max_examples=2000, derandomize=False)
@given(attacks())
def test_no_unit_moves_a_sum_by_more_than_its_bound_2000(attack: Attack) -> None:
    survives(attack)


def test_most_attacks_are_not_merely_refused() -> None:
    """A gate that refused everything would pass, so: every family trains in float64 and in float32."""
    for name in FAMILIES:
        for dtype in (torch.float64, torch.float32):
            attack = Attack(name, dtype, "flat", "DP-SGD", 3, 4, 1, "remove", 1.0)
            assert attack.moved() <= 1 + 1e-6


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e12])
def test_a_standardised_convolution_in_a_narrow_type(scale: float) -> None:
    survives(Attack("standardised", torch.bfloat16, "automatic", "DP-SGD", 1, 2, 0, "remove", scale))


class TestMutants:
    """The suite finds these by itself, whatever case it is given among these few."""

    CASES = tuple(
        Attack(family, torch.float32, "flat", "DP-SGD", 7, 5, 2, "remove", 1e4)
        for family in ("linear", "conv2d", "lstm", "layer norm")
    )

    def all_survive(self) -> None:
        for attack in self.CASES:
            survives(attack)

    def caught(self) -> None:
        with pytest.raises(AssertionError, match="one unit moved the sum"):
            self.all_survive()

    def test_no_clipping(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sf.clipping, "clip_weights", lambda norms, bound: torch.ones_like(norms))
        self.caught()

    def test_norms_without_biases(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from saltflat.gradients.parts import Dense

        monkeypatch.setattr(Dense, "square", lambda self: torch.zeros(len(self.values)))
        self.caught()

    def test_norms_that_are_half_as_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from saltflat.gradients.chunk import Kept

        real = Kept.norms
        monkeypatch.setattr(Kept, "norms", lambda self: real(self) / 2)
        self.caught()
