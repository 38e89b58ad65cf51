"""Leaving in good order: SIGTERM and Ctrl-C let the step end first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def without_interrupts() -> Iterator[None]:
    """A process that begins here is not reached by Ctrl-C, from its first moment on, before it can say so itself."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # which would lift the block when the first process begins
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def finish_first() -> Iterator[list[int]]:
    """A list that is empty until SIGTERM or Ctrl-C arrives, and then holds the signal's number.

    The first signal is only noted, and puts the former handlers back: so a second one ends the process at
    once, as if nothing had been here. Signals that were ignored stay ignored. Outside the main thread Python
    allows no handlers, and nothing is changed.
    """
    caught: list[int] = []
    former = {number: signal.getsignal(number) for number in SIGNALS}
    taken = [number for number, handler in former.items() if handler not in (None, signal.SIG_IGN)]
    if threading.current_thread() is not threading.main_thread():
        taken = []

    def give_back() -> None:
        for number in taken:
            signal.signal(number, former[number])

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        give_back()

    for number in taken:
        signal.signal(number, note)
    try:
        yield caught
    finally:
        give_back()
