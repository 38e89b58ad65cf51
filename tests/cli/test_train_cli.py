"""``saltflat train``: a run in a folder, stopped, resumed, refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from saltflat import cli as saltflat_cli
from saltflat.privacy.record.history import read
from saltflat.recipes import documents, recipe
from saltflat.recipes.old import DEFAULTS
from saltflat.runs import evaluation

SHORT = ["--epochs", "4", "--batch-size", "400", "--threads", "1"]  # 14 steps
STEPS = 14


def started(*words: str, **settings: object) -> subprocess.CompletedProcess:
    """The command in a process of its own, as a shell starts it."""
    command = [sys.executable, "-m", "saltflat", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **settings)


def saltflat(*words: str) -> subprocess.CompletedProcess:
    """The same in this process, which has imported torch already."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["saltflat", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
            saltflat_cli.main()
    finally:
        sys.argv = before
    return subprocess.CompletedProcess(words, int(left.value.code or 0), out.getvalue(), err.getvalue())


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_keeps_everything(tmp_path: Path) -> None:
    out = tmp_path / "one"
    assert saltflat("train", "--out", str(out), "--model", "tutorial_cnn", *SHORT).returncode == 2
    done = started("train", "--out", str(out), "--method", "dp-sgd", *SHORT)  # the corrected command
    assert done.returncode == 0, done.stderr
    for words in ("differentially private for each example", "add or remove", "Poisson", "test accuracy"):
        assert words in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) > 100  # a pipe has no width to wrap at
    assert 'method = "DPSGD"\n' in (out / "recipe.toml").read_text()
    assert recipe.read(out / "recipe.toml").phase[0].epochs == 4.0
    assert [row["step"] for row in metrics(out)] == list(range(1, STEPS + 1))
    assert metrics(out)[-1]["epsilon"] <= 3.0
    assert not {"loss", "norm", "clipped"} & metrics(out)[-1].keys()
    assert json.loads((out / "statement.json").read_text())["epsilon"] <= 3.0
    weights = load_file(out / "model.safetensors")
    assert all(bool(torch.isfinite(leaf).all()) for leaf in weights.values())
    assert sum(read(out / "ledger.jsonl").steps().values()) == STEPS
    kept = evaluation.read(out / "evaluation.json")
    assert kept.hits / kept.count == metrics(out)[-1]["accuracy"]
    assert len(list((out / "path").iterdir())) == STEPS
    again = saltflat("train", "--out", str(out), *SHORT)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert again.stderr.count("\n") == 1


