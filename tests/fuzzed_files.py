"""Odd recipes, flags and files (D8): what comes from outside is read, or refused in one typed line that says where."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from fuzzed import FRACTION, INNER, NOT_NEGATIVE, POSITIVE, Kind, number, whole
from typer.testing import CliRunner

from saltflat import cli
from saltflat.cli.settings import changes
from saltflat.data import Category, Number, Table, npz, parquet
from saltflat.data.blocks import blocks
from saltflat.data.cifar import binary_batch, python_batch
from saltflat.data.idx import read_idx
from saltflat.errors import SaltflatError
from saltflat.privacy.record import checkpoint
from saltflat.privacy.record.history import read
from saltflat.privacy.record.ledger import Ledger
from saltflat.recipes.build import draft_of
from saltflat.recipes.documents import Document, flat, parse
from saltflat.recipes.recipe import from_document
from saltflat.recipes.toml import Keys, dotted, inline

sys.path.insert(0, str(Path(__file__).parent / "data"))
from formats import idx_bytes, pixels, python_two

# Recipes

RECIPE = """version = 2
data = "digits"
model = "digits_cnn"
size = 1437
epsilon = 3.0
delta = 1e-5
batch_size = 500
budget_split = "joint_ratio"
ema = {EMA = {decay = 0.99}}
spare = 4
physical = 128
seed = 3
[[phase]]
epochs = 3
portion = 0.9
clip_norm = {PerLayer = {bounds = 0.1}}
optimizer = {AdamBC = {lr = {Cosine = {start = 0.1, end = 0.01, steps = 9}}, betas = [0.9, 0.99], floor = 1e-8}}
method = {DPLIS = {method = {SAT = {radius = 0.1, momentum = 0.5}}, lr = 0.1, copies = 4, antithetic = true}}
[[phase]]
steps = 5
portion = 0.1
clip_norm = 0.1
noise_schedule = {Linear = {start = 1.0, end = 0.5, steps = 5}}
optimizer = {SGD = {lr = 0.1, momentum = 0.9, weight_decay = 0.01}}
method = {Quantile = {method = "DPSGD", quantile = 0.5, speed = 0.2, share = 0.1}}
"""
ODD: tuple[Any, ...] = (
    *(
        math.nan,
        math.inf,
        -math.inf,
        -1.0,
        0.0,
        0.5,
        1.0,
        1.5,
        1e39,
        1e308,
        1e-320,
        -1,
        0,
        1,
        7,
        2**63 - 1,
        -(2**63),
    ),
    *(True, False, "", "1", "nan", "DPSGD", "SAT", "ü", "../../x", "a" * 300, "os.system"),
    *(
        [],
        [1],
        [0.5, 0.5],
        [[[]]],
        {},
        {"SAT": {}},
        {"DPSGD": {"x": 1}},
        {"name": "mine"},
        {"a": {"b": {"c": 1}}},
    ),
    *({"SGD": {"lr": "fast"}}, {"Linear": {"start": 1, "end": 0, "steps": 0}}, [{"steps": 3}], {"": ""}),
)
ANY = number(-math.inf, math.inf)
KNOWN: dict[str, Kind] = {  # the last of an entry's keys: what its value must be
    **dict.fromkeys(("epsilon", "batch_size", "epochs", "floor", "bounds"), POSITIVE),
    **dict.fromkeys(("decay", "momentum", "share"), FRACTION),
    **dict.fromkeys(("portion", "delta"), INNER),
    **dict.fromkeys(("radius", "weight_decay"), NOT_NEGATIVE),
    **dict.fromkeys(("size", "physical", "steps"), whole(1, math.inf)),
    **dict.fromkeys(("start", "end"), ANY),
    "spare": whole(0, math.inf),
    "seed": whole(-(2**63), 2**64 - 1),
    "copies": whole(1, 1024),
    "quantile": number(0, 1),
    "speed": number(0, 100),
    "antithetic": Kind((), lambda value: isinstance(value, bool)),
}


@cache
def whole_recipe() -> Document:
    return parse(RECIPE, "odd.toml")


@cache
def entries() -> list[Keys]:
    return [keys for keys, _ in flat(whole_recipe().table)]


def odd_recipe(random: Random) -> str:
    """One or two entries of a recipe are something else, by a flag or in the text."""
    changed = [(keys, random.choice(ODD)) for keys in random.sample(entries(), random.choice([1, 1, 2]))]
    if random.random() < 0.1:
        changed.append(((*random.choice(entries())[:-1], random.choice(["odd", "", "a b"])), 1))
    wrong = [keys for keys, value in changed if keys[-1] in KNOWN and not KNOWN[keys[-1]].takes(value)]
    shown = f"{[(dotted(keys), value) for keys, value in changed]}"

    def read_it() -> None:
        sets = [f"{dotted(keys)}={inline(value)}" for keys, value in changed]
        found = from_document(whole_recipe().but(changes(whole_recipe(), {}, sets)))
        draft_of(found, 1437)

    return ended(
        read_it, wrong=[keys[-1] for keys in wrong], touched=[k[-1] for k, _ in changed], shown=shown
    )


def odd_text(random: Random) -> str:
    """Letters of a recipe's text are lost, doubled or exchanged."""
    text = damaged(RECIPE.encode(), random).decode("utf-8", "replace")
    return ended(lambda: draft_of(from_document(parse(text, "odd.toml")), 1437), shown=repr(text)[:300])


