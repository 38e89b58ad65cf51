"""A made-up method and a made-up network in a recipe: a new class needs no line in the recipes or the command line."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from torch import nn

from saltflat import cli, methods, models
from saltflat.door import AnyMethod
from saltflat.errors import SettingError
from saltflat.methods import DPSGD, SAT
from saltflat.recipes import Recipe, network_of, plan_of
from saltflat.recipes.documents import parse
from saltflat.recipes.recipe import from_document
from saltflat.schedules import Cosine
from saltflat.tree import Tree

TEXT = """version = 2
data = "digits"
model = {tall_net = {height = 3, widths = [1, 2], names = ["a"]}}
epsilon = 3.0
batch_size = 500
[[phase]]
epochs = 3
clip_norm = 0.1
optimizer = {SGD = {lr = 2.0, momentum = 0.9}}
[phase.method.Sideways]
method = "DPSGD"
inner = {SAT = {radius = 1}}
turns = [3, 4]
by = {Cosine = {start = 1, end = 0, steps = 4}}
"""


@dataclass(frozen=True)
class Sideways:
    """A method that nobody knows; its parts are of every declared kind."""

    method: AnyMethod
    inner: Any
    angle: float = 90.0
    turns: tuple[int, ...] = ()
    by: float | Callable[[int], float] = 1.0

    def init(self, params: Tree) -> None: ...

    def step(self, ask: Any, params: Tree, state: None) -> Any: ...


def tall_net(height: int, *widths: int, names: list[str] | None = None) -> nn.Module:
    layers = (nn.Linear(before, width) for before, width in itertools.pairwise((64, height, *widths, 10)))
    return nn.Sequential(nn.Flatten(), *layers)


def recipe(text: str) -> Recipe:
    return from_document(parse(text, "mine.toml"))


@pytest.fixture(autouse=True)
def _in_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for group, new in ((methods, Sideways), (models, tall_net)):
        monkeypatch.setattr(group, new.__name__, new, raising=False)
        monkeypatch.setattr(group, "__all__", [*group.__all__, new.__name__])


def test_they_are_read_planned_and_written() -> None:
    found = recipe(TEXT)
    made = Sideways(DPSGD(), SAT(1.0), turns=(3, 4), by=Cosine(1.0, 0.0, steps=4))
    assert found.phase[0].method == made
    assert plan_of(found, 1437).phases[0].method == made
    assert [layer.out_features for layer in list(network_of(found))[1:]] == [3, 1, 2, 10]
    assert recipe(found.as_toml()) == found


def test_their_mistakes_are_told_like_any_other() -> None:
    with pytest.raises(
        SettingError, match=r"line 13: phase.0.method.Sideways.turn: Sideways has no such setting"
    ):
        recipe(TEXT.replace("turns", "turn"))
    with pytest.raises(SettingError, match=r"model.tall_net.height: takes a whole number; got 'x'"):
        recipe(TEXT.replace("height = 3", "height = 'x'"))


def test_the_command_line_takes_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--method", "{Sideways = {method = 'DPSGD', inner = 3}}", "--model", "{tall_net = {height = 3}}"]
    more = ["--set", "phase.0.method.Sideways.angle=45", "--dry-run"]
    monkeypatch.setattr(sys, "argv", ["saltflat", "train", *words, *more])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code
    out = capsys.readouterr().out
    assert "Sideways(DPSGD) on digits with tall_net" in out
    assert "Sideways(method=DPSGD(), inner=3, angle=45.0, turns=(), by=1.0)" in out
