"""The measurements of the recipes called best-...: every run is a recipe, and the page is what the files say."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import recipes as best
import recipes_page
import recipes_search as search
import recipes_study as study
import results

from saltflat.recipes.documents import Document
from saltflat.recipes.recipe import from_document


@pytest.mark.parametrize("ground", study.GROUNDS, ids=lambda ground: ground.title)
def test_every_try_is_a_recipe_of_one_budget(ground: study.Ground) -> None:
    for own in (study.plain(ground), *study.methods(ground, ground.lrs[1]).values()):
        assert len(own) == 3
        for name, changes, seed in study.tries(ground, own):
            found, _ = best.recipe_of(name, {**changes, "seed": seed})
            assert (found.epsilon, found.delta, found.data) == (1.0, 1e-5, "mnist")
            assert sum(stage.steps or 0 for stage in found.phase) == ground.steps


def test_the_best_try_on_other_data_is_what_is_compared() -> None:
    """No run on Fashion-MNIST before all tries of its method, and never with another try than the best."""
    ground, found = study.GROUNDS[1], []
    for name, changes, seed in study.studied(ground, lambda: found):
        score = changes[study.LR] / 10 if study.LR in changes else 0.5
        found.append(
            {
                "settings": {"recipe": name, "changes": changes, "seed": seed},
                "test_accuracy": score - changes["phase.0.method"]["SAT"]["radius"]
                if "SAT" in str(changes.get("phase.0.method"))
                else score,
            }
        )
    compared = [one["settings"] for one in found if one["settings"]["recipe"] == study.COMPARED]
    of_sat = [each["changes"] for each in compared if "SAT" in str(each["changes"].get("phase.0.method"))]
    assert len(compared) == len(study.SEEDS) * (1 + len(study.methods(ground, 8.0)))
    assert [each[study.LR] for each in of_sat] == [max(ground.lrs)] * len(study.SEEDS)
    assert {each["phase.0.method"]["SAT"]["radius"] for each in of_sat} == {min(ground.radii)}


def test_no_run_is_chosen_while_a_try_is_missing() -> None:
    ground = study.GROUNDS[1]
    assert study.best(ground, study.plain(ground), []) is None
    assert list(study.known_methods(ground, [])) == ["DP-SGD"]


def test_what_was_measured_is_what_ships() -> None:
    for one in results.read(best.KEPT):
        settings = one["settings"]
        found, _ = best.recipe_of(settings["recipe"], {**settings["changes"], "seed": settings["seed"]})
        assert told(found.as_document()) == told(read_again(one["whole"]))
        assert one["epsilon"] <= found.epsilon


def read_again(document: dict[str, Any]) -> dict[str, Any]:
    """With what came later at the value that it has where nothing is said of it."""
    return from_document(Document(document, "a kept run")).as_document()


def told(document: dict[str, Any]) -> dict[str, Any]:
    """Without lists that are empty: settings that came later, and of which a recipe says nothing."""
    return {name: value for name, value in document.items() if value != []}


def test_the_page_is_what_the_files_say() -> None:
    assert best.page() == (best.HERE / "RESULTS.md").read_text()


def test_means_and_their_errors() -> None:
    assert recipes_page.mean_of([0.5]) == "50.00"
    assert recipes_page.mean_of([0.5, 0.52]) == "51.00 ± 1.00"
    deviation = recipes_page.pooled([[0.52, 0.54], [0.5, 0.52], [0.1]])
    assert deviation == pytest.approx(0.02 / 2**0.5)
    assert recipes_page.against([0.01, 0.03], 0.02) == "+2.00 (+1.4)"
    assert recipes_page.against([], 0.02) == ""
    pairs = recipes_page.by_seed({"DP-SGD": {0: 0.5, 1: 0.25}, "DP-SAT": {1: 0.5, 2: 0.9}, "SAI": {}})
    assert pairs == {"DP-SAT": [0.25], "SAI": []}


def test_things_are_pasted_into_leaves() -> None:
    things = torch.zeros(3, 1, 28, 28, dtype=torch.uint8)
    things[1:] = 255
    found = search.pasted(things, 0)
    assert (found.shape, found.dtype) == ((3, 3, 32, 32), torch.uint8)
    assert torch.equal(found, search.pasted(things, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whole", "process", "within"), [(True, "dead leaves", False), (False, "strokes", True)]
)
def test_a_rotation_is_the_stage_up_to_axes(whole: bool, process: str, within: bool) -> None:
    """Products of rows, which are all that a linear model sees, are those of `Whitened` and `RowScaled`."""
    from saltflat.features import RowScaled, Scattering, Whitened, built

    shape, rows = (1, 8, 8), torch.rand(6, 1, 8, 8)
    one = search.Try(data="", features="scattering", whole=whole, power=0.25, floor=0.1)
    found = search.axes("scattering", shape, whole, process, within).rotated(
        built([Scattering()], shape)(rows), one
    )
    count = 6000 if whole else 3000
    stage = Whitened(
        process=search.PROCESSES[process],
        images=count,
        power=0.25,
        floor=0.1,
        channels_only=not whole,
        within=within,
    )
    wanted = built([Scattering(), stage, RowScaled()], shape)(rows).flatten(1)
    torch.testing.assert_close(found @ found.T, wanted @ wanted.T, rtol=1e-3, atol=1.0)


def test_every_line_of_the_search_is_made_by_the_script() -> None:
    made = [asdict(one) for part in search.SEARCHES for one in part()]
    for line in results.read(search.KEPT):
        assert {**search.BEFORE, **line["settings"]} in made


def test_made_up_tables_have_two_classes() -> None:
    inputs, labels = search.table(0, 500)
    assert inputs.shape == (500, 59)
    assert set(labels.tolist()) == {0, 1}
