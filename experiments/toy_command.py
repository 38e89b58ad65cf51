"""What the commands of the toy problems share: flags, a progress bar, and errors in one line."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from saltflat.errors import SaltflatError, SettingError


def parser(description: str) -> argparse.ArgumentParser:
    """With the flags that all of them have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = Path(__file__).with_name("figures")
    made.add_argument("--quick", action="store_true", help="few and short runs, to see that it works")
    made.add_argument("--json", action="store_true", help="print JSON in the place of tables")
    made.add_argument("--out", type=Path, default=folder, help="a folder (default: %(default)s)")
    made.add_argument("--no-figures", action="store_true", help="tables only: needs no matplotlib")
    return made


def positive(text: str) -> int:
    """A whole number of at least 1, or argparse's refusal."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def bar(console: Console) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(TextColumn("{task.description}"), *columns, console=console)


def check_figures() -> None:
    """Say what is missing before anything runs, not after."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingError("figures need matplotlib: pip install 'saltflat[report]', or give --no-figures")


def keep(out: Path, name: str, result: dict[str, Any]) -> None:
    """Write a result; the folder is made if there is none."""
    out.mkdir(parents=True, exist_ok=True)
    (out / name).write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run(work: Callable[[Console], str]) -> int:
    """Do ``work`` and print what it returns; 0 if it ended, 130 if it was interrupted, 1 if something is wrong."""
    console = Console(stderr=True)
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    try:
        print(work(console))
    except KeyboardInterrupt:
        console.print("interrupted: what was not finished is not written", highlight=False)
        return 130
    except (SaltflatError, OSError) as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    return 0
