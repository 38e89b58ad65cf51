"""A Lightning module with private steps: the trainer's loggers, checkpoints, callbacks and schedulers stay."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from saltflat.bridges.guard import Guard, Ticket, check_shown, checked, loader_of_tickets, loop_of, resuming
from saltflat.errors import DataError, PrivacyError, SettingError

if TYPE_CHECKING:
    from lightning import Callback, LightningModule
else:
    Callback = LightningModule = (
        object  # the classes below are mixed into Lightning's when these are asked for
    )

KEY = "saltflat"


class EachBatch(Callback):
    """Asks after each batch whether it was a private step, whatever the module overrides."""

    def __init__(self) -> None:
        self.due: int | None = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
        if module.guard is None:
            raise PrivacyError("privacy is not attached: on_fit_start was overridden without calling super")
        if not isinstance(batch, Ticket):
            raise PrivacyError(
                "the trainer was given a loader of its own: private batches are drawn inside; call fit(module)"
            )
        if module.automatic_optimization:
            raise PrivacyError(
                "automatic_optimization was switched on: Lightning would take steps of its own"
            )
        loop = module.guard.loop
        self.due = None if loop.finished else loop.done + 1

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        module.guard.check(self.due)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        module.check_shown(trainer.val_dataloaders, "the validation data")

    def on_test_start(self, trainer: Any, module: Any) -> None:
        module.check_shown(trainer.test_dataloaders, "the test data")

    def on_predict_start(self, trainer: Any, module: Any) -> None:
        module.check_shown(trainer.predict_dataloaders, "the data for predictions")

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        module.guard.check()  # callbacks at the end of training had their turn


class PrivateSteps(LightningModule):
    """A ``LightningModule`` whose every step goes through the private step, and that raises if one does not.

    ``model``, ``loss`` and ``data`` are those of `make_private`, ``privacy`` its settings: epsilon, batch_size, epochs
    and so on, and ``lost`` and ``allow_more`` of `PrivateLoop.load_state_dict` for one that goes on from a checkpoint.
    ``optimizer`` makes one of parameters; or override ``configure_optimizers``, which may give a scheduler too. Call
    ``trainer.fit(module)`` without a loader for training; ``validation_step`` is yours to add, on public rows. The run
    ends with the plan, or with the trainer's own limits if they come first.

    *Guarantee*: as `make_private`.
    """

    watcher: type[EachBatch]

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        data: Any,
        *,
        privacy: Any = None,
        optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.guard: Guard | None = None
        self._given, self._settings, self._optimizer = (loss, data), checked(privacy), optimizer
        self._resuming = resuming(self._settings)
        self._kept: dict[str, Any] | None = None

    @property
    def private(self) -> Any:
        """The private loop: its ``statement``, ``epsilon()`` and ``done``; None before training."""
        return None if self.guard is None else self.guard.loop

    def check_shown(self, shown: Any, named: str) -> None:
        """Refuse private rows in a loader for validation, tests or predictions."""
        check_shown(shown, self._given[1], named)

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.model(*given, **named)

    def configure_optimizers(self) -> Any:
        if self._optimizer is None:
            raise SettingError(
                "an optimizer is missing: give optimizer=lambda parameters: ..., or write configure_optimizers"
            )
        return self._optimizer([p for p in self.model.parameters() if p.requires_grad])

    def configure_callbacks(self) -> Any:
        return [self.watcher()]

    def train_dataloader(self) -> Any:
        """Numbers only: who is in a step is drawn inside it."""
        if self.guard is None:
            raise PrivacyError("privacy is not attached: on_fit_start was overridden without calling super")
        return loader_of_tickets(max(1, round(1 / self.guard.loop.plan.rate)))

    def on_fit_start(self) -> None:
        """The model is on its device, and the optimizer is there."""
        _check_trainer(self.trainer)
        if not any(isinstance(each, EachBatch) for each in self.trainer.callbacks):
            raise PrivacyError(
                "configure_callbacks was overridden: return [*super().configure_callbacks(), ...]"
            )
        if self.guard is not None:
            raise PrivacyError(
                "this module has trained already, and each run costs: make a new one for another"
            )
        optimizers = self.trainer.optimizers
        if len(optimizers) != 1:
            raise SettingError(
                f"a private run has one optimizer; configure_optimizers gave {len(optimizers)}"
            )
        self.model.train()
        make = loop_of(self.model, *self._given, self._settings)
        self.guard = Guard(self.model, optimizers[0], make)
        if self._kept is not None:
            self.guard.loop.load_state_dict(self._kept, **self._resuming)

    def training_step(self, batch: Any, number: int) -> None:
        """One private step; then schedulers that go by steps."""
        guard = self.guard
        if guard is None:
            raise PrivacyError("privacy is not attached: on_fit_start was overridden without calling super")
        if guard.loop.finished:
            self.trainer.should_stop = True
            return
        self.model.train()
        guard.step()
        self.optimizers().step()  # it finds no gradient, and counts the step for the trainer
        self._schedule("step", guard.loop.done)
        self.log("epsilon", float(guard.said), prog_bar=True)
        if guard.loop.finished:
            self.trainer.should_stop = True

    def on_train_epoch_end(self) -> None:
        self._schedule("epoch", self.trainer.current_epoch + 1)

    def _schedule(self, interval: str, number: int) -> None:
        for config in self.trainer.lr_scheduler_configs:
            if (
                config.interval == interval
                and not config.reduce_on_plateau
                and number % config.frequency == 0
            ):
                config.scheduler.step()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.guard is not None:
            checkpoint[KEY] = self.guard.loop.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if KEY not in checkpoint:
            raise DataError(
                "the checkpoint was not saved by a private module: it does not say what was spent"
            )
        self._kept = checkpoint[KEY]

    def on_train_start(self) -> None:
        """Weights of a checkpoint are in place now."""
        if self.guard is not None and self._kept is not None:
            self.guard.accept()


@cache
def private_module() -> type:
    """The class `saltflat.bridges.PrivateModule`: what stands above, made a class of Lightning, loaded here."""
    try:
        import lightning
    except ImportError:
        raise SettingError("PrivateModule needs lightning: pip install 'saltflat[lightning]'") from None

    class AfterEachBatch(EachBatch, lightning.Callback):
        __doc__ = EachBatch.__doc__

    class PrivateModule(PrivateSteps, lightning.LightningModule):
        __doc__ = PrivateSteps.__doc__
        watcher = AfterEachBatch

    return PrivateModule


def _check_trainer(trainer: Any) -> None:
    """Refuse what would draw, noise or round elsewhere."""
    if trainer.world_size > 1:
        raise SettingError(
            "a private run takes one process and one device; each would draw and noise for itself"
        )
    if str(trainer.precision) not in ("32-true", "32", "64-true"):
        raise SettingError(
            f"precision {trainer.precision} has no meaning in a private run: gradients are taken in float32, as half "
            "precision rounds one example by its company; leave it out"
        )
