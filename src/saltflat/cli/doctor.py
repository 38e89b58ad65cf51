"""``saltflat doctor``: what a model or a recipe is in for, on made-up rows."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import DataDir, Threads, check_machine
from saltflat.cli.screen import screen
from saltflat.errors import DataError, SettingError

if TYPE_CHECKING:
    from torch import nn

    from saltflat.advice import Examined

REFUSED = 2


def register(app: typer.Typer) -> None:
    """Add ``doctor`` to ``app``."""
    app.command("doctor")(doctor)


def doctor(
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RECIPE",
            help="package.module:callable, a network of saltflat.models, or a recipe (file or shipped name).",
        ),
    ],
    *,
    shape: Annotated[
        str | None, typer.Option(help="One example's shape, such as 20 or 3,32,32; a recipe's data has one.")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Classes of the target.", show_default="it is one number")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples in a step; a recipe has its own.")] = 256,
    physical: Annotated[int, typer.Option(help="Most examples in memory at once.")] = 256,
    data_dir: DataDir = None,
    threads: Threads = 0,
) -> None:
    """Which layers have fast rules, what a step takes in time and memory, and what would be refused, and why.

    Everything is tried on made-up rows; no data is read and nothing is charged. A callable of yours is imported and
    called, and gives a model. Ends with 0 if training would begin, 2 if it would be refused.

    Examples:

        saltflat doctor mypackage.nets:make --shape 3,32,32 --classes 10

        saltflat doctor fashion-mnist-dp-sat-eps3
    """
    check_machine("cpu", threads)
    found = _examined(what, shape, classes, batch_size, physical, data_dir)
    _show(what, found)
    if found.refused:
        raise typer.Exit(REFUSED)


def _examined(
    what: str, shape: str | None, classes: int | None, batch_size: int, physical: int, data_dir: Path | None
) -> Examined:
    from saltflat.advice import doctor as examined
    from saltflat.recipes import documents

    if what.endswith(".toml") or what in documents.names():
        if shape is not None or classes is not None:
            raise SettingError("a recipe's data has its shape and classes; leave --shape and --classes out")
        return _of_recipe(what, data_dir)
    if shape is None:
        raise SettingError(
            f"add --shape, the shape of one example, such as --shape 20 or --shape 3,32,32; {what} is no recipe"
        )
    sides = _sides(shape)
    model = _called(what) if ":" in what and not what.startswith("{") else _network(what, sides, classes)
    return examined(model, shape=sides, classes=classes, batch_size=batch_size, physical=physical)


def _of_recipe(name: str, data_dir: Path | None) -> Examined:
    from saltflat.advice.examined import examine, rows_of
    from saltflat.recipes import read
    from saltflat.recipes.build import check_shapes, fitted, form_of, loss_of, network_of, plan_of, size_of

    recipe = read(name)
    if recipe.clients is not None:
        raise SettingError(
            f"doctor looks at the gradients of examples, and a unit of {name} is a client, which may mix examples "
            f"of its own: try saltflat federate {name} --dry-run"
        )
    form = form_of(recipe, data_dir)
    recipe = fitted(recipe, form)
    check_shapes(recipe, form)
    plan = plan_of(recipe, size_of(recipe))
    contribution = loss_of(recipe, network_of(recipe))
    rows = rows_of(contribution, form, recipe.physical, plan.expected_units)
    return examine(contribution, rows, [(phase, plan.expected_units) for phase in plan.phases])


def _sides(text: str) -> tuple[int, ...]:
    """``3,32,32`` as numbers."""
    try:
        sides = tuple(int(side) for side in text.replace("x", ",").split(","))
    except ValueError:
        sides = ()
    if not sides or min(sides) < 1:
        raise SettingError(f"--shape takes whole numbers of at least 1, such as 20 or 3,32,32; got {text!r}")
    return sides


def _network(name: str, sides: tuple[int, ...], classes: int | None) -> nn.Module:
    """A network of the library, which may have its settings beside it."""
    import math

    from saltflat.recipes.groups import settings_of
    from saltflat.recipes.networks import Network, networks
    from saltflat.recipes.toml import word
    from saltflat.recipes.values import Spot, value_of

    try:
        network = value_of(word(name), Network, Spot())
    except DataError as error:
        raise SettingError(f"{name}: {error}") from None
    said = {"features": math.prod(sides), "outputs": classes or 1}
    takes = settings_of(networks()[network.name])
    own = {key: value for key, value in said.items() if key in takes and network.settings.get(key) is None}
    return Network(network.name, {**network.settings, **own}).made()


def _called(spec: str) -> nn.Module:
    """The model that ``package.module:callable`` makes; the folder at hand counts, as for ``python -m``."""
    from torch import nn

    place, _, name = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(place)
        for part in name.split("."):
            found = getattr(found, part)
        model = found if isinstance(found, nn.Module) else found()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise SettingError(f"{spec} gives no model: {type(error).__name__}: {first}") from None
    if not isinstance(model, nn.Module):
        raise SettingError(f"{spec} gives a {type(model).__name__}; it must give an nn.Module")
    return model


def _show(what: str, found: Examined) -> None:
    from rich.table import Table
    from rich.text import Text

    console = screen(highlight=False)
    table = Table("layer", "kind", title=Text(what), title_justify="left")
    table.add_column("weights", justify="right")
    table.add_column("per-example gradients")
    for each in found.layers:
        colour = "yellow" if each.slow else "dim" if not each.kept else ""
        table.add_row(
            Text(each.name or "(the model)"), each.kind, f"{each.weights:,}", Text(each.way, colour)
        )
    console.print(table)
    console.print(f"{found.trained:,} weights are trained.", highlight=False)
    for line in found.verdict:
        style = (
            "bold red" if found.refused else "yellow" if found.slow and line.startswith("accepted") else ""
        )
        console.print(Text(line, style), soft_wrap=True)
