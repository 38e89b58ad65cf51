"""A Lightning module around the private step: what the trainer keeps, and every way around the door."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import vision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import saltflat as sf
from saltflat.errors import DataError, PrivacyError, SettingError

pytestmark = pytest.mark.slow
vision.make_importable()
lightning = pytest.importorskip("lightning", reason="lightning is not installed")

LOSS = nn.CrossEntropyLoss(reduction="none")
PRIVACY = {"epsilon": 8, "delta": 1e-3, "batch_size": 20, "epochs": 2, "method": sf.methods.DPSGD()}


@pytest.fixture(autouse=True)
def quietly() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def rows(count: int = 60) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 2


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def module(cls: Any = None, **given: Any) -> Any:
    settings = {"privacy": PRIVACY, "optimizer": sgd} | given
    return (cls or sf.bridges.PrivateModule)(network(), LOSS, rows(), **settings)


def trainer(folder: Path, **given: Any) -> Any:
    usual = {"max_epochs": 10, "logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    usual |= {"enable_checkpointing": False, "enable_model_summary": False, "default_root_dir": str(folder)}
    return lightning.Trainer(**(usual | given))


class Scheduled(sf.bridges.PrivateModule):
    """With a scheduler by steps, and a validation of its own."""

    def configure_optimizers(self) -> Any:
        optimizer = sgd(self.model.parameters())
        slower = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": slower, "interval": "step"}}

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("public_loss", LOSS(self(batch[0]), batch[1]).mean())


def test_it_trains_and_keeps_logs_schedulers_and_validation(tmp_path: Path) -> None:
    mine, runs = module(Scheduled), trainer(tmp_path)
    before = [leaf.clone() for leaf in mine.parameters()]
    runs.fit(mine, val_dataloaders=DataLoader(TensorDataset(*rows(10)), batch_size=5))
    assert mine.private.finished
    assert runs.global_step == mine.private.done == mine.private.plan.steps == 6
    assert runs.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5**7)
    assert runs.callback_metrics["public_loss"] > 0
    assert 7.5 < float(runs.callback_metrics["epsilon"]) <= 8
    assert not any(torch.equal(old, new) for old, new in zip(before, mine.parameters(), strict=True))


def test_a_trainer_may_end_first(tmp_path: Path) -> None:
    mine = module()
    trainer(tmp_path, max_steps=2).fit(mine)
    assert mine.private.done == 2
    assert mine.private.epsilon() < mine.private.statement.epsilon


class TestItRaises:
    @pytest.mark.parametrize("privacy", [None, {}, 3])
    def test_without_privacy(self, privacy: Any) -> None:
        with pytest.raises(PrivacyError, match="privacy is not attached"):
            module(privacy=privacy)

    def test_without_an_optimizer(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="an optimizer is missing"):
            trainer(tmp_path).fit(module(optimizer=None))

    def test_a_training_step_that_does_nothing(self, tmp_path: Path) -> None:
        class Idle(sf.bridges.PrivateModule):
            def training_step(self, batch: Any, number: int) -> None:
                return None

        with pytest.raises(PrivacyError, match="1 steps were taken and 0 of them"):
            trainer(tmp_path).fit(module(Idle))

    def test_a_training_step_of_ones_own(self, tmp_path: Path) -> None:
        class Own(sf.bridges.PrivateModule):
            def training_step(self, batch: Any, number: int) -> None:
                x, y = rows()
                self.manual_backward(LOSS(self.model(x), y).mean())
                self.optimizers().step()

        mine = module(Own)
        before = [leaf.clone() for leaf in mine.parameters()]
        with pytest.raises(PrivacyError, match="did not come through the private step"):
            trainer(tmp_path).fit(mine)
        assert all(torch.equal(old, new) for old, new in zip(before, mine.parameters(), strict=True))

    def test_a_training_step_that_adds_to_ours(self, tmp_path: Path) -> None:
        class More(sf.bridges.PrivateModule):
            def training_step(self, batch: Any, number: int) -> None:
                super().training_step(batch, number)
                x, y = rows()
                LOSS(self.model(x), y).mean().backward()
                torch.optim.SGD(self.model.parameters(), lr=0.1).step()

        with pytest.raises(PrivacyError, match="changed outside the private step"):
            trainer(tmp_path).fit(module(More))

    def test_automatic_optimization_switched_on_again(self, tmp_path: Path) -> None:
        class Automatic(sf.bridges.PrivateModule):
            def __init__(self, *given: Any, **named: Any) -> None:
                super().__init__(*given, **named)
                self.automatic_optimization = True

            def training_step(self, batch: Any, number: int) -> Any:
                x, y = rows()
                return LOSS(self.model(x), y).mean()

        mine = module(Automatic)
        before = [leaf.clone() for leaf in mine.parameters()]
        with pytest.raises(PrivacyError, match="automatic_optimization was switched on"):
            trainer(tmp_path).fit(mine)
        assert all(torch.equal(old, new) for old, new in zip(before, mine.parameters(), strict=True))

    def test_two_optimizers(self, tmp_path: Path) -> None:
        class Two(sf.bridges.PrivateModule):
            def configure_optimizers(self) -> Any:
                return [sgd(self.model.parameters()), sgd(self.model.parameters())]

        with pytest.raises(SettingError, match="gave 2"):
            trainer(tmp_path).fit(module(Two))

    def test_a_loader_of_ones_own(self, tmp_path: Path) -> None:
        with pytest.raises(PrivacyError, match="loader of its own"):
            trainer(tmp_path).fit(module(), DataLoader(TensorDataset(*rows()), batch_size=20))

    @pytest.mark.parametrize("given", [{"accumulate_grad_batches": 2}, {"gradient_clip_val": 1.0}])
    def test_accumulation_and_clipping(self, tmp_path: Path, given: dict[str, Any]) -> None:
        with pytest.raises(Exception, match=r"[Aa]utomatic|manual"):  # Lightning's own answer
            trainer(tmp_path, **given).fit(module())

    def test_half_precision(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="bf16-mixed has no meaning"):
            trainer(tmp_path, precision="bf16-mixed").fit(module())

    def test_hooks_overridden_without_super(self, tmp_path: Path) -> None:
        class Forgets(sf.bridges.PrivateModule):
            def on_fit_start(self) -> None:
                pass

        class Drops(sf.bridges.PrivateModule):
            def configure_callbacks(self) -> Any:
                return []

        with pytest.raises(PrivacyError, match="on_fit_start was overridden"):
            trainer(tmp_path).fit(module(Forgets))
        with pytest.raises(PrivacyError, match="configure_callbacks was overridden"):
            trainer(tmp_path).fit(module(Drops))

    @pytest.mark.parametrize("way", ["an index", "a pair", "a call"])
    def test_a_training_step_that_looks_for_rows(self, tmp_path: Path, way: str) -> None:
        class Looks(sf.bridges.PrivateModule):
            def training_step(self, batch: Any, number: int) -> Any:
                if way == "an index":
                    return LOSS(self(batch[0]), batch[1]).mean()
                if way == "a pair":
                    x, y = batch
                    return LOSS(self(x), y).mean()
                return self.model(**batch)

        with pytest.raises(PrivacyError, match="training_step looked for rows"):
            trainer(tmp_path).fit(module(Looks))

    @pytest.mark.parametrize("way", ["validate", "test", "predict", "fit"])
    def test_private_rows_in_a_loader_of_another_kind(self, tmp_path: Path, way: str) -> None:
        class Shows(Scheduled):
            def test_step(self, batch: Any, number: int) -> None:
                self.log("loss", LOSS(self(batch[0]), batch[1]).mean())

            def predict_step(self, batch: Any, number: int) -> Any:
                return self(batch[0])

        x, y = rows()
        mine = Shows(network(), LOSS, (x, y), privacy=PRIVACY)
        run = getattr(trainer(tmp_path), way)
        shown = DataLoader(TensorDataset(x[:7], y[:7]), batch_size=5)
        with pytest.raises(PrivacyError, match="is the private data, or has rows of it"):
            run(mine, **{"val_dataloaders" if way == "fit" else "dataloaders": shown})

    def test_a_second_run(self, tmp_path: Path) -> None:
        mine = module()
        trainer(tmp_path).fit(mine)
        with pytest.raises(PrivacyError, match="trained already"):
            trainer(tmp_path).fit(mine)

    def test_a_callback_that_moves_weights(self, tmp_path: Path) -> None:
        class Moves(lightning.Callback):
            def on_train_batch_end(self, trainer: Any, mine: Any, *others: Any) -> None:
                mine.model[0].weight.data.mul_(0.5)

        with pytest.raises(PrivacyError, match="changed outside the private step"):
            trainer(tmp_path, callbacks=[Moves()]).fit(module())


class TestCheckpoints:
    def test_it_goes_on(self, tmp_path: Path) -> None:
        first, runs = module(), trainer(tmp_path, max_steps=4)
        runs.fit(first)
        runs.save_checkpoint(tmp_path / "four.ckpt")
        target = first.private.plan.epsilon(1e-3)
        for given, steps in (({"lost": 0}, 6), ({"lost": 1}, 5), ({}, 4), ({"allow_more": True}, 6)):
            again, more = module(privacy=PRIVACY | given), trainer(tmp_path)
            more.fit(again, ckpt_path=str(tmp_path / "four.ckpt"))
            assert again.private.done == more.global_step == steps
            assert again.private.finished
            assert (again.private.statement.epsilon > target) == ("allow_more" in given)
            assert (again.private.epsilon() > target) == ("allow_more" in given)

    def test_a_checkpoint_of_a_plain_module(self, tmp_path: Path) -> None:
        mine, runs = module(), trainer(tmp_path, max_steps=2)
        runs.fit(mine)
        runs.save_checkpoint(tmp_path / "two.ckpt")
        kept = torch.load(tmp_path / "two.ckpt", weights_only=False)
        del kept["saltflat"]
        torch.save(kept, tmp_path / "plain.ckpt")
        with pytest.raises(DataError, match="not saved by a private module"):
            trainer(tmp_path).fit(module(), ckpt_path=str(tmp_path / "plain.ckpt"))
