"""The benchmark of federated rounds says what it measured, and what of a round is not training."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import federated


def test_the_table_compares_rounds_per_minute() -> None:
    found = {
        "in-process": {"rounds": [10.0, 10.4], "training": [10.0, 10.0]},
        "flower": {"rounds": [61.2, 61.2]},
    }
    shown = federated.shown(found)
    assert "add 2.00 % to a round (at most 5 %: met)" in shown
    assert "6.00 times (at least 5: met)" in shown
    slower = federated.shown({**found, "flower": {"rounds": [20.4]}})
    assert "2.00 times (at least 5: missed)" in slower


def test_the_table_has_processor_seconds_and_what_no_engine_can_beat() -> None:
    turn = {"first": 1.0, "rounds": [10.0], "training": [9.9], "everybody": [8.0], "processor": 0.2}
    own = federated.joined(turn, {**turn, "rounds": [12.0], "everybody": [12.0]})
    assert own["rounds"] == [10.0, 12.0]
    flower = {"rounds": [33.0], "everybody": [25.0], "processor": 0.5}
    least = {"operations": 2e12, "pace": 1e11, "seconds": 10.0}
    shown = federated.shown({"least": least, "in-process": own, "flower": flower})
    assert "| in-process | 11.00 | 5.45 | 10.00 | 0.200 |" in shown
    assert "2.50 times less" in shown
    assert (
        "a round is 2000 GFLOP; at 100 GFLOP/s on 2 cores it takes 10.00 s at least, 3.30 times less than in Flower"
        in shown
    )


def test_each_way_of_using_flower_has_a_ratio_of_its_own() -> None:
    own = {"rounds": [10.0], "training": [9.9]}
    shown = federated.shown(
        {"in-process": own, "flower": {"rounds": [30.0]}, "flower-quickstart": {"rounds": [52.0]}}
    )
    assert "a loop tuned by hand: 3.00 times (at least 5: missed)" in shown
    assert "a client as its quickstart has it: 5.20 times (at least 5: met)" in shown


def test_engines_take_turns() -> None:
    some = ["saltflat-over-flower", "flower", "in-process"]
    assert federated.turns(some, 2) == ["in-process", "flower"] * 2 + ["saltflat-over-flower"]
    assert federated.turns(["flower-quickstart"], 1) == ["flower-quickstart"]


def test_a_part_of_the_pictures_is_a_clients_loader(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="Hugging Face's datasets are an extra", exc_type=ImportError)
    pytest.importorskip("PIL", reason="pillow is an extra", exc_type=ImportError)
    federated.pictures(70).save_to_disk(str(tmp_path))
    batches = list(federated.part_of(str(tmp_path), 1, 2))
    assert [tuple(each["image"].shape) for each in batches] == [(32, 1, 32, 32), (3, 1, 32, 32)]
    assert all(each["image"].min() == -1 and each["image"].max() <= 1 for each in batches)


def test_a_family_has_this_process_and_what_it_has_done() -> None:
    assert os.getpid() in federated.family()
    assert federated.processor_seconds(os.getpid()) >= 0


@pytest.mark.slow
def test_a_round_in_process_is_timed_whole_and_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federated.torch, "set_num_threads", lambda threads: None)
    found = federated.in_process(clients=2, rows=2, rounds=2)
    (whole,), (inner,) = found["rounds"], found["training"]
    assert 0 < inner < whole


def test_one_round_is_not_enough(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        federated.main(["--rounds", "1"])
    assert "at least 2" in capsys.readouterr().err
