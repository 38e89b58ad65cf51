"""The step benchmark: every engine computes the same thing, and one that fails harms no other."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import cases
import child
import engines
import report
import step

TINY = cases.Case(
    title="tiny",
    build=lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3)),
    units=5,
    shape=(3, 2, 2),
    answers=3,
)
TINY_WORDS = cases.Case(
    title="tiny words",
    build=lambda: nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7)),
    units=5,
    shape=(6,),
    answers=7,
    words=True,
)
TINY_CASES = pytest.mark.parametrize("case", [TINY, TINY_WORDS], ids=lambda case: case.title)


def clipped_mean(case: cases.Case, bound: float) -> torch.Tensor:
    """The mean of clipped gradients, one example at a time."""
    model, (inputs, targets) = case.model(), case.batch()
    total = torch.zeros(sum(weight.numel() for weight in model.parameters()))
    for i in range(case.units):
        model.zero_grad()
        engines.cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1]).backward()
        gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
        total += gradient * min(1.0, bound / float(gradient.norm()))
    return total / case.units


def moved(case: cases.Case, name: str, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The direction that one step of the engine went, from the weights before and after it."""
    trained: list[nn.Module] = []
    plain = engines.optimizer_of
    monkeypatch.setattr(engines, "optimizer_of", lambda model: (trained.append(model), plain(model))[1])
    take = engines.engine(name)(case.model(), case.batch())
    before = nn.utils.parameters_to_vector(trained[0].parameters()).detach().clone()
    take()
    return (before - nn.utils.parameters_to_vector(trained[0].parameters()).detach()) / 0.1


@TINY_CASES
@pytest.mark.parametrize("name", [name for name in engines.ENGINES if name != "sgd"])
def test_opacus_engines_take_the_clipped_mean(
    case: cases.Case, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opacus")
    monkeypatch.setattr(engines, "NOISE_MULTIPLIER", 0.0)
    monkeypatch.setattr(engines, "CLIP_NORM", 0.1)
    torch.testing.assert_close(moved(case, name, monkeypatch), clipped_mean(case, 0.1), atol=1e-5, rtol=1e-3)


@TINY_CASES
def test_plain_sgd_takes_the_mean_and_not_the_clipped_one(
    case: cases.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    direction = moved(case, "sgd", monkeypatch)
    torch.testing.assert_close(direction, clipped_mean(case, 1e9), atol=1e-5, rtol=1e-3)
    assert not torch.allclose(direction, clipped_mean(case, 0.1), atol=1e-5, rtol=1e-3)


def test_cases_are_the_same_at_every_call() -> None:
    case = cases.CASES["tutorial-cnn"]
    for first, second in zip(case.batch(), case.batch(), strict=True):
        assert torch.equal(first, second)
    for first, second in zip(case.model().parameters(), case.model().parameters(), strict=True):
        assert torch.equal(first, second)


def test_every_model_takes_its_batch() -> None:
    for case in cases.CASES.values():
        small = cases.Case(**{**vars(case), "units": 2})
        inputs, targets = small.batch()
        assert torch.isfinite(engines.cross_entropy(small.model()(inputs), targets))


def test_race_changes_the_order_and_drops_who_fails() -> None:
    order: list[str] = []

    def broken() -> None:
        raise RuntimeError("no rule for this layer\nand a long story")

    steps = {name: (lambda name=name: order.append(name)) for name in "abc"}
    race = child.Race({**steps, "broken": broken})
    for turn in range(3):
        race.round(turn)
    rounds = [order[i : i + 6] for i in range(0, 18, 6)]
    assert all(sorted(turns) == list("aabbcc") and turns[::2] == turns[1::2] for turns in rounds)
    assert len({"".join(turns) for turns in rounds}) > 1
    assert race.errors == {"broken": "RuntimeError: no rule for this layer"}
    assert {name: len(seconds) for name, seconds in race.seconds.items()} == dict.fromkeys("abc", 3)


def test_slow_engines_take_part_in_three_rounds_only() -> None:
    race = child.Race({"fast": lambda: None, "slow": lambda: time.sleep(0.005)})
    for turn in range(6):
        race.round(turn)
    assert {name: len(seconds) for name, seconds in race.seconds.items()} == {"fast": 6, "slow": 3}


def test_rounds_follow_the_budget_between_their_limits() -> None:
    assert child.rounds_within(60, 1.0, least=15, most=120) == 60
    assert child.rounds_within(60, 100.0, least=15, most=120) == 15
    assert child.rounds_within(60, 0.0, least=15, most=120) == 120


def test_peak_memory_sees_an_allocation() -> None:
    before = child.peak_mb()
    torch.ones(int(before * 1e6 / 4) + 25_000_000)  # more than everything held so far
    assert child.peak_mb() > before + 50


def test_one_engine_that_fails_leaves_the_others_their_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(_: step.Effort, what: str, model: str, *names: str) -> dict:
        if what == "memory":
            return {"error": "killed"} if names[0] == "opacus-ew" else {"peak_mb": 100.0}
        assert "opacus-ew" not in names
        return {"seconds": {"sgd": 0.5, "opacus-ghost": 1.0}, "errors": {"opacus-hooks": "late"}}

    monkeypatch.setattr(step, "measure", answers)
    names = ("sgd", "opacus-hooks", "opacus-ew", "opacus-ghost")
    rows = step.measured_model(step.Effort(1, 1.0, 1), "mlp", names)
    assert [row.ratio_to_sgd for row in rows] == [1.0, None, None, 2.0]
    assert [row.note for row in rows] == ["", "late", "killed", ""]
    assert [row.peak_mb for row in rows] == [100.0, 100.0, None, 100.0]


def test_a_child_that_dies_is_an_error_and_not_a_crash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child_file = tmp_path / "child.py"
    monkeypatch.setattr(step, "CHILD", child_file)
    child_file.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "signal 9" in step.measure(step.Effort(1, 1.0, 1), "memory", "mlp", "sgd")["error"]
    child_file.write_text("raise SystemExit('the reason')")
    assert step.measure(step.Effort(1, 1.0, 1), "memory", "mlp", "sgd") == {"error": "the reason"}


@pytest.mark.parametrize("text", ["0", "-1", "two", "nan", "1.5"])
def test_threads_must_be_a_positive_whole_number(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        step.arguments(["--threads", text])
    assert "--threads" in capsys.readouterr().err


def row(model: str, engine: str, ratio: float | None, peak: float | None) -> report.Row:
    return report.Row(model=model, engine=engine, ratio_to_sgd=ratio, peak_mb=peak)


def test_board_takes_geometric_means_over_what_ran() -> None:
    board = report.Board(
        (
            *(row("a", "sgd", 1.0, 100.0), row("b", "sgd", 1.0, 100.0)),
            *(row("a", "opacus-hooks", 8.0, 400.0), row("b", "opacus-hooks", None, None)),
            *(row("a", "opacus-ghost", 4.0, 100.0), row("b", "opacus-ghost", 9.0, 400.0)),
            *(row("a", "saltflat", 2.0, 100.0), row("b", "saltflat", 1.5, 100.0)),
        )
    )
    assert (board.gain("a"), board.gain("b")) == (2.0, 6.0)
    assert report.summary(board, "opacus-ghost") == "6.00x\n2.00x\n2 of 2"
    assert report.summary(board, "opacus-hooks") == "8.00x\n4.00x\n1 of 2"
    assert report.table(board).row_count == 3


def test_board_without_saltflat_has_no_gain() -> None:
    board = report.Board((row("a", "sgd", 1.0, 100.0), row("a", "opacus-ghost", 4.0, 100.0)))
    assert board.gain("a") is None
