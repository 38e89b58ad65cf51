"""Where a command computes and finds its data: the flags that commands share, and the check behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saltflat.errors import SettingError

Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, mps.")]
Threads = Annotated[
    int, typer.Option(help="Threads on the CPU; 0: PyTorch decides. Small networks are fastest with 1.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="The folder that holds the data sets.", show_default="SALTFLAT_DATA")
]


def check_machine(device: str, threads: int) -> None:
    """Refuse a device that is not there, before anything is charged; set the threads."""
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).strip().splitlines()[0]
        raise SettingError(f"--device {device} cannot be used here: {first}") from None
    if threads:
        torch.set_num_threads(threads)
