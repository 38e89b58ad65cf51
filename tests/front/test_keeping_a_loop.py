"""`PrivateLoop.state_dict` and `load_state_dict`: a loop of one's own goes on from a checkpoint of one's own."""

from __future__ import annotations

import copy
import io
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from people import SecretCoins, around
from reference import flat
from steps import CRITERION, examples, network, phase, plan, point_of

import saltflat as sf
from saltflat.errors import DataError, LedgerError, PrivacyError, SettingError
from saltflat.front import PrivateLoop
from saltflat.privacy.accounting import bounds
from saltflat.privacy.accounting.events import compose, phase_event
from saltflat.privacy.noise import SeededNoise
from saltflat.privacy.record.ledger import Ledger


class Counted:
    """DP-SGD that counts its steps."""

    def init(self, params: Any) -> torch.Tensor:
        return torch.zeros(())

    def step(self, ask: Any, params: Any, state: torch.Tensor) -> tuple[Any, torch.Tensor]:
        return ask(params), state + 1


FIVE = plan(phase(steps=5, method=sf.methods.SAT(0.1)))


class Begun:
    """A model, its optimizer and its loop; what is kept of them goes through a file."""

    def __init__(self, the_plan: sf.Plan = FIVE, **given: Any) -> None:
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        settings = {"plan": the_plan, "delta": 1e-3} | around(**given)
        self.private: PrivateLoop = sf.make_private(
            self.model, CRITERION, examples(), optimizer=self.optimizer, **settings
        )

    def step(self, steps: int) -> Begun:
        for _, batch in zip(range(steps), self.private, strict=False):
            self.private.step(batch)
        return self

    def kept(self) -> dict[str, Any]:
        parts = (self.model, self.optimizer, self.private)
        file = io.BytesIO()
        torch.save([part.state_dict() for part in parts], file)
        return torch.load(io.BytesIO(file.getvalue()), weights_only=True)

    def load(self, kept: Any, **given: Any) -> Begun:
        model, optimizer, private = kept
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.private.load_state_dict(private, **given)
        return self


def cost(steps: int, noise: float = 1.0) -> float:
    return bounds.epsilon(phase_event(0.5, noise, steps), 1e-3)


def test_it_goes_on_as_if_nothing_had_happened() -> None:
    """With sources that go on too: method, momentum, weights and place are all back."""
    whole, first = Begun().step(5), Begun().step(2)
    again = Begun(noise=first.private._safeguards.noise, sampling=first.private._safeguards.sampling)
    again.load(first.kept(), lost=0).step(5)
    assert again.private.finished
    torch.testing.assert_close(flat(point_of(again.model)), flat(point_of(whole.model)), rtol=0, atol=0)
    assert again.private.epsilon() == again.private.statement.epsilon == whole.private.epsilon()


def test_samples_are_drawn_afresh() -> None:
    first = Begun().step(2)
    waiting = next(iter(first.private))
    state = first.private.state_dict()
    assert not any(
        torch.is_tensor(leaf) and leaf.dtype == torch.int64 for leaf in state["method"]["tensors"].values()
    )
    other = Begun(sampling=SecretCoins(7)).load(first.kept(), lost=0)
    found = next(iter(other.private))
    assert found.number == waiting.number == 3
    assert found.samples[0].tolist() != waiting.samples[0].tolist()


def left(begun: Begun) -> int:
    """How many more steps the loop takes."""
    return 0 if begun.private.finished else sum(begun.private.step(batch) is None for batch in begun.private)


PLANS = {
    "one phase": FIVE,
    "two phases": plan(phase(steps=3), phase(steps=3, noise_multiplier=2.0)),
    "noisier first": plan(phase(steps=3, noise_multiplier=2.0), phase(steps=3)),
    "a schedule": plan(phase(steps=6, noise_schedule=lambda step: 1.0 + step % 3 / 2)),
    "two samples": plan(phase(steps=5, method=sf.methods.SAM(0.1, fresh=True))),
    "ends by results": plan(
        phase(steps=3, method=Counted(), until=lambda state: state == 2), phase(steps=3, noise_multiplier=2.0)
    ),
}


