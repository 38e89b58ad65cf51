"""Runs that use public examples: what is kept, what is refused, and that nothing public counts as protected."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from saltflat import Public, per_example, supervised
from saltflat.data import Examples, digits, shared
from saltflat.data.sharing import keys_of
from saltflat.errors import DataError, Interrupted, PrivacyError, SettingError
from saltflat.landscape.access import PUBLIC, STAYS_PRIVATE
from saltflat.methods import Mirror, Quantile, WeightMultiplicity
from saltflat.recipes import Recipe, names, read, shipped
from saltflat.recipes.build import draft_of, network_of, plan_of, size_of, split_of, with_pools
from saltflat.recipes.documents import parse
from saltflat.recipes.recipe import from_document
from saltflat.runs import stages
from saltflat.runs.execute import Outcome, execute
from saltflat.runs.layout import Folder, StageOf, before
from saltflat.runs.making import Lesson, fitted_in, generator_in
from saltflat.runs.stages import add_stage, prepared, scenario_of
from saltflat.runs.weights import path_of, subject
from saltflat.synthesis import Fit, UNet
from saltflat.warmup import Pool, scores

QUICK: dict[str, Any] = {"phase.0.epochs": 1.0, "phase.0.optimizer.SGD.lr": 0.5}
QUICKLY_MADE = {
    "synthetic.images": 30,
    "synthetic.steps": 3,
    "synthetic.fit": {"Fit": {"seen": 64, "batch": 16, "network": {"UNet": {"channels": 8}}}},
    "warmup": [{"Supervised": {"on": "synthetic", "epochs": 2, "batch_size": 10, "radius": 0.05}}],
}


def quick(name: str) -> Recipe:
    """A shipped recipe of the digits, as short as it can be."""
    made = QUICKLY_MADE if name in ("digits-warmsyn", "digits-extended") else {}
    changes = {**QUICK, **made}
    if name == "digits-warm":
        changes["warmup"] = [{"Supervised": {"on": "public", "epochs": 5, "batch_size": 20}}]
    if name == "digits-warmrandom":
        changes["warmup"] = [{"Contrast": {"images": 256, "epochs": 1, "batch_size": 128}}]
    return shipped(name).but(changes)


def carried_out(recipe: Recipe, folder: Path, **how: Any) -> Outcome:
    return execute(recipe, plan_of(recipe, size_of(recipe)), split_of(recipe), Folder(folder), **how)


@pytest.fixture(scope="module", autouse=True)
def _briefly() -> Iterator[None]:
    """An extractor of few steps: what it says is not looked at here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "LESSONS", 4)
        yield


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    folder = tmp_path_factory.mktemp("runs") / "extended"
    return folder, carried_out(quick("digits-extended"), folder, infinity=PUBLIC)


SCENARIOS = {
    "digits-cold": "Cold",
    "digits-warm": "Warm",
    "digits-warmsyn": "WarmSyn",
    "digits-warmrandom": "WarmRandom",
    "digits-extended": "Extended",
}


@pytest.mark.parametrize(("name", "scenario"), SCENARIOS.items())
def test_every_scenario_ships_as_a_recipe(name: str, scenario: str) -> None:
    recipe = shipped(name)
    assert name in names()
    assert scenario_of(recipe) == scenario
    assert size_of(recipe) == 1437


