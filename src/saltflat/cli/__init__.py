"""The command line: one file per command, each with a ``register(app)``, listed in ``_COMMANDS``."""

from __future__ import annotations

import sys

import typer

from saltflat.cli import budget, demo, ledger
from saltflat.errors import SaltflatError

app = typer.Typer(
    name="saltflat",
    help="Train models with differential privacy, in flat minima.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_COMMANDS = (demo, budget, ledger)

for command in _COMMANDS:
    command.register(app)


@app.callback()
def _root() -> None:
    """Train models with differential privacy, in flat minima."""


def main() -> None:
    """Run the command line: 0 if it went well, 2 and one line on stderr if a request cannot be met."""
    try:
        app()
    except SaltflatError as error:
        print(f"saltflat: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
