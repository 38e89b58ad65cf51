"""The line that says how far a run is: step of steps, epsilon so far, time left. Nothing in it is private."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from saltflat.privacy.limits import rounded_up

if TYPE_CHECKING:
    from saltflat.core.train import Progress

PLANNING = "saltflat: working out the noise"
_FIRST, _LONGEST = 5.0, 300.0  # seconds between plain lines: few at first, then ever fewer
_SHARE = 50  # epsilon so far is worked out for at most one part in so many of the time


class Shown(Protocol):
    """Where a run's progress is shown."""

    def step(self, progress: Progress) -> None: ...

    def say(self, sentence: str) -> None: ...


@contextmanager
def shown(*, quiet: bool) -> Iterator[Shown]:
    """A line on the screen, from now on: a live one where there is a terminal, else a plain one now and then.

    It goes to stderr, so that what a program prints stays its own.
    """
    from saltflat.core.group import Group  # of processes that train together, the first one speaks

    if quiet or not Group.here().leads or sys.stderr is None:
        yield Silent()
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal or console.is_jupyter:
        yield Plain(lambda text: print(text, file=sys.stderr, flush=True))
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[words]}"))
    with Bar(*columns, console=console, refresh_per_second=4) as bar:
        yield Live(bar)


class Silent:
    """Says nothing."""

    def step(self, progress: Progress) -> None:
        return

    def say(self, sentence: str) -> None:
        return


class Plain:
    """A line when the noise is worked out, after some seconds, and then after twice as long each time."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._words = Words(clock)
        self._last, self._pause = clock(), _FIRST
        self.say(PLANNING)

    def step(self, progress: Progress) -> None:
        now, first = self._clock(), not self._words.began
        words = self._words(progress)
        if first or now - self._last >= self._pause or progress.step == progress.steps or progress.is_last:
            if not first:
                self._pause = min(2 * self._pause, _LONGEST)
            self._last = now
            self.say(f"saltflat: {words}")

    def say(self, sentence: str) -> None:
        self._write(sentence)


class Live:
    """A bar of rich that moves."""

    def __init__(self, bar: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._bar, self._words = bar, Words(clock)
        self._task = bar.add_task(PLANNING, total=None, words="")

    def step(self, progress: Progress) -> None:
        self._bar.update(
            self._task,
            description="saltflat",
            total=progress.steps,
            completed=progress.step,
            words=self._words(progress),
        )

    def say(self, sentence: str) -> None:
        self._bar.console.print(sentence, highlight=False, markup=False)


class Words:
    """What is said of a step; epsilon so far is worked out again only when that costs little of the time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None
        self._epsilon, self._again = "", 0.0

    @property
    def began(self) -> bool:
        return self._first is not None

    def __call__(self, progress: Progress) -> str:
        now = self._clock()
        self._first = self._first or (progress.step, now)
        if now >= self._again or progress.step == progress.steps or progress.is_last:
            self._epsilon = _epsilon(progress)
            took = self._clock() - now
            self._again = now + took + max(1.0, _SHARE * took)
        return ", ".join(filter(None, (self._place(progress), self._epsilon, self._left(progress, now))))

    @staticmethod
    def _place(progress: Progress) -> str:
        return f"step {progress.step} of {progress.steps}"

    def _left(self, progress: Progress, now: float) -> str:
        assert self._first is not None
        step, then = self._first
        if progress.step == step or progress.step == progress.steps:
            return ""
        return f"{duration((now - then) / (progress.step - step) * (progress.steps - progress.step))} left"


def _epsilon(progress: Progress) -> str:
    spent = progress.epsilon()
    return "not private" if spent == float("inf") else f"epsilon {rounded_up(spent)} so far"


def duration(seconds: float) -> str:
    """A time in the two units that matter.

    >>> duration(0.4), duration(75), duration(7300)
    ('1 s', '1 min 15 s', '2 h 1 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
