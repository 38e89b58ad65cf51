"""What is read ahead is told to nobody: the same weights, charges and samples, whoever reads when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steps import CRITERION, examples, network, phase

import saltflat as sf
from saltflat.core import train as loop
from saltflat.core.ahead import Ahead, ahead_of
from saltflat.core.sampling import OnDevice, TensorUnits
from saltflat.errors import BudgetError
from saltflat.privacy import Budget, Ledger, SeededNoise

COUNT, STEPS = 40, 4


@dataclass
class Read:
    """Units that have to be read, and know by whom they were; ``broken`` ones cannot be."""

    workers: int = 1
    broken: tuple[int, ...] = ()
    threads: list[str] = field(default_factory=list)
    asked: list[tuple[int, ...]] = field(default_factory=list)

    count = COUNT
    is_row_wise = True

    @property
    def reads_ahead(self) -> bool:
        return self.workers > 0

    def take(self, indices: np.ndarray) -> Any:
        self.threads.append(threading.current_thread().name)
        self.asked.append(tuple(int(each) for each in indices))
        if set(self.asked[-1]) & set(self.broken):
            raise OSError(f"unit {self.broken} of {COUNT} is broken")
        return TensorUnits(examples(COUNT)).take(indices)


def planned(method: Any = None, steps: int = STEPS, **changes: Any) -> sf.Plan:
    one = phase(method=method or sf.methods.DPSGD(), steps=steps, **changes)
    return sf.Plan(phases=(one,), rate=0.4, size=COUNT)


def trained(
    units: Any, plan: sf.Plan | None = None, *, guards: sf.Safeguards | None = None, **running: Any
) -> torch.Tensor:
    seeded = sf.Safeguards(noise=SeededNoise(3), sampling=np.random.default_rng(3))
    found = sf.train(
        plan or planned(),
        sf.per_example(network(), sf.supervised(CRITERION)),
        units,
        safeguards=guards or seeded,
        running=sf.Running(**{"physical": 5, **running}),
    )
    return torch.cat([leaf.flatten() for leaf in found.values()])


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[int, ...]]]:
    """Every sample that was drawn, and every one whose door was opened, in their order."""
    seen: dict[str, list[tuple[int, ...]]] = {"drawn": [], "stepped": []}
    draw, door = loop.draw, loop.open_door

    def drawing(*given: Any) -> Any:
        found = draw(*given)
        seen["drawn"] += [tuple(each.tolist()) for each in found]
        return found

    def opening(plan: Any, at: Any, drawn: Any, *given: Any, **more: Any) -> Any:
        seen["stepped"] += [tuple(each.tolist()) for each in drawn]
        return door(plan, at, drawn, *given, **more)

    monkeypatch.setattr(loop, "draw", drawing)
    monkeypatch.setattr(loop, "open_door", opening)
    return seen


METHODS = [sf.methods.DPSGD(), sf.methods.SAM(0.1, fresh=True)]


class TestNothingChanges:
    @pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(method))
    def test_the_weights_are_the_same(self, method: Any) -> None:
        plan = planned(method)
        assert torch.equal(trained(Read(workers=2), plan), trained(Read(workers=0), plan))

    def test_units_that_cannot_be_read_add_nothing_and_nothing_is_said(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        broken = (3, 17, 18)
        assert torch.equal(trained(Read(broken=broken)), trained(Read(workers=0, broken=broken)))
        assert not torch.equal(trained(Read(broken=broken)), trained(Read()))
        assert capfd.readouterr() == ("", "")

    def test_a_run_that_goes_on_goes_on_alike(self, tmp_path: Path) -> None:
        """With a sampler that can be set back: were it drawn from early, it would be set back to another place."""
        found = []
        for workers in (0, 1):
            kept = sf.Checkpoints(tmp_path / str(workers), every=1)
            trained(Read(workers), checkpoints=kept, watch=lambda progress: progress.step == 2)
            found.append(trained(Read(workers), checkpoints=kept))
        assert torch.equal(*found)


class TestSecretDraws:
    """Where draws leave no trace the next sample is drawn while this one is computed."""

    def test_each_sample_is_stepped_once_in_the_order_of_draws(self, samples: dict[str, list]) -> None:
        trained(Read(), guards=sf.Safeguards())
        assert samples["stepped"] == samples["drawn"]
        assert len(set(samples["stepped"])) == STEPS

    def test_two_samples_in_a_step(self, samples: dict[str, list]) -> None:
        trained(Read(), planned(sf.methods.SAM(0.1, fresh=True)), guards=sf.Safeguards())
        assert samples["stepped"] == samples["drawn"]
        assert len(set(samples["stepped"])) == 2 * STEPS

    def test_the_first_batch_of_the_next_step_is_read_by_another_thread(self) -> None:
        units = Read()
        trained(units, guards=sf.Safeguards(), physical=COUNT)
        whole = [who for who, asked in zip(units.threads, units.asked, strict=True) if len(asked) > 6]
        assert sum(who != "MainThread" for who in whole) >= STEPS - 1

    def test_a_sample_that_is_never_stepped_is_never_charged(
        self, tmp_path: Path, samples: dict[str, list]
    ) -> None:
        """The watch ends the run after two steps: a third sample was drawn, and is forgotten when the run goes on."""
        kept = sf.Checkpoints(tmp_path / "kept", every=1)
        with Ledger.open(tmp_path / "a.ledger", dataset="x") as ledger:
            for stop in (2, STEPS):
                with ledger.run("one", block=1) as run:
                    watch = lambda progress, stop=stop: progress.step == stop
                    trained(Read(), guards=sf.Safeguards(meter=run), checkpoints=kept, watch=watch)
                    assert sum(run.charged().values()) == stop
        assert len(samples["stepped"]) == STEPS
        assert len(samples["drawn"]) == STEPS + 1
        (left,) = [number for number, each in enumerate(samples["drawn"]) if each not in samples["stepped"]]
        assert left == 2

    def test_a_refused_step_has_used_nobody(self, tmp_path: Path, samples: dict[str, list]) -> None:
        plan = planned()
        two = sf.Plan(phases=(phase(steps=2),), rate=0.4, size=COUNT).epsilon(1e-5)
        with (
            Ledger.open(tmp_path / "a.ledger", dataset="x", budget=Budget(two * 1.01, 1e-5)) as ledger,
            ledger.run("one", block=1) as run,
        ):
            with pytest.raises(BudgetError):
                trained(Read(), plan, guards=sf.Safeguards(meter=run))
            assert sum(run.charged().values()) == len(samples["stepped"]) == 2

    def test_a_phase_that_ends_by_results_forgets_what_was_drawn(self, samples: dict[str, list]) -> None:
        first = phase(steps=4, until=lambda state: True)
        plan = sf.Plan(phases=(first, phase(steps=1)), rate=0.4, size=COUNT)
        trained(Read(), plan, guards=sf.Safeguards())
        assert set(samples["stepped"]) <= set(samples["drawn"])
        assert len(set(samples["stepped"])) == len(samples["stepped"])
        assert samples["stepped"][0] == samples["drawn"][0]
        assert samples["stepped"][1] == samples["drawn"][2], "the second was drawn for the phase that ended"


class TestAhead:
    def test_only_what_has_workers_is_read_ahead(self) -> None:
        assert isinstance(ahead_of(Read(workers=1)), Ahead)
        files = sf.data.DatasetUnits.of(torch.utils.data.TensorDataset(*examples()), workers=1)
        assert isinstance(ahead_of(OnDevice(files, torch.device("cpu"))), Ahead)
        for units in (Read(workers=0), TensorUnits(examples()), replace(files, workers=0)):
            assert ahead_of(units) is units

    def test_a_batch_is_handed_out_once_and_to_its_own_units(self) -> None:
        units = Read()
        ahead, some = Ahead(units), np.array([1, 2, 3])
        ahead.expect(some)
        ahead.expect(some)
        assert torch.equal(ahead.take(np.array([4, 5]))[1], examples(COUNT)[1][4:6])
        for _ in range(2):
            assert torch.equal(ahead.take(some)[1], examples(COUNT)[1][1:4])
        assert sorted(units.asked) == [(1, 2, 3), (1, 2, 3), (4, 5)]

    def test_few_batches_wait(self) -> None:
        ahead = Ahead(Read())
        for first in range(10):
            ahead.expect(np.arange(first, first + 3))
        assert len(ahead._waiting) == 2

    def test_an_error_waits_until_it_is_asked_for(self) -> None:
        ahead = Ahead(Read(broken=(2,)))
        ahead.expect(np.array([1, 2]))
        with pytest.raises(OSError, match="broken"):
            ahead.take(np.array([1, 2]))

    def test_one_batch_is_read_at_a_time(self) -> None:
        """A reader need not be made for two that ask at once."""
        busy: list[int] = []

        class Slow(Read):
            def take(self, indices: np.ndarray) -> Any:
                busy.append(1)
                assert len(busy) == 1
                time.sleep(0.005)
                busy.pop()
                return super().take(indices)

        ahead = Ahead(Slow())
        for first in range(4):
            ahead.expect(np.arange(first, first + 3))
            ahead.take(np.array([first, first + 1]))
        ahead.take(np.arange(3, 6))


@pytest.mark.slow  # the accountants take some seconds to load
def test_a_loop_of_ones_own_reads_ahead_too() -> None:
    def weights(workers: int) -> Iterator[torch.Tensor]:
        model = network()
        private = sf.make_private(
            model,
            CRITERION,
            Read(workers=workers),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            noise_multiplier=1.0,
            batch_size=20,
            epochs=2,
            safeguards=sf.Safeguards(noise=SeededNoise(3), sampling=np.random.default_rng(3)),
            running=sf.Running(physical=5),
        )
        for batch in private:
            private.step(batch)
        yield from (leaf.detach().clone() for leaf in model.parameters())

    assert all(torch.equal(one, other) for one, other in zip(weights(0), weights(2), strict=True))
