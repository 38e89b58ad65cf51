"""`benchmarks/scale.py`: what it compares, and what it makes of that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import scale
from scale import Engine, Parts

PARTS = Parts(parameters=1000, message=0.001, up=0.02, down=0.01, noise=0.04, update=0.01)


def test_two_ranks_are_held_against_two_threads_on_the_same_batch() -> None:
    found = {engine.name: 1.0 for engine in scale.strong(["small-vit"])}
    assert [Engine.of(name) for name in found] == scale.strong(["small-vit"])
    found["small-vit:128:2:1"] = 1.2
    assert scale.verdicts(found) == ["small ViT: two ranks reach 0.833 of two threads; at least 0.9: MISSED"]
    assert "| small ViT | 128 | 2 x 1 | 1200.0 | 107 | 0.83 | 0.83 |" in scale.table(found)
    found["small-vit:128:2:1"] = 1.1
    assert scale.verdicts(found)[0].endswith("0.909 of two threads; at least 0.9: met")


def test_weak_scaling_is_held_against_one_rank_on_half_the_batch() -> None:
    found = {"gnresnet10:64:1:1": 1.0, "gnresnet10:128:2:1": 1.25}
    assert [Engine.of(name) for name in found] == scale.weak(["gnresnet10"])
    assert "| 128 | 2 x 1 | 1250.0 | 102 | 1.60 |  |" in scale.table(found)


def test_a_projection_adds_up_its_parts() -> None:
    """Eight devices are three levels of a tree; noise and update are not shared out; messages are no faster there."""
    step = scale.projected(PARTS, example=0.5, units=64, devices=8, pace=10.0)
    assert step == pytest.approx((64 / 8 * 0.5 + 0.04 + 0.01) / 10 + 3 * (0.02 + 0.01 + 4 * 0.001))
    assert scale.projected(PARTS, example=0.5, units=64, devices=1) == pytest.approx(32.05)
    said = scale.projection(["gnresnet10"], {"gnresnet10:64:1:1": 1.0}, {"gnresnet10": PARTS})
    assert said.startswith("A projection, not a measurement")
    assert said.count("| GNResNet-10 |") == 4


@pytest.mark.slow
def test_it_measures(tmp_path: Path) -> None:
    words = ["--series", "model", "parts", "--models", "mlp", "--seconds", "1", "--heats", "1"]
    done = subprocess.run(
        [sys.executable, scale.__file__, *words, "--json", str(tmp_path / "found.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| MLP 784-64-10 | 512 |") == 2
    assert '"up": ' in done.stdout
    assert (tmp_path / "found.json").exists()
