"""The one list of measures: every part is computed, every entry has a row, and one more needs no other change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from saltflat.cli import main
from saltflat.cli.landscape import about
from saltflat.clipping import as_clip
from saltflat.data import digits
from saltflat.landscape import noise_tolerance
from saltflat.optimizers import SGD
from saltflat.recipes import shipped
from saltflat.recipes.build import network_of, plan_of
from saltflat.report.folder import gather
from saltflat.report.page import page
from saltflat.runs import survey
from saltflat.runs.begin import begin
from saltflat.runs.layout import MEASURES, Folder
from saltflat.runs.measures import PARTS, Effort, Entry, Part, differing, entries, files, rows, usual
from saltflat.runs.weights import subject

SMALL: dict[str, Any] = {"examples": 20, "grid": 3, "probes": 2, "steps": 6}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that ended where it began."""
    folder = Folder(tmp_path / "run")
    begin(folder, shipped("digits"))
    save_file(network_of(shipped("digits")).state_dict(), str(folder.model))
    return folder.path


def test_every_part_has_a_function() -> None:
    for part in PARTS.values():
        assert callable(survey.function_of(part)), part.name
        assert part.passes(Effort(grid=25, probes=30, steps=80)) >= 1
        assert part.file == MEASURES or not part.entries


def test_every_entry_that_is_measured_has_a_row(run: Path) -> None:
    view = survey.View(subject(run), digits(), survey.Settings(**SMALL))
    for part in PARTS.values():
        if part.file == MEASURES:
            survey.look(view, part.name)
    found = survey.read_measures(Folder(run).landscape) or {}
    known = {entry.key for entry in entries()} | {entry.error for entry in entries()}
    assert found.keys() <= known
    assert known - found.keys() == {"", "note"}  # and nothing is listed that is never measured
    assert {row.label for row in rows([found])} <= {row.label for row in rows([found], details=True)}


def test_the_noise_is_that_of_the_last_phase_with_its_momentum(run: Path) -> None:
    first, last = SGD(lr=9.0, momentum=0.2), SGD(lr=0.5, momentum=0.9)
    phase = shipped("digits").phase[0]
    phases = (replace(phase, optimizer=first), replace(phase, optimizer=last))
    recipe = replace(shipped("digits"), phase=phases)
    view = survey.View(replace(subject(run), recipe=recipe), digits(), survey.Settings(**SMALL))
    plan = plan_of(recipe, 1437)
    s = plan.phases[-1].noise_multiplier * as_clip(phase.clip_norm).sensitivity / plan.expected_units
    found = survey.noise(view)
    assert found["noise_std"] == pytest.approx(0.5 * s)
    assert found["noise_momentum"] == 0.9
    assert found["noise_tolerance"] == noise_tolerance(view.objective, view.params, std=0.5 * s, momentum=0.9)


def test_labels_and_files_are_told_apart() -> None:
    labels = [entry.label for entry in entries()]
    assert len(set(labels)) == len(labels)
    own = [part.file for part in PARTS.values() if part.file != MEASURES]
    assert len(set(own)) == len(own) == len(files()) - 1


def test_one_more_measure_is_one_part_and_one_function(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = (Entry("curl", "curl of the loss", card=True), Entry("curl_by", "how it curls", same=True))
    monkeypatch.setitem(PARTS, "curl", Part("curl", "how much the loss curls", found))
    monkeypatch.setattr(survey, "curl", lambda view: {"curl": 3.25, "curl_by": "eye"}, raising=False)
    assert "curl" in usual()
    assert "curl: how much the loss curls" in about()
    monkeypatch.setattr("sys.argv", ["saltflat", "landscape", str(run), "--only", "curl", "--examples", "20"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert any(line[1:5] == ["curl", "of", "the", "loss"] and "3.25" in line for line in shown)
    measures = json.loads((Folder(run).landscape / MEASURES).read_text())
    assert measures["curl"] == 3.25
    assert 'curl of the loss</th><td data-label="run">3.25</td>' in page(gather([run]))
    assert differing([measures, {**measures, "curl_by": "ear"}]) == ["how it curls"]


def test_runs_compare_in_what_they_both_have() -> None:
    one = {"seed": 0, "sharpness_solver": "A"}
    assert differing([one, {"seed": 0}]) == []
    assert differing([one, {"seed": 0, "sharpness_solver": "B"}]) == ["solver of the sharpness"]
    assert differing([one, {"sharpness_solver": "A"}]) == ["seed"]  # what every run says must be said


def test_a_standard_error_stands_with_its_value() -> None:
    (row,) = rows([{"trace": 152.0, "trace_error": 3.1}, {"trace": 90.0}], details=True)
    assert row.cells == ((152.0, 3.1), (90.0, None))
