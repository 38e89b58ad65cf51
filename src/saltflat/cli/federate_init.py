"""``saltflat federate init``: a Flower app to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add ``init`` to ``app``, the group of ``federate``."""
    app.command("init")(init)


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write the app: a folder that is new or empty.")],
) -> None:
    """Write a Flower app that runs as it is, for clients on machines of their own, and say how to start it."""
    from saltflat.federated.flower.start import start_app

    for file in start_app(folder):
        print(file)
    print(
        "Try it: cd "
        f"{folder} && FLWR_TELEMETRY_ENABLED=0 flwr run . --stream --federation-config num-supernodes=20\n"
        "Then change federation/data.py and federation/task.py; docs/federated_deployment.md shows real hosts."
    )
