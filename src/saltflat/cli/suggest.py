"""``saltflat suggest``: settings for a table, from measurements, before anything is spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.screen import screen
from saltflat.errors import SettingError

if TYPE_CHECKING:
    from saltflat.advice import Suggestion


def register(app: typer.Typer) -> None:
    """Add ``suggest`` to ``app``."""
    app.command("suggest")(suggest)


def suggest(
    size: Annotated[int, typer.Option(help="The declared number of rows; public, and not counted for this.")],
    epsilon: Annotated[float, typer.Option(help="The epsilon that the run may spend.")],
    *,
    features: Annotated[int, typer.Option(help="Inputs of a row; a category counts once per value.")] = 20,
    classes: Annotated[int, typer.Option(help="Classes of the target.")] = 2,
    delta: Annotated[
        float | None, typer.Option(help="The delta.", show_default="1e-5, or 1 / (10 x size) if smaller")
    ] = None,
    network: Annotated[str | None, typer.Option(help="linear or mlp.", show_default="the better one")] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="Write a recipe for saltflat train; a file that is there stays.")
    ] = None,
    data: Annotated[
        str, typer.Option(help="The recipe's data: a file of yours, or a data set by name.")
    ] = "mine.npz",
    table: Annotated[str | None, typer.Option(help="The recipe's table file, for a CSV.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Settings for private training on a table, and what to expect of them: measured on made-up tables.

    Examples:

        saltflat suggest --size 5000 --epsilon 1 --features 20 --classes 2

        saltflat suggest --size 5000 --epsilon 1 --recipe mine-recipe.toml --data mine.csv --table mine.toml
    """
    from saltflat.advice import suggest as suggested

    found = suggested(
        size=size, epsilon=epsilon, features=features, classes=classes, delta=delta, network=network
    )
    if recipe is not None:
        _write(found, recipe, data, table, classes)
    if as_json:
        print(json.dumps(_facts(found)))
        return

    console = screen(highlight=False, markup=False, soft_wrap=True)
    console.print(found.text)
    if recipe is not None:
        console.print(f"Written to {recipe}: saltflat train {recipe} --dry-run shows what it does.")


def _write(found: Suggestion, file: Path, data: str, table: str | None, classes: int) -> None:
    from saltflat.data import is_own
    from saltflat.recipes.build import own_of

    declared: dict[str, Any] = {"table": table} if table is not None else {}
    if is_own(data) and data.endswith(".npz"):
        declared["classes"] = classes
    made = found.recipe(data, **declared)
    own_of(made)  # what cannot be read is told here, and not when it is trained on
    about = (
        f"# saltflat suggest --size {found.size} --epsilon {found.epsilon:g}: measured on made-up tables.\n"
    )
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(about + made.as_toml())
    except FileExistsError:
        raise SettingError(f"{file} is there already; give another name as --recipe") from None


def _facts(found: Suggestion) -> dict[str, Any]:
    from saltflat.recipes.values import document_of

    row = found.measured
    return {
        "size": found.size,
        "epsilon": found.epsilon,
        "delta": found.delta,
        "unit": "one example",
        "adjacency": "add or remove one",
        "sampling": "Poisson",
        "network": {"mlp": {"depth": found.depth}},
        "method": document_of(found.method, {}),
        "optimizer": document_of(found.optimizer, {}),
        "batch_size": found.batch_size,
        "epochs": found.epochs,
        "steps": found.steps,
        "clip_norm": found.clip_norm,
        "learning_rate": found.learning_rate,
        "noise_multiplier": found.noise_multiplier,
        "noise_to_signal": found.noise_to_signal,
        "measured": {
            "size": row.size,
            "epsilon": row.epsilon,
            "accuracy": row.accuracy,
            "lowest": row.lowest,
            "highest": row.highest,
            "without_privacy": row.plain,
            "most_common_class": row.guess,
        },
        "expect": found.expectation,
        "warnings": list(found.warnings),
    }
