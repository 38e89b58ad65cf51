"""``saltflat train``: one private run from a recipe and flags, kept in a folder; ``saltflat recipes`` lists some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from saltflat.cli.screen import screen
from saltflat.cli.settings import FLAGS
from saltflat.errors import DataError, SettingError
from saltflat.recipes import documents
from saltflat.recipes.documents import Document
from saltflat.runs.layout import Folder

if TYPE_CHECKING:
    from saltflat.recipes import Recipe
    from saltflat.runs.repeats import Repeats

USUAL = "digits"  # the recipe, where none is named
USUAL_TABLE = "best-calibrated"  # the recipe of rows with classes, where none is named
USUAL_EPSILON = 3.0  # for a table that no recipe was named for
SPARE = 8  # steps that a run on the user's table may waste, as for every recipe that says nothing
USUAL_IMAGES = "best-images"  # the recipe of a folder of images, where none is named
_KINDS: dict[str, Any] = {"size": int, "epsilon": float, "classes": int, "target_range": tuple[float, float]}


def register(app: typer.Typer) -> None:
    """Add ``train`` and ``recipes`` to ``app``."""
    app.command("train")(with_flags(train, FLAGS))
    app.command("recipes")(recipes)


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A TOML file, or a name that `saltflat recipes` lists.", show_default=f"{USUAL}"),
    ] = None,
    *,
    named: Annotated[
        str | None, typer.Option("--recipe", metavar="RECIPE", help="The recipe, if it is not the argument.")
    ] = None,
    out: Out = Path("runs/latest"),
    resume: Resume = False,
    restartable: Annotated[
        bool,
        typer.Option(
            "--restartable",
            help="Begin, or go on if --out holds a run of this recipe: for torchrun --max-restarts, and for jobs that "
            "are queued again.",
        ),
    ] = False,
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    ledger: Shared = None,
    device: Device = "cpu",
    threads: Threads = 0,
    workers: Annotated[
        int,
        typer.Option(
            help="Threads that read data on disk (Parquet, a folder of .npy), the next batch while this one is "
            "computed; 0: none.",
            min=0,
            max=64,
        ),
    ] = 0,
    tensorboard: Tensorboard = False,
    repeats: Count = 1,
    infinity: Annotated[
        bool,
        typer.Option(
            "--infinity",
            help="Declare that the training examples are public, and also train without noise, to compare; no epsilon "
            "covers that.",
        ),
    ] = False,
    sets: Sets = None,
    given: dict[str, str],
) -> None:
    """Train a network privately. Noise and sampling are secret; test accuracy is taken on public examples.

    The folder keeps recipe, ledger, checkpoints, metrics (JSON lines), privacy statement and model. Ctrl-C ends
    after the step at hand, and prints the command that goes on.

    A table of your own: saltflat train --data mine.csv --table mine.toml --size 5000 --epsilon 1, or --data mine.npz
    --classes 3 --size 5000. Without a recipe it is trained by the recipe best-calibrated; with a
    number as target, or another --model, by the settings of saltflat suggest.

    Data larger than memory: saltflat train RECIPE --data folder --size 1000000, with x.npy and y.npy (or shards
    x-*.npy, y-*.npy) and --classes, or Parquet or Arrow files and --table. Rows are read when they are drawn.

    Images of your own: saltflat train best-images --data folder --size 5000 --epsilon 1, with pictures in
    train/<class>/ and test/<class>/, or idx files; the part for testing is public.

    --repeats 5 trains five runs with other first weights into folders of --out, on one ledger, and prints mean,
    standard error and what all five cost together.

    Several processes or machines: torchrun --nproc-per-node 2 -m saltflat train RECIPE, with the same flags. They share
    the units of each step; the first one charges, writes and prints. --device cuda gives each a GPU of its own.
    """
    from saltflat.core.group import Group

    if named is not None and recipe is not None and named != recipe:
        raise SettingError(f"two recipes are named, {recipe} and --recipe {named}; leave one out")
    recipe = recipe or named
    asked = Asked(
        *("train", out, resume, dry_run, data_dir, ledger, device, threads, tensorboard),
        workers=workers,
        infinity=infinity,
    )

    def decided() -> tuple[Asked, Recipe, Repeats | None]:
        here = replace(asked, resume=resume or (restartable and _holds_a_run(asked.folder)))
        first = first_of(here)
        chosen = chosen_of(_document(recipe, given, first), given, sets or [], first, flags=FLAGS)
        return here, chosen, wanted(here, repeats, chosen.seed)

    # folders and files may be on the first process's machine only
    asked, chosen, several = Group.here().told(decided)
    if several is None:
        carry_out(chosen, asked)
    else:
        carry_out_all(chosen, asked, several)


def _holds_a_run(folder: Folder) -> bool:
    """Whether there is something to go on with; repeats of which none had begun are begun again."""
    from saltflat.runs.repeats import runs_in

    return folder.recipe.exists() or any(Folder(each).recipe.exists() for each in runs_in(folder.path))


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe as TOML.")] = None,
) -> None:
    """List the recipes that ship with saltflat, or print one to start your own from."""
    if name is not None:
        print(documents.text_of(name), end="")
        return
    from rich.table import Table

    title = "saltflat train RECIPE; of clients: saltflat federate RECIPE"
    table = Table("recipe", "what it is", title=title, title_justify="left")
    for each in documents.names():
        table.add_row(each, documents.about(each))
    screen().print(table)


def _document(recipe: str | None, given: dict[str, str], asked: Asked) -> Document:
    from saltflat.recipes.recipe import current

    if recipe is not None:
        return current(documents.read(recipe))
    if asked.resume:
        return asked.document()
    if _are_images(given.get("data"), asked.data_dir):
        return current(documents.shipped(USUAL_IMAGES))
    return _suggested(given, asked.data_dir) or current(documents.shipped(USUAL))


def _are_images(name: str | None, data_dir: Path | None) -> bool:
    """Whether the data is a folder of images; one that is not there is told later."""
    from saltflat.data import is_folder, is_own, kind_of
    from saltflat.data.files import resolve

    if name is None or not is_own(name) or not is_folder(name):
        return False
    try:
        return kind_of(resolve(name, data_dir)) == "images"
    except DataError:
        return True


def _suggested(given: dict[str, str], data_dir: Path | None) -> Document | None:
    """For a table without a recipe: `USUAL_TABLE`, or what is suggested for its size; None for anything else.

    Nothing was measured of `USUAL_TABLE` for targets that are numbers or for other networks.
    """
    from saltflat.advice import suggest
    from saltflat.data import Own, is_own, official_form, official_size, own_form
    from saltflat.recipes.build import size_missing
    from saltflat.recipes.recipe import current

    name = given.get("data")
    if name is None or not (is_own(name) or (name == "adult" and "model" not in given)):
        return None
    asked = {
        key: of_flag(key, given, _KINDS[key])
        for key in ("size", "epsilon", "classes", "target_range")
        if key in given
    }
    declared: dict[str, Any] = {key: given[key] for key in ("table", "test") if key in given}
    if is_own(name):
        span = asked.get("target_range")
        own = Own(name, **declared, classes=asked.get("classes"), span=tuple(span) if span else None)
        form = own_form(own, data_dir)
        if "size" not in asked:
            raise size_missing(name)
        size = asked["size"]
    else:
        form, size = official_form(name), asked.get("size") or official_size(name)
    if form.classes and len(form.shape) == 1 and "model" not in given:
        # a delta that the declared size allows, as everywhere
        delta = min(documents.shipped(USUAL_TABLE).table["delta"], 1 / (10 * size))
        asks: dict[str, Any] = {"epsilon": USUAL_EPSILON, "delta": delta, "spare": SPARE}
        changes = [((key,), value, "") for key, value in asks.items()]
        return current(documents.shipped(USUAL_TABLE)).but(changes)
    found = suggest(
        size=size,
        epsilon=asked.get("epsilon", USUAL_EPSILON),
        features=form.features,
        classes=form.classes or None,
    )
    own_settings: dict[str, Any] = {**declared, "classes": form.classes or None, "target_range": form.span}
    if not is_own(name):
        own_settings = {}
    made = found.recipe(name, **own_settings)
    return documents.Document(made.as_document(), "the suggested settings")
