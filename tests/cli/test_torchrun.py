"""``torchrun -m saltflat train``: one run, one record, one voice, whatever becomes of its processes."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import elastic
import pytest
import torch

from saltflat.cli import processes
from saltflat.errors import GroupError, SettingError
from saltflat.privacy.record.history import read
from saltflat.recipes import documents, shipped
from saltflat.recipes.build import draft_of, size_of

UNDER = {
    "TORCHELASTIC_RUN_ID": "a",
    "WORLD_SIZE": "4",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_MAX_RESTARTS": "0",
}


@pytest.fixture
def under_torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in UNDER.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_a_rank_in_the_environment_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell, or a cluster's own variables, must neither silence `fit` nor make a command wait for others."""
    from saltflat.front.shown import Plain, shown

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with shown(quiet=False) as screen:
        assert isinstance(screen, Plain)
    assert processes.started_together() == 1
    assert processes.launcher() == ["saltflat"]
    with processes.together():
        assert not torch.distributed.is_initialized()


def test_how_to_go_on_is_said_as_it_was_started(under_torchrun: pytest.MonkeyPatch) -> None:
    assert " ".join(processes.launcher()) == "torchrun --nnodes 2 --nproc-per-node 2 ... -m saltflat"
    under_torchrun.setenv("GROUP_WORLD_SIZE", "1")
    under_torchrun.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert " ".join(processes.launcher()) == "torchrun --nproc-per-node 2 --max-restarts 3 -m saltflat"
    assert processes.started_again()
    under_torchrun.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    assert not processes.started_again()


def test_every_process_has_a_gpu_of_its_own(under_torchrun: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    under_torchrun.setattr(torch.cuda, "device_count", lambda: 2)
    under_torchrun.setattr(torch.cuda, "set_device", taken.append)
    assert processes.placed("cuda") == "cuda:1"
    assert taken == [1]
    assert processes.placed("cpu") == "cpu"
    with pytest.raises(SettingError, match="write --device cuda"):
        processes.placed("cuda:0")
    under_torchrun.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SettingError, match="2 processes were started on a machine with 1 GPU"):
        processes.placed("cuda")
    under_torchrun.setenv("WORLD_SIZE", "1")
    assert processes.placed("cuda:0") == "cuda:0"


def in_threads(store: Any, *ranks: int, size: int = 3) -> list[str]:
    """The name on which processes of these numbers agree, who come one after the other."""
    with ThreadPoolExecutor(size) as pool:
        came = []
        for rank in ranks:
            came.append(pool.submit(processes.agreed, store, rank, size))
            time.sleep(0.05)
        return [each.result() for each in came]


