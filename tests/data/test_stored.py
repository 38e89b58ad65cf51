"""Examples that stay on disk: the same as in memory, read when they are drawn, and no code of a file is ever run."""

from __future__ import annotations

import os
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import saltflat as sf
from saltflat import data
from saltflat.core.contribution import Private, chunks_of
from saltflat.data.blocks import blocks
from saltflat.data.own import Own, own_form, own_split
from saltflat.data.stored import StaysOnDisk
from saltflat.errors import DataError, SettingError

COUNT = 30


def images(count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(0)
    return source.integers(0, 256, (count, 5, 4), dtype=np.uint8), source.integers(0, 3, count)


def saved(folder: Path, shards: int = 1, **arrays: np.ndarray) -> Path:
    """Each array as NAME.npy, or in shards of unequal length."""
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        if shards == 1:
            np.save(folder / f"{name}.npy", array)
        for number, part in enumerate(np.array_split(array, shards) if shards > 1 else ()):
            np.save(folder / f"{name}-{number:03}.npy", part)
    return folder


def in_memory(x: np.ndarray, y: np.ndarray, **declared: Any) -> data.Examples:
    return data.Examples(torch.from_numpy(x)[:, None], torch.from_numpy(y), data.HALF)


class TestTheSame:
    @pytest.mark.parametrize("shards", [1, 4])
    @pytest.mark.parametrize("workers", [0, 3])
    def test_as_in_memory(self, tmp_path: Path, shards: int, workers: int) -> None:
        x, y = images()
        folder, star = saved(tmp_path / "a", shards, x=x, y=y), "" if shards == 1 else "-*"
        found = data.on_disk(
            str(folder / f"x{star}.npy"), str(folder / f"y{star}.npy"), classes=3, workers=workers
        )
        same = in_memory(x, y)
        assert (found.count, found.shape, found.scale) == (COUNT, (1, 5, 4), data.HALF)
        for asked in ([0], [COUNT - 1], [17, 3, 3, 29, 0, 8, 7]):
            for one, other in zip(found.take(np.array(asked)), same.take(np.array(asked)), strict=True):
                assert torch.equal(one, other)
        assert torch.equal(torch.cat([y for _, y in found.batches(7)]), same.targets)

    def test_idx_raw_and_numbers_of_other_widths(self, tmp_path: Path) -> None:
        x, y = images()
        head = bytes([0, 0, 8, 3]) + struct.pack(">3I", *x.shape)
        (tmp_path / "x-ubyte").write_bytes(head + x.tobytes())
        (tmp_path / "y-ubyte").write_bytes(
            bytes([0, 0, 8, 1]) + struct.pack(">I", COUNT) + y.astype("u1").tobytes()
        )
        (tmp_path / "x.raw").write_bytes(x.tobytes())
        (tmp_path / "y.raw").write_bytes(y.astype(">i2").tobytes())
        same = in_memory(x, y).take(np.arange(COUNT))
        for found in (
            data.on_disk(tmp_path / "x-ubyte", tmp_path / "y-ubyte", classes=3),
            data.on_disk("x-ubyte", "y-ubyte", tmp_path, classes=3),
            data.on_disk(
                tmp_path / "x.raw",
                tmp_path / "y.raw",
                classes=3,
                dtype="uint8",
                row=(5, 4),
                target_dtype=">i2",
            ),
        ):
            for one, other in zip(found.take(np.arange(COUNT)), same, strict=True):
                assert torch.equal(one, other)

    def test_floats_and_targets_in_a_range(self, tmp_path: Path) -> None:
        x = np.linspace(-1, 1, 3 * COUNT).reshape(COUNT, 3)
        folder = saved(tmp_path / "a", x=x.astype(">f8"), y=np.linspace(-50.0, 150.0, COUNT))
        found = own_split(Own(str(folder), span=(0.0, 100.0)))
        inputs, targets = found.train.take(np.array([0, COUNT - 1]))
        assert torch.equal(inputs, torch.from_numpy(x[[0, -1]].astype(np.float32)))
        assert targets.tolist() == [-1.0, 1.0]
        assert found.test.count == 0

    def test_training_on_disk_is_training_in_memory(self, tmp_path: Path) -> None:
        x, y = images()
        found = data.on_disk(*_files(saved(tmp_path / "a", 3, x=x, y=y)), classes=3)

        def weights(units: Any) -> torch.Tensor:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
            phase = sf.Phase(
                method=sf.methods.SAT(0.1),
                steps=4,
                noise_multiplier=1.0,
                clip_norm=1.0,
                optimizer=sf.optimizers.SGD(lr=0.1),
            )
            guards = sf.Safeguards(noise=sf.privacy.SeededNoise(1), sampling=np.random.default_rng(1))
            sf.train(
                sf.Plan(phases=(phase,), rate=0.5, size=COUNT),
                sf.per_example(model, sf.supervised(nn.CrossEntropyLoss(reduction="none"))),
                units,
                safeguards=guards,
                running=sf.Running(physical=6),
            )
            return model[1].weight.detach()

        assert torch.equal(weights(found), weights(in_memory(x, y)))


def _files(folder: Path) -> tuple[str, str]:
    return str(folder / "x-*.npy"), str(folder / "y-*.npy")


class TestWhatIsRead:
    def test_no_row_before_it_is_drawn(self, tmp_path: Path) -> None:
        """Files with holes in the place of 10^9 rows, 780 GB if they were there: only heads are looked at."""
        for name, shape in (("x", (10**9, 28, 28)), ("y", (10**9,))):
            with (tmp_path / f"{name}.npy").open("wb") as file:
                head = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, head)
                os.truncate(file.fileno(), file.tell() + int(np.prod(shape, dtype=object)))
        found = own_split(Own(str(tmp_path), classes=2)).train
        assert found.count == 10**9
        assert found.take(np.array([10**9 - 1, 0]))[0].shape == (2, 1, 28, 28)

    def test_how_many_there_are_is_not_said(self, tmp_path: Path) -> None:
        x, y = images(29)
        split = own_split(Own(str(saved(tmp_path / "a", x=x, y=y)), classes=3))
        assert "29" not in repr(split)
        with pytest.raises(DataError, match="no example") as told:
            split.train.take(np.array([29]))
        assert "29" not in str(told.value)

    def test_all_at_once_is_refused_in_words(self, tmp_path: Path) -> None:
        x, y = images()
        split = own_split(Own(str(saved(tmp_path / "a", x=x, y=y)), classes=3))
        for ask in (lambda: split.train.inputs, lambda: split.train.targets, split.train.whole):
            with pytest.raises(StaysOnDisk, match="stay on disk"):
                ask()
        with pytest.raises(DataError, match="stay on disk"):
            sf.features.featured(split, (sf.features.Scattering(),))


