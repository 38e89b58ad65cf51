"""Who a run is, wherever its folder is moved and however its path is spelled: a file in the folder says it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from saltflat.errors import DataError
from saltflat.privacy.record import durable
from saltflat.runs.layout import IDENTITY


def begin_identity(folder: Path) -> None:
    """Give the run that begins in ``folder`` an identity of its own, durably; one that is there stays.

    *Guarantee*: it is on disk before anything of the run can be charged, and is never written again.
    """
    with suppress(FileExistsError):  # of a start that was broken off, or of one right now: both may have it
        durable.create(folder / IDENTITY, os.urandom(16).hex().encode() + b"\n", mode=durable.RELEASED)


def identity_of(folder: Path) -> str | None:
    """The identity of the run in ``folder``; None for one of an older version, which is known by its path."""
    place = folder / IDENTITY
    try:
        data = place.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{place} cannot be read ({error.strerror}): give the right to read it") from error
    if not re.fullmatch(rb"[0-9a-f]{32}\n", data):
        raise DataError(
            f"{place} is damaged, and without it the ledger does not know which steps are this run's: bring it back; "
            "the ledger's lines of kind run have it too"
        )
    return data.decode().strip()
