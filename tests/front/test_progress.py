"""What `fit` shows while it runs, what a callback sees, and how a run ends early."""

from __future__ import annotations

import io
import math
import re
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from people import Secret, around
from reference import flat
from steps import CRITERION, examples, network, phase, plan, point_of
from torch import nn

import saltflat as sf
from saltflat.core.train import Progress, Spent
from saltflat.errors import Interrupted, ModelError
from saltflat.front import given, shown
from saltflat.privacy.accounting import bounds
from saltflat.privacy.accounting.events import phase_event

SIX = plan(phase(steps=6, optimizer=sf.optimizers.SGD(lr=0.5)))
LINE = re.compile(r"saltflat: step (\d+) of 6, epsilon [\d.]+ so far(, \d+ s left)?")


def fitted(model: nn.Module | None = None, the_plan: sf.Plan = SIX, **more: Any) -> Any:
    beside = {k: more.pop(k) for k in ("noise", "meter", "watch", "checkpoints") if k in more}
    return sf.fit(
        model or network(), CRITERION, examples(), plan=the_plan, delta=1e-3, **around(**beside), **more
    )


def cost(steps: int) -> float:
    return bounds.epsilon(phase_event(0.5, 1.0, steps), 1e-3)


class Pressed(Secret):
    """Sends a signal while the third step's noise is drawn, as a person or a machine would."""

    number = signal.SIGINT

    def normal(self, like):
        if self.calls == 2:
            signal.raise_signal(self.number)
        return super().normal(like)


class Asked(Pressed):
    number = signal.SIGTERM


