"""The step benchmark: every engine computes the same thing, and one that fails harms no other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import cases
import child
import engines
import race
import report
import saltflat_engine
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
@pytest.mark.parametrize("name", [name for name in engines.ENGINES if name.startswith("opacus")])
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
    for case in (case for case in cases.CASES.values() if not case.missing):
        small = cases.Case(**{**vars(case), "units": 2})
        inputs, targets = small.batch()
        assert torch.isfinite(engines.cross_entropy(small.model()(inputs), targets))


class Fake:
    """An engine's process that answers at once."""

    def __init__(self, name: str, log: list[str], seconds: float = 1.0, fails_at: int = -1) -> None:
        self.name, self.log, self.seconds, self.fails_at, self.turns = name, log, seconds, fails_at, 0

    def turn(self) -> race.Turn:
        self.turns += 1
        if self.turns == self.fails_at:
            raise race.Dropped("no rule for this layer")
        self.log.append(self.name)
        return race.Turn([self.seconds] * 2, 100.0 + self.turns, [2 * self.seconds] * 2)

    def leave(self) -> None:
        self.log.append(f"{self.name} left")


def fakes(log: list[str], **engines: dict) -> race.Race:
    return race.Race(lambda name: Fake(name, log, **engines[name]))


def test_rounds_change_the_order_and_drop_who_fails() -> None:
    log: list[str] = []
    running = fakes(log, a={}, b={}, c={}, late={"fails_at": 3})
    running.enter(["a", "b", "c", "late"])
    log.clear()
    for turn in range(4):
        running.round(turn)
    kept = [name for name in log if name != "late"]
    rounds = [kept[i : i + 3] for i in range(0, 12, 3)]
    assert all(sorted(turns) == list("abc") for turns in rounds)
    assert len({"".join(turns) for turns in rounds}) > 1
    assert running.errors == {"late": "no rule for this layer"}
    assert set(running.medians()) == set("abc")
    assert all(len(running.seconds[name]) >= 8 for name in "abc")


