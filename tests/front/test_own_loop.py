"""`saltflat.make_private`: the loop is the user's; batches, noise and cost are not."""

from __future__ import annotations

import copy
import math
import pickle
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from people import Secret, Tagger, around, sentences, tagging
from reference import flat
from steps import CRITERION, examples, network, phase, plan, point_of
from torch import nn

import saltflat as sf
from saltflat.errors import BudgetError, CopyError, ModelError, PrivacyError, SettingError
from saltflat.front import PrivateLoop
from saltflat.privacy.accounting import bounds
from saltflat.privacy.accounting.events import phase_event
from saltflat.privacy.noise import SeededNoise
from saltflat.privacy.record.history import Budget
from saltflat.privacy.record.ledger import Ledger


def loop(model: nn.Module, the_plan: sf.Plan | None = None, lr: float = 0.5, **settings) -> PrivateLoop:
    optimizer = settings.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    given = {"plan": the_plan or plan(phase(steps=4)), "delta": 1e-3, **around()}
    return sf.make_private(model, CRITERION, examples(), optimizer=optimizer, **given | settings)


def trained(the_plan: sf.Plan) -> torch.Tensor:
    """The weights that `train` ends with, with saltflat's own SGD and the same sources."""
    contribution = sf.per_example(network(), sf.supervised(CRITERION))
    return flat(sf.train(the_plan, contribution, sf.data.TensorUnits(examples()), **around()))


METHODS = [
    sf.methods.DPSGD(),
    sf.methods.SAT(0.1),
    sf.methods.SAM(0.1),
    sf.methods.SAM(0.1, fresh=True),
    sf.methods.DPLIS(method=sf.methods.SAT(0.1), lr=0.5, copies=2, reach=1.0),
    sf.methods.Quantile(sf.methods.SAT(0.1), share=0.1),
]


