"""The study with public examples: its table, what makes runs the same, and the stages of its scenarios."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import public_images
import results

from saltflat.warmup import Contrast, Supervised


def result(scenario: str, seed: int, accuracy: float, epsilon: float | None = 2.0) -> results.Result:
    settings = public_images.Settings(data="fashion-mnist", scenario=scenario, seed=seed)
    return {
        "settings": asdict(settings),
        "epsilon": epsilon,
        "accuracy_zero": 0.5,
        "accuracy_last": accuracy,
        "accuracy_ema": accuracy,
        "seconds": 60.0,
    }


def test_the_table_has_means_and_standard_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.jsonl"
    for seed, accuracy in enumerate((0.80, 0.82, 0.84)):
        results.append(file, result("warm", seed, accuracy))
    results.append(file, result(public_images.WITHOUT_NOISE, 0, 0.9, None))
    results.append(file, result("cold", 0, 0.7))
    public_images.main(["--table", str(file)])
    _, _, cold, warm, bare = capsys.readouterr().out.splitlines()
    assert cold.startswith("| fashion-mnist, cold | 1, 1 | 2.00 | 1 | 50.00 | 70.00 | 70.00 |")
    assert "| 3 | 50.00 ± 0.00 | 82.00 ± 1.15 |" in warm
    assert "infinity (not private)" in bare


def test_the_page_has_the_finished_runs() -> None:
    here = Path(public_images.__file__).parent
    found = results.read(here / "public_images.jsonl")
    text = (here / "README.md").read_text()
    assert text.split("<!-- public -->\n")[1].split("\n<!-- end of public -->")[0] == public_images.table(
        found
    )
    last = [one["settings"] for one in found if one["settings"]["epochs"] == 8 and one["settings"]["reach"]]
    seeds = {
        (data, name): {each["seed"] for each in last if (each["data"], each["scenario"]) == (data, name)}
        for data in ("fashion-mnist", "cifar10")
        for name in public_images.SCENARIOS
    }
    assert all(found == {0, 1, 2} for found in seeds.values()), seeds


@pytest.mark.parametrize("scenario", [*public_images.SCENARIOS, public_images.WITHOUT_NOISE])
def test_every_scenario_has_its_warm_up(scenario: str) -> None:
    found = public_images.stages(public_images.Settings(data="fashion-mnist", scenario=scenario, seed=0))
    kinds = {"cold": (), "warm": ("public",), "warmrandom": ("random",)}
    on = tuple(stage.on if isinstance(stage, Supervised) else "random" for stage in found)
    assert on == kinds.get(scenario, ("synthetic",))
    assert all(isinstance(stage, Supervised | Contrast) for stage in found)


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "found.jsonl"
    results.append(file, result("cold", 0, 0.7))
    monkeypatch.setattr(public_images, "prepared", lambda runs, folder, say: None)
    monkeypatch.setattr(public_images, "run", lambda settings, ready, say: pytest.fail("it was there"))
    public_images.main(["--scenarios", "cold", "--seed", "0", "--out", str(file)])
