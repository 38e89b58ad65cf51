"""Work that needs no communication between its pieces, side by side: in processes here, or on Ray.

A worker is one function, ``work(ask)``. ``ask(word, ...)`` puts a question in plain values to the process that began
it, and waits for the answer: which piece is next, may a step be charged, shall it stop. So one process alone writes
what must have one writer, and whichever way workers come about, they do the same.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from saltflat import errors
from saltflat.core.stop import finish_first, without_interrupts
from saltflat.errors import LedgerError, SaltflatError, SettingError

Ask: TypeAlias = Callable[..., Any]
Work: TypeAlias = Callable[[Ask], None]
Address: TypeAlias = "str | tuple[str, int]"

ENGINES = ("auto", "ray", "processes")
LONGEST = 1 << 20  # bytes of a question
GONE = "the process that keeps the record is gone: no further step is allowed; run the same command again"


class Desk(Protocol):
    """The other end of a worker's questions."""

    def answer(self, word: str, *given: Any) -> Any: ...

    def left(self) -> None:
        """The worker is gone, however it went."""


class Office(Protocol):
    """Whose work it is."""

    def desk(self) -> Desk: ...

    def more(self) -> bool:
        """Whether there is work for another worker."""

    def stop(self, number: int) -> None:
        """A signal of this number asks everybody to leave in good order."""


def here(work: Work, office: Office) -> None:
    """One worker, in this process: signals are its own to note."""
    desk = office.desk()
    try:
        work(desk.answer)
    finally:
        desk.left()


def side_by_side(work: Work, office: Office, *, count: int, engine: str = "auto") -> None:
    """``count`` workers at once; one that ends by itself is replaced while there is work.

    SIGTERM and Ctrl-C are passed on as a wish (`Office.stop`), and workers end when they have put things in order; a
    second one ends them at once.
    """
    engine = chosen(engine)
    host = _joined_ray(count) if engine == "ray" else ""
    begin = _on_ray if engine == "ray" else _on_processes
    with finish_first() as caught, _counter(office, host) as counter, begin(work, counter) as begun:
        hands, ended = [begun() for _ in range(count)], 0
        while hands:
            time.sleep(0.05)
            if caught:
                office.stop(caught[0])
            for hand in [hand for hand in hands if not hand()]:
                hands.remove(hand)
                ended += 1
                if counter.came < ended:
                    raise SettingError(
                        f"a worker ({engine}) ended before it began: too little memory perhaps, or saltflat is not "
                        "installed there; --jobs 1 needs none"
                    )
                if office.more() and not caught:
                    hands.append(begun())


def chosen(engine: str) -> str:
    """The engine that is meant: Ray where it is installed, unless another is named."""
    if engine not in ENGINES:
        raise SettingError(f"the engine is one of {', '.join(ENGINES)}; got {engine!r}")
    there = importlib.util.find_spec("ray") is not None
    if engine == "ray" and not there:
        raise SettingError("--engine ray needs the ray package: pip install 'saltflat[ray]'")
    return ("ray" if there else "processes") if engine == "auto" else engine


# The two engines: each gives a function that begins a worker, and says of a worker whether it is still there

Alive: TypeAlias = Callable[[], bool]


@contextmanager
def _on_processes(work: Work, counter: _Counter) -> Iterator[Callable[[], Alive]]:
    context, every = multiprocessing.get_context("spawn"), list[Any]()

    def begun() -> Alive:
        process = context.Process(target=_worker, args=(work, counter.address, counter.key), daemon=True)
        with without_interrupts():
            process.start()
        every.append(process)
        return process.is_alive

    try:
        yield begun
    finally:
        for process in every:
            process.kill()  # those that are still there: all others have put things in order
        for process in every:
            process.join()