class TestDeclaredSize:
    """What a wrong size does: too small is refused, too large costs accuracy and never privacy."""

    def fitted(self, units: Any, size: int) -> Any:
        model = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
        criterion = nn.CrossEntropyLoss(reduction="none")
        return sf.fit(
            model, criterion, units, noise_multiplier=1.0, batch_size=5, size=size, epochs=1, quiet=True
        )

    def test_more_rows_than_declared(self, tmp_path: Path) -> None:
        x, y = images()
        units = data.on_disk(*_files(saved(tmp_path / "a", 3, x=x, y=y)), classes=3)
        with pytest.raises(SettingError, match="more than the 29 examples that were declared"):
            self.fitted(units, COUNT - 1)

    def test_fewer_rows_than_declared(self, tmp_path: Path) -> None:
        """Each joins with batch / size, which is what is charged, and the sum is divided by the expected number."""
        x, y = images()
        units = data.on_disk(*_files(saved(tmp_path / "a", 3, x=x, y=y)), classes=3)
        found = self.fitted(units, 100)
        assert found.plan.rate == 0.05
        assert found.plan.expected_units == 5
        assert "rate 0.05" in str(found.statement)


class Touch:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


def head_of(text: bytes, version: int = 1, length: int | None = None) -> bytes:
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + text