# Flags

WORDS = (
    "0.1",
    "1",
    "2",
    "0",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e-5",
    "1e400",
    "1e-400",
    "",
    "x",
    "1:2",
    "5:0.5",
    "0x10",
    "1_0",
    "٣",
)
FLAGS: dict[str, Kind] = {
    "--epsilon": number(1e-5, math.inf),
    "--delta": number(1e-30, 1, below=True),
    "--rate": number(0, 1, above=True),
    "--noise": number(1e-6, 1e12),
    "--steps": whole(1, 10**9),
}
COMMANDS = {
    "epsilon": ("--rate", "--delta", "--noise", "--steps"),
    "noise": ("--epsilon", "--delta", "--rate", "--steps"),
    "plan": ("--epsilon", "--delta", "--rate", "--noise"),
}
SOUND = {"--epsilon": "2", "--delta": "1e-5", "--rate": "1", "--noise": "5", "--steps": "3"}


def odd_flags(random: Random) -> str:
    """``saltflat budget`` with odd numbers."""
    command = random.choice(list(COMMANDS))
    flags = {flag: SOUND[flag] for flag in COMMANDS[command]}
    odd = random.sample(list(flags), random.choice([1, 1, 2]))
    flags |= {flag: random.choice(WORDS) for flag in odd}
    wrong = [flag for flag in odd if not _is_number(flag, flags[flag])]
    words = ["budget", command, *(f"{flag}={text}" for flag, text in flags.items())]
    return called(words, wrong=wrong, touched=odd)


def _is_number(flag: str, text: str) -> bool:
    try:
        value = int(text) if flag == "--steps" else float(text)
    except ValueError:
        return False
    return FLAGS[flag].takes(value)


def odd_dry_run(random: Random) -> str:
    """``saltflat train --dry-run`` with odd settings."""
    keys = random.choice([k for k in entries() if k[0] != "phase" and k[0] not in ("ema", "version")])
    value = random.choice(ODD)
    wrong = [keys[-1]] if keys[-1] in KNOWN and not KNOWN[keys[-1]].takes(value) else []
    setting = f"{dotted(keys)}={inline(value)}"
    words = ["train", "digits", "--dry-run", "--epochs", "1", "--batch-size", "1437", "--set", setting]
    return called(words, wrong=wrong, touched=[keys[-1]])


def called(words: list[str], *, wrong: list[str], touched: list[str]) -> str:
    def run() -> None:
        found = CliRunner().invoke(cli.app, words)
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        if found.exit_code:
            raise AssertionError(f"exit code {found.exit_code} without an error")

    names = [each.lstrip("-") for each in wrong]
    return ended(run, wrong=names, touched=[each.lstrip("-") for each in touched], shown=" ".join(words))


# Files


def damaged(data: bytes, random: Random) -> bytes:
    """Bytes changed, cut, doubled or put in."""
    found = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 8])):
        place = random.randrange(len(found) + 1) if found else 0
        kind = random.choice(["flip", "cut", "insert", "double", "drop"])
        if kind == "flip" and place < len(found):
            found[place] ^= 1 << random.randrange(8)
        elif kind == "cut":
            del found[place:]
        elif kind == "insert":
            found[place:place] = random.randbytes(random.choice([1, 4, 100]))
        elif kind == "double":
            found[place:place] = found[max(0, place - 40) : place]
        else:
            del found[place : place + random.choice([1, 8])]
    return bytes(found)


def write_ledger(folder: Path) -> float:
    """A small ledger, and its epsilon."""
    with Ledger.open(folder / "a.ledger", dataset="digits") as ledger:
        for name in ("one", "two"):
            with ledger.run(name, block=2) as run:
                run.charge(1.0, 20.0, steps=3)
                run.step(1.0, 10.0)
        return ledger.epsilon(1e-5)


