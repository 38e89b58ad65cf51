"""``saltflat predict``: a trained run's predictions of new rows, in a CSV file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saltflat.cli.machine import DataDir, Device, Threads, check_machine
from saltflat.cli.screen import screen
from saltflat.errors import SettingError

if TYPE_CHECKING:
    from saltflat.runs.predictions import Predictions

HEAD = b"row,prediction"
SHOWN = 10  # rows that could not be read, with the reason


def register(app: typer.Typer) -> None:
    """Add ``predict`` to ``app``."""
    app.command("predict")(predict)


def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, which `saltflat train --out` wrote.")
    ],
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS",
            help="New rows: a .csv or .parquet with the run's columns, an .npz with x, or pictures in a folder.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The CSV file that is written.")] = Path("predictions.csv"),
    data_dir: DataDir = None,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Predict new rows with a trained run: a class or number for each row, and each class's probability.

    The run's folder is all that is needed besides the rows: it keeps how rows were preprocessed, the feature map and
    the names of the classes. Rows need no target. Where they have one, scores are printed too: they are of your rows,
    and no epsilon covers a score on private rows. A row or picture that cannot be read gets an empty prediction, and
    the reason is printed.

    Examples:

        saltflat predict runs/shop new.csv --out predictions.csv

        saltflat predict runs/pictures holiday/ --out predictions.csv
    """
    from saltflat.runs.load import load_run

    check_machine(device, threads)
    _check_out(out, run, rows)
    console = screen(highlight=False, soft_wrap=True)
    found = load_run(run)
    if found.note:
        console.print(f"{run}: {found.note}", markup=False)
    found.model.to(device)
    predictions = found.predictions(rows, data_dir=data_dir)
    _write(out, predictions.as_csv())
    for line in summary(predictions, out):
        console.print(line, markup=False)


def _check_out(out: Path, run: Path, rows: Path) -> None:
    """Refuse to overwrite anything but older predictions, and to put predictions of the user's rows into the run."""
    if out.resolve().is_relative_to(run.resolve()):
        raise SettingError(
            f"--out {out} lies in the run's folder, which may be released; predictions are of your rows: keep them "
            "elsewhere"
        )
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise SettingError(f"--out {out} must be a file in a folder that exists")
    if out.exists():
        with out.open("rb") as file:
            if file.read(len(HEAD)) != HEAD:
                raise SettingError(f"--out {out} exists and holds no predictions; give another name")


def _write(out: Path, text: str) -> None:
    """Replace the file by a whole one, readable by its owner alone: predictions are as private as the rows."""
    unfinished = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        with open(unfinished, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


def summary(found: Predictions, out: Path) -> list[str]:
    """What is printed: where the file is, rows that could not be read, scores if there were targets."""
    from saltflat.runs.predictions import PRIVATE_NOTE

    lines = [
        f"no prediction for {'row ' if name.isdigit() else ''}{name}: {why}"
        for name, why in list(found.reasons.items())[:SHOWN]
    ]
    if len(found.reasons) > SHOWN:
        lines.append(f"and for {len(found.reasons) - SHOWN:,} more rows, which could not be read either")
    done = len(found.names) - len(found.reasons)
    lines.append(f"{done:,} of {len(found.names):,} rows predicted, written to {out}")
    scores = found.scores
    if scores is not None:
        auc = "" if scores.auc is None else f", AUC {scores.auc:.4f}"
        lines.append(
            f"on {scores.count:,} rows with a target: accuracy {scores.accuracy:.2%} (always naming the most common "
            f"class: {scores.majority:.2%}), log-loss {scores.log_loss:.4f}{auc}, calibration error {scores.ece:.4f}"
        )
    if found.error is not None:
        lines.append(f"on rows with a target: error {found.error:.4g} (root mean square)")
    if scores is not None or found.error is not None:
        lines.append(PRIVATE_NOTE)
    return lines