GOOD = b"{'descr': '|u1', 'fortran_order': False, 'shape': (30, 5, 4), }"
HOSTILE = {
    "a pickle": lambda mark: pickle.dumps(Touch(mark)),
    "objects": lambda mark: (
        head_of(b"{'descr': '|O', 'fortran_order': False, 'shape': (100,), }\n")
        + pickle.dumps(Touch(mark)).ljust(800, b".")
    ),
    "structures": lambda mark: (
        head_of(b"{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (30,), }\n") + bytes(30)
    ),
    "objects in structures": lambda mark: (
        head_of(b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }\n") + bytes(8)
    ),
    "texts": lambda mark: (
        head_of(b"{'descr': '<U5', 'fortran_order': False, 'shape': (30,), }\n") + bytes(600)
    ),
    "a head that calls": lambda mark: head_of(b"__import__('os').mkdir('%s')\n" % str(mark).encode()),
    "a head of 4 GB": lambda mark: head_of(GOOD, version=2, length=2**32 - 1),
    "a long head": lambda mark: head_of(GOOD + b" " * 60_000 + b"\n") + bytes(600),
    "a deep head": lambda mark: head_of(b"(" * 5000 + b")" * 5000),
    "a version of its own": lambda mark: head_of(GOOD, version=9) + bytes(600),
    "less than it says": lambda mark: head_of(GOOD + b"\n") + bytes(599),
    "more than it says": lambda mark: head_of(GOOD + b"\n") + bytes(601),
    "fewer rows than none": lambda mark: head_of(GOOD.replace(b"30", b"-3") + b"\n"),
    "more bytes than numbers hold": lambda mark: head_of(GOOD.replace(b"30", b"9" * 40) + b"\n"),
    "no rows at all": lambda mark: head_of(GOOD.replace(b"(30, 5, 4)", b"()") + b"\n") + bytes(1),
    "rows of nothing": lambda mark: head_of(GOOD.replace(b"5, 4", b"0, 4") + b"\n"),
    "columns first": lambda mark: head_of(GOOD.replace(b"False", b"True") + b"\n") + bytes(600),
    "nothing": lambda mark: b"",
    "a short magic": lambda mark: b"\x93NUM",
    "an idx that ends": lambda mark: bytes([0, 0, 8, 3, 0, 0]),
    "an idx of no dimension": lambda mark: bytes([0, 0, 8, 0]),
    "an idx that promises": lambda mark: bytes([0, 0, 8, 3]) + b"\xff" * 12,
}


class TestHostileFiles:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_an_error_and_no_code(self, tmp_path: Path, name: str) -> None:
        mark, file = tmp_path / "mark", tmp_path / "x.npy"
        file.write_bytes(HOSTILE[name](mark))
        np.save(tmp_path / "y.npy", np.zeros(30, np.int64))
        for read in (
            lambda: blocks([file]),
            lambda: own_form(Own(str(tmp_path), classes=2)),
            lambda: own_split(Own(str(tmp_path), classes=2)),
        ):
            with pytest.raises(DataError):
                read()
        assert not mark.exists()

    def test_the_same_file_unspoilt_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "x.npy").write_bytes(head_of(GOOD + b"\n") + bytes(600))
        assert blocks([tmp_path / "x.npy"]).count == 30

    def test_links_that_lead_out_and_what_is_no_file(self, tmp_path: Path) -> None:
        x, y = images()
        folder = saved(tmp_path / "a", 2, x=x, y=y)
        np.save(tmp_path / "secret.npy", x)
        link = folder / "x-002.npy"
        link.symlink_to(tmp_path / "secret.npy")
        for spoil in (lambda: None, link.mkdir, lambda: os.mkfifo(link)):
            spoil()
            with pytest.raises(DataError, match="no file of this folder, or leads out"):
                data.on_disk(*_files(folder), classes=3)
            link.rmdir() if link.is_dir() else link.unlink()

    def test_shards_that_do_not_go_together(self, tmp_path: Path) -> None:
        x, y = images()
        folder = saved(tmp_path / "a", 3, x=x, y=y)
        np.save(folder / "y-001.npy", y[:9])
        with pytest.raises(DataError, match="in pairs"):
            data.on_disk(*_files(folder), classes=3)
        np.save(folder / "y-001.npy", y[10:20])
        np.save(folder / "x-001.npy", x[:10, :4])
        with pytest.raises(DataError, match="another form"):
            data.on_disk(*_files(folder), classes=3)
        with pytest.raises(DataError, match="no file z-"):
            data.on_disk(str(folder / "z-*.npy"), str(folder / "y-*.npy"), classes=3)

    def test_labels_that_are_no_classes(self, tmp_path: Path) -> None:
        x, y = images()
        for wrong in (y.astype(float), np.stack([y, y], 1)):
            with pytest.raises(DataError, match=r"y\.npy"):
                own_split(Own(str(saved(tmp_path / "a", x=x, y=wrong)), classes=3))
        with pytest.raises(SettingError, match="say what y in"):
            Own(str(tmp_path / "a"))
        with pytest.raises(SettingError, match="raw file"):
            data.on_disk(tmp_path / "a" / "x.npy", tmp_path / "a" / "y.npy", classes=3, dtype="uint8")
        with pytest.raises(SettingError, match="dtype"):
            data.on_disk(tmp_path / "a" / "x.npy", tmp_path / "a" / "y.npy", classes=3, dtype="numbers")


