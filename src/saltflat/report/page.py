"""The report: one HTML file that needs no network, answers first, compares runs, and says what it could not show."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources

from saltflat import __version__
from saltflat.report import terrain, verdict, words
from saltflat.report.facts import apart
from saltflat.report.folder import Kept
from saltflat.report.groups import Group, grouped
from saltflat.report.html import Html, items, join, tag
from saltflat.report.look import DARK, LIGHT, variables
from saltflat.report.made import unprotected
from saltflat.report.parts import MANY, Section, alert, key_of
from saltflat.report.plot import swatch, symbols
from saltflat.report.sections import SECTIONS
from saltflat.report.verdict import Verdict, verdicts

GENERATOR = "saltflat report"
KEEP = (
    "This report holds results that were computed on private data without noise, or that do not say that their data is "
    "public: no epsilon covers them. Keep it as private as the data."
)
SCRIPTS = ("page.js", "surface.js")
LOOKED = ("landscapes", "measures", "spectra")  # sections of what `saltflat landscape` makes
CARDS = 6  # runs or recipes that have a card; the table has all


def page(runs: Sequence[Kept]) -> str:
    """The whole report. The same folders give the same bytes."""
    sections = in_order([section for make in SECTIONS if (section := make(runs)) is not None], runs)
    title = (
        "saltflat report: "
        + ", ".join(run.name for run in runs[:MANY])
        + ("" if len(runs) <= MANY else " ...")
    )
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#main", class_="skip"),
        symbols(),
        _header(runs, sections),
        tag("main", *(_written(section) for section in sections), id="main", tabindex=-1),
        tag(
            "footer",
            tag("p", f"Made by saltflat {__version__}. This file needs no network and asks for none."),
        ),
        tag("div", class_="tip", role="status", aria_live="polite", hidden=True),
        *_scripts(runs),
    )
    return "<!doctype html>\n" + tag("html", _head(title), body, lang="en") + "\n"


def in_order(sections: Sequence[Section], runs: Sequence[Kept]) -> list[Section]:
    """Sections that hold something; landscapes first if there are any, else where they say what is missing."""
    there = [section for section in sections if section.inside]
    if any(run.shapes.some for run in runs):
        return there
    return sorted(there, key=lambda section: section.key in LOOKED)  # the others keep their order


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
    digests = [hashlib.sha256(_file(name).encode()).digest() for name in SCRIPTS]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"


def _file(name: str) -> str:
    return (resources.files("saltflat.report") / name).read_text(encoding="utf-8")


def _scripts(runs: Sequence[Kept]) -> list[Html]:
    data = terrain.turning(runs)
    scripts = [tag("script", Html(_file("page.js")))]
    if data is None:
        return scripts
    written = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return [
        tag("script", Html(written), type="application/json", id="surface-data"),
        *scripts,
        tag("script", Html(_file("surface.js"))),
    ]


def _header(runs: Sequence[Kept], sections: Sequence[Section]) -> Html:
    links = items(tag("a", section.title, href=f"#{section.key}") for section in sections)
    heading = "Report on " + (runs[0].name if len(runs) == 1 else f"{len(runs)} runs")
    found = verdicts(runs)
    return tag(
        "header",
        tag("h1", heading),
        *alerts(runs),
        tag(
            "div",
            tag("div", *(_verdict(each, several=len(found) > 1) for each in found)),
            _cards(runs),
            class_="top",
        ),
        tag("nav", links, aria_label="Sections"),
        key_of(runs) if len(runs) > 1 else None,
    )


def _verdict(found: Verdict, *, several: bool) -> Html:
    """Five questions and their answers."""
    rows = [join((tag("dt", question), tag("dd", answer))) for question, answer in found.rows]
    data = f"On {found.data}: " if several and found.data else ""
    lead = f"{data}{found.lead}" if found.lead else data.rstrip(": ")
    said = tag("p", lead[0].upper() + lead[1:] + ".", class_="lead") if lead else None
    label = f"Verdict on {found.data}" if several else "Verdict"
    return tag(
        "div", said, tag("dl", *rows, class_="answers"), class_="verdict", role="group", aria_label=label
    )


def _cards(runs: Sequence[Kept]) -> Html | None:
    """A card for each recipe, the best few: accuracy, epsilon, flatness."""
    groups = [group for group in grouped(runs) if not group.runs[0].empty]
    best = sorted(groups, key=lambda group: -(group.accuracy or -1.0))[:CARDS]
    facts = {group.name: _facts(group) for group in groups}
    same, _ = apart(list(facts.values()))  # which the verdict says once
    drawn = [
        _card(group, {name: value for name, value in facts[group.name].items() if value and name not in same})
        for group in groups
        if group in best
    ]
    rest = (
        tag("p", f"The best {len(drawn)} of {len(groups)} by accuracy; the table has all.")
        if len(groups) > CARDS
        else None
    )
    return tag("div", tag("div", *drawn, class_="cards"), rest) if drawn else None


def _facts(group: Group) -> dict[str, str]:
    first = group.runs[0]
    return {
        "epsilon": words.epsilon(first.spent),
        "delta": words.delta(first.spent),
        "unit": words.unit(first),
        "largest eigenvalue": _measured(group, "lambda_max"),
        "sharpness": _measured(group, "sharpness"),
    }


def _card(group: Group, facts: dict[str, str]) -> Html:
    first, count = group.runs[0], len(group.ended)
    ends = verdict.interval(first) if count == 1 else None
    how = f"95 % interval {verdict.span(ends)}" if ends else ""
    how = f"mean ± standard error of {count} repeats" if count > 1 else how
    rows = [join((tag("dt", name), tag("dd", value))) for name, value in facts.items()]
    return tag(
        "div",
        tag("h2", swatch(group.place), group.name),
        tag("p", verdict.accuracy(group), class_="figure"),
        tag("p", how or words.state(first), class_="how-sure"),
        tag("dl", *rows),
        class_="card",
        data_run=group.place,
    )


def _measured(group: Group, key: str) -> str:
    found = group.measure(key)
    return "" if found is None else verdict.with_error(found)


def alerts(runs: Sequence[Kept]) -> list[Html]:
    """What must be seen before any number."""
    stamped = [
        alert(f"{run.name} is {run.spent.stamp}.", "No epsilon holds for it.")
        for run in runs
        if run.spent.stamp
    ]
    found = stamped[:MANY]
    found += [
        alert(
            f"{run.name}: ledger damaged.", f"{run.ledger.trouble}. What this run cost cannot be confirmed."
        )
        for run in runs
        if run.ledger.trouble
    ][:MANY]
    found += [
        alert(f"{run.name}: claim refuted.", "An audit shows that it leaks more than it claims; see Audit.")
        for run in runs
        if run.audit.value is not None and run.audit.value.refuted
    ]
    if any(_must_be_kept(run) for run in runs):
        found.append(alert("Keep private.", KEEP))
    return found


def _must_be_kept(run: Kept) -> bool:
    """Whether something in it was read from private data, or does not say that it was not."""
    made = run.synthetic.value
    return (
        (run.shapes.some and not run.shapes.public)
        or bool(run.audit.value and run.audit.value.stays_private)
        or (made is not None and made.status not in ("released", "public"))
        or unprotected(run)
    )


def _written(section: Section) -> Html:
    heading = tag("h2", section.title, id=f"{section.key}-title")
    return tag("section", heading, section.inside, id=section.key, aria_labelledby=f"{section.key}-title")
