"""A run that ends early goes on where it was: same weights, fresh noise, nothing unpaid, no wrong plan."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import FixedNoise, Tree, flat
from steps import CRITERION, beside, examples, network, phase, plan
from torch import nn

from saltflat import Checkpoints, Plan, per_example, supervised, train
from saltflat.core import draw
from saltflat.core import train as loop
from saltflat.core.resume import as_begun
from saltflat.core.stop import finish_first
from saltflat.data import TensorUnits
from saltflat.errors import BudgetError, DataError, Interrupted, LedgerError, PrivacyError, SettingError
from saltflat.methods import DPLIS, SAM, SAT
from saltflat.optimizers import EMA, SGD, Adam, AdamBC, Torch
from saltflat.privacy.noise import SecureNoise, SecureSampling, SeededNoise
from saltflat.privacy.record.checkpoint import load
from saltflat.privacy.record.history import Budget, read
from saltflat.privacy.record.ledger import Ledger
from saltflat.schedules import Linear


class Crash(Exception):
    """Stands for whatever ends a process."""


def run(
    the_plan: Plan, folder: Path | None, *, crash: int | None = None, model: Any = None, **changes
) -> Tree:
    """Train, every step kept; ``crash`` ends it after so many steps in this process."""
    left = [crash]

    def watch(progress: Any) -> None:
        if left[0] is not None:
            left[0] -= 1
            if left[0] < 0:
                raise Crash

    kept = None if folder is None else Checkpoints(folder, every=1)
    given = {"noise": FixedNoise(), "sampling": np.random.default_rng(0), "physical": 5, "watch": watch}
    around = beside(**{**given, "checkpoints": kept, **changes})
    return train(
        the_plan, per_example(model or network(), supervised(CRITERION)), TensorUnits(examples()), **around
    )


def advanced(calls: int, like: Tree) -> FixedNoise:
    """Noise that stands where a run left it after so many calls."""
    noise = FixedNoise()
    for _ in range(calls):
        noise.normal(like)
    return noise


class Counted:
    """DP-SGD that counts its steps."""

    def init(self, params: Tree) -> int:
        return 0

    def step(self, ask: Any, params: Tree, state: int) -> tuple[Tree, int]:
        return ask(params), state + 1


halve = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
PLANS = {
    "sgd": (plan(phase(steps=6, optimizer=SGD(lr=0.1, momentum=0.9))), 1),
    "sat, adam": (plan(phase(steps=6, method=SAT(0.1, momentum=0.5), optimizer=Adam(lr=0.01))), 1),
    "torch": (plan(phase(steps=6, optimizer=Torch(lambda p: torch.optim.Adam(p, 0.01), halve))), 1),
    "sam": (plan(phase(steps=6, method=SAM(0.1))), 2),
    "ema": (Plan(phases=(phase(steps=6),), rate=0.5, size=12, ema=EMA(0.9)), 1),
    "phases": (plan(phase(steps=3, method=SAT(0.1)), phase(steps=3, noise_multiplier=2.0, clip_norm=0.5)), 1),
    "ended early": (
        plan(
            phase(steps=4, method=Counted(), until=lambda state: state == 2), phase(steps=2, method=SAT(0.1))
        ),
        1,
    ),
    "schedules": (
        plan(phase(steps=6, noise_schedule=Linear(1.0, 0.5, steps=6), optimizer=AdamBC(lr=0.01))),
        1,
    ),
    "wrapped": (plan(phase(steps=6, method=DPLIS(method=SAT(0.1), lr=0.1, copies=2))), 1),
    "fresh sam": (plan(phase(steps=6, method=SAM(0.1, fresh=True))), 2),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("crash", [1, 2, 3, 4])
def test_a_resumed_run_ends_where_an_undisturbed_one_does(tmp_path: Path, name: str, crash: int) -> None:
    """With the same noise and a seeded sampler, bit by bit; a crash falls before its step is kept."""
    the_plan, asks = PLANS[name]
    whole = run(the_plan, None)
    with pytest.raises(Crash):
        run(the_plan, tmp_path, crash=crash)
    assert load(tmp_path).meta["step"] == crash
    resumed = run(the_plan, tmp_path, noise=advanced(asks * crash, whole), sampling=np.random.default_rng(99))
    assert torch.equal(flat(resumed), flat(whole))


def test_the_running_mean_is_what_the_run_ends_with() -> None:
    the_plan, _ = PLANS["ema"]
    seen: list[Any] = []
    model = network()
    found = run(the_plan, None, model=model, watch=seen.append)
    ema = EMA(0.9)
    state = ema.init({name: p.detach().clone() for name, p in network().named_parameters()})
    for progress in seen:
        state = ema.step(progress.params, state)
    assert torch.equal(flat(found), flat(state[1]))
    assert torch.equal(flat(dict(model.named_parameters())), flat(found))
    assert not torch.equal(flat(found), flat(seen[-1].params))


def test_a_finished_run_touches_neither_data_nor_meter(tmp_path: Path) -> None:
    class Never:
        @property
        def count(self) -> int:
            raise AssertionError("the data was read")

        take = count

        def step(self, rate: float, noise_multiplier: float) -> None:
            raise AssertionError("a step was charged")

    done = run(plan(), tmp_path)
    again = train(
        plan(),
        per_example(network(1), supervised(CRITERION)),
        Never(),
        **beside(meter=Never(), checkpoints=Checkpoints(tmp_path)),
    )
    assert torch.equal(flat(again), flat(done))


def test_the_first_step_every_nth_and_the_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    real = loop.save
    monkeypatch.setattr(
        loop, "save", lambda folder, p, at, **how: kept.append(at.step) or real(folder, p, at, **how)
    )
    run(plan(phase(steps=8)), tmp_path, checkpoints=Checkpoints(tmp_path, every=3))
    assert kept == [1, 3, 6, 8]


def test_private_runs_draw_fresh_noise_and_fresh_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the noise nor the sample of a step that runs again may be the same: seeds do not come back."""
    drawn: list[Any] = []
    real = draw.poisson
    monkeypatch.setattr(draw, "poisson", lambda *args: drawn.append(args[2].random(4)) or real(*args))
    ends = []
    with pytest.raises(Crash):
        run(plan(), tmp_path / "kept", crash=2, noise=SecureNoise())
    assert load(tmp_path / "kept").meta["sampler"] is None
    for copy in ("a", "b"):
        shutil.copytree(tmp_path / "kept", tmp_path / copy)
        more = Checkpoints(tmp_path / copy, every=1, allow_more=True)  # no ledger knows what was lost
        ends.append(flat(run(plan(), tmp_path / copy, noise=SecureNoise(), checkpoints=more)))
    assert not torch.equal(*ends)
    assert len({tuple(numbers) for numbers in drawn}) == len(drawn) == 3 + 3 + 3


