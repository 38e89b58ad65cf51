"""What follows the data when nothing is said, and what may be given in the place of an epsilon."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from people import Items, Tagger, around, sentences, tagging
from reference import flat
from steps import CRITERION, examples, network, phase, plan, point_of
from torch import nn

import saltflat as sf
from saltflat.errors import DataError, PrivacyError, SettingError
from saltflat.front.given import Settings
from saltflat.front.usual import table_optimizer, usual_delta
from saltflat.privacy.accounting import bounds
from saltflat.privacy.accounting.events import phase_event
from saltflat.privacy.record.ledger import Ledger
from saltflat.privacy.record.statement import Declared, delta_warnings

FEW = plan(phase(steps=3, optimizer=sf.optimizers.SGD(lr=0.5)))


def weights(data: Any, **settings: Any) -> torch.Tensor:
    model = network()
    sf.fit(model, CRITERION, data, plan=FEW, delta=1e-3, quiet=True, **around(), **settings)
    return flat(point_of(model))


class TestSizes:
    @pytest.mark.parametrize(
        ("size", "batch", "steps"),
        [
            (1, 1, 10),
            (2, 1, 20),
            (200, 100, 20),
            (2_000, 1_000, 40),
            (10_000, 2_048, 195),
            (200_000, 2_048, 3_906),
        ],
    )
    def test_batch_and_epochs(self, size: int, batch: int, steps: int) -> None:
        ready = Settings(noise_multiplier=1.0).planned(size)
        assert ready.plan.rate == batch / size
        assert ready.plan.steps == steps

    @pytest.mark.parametrize(
        "size", [1, 2, 9, 10, 11, 99, 200, 9_999, 10_000, 10_001, 10**6, 10**6 + 1, 3 * 10**14]
    )
    def test_delta_is_never_above_what_is_advised(self, size: int) -> None:
        delta = usual_delta(size)
        assert delta <= 1e-5
        assert delta_warnings(Declared(delta=delta, size=size)) == ()
        if delta < 1e-5:
            assert 10 * delta * 10 * size > 1  # the next power of ten would be too large

    def test_nothing_but_model_data_loss_and_epsilon(self) -> None:
        x, y = torch.randn(200, 4), torch.randint(3, (200,))
        fitted = sf.fit(nn.Linear(4, 3), CRITERION, (x, y), epsilon=3)
        assert 2.97 <= fitted.epsilon <= 3
        assert fitted.delta == 1e-5
        assert fitted.statement.warnings == ()
        assert "read from the data" in fitted.statement.as_text()

    def test_they_follow_the_declared_size(self) -> None:
        fitted = sf.fit(network(), CRITERION, examples(), epsilon=3, size=60_000, quiet=True, epochs=0.1)
        assert (fitted.plan.size, fitted.plan.rate, fitted.delta) == (60_000, 2048 / 60_000, 1e-6)
        assert "read from the data" not in fitted.statement.as_text()

    def test_a_plan_says_its_size(self) -> None:
        large = plan(phase(steps=1), rate=1e-3, size=200_000)
        assert sf.fit(network(), CRITERION, examples(), plan=large, quiet=True).delta == 1e-7

    def test_a_loop_has_them_too(self) -> None:
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        private = sf.make_private(model, CRITERION, examples(), optimizer=sgd, epsilon=3)
        assert (private.plan.rate, private.plan.steps, private.statement.delta) == (0.5, 20, 1e-5)

    def test_advice_on_delta_names_nothing_that_fit_does_not_have(self) -> None:
        with pytest.raises(PrivacyError, match=r"above 1/n for .* leave delta out") as caught:
            sf.fit(network(), CRITERION, examples(), epsilon=3, delta=0.5)
        assert "reproduce" not in str(caught.value)


class TestNoise:
    def test_the_statement_has_the_epsilon(self) -> None:
        settings = {"noise_multiplier": 2.0, "batch_size": 6, "epochs": 2, "delta": 1e-3}
        fitted = sf.fit(network(), CRITERION, examples(), **settings)
        assert fitted.plan.phases[0].noise_multiplier == 2.0
        assert fitted.epsilon == bounds.epsilon(phase_event(0.5, 2.0, 4), 1e-3)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"noise_multiplier": 1.0, "epsilon": 3}, "not both"),
            ({"noise_multiplier": 0}, "private=False"),
            ({"noise_multiplier": -1.0}, "must lie in"),
            ({"noise_multiplier": math.nan}, "must lie in"),
            ({"noise_multiplier": 1.0, "plan": FEW}, "give it, or noise_multiplier, not both"),
        ],
    )
    def test_wrong_ones(self, given: dict, says: str) -> None:
        with pytest.raises(SettingError, match=says):
            sf.fit(network(), CRITERION, examples(), **given)


def plain(lr: float, steps: int) -> torch.Tensor:
    """Steps of plain gradient descent on all examples."""
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(steps):
        sgd.zero_grad()
        CRITERION(model(examples()[0]), examples()[1]).mean().backward()
        sgd.step()
    return flat(point_of(model))


class TestBaseline:
    FULL: ClassVar[Any] = {"private": False, "batch_size": 12, "epochs": 5, "method": sf.methods.DPSGD()}

    def test_it_is_plain_gradient_descent(self) -> None:
        model = network()
        fitted = sf.fit(model, CRITERION, examples(), **self.FULL)
        torch.testing.assert_close(flat(point_of(model)), plain(lr=0.2, steps=5))
        assert fitted.plan.phases[0].optimizer == sf.optimizers.SGD(lr=0.2, momentum=0.9)

    def test_an_optimizer_that_was_given_stays(self) -> None:
        model = network()
        sgd = sf.optimizers.SGD(lr=0.05, momentum=0.9)
        sf.fit(model, CRITERION, examples(), optimizer=sgd, **self.FULL)
        torch.testing.assert_close(flat(point_of(model)), plain(lr=0.05, steps=5))

    def test_it_is_stamped_everywhere(self, capsys: pytest.CaptureFixture[str]) -> None:
        fitted = sf.fit(network(), CRITERION, examples(), epsilon=3, **self.FULL)
        stamp = "NOT PRIVATE: no clipping and no noise"
        assert fitted.epsilon == fitted.spent == math.inf
        assert fitted.statement.stamp == stamp
        assert str(fitted).startswith(stamp)
        assert fitted.statement.as_text().startswith(f"{stamp}. Nothing is promised")
        assert '"epsilon": null' in fitted.statement.as_json()
        assert "not private" in capsys.readouterr().err
        for page in (str(fitted), fitted.statement.as_text()):
            assert "differentially private" not in page
            assert "epsilon 3" not in page

    def test_a_loop_and_a_plan(self) -> None:
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        private = sf.make_private(model, CRITERION, examples(), optimizer=sgd, **self.FULL)
        for batch in private:
            private.step(batch)
        torch.testing.assert_close(flat(point_of(model)), plain(lr=0.2, steps=5))
        assert private.epsilon() == math.inf
        assert sf.fit(network(), CRITERION, examples(), plan=FEW, private=False).epsilon == math.inf

    @pytest.mark.parametrize(
        "method",
        [
            sf.methods.SAT(0.1),
            sf.methods.SAM(0.1, fresh=True),
            sf.methods.DPLIS(method=sf.methods.DPSGD(), lr=0.1),
        ],
    )
    def test_other_methods_and_optimizers(self, method: Any) -> None:
        adam = sf.optimizers.AdamBC(lr=0.01)
        given = self.FULL | {"method": method, "optimizer": adam}
        model = sf.fit(network(), CRITERION, examples(), **given).model
        assert all(p.isfinite().all() for p in model.parameters())
        assert not torch.equal(flat(point_of(model)), flat(point_of(network())))

    def test_methods_around_a_clip_norm_are_refused(self) -> None:
        given = self.FULL | {"method": sf.methods.Quantile(sf.methods.DPSGD(), share=0.1)}
        with pytest.raises(SettingError, match="Quantile works on one"):
            sf.fit(network(), CRITERION, examples(), **given)

    def test_no_ledger_takes_it(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "l", dataset="twelve") as book, book.run("one") as run:
            with pytest.raises(SettingError, match="no ledger"):
                sf.fit(network(), CRITERION, examples(), **self.FULL, safeguards=sf.Safeguards(meter=run))
            assert run.charged() == {}


class TestArrays:
    def test_they_are_taken_as_tensors_are(self) -> None:
        x, y = (t.numpy() for t in examples())
        same = weights(examples())
        assert torch.equal(weights((x, y)), same)
        assert torch.equal(weights((x, y.astype(np.int32))), same)
        assert torch.equal(weights((x, torch.from_numpy(y))), same)

    def test_floats_become_those_of_the_model(self) -> None:
        x, y = (t.numpy() for t in examples())
        assert x.dtype == np.float64
        fitted = sf.fit(network().float(), CRITERION, (x, y), plan=FEW, delta=1e-3, quiet=True)
        assert fitted.model[0].weight.dtype == torch.float32

    def test_dictionaries_one_array_and_read_only_ones(self) -> None:
        rows = {name: leaf.numpy() for name, leaf in sentences().items()}
        sf.fit(Tagger(), tagging, rows, plan=FEW, delta=1e-3, quiet=True)
        x = examples()[0].numpy()
        x.flags.writeable = False
        coder = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)).double()
        loss = lambda predict, batch: ((predict(batch) - batch) ** 2).mean(1)
        sf.fit(coder, loss, x, plan=FEW, delta=1e-3, quiet=True)

    def test_a_table_of_pandas_is_told_what_to_do(self) -> None:
        class Frame:
            columns = ("a",)

            def to_numpy(self) -> np.ndarray:
                return np.zeros(3)

        with pytest.raises(DataError, match=r"give data.to_numpy\(\)"):
            sf.fit(network(), CRITERION, Frame(), epsilon=3)


class Files(torch.utils.data.Dataset):
    """Reads one file for each item, and leaves a note of which process did."""

    def __init__(self, folder: Path, broken: int | None = None) -> None:
        self.folder, self.broken = folder, broken
        x, y = examples()
        for i in range(len(y)):
            torch.save((x[i], y[i]), folder / f"{i}.pt")

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Any:
        if i == self.broken:
            raise OSError("unreadable")
        (self.folder / f"read-by-{os.getpid()}").touch()
        return torch.load(self.folder / f"{i}.pt")

    def readers(self) -> set[int]:
        return {int(path.name.split("-")[2]) for path in self.folder.glob("read-by-*")}


class TestWorkers:
    def test_other_processes_read_and_nothing_else_changes(self, tmp_path: Path) -> None:
        data = Files(tmp_path)
        network()
        state = torch.get_rng_state()
        found = weights(data, workers=2)  # builds the same network
        assert torch.equal(torch.get_rng_state(), state)
        assert len(data.readers() - {os.getpid()}) == 2
        assert torch.equal(found, weights(data))
        assert torch.equal(found, weights(examples()))

    def test_items_come_back_in_order(self) -> None:
        units = sf.data.DatasetUnits.of(Items(sentences()), workers=2)
        for asked in ([3, 1, 2, 11, 0], [5, 4], [7]):
            found = units.take(np.array(asked))
            assert torch.equal(found["labels"], sentences()["labels"][asked])
        units.close()

    def test_an_item_that_cannot_be_read_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
        alone = weights(Files(tmp_path / "a", broken=3))
        assert torch.equal(weights(Files(tmp_path / "b", broken=3), workers=2), alone)


def hospital(rows: int, source: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Six numbers in declared ranges and three categories; about one row in five is positive."""
    z, sizes = source.normal(size=(rows, 6)), (2, 4, 6)
    picks = [source.integers(k, size=rows) for k in sizes]
    logits = z @ np.array([0.7, 0.5, 0.3, 0.0, -0.2, -0.4]) - 1.9
    logits += sum(np.linspace(-0.8, 0.8, k)[pick] for k, pick in zip(sizes, picks, strict=True))
    onehot = [np.eye(k)[pick] for k, pick in zip(sizes, picks, strict=True)]
    x = np.hstack([np.clip(z / 4, -1, 1), *onehot]).astype(np.float32)
    return x, (source.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.int64)


