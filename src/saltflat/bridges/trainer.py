"""Hugging Face's ``Trainer`` with private steps: its arguments, callbacks, logs, schedulers and checkpoints stay."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.bridges.guard import Guard, Ticket, check_shown, checked, loader_of_tickets, loop_of, resuming
from saltflat.core.sampling import DatasetUnits
from saltflat.errors import DataError, PrivacyError, SettingError
from saltflat.front.given import Settings
from saltflat.privacy.record import durable

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback
else:
    Trainer = TrainerCallback = (
        object  # the classes below are mixed into those of transformers when they are asked for
    )

KEPT = "private.pt"
REFUSED = {  # arguments that have no meaning here, and why
    "gradient_accumulation_steps": (
        1,
        "a private step takes its whole batch; running=Running(physical=...) bounds memory",
    ),
    "fp16": (False, "gradients are taken in float32: half precision rounds one example by its company"),
    "bf16": (False, "gradients are taken in float32: half precision rounds one example by its company"),
    "auto_find_batch_size": (False, "a batch that follows the memory is no Poisson sample"),
    "torch_compile": (False, "a compiled graph hides where weights meet data"),
    "label_smoothing_factor": (0.0, "write it into the loss"),
}


def usual_loss(model: Any) -> Any:
    """One loss per row for the models that people have: classes, or hidden or next tokens, a row's mean over its own.

    ``labels`` are taken out of the batch: with them the model would average over it. Labels of -100 count nothing.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # under adapters of peft
    name = type(base).__name__
    causal = any(part in name for part in ("CausalLM", "LMHead"))
    if not causal and not name.endswith(("Classification", "MaskedLM")):
        raise SettingError(
            f"the loss of a {name} is not known here: give loss=, a function loss(predict, batch) with one number "
            "for each row"
        )

    def loss(predict: Any, batch: Mapping[str, Tensor]) -> Tensor:
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        labels, logits = batch["labels"], predict(**inputs).logits
        if causal:
            labels, logits = labels[:, 1:], logits[:, :-1]
        if labels.ndim == 1:
            return F.cross_entropy(logits, labels, reduction="none")
        each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=-100)
        return each.view(labels.shape).sum(1) / (labels != -100).sum(1).clamp(min=1)

    return loss


@dataclass(frozen=True)
class Collate:
    """A collator of transformers, whose batches become dictionaries.

    Args:
        collator: The trainer's ``data_collator``.
        columns: The columns of an item that it gets, None for all.
    """

    collator: Callable[[list], Any]
    columns: frozenset[str] | None = None

    def __call__(self, items: list) -> dict[str, Any]:
        if self.columns is not None:
            items = [
                {key: value for key, value in item.items() if key in self.columns}
                if isinstance(item, Mapping)
                else item
                for item in items
            ]
        return dict(self.collator(items))


