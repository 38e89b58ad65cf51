"""Recipes: what they refuse, and that the shipped ones are whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from saltflat.clipping import Automatic, PerLayer
from saltflat.data import official_size
from saltflat.errors import DataError, SettingError
from saltflat.methods import DPLIS, DPSGD, SAM, SAT, Quantile
from saltflat.models import parameter_count
from saltflat.recipes import Recipe, about, names, read, shipped
from saltflat.recipes.build import loss_of, network_of, plan_of

QUICK = {"data": "digits", "epochs": 3.0, "batch_size": 500}


@pytest.mark.parametrize("name", names())
def test_shipped_recipes_fit_their_data_and_stay_within_epsilon(name: str) -> None:
    recipe = shipped(name)
    assert about(name)
    plan = plan_of(recipe, official_size(recipe.data))
    assert 0.9 * recipe.epsilon < plan.epsilon(recipe.delta) <= recipe.epsilon
    assert plan.steps == pytest.approx(recipe.epochs / plan.rate, abs=1)
    assert parameter_count(network_of(recipe)) in (9_258, 26_010)


def test_a_recipe_survives_being_written_down(tmp_path: Path) -> None:
    recipe = Recipe(method="sai", epsilon=0.5, flip=True, data="mnist")
    (tmp_path / "r.toml").write_text(recipe.as_toml())
    assert read(tmp_path / "r.toml") == recipe


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "adam"}, "method is one of"),
        ({"epsilon": "three"}, "epsilon is a float"),
        ({"flip": 1}, "flip is a bool"),
        ({"batch_size": 0}, "batch_size must be above 0"),
        ({"batch_size": True}, "batch_size is a int"),
        ({"epochs": float("nan")}, "epochs must be above 0"),
        ({"first_epochs": 80.0}, "first_epochs is a part"),
        ({"epsilonn": 3.0}, "did you mean epsilon"),
    ],
)
def test_wrong_settings_are_named(changes: dict, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Recipe().but(changes)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("epsilon = = 3")
    with pytest.raises(DataError, match="is no TOML"):
        read(tmp_path / "r.toml")
    (tmp_path / "r.toml").write_text("epsilon = -1\nbatch = 3")
    with pytest.raises(SettingError, match=r"r\.toml: a recipe has no setting 'batch'"):
        read(tmp_path / "r.toml")
    with pytest.raises(DataError, match="one of digits"):
        read("no-such-recipe")


def test_spare_steps_are_paid_for() -> None:
    plan = plan_of(Recipe(**QUICK, spare=40), 1437)
    without = plan_of(Recipe(**QUICK, spare=0), 1437)
    assert plan.steps == without.steps
    assert plan.epsilon(1e-5) < 0.8 * without.epsilon(1e-5)


@pytest.mark.parametrize(
    ("settings", "method", "clip"),
    [
        ({"method": "dp-sgd"}, DPSGD, float),
        ({"method": "dp-sat"}, SAT, float),
        ({"method": "dp-sam"}, SAM, float),
        ({"method": "dplis"}, DPLIS, float),
        ({"method": "dp-sgd", "clipping": "per-layer"}, DPSGD, PerLayer),
        ({"method": "dp-sgd", "clipping": "automatic"}, DPSGD, Automatic),
        ({"method": "dp-sat", "clipping": "quantile"}, Quantile, float),
    ],
)
def test_every_method_and_clipping_rule_has_a_plan(settings: dict, method: type, clip: type) -> None:
    (phase,) = plan_of(Recipe(**QUICK, **settings), 1437).phases
    assert isinstance(phase.method, method)
    assert isinstance(phase.clip_norm, clip)


def test_sai_has_two_phases_and_the_first_is_less_noisy() -> None:
    first, second = plan_of(Recipe(**QUICK, method="sai", first_epochs=1.0), 1437).phases
    assert (first.steps, second.steps) == (3, 6)
    assert first.noise_multiplier < second.noise_multiplier
    assert (first.optimizer.lr, second.optimizer.lr) == (2.0, 0.1)


def test_plans_and_losses_refuse_what_cannot_be() -> None:
    with pytest.raises(SettingError, match="batch_size 2000 is larger than the data"):
        plan_of(Recipe(batch_size=2000), 1437)
    with pytest.raises(SettingError, match="there is no model"):
        network_of(Recipe(model="resnet"))
    with pytest.raises(SettingError, match="set crop or flip"):
        loss_of(Recipe(views=4), network_of(Recipe()))
    with pytest.raises(SettingError, match="there is no data set"):
        official_size("minst")


def test_the_seed_decides_the_initial_weights() -> None:
    first, again, other = (network_of(Recipe(seed=seed)).state_dict() for seed in (1, 1, 2))
    assert all(bool((first[name] == again[name]).all()) for name in first)
    assert any(bool((first[name] != other[name]).any()) for name in first)
