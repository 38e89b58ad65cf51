"""``saltflat synthesize``: fit a generator to public images, and draw images from it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import DataDir, Threads, check_machine
from saltflat.errors import DataError, Interrupted, SettingError
from saltflat.recipes.toml import keys_of, word

if TYPE_CHECKING:
    from rich.console import Console

    from saltflat.runs.making import Lesson
    from saltflat.synthesis import Fit

Show = Any  # (what, done, of, note) -> None


def register(app: typer.Typer) -> None:
    """Add ``synthesize`` to ``app``."""
    group = typer.Typer(
        help="Fit a generator to public images, and draw images from it.", no_args_is_help=True
    )
    group.command("fit")(fit)
    group.command("sample")(sample)
    app.add_typer(group, name="synthesize")


def fit(
    data: Annotated[
        str,
        typer.Option(help="Data set: digits (embedded), mnist, ...; or a file of public images: mine.npz."),
    ] = "digits",
    *,
    count: Annotated[
        int | None,
        typer.Option(help="About how many of a data set's training images are public."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Public seed of which ones they are.")] = 0,
    classes: Annotated[int | None, typer.Option(help="For an npz: how many classes y has, 0 and up.")] = None,
    out: Annotated[Path, typer.Option(help="The folder that keeps the generator.")] = Path("runs/generator"),
    data_dir: DataDir = None,
    threads: Threads = 0,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the fit, such as seen=200000, lr=5e-4 or network.UNet.channels=32; repeat for more.",
        ),
    ] = None,
) -> None:
    """Fit a diffusion model to public images, and to public ones only: it knows them by heart.

    Of a data set by name, --count images are taken as public, by --seed: the same that a recipe with [public] takes, so
    that a private run on the rest stays private. All images of a file of yours are taken. Ctrl-C ends after the step at
    hand; the same command goes on. Images are judged and looked at with saltflat train and its report (docs/public.md).
    """
    from rich.console import Console

    from saltflat.runs.making import fitted_in

    console = Console()
    how = _settings(sets or [])
    check_machine("cpu", threads)
    lesson = _lesson(data, count, seed, classes, data_dir)
    network = how.network.made(tuple(lesson.images.shape[1:]), lesson.classes)
    size = sum(p.numel() for p in network.parameters())
    _say(console, f"A generator of {size:,} parameters for {lesson.named}; nothing protects these images.")
    try:
        with _shown(console) as show:
            told = lambda seen: show("fitting the generator", seen.step, seen.steps, f"loss {seen.loss:.3f}")
            fitted_in(out, how, lesson, watch=told)
    except Interrupted as error:
        raise Interrupted(f"{error}; it is kept in {out}: the same command goes on", error.signal) from None
    _say(
        console, f"Kept in {out}. Draw from it: saltflat synthesize sample {out} --images 1000 --out made.npz"
    )


def sample(
    generator: Annotated[Path, typer.Argument(help="The folder that saltflat synthesize fit made.")],
    *,
    images: Annotated[int, typer.Option(help="How many, as many of each class.")] = 1000,
    steps: Annotated[int, typer.Option(help="Steps of the sampler; each asks the network twice.")] = 18,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    out: Annotated[Path, typer.Option(help="The npz file that is written: x (uint8 images) and y.")] = Path(
        "made.npz"
    ),
    threads: Threads = 0,
) -> None:
    """Draw images from a generator, into an npz file that saltflat train --data and numpy read."""
    from rich.console import Console

    from saltflat.privacy.record import durable
    from saltflat.runs.layout import as_npz
    from saltflat.runs.making import generator_in
    from saltflat.settings import is_whole
    from saltflat.synthesis import even_labels

    if not is_whole(images, 1, 10**9) or not is_whole(steps, 2, 10**6):
        raise SettingError(f"--images is 1 or more, --steps 2 or more; got {images} and {steps}")
    if out.suffix != ".npz" or not out.absolute().parent.is_dir():
        raise SettingError(f"--out is an npz file in a folder that exists; got {out}")
    console = Console()
    check_machine("cpu", threads)
    found = generator_in(generator)
    labels = even_labels(images, found.classes)
    with _shown(console) as show:
        made = found.draw(
            labels, seed=seed, steps=steps, watch=lambda done, of: show("making images", done, of, "")
        )
    pixels = (made * 255).round().byte().permute(0, 2, 3, 1).squeeze(-1)
    durable.replace(out, as_npz({"x": pixels.numpy(), "y": labels.numpy()}), mode=durable.RELEASED)
    _say(console, f"{images:,} images of {found.classes} classes are in {out}.")


def _settings(sets: Sequence[str]) -> Fit:
    """The usual fit with what --set changes."""
    from saltflat.recipes.documents import Document
    from saltflat.recipes.values import Spot, made, settings_document
    from saltflat.recipes.wrong import Wrong
    from saltflat.synthesis import Fit

    changes = []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"--set {text[:60]} has no value; write --set seen=200000")
        try:
            changes.append((keys_of(key.strip()), word(value.strip()), "--set"))
        except DataError as error:
            raise SettingError(f"--set {text[:60]}: {error}") from None
    document = Document(settings_document(Fit(), {})).but(changes)
    try:
        return made(Fit, document.table, Spot())
    except Wrong as error:
        raise SettingError(f"--set {error}") from None


def _lesson(data: str, count: int | None, seed: int, classes: int | None, data_dir: Path | None) -> Lesson:
    """The public images that were meant."""
    from saltflat.data import Own, is_own, load, official_size, own_split, shared
    from saltflat.runs.making import Lesson
    from saltflat.warmup.known import pixels

    if is_own(data):
        if count is not None:
            raise SettingError("--count is for a data set by name; all images of a file of yours are taken")
        split = own_split(Own(data, classes=classes), data_dir)
        return Lesson(pixels(split.train), split.train.targets, split.classes, f"the images of {data}")
    if count is None:
        raise SettingError("say how many of the training images are public: --count 60")
    split = load(data, data_dir)
    if count < 1:
        raise SettingError(f"--count is the expected number of public images, at least 1; got {count}")
    size = official_size(data)
    if count >= size:
        raise SettingError(f"--count is {count}, and {data} has {size} training images; lower it")
    public = shared(split.train, count / size, seed=seed).public
    named = f"about {count} of the {size} training examples of {data}, by a hash of each under seed {seed}"
    return Lesson(pixels(public), public.targets, split.classes, named)


@contextmanager
def _shown(console: Console) -> Iterator[Show]:
    """Bars in a terminal, four lines for each piece of work elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
        TextColumn("{task.fields[note]}"),
    )
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=console, disable=not sys.stdout.isatty()) as bar:

        def show(what: str, done: int, of: int, note: str) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of, note="")
            bar.update(tasks[what], completed=done, note=note)
            if bar.disable and (4 * done // of) > (4 * (done - 1) // of):
                _say(console, f"{what}: {done:,} of {of:,} {note}".rstrip())

        yield show


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