class EachStep(TrainerCallback):
    """Begins the private loop when the optimizer is there, and asks after each step whether it was ours."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.trainer._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.trainer.idle:  # no step was left to be taken, and the trainer has counted one
            state.global_step -= 1
        self.trainer.guard.check(state.global_step)
        if (
            self.trainer.guard.loop.finished
        ):  # before the planned number, if steps were lost in an interruption
            control.should_training_stop = True


class PrivateSteps(Trainer):
    """A ``Trainer`` whose every step goes through the private step, and that raises if one does not.

    ``train_dataset`` is the private data, one item one unit. ``privacy`` has settings of `make_private`, such as
    epsilon, method, clip_norm and running, and ``lost`` and ``allow_more`` of `PrivateLoop.load_state_dict` for a run
    that goes on from a checkpoint; batch size and epochs are those of ``args``. ``loss`` is
    ``loss(predict, batch)`` with one number for each row; it may be left out for classification and for causal
    and masked language models. Everything else is as ever: ``eval_dataset`` must be public.

    *Guarantee*: as `make_private`. The training loss is neither taken nor logged.
    """

    args: Any
    _signature_columns: Any
    watcher: type[EachStep]

    def __init__(self, *given: Any, privacy: Any = None, loss: Any = None, **named: Any) -> None:
        self._settings, self._loss = checked(privacy), loss
        self._resuming = resuming(self._settings)
        self.idle = False
        self.guard: Guard | None = None
        self._kept: dict[str, Any] | None = None
        if named.get("compute_loss_func") is not None:
            raise SettingError(
                "compute_loss_func averages over the batch; give loss=, one number for each row"
            )
        super().__init__(*given, **named)
        if self.train_dataset is None:
            raise SettingError("train_dataset is missing: it is the private data")
        check_shown(self.eval_dataset, self.train_dataset, "eval_dataset")
        self.args, self._per_epoch = _fitting(self.args, self._settings, len(self.train_dataset))
        self.add_callback(self.watcher(self))

    @property
    def private(self) -> Any:
        """The private loop: its ``statement``, ``epsilon()`` and ``done``; None before training."""
        return None if self.guard is None else self.guard.loop

    def get_train_dataloader(self) -> Any:
        """Numbers only: who is in a step is drawn inside it."""
        return loader_of_tickets(self._per_epoch)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """As ever, on public rows."""
        shown = self.eval_dataset if eval_dataset is None or isinstance(eval_dataset, str) else eval_dataset
        check_shown(shown, self.train_dataset, "eval_dataset")
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """As ever, on public rows."""
        check_shown(test_dataset, self.train_dataset, "test_dataset")
        return super().get_test_dataloader(test_dataset)

    def evaluation_loop(self, dataloader: Any, *given: Any, **named: Any) -> Any:
        """As ever, on public rows, whichever loader was made for them."""
        check_shown(dataloader, self.train_dataset, "the data that is evaluated")
        return super().evaluation_loop(dataloader, *given, **named)

    def private_units(self) -> DatasetUnits:
        """The private data as units, each read and collated alone.

        With the usual loss, columns that the model does not take are left out, as the `Trainer` does by
        ``remove_unused_columns``. A loss of your own gets all of them. ``dataloader_num_workers`` processes read.
        """
        columns: frozenset[str] | None = None
        if self._loss is None and self.args.remove_unused_columns:
            self._set_signature_columns_if_needed()
            columns = frozenset(self._signature_columns)
        collate, workers = Collate(self.data_collator, columns), self.args.dataloader_num_workers
        return DatasetUnits.of(self.train_dataset, collate, workers=workers)

    def _begin(self) -> None:
        if self.guard is not None:
            raise PrivacyError(
                "this trainer has trained already, and each run costs: make a new one for another"
            )
        data = self.private_units()
        loss = usual_loss(self.model) if self._loss is None else self._loss
        self.model.train()
        self.guard = Guard(self.model, self.optimizer, loop_of(self.model, loss, data, self._settings))
        if self._kept is not None:
            self.guard.loop.load_state_dict(self._kept, **self._resuming)
        self.guard.check(self.state.global_step)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One private step; nothing is computed on ``inputs``, which hold nobody's row."""
        if self.guard is None or not isinstance(inputs, Ticket):
            raise PrivacyError(
                "a batch came in that the private loop did not draw: leave get_train_dataloader alone"
            )
        self.model.train()
        self.idle = self.guard.loop.finished
        if not self.idle:
            self.guard.step()
        return torch.zeros((), device=self.args.device)

    def log(self, logs: dict[str, float], *others: Any, **named: Any) -> None:
        """As ever, with epsilon, and without losses and gradient norms of private rows."""
        shown = {key: value for key, value in logs.items() if key not in ("loss", "train_loss", "grad_norm")}
        if self.guard is not None:
            shown["epsilon"] = float(self.guard.said)
        super().log(shown, *others, **named)

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    def train(self, *given: Any, **named: Any) -> Any:
        found = super().train(*given, **named)
        if self.guard is None or self.guard.loop.done != self.state.global_step:
            raise PrivacyError(
                "training ended without a private step for each of its steps; override something else"
            )
        self.guard.check()  # callbacks at the end of training had their turn
        return found

    def _load_best_model(self) -> None:
        """Weights that were released on the way, chosen by public rows."""
        super()._load_best_model()
        if self.guard is not None:
            self.guard.accept()

    def hyperparameter_search(self, *given: Any, **named: Any) -> Any:
        raise PrivacyError("every trial of a search costs as much as a run: search on public data")

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        assert self.guard is not None
        buffer = io.BytesIO()
        torch.save(self.guard.loop.state_dict(), buffer)
        durable.replace(Path(output_dir) / KEPT, buffer.getvalue())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        try:
            self._kept = torch.load(Path(checkpoint) / KEPT, weights_only=True)
        except FileNotFoundError:
            raise DataError(f"{checkpoint} has no {KEPT}: it was not saved by a private trainer") from None


@cache
def private_trainer() -> type:
    """The class `saltflat.bridges.PrivateTrainer`: what stands above, made a class of transformers, loaded here."""
    try:
        import transformers
    except ImportError:
        raise SettingError("PrivateTrainer needs transformers: pip install 'saltflat[hf]'") from None

    class AfterEachStep(EachStep, transformers.TrainerCallback):
        __doc__ = EachStep.__doc__

    class PrivateTrainer(PrivateSteps, transformers.Trainer):
        __doc__ = PrivateSteps.__doc__
        watcher = AfterEachStep

    return PrivateTrainer


def _fitting(args: Any, settings: dict[str, Any], count: int) -> tuple[Any, int]:
    """The arguments with as many steps as the plan has, and how many of them an epoch has.

    What has no meaning in a private run is refused.
    """
    for name, (allowed, why) in REFUSED.items():
        if getattr(args, name, allowed) not in (allowed, None):
            raise SettingError(f"{name} has no meaning in a private run ({why}); leave it out")
    if args.world_size > 1 or args.n_gpu > 1:
        raise SettingError(
            "a private run takes one process and one device; each would draw and noise for itself"
        )
    own = copy.copy(args)
    own.max_grad_norm = 0.0  # gradients are clipped one by one, inside
    plan = settings.get("plan")
    if plan is None:
        batch = settings.setdefault("batch_size", args.per_device_train_batch_size)
        size = settings.get("size")
        epochs = args.max_steps * batch / (size or count) if args.max_steps > 0 else args.num_train_epochs
        settings.setdefault("epochs", epochs)
        drafted = Settings(noise_multiplier=1.0, batch_size=batch, epochs=settings["epochs"], size=size)
        plan = drafted.planned(count).plan
    own.max_steps = plan.steps
    return own, max(1, round(1 / plan.rate))