@cache
def ledger_bytes() -> tuple[dict[str, bytes], float]:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        spent = write_ledger(Path(name))
        return {file.name: file.read_bytes() for file in Path(name).iterdir()}, spent


def odd_ledger(random: Random, folder: Path) -> str:
    files, spent = ledger_bytes()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    hit = random.choice(list(files))
    (folder / hit).write_bytes(damaged(files[hit], random))

    def read_it() -> None:
        assert read(folder / "a.ledger").epsilon(1e-5) >= spent, "a damaged ledger says less than was spent"

    return ended(read_it, shown=f"{hit}: {(folder / hit).read_bytes()[:200]!r}")


@cache
def checkpoint_bytes() -> dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        checkpoint.save(name, {"params": {"w": torch.ones(3)}}, {"step": 1})
        return {file.name: file.read_bytes() for file in Path(name).iterdir() if file.is_file()}


def odd_checkpoint(random: Random, folder: Path) -> str:
    files = checkpoint_bytes()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    hit = random.choice(list(files))
    (folder / hit).write_bytes(damaged(files[hit], random))

    def read_it() -> None:
        found = checkpoint.load(folder)
        assert found is None or torch.equal(found.trees["params"]["w"], torch.ones(3)), (
            "other weights were read"
        )

    return ended(read_it, shown=f"{hit} damaged")


def _npz() -> bytes:
    file = io.BytesIO()
    arrays = {
        "x_train": pixels(4, 3, 3),
        "y_train": np.arange(4) % 2,
        "x_test": pixels(2, 3, 3),
        "y_test": np.arange(2),
    }
    np.savez(file, **arrays)
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, pixels(4, 3, 3))
    return file.getvalue()


def _row(path: Path) -> np.ndarray:
    """A row of a file on disk, as a step would read it."""
    return blocks([path]).read(np.array([0]))


def _parquet() -> dict[str, tuple[bytes, Callable[[Path], Any]]]:
    """Where pyarrow is installed."""
    try:
        import pyarrow
        import pyarrow.parquet as packed
    except ImportError:
        return {}
    table = pyarrow.table({"age": [39, 17], "sex": ["M", "F"], "label": ["yes", "no"]})
    files: dict[str, io.BytesIO] = {"a.parquet": io.BytesIO(), "a.arrow": io.BytesIO()}
    packed.write_table(table, files["a.parquet"])
    with pyarrow.ipc.new_stream(files["a.arrow"], table.schema) as writer:
        writer.write_table(table)
    read = lambda path: parquet(path, table=TABLE).take(np.array([0, 1]))
    return {name: (file.getvalue(), read) for name, file in files.items()}


TABLE = Table((Number("age", 0, 100), Category("sex", ("F", "M"))), Category("label", ("no", "yes")))
READERS: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "a.idx": (idx_bytes(pixels(4, 3, 3)), lambda path: read_idx(path, 3)),
    "a.npz": (_npz(), lambda path: npz(path, classes=2)),
    "a.csv": (b"age,sex,label\n39,M,yes\n17,F,no\n", TABLE.read),
    "a.bin": (
        np.concatenate([pixels(2, 1) % 10, pixels(2, 3072)], 1).tobytes(),
        lambda path: binary_batch(path, 1),
    ),
    "a.pickle": (
        python_two({b"data": pixels(2, 3072), b"labels": [1, 2]}),
        lambda path: python_batch(path, "labels"),
    ),
    "a.npy": (_npy(), _row),
    "a-ubyte": (idx_bytes(pixels(4, 3, 3)), _row),
    **_parquet(),
}


def odd_data(random: Random, folder: Path) -> str:
    name = random.choice(list(READERS))
    data, reader = READERS[name]
    (folder / name).write_bytes(damaged(data, random))
    return ended(lambda: reader(folder / name), shown=f"{name}: {(folder / name).read_bytes()[:120]!r}")


# How it ended


def ended(
    function: Callable[[], Any],
    *,
    wrong: list[str] | None = None,
    touched: list[str] | None = None,
    shown: str = "",
    plain: bool = False,
) -> str:
    """What is wrong with how a case ended; nothing if all is as it should be."""
    try:
        function()
    except SaltflatError as error:
        said = str(error).replace("_", " ") if plain else str(error)
        if "\n" in said:
            return f"{shown}: more than one line: {said!r}"
        if wrong and not any(name in said for name in touched or wrong):
            return f"{shown}: it does not name the field: {said!r}"
        return ""
    except Exception as error:
        return f"{shown}: a {type(error).__name__} ({error})"
    return f"{shown}: {', '.join(wrong)} was taken in silence" if wrong else ""