def test_engines_of_one_process_are_compared_with_each_other() -> None:
    running = fakes([], sgd={}, saltflat={"seconds": 2.0})
    running.enter(["sgd", "saltflat"])
    assert running.ratio("saltflat") is None  # nothing is timed yet
    running.round(0)
    assert running.ratio("saltflat") == 0.5
    assert running.medians() == {"sgd": 1.0, "saltflat": 2.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only steps move."""
    now = [0.0]
    monkeypatch.setattr(child.time, "perf_counter", lambda: now[0])
    return now


def lasting(clock: list[float], seconds: float) -> child.Step:
    def step() -> None:
        clock[0] += seconds

    return step


def test_a_team_is_timed_over_equal_stretches(clock: list[float]) -> None:
    team = {"long": lasting(clock, 3.9), "short": lasting(clock, 1.0)}
    assert child.as_long(team["long"], team["short"]) == 4
    assert child.as_long(team["short"], team["long"]) == 1
    clock[0] = 0.0
    found = child.turn(team, 2, {"long": 1, "short": 4})
    assert found == {"long": pytest.approx([3.9] * 2), "short": pytest.approx([1.0] * 2)}
    assert clock[0] == pytest.approx(3 * 3.9 + 9 * 1.0)


def test_a_team_takes_its_stretches_by_turns_in_a_changing_order() -> None:
    log: list[str] = []
    team: dict[str, child.Step] = {"a": lambda: log.append("a"), "b": lambda: log.append("b")}
    child.turn(team, 20, {"a": 1, "b": 1})
    pairs = {log[i] + log[i + 1] for i in range(0, len(log), 2)}
    assert len(log) == 42
    assert pairs == {"ab", "ba"}


def test_a_team_moves_one_set_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    move = saltflat_engine.Place.move

    def watched(self: saltflat_engine.Place, *given: Any) -> None:
        seen.append(self.params["1.weight"])
        move(self, *given)
        seen.append(self.params["1.weight"])

    monkeypatch.setattr(saltflat_engine.Place, "move", watched)
    team = engines.team(["saltflat-sat", "saltflat"], TINY.model(), TINY.batch())
    for name in ("saltflat", "saltflat-sat", "saltflat"):
        team[name]()
    assert seen[1] is seen[2]
    assert seen[3] is seen[4]
    assert not torch.equal(seen[0], seen[5])


def test_engines_that_are_compared_take_more_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child_file = tmp_path / "child.py"
    child_file.write_text(
        "print('{}', flush=True)\n"
        "steps = int(input())\n"
        'print(\'{"peak_mb": 1, "seconds": %s}\' % ([1.0] * steps), flush=True)\n'
    )
    monkeypatch.setattr(race, "CHILD", child_file)
    for beside, steps in ((None, race.TIMED_STEPS), ("saltflat", race.PAIRED_STEPS)):
        runner = race.Runner("mlp", "saltflat-sat", threads=1, beside=beside)
        assert len(runner.turn().seconds) == steps
        runner.leave()


def test_slow_engines_take_three_turns_and_make_room() -> None:
    log: list[str] = []
    running = fakes(log, sgd={}, slow={"seconds": 3.1}, fast={"seconds": 2.9})
    running.enter(["sgd", "slow", "fast"])
    assert log.index("slow left") < log.index("fast")
    assert running.seconds["slow"] == [3.1] * 2 * race.SLOW_TURNS
    log.clear()
    running.round(0)
    assert sorted(log) == ["fast", "sgd"]


def test_an_engine_that_cannot_start_is_out_and_the_others_run() -> None:
    def start(name: str) -> Fake:
        if name == "b":
            raise race.Dropped("not installed")
        return Fake(name, [])

    done = race.run(start, ["a", "b"], budget=0.0, least=2)
    assert (done.error("a"), done.error("b")) == ("", "not installed")
    assert (done.median("a"), done.median("b")) == (pytest.approx(1.0), None)
    assert [one.runners for one in done.races] == [{}] * race.HEATS


def test_every_heat_starts_afresh_without_those_who_were_slow_or_come_once() -> None:
    log: list[str] = []
    speeds = iter([1.0, 3.5, 2.0, 2.0, 4.0, 8.0])  # sgd, slow, fast and peer; then sgd and fast once more

    def start(name: str) -> Fake:
        log.append(f"{name} starts")
        return Fake(name, log, seconds=next(speeds))

    names = ("sgd", "slow", "fast", "peer")
    done = race.run(start, names, budget=0.0, least=1, heats=2, once=["peer"])
    assert [line for line in log if line.endswith("starts")] == [
        f"{name} starts" for name in (*names, "sgd", "fast")
    ]
    assert done.median("sgd") == pytest.approx(2.0)  # of 1 and 4
    assert done.median("fast") == pytest.approx(4.0)  # of 2 and 8
    assert done.median("slow") == pytest.approx(3.5)
    assert done.ratio("fast") == pytest.approx(0.5)
    assert done.timed("fast") == 4
    assert done.peak_mb("slow") > 100


@pytest.mark.parametrize(("took", "budget", "expected"), [(1.0, 5.0, 5), (100.0, 5.0, 3), (0.0, 0.0, 3)])
def test_rounds_go_on_while_there_is_time_and_never_below_the_fewest(
    took: float, budget: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    monkeypatch.setattr(race.Race, "round", lambda self, turn: (turns.append(turn), took)[1])
    race.run(lambda name: Fake(name, []), ["a"], budget=budget, least=3, heats=1)
    assert turns == list(range(expected))


@pytest.mark.slow
def test_every_child_is_timed_and_measured() -> None:
    rows = step.measured_model(step.Effort(1, 0.0, 1, 1), "tutorial-cnn", ("sgd", "saltflat", "saltflat-sam"))
    assert [row.note for row in rows] == ["", "", ""]
    assert rows[0].ratio_to_sgd == 1.0
    assert [row.ratio_to_dp_sgd is None for row in rows] == [True, True, False]
    assert rows[2].ratio_to_dp_sgd > 0
    assert all(row.ratio_to_sgd > 0 and row.peak_mb > 100 and row.median_ms > 0 for row in rows)


def test_a_child_that_dies_is_an_error_and_not_a_crash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child_file = tmp_path / "child.py"
    monkeypatch.setattr(race, "CHILD", child_file)
    child_file.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(race.Dropped, match="signal 9"):
        race.Runner("mlp", "sgd", threads=1)
    child_file.write_text("raise SystemExit('the reason')")
    with pytest.raises(race.Dropped, match=r"^the reason$"):
        race.Runner("mlp", "sgd", threads=1)


def test_a_child_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child_file = tmp_path / "child.py"
    child_file.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(race, "CHILD", child_file)
    monkeypatch.setattr(race, "PATIENCE", 0.2)
    with pytest.raises(race.Dropped, match="gave up"):
        race.Runner("mlp", "sgd", threads=1)


def test_a_turn_times_all_steps_but_the_first() -> None:
    calls: list[int] = []
    assert len(child.turn({"a": lambda: calls.append(1)}, 2, {"a": 1})["a"]) == 2
    assert len(calls) == 3


def test_peak_memory_sees_an_allocation() -> None:
    before = child.peak_mb()
    torch.ones(int(before * 1e6 / 4) + 25_000_000)  # more than everything held so far
    assert child.peak_mb() > before + 50


@pytest.mark.parametrize("text", ["0", "-1", "two", "nan", "1.5"])
def test_threads_must_be_a_positive_whole_number(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        step.arguments(["--threads", text])
    assert "--threads" in capsys.readouterr().err


def row(
    model: str, engine: str, ratio: float | None, peak: float | None, pair: float | None = None
) -> report.Row:
    return report.Row(model=model, engine=engine, ratio_to_sgd=ratio, peak_mb=peak, ratio_to_dp_sgd=pair)


BOARD = report.Board(
    (
        *(row("a", "sgd", 1.0, 100.0), row("b", "sgd", 1.0, 100.0)),
        *(row("a", "opacus-ghost", 4.0, 100.0), row("b", "opacus-ghost", None, None)),
        *(row("a", "sgd-kept", 0.5, 100.0), row("b", "sgd-kept", 0.8, 100.0)),
        *(row("a", "saltflat", 1.0, 100.0), row("b", "saltflat", 1.21, 144.0)),
        *(row("a", "saltflat-sam", 3.0, 100.0, 2.0), row("b", "saltflat-sam", 9.0, 100.0, 2.42)),
    )
)


def test_columns_beside_the_engines_compare_what_belongs_together() -> None:
    assert BOARD.ratios() == {
        "fastest Opacus / saltflat": [4.0, None],
        "saltflat / sgd-kept": [2.0, pytest.approx(1.5125)],
        "saltflat-sam / saltflat": [2.0, 2.42],  # from one process, not 3 / 1 and 9 / 1.21
    }
    assert report.table(BOARD).row_count == 3


def test_every_target_is_held_against_its_figure() -> None:
    assert report.verdicts(BOARD) == [
        "time against plain SGD, mean: 1.100 (at most 1.1: met)",
        "time against plain SGD, most: 1.210 (at most 1.25: met)",
        "fastest Opacus / saltflat, mean: 4.000 (at least 2: met)",
        "fastest Opacus / saltflat, least: 4.000 (at least 1: met)",
        "memory against plain SGD, mean: 1.200 (at most 1.25: met)",
        "DP-SAM / DP-SGD, mean: 2.200 (at most 2: NOT MET)",
    ]
    slower = report.Board((row("a", "sgd", 1.0, 1.0), row("a", "saltflat", 1.26, 1.3)))
    assert [line.rpartition(": ")[2] for line in report.verdicts(slower)] == ["NOT MET)"] * 3


def test_the_page_has_the_same_figures() -> None:
    lines = report.markdown(BOARD)
    assert len(lines) == 6
    assert len({line.count("|") for line in lines}) == 1
    assert lines[3].startswith("| b | – | 1.00 (100) | – | 0.80 (100) | 1.21 (144) | 9.00 (100) | – |")
    assert lines[4].endswith("| 4.000 | 1.739 | 2.200 |")


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
