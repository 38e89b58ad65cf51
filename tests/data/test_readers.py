"""Readers on tiny files in the official formats, whole and damaged: one clear line for each."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from formats import idx_bytes, pixels, python_two, write_idx

from saltflat.data import HALF, MEDMNIST, MNIST, NAMES, UNIT, Category, Number, Table, csv_table, load, npz
from saltflat.data.cifar import read_pickle
from saltflat.data.pictures import packed
from saltflat.errors import DataError, SettingError

LABELS = np.arange(5) % 3


def refused(action: Callable[[], object], *facts: str) -> None:
    """It raises a `DataError` of one line that tells all these facts."""
    with pytest.raises(DataError) as raised:
        action()
    message = str(raised.value)
    assert "\n" not in message
    for fact in facts:
        assert fact in message, message


def write_mnist(folder: Path, *, packed: bool = True) -> tuple[np.ndarray, np.ndarray]:
    train, test = pixels(5, 28, 28), pixels(3, 28, 28, seed=1)
    write_idx(folder, "train", train, LABELS, packed=packed)
    write_idx(folder, "t10k", test, LABELS[:3], packed=packed)
    return train, test


class TestFinding:
    def test_the_variable_and_the_argument(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_mnist(tmp_path / "set" / "mnist")
        monkeypatch.setenv("SALTFLAT_DATA", str(tmp_path / "set"))
        assert load("mnist").train.count == 5
        monkeypatch.setenv("SALTFLAT_DATA", str(tmp_path))
        assert load("mnist", tmp_path / "set").train.count == 5
        refused(lambda: load("mnist"), "mnist is not under", "train-images", "MNIST/raw", str(tmp_path))

    def test_no_folder_is_known(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SALTFLAT_DATA", raising=False)
        refused(lambda: load("mnist"), "SALTFLAT_DATA", "data_dir")
        refused(lambda: load("mnist", tmp_path / "no"), "data_dir", "not a folder")
        monkeypatch.setenv("SALTFLAT_DATA", str(tmp_path / "no"))
        refused(lambda: load("mnist"), "SALTFLAT_DATA is", "not a folder")
        assert load("digits").classes == 10

    @pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "MNIST"])
    def test_the_folder_itself_serves_if_it_has_the_name(self, tmp_path: Path, folder: str) -> None:
        write_mnist(tmp_path / folder, packed=False)
        assert load("mnist", tmp_path).train.count == load("mnist", tmp_path / folder).train.count == 5

    def test_fashion_is_never_taken_for_mnist(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "fashion-mnist")
        assert load("fashion-mnist", tmp_path / "fashion-mnist").train.count == 5
        refused(lambda: load("mnist", tmp_path / "fashion-mnist"), "mnist is not under")

    def test_unknown_names_and_scales(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="no data set 'minst'; known are digits, mnist"):
            load("minst")
        for name in ("digits", "adult"):
            with pytest.raises(SettingError, match="leave scale out"):
                load(name, tmp_path, scale=UNIT)
        assert len(set(NAMES)) == len(NAMES)


class TestIdx:
    @pytest.mark.parametrize("packed", [True, False])
    def test_pixels_and_labels(self, tmp_path: Path, packed: bool) -> None:
        train, test = write_mnist(tmp_path / "mnist", packed=packed)
        split = load("mnist", tmp_path, scale=UNIT)
        assert split.shape == (1, 28, 28)
        assert split.classes == 10
        assert split.train.inputs.dtype == torch.uint8
        assert np.array_equal(split.train.inputs[:, 0].numpy(), train)
        assert np.array_equal(split.test.inputs[:, 0].numpy(), test)
        images, labels = split.train.take(np.array([4, 1]))
        assert np.allclose(images[:, 0].numpy(), train[[4, 1]] / 255)
        assert labels.tolist() == [1, 1]
        assert labels.dtype == torch.long

    def test_the_published_constants_are_the_default(self, tmp_path: Path) -> None:
        train, _ = write_mnist(tmp_path / "mnist")
        images, _ = load("mnist", tmp_path).train.whole()
        assert load("mnist", tmp_path).train.scale == MNIST
        assert np.allclose(images[:, 0].numpy(), (train / 255 - 0.1307) / 0.3081, atol=1e-5)

    def test_dotted_names(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "mnist", packed=False)
        for path in list((tmp_path / "mnist").iterdir()):
            path.rename(path.with_name(path.name.replace("-idx", ".idx")))
        assert load("mnist", tmp_path).test.count == 3

    def test_emnist_letters_are_upright_and_start_at_0(self, tmp_path: Path) -> None:
        images, labels = pixels(4, 28, 28), np.array([1, 26, 2, 3])
        for part in ("train", "test"):
            write_idx(tmp_path / "gzip", f"emnist-letters-{part}", images, labels)
        split = load("emnist-letters", tmp_path)
        assert split.classes == 26
        assert split.train.targets.tolist() == [0, 25, 1, 2]
        assert np.array_equal(split.train.inputs[:, 0].numpy(), images.transpose(0, 2, 1))
        refused(lambda: load("emnist-balanced", tmp_path), "emnist-balanced is not under")

    @pytest.mark.parametrize(
        ("name", "change", "facts"),
        [
            ("train-images-idx3-ubyte", lambda d: d[:-1], ("fewer bytes than its header announces",)),
            ("train-images-idx3-ubyte", lambda d: d + b"x", ("more bytes than its header announces",)),
            ("train-images-idx3-ubyte", lambda d: d[:10], ("no idx file", "00000803")),
            ("train-images-idx3-ubyte", lambda d: b"", ("no idx file", "nothing")),
            ("train-images-idx3-ubyte", lambda d: b"<html>" + d, ("no idx file", "3c68746d")),
            ("train-images-idx3-ubyte", lambda d: idx_bytes(pixels(5, 8, 8)), ("28 x 28", "(8, 8)")),
            ("train-labels-idx1-ubyte", lambda d: idx_bytes(LABELS[:4]), ("each image needs one label",)),
            ("t10k-labels-idx1-ubyte", lambda d: idx_bytes(np.full(3, 10)), ("test labels", "0 to 9")),
            ("t10k-labels-idx1-ubyte", lambda d: None, ("has no t10k-labels-idx1-ubyte",)),
        ],
    )
    @pytest.mark.parametrize("packed", [True, False])
    def test_damage(self, tmp_path: Path, name: str, change: Callable, facts: tuple, packed: bool) -> None:
        write_mnist(tmp_path / "mnist", packed=packed)
        path = tmp_path / "mnist" / (name + ".gz" * packed)
        data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
        changed = change(data)
        path.unlink()
        if changed is not None:
            path.write_bytes(gzip.compress(changed) if packed else changed)
        refused(lambda: load("mnist", tmp_path), str(tmp_path / "mnist"), *facts)

    def test_damaged_gzip(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "mnist")
        path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        refused(lambda: load("mnist", tmp_path), str(path), "truncated")
        path.write_bytes(b"<html>")
        refused(lambda: load("mnist", tmp_path), str(path), "cannot be read")
        path.write_bytes(whole[:100] + b"\xff" * 50 + whole[150:])
        refused(lambda: load("mnist", tmp_path), str(path))


def write_cifar(base: Path, kind: str) -> tuple[np.ndarray, list[int]]:
    """A tiny CIFAR of one kind; the training images in order, and their labels."""
    images, labels = pixels(10, 3072), [i % 10 for i in range(10)]
    folder = base / kind
    folder.mkdir(parents=True)
    record = lambda rows, *heads: np.concatenate([np.array(heads, np.uint8).T, rows], 1).tobytes()
    ten = [(f"data_batch_{i + 1}", images[2 * i : 2 * i + 2], labels[2 * i : 2 * i + 2]) for i in range(5)]
    hundred = [("train", images, labels), ("test", images[:2], labels[:2])]
    if kind == "cifar-10-batches-py":
        for name, rows, own in [*ten, ("test_batch", images[:2], labels[:2])]:
            table = {b"batch_label": b"a batch", b"labels": own, b"data": rows, b"filenames": [b"a.png"] * 2}
            (folder / name).write_bytes(python_two(table))
    elif kind == "cifar-10-batches-bin":
        for name, rows, own in [*ten, ("test_batch", images[:2], labels[:2])]:
            (folder / f"{name}.bin").write_bytes(record(rows, own))
    elif kind == "cifar-100-python":
        for name, rows, own in hundred:
            table = {b"data": rows, b"fine_labels": own, b"coarse_labels": [0] * len(own)}
            (folder / name).write_bytes(python_two(table))
    else:
        for name, rows, own in hundred:
            (folder / f"{name}.bin").write_bytes(record(rows, [19] * len(own), own))
    return images, labels


class TestCifar:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("cifar10", "cifar-10-batches-py"),
            ("cifar10", "cifar-10-batches-bin"),
            ("cifar100", "cifar-100-python"),
            ("cifar100", "cifar-100-binary"),
        ],
    )
    def test_every_official_archive(self, tmp_path: Path, name: str, kind: str) -> None:
        images, labels = write_cifar(tmp_path, kind)
        for data_dir in (tmp_path, tmp_path / kind):
            split = load(name, data_dir)
            assert np.array_equal(split.train.inputs.numpy(), images.reshape(10, 3, 32, 32))
            assert split.train.targets.tolist() == labels
            assert split.test.count == 2
            assert split.classes == {"cifar10": 10, "cifar100": 100}[name]

    def test_numpy_reads_the_pickle_of_these_tests_too(self) -> None:
        rows = pixels(2, 3072)
        table = pickle.loads(python_two({b"data": rows, b"labels": [3, 300]}), encoding="bytes")
        assert np.array_equal(table[b"data"], rows)
        assert table[b"labels"] == [3, 300]

    def test_missing_and_truncated(self, tmp_path: Path) -> None:
        write_cifar(tmp_path, "cifar-10-batches-py")
        third = tmp_path / "cifar-10-batches-py" / "data_batch_3"
        third.write_bytes(third.read_bytes()[:-500])
        refused(lambda: load("cifar10", tmp_path), str(third), "truncated")
        third.unlink()
        refused(lambda: load("cifar10", tmp_path), str(third), "does not exist")
        refused(lambda: load("cifar100", tmp_path), "cifar100 is not under", "cifar-100-python")

    @pytest.mark.parametrize("cut", [1, 3073 + 1])
    def test_truncated_records(self, tmp_path: Path, cut: int) -> None:
        write_cifar(tmp_path, "cifar-10-batches-bin")
        path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
        path.write_bytes(path.read_bytes()[:-cut])
        refused(lambda: load("cifar10", tmp_path), str(path), "records of 3073 bytes")

    @pytest.mark.parametrize(
        "table",
        [
            {b"labels": [1, 2]},
            {b"data": pixels(2, 3072)},
            {b"data": pixels(2, 3071), b"labels": [1, 2]},
            {b"data": [1, 2], b"labels": [1, 2]},
            {b"data": pixels(2, 3072), b"labels": [1]},
            {b"data": pixels(2, 3072), b"labels": [b"a", b"b"]},
            [1, 2],
            7,
        ],
    )
    def test_wrong_pickles(self, tmp_path: Path, table: object) -> None:
        write_cifar(tmp_path, "cifar-10-batches-py")
        path = tmp_path / "cifar-10-batches-py" / "test_batch"
        path.write_bytes(python_two(table))
        refused(lambda: load("cifar10", tmp_path), str(path))

    @pytest.mark.parametrize(
        "hostile",
        [
            b"cposix\nsystem\n(S'touch {mark}'\ntR.",
            b'c__builtin__\neval\n(S\'open("{mark}", "w")\'\ntR.',
            b'cbuiltins\nexec\n(S\'open("{mark}", "w")\'\ntR.',
            b"cnumpy\nload\n(S'{mark}'\ntR.",
            b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
            b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
            b"\x80\x02U\x01aQ.",
        ],
    )
    def test_pickles_that_would_run_something(self, tmp_path: Path, hostile: bytes) -> None:
        mark = tmp_path / "ran"
        path = tmp_path / "data_batch_1"
        path.write_bytes(hostile.replace(b"{mark}", str(mark).encode()))
        refused(lambda: read_pickle(path), str(path))
        assert not mark.exists()

    def test_a_forged_array_of_addresses_stays_bytes(self, tmp_path: Path) -> None:
        """numpy would take the bytes of an object array, its flags forged away, for addresses."""
        write_cifar(tmp_path, "cifar-10-batches-py")
        path = tmp_path / "cifar-10-batches-py" / "test_batch"
        path.write_bytes(path.read_bytes().replace(b"U\x02u1", b"U\x02O8"))
        refused(lambda: load("cifar10", tmp_path), str(path), "3072 bytes")


class TestSvhn:
    def write(self, base: Path, count: int = 3, **change: np.ndarray) -> np.ndarray:
        from scipy.io import savemat

        images = pixels(count, 32, 32, 3)
        (base / "svhn").mkdir(exist_ok=True)
        table = {"X": images.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [9]], np.uint8), **change}
        for part in ("train", "test"):
            savemat(base / "svhn" / f"{part}_32x32.mat", table, do_compression=True)
        return images

    def test_pixels_and_labels(self, tmp_path: Path) -> None:
        images = self.write(tmp_path)
        split = load("svhn", tmp_path)
        assert np.array_equal(split.train.inputs.numpy(), images.transpose(0, 3, 1, 2))
        assert split.train.targets.tolist() == [0, 1, 9]
        assert split.shape == (3, 32, 32)

    def test_damage(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        path = tmp_path / "svhn" / "train_32x32.mat"
        whole = path.read_bytes()
        for data in (whole[:-200], whole[:200], whole[:10], b"", b"<html>" * 50):
            path.write_bytes(data)
            refused(lambda: load("svhn", tmp_path), str(path))
        self.write(tmp_path, y=np.array([[1], [2]], np.uint8))
        refused(lambda: load("svhn", tmp_path), str(path), "32 x 32 x 3 x n")
        (tmp_path / "svhn" / "test_32x32.mat").unlink()
        self.write(tmp_path)
        (tmp_path / "svhn" / "test_32x32.mat").unlink()
        refused(lambda: load("svhn", tmp_path), "test_32x32.mat does not exist")


class TestNpz:
    def test_images_and_plain_numbers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        colour, labels = pixels(5, 6, 7, 3), LABELS[:, None].astype(np.uint8)
        arrays = dict(zip(MEDMNIST, (colour, labels, colour[:2], labels[:2]), strict=True))
        np.savez(tmp_path / "med.npz", **arrays)
        monkeypatch.setenv("SALTFLAT_DATA", str(tmp_path))
        split = npz("med.npz", classes=3, names=MEDMNIST, scale=HALF)
        assert split.shape == (3, 6, 7)
        assert np.array_equal(split.train.inputs.numpy(), colour.transpose(0, 3, 1, 2))
        plain = np.random.default_rng(0).normal(size=(5, 4))
        np.savez(tmp_path / "plain.npz", x_train=plain, y_train=LABELS, x_test=plain, y_test=LABELS)
        split = npz("plain.npz", tmp_path, classes=3)
        assert split.train.scale is None
        assert np.allclose(split.train.take(np.array([2]))[0], plain[[2]])
        grey = pixels(5, 28, 28)
        np.savez(tmp_path / "mnist.npz", x_train=grey, y_train=LABELS, x_test=grey, y_test=LABELS)
        assert npz(tmp_path / "mnist.npz", classes=3).shape == (1, 28, 28)
        refused(lambda: npz(tmp_path / "mnist.npz", classes=2), "labels must lie in 0 to 1")

    def test_damage(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npz"
        refused(lambda: npz(path, classes=3), str(path), "does not exist")
        objects = np.array([{}] * 5, dtype=object)
        good = {"x_train": pixels(5, 4, 4), "y_train": LABELS, "x_test": pixels(5, 4, 4), "y_test": LABELS}
        for change, fact in [
            ({"x_train": objects}, "holds objects"),
            ({"y_train": LABELS / 2}, "one whole number per example"),
            ({"y_train": np.array(3)}, "one whole number per example"),
            ({"x_train": np.array(["a"] * 5)}, "expected numbers"),
            ({"x_train": pixels(5, 4)}, "n x h x w"),
            ({"x_train": pixels(4, 4, 4)}, "each example needs one label"),
            ({"x_test": pixels(5, 4, 5)}, "one shape"),
        ]:
            np.savez(path, **{**good, **change})
            refused(lambda: npz(path, classes=3), fact)
        np.savez(path, x_train=LABELS)
        refused(lambda: npz(path, classes=3), str(path), "no array y_train, x_test, y_test")
        np.savez(path, **good)
        path.write_bytes(path.read_bytes()[:-40])
        refused(lambda: npz(path, classes=3), str(path), "truncated")


class TestPackedPictures:
    def test_damage_is_seen_before_anything_is_decoded(self, tmp_path: Path) -> None:
        path = tmp_path / "cifar10_lossless_train.npz"
        data = np.zeros(10, np.uint8)
        for offsets in ([0, 5, 9], [1, 5, 10], [0, 12, 10], [0, 10]):
            np.savez(path, data=data, offsets=np.array(offsets), labels=np.array([1, 2], np.uint8))
            refused(lambda: packed(path), str(path), "offsets")


TABLE = Table(
    columns=(Number("age", 0, 100), Category("colour", ("red", "green"))),
    target=Category("ill", ("no", "yes")),
)


class TestCsv:
    def read(self, tmp_path: Path, text: str, table: Table = TABLE):
        (tmp_path / "a.csv").write_text(text)
        return csv_table("a.csv", "a.csv", tmp_path, table=table)

    def test_declared_columns_only(self, tmp_path: Path) -> None:
        text = 'ill,unused,age,colour\nyes,7,50, green\nno,"a, b",130,blue\n\nno,,-1,red\n'
        split = self.read(tmp_path, text)
        assert split.classes == 2
        assert split.train.inputs.tolist() == [[0.5, 0, 1], [1, 0, 0], [0, 1, 0]]
        assert split.train.targets.tolist() == [1, 0, 0]

    def test_another_row_never_changes_a_row(self, tmp_path: Path) -> None:
        one = self.read(tmp_path, "ill,age,colour\nyes,50,green\n").train.inputs
        two = self.read(tmp_path, "ill,age,colour\nyes,50,green\nno,99999,violet\n").train.inputs
        assert torch.equal(one[0], two[0])

    def test_damage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        head = "ill,age,colour\n"
        refused(
            lambda: self.read(tmp_path, head + "yes,50,green\nyes,5"), "a.csv, a record (set SALTFLAT_NAME"
        )
        monkeypatch.setenv("SALTFLAT_NAME_RECORDS", "1")  # on a screen of one's own
        for text, facts in [
            ("", ("no column age, colour, ill",)),
            ("ill,age\n", ("no column colour",)),
            (head, ("holds no row",)),
            (head + "yes,50,green\nyes,5", ("line 3", "expected 3 values, got 2")),
            (head + "yes,secret,green\n", ("line 2", "'age' must hold a number")),
            (head + "yes,nan,green\n", ("line 2", "'age' must hold a number")),
            (head + "secret,1,green\n", ("line 2", "must be one of no, yes")),
        ]:
            refused(lambda text=text: self.read(tmp_path, text), "a.csv", *facts)
        with pytest.raises(DataError) as raised:
            self.read(tmp_path, head + "yes,secret,green\n")
        assert "secret" not in str(raised.value)
        (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
        refused(lambda: csv_table("b.csv", "b.csv", tmp_path, table=TABLE), "UTF-8")
        refused(lambda: csv_table("c.csv", "b.csv", tmp_path, table=TABLE), "c.csv does not exist")

    def test_declarations_are_checked(self) -> None:
        for wrong in (
            lambda: Number("a", 1, 1),
            lambda: Number("a", float("nan"), 1),
            lambda: Category("a", ()),
            lambda: Category("a", ("b", "b")),
            lambda: Table((), Category("a", ("b",))),
        ):
            with pytest.raises(SettingError):
                wrong()

    def test_adult(self, tmp_path: Path) -> None:
        row = (
            "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
            "2174, 0, 40"
        )
        (tmp_path / "adult").mkdir()
        (tmp_path / "adult" / "adult.data").write_text(f"{row}, United-States, <=50K\n\n")
        (tmp_path / "adult" / "adult.test").write_text(f"|1x3 Cross validator\n{row}, ?, >50K.\n")
        split = load("adult", tmp_path)
        assert split.shape == (104,)
        assert (split.train.targets.tolist(), split.test.targets.tolist()) == ([0], [1])
        assert int((split.train.inputs[0, 5:] == 1).sum()) == 8
        assert int((split.test.inputs[0, 5:] == 1).sum()) == 7
        assert split.train.inputs[0, 0] == pytest.approx(0.39)
