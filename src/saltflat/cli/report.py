"""``saltflat report``: runs side by side in one HTML file, as pictures, and as a model card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saltflat.cli.screen import screen
from saltflat.errors import SettingError

if TYPE_CHECKING:
    from saltflat.report.folder import Kept


def register(app: typer.Typer) -> None:
    """Add ``report`` to ``app``."""
    app.command("report")(report)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs, which `saltflat train --out` wrote."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file.", show_default="report.html beside the first run")
    ] = None,
    pictures: Annotated[Path | None, typer.Option(help="A folder for every picture, as PNG and SVG.")] = None,
    card: Annotated[Path | None, typer.Option(help="A model card of the first run, in Markdown.")] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="The ledger of runs that were trained with --ledger.")
    ] = None,
) -> None:
    """Compare runs: accuracy, epsilon, training, landscapes, spectra, settings, statements, ledgers.

    One file that needs no network. Runs that were killed, that are damaged or of another version are shown as far as
    their files go; the report says what is missing and which command makes it.

    Examples:

        saltflat report runs/sat runs/sgd

        saltflat report runs/sat --pictures pictures --card README.md
    """

    place = out or runs[0].absolute().parent / "report.html"
    console = screen(highlight=False, soft_wrap=True)
    runs = [
        run for run in runs if run.absolute() != place.absolute()
    ] or runs  # `report runs/*`, a second time
    with console.status("reading the runs and drawing"):
        found = make(runs, out=place, pictures=pictures, card=card, ledger=ledger)
    for line in remarks(found):
        console.print(line, markup=False)
    for what, where in (("pictures", pictures), ("model card", card), ("report", _near(place))):
        if where is not None:
            console.print(f"{what}: {where}", markup=False)


def make(
    runs: list[Path],
    *,
    out: Path,
    pictures: Path | None = None,
    card: Path | None = None,
    ledger: Path | None = None,
) -> list[Kept]:
    """Read, check, then write; a request that cannot be met leaves nothing behind."""
    from saltflat.report.card import MARK, check_card
    from saltflat.report.card import card as card_of
    from saltflat.report.draw import check_drawing
    from saltflat.report.folder import gather
    from saltflat.report.output import check_place, keep, keep_pictures
    from saltflat.report.page import GENERATOR, page

    check_drawing()
    if ledger is not None and not ledger.is_file():
        raise SettingError(
            f"--ledger {ledger} is no file; leave it out if the runs have ledgers of their own"
        )
    found = gather(runs, shared=ledger, beside=out.absolute().parent)
    check_place(out, GENERATOR, "--out")
    if card is not None:
        check_place(card, MARK, "--card")
        check_card(found[0])
        keep(card, card_of(found))
    if pictures is not None:
        keep_pictures(found, pictures)
    keep(out, page(found))
    return found


def remarks(runs: list[Kept]) -> list[str]:
    """What a reader must know before opening the report, a line for each."""
    from saltflat.report import words

    lines = []
    for run in runs:
        parts = {
            "recipe": run.recipe,
            "metrics": run.readings,
            "statement": run.statement,
            "ledger": run.ledger,
        }
        troubles = [part.trouble for part in (*parts.values(), *vars(run.shapes).values()) if part.trouble]
        state = [] if run.finished else ["empty folder" if run.empty else "not finished"]
        if run.last is not None and run.accuracy is None:
            state.append(f"test accuracy {words.accuracy(run)}")
        said = "; ".join([*([run.spent.stamp] if run.spent.stamp else []), *state, *troubles])
        lines += [f"{run.name}: {said}"] if said else []
    if any(run.shapes.some and not run.shapes.public for run in runs):
        lines.append("keep it private: it holds results on private data without noise, or of unknown status")
    return lines


def _near(path: Path) -> Path:
    """The path from here, where that is shorter."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