class TestEqualsTrain:
    @pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
    def test_with_equal_noise_and_samples(self, method) -> None:
        one = phase(steps=4, method=method, optimizer=sf.optimizers.SGD(lr=0.5, momentum=0.9))
        model = network()
        private = loop(model, plan(one))
        for batch in private:
            private.step(batch)
        torch.testing.assert_close(flat(point_of(model)), trained(plan(one)), rtol=1e-12, atol=1e-14)

    def test_over_two_phases(self) -> None:
        sgd = sf.optimizers.SGD(lr=0.5)
        two = plan(
            phase(steps=2, method=sf.methods.SAT(0.1), optimizer=sgd),
            phase(steps=3, noise_multiplier=2.0, optimizer=sgd),
        )
        model = network()
        private = loop(model, two, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
        for batch in private:
            private.step(batch)
        torch.testing.assert_close(flat(point_of(model)), trained(two), rtol=1e-12, atol=1e-14)

    def test_a_phase_that_ends_early_leaves_its_steps_to_the_next(self) -> None:
        early = phase(
            steps=4,
            method=sf.methods.Secant(sf.methods.SAT(0.1), lr=0.5),
            until=lambda state: state.steps == 2,
        )
        seen: list[int] = []
        both = plan(early, phase(steps=2, noise_multiplier=2.0))
        private = loop(
            network(), both, **around(watch=lambda progress: seen.append(progress.phase)), delta=1e-3
        )
        for batch in private:
            private.step(batch)
        assert seen == [0, 0, 1, 1, 1, 1]
        assert private.epsilon() == both.epsilon(
            1e-3
        )  # results chose the path: only the whole plan is proved

    def test_the_last_phase_just_ends(self) -> None:
        private = loop(network(), plan(phase(steps=5, until=lambda state: True)))
        assert sum(private.step(batch) is None for batch in private) == 1
        with pytest.raises(PrivacyError, match="planned steps"):
            next(iter(private))

    def test_calibrated_as_fit_is(self) -> None:
        settings = {"epsilon": 3.0, "delta": 1e-3, "batch_size": 6, "epochs": 2, "clip_norm": 0.5}
        model, whole = network(), network()
        private = loop(model, plan=None, **around(), **settings)
        for batch in private:
            private.step(batch)
        sgd = sf.optimizers.SGD(lr=0.5, momentum=0.9)
        fitted = sf.fit(whole, CRITERION, examples(), optimizer=sgd, **around(), **settings)
        torch.testing.assert_close(flat(point_of(model)), flat(point_of(whole)), rtol=1e-12, atol=1e-14)
        assert private.statement == fitted.statement
        assert private.epsilon() == fitted.epsilon


class TestTheUsersThings:
    def test_class_keys_and_parameters_stay(self) -> None:
        model = network()
        kind, keys, own = type(model), list(model.state_dict()), [id(p) for p in model.parameters()]
        private = loop(model)
        for batch in private:
            private.step(batch)
        assert type(model) is kind
        assert list(model.state_dict()) == keys
        assert [id(p) for p in model.parameters()] == own
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
        assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())

    def test_schedulers(self) -> None:
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        halved = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5)
        private = loop(model, optimizer=sgd)
        for batch in private:
            private.step(batch)
            halved.step()
        assert sgd.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**4)
        same = phase(steps=4, optimizer=sf.optimizers.SGD(lr=lambda step: 0.1 * 0.5**step))
        torch.testing.assert_close(flat(point_of(model)), trained(plan(same)), rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
    def test_other_optimizers(self, kind) -> None:
        model = network()
        private = loop(model, optimizer=kind(model.parameters(), lr=0.05))
        for batch in private:
            private.step(batch)
        same = phase(steps=4, optimizer=sf.optimizers.Torch(lambda params: kind(params, lr=0.05)))
        torch.testing.assert_close(flat(point_of(model)), trained(plan(same)), rtol=1e-12, atol=1e-14)

    def test_a_second_optimizer_step_does_nothing(self) -> None:
        model = network()
        private = loop(model)
        private.step(next(iter(private)))
        before = flat(point_of(model)).clone()
        private_optimizer = private.plan.phases[0].optimizer.optimizer
        private_optimizer.step()
        private_optimizer.zero_grad(set_to_none=False)
        assert torch.equal(flat(point_of(model)), before)

    def test_frozen_parameters_are_untouched(self) -> None:
        model = network()
        model[0].requires_grad_(False)
        frozen = copy.deepcopy(model[0].state_dict())
        private = loop(model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5))
        for batch in private:
            private.step(batch)
        assert all(torch.equal(frozen[name], leaf) for name, leaf in model[0].state_dict().items())
        assert not torch.equal(model[2].weight, network()[2].weight)

    def test_freezing_on_the_way_is_refused(self) -> None:
        model = network()
        private = loop(model)
        batches = iter(private)
        private.step(next(batches))
        model[0].requires_grad_(False)
        with pytest.raises(ModelError, match="make_private"):
            private.step(next(batches))

    def test_weights_may_be_changed_between_steps(self) -> None:
        """The next step starts from what the model holds, not from what the loop remembers."""
        model, other = network(), network(seed=3)
        private = loop(model, plan(phase(steps=1, noise_multiplier=1.0)))
        model.load_state_dict(other.state_dict())
        for batch in private:
            private.step(batch)
        assert (flat(point_of(model)) - flat(point_of(other))).norm() < 2.0

    def test_keyword_models_and_dictionaries(self) -> None:
        model = Tagger()
        sgd = torch.optim.SGD(model.parameters(), lr=0.5)
        private = sf.make_private(
            model, tagging, sentences(), optimizer=sgd, plan=plan(phase(steps=2)), delta=1e-3, **around()
        )
        before = flat(point_of(model)).clone()
        for batch in private:
            private.step(batch)
        assert not torch.equal(before, flat(point_of(model)))

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            (lambda model: "adam", "torch.optim"),
            (lambda model: torch.optim.SGD, "torch.optim"),
            (lambda model: sf.optimizers.SGD(lr=0.1), "update rules go to fit"),
            (lambda model: torch.optim.LBFGS(model.parameters()), "LBFGS"),
            (lambda model: torch.optim.SGD(network().parameters(), lr=1.0), "does not hold '0.weight'"),
            (lambda model: torch.optim.SGD(model[0].parameters(), lr=1.0), "does not hold '2.weight'"),
        ],
    )
    def test_wrong_optimizers(self, wrong, says: str) -> None:
        model = network()
        with pytest.raises(SettingError, match=says):
            loop(model, optimizer=wrong(model))