@contextmanager
def _on_ray(work: Work, counter: _Counter) -> Iterator[Callable[[], Alive]]:
    import ray

    task = ray.remote(max_retries=0, num_cpus=1)(_worker)
    every: list[Any] = []

    def begun() -> Alive:
        one = task.remote(work, counter.address, counter.key)
        every.append(one)
        return lambda: not ray.wait([one], timeout=0)[0]

    try:
        yield begun
    finally:
        for each in every:
            with suppress(Exception):  # one that has ended
                ray.cancel(each, force=True)


def _joined_ray(count: int) -> str:
    """Be connected to Ray, or begin one on this machine; where workers elsewhere find us, nothing if all are here.

    One that is begun here ends with this process.
    """
    for name in (
        "RAY_USAGE_STATS_ENABLED",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    ):  # no telemetry; GPUs stay visible
        os.environ.setdefault(name, "0")
    import ray

    if not ray.is_initialized():
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if "RAY_ADDRESS" not in os.environ:
            quiet |= {"num_cpus": max(count, os.cpu_count() or 1), "include_dashboard": False}
        try:
            ray.init(**quiet)
        except Exception as error:  # of any kind: whatever keeps it from beginning
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise SettingError(f"Ray could not begin ({first}); --engine processes needs none") from None
    return str(ray.util.get_node_ip_address()) if len(ray.nodes()) > 1 else ""


# Questions and answers, over a socket that only those find who were told a secret


class _Counter:
    """Serves workers, a thread and a desk for each; ``came`` counts them."""

    def __init__(self, office: Office, listener: Listener, key: bytes) -> None:
        self.address: Address = listener.address
        self.key, self.came = key, 0
        self._office, self._listener, self._closed = office, listener, False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                channel = self._listener.accept()
            except (
                OSError,
                EOFError,
                multiprocessing.AuthenticationError,
            ):  # whoever came does not know the secret
                continue
            if self._closed:
                channel.close()
                return
            self.came += 1
            thread = threading.Thread(target=_serve, args=(channel, self._office.desk()), daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Wait for those who are served: their workers are gone, and what they leave is put on record."""
        self._closed = True
        with suppress(OSError, AttributeError):
            self._listener._listener._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]  # it waits there
        self._listener.close()
        for thread in self._threads[1:]:
            thread.join(timeout=60)
        self._threads[0].join(timeout=1)  # one that is still held up by a stranger ends with this process


@contextmanager
def _counter(office: Office, host: str) -> Iterator[_Counter]:
    """On this machine a socket in a folder of our own; for workers on other machines a port, with the same secret."""
    key = os.urandom(32)
    with tempfile.TemporaryDirectory(prefix="saltflat-") as folder:
        address: Address = (host, 0) if host else str(Path(folder, "ask"))
        counter = _Counter(office, Listener(address, backlog=64, authkey=key), key)
        try:
            yield counter
        finally:
            counter.close()


def _serve(channel: Connection, desk: Desk) -> None:
    try:
        while True:
            word, *given = json.loads(channel.recv_bytes(LONGEST))
            try:
                reply = {"answer": desk.answer(word, *given)}
            except Exception as error:
                kind = type(error) if isinstance(error, SaltflatError) else LedgerError
                reply = {"error": kind.__name__, "said": str(error) or type(error).__name__}
            channel.send_bytes(json.dumps(reply).encode())
    except (EOFError, OSError, ValueError):
        pass
    finally:
        channel.close()
        desk.left()


def _worker(work: Work, address: Address, key: bytes) -> None:
    """A worker of its own: it leaves Ctrl-C to the process that sent for it, and ends when that one is gone."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a run can take it for a while
    with suppress(OSError, EOFError), Client(address, authkey=key) as channel:

        def ask(word: str, *given: Any) -> Any:
            try:
                channel.send_bytes(json.dumps([word, *given]).encode())
                reply = json.loads(channel.recv_bytes(LONGEST))
            except (EOFError, OSError):
                raise LedgerError(GONE) from None
            if "error" in reply:
                raise getattr(errors, str(reply["error"]), LedgerError)(reply["said"])
            return reply["answer"]

        work(ask)
