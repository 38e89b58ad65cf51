"""What sections are made of: figures with a key to hide runs, notes on what is missing, sentences not to overlook."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from saltflat.report.draw import Picture
from saltflat.report.folder import Kept
from saltflat.report.found import Found
from saltflat.report.groups import grouped
from saltflat.report.html import Html, join, tag
from saltflat.report.plot import swatch

MANY = 8  # runs: of more the page shows recipes, and folds away what each run says by itself
TRAIN = "saltflat train --out"


@dataclass(frozen=True)
class Section:
    """A part of the page with its own heading."""

    key: str
    title: str
    inside: Html


def key(names: Iterable[tuple[int, str]], label: str) -> Html:
    """Names beside their lines; a click hides a run on the whole page, and another one shows it."""
    entries = [
        tag(
            "li",
            tag(
                "button", swatch(place), tag("span", name), type="button", data_run=place, aria_pressed="true"
            ),
        )
        for place, name in names
    ]
    return tag("ul", *entries, class_="key", aria_label=label)


def key_of(runs: Sequence[Kept]) -> Html:
    """The key of the whole page: a colour for each recipe, or for each run that is alone with its own."""
    groups = grouped(runs)
    names = [(g.place, g.name if len(g.runs) == 1 else f"{g.name} ({len(g.runs)} runs)") for g in groups]
    return key(names, "Runs; press one to hide it")


def figures(pictures: Iterable[Picture | None]) -> Html | None:
    """Pictures side by side."""
    drawn = [_figure(picture) for picture in pictures if picture]
    return tag("div", *drawn, class_="figures") if drawn else None


def _figure(picture: Picture) -> Html:
    title = tag("strong", picture.title)
    button = tag("button", "Other scale", type="button", class_="scale") if picture.switch else None
    names = dict.fromkeys(picture.names)
    legend = key(names, f"Lines of: {picture.title}") if 1 < len(names) <= MANY else None
    alone = next(iter(names), None) if len({place for place, _ in names}) == 1 else None
    return tag(
        "figure",
        tag("figcaption", title, button),
        picture.page(),
        legend,
        tag("p", caption(picture.words), class_="words") if caption(picture.words) else None,
        data_key=picture.key,
        data_run=alone[0]
        if alone and picture.key.startswith(("contours", "trajectory", "surface"))
        else None,
    )


def caption(words: str) -> str | None:
    """What a picture shows, unless there are so many runs that a table says it better."""
    return words if len(words) <= 300 else None


def troubles(runs: Sequence[Kept], of: Callable[[Kept], Found[Any]]) -> Html:
    """What is wrong with a part of runs."""
    return join(note(f"{run.name}: {of(run).trouble}.") for run in runs if of(run).trouble)


def absent(runs: Sequence[Kept], what: str, command_: str) -> Html | None:
    """Which runs do not have a part, and how to get it."""
    if not runs:
        return None
    listed = named(runs)
    if command_ == TRAIN:
        return note(f"No {what} of {listed}: ", tag("code", "saltflat train"), " writes it as a run goes on.")
    return note(f"No {what} of {listed}: ", command(command_, *runs), " makes what is missing.")


def named(runs: Sequence[Kept]) -> str:
    """Runs in a list; many by their number."""
    names = [run.name for run in runs]
    return ", ".join(names) if len(names) <= MANY else f"{', '.join(names[:3])} and {len(names) - 3} more"


def command(words: str, *runs: Kept) -> Html:
    """A command on runs, as it is typed beside the report."""
    near = [shlex.quote(run.near) for run in runs[:MANY]]
    return tag("code", f"{words} {' '.join(near)}{' ...' if len(runs) > MANY else ''}")


def note(*inside: str) -> Html:
    """A word on what is not there."""
    return tag("p", *inside, class_="missing")


def alert(strong: str, rest: str) -> Html:
    """A sentence that must not be overlooked."""
    return tag("p", tag("strong", strong), f" {rest}", class_="alert")