class TestCost:
    def test_epsilon_after_every_step_is_the_accountants(self) -> None:
        private = loop(network(), plan(phase(steps=3)))
        assert private.epsilon() == 0
        for taken, batch in enumerate(private, start=1):
            private.step(batch)
            assert private.done == taken
            assert private.epsilon() == bounds.epsilon(phase_event(0.5, 1.0, taken), 1e-3)
        assert private.epsilon() == private.statement.epsilon == private.plan.epsilon(1e-3)
        assert private.epsilon(1e-4) > private.epsilon()

    def test_two_samples_cost_two(self) -> None:
        private = loop(network(), plan(phase(steps=2, method=sf.methods.SAM(0.1, fresh=True))))
        for batch in private:
            private.step(batch)
        assert private.epsilon() == pytest.approx(private.plan.epsilon(1e-3))

    def test_seeded_noise_has_no_epsilon(self) -> None:
        assert loop(network(), **around(noise=SeededNoise(1))).epsilon() == math.inf

    def test_the_ledger_is_charged_step_by_step(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "l", dataset="twelve") as ledger, ledger.run("one", block=1) as meter:
            private = loop(network(), **around(meter=meter))
            for taken, batch in enumerate(private):
                assert ledger.history.steps().get((0.5, 1.0), 0) == taken  # drawn, and not yet charged
                private.step(batch)
                assert ledger.history.steps() == {(0.5, 1.0): taken + 1}

    def test_a_refusal_leaves_everything_as_it_was(self, tmp_path: Path) -> None:
        model = network()
        budget = Budget(epsilon=plan(phase(steps=2)).epsilon(1e-3) * 1.001, delta=1e-3)
        with Ledger.open(tmp_path / "l", dataset="twelve", budget=budget) as ledger:
            private = loop(model, **around(meter=ledger.run("one", block=1)))
            batches = iter(private)
            for _ in range(2):
                private.step(next(batches))
            before = flat(point_of(model)).clone()
            with pytest.raises(BudgetError):
                private.step(next(batches))
        assert private.done == 2
        assert torch.equal(flat(point_of(model)), before)

    def test_a_step_that_fails_is_paid_for(self) -> None:
        """The noise may have been drawn and seen: the batch is gone and counts."""

        class Broken(Secret):
            def normal(self, like):
                raise MemoryError

        private = loop(network(), **around(noise=Broken()))
        batch = next(iter(private))
        with pytest.raises(MemoryError):
            private.step(batch)
        assert private.done == 1
        assert private.epsilon() > 0
        with pytest.raises(PrivacyError, match="stepped once"):
            private.step(batch)

    def test_a_failure_at_the_end_of_a_phase_does_not_lengthen_it(self) -> None:
        class Once(Secret):
            def normal(self, like):
                if self.calls == 1:
                    self.calls += 1
                    raise MemoryError
                return super().normal(like)

        two = plan(phase(steps=2), phase(steps=1, noise_multiplier=3.0))
        private = loop(network(), two, **around(noise=Once()))
        private.step(next(iter(private)))
        with pytest.raises(MemoryError):
            private.step(next(iter(private)))
        for batch in private:
            private.step(batch)
        assert private.epsilon() == pytest.approx(two.epsilon(1e-3))


class TestBatches:
    def test_empty_ones_are_stepped_with_noise(self) -> None:
        noise, model = Secret(), network()
        before = flat(point_of(model)).clone()
        private = loop(model, plan(phase(steps=3), rate=1e-9), **around(noise=noise))
        for batch in private:
            assert len(batch.samples[0]) == 0
            private.step(batch)
        assert noise.calls == private.done == 3
        assert not torch.equal(flat(point_of(model)), before)

    def test_printing_tells_nothing(self) -> None:
        assert repr(next(iter(loop(network())))) == "Drawn(number=1)"

    def test_a_skipped_one_is_an_error(self) -> None:
        private = loop(network())
        with pytest.raises(PrivacyError, match="batch 1 was drawn and not stepped"):
            for _ in private:
                pass
        assert private.done == 0

    def test_a_loop_that_was_left_goes_on_with_the_same_batch(self) -> None:
        private = loop(network())
        first = next(iter(private))
        assert next(iter(private)) is first

    def test_twice_is_an_error_and_costs_nothing(self) -> None:
        private = loop(network())
        batch = next(iter(private))
        private.step(batch)
        with pytest.raises(PrivacyError, match="stepped once"):
            private.step(batch)
        assert private.done == 1

    def test_those_of_another_loop_are_refused(self) -> None:
        with pytest.raises(PrivacyError, match="in its own loop"):
            loop(network()).step(next(iter(loop(network()))))

    def test_those_of_a_loader_are_refused(self) -> None:
        with pytest.raises(SettingError, match="no Poisson samples"):
            loop(network()).step(examples())

    def test_past_the_plan_is_refused(self) -> None:
        private = loop(network())
        for batch in private:
            private.step(batch)
        assert private.finished
        for again in (private, private.epoch()):
            with pytest.raises(PrivacyError, match="all 4 planned steps were taken"):
                next(iter(again))

    def test_epochs(self) -> None:
        private = loop(network(), plan(phase(steps=5), rate=0.5))
        lengths = []
        while not private.finished:
            lengths.append(sum(private.step(batch) is None for batch in private.epoch()))
        assert lengths == [2, 2, 1]