def test_a_start_has_a_name_that_no_earlier_one_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torchrun` keeps one store: what processes that were killed have left there must be nobody's address."""
    monkeypatch.setattr(processes, "JOINING", timedelta(seconds=20))
    store = torch.distributed.HashStore()
    first, second, third = (in_threads(store, *order) for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)))
    assert [len(set(start)) for start in (first, second, third)] == [1, 1, 1]
    assert len({first[0], second[0], third[0]}) == 3
    monkeypatch.setattr(processes, "JOINING", timedelta(seconds=0.3))
    for some in ((0, 1), (1, 2)):  # killed while joining: one never comes
        with pytest.raises(GroupError, match="did not find each other"):
            in_threads(store, *some)
    monkeypatch.setattr(processes, "JOINING", timedelta(seconds=20))
    assert len(set(in_threads(store, 2, 0, 1))) == 1


def test_processes_that_do_not_find_each_other_say_so_once(under_torchrun: pytest.MonkeyPatch) -> None:
    under_torchrun.setattr(processes, "JOINING", timedelta(seconds=0.2))
    under_torchrun.setattr(processes.signal, "signal", lambda *_: None)
    under_torchrun.setenv("MASTER_ADDR", "here")
    under_torchrun.setenv("MASTER_PORT", "1")
    store = torch.distributed.HashStore()

    def joined(rank: int) -> None:
        under_torchrun.setattr(processes, "_met", lambda: (store, rank, 4, 0))
        with processes.together():
            raise AssertionError("nobody else is there")

    with pytest.raises(
        GroupError, match=r"4 processes.*no step was taken.*reaches here:1, and start torchrun again"
    ):
        joined(0)
    with pytest.raises(SystemExit):  # the first one has said it
        joined(3)
    under_torchrun.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(GroupError, match="torchrun starts them again"):
        processes.agreed(store, 1, 4)


def test_what_the_first_process_tells_can_be_told() -> None:
    for name in documents.names():
        recipe = shipped(name)
        if recipe.clients is None:
            both = recipe, draft_of(recipe, size_of(recipe) if name != "best-images" else 1000)
            assert pickle.loads(pickle.dumps(both)) == both, name


def finished(*words: str, ranks: int = 2, **env: str) -> subprocess.CompletedProcess[str]:
    job = elastic.started(words, ranks=ranks, **env)
    out, errors = job.communicate(timeout=3 * elastic.PATIENCE)
    return subprocess.CompletedProcess(words, job.returncode, out, errors)


def lines(errors: str) -> list[str]:
    """What saltflat said, and not torchrun."""
    return [line for line in errors.splitlines() if line.startswith("saltflat: ") or "Traceback" in line[:9]]


SHORT = ["--epochs", "4", "--batch-size", "400", "--threads", "1"]  # 14 steps


@pytest.mark.slow
def test_a_run_of_two_processes_and_what_is_said_when_it_cannot_be(tmp_path: Path) -> None:
    out, truth = tmp_path / "one", tmp_path / "truth"
    done = finished("train", "--out", str(out), *SHORT, TRUTH=str(truth))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    assert done.stdout.count("This run is") == 1
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 15))
    assert elastic.count(truth) == elastic.on_record(out) == 14  # noise once for each step, each on record
    assert sum(entry.kind == "run" for entry in read(out / "ledger.jsonl").entries) == 1
    taken = finished("train", "--out", str(out), *SHORT)
    assert taken.returncode
    assert len(said := [line for line in lines(taken.stderr) if line.startswith("saltflat: ")]) == 1
    assert "torchrun --nproc-per-node 2 -m saltflat train --resume" in said[0]
    trouble = finished("train", "--out", str(tmp_path / "two"), *SHORT, TROUBLE="1")
    assert [line for line in lines(trouble.stderr) if line.startswith("saltflat: ")] == [
        "saltflat: process 2 of 2: the disk of this machine is empty"
    ]
    assert not (tmp_path / "two").exists()  # nothing was charged, so nothing is left
    alone = finished("federate")
    assert "saltflat: saltflat federate is not for torchrun: its clients" in alone.stderr
    assert alone.stderr.count("saltflat: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_after_one_step_and_others_go_on(number: signal.Signals, tmp_path: Path) -> None:
    out, truth = tmp_path / "one", tmp_path / "truth"
    words = ("train", "--out", str(out), "--epochs", "15", "--batch-size", "200", "--threads", "1")
    job = elastic.started(words, TRUTH=str(truth))
    limit = time.monotonic() + elastic.PATIENCE
    while elastic.count(truth) < 5 and time.monotonic() < limit:
        time.sleep(0.01)
    job.send_signal(number)
    _, errors = job.communicate(timeout=60)
    said = [line for line in lines(errors) if line.startswith("saltflat: ")]
    assert len(said) == 1, errors
    assert said[0].startswith(f"saltflat: stopped by {number.name} after step")
    go_on = f"torchrun --nproc-per-node 2 -m saltflat train --resume --out {out} --threads 1"
    assert said[0].endswith(f"to go on, run {go_on}")
    at_stop = elastic.count(truth)
    assert f"after step {at_stop} of" in said[0]  # the step at hand ended, and no other began
    assert elastic.on_record(out) == at_stop
    done = finished("train", "--resume", "--out", str(out), "--threads", "1", ranks=3, TRUTH=str(truth))
    assert done.returncode == 0, done.stderr
    steps = int(said[0].split(" of ")[1].split(";")[0])
    assert elastic.count(truth) == elastic.on_record(out) == steps  # nothing ran twice
    assert read(out / "ledger.jsonl").epsilon(1e-5) <= 3.0


def elastic_runs(log: Path, *options: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, elastic.__file__, str(log), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.slow
def test_kills_while_processes_join(tmp_path: Path) -> None:
    """Each costs one restart and no more: nobody waits for, or asks, a process that is gone."""
    out, truth = tmp_path / "one", tmp_path / "truth"
    words = ("train", "--out", str(out), *SHORT, "--restartable")
    job = elastic.started(words, ranks=3, restarts=4, TRUTH=str(truth), DIES_JOINING="4")
    _, errors = job.communicate(timeout=3 * elastic.PATIENCE)
    assert job.returncode == 0, errors
    assert "did not find each other" not in errors
    assert elastic.count(truth) == elastic.on_record(out) == 14


@pytest.mark.slow
def test_50_kills_of_a_random_process(tmp_path: Path) -> None:
    found = elastic_runs(tmp_path / "log", "--runs", "0:5", "--kills", "10")
    assert all(run["sound"] for run in found), found
    assert sum(run["kills"] for run in found) >= 50
    assert 0 < sum(run["first_killed"] for run in found) < 50


@pytest.mark.slow
def test_repeats_and_stages_under_torchrun(tmp_path: Path) -> None:
    """The first process makes what comes before the private phase; repeats share one ledger, which it alone has."""
    recipe = tmp_path / "warm.toml"
    stages = """
[public]
count = 60
[synthetic]
images = 40
steps = 2
fit = {Fit = {seen = 128, batch = 64, ramp = 64, half_life = 64}}
[[warmup]]
Supervised = {on = "synthetic", epochs = 2, batch_size = 20}
"""
    text = elastic.RECIPE.replace(f"steps = {elastic.STEPS}", "steps = 6")
    recipe.write_text(text.replace("[[phase]]", f"{stages}[[phase]]"))
    words = ("train", str(recipe), "--out", str(tmp_path / "out"), "--threads", "1", "--repeats", "2")
    done = finished(*words, TRUTH=str(tmp_path / "truth"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("over 2 repeats") == 1
    assert elastic.count(tmp_path / "truth") == elastic.on_record(tmp_path / "out") == 12
    for seed in ("seed-0", "seed-1"):
        assert (tmp_path / "out" / seed / "model.safetensors").exists()
        assert (tmp_path / "out" / seed / "public" / "warm.safetensors").exists()