class TestWhatIsKept:
    def test_every_stage_has_its_accuracy(self, extended: tuple[Path, Outcome]) -> None:
        folder, outcome = extended
        said = before(Folder(folder))
        assert said is not None
        assert said == outcome.before
        assert [each.kind for each in said.stages] == ["start", "warm-up", "without noise", "private"]
        assert [each.epsilon for each in said.stages] == [0, 0, None, outcome.statement.epsilon]
        assert all(0 <= (each.accuracy or 0) <= 1 for each in said.stages)
        assert said.stage("private").accuracy == outcome.accuracy  # type: ignore[union-attr]
        assert {"frechet", "precision", "recall", "copied", "inception_score", "cas"} == said.metrics.keys()

    def test_who_was_public_is_on_record(self, extended: tuple[Path, Outcome]) -> None:
        folder, outcome = extended
        keys = np.load(folder / "public" / "public.npz")["keys"]
        found = shared(digits().train, 60 / 1437, seed=0)
        assert np.array_equal(keys, keys_of(found.public, seed=0))
        said = outcome.statement.as_text()
        assert (
            "not protected at all: about 60 of the 1437 training examples of digits, by a hash of each under "
            "seed 0" in said
        )
        assert "30 images of a generator that was fitted to these" in said
        assert "without noise, as the examples were declared public" in said

    def test_images_for_people_to_see(self, extended: tuple[Path, Outcome]) -> None:
        folder, _ = extended
        shown = np.load(folder / "public" / "samples.npz")
        assert shown["public"].shape == (40, 1, 8, 8)
        assert shown["synthetic"].shape == (30, 1, 8, 8)
        assert shown["public"].dtype == shown["synthetic"].dtype == np.uint8
        assert np.array_equal(shown["synthetic_labels"], np.arange(30) % 10)

    def test_the_path_begins_at_the_warm_weights(self, extended: tuple[Path, Outcome]) -> None:
        folder, _ = extended
        warm, first = load_file(folder / "public" / "warm.safetensors"), path_of(subject(folder))[0]
        assert all(torch.equal(leaf, warm[name]) for name, leaf in first.items())

    def test_damage_costs_a_section_and_no_more(self, tmp_path: Path) -> None:
        (tmp_path / "public").mkdir()
        file = tmp_path / "public" / "stages.json"
        for text in ("", "[]", '{"stages": 3}', '{"scenario": "Warm", "provenance": [], "metrics": []}'):
            file.write_text(text)
            assert before(Folder(tmp_path)) is None
        odd = {"kind": "private", "epsilon": "two", "accuracy": True}
        file.write_text(
            json.dumps({"scenario": "W", "provenance": [], "metrics": {"a": "b"}, "stages": [odd, 5]})
        )
        found = before(Folder(tmp_path))
        assert found is not None
        assert found.stages == (StageOf("", "private", None, None),)
        assert found.metrics == {}
        assert add_stage(Folder(tmp_path / "none"), StageOf("x", "private", 1.0)) is None


