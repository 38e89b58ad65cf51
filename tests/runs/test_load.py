"""`saltflat.load_run`: a folder of a run, back in Python."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import saltflat as sf
from saltflat.errors import DataError

BEFORE = Path(__file__).with_name("before")


def test_a_finished_run() -> None:
    found = sf.load_run(BEFORE / "finished")
    kept = load_file(BEFORE / "finished" / "model.safetensors")
    own = found.model.state_dict()
    assert own.keys() == kept.keys()
    assert all(torch.equal(own[name], leaf) for name, leaf in kept.items())
    assert not found.model.training
    assert found.statement.as_text() + "\n" == (BEFORE / "finished" / "statement.txt").read_text()
    assert found.plan.epsilon(found.statement.delta) <= found.statement.epsilon * 1.001
    assert found.note == ""


def test_one_that_was_stopped_and_one_of_its_checkpoints() -> None:
    found = sf.load_run(str(BEFORE / "stopped-sai"))
    assert found.statement is None
    assert found.note == "unfinished: after 28 steps"
    earlier = sf.load_run(BEFORE / "stopped-sai" / "checkpoints" / "000007")
    assert "checkpoint after" in earlier.note
    one, other = (run.model.state_dict() for run in (found, earlier))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_what_is_no_run_or_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no run"):
        sf.load_run(tmp_path)
    shutil.copytree(BEFORE / "finished", tmp_path / "one")
    (tmp_path / "one" / "statement.json").write_text('{"epsilon": 1}')
    with pytest.raises(DataError, match="no privacy statement"):
        sf.load_run(tmp_path / "one")
    (tmp_path / "one" / "statement.json").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        sf.load_run(tmp_path / "one")