def test_mutant_sampler_set_back_in_a_private_run_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop._Run, "repeatable", property(lambda run: run.safeguards.sampling))
    with pytest.raises(AssertionError):
        test_private_runs_draw_fresh_noise_and_fresh_samples(tmp_path, monkeypatch)


OTHERS = {
    r"phases has 1 entries there and 2 here": plan(phase(), phase()),
    r"plan.phases\[0\].method is DPSGD there and SAT here": plan(phase(method=SAT(0.1))),
    r"plan.phases\[0\].clip_norm is 1.0 there and 2.0 here": plan(phase(clip_norm=2.0)),
    r"plan.phases\[0\].noise_multiplier is 1.0 there and 1.5 here": plan(phase(noise_multiplier=1.5)),
    r"plan.phases\[0\].optimizer.lr is 0.1 there and 0.2 here": plan(phase(optimizer=SGD(lr=0.2))),
    r"plan.phases\[0\].steps is 5 there and 4 here": plan(phase(steps=4)),
    r"plan.rate is 0.5 there and 0.25 here": plan(rate=0.25),
    r"plan.size is 12 there and 13 here": plan(size=13),
    r"plan.ema is None there and EMA here": Plan(phases=(phase(),), rate=0.5, size=12, ema=EMA()),
}


@pytest.mark.parametrize("words", OTHERS)
def test_another_plan_is_refused_in_one_line(tmp_path: Path, words: str) -> None:
    run(plan(), tmp_path)
    with pytest.raises(SettingError, match=f"belongs to another plan: .*{words}") as caught:
        run(OTHERS[words], tmp_path)
    assert "\n" not in str(caught.value)


