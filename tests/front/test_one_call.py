"""`saltflat.fit`: the parts in one call, for whatever model, loss and data people bring."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from people import Items, Tagger, around, sentences, tagging
from reference import flat
from steps import CRITERION, examples, network, phase, plan, point_of
from torch import nn
from torch.nn import functional as F

import saltflat as sf
from saltflat.data import UNIT, Examples
from saltflat.errors import BudgetError, SettingError
from saltflat.privacy.accounting import bounds
from saltflat.privacy.accounting.events import compose
from saltflat.privacy.accounting.events import phase_event as accounting_event
from saltflat.privacy.noise import SeededNoise
from saltflat.privacy.record.history import Budget
from saltflat.privacy.record.ledger import Ledger

FEW = plan(phase(steps=3, method=sf.methods.SAT(0.1), optimizer=sf.optimizers.SGD(lr=0.5)))


def weights(model: nn.Module) -> torch.Tensor:
    return flat(point_of(model))


class TestTheParts:
    def test_equal_sources_equal_weights(self) -> None:
        """The call, and the same parts put together by hand."""
        first, second = network(), network()
        fitted = sf.fit(
            first,
            CRITERION,
            examples(),
            method=sf.methods.SAT(0.1),
            epsilon=3.0,
            delta=1e-3,
            batch_size=6,
            epochs=2,
            clip_norm=0.5,
            optimizer=sf.optimizers.SGD(lr=0.5, momentum=0.9),
            **around(),
        )
        one = phase(
            steps=4,
            method=sf.methods.SAT(0.1),
            clip_norm=0.5,
            optimizer=sf.optimizers.SGD(lr=0.5, momentum=0.9),
        )
        by_hand = sf.calibrate(plan(one), epsilon=3.0, delta=1e-3)
        contribution = sf.per_example(second, sf.supervised(CRITERION))
        params = sf.train(by_hand, contribution, sf.data.TensorUnits(examples()), **around())
        assert fitted.plan == by_hand
        assert torch.equal(flat(fitted.params), flat(params))
        assert torch.equal(weights(first), weights(second))
        assert fitted.model is first

    def test_the_result_says_what_it_costs(self) -> None:
        fitted = sf.fit(network(), CRITERION, examples(), plan=FEW, delta=1e-3, **around())
        assert fitted.epsilon == bounds.epsilon(FEW.event(), 1e-3)
        assert fitted.delta == 1e-3
        for said in ("epsilon ", "delta 0.001", "unit: one example", "add or remove one unit", "Poisson"):
            assert said in str(fitted) == repr(fitted)
        assert "NOT PRIVATE" not in str(fitted)

    def test_a_plan_is_scaled_to_an_epsilon(self) -> None:
        fitted = sf.fit(network(), CRITERION, examples(), plan=FEW, epsilon=2.0, delta=1e-3)
        assert 1.98 <= fitted.epsilon <= 2.0
        assert 1.98 <= fitted.plan.epsilon(1e-3) <= 2.0

    def test_sai_is_a_plan(self) -> None:
        two = sf.sai(steps=(2, 3), rate=0.5, size=12, epsilon=2.0, delta=1e-3)
        seen: list[int] = []
        watch = lambda progress: seen.append(progress.phase)
        fitted = sf.fit(network(), CRITERION, examples(), plan=two, delta=1e-3, **around(watch=watch))
        assert seen == [0, 0, 1, 1, 1]
        assert fitted.epsilon <= 2.0
        assert "SAT: 2 steps" in str(fitted)
        assert "DPSGD: 3 steps" in str(fitted)

    def test_a_plan_that_results_may_change_has_a_statement_too(self) -> None:
        two = sf.sai(
            steps=(3, 3),
            rate=0.5,
            size=12,
            epsilon=2.0,
            delta=1e-3,
            methods=(sf.methods.Secant(sf.methods.SAT(0.1), lr=0.1), sf.methods.DPSGD()),
            until=sf.methods.Plateau(window=2, patience=1),
        )
        assert two.data_driven
        fitted = sf.fit(network(), CRITERION, examples(), plan=two, delta=1e-3, **around())
        assert fitted.epsilon <= 2.0

    def test_seeded_noise_is_not_private_and_says_so(self) -> None:
        seeded = around(noise=SeededNoise(1))
        fitted = sf.fit(network(), CRITERION, examples(), plan=FEW, delta=1e-3, **seeded)
        assert fitted.epsilon == math.inf
        assert str(fitted).startswith("NOT PRIVATE: seeded")

    def test_a_ledger_is_charged(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "l", dataset="twelve", budget=Budget(epsilon=99, delta=1e-3)) as ledger:
            with ledger.run("one", block=1) as meter:
                sf.fit(network(), CRITERION, examples(), plan=FEW, delta=1e-3, **around(meter=meter))
            assert ledger.history.steps() == {(0.5, 1.0): 3}

    def test_past_the_budget_the_model_is_left_alone(self, tmp_path: Path) -> None:
        model = network()
        budget = Budget(epsilon=FEW.epsilon(1e-3) / 2, delta=1e-3)
        with Ledger.open(tmp_path / "l", dataset="twelve", budget=budget) as ledger:
            meter = ledger.run("one", block=1)
            with pytest.raises(BudgetError):
                sf.fit(model, CRITERION, examples(), plan=FEW, delta=1e-3, **around(meter=meter))
        assert all(torch.isfinite(p).all() for p in model.parameters())

    def test_the_model_ends_with_the_running_mean_if_the_plan_has_one(self) -> None:
        seen: list[Any] = []
        model = network()
        mean = replace(FEW, ema=sf.optimizers.EMA(0.9))
        sf.fit(model, CRITERION, examples(), plan=mean, delta=1e-3, **around(watch=seen.append))
        torch.testing.assert_close(flat(point_of(model)), flat(seen[-1].ending))
        assert not torch.equal(flat(seen[-1].ending), flat(seen[-1].params))

    def test_views(self) -> None:
        twice = sf.each_view(lambda batch: batch, 2)
        same, once = network(), network()
        sf.fit(
            same, CRITERION, examples(), plan=FEW, delta=1e-3, **around(), views=2, augment=twice
        )  # two equal views are one
        sf.fit(once, CRITERION, examples(), plan=FEW, delta=1e-3, **around())
        torch.testing.assert_close(weights(same), weights(once))


class TestWhatPeopleBring:
    def test_every_form_of_the_same_data(self) -> None:
        x, y = examples()
        forms = [
            (x, y),
            torch.utils.data.TensorDataset(x, y),
            list(zip(x, y, strict=True)),
            sf.data.TensorUnits((x, y)),
            Examples(x, y),
        ]
        found = []
        for data in forms:
            model = network()
            sf.fit(model, CRITERION, data, plan=FEW, delta=1e-3, **around())
            found.append(weights(model))
        assert all(torch.equal(found[0], other) for other in found[1:])

    def test_bytes_of_images(self) -> None:
        images = torch.randint(256, (12, 1, 2, 2), dtype=torch.uint8)
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        data = Examples(images, torch.arange(12) % 3, UNIT)
        assert sf.fit(model, CRITERION, data, plan=FEW, delta=1e-3).model is model

    def test_one_tensor_without_targets(self) -> None:
        x, _ = examples()
        coder = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)).double()
        loss = lambda predict, batch: ((predict(batch) - batch) ** 2).mean(1)
        before = weights(coder)
        sf.fit(coder, loss, x, plan=FEW, delta=1e-3)
        assert not torch.equal(before, weights(coder))

    @pytest.mark.parametrize("bring", [dict, Items])
    def test_models_called_by_keywords(self, bring) -> None:
        """As Hugging Face models are; from a dictionary of tensors and from a dataset of dictionaries."""
        model = Tagger()
        keys, before = list(model.state_dict()), weights(model)
        sf.fit(model, tagging, bring(sentences()), plan=FEW, delta=1e-3, **around())
        assert list(model.state_dict()) == keys
        assert not torch.equal(before, weights(model))

    def test_both_forms_of_dictionaries_agree(self) -> None:
        found = []
        for data in (sentences(), Items(sentences())):
            model = Tagger()
            sf.fit(model, tagging, data, plan=FEW, delta=1e-3, **around())
            found.append(weights(model))
        assert torch.equal(*found)

    def test_several_losses(self) -> None:
        class Heads(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.body, self.kind, self.size = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 1)
                self.double()

            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                inner = torch.tanh(self.body(x))
                return self.kind(inner), self.size(inner).squeeze(1)

        def both(predict, batch) -> torch.Tensor:
            kind, size = predict(batch["x"])
            return F.cross_entropy(kind, batch["y"], reduction="none") + (size - batch["x"][:, 0]) ** 2

        x, y = examples()
        model, before = Heads(), weights(Heads())
        sf.fit(model, both, {"x": x, "y": y}, plan=FEW, delta=1e-3)
        assert all(not torch.equal(a, b) for a, b in zip(point_of(model).values(), before, strict=False))

    def test_frozen_parameters_stay(self) -> None:
        model = network()
        model[0].requires_grad_(False)
        frozen = model[0].weight.clone()
        fitted = sf.fit(model, CRITERION, examples(), plan=FEW, delta=1e-3)
        assert torch.equal(model[0].weight, frozen)
        assert not any(name.startswith("0.") for name in fitted.params)
        assert not torch.equal(weights(model), weights(network())[-weights(model).numel() :])

    def test_batches_go_to_the_models_device(self) -> None:
        from saltflat.core.sampling import OnDevice
        from saltflat.front.given import given

        private = given(network(), CRITERION, examples())
        assert isinstance(private.units, OnDevice)
        assert private.units.device == torch.device("cpu")
        away = OnDevice(sf.data.TensorUnits(sentences()), torch.device("meta")).take(np.arange(3))
        assert {leaf.device.type for leaf in away.values()} == {"meta"}

    def test_a_criterion_of_your_own_module(self) -> None:
        class Own(nn.Module):
            def forward(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
                return F.cross_entropy(out, target, reduction="none")

        first, second = network(), network()
        sf.fit(first, Own(), examples(), plan=FEW, delta=1e-3, **around())
        sf.fit(second, CRITERION, examples(), plan=FEW, delta=1e-3, **around())
        assert torch.equal(weights(first), weights(second))


def test_nothing_private_is_read_before_the_noise_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    from saltflat.front import given

    real = given.calibrate
    monkeypatch.setattr(given, "calibrate", lambda *a, **k: order.append("calibrated") or real(*a, **k))

    class Watched(sf.data.TensorUnits):
        def take(self, indices):
            order.append("read")
            return super().take(indices)

    sf.fit(
        network(),
        CRITERION,
        Watched(examples()),
        epsilon=3.0,
        delta=1e-3,
        batch_size=6,
        epochs=1,
        clip_norm=1,
    )
    assert order[0] == "calibrated"
    assert "read" in order


class TestGoingOn:
    """A run with checkpoints, broken off after a step that no checkpoint holds."""

    PLAN = plan(phase(steps=6, method=sf.methods.SAT(0.1), optimizer=sf.optimizers.SGD(lr=0.5)))

    def call(
        self,
        folder: Path,
        watch: Any = lambda progress: None,
        *,
        block: int = 1,
        every: int = 2,
        **given: Any,
    ) -> tuple[sf.Fitted, dict]:
        with Ledger.open(folder / "ledger", dataset="people") as book, book.run("one", block=block) as run:
            kept = sf.Checkpoints(folder / "kept", every=every, **given)
            surroundings = around(meter=run, checkpoints=kept, watch=watch)
            fitted = sf.fit(network(), CRITERION, examples(), plan=self.PLAN, delta=1e-3, **surroundings)
            return fitted, run.charged()

    def break_off(self, progress: Any) -> None:
        if progress.step == 3:
            raise KeyError

    def test_as_many_steps_as_were_lost_are_left_out(self, tmp_path: Path, capsys: Any) -> None:
        with pytest.raises(KeyError):
            self.call(tmp_path, self.break_off)
        fitted, charged = self.call(tmp_path)
        assert sum(charged.values()) == 6  # the third step twice, and the last one never
        assert fitted.steps == 5
        assert fitted.epsilon == self.PLAN.epsilon(1e-3)
        assert any(
            each.startswith("1 of 6 planned steps were left out") for each in fitted.statement.warnings
        )
        assert not fitted.stopped

    @pytest.mark.parametrize("block", [1, 64])
    @pytest.mark.parametrize("every", [1, 4])
    def test_wherever_it_is_broken_off_epsilon_is_that_of_the_plan(
        self, block: int, every: int, tmp_path: Path
    ) -> None:
        """Broken off five times, some steps after the last checkpoint."""

        def after(steps: int) -> Any:
            left = [steps]

            def watch(progress: Any) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyError

            return watch

        for steps in (2, 1, 1, 0, 1):
            with suppress(KeyError):
                self.call(tmp_path, after(steps), block=block, every=every)
        fitted, charged = self.call(tmp_path, block=block, every=every)
        assert sum(charged.values()) == 6
        assert fitted.epsilon == self.PLAN.epsilon(1e-3)
        assert fitted.steps < 6
        assert any("planned steps were left out" in each for each in fitted.statement.warnings)

    def test_the_statement_counts_the_steps_that_ran_again(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError):
            self.call(tmp_path, self.break_off)
        fitted, charged = self.call(tmp_path, allow_more=True)
        assert sum(charged.values()) == 7  # the third step twice
        assert fitted.steps == 6
        assert any("is above the" in each for each in fitted.statement.warnings)
        ((rate, noise),) = charged
        on_record = bounds.epsilon(accounting_event(rate, noise, 7), 1e-3)
        assert fitted.epsilon == pytest.approx(on_record)
        assert fitted.epsilon > 1.01 * self.PLAN.epsilon(1e-3)

    def test_an_undisturbed_run_costs_its_plan(self, tmp_path: Path) -> None:
        fitted, _ = self.call(tmp_path)
        assert fitted.epsilon == pytest.approx(self.PLAN.epsilon(1e-3))

    def test_checkpoints_need_a_record(self, tmp_path: Path) -> None:
        kept = around(checkpoints=sf.Checkpoints(tmp_path))
        with pytest.raises(SettingError, match="give a ledger's run as the meter"):
            sf.fit(network(), CRITERION, examples(), plan=self.PLAN, delta=1e-3, **kept)


def test_steps_on_record_beyond_the_plan_are_added_to_it() -> None:
    """Two phases of equal noise are one cost; less than planned does not lower anything."""
    two = plan(phase(steps=2, noise_multiplier=1.5), phase(steps=3, noise_multiplier=1.5))
    assert bounds.epsilon(two.event_on_record({(two.rate, 1.5): 4}), 1e-3) == two.epsilon(1e-3)
    more = two.event_on_record({(two.rate, 1.5): 6, (two.rate, 2.0): 1})
    by_hand = compose(accounting_event(two.rate, 1.5, 6), accounting_event(two.rate, 2.0, 1))
    assert bounds.epsilon(more, 1e-3) == pytest.approx(bounds.epsilon(by_hand, 1e-3))


class TestSize:
    """How many examples there are is public if it was declared; if it was read, the statement says so."""

    SETTINGS: ClassVar = {"epsilon": 3, "delta": 1e-3, "batch_size": 4, "epochs": 1}

    def test_a_declared_size_is_the_plans(self) -> None:
        fitted = sf.fit(network(), CRITERION, examples(), size=20, **self.SETTINGS)
        assert (fitted.plan.size, fitted.plan.rate) == (20, 0.2)
        assert not any("read from the data" in each for each in fitted.statement.not_covered)

    def test_a_size_that_was_read_is_said_to_be(self) -> None:
        fitted = sf.fit(network(), CRITERION, examples(), **self.SETTINGS)
        assert fitted.plan.size == 12
        assert "read from the data" in fitted.statement.as_text()

    def test_more_examples_than_declared_are_refused(self) -> None:
        with pytest.raises(SettingError, match="more than the 5 examples that were declared"):
            sf.fit(network(), CRITERION, examples(), size=5, **self.SETTINGS)

    @pytest.mark.parametrize("size", [0, -1, 2.5, "many"])
    def test_wrong_sizes(self, size: object) -> None:
        with pytest.raises(SettingError, match="size is a public number"):
            sf.fit(network(), CRITERION, examples(), size=size, **self.SETTINGS)