class TestEpsilonIsAPromise:
    """Wherever a loop is stopped and however it goes on, it costs at most what was planned."""

    @pytest.mark.parametrize(
        "every",
        [pytest.param(True, marks=pytest.mark.slow, id="everywhere"), pytest.param(False, id="somewhere")],
    )
    @pytest.mark.parametrize("name", PLANS)
    def test_without_a_record(self, name: str, every: bool) -> None:
        """``lost`` is said rightly, and every step that ran counts; or it is left out."""
        the_plan = PLANS[name]
        target = Begun(the_plan).private.statement.epsilon
        for kept in range(1, the_plan.steps) if every else (2,):
            state = Begun(the_plan).step(kept).kept()
            for lost in range(the_plan.steps - kept + 1) if every else (0, 2):
                again = loaded(Begun(the_plan), state, lost=lost)
                assert left(again) == the_plan.steps - kept - lost or name in (
                    "ends by results",
                    "a schedule",
                )
                assert again.private.finished
                assert again.private.epsilon() <= target
                assert again.private.statement.epsilon == target
                noted = any(
                    "planned steps were left out" in each for each in again.private.statement.warnings
                )
                assert noted == (lost > 0)
            unknown = loaded(Begun(the_plan), state)
            assert left(unknown) == 0
            assert unknown.private.statement.epsilon == target

    @pytest.mark.parametrize("name", PLANS)
    @pytest.mark.parametrize("block", [pytest.param(1, marks=pytest.mark.slow), 64])
    def test_with_a_ledger(self, name: str, block: int, tmp_path: Path) -> None:
        """Three interruptions, each some steps after the state that was kept; blocks are lost with them."""
        the_plan, state = PLANS[name], None
        target = Begun(the_plan).private.statement.epsilon
        budget = sf.privacy.Budget(target * 9, 1e-3, order=the_plan.filter(1e-3).order)
        for part in range(4):
            with Ledger.open(tmp_path / "l", dataset="twelve", budget=budget) as book:
                run = book.run("one", block=block)
                mine = Begun(the_plan, meter=run)
                if state is not None:
                    loaded(mine, state)
                assert mine.private.statement.epsilon == target
                if part < 3:
                    mine = mine if mine.private.finished else mine.step(1)
                    state = mine.kept()
                    if not mine.private.finished:
                        mine.step(1)  # is lost
                    book._drop()  # as a kill does: nothing is given back
                else:
                    left(mine)
                    assert mine.private.finished
                    assert the_plan.covers(run.charged())
                    assert mine.private.epsilon() <= target

    def test_more_is_taken_where_that_is_allowed_and_it_says_so(self) -> None:
        again = Begun().load(Begun().step(2).kept(), lost=2, allow_more=True)
        target, more = cost(5), cost(7)
        words = (
            f"{sf.privacy.rounded_up(more)} is above the {sf.privacy.rounded_up(target)} that was planned, by"
        )
        assert any(words in each for each in again.private.statement.warnings)
        assert left(again) == 3
        assert again.private.epsilon() == pytest.approx(more) == again.private.statement.epsilon

    def test_it_stays_allowed_once_only(self) -> None:
        """A state of a loop that was allowed more: the next one is not, and takes nothing, and says what was spent."""
        state = Begun().load(Begun().step(2).kept(), lost=3, allow_more=True).step(1).kept()
        last = loaded(Begun(), state, lost=0)
        assert left(last) == 0
        assert last.private.statement.epsilon == pytest.approx(cost(6))
        assert any("is above the" in each for each in last.private.statement.warnings)

    def test_a_warning_says_how_many_and_why(self) -> None:
        state = Begun().step(2).kept()
        with pytest.warns(UserWarning, match=r"^1 of 5 planned steps were left out: steps that were lost"):
            begun = Begun().load(state, lost=1)
        assert begun.private.done == 2
        left(begun)
        assert begun.private.done == 4
        with pytest.warns(
            UserWarning, match=r"^3 of 5 .*: no record says .*; say lost=\.\.\., or give a ledger's run"
        ):
            nothing = Begun().load(state)
        with pytest.raises(PrivacyError, match="those that were lost count too"):
            next(iter(nothing.private))


def loaded(begun: Begun, state: Any, **given: Any) -> Begun:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return begun.load(state, **given)


