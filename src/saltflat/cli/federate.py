"""``saltflat federate``: one private run over clients, from a recipe and flags; ``federate init``: a Flower app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from saltflat.cli import federate_init
from saltflat.cli.machine import DataDir, Device, Threads
from saltflat.cli.repeats import Count, carry_out_all, first_of, wanted
from saltflat.cli.running import (
    Asked,
    DryRun,
    Out,
    Resume,
    Sets,
    Shared,
    Tensorboard,
    carry_out,
    chosen_of,
    of_flag,
    with_flags,
)
from saltflat.cli.settings import CLIENT_FLAGS
from saltflat.errors import SettingError
from saltflat.recipes import documents
from saltflat.recipes.documents import Document

USUAL = "federated-digits"  # the recipe, where none is named
EXPECTED = 100  # clients in a round of data that no recipe was named for, of declared ones


class OneOrInit(TyperGroup):
    """``federate RECIPE``, and ``federate init`` beside it: whatever is no such word is the recipe's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args[:1] == ["init"] else ["run", *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == "run" else name, command, rest  # nobody has to type it, so nobody reads it


def register(app: typer.Typer) -> None:
    """Add ``federate`` to ``app``."""
    group = typer.Typer(cls=OneOrInit, help="Train over clients, each of them a unit; init: a Flower app.")
    group.command("run")(with_flags(federate, CLIENT_FLAGS))
    federate_init.register(group)
    app.add_typer(group, name="federate")


def federate(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A TOML file, a name that `saltflat recipes` lists, or a file of yours: mine.csv, mine.npz.",
            show_default=f"{USUAL}",
        ),
    ] = None,
    *,
    out: Out = Path("runs/latest"),
    resume: Resume = False,
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    ledger: Shared = None,
    device: Device = "cpu",
    threads: Threads = 0,
    workers: Annotated[
        int,
        typer.Option(
            help="Processes that train clients side by side, where the network cannot be trained in stacks of "
            "clients; 0: none but this one."
        ),
    ] = 0,
    tensorboard: Tensorboard = False,
    repeats: Count = 1,
    norms: Annotated[
        bool,
        typer.Option(
            "--norms",
            help="Declare that the clients' data is public, and also measure their updates; no epsilon covers that.",
        ),
    ] = False,
    sets: Sets = None,
    given: dict[str, str],
) -> None:
    """Train a network over clients, in this process. A unit is a whole client: only what its training changes leaves.

    Each round, clients drawn in secret train on their own rows; their updates are clipped, summed and noised, and the
    round is charged before. The folder keeps what saltflat train keeps. Ctrl-C ends after the round at hand, and
    prints the command that goes on; so does a run whose process was killed.

    Clients from a column of yours: saltflat federate people.csv --table people.toml --user person --clients 5000
    --epsilon 8. Simulated ones: saltflat federate --clients 200 --split dirichlet. Clients on machines of their own:
    saltflat federate init FOLDER writes a Flower app.
    """
    asked = Asked(
        *("federate", out, resume, dry_run, data_dir, ledger, device, threads, tensorboard),
        workers=workers,
        norms=norms,
    )
    first = first_of(asked)
    chosen = chosen_of(_document(recipe, given, first), given, sets or [], first, flags=CLIENT_FLAGS)
    several = wanted(asked, repeats, chosen.seed)
    if several is None:
        carry_out(chosen, asked)
    else:
        carry_out_all(chosen, asked, several)


def _document(recipe: str | None, given: dict[str, str], asked: Asked) -> Document:
    from saltflat.data import is_own
    from saltflat.recipes.recipe import current

    if recipe is not None and is_own(recipe) and not recipe.endswith(".toml"):
        if "data" in given:
            raise SettingError(f"{recipe} and --data {given['data']}: give the data once")
        given["data"] = recipe
    elif recipe is not None:
        return current(documents.read(recipe))
    if asked.resume:
        return asked.document()
    usual = current(documents.shipped(USUAL))
    return _for_own(usual, given) if is_own(given.get("data", "")) else usual


def _for_own(usual: Document, given: dict[str, str]) -> Document:
    """The usual recipe for a file of yours, by the declared number of clients: a network that fits any, and rates.

    A round takes a hundred clients on average, or half of them where there are few; delta is at most 1 / (10 clients).
    """
    if "clients" not in given:
        raise SettingError(
            f"how many clients {given['data']} has is private: declare a number that is public and not smaller, with "
            "--clients 5000"
        )
    if "user" not in given and "split" not in given:
        raise SettingError(
            f"say whose each row of {given['data']} is, by a column of it: --user COLUMN; or --split iid, to simulate "
            "clients"
        )
    count = max(1, of_flag("clients", given, int))
    changes: dict[str, Any] = {
        "model": "mlp",
        "rate": min(0.5, EXPECTED / count),
        "delta": min(1e-5, 0.1 / count),
    }
    return usual.but(((name,), value, "the usual settings") for name, value in changes.items())
