"""What is packed unpacks to no more than its size allows, unless the user says how much."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from saltflat.data.arrays import read_arrays
from saltflat.data.files import content, most_unpacked
from saltflat.data.pictures import decode
from saltflat.errors import DataError, SettingError

MIB = 2**20
SAYS = r"unpacks to more than \d+ bytes.*SALTFLAT_MOST_UNPACKED"


def bomb(path: Path, mebibytes: int) -> Path:
    """A gzip of zeros: a thousandth of what it unpacks to."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(mebibytes):
            file.write(bytes(MIB))
    return path


def test_a_gzip_of_zeros_is_not_unpacked_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bomb(tmp_path / "a.csv.gz", 80)
    assert path.stat().st_size < MIB
    with pytest.raises(DataError, match=SAYS):
        content(path)
    monkeypatch.setenv("SALTFLAT_MOST_UNPACKED", "1e8")
    assert len(content(path)) == 80 * MIB


def test_the_limit_is_64_mib_or_100_times_or_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [most_unpacked(size) for size in (10, MIB)] == [64 * MIB, 100 * MIB]
    monkeypatch.setenv("SALTFLAT_MOST_UNPACKED", "1000")
    assert most_unpacked(MIB) == 1000
    for wrong in ("much", "0", "-1", "inf", "nan"):
        monkeypatch.setenv("SALTFLAT_MOST_UNPACKED", wrong)
        with pytest.raises(SettingError, match="number of bytes"):
            most_unpacked(1)


def test_a_small_limit_holds_for_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALTFLAT_MOST_UNPACKED", "1000")
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(10_000), y=np.zeros(10))
    assert read_arrays(tmp_path / "a.npz", ["y"])["y"].shape == (10,)
    with pytest.raises(DataError, match=f"the array x {SAYS}"):
        read_arrays(tmp_path / "a.npz", ["x", "y"])
    image_module = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image_module.new("L", (100, 100)).save(file, "png")
    with pytest.raises(DataError, match=f"a packed picture {SAYS}"):
        decode(file.getvalue())


def test_a_head_that_announces_more_than_there_is_allocates_nothing(tmp_path: Path) -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", head.getvalue())
    with pytest.raises(DataError, match="the array x is truncated"):
        read_arrays(tmp_path / "a.npz", ["x"])


def test_a_picture_of_one_colour_is_refused_by_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    image_module = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image_module.new("1", (6000, 6000)).save(file, "png")
    assert len(file.getvalue()) < 100_000
    with pytest.raises(DataError, match=SAYS):
        decode(file.getvalue())
    monkeypatch.setattr(
        image_module, "MAX_IMAGE_PIXELS", 10**7
    )  # from twice as many on Pillow does not open it
    with pytest.raises(DataError, match="more pixels than Pillow decodes"):
        decode(file.getvalue())


def test_parquet_of_one_value_for_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    from saltflat import data

    monkeypatch.delenv("SALTFLAT_CACHE", raising=False)
    path = tmp_path / "a.parquet"
    rows = pa.table({"x": pa.array(np.zeros(100_000)), "y": pa.array(np.zeros(100_000, np.int64))})
    pyarrow.parquet.write_table(rows, path)
    table = data.Table(columns=(data.Number("x", 0, 1),), target=data.Category("y", ("0", "1")))
    assert path.stat().st_size < 10_000
    assert data.parquet(path, table=table).count == 100_000
    monkeypatch.setenv("SALTFLAT_MOST_UNPACKED", "1e6")
    with pytest.raises(DataError, match=SAYS):
        data.parquet(path, table=table)
