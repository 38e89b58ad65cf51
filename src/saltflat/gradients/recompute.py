"""Activation checkpointing (`torch.utils.checkpoint`): activations are made again when backward needs them.

While a tape follows, a checkpointed function runs once on the tape, and what its gradients are made of is dropped:
tensors that automatic differentiation saved, and what rules would keep. Each of them has a number. When the backward
pass asks for the first one, the function runs again on the same tape, with the same weights, draws and torch function
modes, and fills all numbers. So results are exactly those without checkpointing, and memory holds one function's
activations at a time. Both kinds, reentrant and not, are the same here.

Where plain automatic differentiation runs a model at other weights than its own (`saltflat.tree.called`), torch's own
second run would meet the model's own weights; there a checkpointed function runs as if it were not checkpointed.
Outside of both, torch's checkpointing is as it was.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import _get_current_function_mode_stack

from saltflat.errors import ModelError
from saltflat.gradients.away import is_fetching
from saltflat.gradients.tape import Keep, Tape
from saltflat.tree import is_calling, with_weights_of_now

log = logging.getLogger("saltflat")


class Segment:
    """A checkpointed function: how many tensors and parts its first run would have kept, and how to make them again."""

    def __init__(self, tape: Tape, function: Callable[[], Any]) -> None:
        self._tape = tape
        self._function: Callable[[], Any] | None = with_weights_of_now(function)
        self._modes = _get_current_function_mode_stack()
        self._streams = [(source, source.get_state()) for source in _generators()]
        self._known = tape.known()
        self._counts = [0, 0]
        self._saved: dict[int, Tensor] = {}
        self._keeps: dict[int, Keep] = {}

    @contextmanager
    def first_run(self) -> Iterator[None]:
        """Run the function inside: nothing of what its gradients are made of stays in memory."""
        self._tape.segment = self
        try:
            with saved_tensors_hooks(self._number, self._tensor):
                yield
        finally:
            self._tape.segment = None
            self._tape.hold_loosely(self._known)

    def numbered(self, keep: Keep) -> Keep:
        """What finds the ``keep`` of the second run."""
        number = self._counts[1]
        self._counts[1] += 1
        return lambda grad: self._made(self._keeps, number)(grad)

    def clear(self) -> None:
        """Let go of everything: hooks lead here, and from here to tensors that lead to hooks."""
        self._function = None
        for held in (self._known, self._saved, self._keeps, self._modes, self._streams):
            held.clear()

    def _number(self, saved: Tensor) -> int:
        self._counts[0] += 1
        return self._counts[0] - 1

    def _tensor(self, number: int) -> Tensor:
        return self._made(self._saved, number)

    def _made(self, held: dict[int, Any], number: int) -> Any:
        """Each is asked for once, as a rule, and let go of."""
        if number not in held:
            self._run_again()
        return held.pop(number)

    def _run_again(self) -> None:
        assert self._function is not None
        again = _SecondRun()
        before = [(source, source.get_state()) for source in _generators()]
        try:
            with ExitStack() as stack:
                now = _get_current_function_mode_stack()
                same = sum(1 for mine, there in zip(now, self._modes, strict=False) if mine is there)
                for mode in self._modes[same:]:
                    stack.enter_context(mode)
                for source, state in self._streams:
                    source.set_state(state)
                self._tape.know(self._known)
                self._tape.segment = again
                stack.enter_context(torch.enable_grad())
                stack.enter_context(saved_tensors_hooks(again.save, lambda saved: saved))
                self._function()
            if [len(again.saved), len(again.keeps)] != self._counts:
                raise ModelError(
                    "a function under activation checkpointing does something else when it runs again, so that its "
                    "gradients are not known; let it depend on its arguments alone, or turn checkpointing off"
                )
            self._saved.update(enumerate(again.saved))
            self._keeps.update(enumerate(again.keeps))
        finally:
            again.clear()
            self._tape.segment = None
            for source, state in before:
                source.set_state(state)


class _SecondRun:
    """Collect what the first run dropped."""

    def __init__(self) -> None:
        self.saved: list[Tensor] = []
        self.keeps: list[Keep] = []

    def save(self, saved: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            self.saved.append(saved.detach())
        return self.saved[-1]

    def numbered(self, keep: Keep) -> Keep:
        self.keeps.append(keep)
        return keep

    def clear(self) -> None:
        """Let go of everything: the graph of the second run leads here, and from here to itself."""
        self.saved.clear()
        self.keeps.clear()


def _generators() -> list[torch.Generator]:
    on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [torch.default_generator, *on_devices]


def _way(function: Callable[[], Any], *, plain: bool) -> AbstractContextManager[None] | None:
    """How a checkpointed function that is called now is to run; None: as torch does it."""
    modes = _get_current_function_mode_stack()
    tape = next((mode for mode in reversed(modes) if isinstance(mode, Tape)), None)
    if tape is None:
        return nullcontext() if is_calling() else None
    if (
        plain or tape.segment is not None or not torch.is_grad_enabled()
    ):  # inside another: that one makes it again
        return nullcontext()
    if any(is_fetching(mode) for mode in modes):
        _log_kept()
        return nullcontext()
    segment = Segment(tape, function)
    tape.segments.append(segment)
    return segment.first_run()


@cache
def _log_kept() -> None:
    log.warning("Activation checkpointing is ignored with sharded weights: activations stay in memory.")


def _install() -> None:
    """Let torch's checkpointing ask `_way`, whichever name a model has imported it under."""
    module = torch.utils.checkpoint
    original = module._checkpoint_without_reentrant_generator
    reentrant = module.CheckpointFunction.apply
    signature = inspect.signature(original)

    def without_reentrant(*given: Any, **named: Any) -> Iterator[None]:
        asked = signature.bind(*given, **named).arguments
        contexts = asked.get("context_fn", module.noop_context_fn) is not module.noop_context_fn
        function = partial(asked["fn"], *asked.get("args", ()), **asked.get("kwargs", {}))
        way = _way(function, plain=contexts)
        if way is None:
            yield from original(*given, **named)
            return
        with way:
            yield

    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        way = _way(partial(function, *args), plain=False)
        if way is None:
            return reentrant(function, preserve, *args)
        with way:
            return function(*args)

    module._checkpoint_without_reentrant_generator = without_reentrant
    module.CheckpointFunction.apply = apply  # type: ignore[method-assign]


if hasattr(
    torch.utils.checkpoint, "_checkpoint_without_reentrant_generator"
):  # else models with it are refused
    _install()
