"""Reading run folders: whole ones, and every kind of broken one."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from folders import (
    DELTA,
    NOISE,
    RATE,
    STEPS,
    reading,
    write_landscape,
    write_metrics,
    write_run,
    write_statement,
)

from saltflat.errors import DataError
from saltflat.privacy.record.history import epsilon_of, read
from saltflat.privacy.record.ledger import Ledger
from saltflat.recipes.old import DEFAULTS
from saltflat.report.folder import Kept, gather, unique_names


def only(path: Path, **settings: Path) -> Kept:
    (run,) = gather([path], **settings)
    return run


def test_a_whole_run(tmp_path: Path) -> None:
    run = only(write_landscape(write_run(tmp_path / "one")))
    assert run.name == "one"
    assert run.finished
    assert not run.empty
    assert [each.step for each in run.readings.value or ()] == list(range(4, STEPS + 1, 4))
    assert run.accuracy == pytest.approx(reading(STEPS)["accuracy"])
    assert run.setting("method") == "SAT"
    parts = [run.recipe, run.readings, run.statement, run.ledger, *vars(run.shapes).values()]
    assert [part.trouble for part in parts] == [""] * len(parts)
    absent = [name for name, part in vars(run.shapes).items() if part.missing]
    assert absent == ["interpolation", "smoothed", "trajectory"]
    assert run.shapes.public


def test_the_larger_epsilon_counts(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    promised = only(path).spent
    assert promised.epsilon == json.loads((path / "statement.json").read_text())["epsilon"]
    with Ledger.open(path / "ledger.jsonl", dataset="digits") as book:
        book.run("again").charge(RATE, NOISE, steps=5)
    spent = only(path).spent
    assert spent.epsilon == read(path / "ledger.jsonl").epsilon(DELTA)
    assert spent.epsilon > promised.epsilon
    assert "ledger" in spent.source
    write_statement(path, epsilon=2.5)
    assert only(path).spent.epsilon == 2.5  # a promise above the record stands


def test_a_damaged_ledger_is_named_and_the_statement_stands_in_doubt(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    data = (path / "ledger.jsonl").read_bytes()
    (path / "ledger.jsonl").write_bytes(data.replace(b'"steps":40', b'"steps":10'))
    run = only(path)
    assert "damaged" in run.ledger.trouble
    assert run.ledger.value is None
    assert "damaged" in run.spent.source
    (path / "ledger.jsonl").unlink()
    assert "gone" in only(path).ledger.trouble  # its head is still there
    (path / "ledger.jsonl.head").unlink()
    assert only(path).ledger.missing


def test_a_killed_run_has_the_ledgers_epsilon(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one", steps=20, ended=False)
    run = only(path)
    assert not run.finished
    assert run.spent.epsilon == read(path / "ledger.jsonl").epsilon(DELTA)
    for file in ("ledger.jsonl", "ledger.jsonl.head"):
        (path / file).unlink()
    assert only(path).spent.epsilon is None  # what the metrics say is less than was spent


@pytest.mark.parametrize("where", ["statement", "ledger"])
def test_a_seeded_run_is_stamped(tmp_path: Path, where: str) -> None:
    path = write_run(tmp_path / "one")
    if where == "statement":
        write_statement(path, stamp="NOT PRIVATE: seeded")
    else:
        for file in ("ledger.jsonl", "ledger.jsonl.head"):
            (path / file).unlink()
        with Ledger.open(path / "ledger.jsonl", dataset="digits") as book:
            book.run("seeded", private=False).charge(RATE, NOISE)
    spent = only(path).spent
    assert spent.stamp == "NOT PRIVATE: seeded"
    assert spent.epsilon == math.inf
    assert not spent.known


def test_a_shared_ledger_is_asked_for_this_run_alone(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    for file in ("ledger.jsonl", "ledger.jsonl.head"):
        (path / file).unlink()
    with Ledger.open(tmp_path / "all.ledger", dataset="digits") as book:
        book.run(str(path)).charge(RATE, NOISE, steps=STEPS + 7)
        book.run("another").charge(RATE, 2.0, steps=99)
    run = only(path, shared=tmp_path / "all.ledger")
    assert run.spent.epsilon == epsilon_of({(RATE, NOISE): STEPS + 7}, DELTA, "add-or-remove")
    other = only(write_run_without_ledger(tmp_path / "two"), shared=tmp_path / "all.ledger")
    assert "has no run that was kept in" in other.ledger.trouble


def write_run_without_ledger(path: Path) -> Path:
    write_run(path)
    for file in ("ledger.jsonl", "ledger.jsonl.head"):
        (path / file).unlink()
    return path


def test_a_run_that_went_back_has_the_later_readings(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one", steps=24, ended=False, peak=0.5)
    write_metrics(path, [16, 20], peak=0.9)  # resumed from step 12, killed again
    readings = only(path).readings.value or ()
    assert [each.step for each in readings] == [4, 8, 12, 16, 20]
    assert readings[2].accuracy == reading(12, peak=0.5)["accuracy"]
    assert readings[3].accuracy == reading(16, peak=0.9)["accuracy"]


def test_torn_lines_and_foreign_fields(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(
            b'{"step": 44, "loss": 1.5}\n[1]\n{"epoch": 3}\n{"step": 48, "accuracy": NaN}\n{"step": 52, "ep'
        )
    run = only(path)
    *_, before, last = run.readings.value or ()
    assert (before.step, before.accuracy, last.step, last.accuracy) == (44, None, 48, None)
    assert run.readings.trouble == "metrics.jsonl: left out line 12, 13, 15, torn or damaged"
    assert run.accuracy is None  # the last reading's: an older figure is not the result


def test_the_settings_of_a_tree_by_their_keys(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    run = only(path)
    assert not run.recipe.trouble
    assert [run.setting(name) for name in ("data", "model", "method")] == ["digits", "digits_cnn", "SAT"]
    assert run.setting("phase.0.method.SAT.radius") == "0.03"
    deep = "{Quantile = {method = {DPLIS = {method = {SAT = {radius = 0.1}}, lr = 2.0}}}}"
    text = f"""version = 2\ndata = "mnist"\nmodel = {{tutorial_cnn = {{side = 32}}}}
        [[phase]]\nmethod = {deep}\n[[phase]]\nmethod = "DPSGD"\noptimizer = {{Adam = {{betas = [0.5, 0.9]}}}}"""
    (path / "recipe.toml").write_text(text)
    run = only(path)
    assert run.setting("method") == "Quantile(DPLIS(SAT)), then DPSGD"
    assert run.setting("model") == "tutorial_cnn"
    assert run.setting("model.tutorial_cnn.side") == "32"
    assert run.setting("phase.1.optimizer.Adam.betas") == "[0.5, 0.9]"


def test_a_recipe_of_version_1(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    (path / "recipe.toml").write_text(version_1())
    run = only(path)
    assert not run.recipe.trouble
    assert run.setting("method") == "dp-sat"
    assert len(run.recipe.value or {}) == 27


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 3\ndata = 'digits'\n", "it has version 3, and this saltflat reads 1 and 2"),
        ("version = 2\ncolour = 'blue'\n", "does not know: colour; it does not have data, model, phase"),
        ("version = 2\nphase = 3\nmodel = [1]\ndata = {a = 1, b = 2}\n", ""),
        ("phase = [[], 3]\nversion = 2\nmethod = {}\n", "does not know: method"),
    ],
)
def test_a_recipe_that_is_no_recipe_is_still_shown(text: str, said: str, tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    (path / "recipe.toml").write_text(text)
    run = only(path)
    assert run.recipe.value
    assert said in run.recipe.trouble


def version_1() -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in DEFAULTS.items())


def test_a_recipe_of_another_version(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    text = version_1().replace("radius = 0.03\n", "")
    (path / "recipe.toml").write_text(text + "altitude = 9\n[inner]\ndeep = true\n")
    run = only(path)
    assert run.setting("altitude") == "9"
    assert run.setting("inner.deep") == "true"
    assert "does not know: altitude, inner.deep" in run.recipe.trouble
    assert "does not have radius" in run.recipe.trouble


@pytest.mark.parametrize(
    ("file", "content", "part"),
    [
        ("recipe.toml", b"data = ", "recipe"),
        ("recipe.toml", b"\xff\xfe", "recipe"),
        ("statement.json", b"{", "statement"),
        ("statement.json", b"[1]", "statement"),
        ("statement.json", b'{"epsilon": "two"}', "statement"),
        ("landscape/measures.json", b"nonsense", "measures"),
        ("landscape/surface.npz", b"nonsense", "surface"),
        ("landscape/surface.npz", b"PK\x03\x04cut", "surface"),
        ("landscape/gradients.json", b'{"edges": [0, 1], "counts": [1, 2]}', "gradients"),
        ("landscape/gradients.json", b'{"edges": [1, 0], "counts": [1]}', "gradients"),
        ("landscape/gradients.json", b'{"edges": "ab", "counts": [1]}', "gradients"),
    ],
)
def test_damage_is_named_and_the_rest_is_read(tmp_path: Path, file: str, content: bytes, part: str) -> None:
    path = write_landscape(write_run(tmp_path / "one"))
    (path / file).write_bytes(content)
    run = only(path)
    found = {"recipe": run.recipe, "statement": run.statement, **vars(run.shapes)}
    assert Path(file).name in found.pop(part).trouble
    assert not any(other.trouble for other in found.values())
    assert run.readings.value


@pytest.mark.parametrize(
    "arrays",
    [
        {"alphas": np.arange(3), "betas": np.arange(3), "loss": np.ones((2, 3))},
        {"alphas": np.arange(3), "betas": np.arange(3)},
        {"alphas": np.arange(1), "betas": np.arange(1), "loss": np.ones((1, 1))},
        {"alphas": np.arange(2), "betas": np.arange(2), "loss": np.array([["a", "b"], ["c", "d"]])},
        {"alphas": np.arange(2), "betas": np.arange(2), "loss": np.array([[{}, {}], [{}, {}]], dtype=object)},
    ],
    ids=["shapes", "no loss", "one point", "text", "pickled"],
)
def test_a_surface_that_is_none(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = write_landscape(write_run(tmp_path / "one"))
    np.savez(path / "landscape" / "surface.npz", **arrays)
    run = only(path)
    assert run.shapes.surface.value is None
    assert run.shapes.surface.trouble.startswith("surface.npz is damaged: ")


@pytest.mark.parametrize("status", ["private: keep this file", "", "Public"])
def test_what_does_not_say_public_counts_as_private(tmp_path: Path, status: str) -> None:
    assert not only(write_landscape(write_run(tmp_path / "one"), status=status)).shapes.public


def test_one_private_file_among_public_ones_counts(tmp_path: Path) -> None:
    path = write_landscape(write_run(tmp_path / "one"))
    arrays = dict(np.load(path / "landscape" / "line.npz"))
    np.savez(path / "landscape" / "line.npz", **arrays, status="public")
    assert only(path).shapes.public
    np.savez(path / "landscape" / "line.npz", **arrays, status="private: keep this file")
    assert not only(path).shapes.public


def test_arrays_without_measures_count_as_private(tmp_path: Path) -> None:
    path = write_landscape(write_run(tmp_path / "one"))
    (path / "landscape" / "measures.json").unlink()
    assert not only(path).shapes.public


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist; give the folder of a run"):
        gather([tmp_path / "nowhere"])
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file"):
        gather([tmp_path / "file"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no run is here"):
        gather([tmp_path / "empty"])
    good, empty = gather([write_run(tmp_path / "one"), tmp_path / "empty"])  # one bad among good ones
    assert (good.empty, empty.empty) == (False, True)


def test_names(tmp_path: Path) -> None:
    assert unique_names([Path("/a/b/run"), Path("/a/c/run"), Path("/a/c/other")]) == [
        "b/run",
        "c/run",
        "c/other",
    ]
    assert unique_names([Path("/a/bad\nname")]) == ["bad\ufffdname"]
    assert unique_names([Path("/a") / os.fsdecode(b"bad\xff")]) == ["bad?"]
    path = write_run(tmp_path / "one")
    assert len(gather([path, path / ".." / "one"])) == 1
