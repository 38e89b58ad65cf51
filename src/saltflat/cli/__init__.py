"""The command line: one file per command, each with a ``register(app)``, listed in ``_COMMANDS``."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from saltflat.cli import (
    audit,
    budget,
    demo,
    doctor,
    federate,
    landscape,
    ledger,
    pate,
    predict,
    report,
    suggest,
    sweep,
    synthesize,
    train,
)
from saltflat.cli.processes import launcher, started_together, together
from saltflat.errors import Interrupted, SaltflatError, SettingError


class OneLine(TyperGroup):
    """Commands whose mistakes in flags are errors like any other, instead of a panel of many lines."""

    def main(self, *args: Any, **settings: Any) -> NoReturn:
        try:
            code = super().main(*args, **{"prog_name": "saltflat", **settings, "standalone_mode": False})
        except Exception as error:
            if not hasattr(error, "format_message"):  # what every version of the parser gives its errors
                raise
            if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
                print(error.format_message())
                sys.exit(2)
            raise SettingError(_in_words(error)) from None
        if code == 130:  # some versions of the parser turn Ctrl-C into this number, without a word
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)


def _in_words(error: Any) -> str:
    """What is wrong with the flags, and where the right ones are listed."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "saltflat"
    return f"{error.format_message().rstrip('.')}; see {path} --help"


app = typer.Typer(
    name="saltflat",
    cls=OneLine,
    help="Train models with differential privacy, in flat minima.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_COMMANDS = (
    demo,
    suggest,
    doctor,
    train,
    sweep,
    federate,
    predict,
    pate,
    synthesize,
    landscape,
    report,
    audit,
    budget,
    ledger,
)

for command in _COMMANDS:
    command.register(app)


def _version(asked: bool) -> None:
    if asked:
        import saltflat

        print(f"saltflat {saltflat.__version__}")
        raise typer.Exit


_IN_ONE_PROCESS = {
    "federate": "its clients are trained side by side by --workers N, or on machines of their own by federate init",
}


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train models with differential privacy, in flat minima."""
    command = context.invoked_subcommand
    if started_together() > 1 and command != "train":
        why = _IN_ONE_PROCESS.get(command or "", "every process would do all of it again")
        raise SettingError(f"saltflat {command} is not for torchrun: {why}; run it without")


def main() -> None:
    """Run the command line: 0 if it went well, 2 and one line on stderr if a request cannot be met.

    A run that a signal stopped ends with 128 + the signal's number, as the shell would say it. Processes that
    `torchrun` started work together: the first one prints, and one of them says what went wrong.
    """
    try:
        with together(), _warnings_in_one_line():
            try:
                app()
            finally:
                sys.stdout.flush()  # a full disk shows here, not after the end
    except Interrupted as error:
        _leave(error, 128 + error.signal)
    except KeyboardInterrupt:
        again = shlex.join([*launcher(), *sys.argv[1:]])
        _leave(f"stopped at once; what was kept before is whole; to begin again, run {again}", 130)
    except SaltflatError as error:
        _leave(error, 2)
    except BrokenPipeError:
        _leave("nobody reads the output any more; nothing was lost", 2)
    except OSError as error:
        _leave(f"cannot go on ({error.strerror or error}); free the disk or the folder and run again", 2)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Warnings of saltflat look like its errors; those of other packages stay as they are."""
    own = str(Path(__file__).parents[1])
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], filename: str, *place: Any, **named: Any
        ) -> None:
            if filename.startswith(own):
                print(f"saltflat: warning: {' '.join(str(message).split())}", file=sys.stderr)
            else:
                before(message, category, filename, *place, **named)

        warnings.showwarning = show
        yield


def _leave(why: object, code: int) -> NoReturn:
    print(f"saltflat: {' '.join(str(why).split())}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # what could not be written stays unwritten: no second message at the very end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