class TestNothingPublicIsProtected:
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_public_examples_are_taken_out_of_the_private_units(self, name: str) -> None:
        recipe = shipped(name)
        split = split_of(recipe)
        assert split.public is not None
        assert split.train.count + split.public.count == 1437
        assert abs(split.public.count - 60) < 5 * 60**0.5
        assert size_of(recipe) == draft_of(recipe, size_of(recipe)).size == 1437, (
            "a bound of the private ones"
        )
        rows = lambda examples: {tuple(row.tolist()) for row in examples.inputs.flatten(1)}
        assert not rows(split.public) & rows(split.train)

    @pytest.mark.parametrize("gone", ["a private one", "a public one"])
    def test_an_example_that_leaves_takes_nobody_with_it(
        self, gone: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, recipe = digits(), shipped("digits-cold")
        before = split_of(recipe)
        assert before.public is not None
        numbers = shared(whole.train, 60 / 1437, seed=0).numbers
        place = 5 if gone == "a private one" else int(numbers[5])
        assert (place in numbers) == (gone == "a public one")
        rest = np.delete(np.arange(1437), place)
        train = Examples(whole.train.inputs[rest], whole.train.targets[rest], whole.train.scale)
        monkeypatch.setattr("saltflat.recipes.build.load", lambda *given: replace(whole, train=train))
        after = split_of(recipe)
        assert after.public is not None
        known = lambda examples: keys_of(examples).tolist()
        for was, now in ((before.public, after.public), (before.train, after.train)):
            assert set(known(now)) <= set(known(was))
        assert len(known(after.train)) + len(known(after.public)) == 1436

    def test_a_split_that_still_has_them_is_refused(self, tmp_path: Path) -> None:
        recipe = quick("digits-cold")
        with pytest.raises(PrivacyError, match="not taken out"):
            execute(recipe, plan_of(recipe, size_of(recipe)), digits(), Folder(tmp_path / "x"))
        assert not (tmp_path / "x").exists()

    def test_no_private_example_decides_anything_before_the_private_phase(self, tmp_path: Path) -> None:
        """Other private examples, of other labels: the same images are made, and the same warm weights."""
        recipe = quick("digits-warmsyn")
        split = split_of(recipe)
        other = replace(
            split, train=replace(split.train, inputs=split.train.inputs * 0, targets=split.train.targets * 0)
        )
        found = []
        for name, each in (("one", split), ("other", other)):
            model, folder = network_of(recipe), Folder(tmp_path / name)
            folder.path.mkdir()
            prepared(recipe, each, folder, model)
            found.append((model.state_dict(), (folder.public / "stages.json").read_text().replace("\n", "")))
        assert all(torch.equal(leaf, found[1][0][name]) for name, leaf in found[0][0].items())
        drop = lambda text: [{**each, "seconds": 0} for each in json.loads(text)["stages"]]
        assert drop(found[0][1]) == drop(found[1][1])

    def test_without_noise_only_if_the_data_is_declared_public(self, tmp_path: Path) -> None:
        with pytest.raises(PrivacyError, match="declared PUBLIC"):
            carried_out(quick("digits-cold"), tmp_path / "x", infinity=STAYS_PRIVATE)
        assert not (tmp_path / "x").exists()

    def test_a_plain_run_says_nothing_of_it(self, tmp_path: Path) -> None:
        outcome = carried_out(quick("digits-warm"), tmp_path / "x")
        assert "without noise" not in outcome.statement.as_text()
        assert outcome.before is not None
        assert outcome.before.stage("without noise") is None


class TestGoingOn:
    def test_a_run_goes_on_with_its_warm_weights(
        self, extended: tuple[Path, Outcome], tmp_path: Path
    ) -> None:
        """Also one that uses made images in the private phase, and lost its model and its last step."""
        folder = tmp_path / "again"
        shutil.copytree(extended[0], folder)
        (folder / "model.safetensors").unlink()
        recipe = read(folder / "recipe.toml")
        assert recipe == quick("digits-extended")
        outcome = carried_out(recipe, folder, resume=True)
        assert outcome.accuracy == extended[1].accuracy

    def test_what_was_made_is_not_made_again(
        self, extended: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = Folder(tmp_path / "new")
        shutil.copytree(extended[0] / "public", folder.public)
        monkeypatch.setattr(stages, "fitted_in", None)
        model = network_of(quick("digits-extended"))
        prepared(quick("digits-extended"), split_of(quick("digits-extended")), folder, model)
        warm = load_file(extended[0] / "public" / "warm.safetensors")
        assert all(torch.equal(leaf, warm[name]) for name, leaf in model.state_dict().items())

    def test_a_folder_with_another_warm_up_is_refused(
        self, extended: tuple[Path, Outcome], tmp_path: Path
    ) -> None:
        folder = Folder(tmp_path / "new")
        shutil.copytree(extended[0] / "public", folder.public)
        recipe = quick("digits-extended").but({"public.seed": 1})
        with pytest.raises(SettingError, match=r"another public\.seed"):
            prepared(recipe, split_of(recipe), folder, network_of(recipe))

    def test_damaged_warm_weights_are_said_to_be_so(
        self, extended: tuple[Path, Outcome], tmp_path: Path
    ) -> None:
        folder = Folder(tmp_path / "new")
        shutil.copytree(extended[0] / "public", folder.public)
        (folder.public / "warm.safetensors").write_bytes(b"torn")
        recipe = quick("digits-extended")
        with pytest.raises(DataError, match="damaged"):
            prepared(recipe, split_of(recipe), folder, network_of(recipe))


class TestGenerator:
    how = Fit(network=UNet(channels=8), seen=160, batch=16)

    def lesson(self) -> Lesson:
        train = digits().train
        return Lesson(train.inputs[:20], train.targets[:20], 10, "twenty digits")

    def test_it_goes_on_after_a_signal(self, tmp_path: Path) -> None:
        import os
        import signal

        def stop(seen: Any) -> None:
            if seen.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(Interrupted, match="after step 4 of 10"):
            fitted_in(tmp_path / "one", self.how, self.lesson(), watch=stop)
        with pytest.raises(SettingError, match="not finished, step 4 of 10"):
            generator_in(tmp_path / "one")
        steps: list[int] = []
        again = fitted_in(
            tmp_path / "one", self.how, self.lesson(), watch=lambda seen: steps.append(seen.step)
        )
        whole = fitted_in(tmp_path / "two", self.how, self.lesson())
        assert steps == [5, 6, 7, 8, 9, 10]
        assert all(torch.equal(leaf, whole.weights[name]) for name, leaf in again.weights.items())
        kept = generator_in(tmp_path / "one")
        assert kept.how == self.how
        assert all(torch.equal(leaf, whole.weights[name]) for name, leaf in kept.weights.items())

    def test_another_lesson_is_another_generator(self, tmp_path: Path) -> None:
        fitted_in(tmp_path, self.how, self.lesson())
        other = replace(self.lesson(), images=self.lesson().images.flip(3))
        with pytest.raises(SettingError, match="another examples"):
            fitted_in(tmp_path, self.how, other)
        with pytest.raises(DataError, match="holds no generator"):
            generator_in(tmp_path / "nowhere")


class TestRecipes:
    @pytest.mark.parametrize("name", SCENARIOS)
    def test_a_recipe_is_what_it_writes(self, name: str) -> None:
        recipe = shipped(name)
        assert from_document(parse(recipe.as_toml(), "again")) == recipe

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"public.count": 0}, "at least 1"),
            ({"public.count": 2000}, "lower it"),
            ({"warmup": [{"Supervised": {"on": "private"}}]}, "on is one of public, synthetic"),
            ({"warmup": ["Superviced"]}, "there is no warm-up 'Superviced'"),
            ({"synthetic": {"images": 10, "fit": {"Fit": {"lr": 0}}}}, "lr must be above 0"),
        ],
    )
    def test_mistakes_are_told_with_their_place(self, changes: dict[str, Any], said: str) -> None:
        with pytest.raises(SettingError, match=said):
            size_of(shipped("digits-warm").but(changes))

    def test_what_does_not_go_together_is_refused(self) -> None:
        with pytest.raises(SettingError, match=r"add \[public\]"):
            shipped("digits").but({"synthetic": {"images": 10}})
        with pytest.raises(SettingError, match="for their owners to say"):
            shipped("digits").but({"data": "mine.npz", "classes": 10, "public": {"count": 10}})
        with pytest.raises(SettingError, match="units here are clients"):
            shipped("federated-digits").but({"warmup": [{"Contrast": {"epochs": 1}}]})

    def test_a_pool_that_the_recipe_does_not_have_is_missed(self) -> None:
        with pytest.raises(SettingError, match=r"add \[synthetic\]"):
            with_pools(draft_of(shipped("digits-extended"), 1377), {})

    def test_also_inside_other_methods(self) -> None:
        inner = Quantile(Mirror(public=Pool("public"), weight=0.5))
        loss = supervised(torch.nn.CrossEntropyLoss(reduction="none"))
        real = Public(per_example(torch.nn.Linear(64, 10), loss), digits().train)
        plan = draft_of(shipped("digits-extended"), 1377)
        tower = replace(plan, phases=(replace(plan.phases[0], method=inner),))
        assert with_pools(tower, {"public": real}).public == (real,)
        plain = draft_of(shipped("digits-cold"), 1377)
        assert with_pools(plain, {}) is plain
        with pytest.raises(SettingError, match="hand in Public"):
            WeightMultiplicity(public=Pool(), radius=0.1).public.gradient({})