class Slow:
    """A meter that lets other threads go on while it writes."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, rate: float, noise_multiplier: float) -> None:
        time.sleep(0.02)
        self.steps += 1


def in_threads(*works: Any) -> list[BaseException]:
    """What the threads raised, in no order."""
    raised: list[BaseException] = []

    def caught(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=caught, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


class TestOneLoop:
    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
    def test_it_is_neither_copied_nor_pickled(self, copied) -> None:
        private = loop(network())
        with pytest.raises(CopyError, match="a PrivateLoop counts what is spent and exists once") as caught:
            copied(private)
        assert "\n" not in str(caught.value)

    def test_two_threads_step_a_batch_once(self) -> None:
        meter, noise = Slow(), Secret()
        private = loop(network(), **around(meter=meter, noise=noise))
        batch = next(iter(private))
        raised = in_threads(*[lambda: private.step(batch)] * 4)
        assert [type(error) for error in raised] == [PrivacyError] * 3
        assert private.done == meter.steps == noise.calls == 1

    def test_threads_that_loop_take_the_planned_steps_and_no_more(self) -> None:
        """Each draws while another one steps; who comes late with a batch is told so and goes on."""
        meter, noise = Slow(), Secret()
        private = loop(network(), plan(phase(steps=12)), **around(meter=meter, noise=noise))

        def work() -> None:
            while not private.finished:
                with suppress(PrivacyError):
                    for batch in private:
                        private.step(batch)

        assert in_threads(*[work] * 4) == []
        assert private.done == meter.steps == noise.calls == 12
        assert private.epsilon() == pytest.approx(private.statement.epsilon)

    def test_a_step_inside_a_step_is_refused(self) -> None:
        """Else the outer one would set the count back, and one step more than planned could be taken."""
        raised: list[PrivacyError] = []

        class Nested(Secret):
            def normal(self, like):
                with pytest.raises(PrivacyError, match=r"is being taken|all 4 planned") as caught:
                    private.step(next(iter(private)))
                raised.append(caught.value)
                return super().normal(like)

        private = loop(network(), **around(noise=Nested()))
        for batch in private:
            private.step(batch)
        assert len(raised) == private.done == 4


class TestFirstSteps:
    """Both ways in look at the first steps in the same way: until one has moved the weights."""

    @staticmethod
    def optimizer(leaves: Any) -> torch.optim.Optimizer:
        first, *rest = leaves
        return torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=0.1)

    @staticmethod
    def scheduler(sgd: torch.optim.Optimizer, second: float) -> Any:
        """Learning rate 0 in the first step; from the second on, ``second`` for one of the two groups."""
        rates = [lambda step: second * (step > 0), lambda step: float(step > 0)]
        return torch.optim.lr_scheduler.LambdaLR(sgd, rates)

    def by_train(self, second: float) -> None:
        rule = sf.optimizers.Torch(self.optimizer, lambda sgd: self.scheduler(sgd, second))
        contribution = sf.per_example(network(), sf.supervised(CRITERION))
        units = sf.data.TensorUnits(examples())
        sf.train(plan(phase(steps=3, optimizer=rule)), contribution, units, **around())

    def by_loop(self, second: float) -> None:
        model = network()
        sgd = self.optimizer(model.parameters())
        slower = self.scheduler(sgd, second)
        private = loop(model, plan(phase(steps=3)), optimizer=sgd)
        for batch in private:
            private.step(batch)
            slower.step()

    @pytest.mark.parametrize("way", ["by_train", "by_loop"])
    def test_a_first_step_at_learning_rate_0_is_let_pass(self, way: str) -> None:
        getattr(self, way)(second=1.0)

    @pytest.mark.parametrize("way", ["by_train", "by_loop"])
    def test_but_the_next_one_is_looked_at(self, way: str) -> None:
        with pytest.raises(ModelError, match=r"'0.weight' was not moved by a step that moved others"):
            getattr(self, way)(second=0.0)