class TestTheLine:
    def test_it_comes_before_anything_is_worked_out(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        already: list[str] = []
        real = given.calibrate

        def calibrated(*args: Any, **settings: Any) -> sf.Plan:
            already.append(capsys.readouterr().err)
            return real(*args, **settings)

        monkeypatch.setattr(given, "calibrate", calibrated)
        fitted(epsilon=3.0)
        assert already == [shown.PLANNING + "\n"]

    def test_a_plain_one_where_there_is_no_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        fitted()
        out, err = capsys.readouterr()
        first, *rest = err.splitlines()
        assert out == ""
        assert first == shown.PLANNING
        assert [LINE.fullmatch(line)[1] for line in rest] == ["1", "6"]
        assert rest[-1].endswith("so far")  # no time is left

    def test_a_live_one_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import rich.console

        screen = io.StringIO()
        real = rich.console.Console
        as_terminal = lambda **given: real(file=screen, force_terminal=True, width=100)
        monkeypatch.setattr(rich.console, "Console", as_terminal)
        fitted()
        assert "step 6 of 6, epsilon" in screen.getvalue()

    def test_quiet(self, capsys: pytest.CaptureFixture[str]) -> None:
        fitted(quiet=True)
        assert capsys.readouterr() == ("", "")

    def test_the_values_of_the_data_do_not_change_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = []
        for data in (examples(), (examples()[0] * 1e6, 2 - examples()[1])):
            sf.fit(network(), CRITERION, data, plan=SIX, delta=1e-3, **around())
            said.append(re.sub(r", \d+ s left", "", capsys.readouterr().err))
        assert said[0] == said[1]

    def test_lines_become_fewer(self) -> None:
        now, lines = [0.0], []
        line = shown.Plain(lines.append, clock=lambda: now[0])
        spent = Spent(SIX, secret=True)
        for step in range(1, 1001):
            now[0] += 1.0
            line.step(Progress(step, 0, {}, {}, 1001, nn.Flatten(), spent, 1e-3))
        assert [int(place(each)) for each in lines[1:]] == [1, 6, 16, 36, 76, 156, 316, 616, 916]
        assert "step 6 of 1001, epsilon 0 so far, 16 min 35 s left" in lines[2]


def place(line: str) -> str:
    return re.search(r"step (\d+) of", line)[1]


class TestWatch:
    def test_the_model_has_the_weights_of_the_step(self) -> None:
        model, seen = network(), []

        def look(progress: Progress) -> None:
            assert progress.model is model
            torch.testing.assert_close(flat(point_of(model)), flat(progress.ending), rtol=0, atol=0)
            seen.append(flat(point_of(model)).clone())

        fitted(model, watch=look)
        assert len({tuple(each.tolist()) for each in seen}) == 6

    def test_epsilon_so_far(self) -> None:
        seen: list[float] = []
        result = fitted(watch=lambda progress: seen.append(progress.epsilon()))
        assert seen == [cost(steps) for steps in range(1, 7)]
        assert result.epsilon == seen[-1] == result.spent

    def test_what_it_does_to_the_model_is_undone(self) -> None:
        """Weights come from the run, and dropout stays on, though a callback evaluates."""
        modes: list[bool] = []
        model, other = network(), network()

        def meddle(progress: Progress) -> None:
            modes.append(model.training)
            model.eval()
            with torch.no_grad():
                model[0].weight.zero_()

        fitted(model, watch=meddle)
        fitted(other)
        assert modes == [True] * 6
        assert torch.equal(flat(point_of(model)), flat(point_of(other)))

    @pytest.mark.parametrize("yes", [True, np.True_, torch.tensor(True)])
    def test_true_ends_the_run(self, yes: Any) -> None:
        seen: list[Progress] = []
        model = network()
        result = fitted(model, watch=lambda progress: seen.append(progress) or (progress.step == 2 and yes))
        assert (result.stopped, result.steps, result.interrupted) == ("watch", 2, False)
        assert torch.equal(flat(point_of(model)), flat(seen[-1].ending))
        assert torch.equal(flat(result.params), flat(seen[-1].ending))

    def test_results_may_have_chosen_when_so_the_whole_plan_is_stated(self) -> None:
        result = fitted(watch=lambda progress: progress.step == 2)
        assert result.epsilon == SIX.epsilon(1e-3)
        assert result.spent == cost(2) < result.epsilon
        assert "stopped by watch after step 2 of 6: epsilon is that of the whole plan" in str(result)

    @pytest.mark.parametrize("answer", [None, False, 1, 0.99, "stop", torch.ones(2)])
    def test_nothing_else_ends_it(self, answer: Any) -> None:
        assert fitted(watch=lambda progress: answer).steps == 6

    def test_the_model_is_looked_at_when_a_run_ends_early(self) -> None:
        """A buffer that took something in would be released with the weights."""
        model = network()
        model.register_buffer("seen", torch.zeros(1))

        def keep(progress: Progress) -> bool:
            model.seen += 1.0
            return progress.step == 2

        with pytest.raises(ModelError, match="buffer 'seen' changes"):
            fitted(model, watch=keep)


class TestSignals:
    def test_ctrl_c_gives_what_there_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        model = network()
        result = fitted(model, noise=Pressed())
        assert result.interrupted
        assert result.steps == 3
        assert torch.equal(flat(result.params), flat(point_of(model)))
        assert not torch.equal(flat(point_of(model)), flat(point_of(network())))
        said = "stopped by SIGINT after step 3 of 6; the model has its weights"
        assert said in capsys.readouterr().err

    def test_no_result_was_shown_so_the_steps_taken_are_stated(self) -> None:
        result = fitted(noise=Pressed())
        assert result.epsilon == result.spent == cost(3) == result.statement.epsilon
        assert "epsilon is that of the steps taken" in result.statement.as_text()

    def test_with_a_callback_the_whole_plan_is(self) -> None:
        result = fitted(noise=Pressed(), watch=lambda progress: None)
        assert result.interrupted
        assert (result.epsilon, result.spent) == (SIX.epsilon(1e-3), cost(3))

    def test_results_that_choose_the_steps_are_always_covered_by_the_plan(self) -> None:
        until: Callable[[Any], bool] = lambda state: False
        two = plan(phase(steps=3, until=until), phase(steps=3, noise_multiplier=2.0))
        result = fitted(the_plan=two, noise=Pressed())
        assert result.epsilon == result.spent == two.epsilon(1e-3)

    def test_a_request_to_end_the_program_is_passed_on(self) -> None:
        model = network()
        with pytest.raises(
            Interrupted, match="stopped by SIGTERM after step 3 of 6; the model has its weights"
        ):
            fitted(model, noise=Asked())
        assert not torch.equal(flat(point_of(model)), flat(point_of(network())))

    def test_before_the_first_step_there_is_nothing_to_give(self) -> None:
        class Early(sf.data.TensorUnits):
            def take(self, indices: Any) -> Any:
                if not pressed:
                    pressed.append(signal.raise_signal(signal.SIGINT))
                return super().take(indices)

        pressed: list[None] = []
        model = network()
        with pytest.raises(Interrupted, match="after step 0 of 6"):
            sf.fit(model, CRITERION, Early(examples()), plan=SIX, delta=1e-3, **around())
        assert torch.equal(flat(point_of(model)), flat(point_of(network())))

    def test_what_is_not_private_stays_stamped(self) -> None:
        class Open(Pressed):
            private = False

        result = fitted(noise=Open())
        assert result.interrupted
        assert result.epsilon == result.spent == math.inf
        assert str(result).startswith("NOT PRIVATE")