def test_layers_are_in_the_mode_that_they_were_in(tmp_path: Path) -> None:
    """A warm-up trains and tests: what is handed to the private phase is as it was handed over."""
    recipe = quick("digits-warm")
    model, folder = network_of(recipe), Folder(tmp_path)
    model[1].eval()  # type: ignore[index]
    prepared(recipe, split_of(recipe), folder, model)
    assert [module.training for module in model.children()] == [True, False] + [True] * (len(list(model)) - 2)  # type: ignore[call-overload]


def test_few_examples_are_not_judged(tmp_path: Path) -> None:
    recipe = quick("digits-warmsyn").but({"synthetic.images": 3})
    found = prepared(recipe, split_of(recipe), Folder(tmp_path), network_of(recipe))
    assert found.said.metrics == {}


def test_the_tables_of_the_page_are_a_recipe() -> None:
    """Those of docs/public.md, with the settings that every recipe has."""
    page = (Path(__file__).parents[2] / "docs" / "public.md").read_text()
    (tables,) = re.findall(r"```toml\n(.*?)```", page, flags=re.S)
    top = 'version = 2\ndata = "digits"\nmodel = "digits_cnn"\nepsilon = 2.0\nbatch_size = 256\n'
    rest = "epochs = 1\nclip_norm = 0.1\noptimizer = {SGD = {lr = 1.0}}\n"
    recipe = from_document(parse(top + tables + rest, "the page"))
    assert scenario_of(recipe) == "Extended"
    assert [type(stage).__name__ for stage in recipe.warmup] == ["Contrast", "Supervised"]
    for name in SCENARIOS:
        assert f"saltflat train {name}`" in page
