"""What both bridges rest on: every move of the trained weights is a step of the private loop, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from saltflat.bridges.overlap import have_common_rows
from saltflat.errors import PrivacyError, SettingError
from saltflat.front.loop import PrivateLoop, make_private
from saltflat.privacy.limits import rounded_up

NEEDED = "privacy is not attached: give privacy={...}, such as privacy={'epsilon': 3}, with settings of make_private"
OWN = ("model", "loss", "data", "optimizer")
RESUMING = (
    "lost",
    "allow_more",
)  # settings of `PrivateLoop.load_state_dict`, for a run that goes on from a checkpoint
AT_ONCE = 1 << 20  # numbers of a parameter that are looked at together


def checked(privacy: object) -> dict[str, Any]:
    """The settings of the private loop, if there are any: without them nothing is trained."""
    if not isinstance(privacy, Mapping) or not privacy:
        raise PrivacyError(NEEDED)
    if twice := [name for name in OWN if name in privacy]:
        raise SettingError(f"privacy has {twice[0]!r}, which is given beside it; leave it out there")
    if privacy.get("private", True) is not True:
        raise PrivacyError(
            "private=False is a baseline, and this trains with privacy: use the plain class for it"
        )
    return dict(privacy)


def resuming(settings: dict[str, Any]) -> dict[str, Any]:
    """Take what is for `PrivateLoop.load_state_dict` out of the settings; the others are for `make_private`."""
    return {name: settings.pop(name) for name in RESUMING if name in settings}


class Guard:
    """A private loop, and the promise that nothing else moves the weights while somebody else's loop runs.

    *Guarantee*: a gradient that did not come out of the door raises `PrivacyError` at the optimizer's step, a weight
    that another hand moved does before the next private step and at the end, and a step of the loop around without
    one of ours does at once.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, make: Callable[..., PrivateLoop]
    ) -> None:
        self.model = model
        self._inside = False
        self._optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate puts one around it
        self.loop = make(optimizer=self._optimizer)
        self._hook = self._optimizer.register_step_pre_hook(self._before)
        self._hooks = _hooks(self._optimizer)
        self._left = self._marks()

    def step(self) -> None:
        """The next step of the plan."""
        self.check()
        with self._opened():
            self.loop.step(next(iter(self.loop)))
        self._left = self._marks()

    def check(self, steps: int | None = None) -> None:
        """Refuse weights that were moved by others and, if it is known, a count of steps that is not ours."""
        if steps is not None and steps != self.loop.done:
            raise PrivacyError(
                f"{steps} steps were taken and {self.loop.done} of them through the private loop: training_step was "
                "overridden or left out; override something else"
            )
        if _hooks(self._optimizer) != self._hooks:
            raise PrivacyError(
                "a hook was put on the optimizer, which would change what a private step takes or leaves; take it off"
            )
        now = self._marks()
        moved = [name for name, mark in now.items() if self._left.get(name) != mark]
        if moved or now.keys() != self._left.keys():
            name = moved[0] if moved else next(iter(self._left.keys() - now.keys()))
            raise PrivacyError(
                f"parameter {name!r} was changed outside the private step, by another optimizer or a callback: no "
                "epsilon covers that; average weights in a copy, or, if nothing but released weights went into it, "
                "declare that by guard.accept()"
            )

    def accept(self) -> None:
        """Take the weights as they are now: a checkpoint was loaded, or they are an average of released ones."""
        self._left = self._marks()

    def _marks(self) -> dict[str, tuple[float, int]]:
        """Of the weights, and of what the optimizer remembers: whoever writes to a momentum moves them later."""
        return {**marks(self.model), **_remembered(self.model, self._optimizer)}

    def close(self) -> None:
        """Let the optimizer go."""
        self._hook.remove()

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Called by the optimizer itself before each of its steps."""
        if self._inside:
            return
        if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
            raise PrivacyError(
                "the optimizer is about to take a gradient that did not come through the private step: something "
                "called backward (an overridden training_step or compute_loss?)"
            )

    @property
    def said(self) -> str:
        """The epsilon so far, rounded up."""
        return rounded_up(self.loop.epsilon(), 4)


def marks(model: nn.Module) -> dict[str, tuple[float, int]]:
    """For each trained parameter two sums over its values and its bits, which a change changes."""
    return {name: _mark(leaf.detach()) for name, leaf in model.named_parameters() if leaf.requires_grad}


def _remembered(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, tuple[float, int]]:
    """The same of every tensor in the optimizer's state."""
    names = {id(leaf): name for name, leaf in model.named_parameters()}
    return {
        f"{names.get(id(owner), '?')} (its {key} in the optimizer)": _mark(value.detach())
        for owner, held in optimizer.state.items()
        for key, value in held.items()
        if isinstance(value, Tensor)
    }


def _hooks(optimizer: torch.optim.Optimizer) -> tuple[list[int], list[int]]:
    """Which functions run before and after each of its steps."""
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return list(before), list(after)


def _mark(leaf: Tensor) -> tuple[float, int]:
    if not leaf.numel():
        return 0.0, 0
    values, whole = 0.0, 0
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    for number, part in enumerate(leaf.contiguous().view(-1).split(AT_ONCE)):
        place = torch.arange(1, len(part) + 1, device=part.device) + number  # where bits stand counts too
        values += float(part.double().nan_to_num().sum())
        whole += int((part.view(kinds[leaf.element_size()]) * place).sum())
    return values, whole


class Ticket(dict):
    """What training_step gets in the place of a batch: a number and no row. Code that looks for rows is refused."""

    def _refuse(self, *given: Any) -> Any:
        raise PrivacyError(
            "training_step looked for rows in its batch, and there are none: the private batch is drawn and used "
            "inside the private step; leave training_step alone, and give the loss to the constructor"
        )

    __missing__ = __iter__ = keys = get = _refuse


class Tickets(Dataset):
    """What a loader of theirs hands out: numbers, and no row of anybody."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Ticket:
        if not 0 <= number < self.count:
            raise IndexError
        return Ticket(ticket=number)


def loader_of_tickets(count: int) -> DataLoader:
    """A loader of ``count`` tickets, for a loop that wants one."""
    together = lambda found: Ticket(ticket=torch.tensor([each["ticket"] for each in found]))
    return DataLoader(Tickets(count), batch_size=1, collate_fn=together)


def check_shown(shown: Any, private: Any, named: str) -> None:
    """Refuse to evaluate or predict on private rows.

    Args:
        shown: The data, or a loader of it.
        private: The training data.
        named: What the data is called where it was given.
    """
    if have_common_rows(shown, private):
        raise PrivacyError(
            f"{named} is the private data, or has rows of it: no epsilon covers what it would show; give public rows"
        )


def loop_of(
    model: nn.Module, loss: Any, data: Any, settings: Mapping[str, Any]
) -> Callable[..., PrivateLoop]:
    """Makes the private loop, once there is an optimizer."""

    def make(*, optimizer: torch.optim.Optimizer) -> PrivateLoop:
        return make_private(model, loss, data, optimizer=optimizer, **settings)

    return make
