"""docs/methods.md: what it writes in Python and what it writes in a recipe are the same plan."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import saltflat as sf
from saltflat import clipping, data, methods, optimizers, schedules
from saltflat.recipes import Network, Recipe, plan_of, recipe_of
from saltflat.recipes.build import loss_of, network_of
from saltflat.recipes.documents import parse
from saltflat.recipes.recipe import from_document
from saltflat.recipes.toml import loads

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
NAMES = {
    name: getattr(group, name)
    for group in (clipping, data, methods, optimizers, schedules)
    for name in group.__all__
}
BASE = {  # one phase, and what a row changes in it
    "method": "DPSGD()",
    "clip_norm": "0.1",
    "optimizer": "SGD(lr=2.0, momentum=0.9)",
    "noise_schedule": "1.0",
    "until": "None",
}
TOP = """version = 2
data = "digits"
model = "digits_cnn"
size = 1000
rate = 0.1
"""
PHASE = {
    "method": '"DPSGD"',
    "clip_norm": "0.1",
    "optimizer": "{SGD = {lr = 2.0, momentum = 0.9}}",
    "noise_multiplier": "1.5",
    "steps": "20",
}


def measure(weights: Any) -> float:
    return 0.0


POOL = sf.Public(sf.per_example(sf.models.digits_cnn(), len), sf.data.digits().test)  # type: ignore[arg-type]
USING = {"measure": measure, "pool": POOL}


def rows() -> list[tuple[str, str, str]]:
    """(what, its cell in Python, its cell in a recipe), of all tables."""
    cells = [re.split(r" \| ", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| ")]
    return [(row[0], row[1], row[2]) for row in cells if "in Python" not in row]


def spans(cell: str, form: str) -> list[str]:
    """The pieces of code in a cell that set something."""
    return [code for code in re.findall(r"`([^`]+)`", cell) if re.match(form, code)]


PLAIN = [row for row in rows() if row[0] not in ("augmentation", "running mean of weights", "SAI")]


def python_plan(codes: list[str]) -> sf.Plan:
    changed = {code.partition("=")[0]: code.partition("=")[2] for code in codes}
    settings = {key: eval(code, {**NAMES, **USING}) for key, code in {**BASE, **changed}.items()}
    return sf.Plan(phases=(sf.Phase(steps=20, noise_multiplier=1.5, **settings),), rate=0.1, size=1000)


def recipe(text: str) -> Recipe:
    return from_document(parse(text, "the page"), using=USING)


@pytest.mark.parametrize("row", PLAIN, ids=[row[0] for row in PLAIN])
def test_every_row_is_one_plan(row: tuple[str, str, str]) -> None:
    _, in_python, in_recipe = row
    codes, texts = spans(in_python, r"\w+=[A-Z]"), spans(in_recipe, r"\w+ = ")
    assert len(codes) == len(texts) >= 1
    plan = python_plan(codes)
    phase = {**PHASE, **{text.partition(" = ")[0]: text.partition(" = ")[2] for text in texts}}
    found = recipe(TOP + "[[phase]]\n" + "".join(f"{key} = {value}\n" for key, value in phase.items()))
    assert plan_of(found, 1000) == plan
    check_the_way_back(plan)


def check_the_way_back(plan: sf.Plan) -> None:
    """Plan, recipe, text, recipe, plan: each the same as before."""
    rest = {"data": "digits", "model": Network("digits_cnn"), "using": USING}
    written = recipe_of(plan, **rest)
    again = recipe(written.as_toml())
    assert again == written
    assert plan_of(again, plan.size) == plan


def test_the_page_has_them_all() -> None:
    named = {name for _, in_python, _ in rows() for name in re.findall(r"\b([A-Z]\w+)\(", in_python)}
    assert named - {"Plan"} <= NAMES.keys()
    assert set(methods.__all__) <= named
    assert set(clipping.__all__) - {"Flat"} <= named
    assert set(optimizers.__all__) - {"Torch"} <= named
    assert len(rows()) == 33


def test_the_running_mean() -> None:
    ((_, in_python, in_recipe),) = [row for row in rows() if row[0] == "running mean of weights"]
    assert "ema=EMA(0.999)" in in_python
    (text,) = spans(in_recipe, r"\w+ = ")
    plan = replace(python_plan([]), ema=optimizers.EMA(0.999))
    phase = "".join(f"{key} = {value}\n" for key, value in PHASE.items())
    assert plan_of(recipe(f"{TOP}{text}\n[[phase]]\n{phase}"), 1000) == plan
    check_the_way_back(plan)


def test_the_views() -> None:
    ((_, in_python, in_recipe),) = [row for row in rows() if row[0] == "augmentation"]
    (code,) = spans(in_python, "per_example")
    views, augment = spans(in_recipe, r"\w+ = ")
    phase = "".join(f"{key} = {value}\n" for key, value in PHASE.items())
    found = recipe(f"{TOP}{views}\n{augment}\n[[phase]]\n{phase}")
    model = network_of(found)
    theirs = eval(code, {**NAMES, "per_example": sf.per_example, "model": model, "loss": len})
    mine = loss_of(found, model)
    assert mine.views == theirs.views == 16
    assert mine.augment.transforms == theirs.augment.transforms
    assert mine.augment.views == theirs.augment.views


def test_sai() -> None:
    ((_, in_python, _),) = [row for row in rows() if row[0] == "SAI"]
    (code,) = spans(in_python, r"sai\(")
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    table = loads(text)
    usual = [
        {"steps": 450, "method": {"SAT": {"radius": 0.05}}, "optimizer": {"SGD": {"lr": 2.0, "momentum": 0.9}}},
        {"steps": 750, "method": "DPSGD", "optimizer": {"SGD": {"lr": 0.1, "momentum": 0.9}}},
    ]  # fmt: skip
    for phase, own in zip(table["phase"], usual, strict=True):
        phase.update(own, clip_norm=0.1)
    changed = {"phase": table["phase"], "rate": 1 / 30, "size": 60_000, "epsilon": 2}
    plan = eval(code, {"sai": sf.sai})
    assert plan_of(recipe(text).but(changed), 60_000) == plan
    check_the_way_back(plan)


def test_two_at_once() -> None:
    (code,), (text,) = (re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.S) for kind in ("python", "toml"))
    names: dict[str, Any] = {}
    exec(compile(code, "methods.md", "exec"), names)
    assert plan_of(recipe(text), 1000) == names["plan"]
    check_the_way_back(names["plan"])


def test_a_switch_by_results() -> None:
    """S3 with its rule, in the first of two phases: the plan that Python makes of it, noise included."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    spelling = {what: (in_python, in_recipe) for what, in_python, in_recipe in rows()}
    changed = {}
    for what in ("S3", "the switch of S2 to S5"):
        (entry,) = spans(spelling[what][1], r"\w+ = ")
        changed |= loads(entry)
    plan = sf.sai(
        steps=(20, 30),
        rate=0.1,
        size=1000,
        epsilon=2.0,
        delta=1e-5,
        methods=(methods.Secant(methods.SAT(0.05), lr=2.0), methods.DPSGD()),
        clip_norms=(0.1, clipping.Automatic(0.1)),
        optimizers=(optimizers.AdamBC(lr=2e-3), optimizers.SGD(lr=0.1, momentum=0.9)),
        until=methods.Plateau(window=50, patience=3),
    )
    found = recipe(text).but({f"phase.0.{key}": value for key, value in changed.items()})
    assert plan_of(found, 1000) == plan
    assert plan.data_driven
    check_the_way_back(plan)
