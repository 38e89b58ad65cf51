"""What several processes run together in `test_group.py`: started by `started`, each writes what it ended with."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, multiprocessing

sys.path.insert(0, str(Path(__file__).parents[1]))
from reference import FixedNoise
from steps import CRITERION, beside, examples, network
from test_every_method import SIZE, TABLE, plan_of, three_views

import saltflat as sf
from saltflat.core.group import Group
from saltflat.core.mechanism import Bounded, noised
from saltflat.data import TensorUnits
from saltflat.errors import BudgetError, SaltflatError
from saltflat.privacy.noise import SecureNoise
from saltflat.runs.begin import Taken
from saltflat.runs.layout import Folder

Job = Callable[[int, Path], Any]
LIMIT = 30  # seconds that a process waits for the others


def _process(rank: int, size: int, job: Job, folder: Path) -> None:
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    distributed.init_process_group(
        "gloo", init_method=meet, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT)
    )
    try:
        torch.save(job(rank, folder), folder / f"{rank}.pt")
    except Exception:
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        raise
    finally:
        with suppress(Exception):
            distributed.destroy_process_group()


def started(job: Job, folder: Path, size: int = 2) -> list[Any]:
    """What each of ``size`` processes returned."""
    multiprocessing.start_processes(_process, (size, job, folder), nprocs=size, start_method="spawn")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def row(name: str, *, noise: Any = None, sampling: Any = None, **more: Any) -> Any:
    """A row of the table of methods, from its first weights to its last; each process has other first weights."""
    views = TABLE[name].views
    augment = three_views if views > 1 else None
    model = network(seed=distributed.get_rank() if distributed.is_initialized() else 0)
    unit = sf.per_example(model, sf.supervised(CRITERION), views=views, augment=augment)
    around = beside(
        noise=noise or FixedNoise(3), sampling=sampling or np.random.default_rng(3), physical=5, **more
    )
    return sf.train(plan_of(TABLE[name].phases), unit, TensorUnits(examples(SIZE)), **around)


def every_row(rank: int, folder: Path) -> Any:
    return {name: row(name) for name in TABLE}


class NobodyElse:
    """A sampler that draws one unit: the second process has none."""

    private = False

    def random(self, size: int) -> Any:
        return np.where(np.arange(size) == 4, 0.0, 1.0)


def one_unit(rank: int, folder: Path) -> Any:
    return row("DP-SGD", sampling=NobodyElse())


class Meter:
    """Refuses the third step, in the first process; the others have none."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, rate: float, noise_multiplier: float) -> None:
        if self.steps == 2:
            raise BudgetError("that would be too much")
        self.steps += 1


def refused(rank: int, folder: Path) -> Any:
    try:
        row("DP-SGD", meter=Meter() if rank == 0 else None)
    except SaltflatError as error:
        return str(error)
    return "not refused"


def resumed(rank: int, folder: Path) -> Any:
    """Stopped by the watch of the first process after two steps, then to the end from its checkpoint."""
    kept = sf.Checkpoints(folder / "kept") if rank == 0 else None
    early = row("DP-SAT", watch=lambda told: told.step == 2, checkpoints=kept)
    return early, row("DP-SAT", checkpoints=kept)


def secret_noise(rank: int, folder: Path) -> Any:
    """What is released of a sum that is 1 in every process, with secret noise: 1.5 times a sensitivity of 2."""
    made = lambda total: noised(Bounded(total, 2.0), 1.5, SecureNoise())
    return Group.here().released({"w": torch.ones(200_000), "b": torch.ones(3, dtype=torch.float64)}, made)


def stopped_fit(rank: int, folder: Path) -> Any:
    """How `fit` ends that the first process's watch stops; the others have none."""
    running = sf.Running(watch=(lambda told: told.step == 2) if rank == 0 else None)
    found = sf.fit(network(), CRITERION, examples(SIZE), epsilon=3, epochs=4, running=running, quiet=True)
    return found.stopped, found.steps, found.spent, found.statement.as_text(), found.params


def unreadable(rank: int, folder: Path) -> Any:
    """An error that another process cannot rebuild: it gets one that says the same."""

    def taken() -> None:
        raise Taken(Folder(folder))

    try:
        Group.here().told(taken)
    except SaltflatError as error:
        return type(error).__name__, str(error)


def all_at_once(rank: int, folder: Path) -> Any:
    """Several jobs in one start, which takes longer than they do."""
    jobs = (one_unit, refused, resumed, own_loop, secret_noise, stopped_fit, unreadable)
    return {job.__name__: job(rank, folder) for job in jobs}


def own_loop(rank: int, folder: Path) -> Any:
    model = network(seed=rank)
    sgd = torch.optim.SGD(model.parameters(), lr=0.2)
    private = sf.make_private(
        model,
        CRITERION,
        examples(SIZE),
        optimizer=sgd,
        plan=plan_of(TABLE["DP-SGD"].phases),
        delta=1e-3,
        safeguards=sf.Safeguards(noise=FixedNoise(3), sampling=np.random.default_rng(3)),
    )
    for batch in private:
        private.step(batch)
    return {name: p.detach() for name, p in model.named_parameters()}
