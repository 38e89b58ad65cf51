"""From a trained run to predictions of rows that have no target: tables, arrays and pictures, wherever the run lies."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import saltflat as sf
from saltflat.cli import app
from saltflat.data import Preprocessing, preprocessing_of
from saltflat.errors import DataError, SaltflatError, SettingError
from saltflat.runs.scores import score

BEFORE = Path(__file__).with_name("before")
TABLE = """[target]
name = "buys"
values = ["no", "yes"]

[columns]
age = {low = 18, high = 100}
hours = {low = 0, high = 80, missing = 40}
job = {values = ["clerk", "nurse", "cook"]}
"""
PRICE = TABLE.replace('name = "buys"\nvalues = ["no", "yes"]', 'name = "price"\nlow = 0\nhigh = 100')
RECIPE = """version = 2
data = "digits"
model = "linear"
rate = 0.5
spare = 0
[[phase]]
steps = 20
method = "DPSGD"
clip_norm = 1.0
noise_multiplier = 1.0
optimizer = {SGD = {lr = 1.0, momentum = 0.5}}
"""
HEADER = ["age", "job", "hours", "price", "buys"]


def row(draw: random.Random) -> list[object]:
    age, job, hours = draw.randint(18, 90), draw.choice(["clerk", "nurse", "cook"]), draw.randint(0, 60)
    score = (age - 50) / 20 + (job == "nurse") - (hours - 30) / 20
    return [age, job, hours if draw.random() < 0.9 else "", 50 + 10 * score, "yes" if score > 0 else "no"]


def write(path: Path, rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def saltflat(*words: object) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(found.exception, SaltflatError):
        raise found.exception
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on a table, on a number and on arrays, trained once; their data is gone afterwards, and they were moved."""
    base = tmp_path_factory.mktemp("trained")
    data, draw = base / "data", random.Random(0)
    data.mkdir()
    write(data / "mine.csv", [HEADER, *(row(draw) for _ in range(400))])
    (data / "mine.toml").write_text(TABLE)
    (data / "price.toml").write_text(PRICE)
    x = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    np.savez(data / "mine.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    recipe = base / "recipe.toml"
    recipe.write_text(RECIPE)
    flags = ["--size", "400", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(data)  # so that every path in the recipes is relative
        for name, own in {
            "classes": ["--data", "mine.csv", "--table", "mine.toml"],
            "price": ["--data", "mine.csv", "--table", "price.toml"],
            "arrays": ["--data", "mine.npz", "--classes", "2"],
        }.items():
            saltflat("train", recipe, *own, *flags, "--out", base / name)
    shutil.rmtree(data)
    for name in ("classes", "price", "arrays"):
        shutil.move(base / name, base / "moved" / name)
    return base / "moved"


def test_a_table_without_targets(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(1)
    rows = [row(draw) for _ in range(60)]
    write(tmp_path / "new.csv", [["hours", "age", "job", "more"], *([r[2], r[0], r[1], "x"] for r in rows)])
    said = saltflat("predict", trained / "classes", "new.csv")
    assert "60 of 60 rows predicted" in said
    assert "accuracy" not in said
    found = lines(tmp_path / "predictions.csv")
    assert list(found[0]) == ["row", "prediction", "p(no)", "p(yes)"]
    right = [each["prediction"] == r[4] for each, r in zip(found, rows, strict=True)]
    assert sum(right) / 60 > 0.8
    assert all(abs(float(each["p(no)"]) + float(each["p(yes)"]) - 1) < 1e-4 for each in found)
    assert (tmp_path / "predictions.csv").stat().st_mode & 0o077 == 0
    # in Python: a file, dictionaries and a data frame say the same, and the same as the network on encoded rows
    loaded = sf.load_run(trained / "classes")
    named = [dict(zip(HEADER, each, strict=True)) for each in rows]
    assert loaded.predict("new.csv").tolist() == [each["prediction"] for each in found]
    assert np.array_equal(loaded.predict_proba("new.csv"), loaded.predict_proba(named))
    frame = pytest.importorskip("pandas").DataFrame(named).replace("", None)
    assert np.array_equal(loaded.predict_proba(frame), loaded.predict_proba(named))
    (tmp_path / "mine.toml").write_text(TABLE)
    write(tmp_path / "whole.csv", [HEADER, *rows])
    table = sf.data.read_table(tmp_path / "mine.toml")
    with torch.no_grad():
        wanted = torch.softmax(loaded.model(table.read(tmp_path / "whole.csv").inputs).double(), 1)
    assert np.abs(wanted.numpy() - loaded.predict_proba(named)).max() < 1e-6


def test_targets_give_scores_which_no_epsilon_covers(trained: Path, tmp_path: Path) -> None:
    draw = random.Random(2)
    rows = [row(draw) for _ in range(80)]
    rows[3][4], rows[4][4] = "", "perhaps"  # no target, and one that was not declared
    write(tmp_path / "new.csv", [HEADER, *rows])
    said = saltflat("predict", trained / "classes", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert "on 78 rows with a target: accuracy" in said
    assert "epsilon does not cover" in said
    found = sf.load_run(trained / "classes").predictions(tmp_path / "new.csv")
    right = [label == r[4] for label, r in zip(found.labels, rows, strict=True)]
    assert found.scores is not None
    assert found.scores.accuracy == pytest.approx(sum(right) / 78)


def test_a_number_comes_in_its_own_unit(trained: Path, tmp_path: Path) -> None:
    draw = random.Random(3)
    rows = [row(draw) for _ in range(80)]
    write(tmp_path / "new.csv", [HEADER, *rows])
    said = saltflat("predict", trained / "price", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert "root mean square" in said
    loaded = sf.load_run(trained / "price")
    found = loaded.predict(tmp_path / "new.csv")
    error = float(np.sqrt(np.mean((found - [float(str(r[3])) for r in rows]) ** 2)))
    assert error < 8
    assert loaded.predictions(tmp_path / "new.csv").error == pytest.approx(error)
    assert [float(each["prediction"]) for each in lines(tmp_path / "p.csv")] == pytest.approx(found.tolist())
    with pytest.raises(SettingError, match="no probability"):
        loaded.predict_proba(tmp_path / "new.csv")


def test_arrays(trained: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float32)
    np.savez(tmp_path / "new.npz", x=x)
    loaded = sf.load_run(trained / "arrays")
    found = loaded.predict(tmp_path / "new.npz")
    assert found.dtype == np.int64
    assert (found == (x[:, 0] > 0)).mean() > 0.8
    assert np.array_equal(loaded.predict_proba(torch.from_numpy(x)), loaded.predict_proba(x))
    np.savez(tmp_path / "new.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    assert loaded.predictions(tmp_path / "new.npz").scores.accuracy == (found == (x[:, 0] > 0)).mean()
    x[7, 2] = np.nan
    with pytest.warns(UserWarning, match="1 of 50 rows"):
        assert loaded.predict(x).tolist()[6:9] == [found[6], None, found[8]]
    with pytest.raises(DataError, match=r"shape \(5,\).* \(6,\)"):
        loaded.predict(x[:, :5])


def test_a_broken_row_is_empty_and_told(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age,job,hours\n30,nurse,20\nsecret77,cook,20\n40,cook\n50,clerk,\n")
    said = saltflat("predict", trained / "classes", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert "no prediction for row 2: line 3: column 'age' must hold a number" in said
    assert "line 4: expected 3 values, got 2" in said
    assert "secret77" not in said
    assert "2 of 4 rows predicted" in said
    found = lines(tmp_path / "p.csv")
    assert [bool(each["prediction"]) for each in found] == [True, False, False, True]
    assert found[1]["p(no)"] == ""


def test_what_is_refused(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age,hours\n30,20\n")
    predict = ("predict", trained / "classes")
    with pytest.raises(DataError, match="no column job"):
        saltflat(*predict, tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    with pytest.raises(SettingError, match="holds no predictions"):
        saltflat(*predict, tmp_path / "new.csv", "--out", tmp_path / "new.csv")
    with pytest.raises(SettingError, match="which may be released"):
        saltflat(*predict, tmp_path / "new.csv", "--out", trained / "classes" / "p.csv")
    with pytest.raises(DataError, match=r"takes a \.csv"):
        saltflat(*predict, tmp_path, "--out", tmp_path / "p.csv")
    with pytest.raises(DataError, match="DataFrame"):
        sf.load_run(trained / "classes").predict(np.zeros((2, 5)))
    assert not (tmp_path / "p.csv").exists()
    shutil.copytree(trained / "classes", tmp_path / "run")
    (tmp_path / "run" / "preprocessing.json").write_text('{"format": 1}')
    with pytest.raises(DataError, match="damaged"):
        sf.load_run(tmp_path / "run").predict(tmp_path / "new.csv")


def pictures(base: Path, draw: np.random.Generator, parts: dict[str, int]) -> None:
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for part, count in parts.items():
        for number, name in enumerate(("beach", "city")):
            (base / part / name).mkdir(parents=True)
            for k in range(count):
                pixels = draw.integers(0, 90, (12, 12, 3))
                pixels[:, 6 * number : 6 * number + 6] += 120  # one half is bright
                image_module.fromarray(pixels.astype(np.uint8)).save(base / part / name / f"{k}.png")


def test_pictures_with_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder under a bare name, trained on features; the folder is gone when the run is used."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    pictures(tmp_path / "mine", draw, {"train": 30, "test": 5})
    (tmp_path / "recipe.toml").write_text(
        RECIPE.replace(
            '"digits"', '"mine"\nsize = 60\nfeatures = ["Grey", "Scattering", {RowScaled = {norm = 9}}]'
        )
    )
    saltflat("train", "recipe.toml", "--out", "run", "--threads", "1")
    shutil.rmtree(tmp_path / "mine")
    pictures(tmp_path, draw, {"new": 4})
    (tmp_path / "new" / "city" / "broken.png").write_bytes(b"no picture")
    shutil.copy(tmp_path / "new" / "city" / "0.png", tmp_path / "new" / "loose.png")
    said = saltflat("predict", "run", "new")
    assert "no prediction for city/broken.png: city/broken.png is no picture" in said
    assert "on 8 rows with a target: accuracy 100.00%" in said  # neither the loose one nor the broken one
    found = {each["row"]: each["prediction"] for each in lines(tmp_path / "predictions.csv")}
    assert found["loose.png"] == "city"
    assert found["city/broken.png"] == ""
    loaded = sf.load_run("run")
    assert loaded.predict("new/beach/1.png").tolist() == ["beach"]
    image = pytest.importorskip("PIL.Image").open("new/beach/1.png")
    assert loaded.predict(np.asarray(image)[None]).tolist() == ["beach"]
    with pytest.raises(DataError, match="images in bytes"):
        loaded.predict(np.zeros((1, 3, 12, 12), dtype=np.float32))


def test_a_run_of_an_older_version(tmp_path: Path) -> None:
    """It kept no preprocessing; of a data set by name that is known all the same."""
    loaded = sf.load_run(BEFORE / "finished")
    digits = sf.data.load("digits").test
    found = loaded.predict(digits.inputs)
    with torch.no_grad():
        assert found.tolist() == loaded.model(digits.inputs).argmax(1).tolist()


def test_what_is_kept_is_what_was_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in sf.data.NAMES:
        known = preprocessing_of(name, None)
        assert Preprocessing.from_document(json.loads(json.dumps(known.as_document())), "x") == known


def test_a_run_goes_on_only_with_the_declarations_that_it_began_with(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the weights would belong to one encoding of the columns and the file to another."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    write(tmp_path / "mine.csv", [HEADER, *(row(draw) for _ in range(400))])
    (tmp_path / "mine.toml").write_text(TABLE.replace("high = 100", "high = 90"))
    shutil.copytree(trained / "classes", tmp_path / "run")
    with pytest.raises(DataError, match="began with other declarations"):
        saltflat("train", "--resume", "--out", "run", "--threads", "1")


def test_scores_by_hand() -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.6, 0.3, 0.1]])
    found = score(p, np.array([0, 1, 2, 2]))
    assert found.confusion == [[1, 0, 0], [0, 1, 0], [1, 0, 1]]
    assert found.log_loss == pytest.approx(-np.mean(np.log([0.7, 0.8, 0.4, 0.1])))
    assert found.ece == pytest.approx((0.3 + 0.2 + 0.6 + 0.6) / 4)
    assert found.per_class[2] == {"precision": 1.0, "recall": 0.5, "rows": 2}
    assert found.majority == 0.5
    assert not found.names_one_class
    assert score(p[[0, 3]], np.array([0, 2])).names_one_class


def test_parquet(trained: Path, tmp_path: Path) -> None:
    """The same predictions as of a CSV; a row with an empty cell that has no declared value is told."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet

    draw = random.Random(4)
    rows = [row(draw) for _ in range(300)]  # more than are read at once
    write(tmp_path / "new.csv", [HEADER, *rows])
    columns = {name: [each[k] for each in rows] for k, name in enumerate(HEADER)}
    columns["hours"] = [None if cell == "" else cell for cell in columns["hours"]]
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "new.parquet")
    loaded = sf.load_run(trained / "classes")
    wanted, found = (loaded.predictions(tmp_path / f"new.{end}") for end in ("csv", "parquet"))
    assert np.array_equal(wanted.outputs, found.outputs)
    assert wanted.scores == found.scores
    columns = {"age": [None, 30], "hours": [10, 20], "job": ["cook", "nurse"]}  # no target
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "new.parquet")
    broken = loaded.predictions(tmp_path / "new.parquet")
    assert broken.reasons == {"1": "row 1: column 'age' must hold a number"}
    assert broken.scores is None
