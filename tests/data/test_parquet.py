"""Parquet and Arrow files: what the table declares, row by row; nothing that a file says of itself is believed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saltflat import data
from saltflat.data import Array, Category, Number, Table
from saltflat.data.own import Own, own_form, own_split
from saltflat.errors import DataError, SettingError

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
packed = pytest.importorskip("pyarrow.parquet", reason="pyarrow has no Parquet")

COUNT = 30
TABLE = Table(
    columns=(Array("pixels", (2, 3), 0, 255),),
    target=Category("label", ("0", "1", "2")),
)
FILE = """
[target]
name = "label"
values = [0, 1, 2]
[columns]
pixels = {shape = [2, 3], low = 0, high = 255}
age = {low = 0, high = 100, missing = 50}
job = {values = ["clerk", "nurse"]}
"""


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Copies go to a folder of the test's, so that what is left can be seen."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    monkeypatch.delenv("SALTFLAT_CACHE", raising=False)


def columns(count: int = COUNT) -> dict[str, Any]:
    source = np.random.default_rng(0)
    return {
        "pixels": source.integers(0, 256, (count, 6)).tolist(),
        "label": source.integers(0, 3, count).tolist(),
        "age": [None if row == 4 else row for row in range(count)],
        "job": ["nurse" if row % 2 else "cook" for row in range(count)],
    }


def written(path: Path, given: dict[str, Any], rows: slice = slice(None), **types: Any) -> Path:
    table = pyarrow.table(
        {name: pyarrow.array(cells[rows], types.get(name)) for name, cells in given.items()}
    )
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        packed.write_table(table, path, row_group_size=7)
    else:
        with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    return path


def shards(folder: Path, ending: str = ".parquet", **types: Any) -> Path:
    for number, rows in enumerate((slice(0, 11), slice(11, 20), slice(20, COUNT))):
        written(folder / f"train-{number}{ending}", columns(), rows, **types)
    return folder


LISTS = {
    "lists": pyarrow.list_(pyarrow.int64()),
    "lists of one length": pyarrow.list_(pyarrow.uint8(), 6),
    "large lists": pyarrow.large_list(pyarrow.float32()),
}


class TestTheSame:
    @pytest.mark.parametrize("kind", LISTS)
    @pytest.mark.parametrize("ending", [".parquet", ".arrow"])
    def test_rows_are_what_was_written(self, tmp_path: Path, ending: str, kind: str) -> None:
        found = data.parquet(shards(tmp_path / "a", ending, pixels=LISTS[kind]), table=TABLE, workers=2)
        given = columns()
        assert (found.count, found.shape) == (COUNT, (2, 3))
        for asked in ([0], [29, 3, 11, 20, 3, 19]):
            inputs, targets = found.take(np.array(asked))
            pixels = np.array(given["pixels"])[asked].reshape(-1, 2, 3)
            assert torch.allclose(inputs, torch.tensor(pixels / 127.5 - 1, dtype=torch.float32))
            assert targets.tolist() == [given["label"][row] for row in asked]
        assert not any((tmp_path / "scratch").iterdir()), "the unpacked copy has no name"

    def test_scalars_as_a_csv_has_them(self, tmp_path: Path) -> None:
        (tmp_path / "t.toml").write_text(FILE)
        folder = shards(tmp_path / "a")
        written(folder / "test-0.parquet", columns(5))
        own = Own(str(folder), table=str(tmp_path / "t.toml"))
        assert (own_form(own).shape, own_form(own).classes) == ((9,), 3)
        split = own_split(own)
        assert (split.train.count, split.test.count) == (COUNT, 5)
        inputs, _ = split.train.take(np.array([4, 5]))
        assert inputs[:, 6:].tolist() == [
            [0.0, 0.0, 0.0],
            pytest.approx([-0.9, 0.0, 1.0]),
        ]  # missing, undeclared
        other = Own(str(folder / "train-*.parquet"), table=own.table, test=str(folder / "test-0.parquet"))
        assert own_split(other).test.count == 5

    def test_a_copy_is_kept_where_the_user_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SALTFLAT_CACHE", str(tmp_path / "kept"))
        folder = shards(tmp_path / "a")
        same = data.parquet(folder, table=TABLE).take(np.arange(COUNT))
        (kept,) = (tmp_path / "kept").glob("*/*")
        assert kept.stat().st_mode & 0o077 == 0, "as private as the data"
        written_at = kept.stat().st_mtime_ns
        for one, other in zip(data.parquet(folder, table=TABLE).take(np.arange(COUNT)), same, strict=True):
            assert torch.equal(one, other)
        assert kept.stat().st_mtime_ns == written_at, "unpacked once"
        whole = kept.read_bytes()
        kept.write_bytes(whole[: len(whole) // 2])
        data.parquet(folder, table=TABLE)
        assert len(kept.read_bytes()) == len(whole), "half a file has no tag, and is written anew"
        os.utime(folder / "train-0.parquet", ns=(1, 1))
        data.parquet(folder, table=TABLE)
        assert len(list((tmp_path / "kept").glob("*/*"))) == 2, "another file, another copy"

    def test_nothing_is_printed(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        found = data.parquet(shards(tmp_path / "a"), table=TABLE)
        assert capfd.readouterr() == ("", "")
        assert str(COUNT) not in repr(found)


class TestMemory:
    @pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts pages as Linux does")
    @pytest.mark.parametrize("ending", [".parquet", ".arrow"])
    def test_pages_of_a_file_do_not_stay(self, tmp_path: Path, ending: str) -> None:
        """Neither when it is opened nor when all of it was drawn: 24 MB of images, less than 8 of pages."""
        file = written(tmp_path / "a" / f"one{ending}", large())
        before = of_files()
        found = data.parquet(file, table=LARGE)
        opened = of_files()
        for rows in np.split(np.random.default_rng(1).permutation(MANY), 20):
            assert found.take(rows)[0].shape == (200, LONG)
        assert opened - before < 8
        assert of_files() - before < 8

    def test_rows_are_unpacked_few_at_a_time(self, tmp_path: Path) -> None:
        """However large a row group is: of 24 MB Arrow held less than 12 at any time."""
        (tmp_path / "a").mkdir()
        packed.write_table(pyarrow.table(large()), tmp_path / "a" / "one.parquet")
        usual = pyarrow.default_memory_pool()
        pool = pyarrow.proxy_memory_pool(usual)
        pyarrow.set_memory_pool(pool)
        try:
            assert data.parquet(tmp_path / "a", table=LARGE).count == MANY
        finally:
            pyarrow.set_memory_pool(usual)
        assert 0 < pool.max_memory() < 12e6


MANY, LONG = 4000, 6000
LARGE = Table(columns=(Array("pixels", (LONG,), 0, 255),), target=TABLE.target)


def large() -> dict[str, Any]:
    pixels = np.random.default_rng(0).integers(0, 256, MANY * LONG, dtype=np.uint8)
    return {
        "pixels": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(pixels), LONG),
        "label": [0] * MANY,
    }


def of_files() -> float:
    """MB of pages of files that this process has."""
    said = Path("/proc/self/status").read_text().split("RssFile:")[1]
    return int(said.split()[0]) / 1024


class TestRowsThatFail:
    @pytest.mark.parametrize("ending", [".parquet", ".arrow"])
    def test_lists_that_would_make_up_for_each_other(self, tmp_path: Path, ending: str) -> None:
        """One list is too short by two and the next too long by two: together they have the right length."""
        given = columns()
        given["pixels"][8], given["pixels"][9] = [1] * 4, [2] * 8
        given["pixels"][12] = None
        given["pixels"][13] = [1, 2, 3, None, 5, 6]
        given["label"][14], given["label"][15] = 3, None
        file = written(tmp_path / "a" / f"one{ending}", given, pixels=LISTS["lists"])
        found = data.parquet(file, table=TABLE)
        for wrong in ([8, 9], [8], [9], [12], [13], [14], [15], [0, 12]):
            with pytest.raises(DataError) as told:
                found.take(np.array(wrong))
            assert not set(str(told.value)) & set("0123456789") - set("012"), "classes alone may be named"
        assert len(found.take(np.array([7, 10, 11]))[0]) == 3

    def test_a_nan(self, tmp_path: Path) -> None:
        given = columns()
        given["pixels"][2] = [float("nan")] * 6
        file = written(tmp_path / "a" / "one.parquet", given, pixels=LISTS["large lists"])
        with pytest.raises(DataError, match="must hold numbers"):
            data.parquet(file, table=TABLE).take(np.array([1, 2]))


class TestHostileFiles:
    @pytest.mark.parametrize("ending", [".parquet", ".arrow"])
    @pytest.mark.parametrize("cut", [0, 5, 100, -3, -40])
    def test_a_truncated_shard(self, tmp_path: Path, ending: str, cut: int) -> None:
        folder = shards(tmp_path / "a", ending)
        file = folder / f"train-1{ending}"
        whole = file.read_bytes()
        file.write_bytes(whole[:cut] if cut >= 0 else whole[: len(whole) + cut - 200])
        with pytest.raises(DataError, match="truncated"):
            data.parquet(folder, table=TABLE)
        assert not any((tmp_path / "scratch").iterdir())

    def test_offsets_that_lead_out_of_the_file(self, tmp_path: Path) -> None:
        """Between a first and a last offset that are in order, which is all that Arrow itself looks at."""
        wrong = pyarrow.Array.from_buffers(
            pyarrow.list_(pyarrow.uint8()),
            2,
            [None, pyarrow.py_buffer(np.array([0, 2**30, 12], np.int32))],
            children=[pyarrow.array(np.zeros(12, np.uint8))],
        )
        table = pyarrow.table({"pixels": wrong, "label": [0, 1]})
        file = tmp_path / "one.arrow"
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(DataError, match="truncated or damaged"):
            data.parquet(file, table=TABLE)

    def test_features_that_open_other_files(self, tmp_path: Path) -> None:
        """The file's own word is that a column holds the paths of pictures, which a reader of features would open."""
        secret = tmp_path / "secret"
        secret.write_text("x")
        given = {**columns(), "job": [str(secret)] * COUNT}
        table = pyarrow.table(given).replace_schema_metadata(
            {
                "huggingface": '{"info": {"features": {"pixels": {"_type": "Image"}, "job": {"_type": "Image"}}}}'
            }
        )
        packed.write_table(table, tmp_path / "one.parquet")
        declared = Table(columns=(TABLE.columns[0], Category("job", (str(secret), "b"))), target=TABLE.target)
        inputs, _ = data.parquet(tmp_path / "one.parquet", table=declared).take(np.array([0]))
        assert inputs[0, -2:].tolist() == [1.0, 0.0], "a text like any other"

    def test_columns_that_cannot_be_what_was_declared(self, tmp_path: Path) -> None:
        for name, wrong, said in (
            ("pixels", ["text"] * COUNT, "lists of numbers"),
            ("pixels", [1] * COUNT, "lists of numbers"),
            ("pixels", [["a"]] * COUNT, "lists of numbers"),
            ("label", [0.0] * COUNT, "texts or whole numbers"),
            ("label", [{"bytes": b"x", "path": "y"}] * COUNT, "texts or whole numbers"),
        ):
            file = written(tmp_path / "a" / "one.parquet", {**columns(), name: wrong})
            with pytest.raises(DataError, match=f"{name}.*declared to hold {said}"):
                data.parquet(file, table=TABLE)
        number = Table(columns=(Number("job", 0, 1),), target=TABLE.target)
        with pytest.raises(DataError, match="declared to hold numbers"):
            data.parquet(written(tmp_path / "a" / "one.parquet", columns()), table=number)
        missing = Table(columns=(Number("height", 0, 1),), target=TABLE.target)
        with pytest.raises(DataError, match="no column 'height'"):
            data.parquet(tmp_path / "a" / "one.parquet", table=missing)

    def test_shards_of_other_types_and_kinds(self, tmp_path: Path) -> None:
        folder = shards(tmp_path / "a")
        written(folder / "train-3.parquet", columns(), label=pyarrow.int8())
        with pytest.raises(DataError, match="other types"):
            data.parquet(folder, table=TABLE)
        files = [folder / "train-0.parquet", written(tmp_path / "one.arrow", columns())]
        with pytest.raises(SettingError, match="not both"):
            data.parquet(files, table=TABLE)

    def test_names_that_are_addresses_patterns_or_lead_out(self, tmp_path: Path) -> None:
        good = written(tmp_path / "a" / "one.parquet", columns())
        for name in ("zip::one.parquet", "one[1].parquet", "hf:one.parquet"):
            (tmp_path / "a" / name).write_bytes(good.read_bytes())
            with pytest.raises(DataError, match="rename it"):
                data.parquet([tmp_path / "a" / name], table=TABLE)
        for address in ("https://example.org/one.parquet", "hf://datasets/a/one.parquet"):
            with pytest.raises(DataError, match="does not exist"):
                data.parquet(address, table=TABLE)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "one.parquet").symlink_to(good)
        with pytest.raises(DataError, match="leads out"):
            data.parquet(tmp_path / "b", table=TABLE)

    def test_a_csv_has_no_lists(self, tmp_path: Path) -> None:
        (tmp_path / "t.toml").write_text(FILE)
        (tmp_path / "a.csv").write_text("pixels,label,age,job\n1,0,1,nurse\n")
        with pytest.raises(SettingError, match="take Parquet"):
            own_split(Own(str(tmp_path / "a.csv"), table=str(tmp_path / "t.toml")))
        for wrong in (
            "shape = 3, low = 0, high = 1",
            "shape = [0], low = 0, high = 1",
            "shape = [2], low = 1, high = 0",
        ):
            (tmp_path / "t.toml").write_text(FILE.replace("shape = [2, 3], low = 0, high = 255", wrong))
            with pytest.raises(SettingError, match=r"pixels"):
                own_form(Own(str(tmp_path / "a.csv"), table=str(tmp_path / "t.toml")))


@pytest.mark.slow
def test_a_run_from_the_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from saltflat.cli import app

    (tmp_path / "t.toml").write_text(FILE)
    folder = shards(tmp_path / "a")
    written(folder / "test-0.parquet", columns(5))
    given = ["train", "--data", str(folder), "--table", str(tmp_path / "t.toml")]
    given += ["--size", "40", "--epsilon", "8", "--epochs", "1", "--workers", "1"]
    found = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "run")])
    assert found.exit_code == 0, found.output
    assert "test accuracy" in found.output
    assert os.path.exists(tmp_path / "run" / "model.safetensors")
    refused = CliRunner().invoke(app, [*given, "--size", "29", "--out", str(tmp_path / "other")])
    assert "more than the 29 examples" in str(refused.exception or refused.output)