def test_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    run(plan(), tmp_path)
    for other in (
        nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3)).double(),
        nn.Linear(4, 3).double(),
        network().float(),
    ):
        with pytest.raises(SettingError, match=r"belongs to another model: parameter '.*weight'") as caught:
            run(plan(), tmp_path, model=other)
        assert "\n" not in str(caught.value)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    from saltflat.privacy.record.checkpoint import save

    save(tmp_path, {"params": {}}, {"step": 1})
    with pytest.raises(DataError, match="not made by train"):
        run(plan(), tmp_path)


def test_a_damaged_checkpoint_is_said_once(tmp_path: Path) -> None:
    run(plan(), tmp_path)
    newest = max(tmp_path.glob("*.safetensors"))
    newest.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged") as caught:
        run(as_begun(Checkpoints(tmp_path), plan()), tmp_path)
    assert len(caught) == 1


class TestLedger:
    PLAN = plan(phase(steps=6, noise_multiplier=4.0))
    COST = (0.5, 4.0)

    def go(
        self,
        folder: Path,
        *,
        budget: Budget | None = None,
        name: str = "one",
        identity: str | None = None,
        **how: Any,
    ) -> Tree:
        with Ledger.open(folder / "a.ledger", dataset="twelve", budget=budget) as ledger:
            meter = ledger.run(name, block=1, identity=identity)
            return run(
                self.PLAN, folder / "kept", meter=meter, noise=SecureNoise(), sampling=SecureSampling(), **how
            )

    def test_steps_that_run_again_are_charged_again(self, tmp_path: Path) -> None:
        with pytest.raises(Crash):
            self.go(tmp_path, crash=3, checkpoints=Checkpoints(tmp_path / "kept", every=2))
        assert read(tmp_path / "a.ledger").steps() == {self.COST: 4}
        assert load(tmp_path / "kept").meta["step"] == 2
        self.go(tmp_path, checkpoints=Checkpoints(tmp_path / "kept", every=2, allow_more=True))
        assert read(tmp_path / "a.ledger").steps() == {self.COST: 4 + 4}
        assert load(tmp_path / "kept").meta["step"] == 6

    def test_as_many_steps_as_were_lost_are_left_out(self, tmp_path: Path) -> None:
        with pytest.raises(Crash):
            self.go(tmp_path, crash=3, checkpoints=Checkpoints(tmp_path / "kept", every=2))
        with pytest.warns(UserWarning, match=r"^2 of 6 planned steps were left out: .* stay charged"):
            self.go(tmp_path)
        assert read(tmp_path / "a.ledger").steps() == {self.COST: 6}
        assert load(tmp_path / "kept").meta["step"] == 4  # two were lost after the second one
        with pytest.warns(UserWarning, match="2 of 6"):
            self.go(tmp_path)  # it is over, and stays so
        assert read(tmp_path / "a.ledger").steps() == {self.COST: 6}

    def test_without_a_record_all_that_was_left_counts_as_taken(self, tmp_path: Path) -> None:
        private = {"noise": SecureNoise(), "sampling": SecureSampling()}
        with pytest.raises(Crash):
            run(self.PLAN, tmp_path, crash=2, **private)
        seen: list[Any] = []
        with pytest.warns(UserWarning, match="4 of 6 planned steps were left out: no record says"):
            run(self.PLAN, tmp_path, watch=seen.append, **private)
        assert not seen

    def test_an_older_copy_of_the_ledger_is_refused(self, tmp_path: Path) -> None:
        files = [tmp_path / "a.ledger", tmp_path / "a.ledger.head"]
        with pytest.raises(Crash):
            self.go(tmp_path, crash=1)
        copies = [file.read_bytes() for file in files]
        with pytest.raises(Crash):
            self.go(tmp_path, crash=2)
        for file, copy in zip(files, copies, strict=True):
            file.write_bytes(copy)
        with pytest.raises(LedgerError, match="an older copy was restored"):
            self.go(tmp_path)

    def test_a_new_ledger_in_the_place_of_a_lost_one_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Crash):
            self.go(tmp_path, crash=2)
        (tmp_path / "a.ledger").unlink()
        (tmp_path / "a.ledger.head").unlink()
        with pytest.raises(LedgerError, match="has no line"):
            self.go(tmp_path)

    def test_going_on_without_the_ledger_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Crash):
            self.go(tmp_path, crash=2)
        with pytest.raises(LedgerError, match="was charged to a ledger"):
            run(self.PLAN, tmp_path / "kept", noise=SecureNoise(), sampling=SecureSampling())

    def test_a_ledger_for_what_began_without_one_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Crash):
            run(self.PLAN, tmp_path / "kept", noise=SecureNoise(), sampling=SecureSampling(), crash=2)
        with pytest.raises(LedgerError, match="was not charged to a ledger"):
            self.go(tmp_path)

    @pytest.mark.parametrize("identity", [None, "0123456789abcdef"])
    def test_another_run_of_the_ledger_does_not_go_on(self, tmp_path: Path, identity: str | None) -> None:
        """Its statement would count the later steps alone; under its identity it goes on, whatever it is called."""
        with pytest.raises(Crash):
            self.go(tmp_path, crash=2, identity=identity)
        with pytest.raises(LedgerError, match=r"was charged to the run '(one|0123456789abcdef)'") as caught:
            self.go(tmp_path, name="two")
        assert "\n" not in str(caught.value)
        with pytest.warns(UserWarning, match="1 of 6"):  # the crash fell before its step was kept
            self.go(tmp_path, name="one" if identity is None else "two", identity=identity)
        assert read(tmp_path / "a.ledger").steps() == {self.COST: 6}

    def test_the_budget_ends_a_run_and_what_it_has_is_kept(self, tmp_path: Path) -> None:
        budget = Budget(epsilon=plan(phase(steps=7, noise_multiplier=4.0)).epsilon(1e-5), delta=1e-5)
        lazy = {"checkpoints": Checkpoints(tmp_path / "kept", every=100, allow_more=True)}
        with pytest.raises(Crash):
            self.go(tmp_path, budget=budget, crash=4, **lazy)
        model = network()
        with pytest.raises(BudgetError):
            self.go(tmp_path, model=model, **lazy)
        history = read(tmp_path / "a.ledger")
        assert history.steps() == {self.COST: 7}
        assert history.epsilon(1e-5) <= budget.epsilon
        kept = load(tmp_path / "kept")
        assert kept.meta["step"] == 3  # one step was kept before the crash, two fitted after it
        assert torch.equal(flat(dict(model.named_parameters())), flat(kept.trees["params"]))

    def test_seeded_noise_needs_a_run_that_says_so(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "a.ledger", dataset="twelve") as ledger:
            with pytest.raises(PrivacyError, match="private=False"):
                run(plan(), None, noise=SeededNoise(1), meter=ledger.run("one"))
            run(plan(), None, noise=SeededNoise(1), meter=ledger.run("one", private=False))
            assert ledger.epsilon(1e-5) == float("inf")


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_the_step_ends_is_kept_and_the_run_leaves(self, tmp_path: Path, number: int) -> None:
        before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        model, seen = network(), []

        class Noise(FixedNoise):
            def normal(self, like: Tree) -> Tree:
                if self.calls == 2:
                    os.kill(os.getpid(), number)  # in the midst of step 3
                return super().normal(like)

        how = {"noise": Noise(), "watch": seen.append, "checkpoints": Checkpoints(tmp_path, every=100)}
        with pytest.raises(Interrupted, match=r"after step 3 of 5; it is kept in .*: run again") as caught:
            run(plan(), None, model=model, **how)
        assert caught.value.signal == number
        assert [progress.step for progress in seen] == [1, 2, 3]
        assert load(tmp_path).meta["step"] == 3
        assert torch.equal(flat(dict(model.named_parameters())), flat(load(tmp_path).trees["params"]))
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
        whole = run(plan(), None)
        resumed = run(plan(), tmp_path, noise=advanced(3, whole))
        assert torch.equal(flat(resumed), flat(whole))

    def test_a_signal_in_the_last_step_is_not_swallowed(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted, match="after step 5 of 5"):
            run(plan(), None, watch=lambda p: p.step == 5 and os.kill(os.getpid(), signal.SIGTERM))

    def test_the_second_signal_meets_the_former_handler(self) -> None:
        with finish_first() as caught:
            os.kill(os.getpid(), signal.SIGINT)
            assert caught == [signal.SIGINT]
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)

    def test_the_second_sigterm_ends_the_process_at_once(self) -> None:
        code = (
            "import os, signal\nfrom saltflat.core.stop import finish_first\n"
            "with finish_first():\n"
            "    for _ in range(2):\n        os.kill(os.getpid(), signal.SIGTERM)\n        print('alive', flush=True)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (-signal.SIGTERM, "alive\n")

    def test_ignored_signals_stay_ignored(self) -> None:
        former = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with finish_first() as caught:
                os.kill(os.getpid(), signal.SIGINT)
            assert caught == []
        finally:
            signal.signal(signal.SIGINT, former)

    def test_other_threads_change_no_handler(self) -> None:
        found: list[Any] = []

        def work() -> None:
            with finish_first() as caught:
                found.append((signal.getsignal(signal.SIGTERM), list(caught)))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [(signal.getsignal(signal.SIGTERM), [])]


def test_a_full_disk_ends_the_run_in_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from saltflat.privacy.record import durable

    with pytest.raises(Crash):
        run(plan(), tmp_path, crash=2)

    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "os", SimpleNamespace(**{**vars(os), "fsync": full}))
        with pytest.raises(DataError, match="No space left on device") as caught:
            run(plan(), tmp_path)
    assert "\n" not in str(caught.value)
    assert load(tmp_path).meta["step"] == 2


class TestAsBegun:
    """A calibration ends a few digits apart on another machine, and the run goes on as it began."""

    def kept(self, tmp_path: Path) -> tuple[Checkpoints, Plan]:
        begun, checkpoints = plan(phase(steps=2)), Checkpoints(tmp_path / "kept")
        train(
            begun,
            per_example(network(), supervised(CRITERION)),
            TensorUnits(examples()),
            **beside(checkpoints=checkpoints),
        )
        return checkpoints, begun

    def test_the_last_digits_are_those_of_the_first_start(self, tmp_path: Path) -> None:
        checkpoints, begun = self.kept(tmp_path)
        assert as_begun(checkpoints, begun.scaled(1 + 1e-11)) == begun

    def test_another_noise_stays_another(self, tmp_path: Path) -> None:
        checkpoints, begun = self.kept(tmp_path)
        assert as_begun(checkpoints, begun.scaled(1 + 1e-6)) == begun.scaled(1 + 1e-6)

    def test_without_a_checkpoint_the_plan_is_the_plan(self, tmp_path: Path) -> None:
        assert as_begun(Checkpoints(tmp_path / "none"), plan()) == plan()
