"""What one unit contributes: its gradient, combined over points in weight space, views and own rows.

A loss is a function ``loss(predict, batch)`` that returns one number for every row; ``predict`` is the
model at the point that was asked for. `supervised` makes one from an ordinary criterion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from saltflat.clipping.chunk import Kept, book_keeping, checked_losses
from saltflat.core.mechanism import Chunk
from saltflat.core.memory import keep_freed_memory
from saltflat.core.sampling import Batch, pick, rows_in
from saltflat.core.tree import Tree
from saltflat.errors import ModelError, SettingError

Predict = Callable[..., Any]
Loss = Callable[[Predict, Batch], Tensor]


class Contribution(Protocol):
    """Turns a physical batch into its units' gradients at the asked points."""

    @property
    def unit(self) -> str: ...

    def __call__(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Chunk: ...


def supervised(criterion: Callable[[Any, Tensor], Tensor]) -> Loss:
    """The loss of (inputs, targets) batches; ``criterion`` gives one number per example.

    >>> loss = supervised(nn.CrossEntropyLoss(reduction="none"))
    >>> loss(nn.Linear(2, 3), (torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))).shape
    torch.Size([4])
    """
    return lambda predict, batch: criterion(predict(batch[0]), batch[1])


@dataclass(frozen=True)
class PerExample:
    """See `per_example`."""

    model: nn.Module
    loss: Loss
    views: int = 1
    augment: Callable[[Batch], Batch] | None = None
    unit: str = "example"

    def __post_init__(self) -> None:
        keep_freed_memory()  # private steps are about to be taken in this process
        if not self.views >= 1:
            raise SettingError(f"an example has at least one view; got views={self.views}")

    def __call__(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Chunk:
        batch = self._views_of(batch)
        rows = rows_in(batch)
        if rows % self.views:
            raise SettingError(f"{rows} rows cannot be {self.views} views each of whole examples")
        if rows == 0:
            return Kept(0, [], points[0])
        try:
            return self._kept(points, weights, batch)
        except ModelError:
            raise  # the model's fault, whatever the data
        except Exception:
            return self._without_offenders(points, weights, batch)

    def losses_at(self, point: Tree, batch: Batch) -> Tensor:
        """The loss of every row at a point."""
        return self.loss(lambda *args, **kwargs: functional_call(self.model, point, args, kwargs), batch)

    def losses_of_units(self, point: Tree, batch: Batch) -> Tensor:
        """The loss of every unit: the mean over its views."""
        batch = self._views_of(batch)
        losses = checked_losses(self.losses_at(point, batch), rows_in(batch))
        return losses.view(-1, self.views).mean(1)

    def _views_of(self, batch: Batch) -> Batch:
        """The augmented rows. Views that were not declared would count as units, each with a clip of its own."""
        if self.augment is None:
            return batch
        before, batch = rows_in(batch), self.augment(batch)
        if rows_in(batch) != before * self.views:
            raise SettingError(
                f"augment made {rows_in(batch)} rows of {before} examples, and views={self.views} were declared; "
                "give per_example and the augmentation the same number of views"
            )
        return batch

    def _kept(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Kept:
        return book_keeping(
            lambda point: self.losses_at(point, batch),
            points,
            weights,
            rows=rows_in(batch),
            views=self.views,
            constants=[*self.model.buffers(), *self.model.parameters()],
        )

    def _without_offenders(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Chunk:
        """A unit that makes the loss fail contributes zero; the others see a batch of the same shape."""
        rows = torch.arange(rows_in(batch))
        sound = torch.tensor([self._survives(points, pick(batch, row.view(1))) for row in rows])
        sound = sound.view(-1, self.views).all(1)
        if not bool(sound.any()):
            return Kept(0, [], points[0])
        unit = torch.where(sound, torch.arange(len(sound)), sound.long().argmax())
        stand_in = (unit.unsqueeze(1) * self.views + torch.arange(self.views)).flatten()
        return Without(self._kept(points, weights, pick(batch, stand_in)), ~sound)

    def _survives(self, points: Sequence[Tree], row: Batch) -> bool:
        try:
            with torch.no_grad():
                for point in points:
                    checked_losses(self.losses_at(point, row), 1)
        except ModelError:
            raise
        except Exception:
            return False
        return True


@dataclass(frozen=True)
class Without:
    """A chunk in which some units are void: their norm is NaN, so that clipping leaves them out."""

    chunk: Kept
    void: Tensor

    def norms(self) -> Tensor:
        return self.chunk.norms().masked_fill(self.void.to(self.chunk.device), float("nan"))

    def dot(self, direction: Tree) -> Tensor:
        return self.chunk.dot(direction)

    def weighted_sum(self, weights: Tensor) -> Tree:
        return self.chunk.weighted_sum(weights)

    def scaled(self, scale: Tree) -> Chunk:
        return Without(self.chunk.scaled(scale), self.void)


def per_example(
    model: nn.Module,
    loss: Loss,
    *,
    views: int = 1,
    augment: Callable[[Batch], Batch] | None = None,
) -> PerExample:
    """One unit is one example: g_i = mean over its views of the gradient of its loss.

    ``augment`` turns a batch of n examples into n * views rows, the views of one example next to each other.

    *Guarantee*: all views and points are combined before clipping, so an example moves the sum by at most
    the clip norm. An example with a NaN, an infinity or a loss that fails contributes zero, and the others
    are computed exactly as they would have been.
    """
    return PerExample(model, loss, views, augment)


def per_user(model: nn.Module, loss: Loss, *, rows: int) -> PerExample:
    """One unit is one user with ``rows`` rows in every batch, padded where the user has fewer.

    The batch holds users' rows next to each other, and the loss gives 0 for padding. g_i is the mean over
    the user's rows, so a user moves the sum by at most the clip norm however many rows are real.
    """
    return PerExample(model, loss, rows, None, "user")