def test_a_dry_run_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = saltflat("train", "fashion-mnist-sai-eps3", "--dry-run", "--out", str(tmp_path / "x"))
    assert done.returncode == 0, done.stderr
    assert "SAT, then DPSGD on fashion-mnist with tanh_cnn_mnist" in done.stdout
    assert "phase 0: 450 steps of SAT(radius=0.03" in done.stdout
    assert "phase 1: 750 steps of DPSGD()" in done.stdout
    assert "epsilon 2.9" in done.stdout
    assert "Warning: delta 1e-05 is above 1/(10 x 60000); 1.6e-06 or less is advised" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "method"),
    [
        (signal.SIGINT, "dp-sat"),
        pytest.param(signal.SIGTERM, "dp-sat", marks=pytest.mark.slow),
        (signal.SIGKILL, "dp-sat"),
        (signal.SIGKILL, "sai"),  # in its first phase, whose steps cost many of the second
    ],
)
def test_a_stopped_run_ends_at_the_same_step_within_epsilon(
    number: signal.Signals, method: str, tmp_path: Path
) -> None:
    out = tmp_path / "one"
    old = {**DEFAULTS, "method": method, "epochs": 12.0, "batch_size": 400}  # 43 steps
    (tmp_path / "old.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in old.items()))
    words = ["train", str(tmp_path / "old.toml"), "--out", str(out), "--threads", "1"]
    process = subprocess.Popen([sys.executable, "-m", "saltflat", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (out / "metrics.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert errors.count("\n") == 1
        assert f"to go on, run saltflat train --resume --out {out} --threads 1" in errors
    assert not (out / "model.safetensors").exists()
    if method == "sai":
        shutil.copy(tmp_path / "old.toml", out / "recipe.toml")  # as a folder of version 1 has it
    done = started("train", "--resume", "--out", str(out), "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert metrics(out)[-1]["step"] == 43
    spent = read(out / "ledger.jsonl")
    assert sum(spent.steps().values()) >= 43
    assert spent.epsilon(1e-5) <= 3.0
    stated = json.loads((out / "statement.json").read_text())["epsilon"]
    assert stated >= 0.9999 * spent.epsilon(1e-5)  # what ran again is in the statement, and in the metrics
    assert metrics(out)[-1]["epsilon"] >= 0.9999 * spent.epsilon(1e-5)
    once_more = saltflat("train", "--resume", "--out", str(out), "--threads", "1")
    assert once_more.returncode == 0
    assert read(out / "ledger.jsonl").epsilon(1e-5) == spent.epsilon(1e-5)


def test_another_recipe_does_not_go_on(tmp_path: Path) -> None:
    out = tmp_path / "one"
    assert saltflat("train", "--out", str(out), *SHORT).returncode == 0
    for words, said in (
        (["--epsilon", "8"], "has epsilon 3.0, not 8.0"),
        (["--lr", "1"], "has phase.0.optimizer.SGD.lr 2.0, not 1.0"),
        (["--method", "DPSGD"], "has phase.0.method SAT, not DPSGD"),
        (["--set", "phase.0.method.SAT.radius=0.05"], "has phase.0.method.SAT.radius 0.03, not 0.05"),
        (["--set", "ema=EMA"], "has ema nothing, not EMA"),
        (["fashion-mnist-sai-eps3"], "has data digits, not fashion-mnist"),
    ):
        done = saltflat("train", "--resume", "--out", str(out), *words)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epsilon", "nan"], "--epsilon: epsilon: nan is no value"),
        (["--epsilon", "three"], "--epsilon: epsilon: takes a number; got 'three'"),
        (["--clip-norm", "0"], "--clip-norm: phase.0.clip_norm: clip_norm must"),
        (["--batch-size", "5000"], "larger than the data"),
        (["--method", "dp-magic"], "--method: phase.0.method: there is no method 'dp-magic'; known are DOPE"),
        (["--method", "dplis"], "did you mean DPLIS?"),
        (["--method", "SAT"], "SAT needs radius; write {SAT = {radius = ...}}"),
        (["--method", "{SAT = {radius = }}"], "--method {SAT = {radius = }}: it is no TOML"),
        (["--method", "{PublicSharpness = {method = 'DPSGD', measure = {name = 'f'}}}"], "a file holds no code"),
        (["--model", "tutorial_cnn"], "does not take digits's examples"),
        (["--model", "{tutorial_cnn = {side = 8}}"], "side is 8"),
        (["--data", "cifar"], "there is no data set"),
        (
            ["--data", "mnist", "--model", "tutorial_cnn", "--batch-size", "64", "--data-dir", "nowhere"],
            "not a folder",
        ),
        (["--device", "abacus"], "--device abacus cannot be used"),
        (["--epsilon", "1e-9"], "epsilon"),
        (["--resume"], "holds no run"),
        (["no-such-recipe"], "give a TOML file or one of"),
        (["--epochz", "3"], "No such option"),
        (["--set", "phase.0.method.SAT.raduis=3"], "--set: phase.0.method.SAT.raduis: SAT has no such setting"),
        (["--set", "phase.0.method.SAT.radius=-1"], "--set: phase.0.method.SAT: the radius of the climb must be"),
        (["--set", "phase.0.method.SAT.radius"], "has no value"),
        (["--set", "a b=3"], "--set a b=3: it is no TOML"),
        (["--set", "=3"], "--set =3"),
        (["--set", "phase.1.epochs=3"], "--set: phase: has 1 entries"),
        (["--set", "version=7"], "versions 1 and 2"),
        (["--set", ".".join("a" * 10_000) + "=3"], "nested more than"),
        (["--set", "x=" + "[" * 10_000], "nested more than"),
        (["fashion-mnist-sai-eps3", "--lr", "1"], "write --set 'phase.0.optimizer.SGD.lr=1' or --set 'phase.1"),
        (["fashion-mnist-sai-eps3", "--method", "dp-sgd"], "--method is for one phase, and the recipe has 2"),
        (["fashion-mnist-dplis-eps3", "--lr", "1"], "phase.0.method.DPLIS.lr must follow it"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_leave_no_run(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["saltflat", "train", "--out", str(tmp_path / "x"), *words])
    with pytest.raises(SystemExit) as stopped:
        saltflat_cli.main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()


def dry(*words: str) -> str:
    done = saltflat("train", *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_flags_change_what_the_recipe_says() -> None:
    first = dry(
        "--epsilon", ".5", "--lr", "{Cosine = {start = 2, end = 0.1, steps = 50}}", "--method", "dp-sgd"
    )
    assert "at most 0.5" in first
    assert "of DPSGD() with SGD(lr=Cosine(start=2.0, end=0.1, steps=50, levels=None), momentum=0.9" in first
    second = dry(
        *("fashion-mnist-sai-eps3", "--set", "phase.0.method.SAT.radius=0.05", "--set", "phase.1.steps=30"),
        *("--set", "phase.1.clip_norm={PerLayer = {bounds = 2}}", "--batch-size", "1000", "--size", "50000"),
    )
    assert "phase 0: 750 steps of SAT(radius=0.05" in second
    assert "phase 1: 30 steps of DPSGD()" in second
    assert "clip norm PerLayer(bounds=2.0)" in second
    assert "1000 of 50,000 examples" in second


def test_a_recipe_with_given_noise_is_trained(tmp_path: Path) -> None:
    text = documents.text_of("digits").replace("epsilon = 3.0\n", "").replace("epochs = 70", "steps = 3")
    (tmp_path / "mine.toml").write_text(text + "noise_multiplier = 9.5\n")
    done = saltflat("train", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "one"), "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert "noise 9.5, clip norm 0.1" in done.stdout
    history = read(tmp_path / "one" / "ledger.jsonl")
    assert history.steps() == {(512 / 1437, 9.5): 3}
    assert history.budget is None


def test_a_mistake_in_a_file_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(documents.text_of("digits").replace("radius", "raduis"))
    monkeypatch.chdir(tmp_path)
    done = saltflat("train", "mine.toml", "--dry-run")
    assert done.returncode == 2
    assert done.stderr == (
        "saltflat: mine.toml, line 11: phase.0.method.SAT.raduis: SAT has no such setting; did you mean radius?\n"
    )


def test_help_shows_the_common_settings_and_starts_without_torch() -> None:
    env = {**os.environ, "COLUMNS": "200", "TERM": "dumb"}
    done = started("train", "--help", env=env)
    for word in (
        "--epsilon",
        "--batch-size",
        "--method",
        "--lr",
        "--clip-norm",
        "--set",
        "phase.0.method.SAT",
    ):
        assert word in done.stdout
    for words in (["--help"], ["train", "--help"], ["recipes"], ["recipes", "digits"]):
        code = f"import sys; sys.argv = ['saltflat', *{words}]\nfrom saltflat.cli import main\n"
        code += "try: main()\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_recipes_are_listed_and_printed(tmp_path: Path) -> None:
    assert "fashion-mnist-dp-sat-eps3" in saltflat("recipes").stdout
    text = saltflat("recipes", "mnist-dp-sat-eps3").stdout
    assert text == documents.text_of("mnist-dp-sat-eps3")
    (tmp_path / "mine.toml").write_text(text)
    done = saltflat("train", str(tmp_path / "mine.toml"), "--epsilon", "2", "--dry-run")
    assert "at most 2" in done.stdout
    wrong = saltflat("recipes", "mnist")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_tensorboard_has_every_reading(tmp_path: Path) -> None:
    board = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "one"
    done = saltflat("train", "--out", str(out), "--tensorboard", *SHORT)
    assert done.returncode == 0, done.stderr
    events = board.EventAccumulator(str(out / "tensorboard")).Reload()
    assert sorted(events.Tags()["scalars"]) == ["accuracy", "epsilon", "examples_per_second"]
    seen = [(event.step, event.value) for event in events.Scalars("epsilon")]
    assert seen == [(row["step"], pytest.approx(row["epsilon"])) for row in metrics(out)]


def test_without_tensorboard_the_flag_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "tensorboard"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError")
    path = os.pathsep.join([str(hidden.parent), os.environ.get("PYTHONPATH", "")])
    done = started(
        "train", "--out", str(tmp_path / "x"), "--tensorboard", env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 2
    assert "saltflat[tensorboard]" in done.stderr
    assert not (tmp_path / "x").exists()
