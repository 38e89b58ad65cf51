"""A run's folder, back in Python: its model, its recipe and plan, what it promises."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import nn

from saltflat.core.plan import Plan
from saltflat.core.train import put
from saltflat.errors import DataError
from saltflat.privacy.record.statement import Statement, from_json
from saltflat.recipes import Recipe, network_of, plan_of
from saltflat.recipes.build import size_of
from saltflat.runs.layout import Folder
from saltflat.runs.weights import subject


@dataclass(frozen=True)
class Loaded:
    """What `load_run` returns. ``statement`` is None, and ``note`` says so, for a run that has not ended."""

    model: nn.Module
    recipe: Recipe
    statement: Statement | None
    note: str = ""

    @cached_property
    def plan(self) -> Plan:
        """What ran, with its noise; worked out when it is first asked for."""
        return plan_of(self.recipe, size_of(self.recipe))


def load_run(folder: str | Path) -> Loaded:
    """The run in ``folder``, or at one of its checkpoints: the network with its weights, in eval mode, and the rest.

    Nothing private is in a run's folder, so nothing private is read. A folder without a run is refused.

    >>> load_run("nowhere")
    Traceback (most recent call last):
    saltflat.errors.DataError: nowhere is no folder of a run ...
    """
    found = subject(Path(folder))
    model = network_of(found.recipe)
    put(found.params, model)
    statement = None if found.note else _statement(Folder(found.run).statement)
    return Loaded(model.eval(), found.recipe, statement, found.note)


def _statement(file: Path) -> Statement:
    try:
        return from_json(file.read_text())
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}); its statement.txt may say the same"
        ) from None
