"""`doctor`: the gate of training, the layers and the time of a step, on made-up rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import saltflat as sf
from saltflat.cli import app
from saltflat.errors import ModelError, SettingError


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(3, 6))
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cdist(x.unsqueeze(1), self.points.unsqueeze(0)).squeeze(1))


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x - x.mean(0))


def test_layers_without_a_rule_are_named_each_time() -> None:
    for _ in range(2):  # the engine's own line is logged once
        found = sf.doctor(Slow(), shape=(6,), classes=2, batch_size=16)
        assert [layer.way for layer in found.layers] == ["slow (cdist)", "fast"]
        assert found.refused == ""
    (cost,) = found.costs
    assert (cost.method, cost.batch, cost.rows) == ("DPSGD", 16, 16)
    assert cost.seconds > 0
    assert "no fast rule for cdist" in found.text


def test_what_training_refuses_is_refused_with_its_reason() -> None:
    x, y = torch.randn(40, 6), torch.randint(2, (40,))
    with pytest.raises(ModelError) as stopped:
        sf.fit(
            Mixing(),
            nn.CrossEntropyLoss(reduction="none"),
            (x, y),
            epsilon=1,
            batch_size=8,
            epochs=1,
        )
    assert sf.doctor(Mixing(), shape=(6,), classes=2, batch_size=16).refused == str(stopped.value)
    assert "BatchNorm1d" in sf.doctor(nn.BatchNorm1d(6), shape=(6,), classes=6, batch_size=16).refused


def test_the_model_and_the_rules_are_left_as_they_were() -> None:
    from saltflat.gradients.tape import RULES

    model, rule = Slow(), RULES[None]
    before = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    sf.doctor(model, shape=(6,), classes=2, batch_size=16)
    assert all(torch.equal(leaf, before[name]) for name, leaf in model.state_dict().items())
    assert RULES[None] is rule
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_frozen_layers_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    found = sf.doctor(model, shape=(6,), classes=2, batch_size=8)
    assert [layer.way for layer in found.layers] == ["frozen", "fast"]
    assert found.trained == 10


def test_a_batch_and_a_loss_of_ones_own() -> None:
    loss = lambda predict, batch: (predict(batch["x"]).squeeze(1) - batch["y"]) ** 2
    found = sf.doctor(nn.Linear(3, 1), loss, {"x": torch.randn(9, 3), "y": torch.randn(9)}, batch_size=90)
    assert found.refused == ""
    assert (found.costs[0].batch, found.costs[0].rows) == (90, None)
    assert "as many at a time as were given" in found.text
    with pytest.raises(SettingError, match="give shape"):
        sf.doctor(nn.Linear(3, 1))


NETS = """
from torch import nn
def good(): return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
def bad(): return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "nets_of_mine.py").write_text(NETS)
    shape = ["--shape", "6", "--classes", "2", "--batch-size", "16"]
    for what, code, said in (
        (["nets_of_mine:good", *shape], 0, "all have fast rules"),
        (["nets_of_mine:bad", *shape], 2, "refused: layer '1' is a BatchNorm1d"),
        (["mlp", *shape], 0, "290 weights are trained"),
        (["{mlp = {depth = 0}}", *shape], 0, "14 weights are trained"),
        (["digits"], 0, "SAT: "),
    ):
        done = CliRunner().invoke(app, ["doctor", *what])
        assert done.exit_code == code, done.output
        assert said in done.output
    for words, said in (
        (["nets_of_mine:nope", *shape], "gives no model"),
        (["mlp"], "add --shape"),
        (["mlp", "--shape", "a"], "takes whole numbers"),
        (["digits", *shape], "leave --shape and --classes out"),
        (["nope", *shape], "there is no model 'nope'"),
    ):
        with pytest.raises(SettingError, match=said):
            CliRunner().invoke(app, ["doctor", *words], catch_exceptions=False)
