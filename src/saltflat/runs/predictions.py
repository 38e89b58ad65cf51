"""Predictions of a run's model: from rows as a user has them to class names, probabilities or numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from saltflat.data import NewRows, Preprocessing
from saltflat.features.stages import mapped
from saltflat.runs.scores import Scores, score

PRIVATE_NOTE = (
    "These scores are of your rows. If the rows are private, so are the scores: epsilon does not cover them."
)


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of some rows.

    Args:
        preprocessing: That of the run; it names the classes.
        names: What each row is called.
        outputs: Class probabilities (n, classes), or predicted numbers (n, 1) in the target's own unit. NaN in rows
            that could not be read.
        targets: The number of each row's class, or its target in its own unit; NaN where none was given.
        reasons: Why rows could not be read, by their names.
    """

    preprocessing: Preprocessing
    names: tuple[str, ...]
    outputs: NDArray[np.float64]
    targets: NDArray[np.float64]
    reasons: dict[str, str]

    @property
    def labels(self) -> NDArray[Any]:
        """The most probable class of each row, by its name if it has one; or the predicted number.

        Rows that could not be read have None, or NaN where predictions are numbers.
        """
        if self.preprocessing.form.span is not None:
            return self.outputs[:, 0]
        read = ~np.isnan(self.outputs[:, 0])
        found = [
            self.preprocessing.class_of(int(row.argmax())) if fine else None
            for row, fine in zip(self.outputs, read, strict=True)
        ]
        return np.array(found, dtype=None if read.all() else object)

    @property
    def probabilities(self) -> NDArray[np.float64] | None:
        """The probability of each class (n, classes); None where predictions are numbers."""
        return None if self.preprocessing.form.span is not None else self.outputs

    @property
    def _scored(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.targets) & ~np.isnan(self.outputs[:, 0])

    @property
    def scores(self) -> Scores | None:
        """Scores on the rows that have a class; None if none has. See `PRIVATE_NOTE`."""
        rows = self._scored
        if self.preprocessing.form.span is not None or not rows.any():
            return None
        return score(self.outputs[rows], self.targets[rows])

    @property
    def error(self) -> float | None:
        """The root mean squared error on the rows that have a number as target; None if none has."""
        rows = self._scored
        if self.preprocessing.form.span is None or not rows.any():
            return None
        return float(np.sqrt(((self.outputs[rows, 0] - self.targets[rows]) ** 2).mean()))

    def as_csv(self) -> str:
        """A line for each row: its name, the prediction and, for classes, the probability of each."""
        file, form = io.StringIO(), self.preprocessing.form
        lines = csv.writer(file, lineterminator="\n")
        classes = [str(self.preprocessing.class_of(k)) for k in range(form.classes)]
        lines.writerow(["row", "prediction", *(f"p({name})" for name in classes)])
        for name, label, row in zip(self.names, self.labels, self.outputs, strict=True):
            if np.isnan(row[0]):
                lines.writerow([name, "", *("" for _ in classes)])
            elif form.classes:
                lines.writerow([name, label, *(f"{p:.6g}" for p in row)])
            else:
                lines.writerow([name, f"{label:.8g}"])
        return file.getvalue()


def predicted(
    model: nn.Module,
    preprocessing: Preprocessing,
    features: nn.Module | None,
    parts: Iterable[NewRows],
    *,
    physical: int = 512,
) -> Predictions:
    """The model's predictions of rows that come in parts.

    Args:
        model: The trained network, in eval mode.
        preprocessing: How its rows were made, and what its outputs mean.
        features: The fixed map before the network, if there is one.
        parts: The rows, from `read_new_rows`.
        physical: The most rows that the network sees at once.
    """
    names: list[str] = []
    outputs: list[NDArray[np.float64]] = []
    targets: list[NDArray[np.float64]] = []
    reasons: dict[str, str] = {}
    form = preprocessing.form
    for part in parts:
        found = _outputs(model, preprocessing, features, part.inputs, physical)
        found = torch.softmax(found, 1) if form.classes else found
        made = found.cpu().numpy()
        known = part.targets
        if form.span is not None:
            low, high = form.span
            made = low + (high - low) * (made[:, :1] + 1) / 2  # targets were scaled to [-1, 1]
            known = low + (high - low) * (known + 1) / 2
        made[list(part.reasons)] = np.nan
        reasons.update({part.names[place]: why for place, why in part.reasons.items()})
        names += part.names
        outputs.append(made)
        targets.append(known)
    return Predictions(preprocessing, tuple(names), np.concatenate(outputs), np.concatenate(targets), reasons)


def _outputs(
    model: nn.Module, preprocessing: Preprocessing, features: nn.Module | None, inputs: Tensor, physical: int
) -> Tensor:
    """The network's outputs in float64, ``physical`` rows at a time; a map of features comes first."""
    device = next(model.parameters()).device
    found = []
    with torch.no_grad():
        for start in range(0, len(inputs), physical):
            rows = inputs[start : start + physical]
            if features is not None:
                rows = mapped(features, rows)
            elif rows.dtype == torch.uint8:
                assert preprocessing.scale is not None
                rows = preprocessing.scale(rows)
            # classes that were declared, where a network has outputs to spare
            found.append(model(rows.to(device))[:, : preprocessing.form.outputs].double())
    return torch.cat(found)
