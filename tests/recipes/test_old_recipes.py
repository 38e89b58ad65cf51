"""Version 1 of recipes means what it meant: compared, to the digit, with the rules by which it was read then."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from saltflat import Phase, Plan, calibrate, split_budget
from saltflat.clipping import Automatic, PerLayer
from saltflat.data import Flip, PadCrop
from saltflat.errors import SettingError
from saltflat.methods import DPLIS, DPSGD, SAM, SAT, Quantile
from saltflat.optimizers import EMA, SGD, Adam, AdamBC
from saltflat.recipes import Network, read
from saltflat.recipes.build import plan_of
from saltflat.recipes.old import CHOICES, DEFAULTS

WHOLE = dict(DEFAULTS)  # what a run's folder holds


def written(flat: dict[str, Any], path: Path) -> Path:
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in flat.items()))
    return path


def plan_then(flat: dict[str, Any], size: int) -> Plan:
    """What version 1 made of a flat list of settings."""
    rate = flat["batch_size"] / size
    steps = max(1, round(flat["epochs"] / rate))
    phases = (phase_then(flat, steps),)
    if flat["method"] == "sai":
        first = round((flat["first_epochs"] or flat["epochs"] / 3) / rate)
        plain = {**flat, "method": "dp-sgd", "lr": flat["second_lr"]}
        phases = (phase_then(flat, first), phase_then(plain, steps - first))
    generous = tuple(replace(phase, steps=phase.steps + flat["spare"]) for phase in phases)
    plan = Plan(phases=generous, rate=rate, size=size, ema=EMA(flat["ema"]) if flat["ema"] else None)
    budget = {"epsilon": flat["epsilon"], "delta": flat["delta"]}
    if flat["method"] == "sai":
        portions = (flat["first_share"], 1 - flat["first_share"])
        plan = split_budget(plan, portions=portions, budget_split=flat["budget_split"], **budget)
    else:
        plan = calibrate(plan, **budget)
    both = zip(plan.phases, phases, strict=True)
    return replace(plan, phases=tuple(replace(noisy, steps=short.steps) for noisy, short in both))


def phase_then(flat: dict[str, Any], steps: int) -> Phase:
    lr, clip_norm = flat["lr"], flat["clip_norm"]
    method = {
        "dp-sgd": DPSGD(),
        "dp-sat": SAT(flat["radius"]),
        "dp-sam": SAM(flat["radius"]),
        "sai": SAT(flat["radius"]),
        "dplis": DPLIS(lr=lr, copies=flat["copies"], reach=flat["reach"]),
    }[flat["method"]]
    clips = {"per-layer": PerLayer(clip_norm), "automatic": Automatic(clip_norm)}
    optimizers = {"sgd": SGD(lr=lr, momentum=flat["momentum"]), "adam": Adam(lr=lr), "adambc": AdamBC(lr=lr)}
    return Phase(
        method=Quantile(method) if flat["clipping"] == "quantile" else method,
        steps=steps,
        noise_multiplier=1.0,
        clip_norm=clips.get(flat["clipping"], clip_norm),
        optimizer=optimizers[flat["optimizer"]],
    )


COMBINATIONS = list(itertools.product(*CHOICES.values()))


@pytest.mark.parametrize(("method", "optimizer", "clipping"), COMBINATIONS)
def test_the_plan_is_the_same_to_the_digit(
    method: str, optimizer: str, clipping: str, tmp_path: Path
) -> None:
    which = COMBINATIONS.index((method, optimizer, clipping))
    flat = {**WHOLE, "method": method, "optimizer": optimizer, "clipping": clipping}
    flat |= {"batch_size": 350 + 7 * which, "epochs": 3.1 + which / 7, "spare": which % 3, "lr": 0.7}
    flat |= {"first_share": 0.63, "first_epochs": which % 2 * 1.3, "ema": which % 2 * 0.9}
    flat |= {"budget_split": ("joint_ratio", "sequential", "joint_share")[which % 3], "epsilon": 2.0}
    recipe = read(written(flat, tmp_path / "recipe.toml"))
    assert plan_of(recipe, 1437) == plan_then(flat, 1437)


def test_everything_else_is_the_same(tmp_path: Path) -> None:
    flat = {**WHOLE, "model": "mlp_mnist", "size": 1500, "views": 3, "crop": 2, "flip": True, "seed": 7}
    recipe = read(written({**flat, "physical": 64, "ema": 0.5}, tmp_path / "recipe.toml"))
    assert (recipe.model, recipe.size, recipe.seed) == (Network("mlp_mnist"), 1500, 7)
    assert (recipe.views, recipe.augment) == (3, (PadCrop(2), Flip()))
    assert (recipe.physical, recipe.ema, recipe.spare) == (64, EMA(0.5), 8)
    assert (recipe.epsilon, recipe.delta, recipe.data) == (3.0, 1e-5, "digits")


def test_what_was_left_out_has_its_old_default(tmp_path: Path) -> None:
    short = read(written({"data": "digits"}, tmp_path / "short.toml"))
    assert short == read(written(WHOLE, tmp_path / "whole.toml"))
    assert short.size is None
    assert read(written({"data": "digits", "version": 1}, tmp_path / "one.toml")) == short


@pytest.mark.parametrize("declared", [0, 1500])
def test_the_declared_size_decides_the_steps_of_sai(declared: int, tmp_path: Path) -> None:
    flat = {**WHOLE, "method": "sai", "epochs": 4.0, "batch_size": 300, "size": declared}
    size = declared or 1437
    recipe = read(written(flat, tmp_path / "recipe.toml"))
    assert [stage.steps for stage in recipe.phase] == [p.steps for p in plan_then(flat, size).phases]
    assert [stage.portion for stage in recipe.phase] == [0.9, 1 - 0.9]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "adam"}, "line 1: method: is one of dp-sgd"),
        ({"epsilon": "three"}, "epsilon: is a float, like 3.0; got 'three'"),
        ({"flip": 1}, "flip: is a bool"),
        ({"batch_size": 0}, "batch_size: must be above 0"),
        ({"batch_size": True}, "batch_size: is a int"),
        ({"epochs": 1e400}, "epochs: takes|epochs: must be above 0|no TOML"),
        ({"first_epochs": 80.0}, "first_epochs: is a part of all epochs"),
        ({"epsilonn": 3.0}, "line 1: epsilonn: a recipe without a version has no such setting; did you mean epsilon?"),
        ({"clip_norm": 0.0}, "phase.0.clip_norm: clip_norm must"),
        ({"method": "sai", "epochs": 0.1}, "sai needs a step in each of its phases"),
        ({"method": "sai", "data": "minst"}, "there is no data set 'minst'"),
        ({"views": 4}, "4 views would all be the same"),
    ],
)  # fmt: skip
def test_mistakes_are_still_mistakes(changes: dict, said: str, tmp_path: Path) -> None:
    text = "".join(f"{k} = {'inf' if v == math.inf else json.dumps(v)}\n" for k, v in changes.items())
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(SettingError, match=said) as stopped:
        read(tmp_path / "r.toml")
    assert "\n" not in str(stopped.value)