class TestRowsThatFail:
    """A row that cannot be what was declared adds nothing to a step, and the others are what they were."""

    def total(self, units: Any, drawn: list[int]) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
        contribution = sf.per_example(model, sf.supervised(nn.CrossEntropyLoss(reduction="none")))
        params = {name: leaf.detach() for name, leaf in model.named_parameters()}
        chunks = chunks_of(Private.of(contribution, units), np.array(drawn), 100)
        found = [chunk.weighted_sum(torch.ones(len(chunk.norms()))) for chunk in chunks([params], [1.0])]
        return sum(each["1.weight"] for each in found)

    @pytest.mark.parametrize("spoil", ["label", "cut", "grown"])
    def test_it_adds_nothing(self, tmp_path: Path, spoil: str) -> None:
        x, y = images()
        folder = saved(tmp_path / "a", 3, x=x, y=y)
        sound = self.total(data.on_disk(*_files(folder), classes=3), [0, 5, 25, 29])
        units = data.on_disk(*_files(folder), classes=3)
        file = folder / "y-001.npy"
        if spoil == "label":  # of row 12, in a file of the same length
            np.save(file, np.where(np.arange(10, 20) == 12, 3, y[10:20]))
        elif spoil == "cut":  # while the run goes on
            os.truncate(file, file.stat().st_size - 8)
        else:
            file.write_bytes(file.read_bytes() + bytes(8))
        assert torch.equal(self.total(units, [0, 5, 12, 25, 29]), sound)
        with pytest.raises(DataError):  # before the loss sees it: a graphics card would stop at such a label
            units.take(np.array([12]))


class TestMappedArrays:
    """Arrays of numpy that are mapped, handed to `fit` as they are."""

    def test_rows_are_read_when_they_are_drawn(self, tmp_path: Path) -> None:
        from saltflat.front.given import MappedUnits, units_of

        x, y = images()
        folder = saved(tmp_path / "a", x=x.astype(np.float64), y=y.astype(np.int16))
        mapped = tuple(np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
        units, same = units_of(mapped), units_of((x.astype(np.float64), y.astype(np.int16)))
        assert isinstance(units, MappedUnits)
        assert units.count == same.count == COUNT
        for one, other in zip(units.take(np.array([3, 29])), same.take(np.array([3, 29])), strict=True):
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
        as_named = units_of({"x": mapped[0], "y": torch.from_numpy(y)})
        assert torch.equal(as_named.take(np.array([3]))["y"], torch.from_numpy(y[3:4]))

    @pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts pages as Linux does")
    def test_pages_do_not_stay_but_for_a_private_copy(self, tmp_path: Path) -> None:
        """What somebody wrote to a private copy is on no disk: giving its pages back would undo it."""
        from saltflat.front.given import units_of

        np.save(tmp_path / "x.npy", np.zeros((4000, 6000), np.uint8))
        of_files = lambda: int(Path("/proc/self/status").read_text().split("RssFile:")[1].split()[0]) / 1024
        before = of_files()
        units = units_of(np.load(tmp_path / "x.npy", mmap_mode="r"))
        for rows in np.split(np.random.default_rng(1).permutation(4000), 20):
            units.take(rows)
        assert of_files() - before < 8  # of 24 MB
        for mode, kept in (("c", 7), ("r+", 5)):
            array = np.load(tmp_path / "x.npy", mmap_mode=mode)
            array[3] = kept
            units = units_of(array)
            assert [int(units.take(np.array([3]))[0, 0]) for _ in range(2)] == [kept, kept]

    def test_what_does_not_fit_is_refused(self, tmp_path: Path) -> None:
        from saltflat.front.given import units_of

        folder = saved(tmp_path / "a", x=np.zeros((4, 2)), y=np.zeros(5), z=np.array(["a", "b"]))
        mapped = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xyz"}
        with pytest.raises(DataError, match="one length"):
            units_of((mapped["x"], mapped["y"]))
        with pytest.raises(DataError, match="no array of numbers"):
            units_of(mapped["z"])
        with pytest.raises(SettingError, match="leave workers out"):
            units_of(mapped["x"], workers=2)


def test_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code in docs/large_data.md runs as printed."""
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "large_data.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    exec(compile(code, "large_data.md", "exec"), {})
    assert capsys.readouterr().out == "True (1, 8, 8)\n"


@pytest.mark.slow
def test_a_run_from_the_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from saltflat.cli import app

    x, y = images()
    folder = saved(saved(tmp_path / "a", 3, x=x, y=y), x_test=x[:9], y_test=y[:9])
    given = ["train", "--data", str(folder), "--classes", "3", "--epsilon", "8", "--epochs", "1"]
    found = CliRunner().invoke(
        app, [*given, "--size", "40", "--workers", "2", "--out", str(tmp_path / "run")]
    )
    assert found.exit_code == 0, found.output
    assert "test accuracy" in found.output
    refused = CliRunner().invoke(app, [*given, "--size", "29", "--out", str(tmp_path / "other")])
    assert "more than the 29 examples" in str(refused.exception or refused.output)