class TestTheCountIsNeverBelowTheTruth:
    """Where more than planned is allowed."""

    def test_unless_it_is_said_all_that_was_left_counts_as_lost(self) -> None:
        again = Begun().load(Begun().step(2).kept(), allow_more=True)
        assert again.private.epsilon() == cost(5)  # two, and three that may have run
        assert again.private.statement.epsilon == pytest.approx(cost(5 + 3))
        again.step(5)
        assert again.private.epsilon() == pytest.approx(again.private.statement.epsilon) == cost(8)

    def test_as_many_as_are_said_to_be(self) -> None:
        again = Begun().load(Begun().step(2).kept(), lost=1, allow_more=True).step(5)
        assert again.private.epsilon() == pytest.approx(again.private.statement.epsilon) == cost(6)

    def test_again_and_again(self) -> None:
        state = Begun().step(2).kept()
        for _ in range(3):
            state = Begun().load(state, lost=2, allow_more=True).kept()
        last = Begun().load(state, lost=0, allow_more=True).step(5)
        assert last.private.epsilon() == pytest.approx(last.private.statement.epsilon) == cost(5 + 6)

    def test_the_next_steps_are_the_lost_ones(self) -> None:
        two = plan(phase(steps=3), phase(steps=3, noise_multiplier=2.0))
        again = Begun(two).load(Begun(two).step(2).kept(), lost=2, allow_more=True).step(6)
        steps = compose(phase_event(0.5, 1.0, 4), phase_event(0.5, 2.0, 4))
        assert again.private.epsilon() == pytest.approx(bounds.epsilon(steps, 1e-3))
        assert again.private.statement.epsilon == pytest.approx(again.private.epsilon())

    def test_two_samples_are_lost_as_two(self) -> None:
        fresh = plan(phase(steps=4, method=sf.methods.SAM(0.1, fresh=True)))
        again = Begun(fresh).load(Begun(fresh).step(1).kept(), lost=1, allow_more=True).step(4)
        assert sum(again.private._spent.steps.values()) == 2 * (4 + 1)
        assert again.private.statement.epsilon == pytest.approx(again.private.epsilon())

    def test_where_results_choose_the_steps_the_lost_ones_count_as_the_dearest(self) -> None:
        until = plan(phase(steps=3, until=lambda state: False), phase(steps=3, noise_multiplier=2.0))
        again = Begun(until).load(Begun(until).step(2).kept(), lost=2, allow_more=True)
        assert again.private.statement.epsilon > Begun(until).private.statement.epsilon
        dearest = until.event_on_record({(0.5, 1.0): 5, (0.5, 2.0): 3})
        assert again.private.statement.epsilon == pytest.approx(bounds.epsilon(dearest, 1e-3))
        assert again.private.epsilon() > until.epsilon(1e-3)

    def test_a_ledger_knows(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "l", dataset="twelve") as book:
            with book.run("one", block=1) as run:
                first = Begun(meter=run).step(2)
                kept = first.kept()
                first.step(2)  # these are lost
            with book.run("one", block=1) as run:
                again = Begun(meter=run).load(kept, lost=0, allow_more=True).step(5)
                assert again.private.epsilon() == pytest.approx(cost(7)) == run.epsilon(1e-3)
                assert again.private.statement.epsilon == pytest.approx(cost(7))
            with book.run("other", block=1) as run, pytest.raises(LedgerError, match="charged to the run"):
                Begun(meter=run).load(kept)
        with pytest.raises(LedgerError, match="charged to a ledger"):
            Begun().load(kept)

    def test_seeded_noise_stays_stamped(self) -> None:
        again = Begun(noise=SeededNoise(1)).load(Begun(noise=SeededNoise(1)).step(1).kept(), lost=0)
        assert again.private.epsilon() == math.inf
        assert again.private.statement.stamp


class TestRefused:
    def test_a_loop_that_has_begun(self) -> None:
        kept = Begun().step(1).kept()
        for begun in (Begun().step(1), Begun()):
            next(iter(begun.private))
            with pytest.raises(PrivacyError, match="into a loop that is new"):
                begun.load(kept)

    def test_another_plan(self) -> None:
        other = plan(phase(steps=5, method=sf.methods.SAT(0.1), noise_multiplier=2.0))
        with pytest.raises(
            SettingError, match=r"another plan: plan.phases\[0\].noise_multiplier is 1.0 there"
        ):
            Begun(other).load(Begun().step(1).kept())

    @pytest.mark.parametrize("lost", [-1, 4, 1.0, True, "none"])
    def test_wrong_numbers(self, lost: Any) -> None:
        with pytest.raises(SettingError, match="0 to 3"):
            Begun().load(Begun().step(2).kept(), lost=lost)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"step": 5}, "fewer steps than it took"),
            ({"spent": []}, "fewer steps than it took"),
            ({"spent": [[0.5, 1.0, -2]]}, "no state of a loop"),
            ({"again": [[0.5, 1.0, 9]]}, "fewer steps than it took"),
            ({"phase": 3}, "fewer steps than it took"),
            ({"version": 3}, "version 3"),
            ({"dropped": 3}, "fewer steps than it took"),
            ({"method": None}, "no state of a loop"),
        ],
    )
    def test_states_that_were_changed(self, change: dict, says: str) -> None:
        state = copy.deepcopy(Begun().step(2).private.state_dict()) | change
        with pytest.raises(DataError, match=says):
            Begun().private.load_state_dict(state)

    @pytest.mark.parametrize("state", [{}, {"step": 3}, {"model": 1}])
    def test_what_is_no_state(self, state: dict) -> None:
        with pytest.raises(DataError, match=r"give what private.state_dict\(\) returned"):
            Begun().private.load_state_dict(state)