class TestTables:
    def test_probabilities_are_as_good_as_those_of_logistic_regression(self) -> None:
        """Before, log-loss was above that of a constant, as nearly every gradient was clipped to one length."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import log_loss

        source = np.random.default_rng(0)
        (x, y), (u, v) = hospital(5_000, source), hospital(4_000, source)
        plain = log_loss(v, LogisticRegression(max_iter=1_000).fit(x, y).predict_proba(u))
        model = nn.Linear(x.shape[1], 2)
        nn.init.zeros_(model.weight)
        fitted = sf.fit(model, CRITERION, (x, y), epsilon=2, quiet=True)
        assert fitted.plan.phases[0].clip_norm == 3.0
        with torch.no_grad():
            found = log_loss(v, torch.softmax(model(torch.from_numpy(u)).double(), 1).numpy())
        assert found < plain + 0.03
        # the same model at the settings from before: the probabilities are what clipping spoils
        with_old = {"clip_norm": 0.1, "optimizer": sf.optimizers.SGD(lr=2.0, momentum=0.9)}
        sf.fit(model, CRITERION, (x, y), epsilon=2, quiet=True, **with_old)
        with torch.no_grad():
            old = log_loss(v, torch.softmax(model(torch.from_numpy(u)).double(), 1).numpy())
        assert old > plain + 0.1

    @pytest.mark.parametrize(
        ("data", "loss", "settings"),
        [
            (torch.randn(60, 1, 4, 1), CRITERION, {}),  # images
            (torch.randn(60, 4), nn.MSELoss(reduction="none"), {}),  # a number as target
            (torch.randn(60, 4), CRITERION, {"clip_norm": 0.1}),  # a pair: one of it was given
            (torch.randn(60, 4), CRITERION, {"optimizer": sf.optimizers.SGD(lr=2.0, momentum=0.9)}),
        ],
    )
    def test_other_data_and_given_settings_keep_theirs(
        self, data: torch.Tensor, loss: nn.Module, settings: dict
    ) -> None:
        number = isinstance(loss, nn.MSELoss)
        y = torch.randn(60, 1) if number else torch.randint(2, (60,))
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1 if number else 2))
        fitted = sf.fit(model, loss, (data, y), noise_multiplier=1.0, epochs=1, quiet=True, **settings)
        phase = fitted.plan.phases[0]
        assert (phase.clip_norm, phase.optimizer) == (0.1, sf.optimizers.SGD(lr=2.0, momentum=0.9))

    def test_the_learning_rate_follows_size_and_epsilon(self) -> None:
        rates = [
            table_optimizer(size, epsilon).lr for size, epsilon in ((50, 1.0), (3_000, 1.0), (10**6, 1.0))
        ]
        assert rates == [0.02, pytest.approx(0.0928, abs=1e-3), 0.2]
        assert table_optimizer(1_500, 2.0) == table_optimizer(3_000, None)
