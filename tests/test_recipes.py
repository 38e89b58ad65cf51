"""Recipes: what they say, what they refuse and where, and that what ships is what the experiments ran."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from saltflat import calibrate, sai, split_budget
from saltflat.clipping import Automatic, PerLayer
from saltflat.data import Flip, PadCrop, official_size
from saltflat.errors import DataError, SettingError
from saltflat.methods import DPLIS, DPSGD, SAT, Plateau, PublicSharpness, Quantile
from saltflat.models import parameter_count
from saltflat.optimizers import EMA, SGD, Adam, Torch
from saltflat.recipes import Network, Recipe, Stage, about, names, read, recipe_of, shipped
from saltflat.recipes.build import check_shapes, draft_of, form_of, loss_of, network_of, plan_of
from saltflat.recipes.documents import SETTINGS, parse
from saltflat.recipes.recipe import from_document
from saltflat.schedules import Linear

RESULTS = Path(__file__).parents[1] / "experiments" / "results.jsonl"
TOP = """version = 2
data = "digits"
model = "digits_cnn"
epsilon = 3.0
batch_size = 500
"""
PHASE = """
[[phase]]
epochs = 3
method = {SAT = {radius = 0.03}}
clip_norm = 0.1
optimizer = {SGD = {lr = 2.0, momentum = 0.9}}
"""


def recipe(text: str = TOP + PHASE, **using: Any) -> Recipe:
    return from_document(parse(text, "mine.toml"), using=using)


def refusal(text: str, **using: Any) -> str:
    with pytest.raises((SettingError, DataError)) as stopped:
        recipe(text, **using)
    assert "\n" not in str(stopped.value)
    return str(stopped.value)


class TestReading:
    def test_a_tree_of_values(self) -> None:
        text = TOP.replace('"digits_cnn"', "{tutorial_cnn = {in_channels = 3, side = 32}}") + PHASE
        text = text.replace(
            "{SAT = {radius = 0.03}}",
            "{Quantile = {method = {DPLIS = {method = {SAT = {radius = 1}}, lr = 2}}, share = 0.02}}",
        )
        found = recipe(text)
        assert found.model == Network("tutorial_cnn", {"in_channels": 3, "side": 32})
        assert parameter_count(network_of(found)) == 37_274
        (stage,) = found.phase
        assert stage.method == Quantile(DPLIS(method=SAT(1.0), lr=2.0), share=0.02)
        assert isinstance(
            stage.method.method.method.radius, float
        )  # a whole number where a fraction may stand

    def test_every_kind_of_entry(self) -> None:
        text = (
            TOP + 'ema = "EMA"\nviews = 2\naugment = [{PadCrop = {padding = 1, reflect = false}}, "Flip"]\n'
        )
        text += PHASE.replace("0.1", "{PerLayer = {bounds = {body = 1, head = 0.5}}}").replace(
            "{SGD = {lr = 2.0, momentum = 0.9}}", "{Adam = {lr = 0.1, betas = [0.5, 0]}}"
        )
        text += "noise_schedule = {Linear = {start = 1, end = 2, steps = 9, levels = 3}}\nuntil = 'Plateau'\n"
        found = recipe(text)
        (stage,) = found.phase
        assert (found.ema, found.views) == (EMA(0.999), 2)
        assert found.augment == (PadCrop(1, reflect=False), Flip())
        assert stage.clip_norm == PerLayer({"body": 1.0, "head": 0.5})
        assert stage.optimizer == Adam(lr=0.1, betas=(0.5, 0.0))
        assert stage.noise_schedule == Linear(1.0, 2.0, steps=9, levels=3)
        assert stage.until == Plateau()

    def test_tables_may_be_written_out(self) -> None:
        out = PHASE.replace("method = {SAT = {radius = 0.03}}\n", "") + "[phase.method.SAT]\nradius = 0.03\n"
        assert recipe(TOP + out) == recipe()

    def test_functions_are_handed_in_by_python(self) -> None:
        measure, adamw = (lambda weights: 0.0), (lambda weights: torch.optim.AdamW(weights, lr=0.1))
        text = TOP + PHASE.replace(
            "{SAT = {radius = 0.03}}", "{PublicSharpness = {method = 'DPSGD', measure = {name = 'mine'}}}"
        ).replace("{SGD = {lr = 2.0, momentum = 0.9}}", "{Torch = {optimizer = {name = 'adamw'}}}")
        found = recipe(text, mine=measure, adamw=adamw)
        assert found.phase[0].method == PublicSharpness(DPSGD(), measure)
        assert found.phase[0].optimizer == Torch(adamw)
        assert recipe(found.as_toml(), mine=measure, adamw=adamw) == found
        assert found.but({"epsilon": 1.0}).using == {"mine": measure, "adamw": adamw}
        said = refusal(text, adamw=adamw)
        assert said.startswith(
            "mine.toml, line 9: phase.0.method.PublicSharpness.measure: 'mine' stands for a"
        )
        assert "using={'mine': function}" in said
        with pytest.raises(SettingError, match="a recipe cannot hold"):
            dataclasses.replace(found, using={}).as_toml()

    def test_a_function_of_the_user_may_stand_for_a_schedule(self) -> None:
        halved = lambda step: 0.5**step
        found = recipe(TOP + PHASE.replace("lr = 2.0", "lr = {name = 'halved'}"), halved=halved)
        assert found.phase[0].optimizer == SGD(lr=halved, momentum=0.9)


class TestGroups:
    @pytest.mark.parametrize(
        ("was", "instead", "said"),
        [
            ("{SAT = {radius = 0.03}}", '"Plateau"', "there is no method 'Plateau'"),
            ("{SAT = {radius = 0.03}}", '"SGD"', "there is no method 'SGD'; did you mean DPSGD?"),
            ("{SGD = {lr = 2.0, momentum = 0.9}}", '"EMA"', "there is no optimizer 'EMA'"),
            ("clip_norm = 0.1", 'clip_norm = "Counted"', "there is no clipping rule 'Counted'"),
            ("clip_norm = 0.1", "clip_norm = {SAT = {radius = 0.1}}", "there is no clipping rule 'SAT'"),
            ("lr = 2.0", 'lr = "_Ramp"', "there is no schedule '_Ramp'"),
            ("lr = 2.0", 'lr = "Plateau"', "there is no schedule 'Plateau'"),
            ("clip_norm = 0.1", 'clip_norm = 0.1\nuntil = "SAT"', "no rule that ends a phase 'SAT'"),
            ("epsilon", 'augment = ["Augment"]\nepsilon', "there is no change of images 'Augment'"),
            ("epsilon", "ema = {SGD = {lr = 1}}\nepsilon", "there is no value 'SGD'; known are EMA"),
            ('"digits_cnn"', '"ScaledStdConv2d"', "there is no model 'ScaledStdConv2d'"),
            ('"digits_cnn"', '"parameter_count"', "there is no model 'parameter_count'"),
        ],
    )
    def test_each_place_takes_its_own_group_only(self, was: str, instead: str, said: str) -> None:
        assert said in refusal((TOP + PHASE).replace(was, instead))

    def test_secant_takes_sat_and_nothing_else(self) -> None:
        secant = "{Secant = {method = %s, lr = 2.0}}"
        text = (TOP + PHASE).replace("{SAT = {radius = 0.03}}", secant)
        assert recipe(text % "{SAT = {radius = 1}}").phase[0].method.method == SAT(1.0)
        assert "known are SAT" in refusal(text % "'DPSGD'")


class TestMistakes:
    @pytest.mark.parametrize(
        ("was", "instead", "said"),
        [
            ("radius", "raduis", "line 9: phase.0.method.SAT.raduis: SAT has no such setting; did you mean radius?"),
            ("epsilon =", "epsilonn =", "line 4: epsilonn: a recipe has no such setting; did you mean epsilon?"),
            ("epochs", "epoch", "line 8: phase.0.epoch: a phase has no such setting; did you mean epochs?"),
            ("0.03", "-1", "line 9: phase.0.method.SAT: the radius of the climb must be 0 or more"),
            ("0.03", "true", "line 9: phase.0.method.SAT.radius: takes a number; got True"),
            ("0.03", "'far'", "line 9: phase.0.method.SAT.radius: takes a number; got 'far'"),
            ("0.03", "nan", "line 9: phase.0.method.SAT.radius: nan is no value"),
            ("0.03", "1e39", "line 9: phase.0.method.SAT.radius: takes a number that single precision holds"),
            ("0.03", "2020-01-01", "line 9: phase.0.method.SAT.radius: takes a number; got datetime"),
            ("{radius = 0.03}", "0.03", "line 9: phase.0.method: takes {Class = {settings}}; got 0.03"),
            ("{SAT = {radius = 0.03}}", "'SAT'", "line 9: phase.0.method.SAT: SAT needs radius; write {SAT = {rad"),
            ("{SAT = {radius = 0.03}}", "{}", "line 9: phase.0.method: takes one value"),
            ("{SAT = {radius = 0.03}}", "{SAT = {}, SAM = {}}", "takes one value, {Class = {settings}}; got a table"),
            ("{SAT = {radius = 0.03}}", "3", "line 9: phase.0.method: takes DOPE, DPLIS, DPSGD, SAM"),
            ("{SAT = {radius = 0.03}}", "{DPLIS = {lr = 1, copies = 2.0}}", "DPLIS.copies: takes a whole number"),
            ("{SAT = {radius = 0.03}}", "{DPLIS = {lr = 1, copies = 0}}", "DPLIS.copies: copies must be"),
            ("{SAT = {radius = 0.03}}", "{SAM = {radius = 1, fresh = 1}}", "SAM.fresh: takes true or false; got 1"),
            ("clip_norm = 0.1", "clip_norm = 0", "line 10: phase.0.clip_norm: clip_norm must"),
            ("clip_norm = 0.1", "clip_norm = inf", "phase.0: noise needs a finite clip_norm"),
            ("clip_norm = 0.1", "clip_norm = []", "takes a number or Automatic, Flat, PerLayer; got a list"),
            ("clip_norm = 0.1\n", "", "line 7: phase.0: a phase needs clip_norm"),
            ("epochs = 3", "epochs = 3\nsteps = 4", "line 7: phase.0: a phase has epochs, or steps"),
            ("epochs = 3", "", "a phase has epochs, or steps"),
            ("epochs = 3", "steps = 0", "phase.0.steps: must be a whole number from 1"),
            ("epochs = 3", "epochs = inf", "line 8: phase.0.epochs: must be above 0, and finite"),
            ("epochs = 3", "epochs = 3\nportion = 0.5", "portions divide epsilon over several phases"),
            ("epochs = 3", "epochs = 3\nnoise_multiplier = 1", "line 9: phase.0.noise_multiplier: epsilon decides"),
            ("epsilon = 3.0\n", "", "mine.toml: a recipe has epsilon, or a noise_multiplier in every phase"),
            ("epsilon = 3.0", "epsilon = 0", "line 4: epsilon: must be above 0"),
            ("epsilon = 3.0", "epsilon = 3\ndelta = 1.0", "line 5: delta: must lie between 0 and 1"),
            ("batch_size = 500", "batch_size = 500\nrate = 0.1", "a recipe has batch_size, or rate"),
            ("batch_size = 500", "rate = 1.5", "line 5: rate: is each example's probability"),
            ("batch_size = 500", "batch_size = '500'", "line 5: batch_size: takes a number; got '500'"),
            ("batch_size", "views = 4\nbatch_size", "line 5: views: 4 views would all be the same"),
            ("batch_size", "views = 2000\naugment = ['Flip']\nbatch_size", "line 5: views: must be at most 1024"),
            ("batch_size", "budget_split = 'half'\nbatch_size", "budget_split: is one of sequential"),
            ("batch_size", "seed = 9223372036854775808\nbatch_size", "more than 64 bits"),
            ("batch_size", "accountant = 'RDF'\nbatch_size", "accountant: is one of PLD, RDP; got 'RDF'"),
            ("batch_size", "spare = -1\nbatch_size", "spare: must be 0 or more"),
            ("batch_size", "physical = 0\nbatch_size", "physical: must be at least 1"),
            ("batch_size", "using = {}\nbatch_size", "using: a recipe has no such setting"),
            ('"digits_cnn"', '"digits_cn"', "line 3: model: there is no model 'digits_cn'; did you mean digits_cnn?"),
            ('"digits_cnn"', "{digits_cnn = {clases = 3}}", "model.digits_cnn.clases: digits_cnn has no such"),
            ('"digits_cnn"', "{digits_cnn = {classes = 3.5}}", "classes: takes a whole number; got 3.5"),
            ('"digits_cnn"', "{cnn_tanh = {activation = 3}}", "activation: takes a text or"),
        ],
    )  # fmt: skip
    def test_each_is_told_with_its_place(self, was: str, instead: str, said: str) -> None:
        text = TOP + PHASE
        assert was in text
        found = refusal(text.replace(was, instead, 1))
        assert found.startswith("mine.toml")
        assert said in found

    def test_the_second_phase_is_told_from_the_first(self) -> None:
        said = refusal(TOP + PHASE + PHASE.replace("radius", "raduis"))
        assert said.startswith("mine.toml, line 15: phase.1.method.SAT.raduis")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "is empty"),
            ("# nothing\n", "is empty"),
            ("epsilon = = 3", "it is no TOML"),
            (f"version = 3\n{PHASE}", "line 1: version: this saltflat reads versions 1 and 2 of recipes; got 3"),
            (f"version = '2'\n{PHASE}", "versions 1 and 2"),
            (f"version = true\n{PHASE}", "versions 1 and 2"),
            (f"version = 2.0\n{PHASE}", "versions 1 and 2"),
            (f"version = [2]\n{PHASE}", "versions 1 and 2"),
            ("version = 2", "a recipe needs data and model and phase"),
            (TOP, "a recipe needs phase"),
            (f"{TOP}phase = 3", "phase: takes a list of blocks under [[double brackets]]; got 3"),
            (f"{TOP}phase = []", "phase: a recipe needs at least one phase"),
            (f"{TOP}phase = [3]", "phase.0: takes a table; got 3"),
            (f"{TOP}[phase]\nsteps = 3", "line 6: phase: takes a list of blocks"),
            (f"{TOP}{PHASE}{PHASE}[phase]", "it is no TOML"),
            (PHASE, "a recipe with phases begins with version = 2"),
            ("[[[[[[", "it is no TOML"),
            ("x = " + "[" * 10_000 + "]" * 10_000, "nested more than"),
            ("x = " + "{a = " * 10_000 + "1" + "}" * 10_000, "nested more than"),
            (".".join("a" * 10_000) + " = 1", "nested more than"),
            ("[" + ".".join("a" * 10_000) + "]", "nested more than"),
            ("x = 1" + "0" * 10_000, "it is no TOML"),
            ("x = 0x1" + "0" * 10_000, "more than 64 bits"),
            ("x = '" + "y" * 2_000_000 + "'", "longer than"),
        ],
    )  # fmt: skip
    def test_hostile_files(self, text: str, said: str) -> None:
        assert said in refusal(text)

    @pytest.mark.parametrize(
        "method",
        [
            "{__class__ = {}}",
            "{__import__ = {name = 'os'}}",
            '{"os.system" = {command = "touch /tmp/never"}}',
            '{"saltflat.methods.SAT" = {radius = 1}}',
            '{"builtins.eval" = {}}',
            "{SAT = {radius = {__call__ = {}}}}",
            "{SAT = {__init__ = 3, radius = 1}}",
            "{SAT = {radius = 1, __class__ = 'os'}}",
            "{name = '__import__'}",
            "{name = 3}",
            "{name = {SAT = {}}}",
            "{CALLED = {}}",
            "{public_draws = {}}",
            "{Method = {}}",
            "{Stage = {}}",
            "'__all__'",
        ],
    )
    def test_no_name_reaches_anything_else(self, method: str) -> None:
        said = refusal(TOP + PHASE.replace("{SAT = {radius = 0.03}}", method))
        assert said.startswith("mine.toml, line 9: phase.0.method")

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"one of best-calibrated, .*digits"):
            read("no-such-recipe")
        (tmp_path / "r.toml").write_bytes(b"\xff\xfe")
        with pytest.raises(DataError, match="cannot be read"):
            read(tmp_path / "r.toml")
        with pytest.raises(DataError, match="Is a directory"):
            read(tmp_path)

    def test_a_folder_of_a_shipped_name_is_no_recipe(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("digits").mkdir()
        assert read("digits") == shipped("digits")

    def test_huge_networks_and_plans_are_refused(self) -> None:
        text = (TOP + PHASE).replace('"digits_cnn"', "{next_word_lstm = {vocabulary = 9000000000000000}}")
        with pytest.raises(SettingError, match="next_word_lstm cannot be made"):
            network_of(recipe(text))
        with pytest.raises(SettingError, match="are the most"):
            plan_of(recipe(TOP + PHASE.replace("epochs = 3", "epochs = 1e30")), 1437)
        falling = "noise_schedule = {Linear = {start = 2, end = 1, steps = 9}}\n"
        with pytest.raises(SettingError, match="noise_schedule serves at most"):
            plan_of(recipe(TOP + PHASE.replace("epochs = 3", "steps = 1000000000") + falling), 1437)


class TestChanges:
    def test_entries_by_their_keys(self) -> None:
        found = recipe().but({"phase.0.method": "DPSGD", "phase.0.optimizer.SGD.lr": 1, "phase.0.steps": 7})
        (stage,) = found.phase
        assert (stage.method, stage.optimizer) == (DPSGD(), SGD(lr=1.0, momentum=0.9))
        assert (stage.steps, stage.epochs) == (7, None)  # one stands in the place of the other
        assert recipe().but({"rate": 0.5}).batch_size is None
        assert recipe().but({"ema.EMA.decay": 0.5}).ema == EMA(0.5)

    def test_a_name_alone_takes_settings(self) -> None:
        found = recipe().but({"phase.0.clip_norm": "Automatic"})
        assert found.but({"phase.0.clip_norm.Automatic.gamma": 0.5}).phase[0].clip_norm == Automatic(1.0, 0.5)

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("phase.1.epochs", 3, "phase: has 1 entries, counted from 0; got '1'"),
            ("phase.0.clip_norm.PerLayer.bounds", 1, "phase.0.clip_norm: is 0.1, which holds no 'PerLayer'"),
            ("phase.0.method.SAM.radius", 1, "phase.0.method: takes one value"),
            ("phase.-1.epochs", 3, "has 1 entries"),
            (".".join("a" * 50), 3, "no entry lies more than|nested more than"),
            ("epsilon", "three", "epsilon: takes a number; got 'three'"),
        ],
    )
    def test_what_is_not_there(self, key: str, value: Any, said: str) -> None:
        with pytest.raises((SettingError, DataError), match=said):
            recipe().but({key: value})


class TestWriting:
    @pytest.mark.parametrize("name", names())
    def test_shipped_recipes_survive_being_written_down(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "r.toml").write_text(shipped(name).as_toml())
        assert read(tmp_path / "r.toml") == shipped(name)

    def test_every_setting_is_written_out(self) -> None:
        text = recipe().as_toml()
        assert "method = {SAT = {radius = 0.03, momentum = 0.0, drift = 1}}\n" in text
        assert "delta = 1e-05\n" in text

    def test_odd_names_and_numbers_come_back(self) -> None:
        bounds = {"": 1.0, "a.b": 2.5e-9, 'q"\\': 3.0, "naïve\x7f\n": 4.0, "𝄞": 1e9}
        stage = dataclasses.replace(recipe().phase[0], clip_norm=PerLayer(bounds))
        found = dataclasses.replace(recipe(), phase=(stage,))
        assert recipe(found.as_toml()) == found

    def test_the_plain_list_of_settings_is_the_recipe_s(self) -> None:
        own = {each.name for each in dataclasses.fields(Recipe)} - {"using"}
        assert own | {"version"} == set(SETTINGS)

    def test_a_plan_becomes_a_recipe_and_the_same_plan_again(self) -> None:
        plan = plan_of(shipped("fashion-mnist-sai-eps3"), 60_000)
        found = recipe_of(plan, data="mnist", model=Network("mlp_mnist"), delta=1e-6)
        again = recipe(found.as_toml())
        assert again == found
        assert plan_of(again, again.size) == plan
        assert again.epsilon is None

    def test_what_is_not_public_cannot_be_written(self) -> None:
        class Mine(SAT):
            """A class of the user, which no group has."""

        found = dataclasses.replace(recipe().phase[0], method=Mine(0.1))
        with pytest.raises(SettingError, match="a recipe cannot hold a Mine"):
            dataclasses.replace(recipe(), phase=(found,)).as_toml()


class TestPlans:
    def test_spare_steps_are_paid_for(self) -> None:
        plan = plan_of(recipe().but({"spare": 40}), 1437)
        without = plan_of(recipe().but({"spare": 0}), 1437)
        assert plan.steps == without.steps
        assert plan.epsilon(1e-5) < 0.8 * without.epsilon(1e-5)

    def test_steps_are_rounded_and_at_least_one(self) -> None:
        steps = lambda epochs: draft_of(recipe().but({"phase.0.epochs": epochs}), 1437).steps
        assert (steps(3), steps(0.01)) == (round(3 / (500 / 1437)), 1)

    def test_portions_are_those_of_split_budget(self) -> None:
        parts = [PHASE.replace("epochs = 3", f"steps = 9\nportion = {p}") for p in (0.6, 0.3, 0.1)]
        found = recipe(TOP + "spare = 0\n" + "".join(parts))
        for split in ("joint_ratio", "sequential", "joint_share"):
            draft = draft_of(found, 1437)
            budget = {"epsilon": 3.0, "delta": 1e-5, "budget_split": split}
            expected = split_budget(draft, portions=(0.6, 0.3, 0.1), **budget)
            assert plan_of(found.but({"budget_split": split}), 1437) == expected
        with pytest.raises(SettingError, match="portions sum to 1"):
            found.but({"phase.0.portion": 0.5})
        with pytest.raises(SettingError, match="every phase one, or none"):
            recipe(TOP + parts[0] + PHASE)

    def test_phases_without_portions_share_one_factor(self) -> None:
        found = recipe(TOP + "spare = 0\n" + PHASE + PHASE + "noise_schedule = 2\n")
        plan = plan_of(found, 1437)
        assert plan == calibrate(draft_of(found, 1437), epsilon=3.0, delta=1e-5)
        assert plan.phases[0].noise_multiplier == plan.phases[1].noise_multiplier

    def test_given_noise_is_left_alone(self) -> None:
        text = TOP.replace("epsilon = 3.0\n", "") + PHASE + "noise_multiplier = 1.5\n"
        assert plan_of(recipe(text), 1437).phases[0].noise_multiplier == 1.5
        assert "in every phase" in refusal(text + PHASE)

    def test_sai_in_python_is_sai_in_a_recipe(self) -> None:
        usual = {"steps": (20, 30), "rate": 0.1, "size": 1000, "epsilon": 2.0, "delta": 1e-5}
        stages = tuple(
            Stage(steps=steps, portion=p, method=method, clip_norm=0.1, optimizer=SGD(lr=lr, momentum=0.9))
            for steps, p, method, lr in ((20, 0.9, SAT(0.05), 2.0), (30, 0.1, DPSGD(), 0.1))
        )
        rest = {"data": "digits", "model": Network("digits_cnn"), "rate": 0.1, "epsilon": 2.0, "spare": 0}
        assert plan_of(Recipe(phase=stages, **rest), 1000) == sai(**usual)

    def test_what_cannot_be(self) -> None:
        with pytest.raises(SettingError, match="batch_size 2000 is larger than the data"):
            plan_of(recipe().but({"batch_size": 2000}), 1437)
        with pytest.raises(SettingError, match="there is no model 'resnet'"):
            Network("resnet")
        with pytest.raises(SettingError, match="side is 8"):
            network_of(recipe().but({"model": {"tutorial_cnn": {"side": 8}}}))
        with pytest.raises(SettingError, match="there is no data set"):
            official_size("minst")

    def test_views_are_made_by_the_recipe_s_transforms(self) -> None:
        found = recipe().but({"views": 3, "augment": ["Flip", {"PadCrop": {"padding": 1}}]})
        loss = loss_of(found, network_of(found))
        assert (loss.views, loss.augment.views) == (3, 3)
        assert loss.augment.transforms == (Flip(), PadCrop(1))
        assert loss_of(recipe(), network_of(recipe())).augment is None

    def test_the_seed_decides_the_initial_weights(self) -> None:
        first, again, other = (network_of(recipe().but({"seed": s})).state_dict() for s in (1, 1, 2))
        assert all(bool((first[name] == again[name]).all()) for name in first)
        assert any(bool((first[name] != other[name]).any()) for name in first)


def on_file() -> list[dict[str, Any]]:
    found = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return [one for one in found if one["settings"]["seed"] == 0]


def shipped_name(one: dict[str, Any]) -> str:
    settings = one["settings"]
    return f"{settings['data']}-{settings['method']}-eps{settings['epsilon']:g}"


PRINT_NOISE = """
import json, sys
from saltflat.recipes import plan_of, shipped
plans = {name: plan_of(shipped(name), 60_000) for name in sys.argv[1:]}
print(json.dumps({name: [p.noise_multiplier for p in plan.phases] for name, plan in plans.items()}))
"""


OF_PAPERS = ("dp-", "sai-", "dplis-")  # recipes named after a paper and a row of its table


class TestShipped:
    @pytest.mark.parametrize(
        "name", [name for name in names() if not name.startswith(("federated-", "best-", *OF_PAPERS))]
    )
    def test_each_fits_its_data_and_stays_within_epsilon(self, name: str) -> None:
        found = shipped(name)
        assert about(name)
        plan = plan_of(found, official_size(found.data))
        assert 0.9 * found.epsilon < plan.epsilon(found.delta) <= found.epsilon
        assert plan.steps == pytest.approx(sum(stage.epochs for stage in found.phase) / plan.rate, abs=1)
        assert parameter_count(network_of(found)) in (9_258, 26_010, 13_106_215, 5_003_745)

    @pytest.mark.parametrize("name", [name for name in names() if name.startswith(OF_PAPERS)])
    def test_a_paper_s_recipe_fits_its_data(self, name: str) -> None:
        """Without calibration, which takes the time of the test; one of each kind is calibrated below."""
        found = shipped(name)
        assert (
            "published: " in about(name) or "published for another network" in about(name) or "joint" in name
        )
        plan = draft_of(found, official_size(found.data))
        whole = all(stage.epochs is not None for stage in found.phase)
        epochs = sum(stage.epochs or 0.0 for stage in found.phase)
        assert plan.steps == (round(epochs / plan.rate) if whole else 6057)
        assert parameter_count(network_of(found)) in (550_570, 26_010, 468_874, 529_434)
        check_shapes(found, form_of(found))

    @pytest.mark.parametrize(
        ("name", "spent"),
        [
            ("sai-cifar10-cnn-tanh-eps1", 0.79),
            ("dp-sat-cifar10-cnn-tanh-eps2", 1.83),
            ("dplis-mnist-cnn", 1.51),
        ],
    )
    def test_a_paper_s_recipe_spends_what_its_accounting_leaves(self, name: str, spent: float) -> None:
        """Each phase on its own, or by RDP, as the papers have it: less than the epsilon that they print."""
        found = shipped(name)
        plan = plan_of(found, official_size(found.data))
        assert plan.epsilon(found.delta) == pytest.approx(spent, abs=0.01)

    @pytest.mark.parametrize("one", on_file(), ids=shipped_name)
    def test_they_are_what_the_experiments_ran(self, one: dict[str, Any]) -> None:
        plan = plan_of(shipped(shipped_name(one)), one["size"])
        assert plan.rate == one["rate"]
        assert [phase.steps for phase in plan.phases] == one["steps"]
        # Calibration goes through Fourier transforms, whose last digits differ between processors.
        noise = [phase.noise_multiplier for phase in plan.phases]
        assert noise == pytest.approx(one["noise_multipliers"], rel=1e-9)
        assert all(phase.clip_norm == one["settings"]["clip_norm"] for phase in plan.phases)
        assert plan.ema == EMA(one["settings"]["decay"])

    @pytest.mark.skipif(platform.machine() != "x86_64", reason="the results were computed on x86-64")
    def test_their_noise_is_that_on_file_to_the_digit(self) -> None:
        """With the vector instructions that the processor of the results had: those of 512 bits round otherwise."""
        found = {shipped_name(one): one["noise_multipliers"] for one in on_file()}
        names = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PRINT_NOISE, *found],
            env={**os.environ, "NPY_DISABLE_CPU_FEATURES": names},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == found

    @pytest.mark.parametrize("method", ["dp-sgd", "dp-sat", "dp-adambc", "sai"])
    def test_the_same_at_another_epsilon(self, method: str) -> None:
        low, high = (shipped(f"fashion-mnist-{method}-eps{epsilon}") for epsilon in (1, 3))
        assert low.but({"epsilon": 3.0}) == high
