"""``saltflat landscape``: runs side by side, what it keeps, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file
from torch import nn

import saltflat.cli
from saltflat import models
from saltflat.data import digits
from saltflat.recipes.build import network_of, plan_of
from saltflat.recipes.recipe import shipped
from saltflat.runs.begin import begin
from saltflat.runs.execute import execute
from saltflat.runs.layout import Folder
from saltflat.runs.weights import initial, path_of, subject

SMALL = ["--examples", "60", "--grid", "3", "--probes", "2", "--lanczos", "8", "--threads", "1"]
SHORT: dict[str, Any] = {"phase.0.epochs": 2.0, "batch_size": 400}
FILES = {"measures.json", "gradients.json", "spectrum.npz", "line.npz", "surface.npz", "interpolation.npz"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short runs of one network; the second keeps a running mean."""
    place = tmp_path_factory.mktemp("runs")
    for name, changes in (("one", {"phase.0.method": "DPSGD"}), ("two", {"ema.EMA.decay": 0.9})):
        recipe = shipped("digits").but({**SHORT, **changes})
        execute(recipe, plan_of(recipe, 1437), digits(), Folder(place / name))
    return place


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy of the runs for one test."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


def landscape(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, output and errors of the command, in this process."""
    before, sys.argv = sys.argv, ["saltflat", "landscape", *map(str, words)]
    try:
        with pytest.raises(SystemExit) as left:
            saltflat.cli.main()
    finally:
        sys.argv = before
    out, errors = capsys.readouterr()
    return int(left.value.code or 0), out, errors


def measures(run: Path) -> dict:
    return json.loads((run / "landscape" / "measures.json").read_text())


def test_two_runs_side_by_side(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    code, out, errors = landscape(capsys, "one", "two", *SMALL, "--float64")
    assert code == 0, errors
    for words in (
        "largest Hessian eigenvalue",
        "weight norm",
        "Hessian trace",
        "SAM gap",
        "last phase's steps of noise: 1000",
        "one",
        "two",
        "public",
    ):
        assert words in out
    assert {file.name for file in (runs / "one" / "landscape").iterdir()} == FILES
    assert {file.name for file in (runs / "two" / "landscape").iterdir()} == FILES - {"interpolation.npz"}
    one, two = measures(runs / "one"), measures(runs / "two")
    assert (one["split"], one["status"], one["examples"], one["precision"]) == (
        "test",
        "public",
        60,
        "float64",
    )
    assert one["subset"] == two["subset"]
    assert one["weights"] != two["weights"]
    assert one["ratio"] == pytest.approx(one["lambda_max"] / one["lambda_5"])
    assert one["hessian_norm"] >= one["lambda_max"]
    assert [t for t, _ in one["noise_tolerance"]] == [1, 10, 100, 1000]
    assert {
        "trace_error",
        "sharpness",
        "sharpness_solver",
        "sam_gap",
        "average_gap",
        "adaptive_gap",
    } <= one.keys()
    with np.load(runs / "one" / "landscape" / "surface.npz") as found:
        assert found["loss"].shape == found["accuracy"].shape == (3, 3)
        assert found["loss"][1, 1] == pytest.approx(one["loss"], rel=1e-9)
        assert (int(found["seed"]), str(found["subset"]), str(found["status"])) == (
            0,
            one["subset"],
            "public",
        )
    with np.load(runs / "one" / "landscape" / "interpolation.npz") as found:
        assert found["loss"].shape == (1, 41)
        assert found["names"].tolist() == ["one to two"]
        ends = found["loss"][0, [10, 30]]  # alpha 0 and 1
        assert ends == pytest.approx([one["loss"], two["loss"]], rel=1e-9)
    with np.load(runs / "one" / "landscape" / "spectrum.npz") as found:
        mass = np.sum((found["density"][1:] + found["density"][:-1]) / 2 * np.diff(found["grid"]))
        assert mass == pytest.approx(1, rel=1e-3)
        assert int(found["dimension"]) == 9258
    gradients = json.loads((runs / "one" / "landscape" / "gradients.json").read_text())
    assert sum(gradients["counts"]) + gradients["overflow"] == 60
    assert gradients["clip_norm"] == 0.1


def test_parts_are_added_and_other_settings_are_refused_or_start_afresh(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs / "one"
    assert landscape(capsys, run, *SMALL, "--only", "line")[0] == 0
    assert landscape(capsys, run, *SMALL, "--only", "gaps,gradients")[0] == 0
    first = measures(run)
    assert (run / "landscape" / "line.npz").exists()
    assert landscape(capsys, run, *SMALL, "--only", "gaps")[0] == 0
    assert measures(run) == first  # the same seed, the same numbers
    other = [*SMALL, "--only", "noise", "--seed", "1", "--examples", "50", "--float64"]
    code, _, errors = landscape(capsys, run, *other)
    assert (code, errors.count("\n")) == (2, 1)
    assert (
        "with examples 60, seed 0, precision float32, not with examples 50, seed 1, precision float64"
        in errors
    )
    assert "; give --examples 60 to add to it, or --replace to drop it and measure anew" in errors
    assert measures(run) == first
    assert (run / "landscape" / "line.npz").exists()
    assert landscape(capsys, run, *SMALL, "--only", "noise", "--seed", "1", "--replace")[0] == 0
    assert not (run / "landscape" / "line.npz").exists()  # of another seed: it would not belong
    assert "sam_gap" not in measures(run)


def test_private_examples_need_a_declaration_and_leave_a_mark(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs / "one"
    code, _, errors = landscape(capsys, run, "--train", *SMALL)
    assert code == 2
    assert "--private-stays-here" in errors
    assert errors.count("\n") == 1
    assert not (run / "landscape").exists()
    words = ["--train", "--private-stays-here", "--only", "gaps,line,gradients"]
    code, out, errors = landscape(capsys, run, *SMALL, *words)
    assert code == 0, errors
    assert "without noise: keep them" in out
    assert measures(run)["status"] == "private: keep this file"
    assert measures(run)["split"] == "train"
    with np.load(run / "landscape" / "line.npz") as found:
        assert str(found["status"]) == "private: keep this file"
    gradients = json.loads((run / "landscape" / "gradients.json").read_text())
    assert gradients["status"] == "private: keep this file"
    assert {"private_norm", "public_norm", "cosine"} <= gradients.keys()
    _, _, errors = landscape(capsys, run, *SMALL, "--only", "gaps")
    assert (
        "with split train, not with split test; give --examples 60 --train --private-stays-here to add"
        in errors
    )
    assert landscape(capsys, run, *SMALL, "--only", "gaps", "--replace")[0] == 0
    assert {file.name for file in (run / "landscape").iterdir()} == {
        "measures.json"
    }  # nothing private is left


def test_an_unfinished_run_is_looked_at_by_its_checkpoint(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs / "two"
    before = subject(run)
    (run / "model.safetensors").unlink()
    found = subject(run)
    assert found.note.startswith("unfinished: after")
    assert found.weights == before.weights  # the running mean, not the last weights
    code, out, _ = landscape(capsys, run, *SMALL, "--only", "gaps")
    assert code == 0
    assert "unfinished" in " ".join(out.split())
    assert measures(run)["note"].startswith("unfinished")


def test_a_checkpoint_beside_its_run_and_the_plane_of_the_path(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs / "one"
    number = sorted((run / "checkpoints").glob("*.json"))[0]
    code, out, errors = landscape(capsys, run, number, *SMALL, "--only", "gaps,trajectory")
    assert code == 0, errors
    assert "checkpoint after" in " ".join(out.split())
    assert (run / "landscape" / number.stem / "measures.json").exists()
    points = path_of(subject(run))
    assert len(points) >= 3
    first = initial(subject(run).recipe)
    assert all(bool((points[0][name] == first[name]).all()) for name in first)
    with np.load(run / "landscape" / "trajectory.npz") as found:
        assert found["loss"].shape == (3, 3)
        assert found["places"].shape == (len(points), 2)
        assert found["places"][-1] == pytest.approx([0, 0], abs=1e-5)


def test_the_smoothed_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert landscape(capsys, runs / "one", *SMALL[:-2], "--examples", "10", "--only", "smoothed")[0] == 0
    with np.load(runs / "one" / "landscape" / "smoothed.npz") as found:
        assert found["loss"].shape == (81,)
        assert float(found["std"]) > 0


def test_another_network_is_said_to_differ(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "mlp_mnist", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    recipe = shipped("digits").but({"model": "mlp_mnist", "phase.0.optimizer": {"Adam": {"lr": 0.01}}})
    begin(Folder(runs / "other"), recipe)
    save_file(network_of(recipe).state_dict(), str(runs / "other" / "model.safetensors"))
    code, out, errors = landscape(
        capsys, runs / "one", runs / "other", *SMALL, "--only", "noise,interpolation"
    )
    assert code == 0, errors
    text = " ".join(out.split())
    assert "do not compare" in text
    assert "Adam step" in text
    assert not (runs / "one" / "landscape" / "interpolation.npz").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no folder of a run"),
        (["empty"], "recipe.toml is missing"),
        (["begun"], "neither model.safetensors nor a checkpoint"),
        (["one", "one"], "once"),
        (["one", "--only", "lambda"], "there is no part 'lambda'"),
        (["one", "--grid", "2"], "grid must be at least 3"),
        (["one", "--examples", "0"], "examples must be at least 1"),
        (["one", "--device", "abacus"], "--device abacus cannot be used"),
        (["old"], "old/recipe.toml, line 1: colour: a recipe without a version has no such setting"),
        (["other"], "does not hold the weights of digits_cnn"),
        (["torn"], "cannot be read"),
        ([], "Missing argument"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(runs)
    Path("empty").mkdir()
    for name in ("begun", "old", "other", "torn"):
        begin(Folder(Path(name)), shipped("digits"))
    Path("old/recipe.toml").write_text('colour = "blue"\n')
    Path("torn/model.safetensors").write_bytes(b"half")
    save_file(
        network_of(shipped("digits").but({"model": "tutorial_cnn"})).state_dict(), "other/model.safetensors"
    )
    code, _, errors = landscape(capsys, *words)
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1
    assert not list(Path().rglob("landscape"))


def test_ctrl_c_leaves_whole_files_only(runs: Path) -> None:
    run = runs / "one"
    words = [sys.executable, "-m", "saltflat", "landscape", str(run), "--grid", "200", "--threads", "1"]
    process = subprocess.Popen([*words, "--only", "gaps,surface"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and "sam_gap" not in (
        (run / "landscape" / "measures.json").read_text()
        if (run / "landscape" / "measures.json").exists()
        else ""
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.count("\n") == 1
    assert f"kept: {run}: gaps; to go on, run saltflat landscape --resume {run}" in errors
    assert "--only gaps,surface --grid 200 --threads 1" in errors
    assert [file.name for file in (run / "landscape").iterdir()] == ["measures.json"]
    assert "sam_gap" in measures(run)


def test_going_on_leaves_out_what_is_kept(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "one"
    assert landscape(capsys, run, *SMALL, "--only", "gaps,line")[0] == 0
    code, out, _ = landscape(capsys, run, *SMALL, "--only", "gaps,line,surface", "--resume")
    assert code == 0
    assert "surface done" in out
    assert "gaps done" not in out
    with np.load(run / "landscape" / "surface.npz") as found:
        assert found["places"].shape[1] == 2  # the way of training, as far as it lies in the plane
        assert found["places"][-1] == pytest.approx([0, 0], abs=1e-6)
        assert 0 <= float(found["share"]) <= 1
    assert measures(run)["loss_error"] > 0


def test_one_bar_knows_the_whole(runs: Path) -> None:
    """Its parts add up: each has a share of its own, in forward passes."""
    from saltflat.cli.landscape import _views, works
    from saltflat.runs.survey import Settings

    settings = Settings(examples=60, grid=3, probes=2, steps=8)
    views = _views([runs / "one", runs / "two"], settings, None)
    todo = works(views, settings.parts)
    alone = [each for each in todo if not each.others]
    assert len(alone) == 2 * (len(settings.parts) - 1)
    assert todo[-1].part == "interpolation"
    assert all(each.size > 0 for each in todo)
    by_part = {each.part: each.size for each in alone}
    assert by_part["surface"] == 9
    assert by_part["eigenvalues"] == 4 * 8


def test_help_names_every_part() -> None:
    from saltflat.runs.measures import PARTS

    command = [sys.executable, "-m", "saltflat", "landscape", "--help"]
    env = {**os.environ, "COLUMNS": "200", "TERM": "dumb"}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=60).stdout
    assert all(part in shown for part in PARTS)
