"""The report: one HTML file that needs no network, compares runs, and says what it could not show."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources

from saltflat import __version__
from saltflat.report import terrain
from saltflat.report.folder import Kept
from saltflat.report.html import Html, items, join, tag
from saltflat.report.joint import joint
from saltflat.report.look import DARK, DASHES, LIGHT, variables
from saltflat.report.sections import SECTIONS, Section, alert

GENERATOR = "saltflat report"
KEEP = (
    "This report holds results that were computed on private data without noise, or that do not say that their data is "
    "public: no epsilon covers them. Keep it as private as the data."
)


def page(runs: Sequence[Kept]) -> str:
    """The whole report. The same folders give the same bytes."""
    sections = [make(runs) for make in SECTIONS]
    title = "saltflat report: " + ", ".join(run.name for run in runs)
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#main", class_="skip"),
        _header(runs, sections),
        tag("main", *(_written(section) for section in sections), id="main", tabindex=-1),
        tag(
            "footer",
            tag("p", f"Made by saltflat {__version__}. This file needs no network and asks for none."),
        ),
        *_script(runs),
    )
    return "<!doctype html>\n" + tag("html", _head(title), body, lang="en") + "\n"


def _head(title: str) -> Html:
    colours = (
        f":root{{color-scheme:light;{variables(LIGHT)}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{variables(DARK)}}}}}"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=GENERATOR),
        tag("title", title),
        tag("style", Html(colours + _file("page.css"))),
    )


def _policy() -> str:
    """Nothing may be loaded, and no script may run but ours, whatever a run is called."""
    digest = base64.b64encode(hashlib.sha256(_file("surface.js").encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"


def _file(name: str) -> str:
    return (resources.files("saltflat.report") / name).read_text(encoding="utf-8")


def _script(runs: Sequence[Kept]) -> list[Html]:
    data = terrain.turning(runs)
    if data is None:
        return []
    written = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return [
        tag("script", Html(written), type="application/json", id="surface-data"),
        tag("script", Html(_file("surface.js"))),
    ]


def _header(runs: Sequence[Kept], sections: Sequence[Section]) -> Html:
    links = items(tag("a", section.title, href=f"#{section.key}") for section in sections)
    heading = "Report on " + (runs[0].name if len(runs) == 1 else f"{len(runs)} runs")
    return tag(
        "header", tag("h1", heading), _key(runs), *alerts(runs), tag("nav", links, aria_label="Sections")
    )


def _key(runs: Sequence[Kept]) -> Html:
    """Which colour and dash is which run."""
    entries = (join((_swatch(place), run.name)) for place, run in enumerate(runs))
    return tag("ul", *(tag("li", entry) for entry in entries), class_="key", aria_label="Runs")


def _swatch(place: int) -> Html:
    dash = DASHES[place % len(DASHES)]
    pattern = None if dash == "-" else " ".join(f"{2 * length:g}" for length in dash[1])
    colour = f"var(--run-{place % len(LIGHT.runs)})"
    line = tag(
        "line", x1=0, y1=8, x2=48, y2=8, style=f"stroke:{colour};stroke-width:3", stroke_dasharray=pattern
    )
    return tag("svg", line, viewBox="0 0 48 16", aria_hidden="true")


def alerts(runs: Sequence[Kept]) -> list[Html]:
    """What must be seen before any number."""
    found = [
        alert(f"{run.name} is {run.spent.stamp}.", "No epsilon holds for it.")
        for run in runs
        if run.spent.stamp
    ]
    found += [
        alert(
            f"{run.name}: ledger damaged.", f"{run.ledger.trouble}. What this run cost cannot be confirmed."
        )
        for run in runs
        if run.ledger.trouble
    ]
    found += [
        alert(f"{run.name}: claim refuted.", "An audit shows that it leaks more than it claims; see Audit.")
        for run in runs
        if run.audit.value is not None and run.audit.value.refuted
    ]
    if any(_must_be_kept(run) for run in runs):
        found.append(alert("Keep private.", KEEP))
    found += [alert("Several runs cost more than each:", each.as_text()) for each in joint(runs)]
    return found


def _must_be_kept(run: Kept) -> bool:
    """Whether something in it was read from private data, or does not say that it was not."""
    return (run.shapes.some and not run.shapes.public) or bool(
        run.audit.value and run.audit.value.stays_private
    )


def _written(section: Section) -> Html:
    heading = tag("h2", section.title, id=f"{section.key}-title")
    return tag("section", heading, section.inside, id=section.key, aria_labelledby=f"{section.key}-title")
