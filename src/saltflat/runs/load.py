"""A run's folder, back in Python: its model, its recipe and plan, what it promises."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from saltflat.core.plan import Plan
from saltflat.core.train import put
from saltflat.data import Preprocessing, preprocessing_of, read_new_rows
from saltflat.errors import DataError, SettingError
from saltflat.features import built
from saltflat.privacy.record.statement import Statement, from_json
from saltflat.recipes import Recipe, network_of, plan_of
from saltflat.recipes.build import own_of, size_of
from saltflat.runs.layout import Folder
from saltflat.runs.predictions import Predictions, predicted
from saltflat.runs.weights import subject


@dataclass(frozen=True)
class Loaded:
    """What `load_run` returns. ``statement`` is None, and ``note`` says so, for a run that has not ended.

    Args:
        model: The network with its weights, in eval mode. It takes inputs after preprocessing and features.
        recipe: Every setting of the run.
        statement: What the run promises.
        note: What a reader must know, such as that the run is unfinished.
        folder: Where the run is.
    """

    model: nn.Module
    recipe: Recipe
    statement: Statement | None
    note: str = ""
    folder: Path = Path()

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """How rows become inputs of the model, and what its classes are called."""
        return kept_preprocessing(Folder(self.folder), self.recipe)

    @cached_property
    def features(self) -> nn.Module | None:
        """The fixed feature map before the network, None if there is none; made when it is first asked for."""
        shape = self.preprocessing.form.shape
        return built(self.recipe.features, shape) if self.recipe.features else None

    def predictions(self, rows: Any, *, data_dir: str | Path | None = None) -> Predictions:
        """The model's predictions of new rows, with probabilities, scores and what could not be read.

        Args:
            rows: The path of a CSV, Parquet or npz file, of a picture or of a folder; or a DataFrame, a list of
                dictionaries, an array or a tensor. Rows need no target. uint8 arrays are images, as in training.
            data_dir: A folder under which a path is looked for too.

        Raises:
            DataError: Nothing can be read, or the rows are not of the kind that the model was trained on.

        Guarantee:
            Of the rows that the model was trained on, predictions tell no more than the model does, which its
            epsilon covers. The rows that are predicted are not protected: keep predictions as private as they are.
        """
        parts = read_new_rows(rows, self.preprocessing, data_dir)
        return predicted(self.model, self.preprocessing, self.features, parts, physical=self.recipe.physical)

    def predict(self, rows: Any) -> NDArray[Any]:
        """The most probable class of each row, by its name if classes have names; or the predicted number.

        A row that cannot be read has None (NaN for a number), and a warning says how many there are.

        Args:
            rows: As for `predictions`.
        """
        return _warned(self.predictions(rows)).labels

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """The probability of each class (n, classes), in the order of ``preprocessing.class_names``.

        A row that cannot be read has NaN, and a warning says how many there are.

        Args:
            rows: As for `predictions`.

        Raises:
            SettingError: The model predicts numbers.
        """
        if self.preprocessing.form.span is not None:
            raise SettingError("this model predicts a number, which has no probability; use predict")
        return _warned(self.predictions(rows)).outputs

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
    return Loaded(model.eval(), found.recipe, statement, found.note, found.run.absolute())


def kept_preprocessing(folder: Folder, recipe: Recipe) -> Preprocessing:
    """What the run's folder says of its rows.

    A run of an older version kept nothing; then the data's own files are asked, or the published constants.
    """
    file = folder.preprocessing
    try:
        given = json.loads(file.read_bytes())
    except FileNotFoundError:
        try:
            return preprocessing_of(recipe.data, own_of(recipe))
        except (DataError, SettingError) as error:
            raise DataError(
                f"{folder.path} is of a version that kept no {file.name}, so how its rows were read must be known from "
                f"{recipe.table or recipe.data}: {error}"
            ) from None
    except (OSError, ValueError, RecursionError):
        raise DataError(f"{file} is damaged; bring it back from where the run was trained") from None
    return Preprocessing.from_document(given, str(file))


def _warned(found: Predictions) -> Predictions:
    if found.reasons:
        name, why = next(iter(found.reasons.items()))
        warnings.warn(
            f"{len(found.reasons)} of {len(found.names)} rows could not be read and have no prediction; "
            f"row {name}: {why}",
            stacklevel=3,
        )
    return found


def _statement(file: Path) -> Statement:
    try:
        return from_json(file.read_text())
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}); its statement.txt may say the same"
        ) from None
