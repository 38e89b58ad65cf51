"""One trial of a sweep, as a worker runs it: read the recipe, train by `execute`, charge through the clerk."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from saltflat.core.train import Progress
from saltflat.errors import DataError, Interrupted, LedgerError, SaltflatError
from saltflat.privacy.record.statement import Declared
from saltflat.recipes import documents
from saltflat.recipes.build import plan_of, size_of, split_of
from saltflat.recipes.recipe import Recipe, from_document, read
from saltflat.runs.begin import Busy
from saltflat.runs.clerk import opened_by
from saltflat.runs.execute import Outcome, execute
from saltflat.runs.jobs import Ask
from saltflat.runs.layout import Folder, Reading
from saltflat.runs.sweep import Score, has_ended

PATIENCE = 60.0  # seconds; a worker whose clerk was killed ends with the step that it is at


def work(ask: Ask) -> None:
    """Trial after trial, until there is none or it is time to leave; whatever is wrong with one stays its own."""
    while (task := ask("next")) is not None:
        try:
            _one(task, ask)
        except Interrupted as error:
            ask("stopped", error.signal)
            return
        except (
            LedgerError,
            DataError,
            OSError,
            Busy,
        ) as error:  # of the machine: another try may mend it
            ask("failed", _first_line(error), False)
        except Exception as error:
            ask("failed", _first_line(error), True)
        else:
            ask("ended")


def _first_line(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said if isinstance(error, SaltflatError) and said else f"{type(error).__name__}: {said}"[:500]


def _one(task: Mapping[str, Any], ask: Ask) -> None:
    recipe = from_document(documents.parse(task["recipe"], task["folder"]))
    folder = Folder(Path(task["folder"]))
    if has_ended(folder.path):
        return
    if task["threads"]:
        torch.set_num_threads(task["threads"])
    until = time.monotonic() + PATIENCE
    while True:
        try:
            _trained(recipe, folder, task, ask)
            return
        except Busy:  # by a worker of a sweep that was killed, for the step that it was at
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _trained(recipe: Recipe, folder: Folder, task: Mapping[str, Any], ask: Ask) -> Outcome:
    plan = plan_of(recipe, size_of(recipe))
    begun = folder.recipe.exists()
    if begun and read(folder.recipe) != recipe:
        raise DataError(f"{folder.path} holds a run of another recipe; give the sweep another --out")
    split = split_of(recipe, None if task["data_dir"] is None else Path(task["data_dir"]))
    return execute(
        recipe,
        plan,
        split,
        folder,
        resume=begun,
        ledger=Path(task["ledger"]),
        device=task["device"],
        watch=_watched(ask),
        told=lambda reading: ask("reading", _said(reading)),
        opened=opened_by(ask),
        declare=lambda declared: _declared(declared, task),
    )


def _watched(ask: Ask) -> Callable[[Progress], None]:
    """After a step: tell, and leave if that is the answer, in the good order in which a signal is obeyed."""

    def watch(progress: Progress) -> None:
        if ask("step", progress.step, progress.steps):
            if threading.current_thread() is not threading.main_thread():  # where no signal can be noted
                raise Interrupted(f"stopped after step {progress.step}", signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    return watch


def _said(reading: Reading) -> str:
    found = Score.of(reading)
    if found is None:
        return ""
    return (
        f"test {found.value:.2%}"
        if found.measure == "accuracy"
        else f"test {found.measure} {found.value:.4g}"
    )


def _declared(declared: Declared, task: Mapping[str, Any]) -> Declared:
    """What a trial's statement says beside what every run's does."""
    public = (*declared.public, *task["public"])
    return replace(declared, selection=task["selection"] or declared.selection, public=public)
