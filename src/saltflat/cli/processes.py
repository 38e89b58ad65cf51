"""``torchrun -m saltflat train``: the processes find each other, the first one speaks, and one says why all ended.

Nothing here loads torch unless `torchrun` started this process together with others.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from saltflat.errors import GroupError, Interrupted, SaltflatError, SettingError

if TYPE_CHECKING:
    from torch.distributed import Store

JOINING = timedelta(minutes=5)  # until all processes have found each other
PATIENCE = timedelta(days=7)  # while the first process makes images, say; one that ends is noticed at once
FIRST_SPEAKS, LAST_WORDS = 0.5, 0.3  # seconds in which another process may say why the run ends
OFFERED, SPOKEN = "saltflat: this start", "saltflat: why starts ended"  # in the store


def started_together() -> int:
    """How many processes `torchrun` started to work together; 1 if it did not start this one."""
    return _number("WORLD_SIZE", 1) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def restarts() -> int:
    """How often `torchrun` may start all of them again; 0 if it did not start this one."""
    return _number("TORCHELASTIC_MAX_RESTARTS", 0) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def started_again() -> bool:
    """Whether `torchrun` will start all of them again if they fail now."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) < restarts()


def launcher() -> list[str]:
    """How this command was started, as far as a process of it knows."""
    if started_together() == 1:
        return ["saltflat"]
    nodes, each = _number("GROUP_WORLD_SIZE", 1), _number("LOCAL_WORLD_SIZE", started_together())
    several = ["--nnodes", str(nodes)] if nodes > 1 else []
    again = ["--max-restarts", str(restarts())] if restarts() else []
    more = ["..."] if nodes > 1 else []  # where they meet is for whoever starts them to know
    return ["torchrun", *several, "--nproc-per-node", str(each), *again, *more, "-m", "saltflat"]


def placed(device: str) -> str:
    """The device of this process: of several that ask for GPUs, each has the one of its number on its machine."""
    if started_together() == 1 or not device.startswith("cuda"):
        return device
    import torch

    mine, each, there = (
        _number("LOCAL_RANK", 0),
        _number("LOCAL_WORLD_SIZE", 1),
        torch.cuda.device_count(),
    )
    if device != "cuda":
        raise SettingError(
            f"--device {device} would put {each} processes on one GPU: write --device cuda, and each takes its own"
        )
    if mine >= there:
        raise SettingError(
            f"{each} processes were started on a machine with {there} GPUs: give torchrun --nproc-per-node {there}"
            if there
            else "--device cuda cannot be used here: this machine has no GPU that PyTorch can use"
        )
    torch.cuda.set_device(mine)
    return f"cuda:{mine}"


@contextmanager
def together() -> Iterator[None]:
    """Join the processes that `torchrun` started with this one; alone, do nothing at all.

    What the others print goes nowhere. Of those that fail, one says why: the first if it knows, else whoever does.
    """
    if started_together() == 1:
        yield
        return
    store, rank, size, silent = _met()
    try:
        _join(store, rank, size)
        if rank:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)
        yield
    except BaseException as error:
        if _went_well(error):
            _leave()
        elif not _speaks(store, rank, error, silent):
            _leave()
            sys.exit(1)
        elif rank and isinstance(error, SaltflatError) and not isinstance(error, Interrupted):
            raise SaltflatError(f"process {rank + 1} of {started_together()}: {error}") from error
        raise
    _leave()


def _met() -> tuple[Store, int, int, int]:
    """The store of `torchrun`, this process's number, how many there are, and how often one of them spoke before."""
    from torch import distributed

    try:
        store, rank, size = next(iter(distributed.rendezvous("env://", timeout=JOINING)))
        return store, rank, size, store.add(SPOKEN, 0)
    except RuntimeError as error:
        raise _apart(error) from None


def _join(store: Store, rank: int, size: int) -> None:
    """Make one group of the processes of this start: `JOINING` for that, and `PATIENCE` for all that it does then."""
    import torch
    from torch import distributed

    graphics = torch.cuda.is_available() and distributed.is_nccl_available()
    try:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if graphics else "gloo",
            store=distributed.PrefixStore(agreed(store, rank, size), store),
            rank=rank,
            world_size=size,
            timeout=JOINING,
        )
        store.set_timeout(PATIENCE)
        distributed.distributed_c10d._set_pg_timeout(PATIENCE)
    except RuntimeError as error:
        raise _apart(error) from None


def agreed(store: Store, rank: int, size: int) -> str:
    """A name that the processes of this start have in common, and that no earlier start had.

    `torchrun` keeps one store for all its starts, and gloo's addresses of processes that were killed stay in it: who
    finds one waits for a process that is gone. (`TORCHELASTIC_RESTART_COUNT` is no such name: every machine counts its
    own.) So the first process makes up a name and offers it; the others answer under it, each by a word of its own;
    the first repeats all words; and who finds its own word among them knows that the first one of this start has it.
    """
    mine, end = secrets.token_hex(16), time.monotonic() + JOINING.total_seconds()
    while time.monotonic() < end:
        if rank == 0:
            store.set(OFFERED, mine)  # each time: one that is about to be ended may offer too
            answers = [f"{mine}/{other}" for other in range(1, size)]
            if store.check(answers):
                store.set(f"{mine}/heard", " ".join(store.get(answer).decode() for answer in answers))
                return mine
        elif store.check([OFFERED]):
            name = store.get(OFFERED).decode()
            store.set(f"{name}/{rank}", mine)
            if store.check([f"{name}/heard"]) and mine in store.get(f"{name}/heard").decode().split():
                return name
        time.sleep(0.02)
    raise _apart(f"waited {JOINING.total_seconds():.0f} seconds for all to come")


def _apart(why: object) -> GroupError:
    """What is said if the processes do not come together."""
    cause, *_ = str(why).strip().splitlines() or ["no reason given"]
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    then = (
        "torchrun starts them again"
        if started_again()
        else f"see that every machine reaches {where}, and start torchrun again"
    )
    return GroupError(
        f"the {started_together()} processes that torchrun started did not find each other ({cause}); no step was "
        f"taken or charged; {then}"
    )


def _went_well(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and not error.code


def _speaks(store: Any, rank: int, error: BaseException, silent: int) -> bool:
    """Whether it is this process that says why the run ends; one of them does.

    ``silent`` is how often somebody spoke in earlier starts. Who lost another process waits for that one's own word.
    `torchrun` meanwhile asks everybody to end: not before that.
    """
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + (FIRST_SPEAKS if rank else 0) + LAST_WORDS * isinstance(error, GroupError)
    try:
        while time.monotonic() < end:
            if store.add(SPOKEN, 0) > silent:
                return False
            time.sleep(0.02)
        return store.add(SPOKEN, 1) == silent + 1
    except RuntimeError:  # torchrun itself is gone: better twice than never
        return True


def _leave() -> None:
    from torch import distributed

    with suppress(Exception):
        distributed.destroy_process_group()


def _number(name: str, usual: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return usual
