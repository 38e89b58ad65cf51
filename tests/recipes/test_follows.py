"""Numbers that follow size and epsilon, and the recipes called best-..., which have some."""

from __future__ import annotations

from typing import Any

import pytest

from saltflat.errors import SettingError
from saltflat.recipes import about, names, shipped
from saltflat.recipes.build import check_shapes, fitted, form_of, plan_of, size_of
from saltflat.recipes.documents import parse
from saltflat.recipes.follows import interpolated
from saltflat.recipes.recipe import from_document

TEXT = """version = 2
data = "digits"
model = "linear"
epsilon = 3.0
rate = {Follows = {of = "size", at = [1000, 100000], take = [1.0, 0.01]}}

[[phase]]
steps = {Follows = {of = "epsilon", at = [1.0, 4.0], take = [10, 40]}}
method = "DPSGD"
clip_norm = 0.1
optimizer = {SGD = {lr = {Follows = {of = "signal", at = [1e3, 1e5], take = [0.0, 2.0]}}}}
"""
BEST = [name for name in names() if name.startswith("best-")]


def made(text: str = TEXT) -> Any:
    return from_document(parse(text, "mine.toml"))


def test_the_numbers() -> None:
    recipe = made()
    assert recipe.rate == pytest.approx(1000 / 1437)
    assert recipe.phase[0].steps == 30
    assert recipe.phase[0].optimizer.lr == pytest.approx(0.63459, abs=1e-4)


def test_they_are_written_as_numbers() -> None:
    assert "Follows" not in made().as_toml()
    assert made(made().as_toml()) == made()


def test_beyond_the_ends_they_stay() -> None:
    assert interpolated(1, [10, 100], [3, 7]) == pytest.approx(3)
    assert interpolated(1e9, [10, 100], [3, 7]) == pytest.approx(7)
    assert interpolated(100, [10, 100, 1000], [3.0, 7.0, 1.0]) == pytest.approx(7)


@pytest.mark.parametrize(
    ("was", "instead", "said"),
    [
        ('of = "size", ', "", "line 5: rate.Follows: takes of, at and take"),
        ('of = "size"', 'of = "accuracy"', "rate.Follows.of: is one of size, epsilon, signal"),
        ("at = [1000, 100000]", "at = [1000, 1000]", "rate.Follows.at: rises"),
        ("at = [1000, 100000]", "at = [0, 1000]", "rate.Follows.at: rises"),
        ("take = [1.0, 0.01]", "take = [1.0]", "rate.Follows.take: is a list of numbers, two or more"),
        ("take = [1.0, 0.01]", "take = [1.0, 2.0, 3.0]", "as many numbers as take"),
        ("take = [1.0, 0.01]", "take = [1.0, true]", "is a list of numbers"),
        ("epsilon = 3.0\n", "", "follows epsilon, and the recipe has none"),
    ],
)
def test_what_is_no_rule(was: str, instead: str, said: str) -> None:
    with pytest.raises(SettingError) as refused:
        made(TEXT.replace(was, instead))
    assert said in str(refused.value)


def test_a_file_of_the_users_declares_its_size() -> None:
    text = TEXT.replace('"digits"', '"mine.npz"').replace("version = 2", "version = 2\nclasses = 3")
    with pytest.raises(SettingError, match=r"how many rows mine\.npz has is private"):
        made(text)
    assert made(text.replace("classes", "size = 1000\nclasses")).rate == 1.0


@pytest.mark.parametrize("name", BEST)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 8.0])
def test_the_best_recipes_stand_at_any_epsilon(name: str, epsilon: float) -> None:
    recipe = shipped(name, {"epsilon": epsilon})
    assert recipe.epsilon == epsilon
    assert "Follows" not in recipe.as_toml()
    assert recipe.ema is not None


@pytest.mark.parametrize("name", BEST)
def test_they_fit_their_data_and_stay_within_epsilon(name: str) -> None:
    recipe = fitted(shipped(name), form_of(shipped(name)))
    check_shapes(recipe, form_of(recipe))
    plan = plan_of(recipe, size_of(recipe))
    assert 0.98 < plan.epsilon(recipe.delta) <= 1.0
    assert about(name).endswith("docs/recipes.md.")


def test_there_are_six() -> None:
    assert set(BEST) == {
        "best-calibrated",
        "best-cifar10",
        "best-fashion-mnist",
        "best-images",
        "best-mnist",
        "best-tabular",
    }


@pytest.mark.parametrize("size", [500, 8_000, 60_000, 1_000_000])
def test_best_images_serves_any_size(size: int) -> None:
    recipe = shipped("best-images", {"data": "./folder", "size": size, "classes": 10})
    assert recipe.rate is not None
    assert 0 < recipe.rate <= 1
