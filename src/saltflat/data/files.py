"""Where data files are, and how to read them so that a wrong one is told in one line."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from saltflat.errors import DataError, SettingError

VARIABLE = "SALTFLAT_DATA"
MOST = "SALTFLAT_MOST_UNPACKED"  # bytes that one packed file may unpack to

NAMED = "SALTFLAT_NAME_RECORDS"  # set: messages name the record that is wrong, on a screen of one's own

_ALWAYS = 2**26  # bytes that any packed file may unpack to
_TIMES = 100  # its own size, if that is more

Labelled = tuple[Tensor, Tensor]  # inputs and targets
Parts = tuple[Labelled, Labelled]  # for training and for testing


@dataclass(frozen=True)
class Layout:
    """One way in which a data set lies on disk: ``expects`` is a file (a glob) in one of ``folders``."""

    folders: tuple[str, ...]
    expects: str
    read: Callable[[Path], Parts]


def root(data_dir: str | Path | None = None) -> Path:
    """The folder that holds the data sets: ``data_dir``, else what SALTFLAT_DATA says."""
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if not given:
        raise DataError(
            f"no data folder is known; set {VARIABLE}, or pass data_dir, to the folder that holds the data sets"
        )
    path = Path(given).expanduser()
    if not path.is_dir():
        source = VARIABLE if data_dir is None else "data_dir"
        raise DataError(f"{source} is {str(path)!r}, which is not a folder")
    return path


def resolve(path: str | Path, data_dir: str | Path | None = None) -> Path:
    """A file or folder of the user's: as given if it is there, else under the data folder."""
    wanted = Path(path).expanduser()
    if wanted.exists():
        return wanted
    under = (root(data_dir) / wanted) if data_dir is not None or os.environ.get(VARIABLE) else wanted
    if not under.exists():
        raise DataError(f"{under} does not exist; give a full path, or one under {VARIABLE} or data_dir")
    return under


def places(base: Path, folders: Sequence[str]) -> list[Path]:
    """Each folder under ``base``, and ``base`` itself if it is one of them.

    Only if it is one of them: MNIST and Fashion-MNIST use the same file names, and must not be mixed up.
    """
    own = base.resolve().parts
    tails = [Path(folder).parts for folder in folders]
    return [base / folder for folder in folders] + [base for tail in tails if own[-len(tail) :] == tail]


def find(name: str, base: Path, layouts: Sequence[Layout]) -> tuple[Layout, Path]:
    """The first layout of a data set that is there, and its folder."""
    for layout in layouts:
        for place in places(base, layout.folders):
            if any(place.glob(layout.expects)):
                return layout, place
    expected = "; or ".join(f"{layout.expects} in {' or '.join(layout.folders)}" for layout in layouts)
    raise DataError(f"{name} is not under {base}: expected {expected}")


def one_of(folder: Path, names: Sequence[str]) -> Path:
    """The first of these files that is there, plain or gzipped."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise DataError(f"{folder} has no {names[0]}, plain or .gz")


def one_record(record: str) -> str:
    """A record in a message: unnamed, as its name or place may tell of a person, unless the user asked for it.

    >>> one_record("line 7")
    'a record (set SALTFLAT_NAME_RECORDS=1 to have it named, on a screen of your own)'
    """
    if os.environ.get(NAMED):
        return record
    return f"a record (set {NAMED}=1 to have it named, on a screen of your own)"


def most_unpacked(packed: int) -> int:
    """How many bytes ``packed`` bytes may unpack to: 64 MiB, or 100 times as many, or what SALTFLAT_MOST_UNPACKED says.

    Packed numbers, texts and pictures are rarely a tenth of what they hold; a file that holds much more of one byte
    would fill the memory.
    """
    given = os.environ.get(MOST)
    if not given:
        return max(_ALWAYS, _TIMES * packed)
    try:
        most = int(float(given))
        if most < 1:
            raise ValueError
    except (ValueError, OverflowError):
        raise SettingError(f"{MOST} is a number of bytes, such as 2e9; got {given[:40]!r}") from None
    return most


def check_unpacked(what: object, unpacked: int, packed: int) -> None:
    """Refuse to unpack more than `most_unpacked`; ``what`` is named in the message."""
    most = most_unpacked(packed)
    if unpacked > most:
        raise DataError(
            f"{what} unpacks to more than {most} bytes, out of proportion to its own size; if it is meant to be so "
            f"large, set the variable {MOST} to the bytes that you allow"
        )


def content(path: Path) -> bytes:
    """A whole file, unpacked if its name ends in .gz, to at most `most_unpacked` bytes."""
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        packed = path.stat().st_size
        with gzip.open(path) as file:
            data = file.read(most_unpacked(packed) + 1)
        check_unpacked(path, len(data), packed)
        return data
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except EOFError:
        raise DataError(f"{path} is truncated: the gzip stream ends early; fetch it again") from None
    except (OSError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
