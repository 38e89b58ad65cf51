"""The sections of the page, in their order; each says what it has no files for, and what would make them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from saltflat.audit.kept import FILE as AUDIT
from saltflat.audit.result import SURVIVES, Audited
from saltflat.privacy.limits import rounded_up
from saltflat.report import spread, terrain, training, words
from saltflat.report.chart import rounded, tick
from saltflat.report.draw import Picture, inline
from saltflat.report.folder import Book, Kept, in_words, short_names
from saltflat.report.found import Found
from saltflat.report.html import Html, items, join, table, tag
from saltflat.report.joint import joint
from saltflat.report.shapes import file_of
from saltflat.runs.layout import LANDSCAPE, LEDGER, METRICS, RECIPE, STATEMENT, number
from saltflat.runs.measures import differing, flags, rows


@dataclass(frozen=True)
class Section:
    """A part of the page with its own heading."""

    key: str
    title: str
    inside: Html


def _summary(runs: Sequence[Kept]) -> Section:
    head = (
        "run",
        "test accuracy",
        "epsilon",
        "delta",
        "unit",
        "adjacency",
        "sampling",
        "method",
        "data",
        "model",
        "state",
    )
    rows = [
        (
            run.name,
            words.accuracy(run),
            words.epsilon(run.spent),
            words.delta(run.spent),
            words.unit(run),
            words.adjacency(run),
            words.sampling(run),
            *(run.setting(each) or words.NOTHING for each in ("method", "data", "model")),
            words.state(run),
        )
        for run in runs
    ]
    sources = items(f"{run.name}: epsilon is {run.spent.source}" for run in runs if not run.empty)
    notes = tag("details", tag("summary", "Where each epsilon comes from"), sources)
    there = [_incomplete(run) for run in runs if run.empty or not run.finished]
    together = [tag("p", each.as_text()) for each in joint(runs)]
    costs = table(head, rows, caption="The runs and what each costs by itself")
    return Section("summary", "Summary", join((*together, costs, notes, *there)))


def _incomplete(run: Kept) -> Html:
    """What to do about a run that has no end."""
    if run.empty:
        return _note(
            f"{run.name}: the folder holds no run; ", _command("saltflat train --out", run), " begins one."
        )
    lacking = [
        name
        for name, there in (("statement", run.statement.value is not None), ("model", run.has_model))
        if not there
    ]
    return _note(
        f"{run.name} has not ended: no {' and no '.join(lacking)}. ",
        _command("saltflat train --resume --out", run),
        " goes on.",
    )


def _against(runs: Sequence[Kept]) -> Section:
    picture = training.accuracy_against_epsilon(runs)
    words_ = tag(
        "p",
        "Lines: what was on record at each reading on the way. Large marks: the end of a run, at the epsilon that "
        "counts (the larger of statement and ledger).",
    )
    inside = (words_, _figures([picture])) if picture else ()
    return Section("accuracy", "Accuracy against epsilon", join((*inside, _no_readings(runs))))


def _training(runs: Sequence[Kept]) -> Section:
    pictures = [training.accuracy_on_the_way(runs), training.epsilon_on_the_way(runs)]
    return Section("training", "Training", join((_figures(pictures), _no_readings(runs))))


def _no_readings(runs: Sequence[Kept]) -> Html:
    missing = [run for run in runs if not run.readings.value]
    return join(
        (_troubles(runs, lambda run: run.readings), _absent(missing, f"readings ({METRICS})", _TRAIN))
    )


def _landscapes(runs: Sequence[Kept]) -> Section:
    lines = _figures([*terrain.along_a_line(runs), *terrain.smoothed(runs)])
    ways = _figures(terrain.trajectories(runs))
    maps = _figures(terrain.contours(runs))
    between = terrain.between_models(runs)
    parts: list[Html | None] = [
        _lacking(runs, "line", "surface"),
        tag("h3", "Along a direction") if lines else None,
        lines,
        tag("h3", "Surfaces") if maps else None,
        _surfaces(runs),
        tag("h3", "Contours") if maps else None,
        maps,
        _differing(runs),
        tag("h3", "The way of each run") if ways else None,
        ways,
        *(_troubles(runs, partial(_shape, part)) for part in ("smoothed", "trajectory")),
    ]
    if len(runs) > 1:
        parts += [
            tag("h3", "Between models"),
            _figures(between),
            _troubles(runs, lambda r: r.shapes.interpolation),
        ]
        if not between:
            parts.append(
                _absent(
                    runs,
                    f"interpolation ({_file('interpolation')})",
                    _measure_command(runs[0], ["interpolation"]),
                )
            )
    return Section("landscapes", "Landscapes", join(parts))


def _surfaces(runs: Sequence[Kept]) -> Html | None:
    pictures = terrain.stills(runs)
    if not pictures:
        return None
    names = [run.name for run in runs if run.shapes.surface.value is not None]
    how = "Drag to turn, or use the arrow keys or the buttons; all surfaces turn together. Home resets."
    buttons = [
        tag("button", label, type="button", data_key=key)
        for label, key in (
            ("Turn left", "ArrowLeft"),
            ("Turn right", "ArrowRight"),
            ("Tilt up", "ArrowUp"),
            ("Tilt down", "ArrowDown"),
            ("Reset", "Home"),
        )
    ]
    figures = [_surface(name, picture) for name, picture in zip(names, pictures, strict=True)]
    scale = terrain.common_scale([s for run in runs if (s := run.shapes.surface.value) is not None])
    return tag(
        "div",
        tag(
            "p",
            f"Height and colour are the loss, {scale}; the same for all runs. ",
            tag("span", how, id="how"),
        ),
        tag("div", *buttons, class_="turn", role="group", aria_label="Turn the surfaces"),
        tag("div", *figures, class_="figures"),
        id="surfaces",
    )


def _surface(name: str, picture: Picture) -> Html:
    canvas = tag(
        "canvas",
        tabindex=0,
        role="application",
        aria_roledescription="surface that can be turned",
        aria_label=f"{picture.title}: {picture.words}",
        aria_describedby="how",
    )
    still = tag("div", inline(picture), class_="still")
    return tag("figure", canvas, still, tag("figcaption", tag("strong", name), picture.words))


def _differing(runs: Sequence[Kept]) -> Html | None:
    """A word where surfaces were not made with the same directions and examples."""
    marks = {r.name: s.mark for r in runs if (s := r.shapes.surface.value) is not None}
    if len(set(marks.values())) < 2:
        return None
    said = "; ".join(f"{name}: {mark or 'not given'}" for name, mark in marks.items())
    return alert("These surfaces are not comparable:", f"directions or examples differ ({said}).")


def _spectra(runs: Sequence[Kept]) -> Section:
    return Section(
        "spectra",
        "Spectra",
        join((_figures([spread.spectra(runs)]), _lacking(runs, "spectrum"))),
    )


def _measures(runs: Sequence[Kept]) -> Section:
    measured = [run for run in runs if run.shapes.measures.value]
    parts: list[Html | None] = []
    if measured:
        caption = "Measures at the end of each run; compare them only beside loss and weight norm"
        parts += [
            table(("measure", *(run.name for run in measured)), _measure_rows(measured), caption=caption),
            _unlike(measured),
        ]
    pictures = [spread.noise_tolerance(runs), spread.gradient_norms(runs)]
    parts += [_lacking(runs, "measures", "gradients"), _figures(pictures), _clipped(runs)]
    return Section("measures", "Gradients and measures", join(parts))


def _measure_rows(runs: Sequence[Kept]) -> list[list[str]]:
    """A row for each measure that some run has; those of other versions at the end."""
    table = rows([run.shapes.measures.value or {} for run in runs], details=True)
    return [[row.label, *(_measure(*cell, percent=row.percent) for cell in row.cells)] for row in table]


def _measure(value: object, error: float | None, *, percent: bool) -> str:
    found = number(value)
    if found is None:
        return words.NOTHING if value is None else in_words(value)
    if percent:
        return f"{found:.2%}".replace("%", " %")
    said = f"{int(found):,}" if found == int(found) and abs(found) < 1e9 else rounded(found, 4)
    return said if error is None else f"{said} ± {rounded(error, 2)}"


def _unlike(runs: Sequence[Kept]) -> Html | None:
    """A word where measures were not taken on the same examples in the same way."""
    differ = differing([run.shapes.measures.value or {} for run in runs])
    return (
        alert("These measures are not comparable:", f"they differ in {', '.join(differ)}.")
        if differ
        else None
    )


def _clipped(runs: Sequence[Kept]) -> Html | None:
    there = [(run, g) for run in runs if (g := run.shapes.gradients.value) is not None]
    if not there:
        return None
    rows = [
        (
            run.name,
            words.NOTHING if g.clip_norm is None else f"{g.clip_norm:g}",
            words.NOTHING if g.clipped_share is None else f"{100 * g.clipped_share:.1f} %",
            g.status or "not given",
        )
        for run, g in there
    ]
    return table(
        ("run", "clip norm", "share above it", "status"), rows, caption="Gradient norms and clipping"
    )


def _configuration(runs: Sequence[Kept]) -> Section:
    read = [run for run in runs if run.recipe.value]
    parts: list[Html | None] = [_troubles(runs, lambda run: run.recipe)]
    parts.append(_absent([run for run in runs if run.recipe.missing], RECIPE, _TRAIN))
    if read:
        names = list(dict.fromkeys(name for run in read for name in run.recipe.value or {}))
        rows = [[name, *(run.setting(name) or words.NOTHING for run in read)] for name in names]
        differing = [row for row in rows if len(set(row[1:])) > 1]
        head = ("setting", *(run.name for run in read))
        if differing:
            parts.append(table(head, differing, caption="Settings that differ"))
        elif len(read) > 1:
            parts.append(tag("p", "All settings are the same."))
        whole = table(head, rows, caption="All settings")
        parts.append(tag("details", tag("summary", f"All {len(rows)} settings"), whole))
    return Section("configuration", "Configuration", join(parts))


def _statements(runs: Sequence[Kept]) -> Section:
    parts: list[Html | None] = []
    for run in runs:
        facts = run.statement.value
        parts.append(tag("h3", run.name))
        if run.spent.stamp:
            parts.append(alert(run.spent.stamp, "Whoever knows the seed can take the noise away."))
        if run.statement.trouble:
            parts.append(_note(f"{run.statement.trouble}."))
        if facts is not None:
            parts.append(items(words.sentences(facts), class_="statement"))
            correction = words.correction(run)
            parts.append(alert("More was spent.", correction) if correction else None)
        elif not run.statement.trouble:
            parts.append(_unstated(run))
    return Section("statements", "Privacy statements", join(parts))


def _unstated(run: Kept) -> Html:
    if run.spent.known:
        so_far = (
            f"The ledger has epsilon {words.epsilon(run.spent)} at delta {words.delta(run.spent)} on record so far "
            f"(unit: {words.unit(run)}; adjacency: {words.adjacency(run)}; {words.sampling(run)})."
        )
    else:
        so_far = f"What it cost is unknown: {run.spent.source}."
    return _note(f"No {STATEMENT}: it is written when a run ends. {so_far}")


def _ledgers(runs: Sequence[Kept]) -> Section:
    parts: list[Html | None] = []
    for run in runs:
        parts.append(tag("h3", run.name))
        if run.ledger.value is not None:
            parts += _ledger(run.name, run.ledger.value, runs)
        if run.ledger.trouble:
            parts.append(alert("Damaged or unusable.", f"{run.ledger.trouble}."))
        if run.ledger.missing:
            hint = "If it was charged to a shared ledger, name that: "
            command = tag("code", f"saltflat report --ledger FILE {shlex.quote(run.near)}")
            parts.append(_note(f"No {LEDGER} in {run.name}. {hint}", command))
    return Section("ledger", "Ledger", join(parts))


def _ledger(name: str, book: Book, runs: Sequence[Kept]) -> list[Html | None]:
    history = book.history
    names = short_names((str(entry.body["name"]) for entry in history.began()), runs)
    rows = [row for entry in history.began() for row in _ledger_rows(book, entry.number, names)]
    total = words.UNKNOWN if book.epsilon is None else rounded_up(book.epsilon, 4)
    parts: list[Html | None] = [
        tag(
            "p",
            f"Whole: {len(history.entries)} lines, each with the hash of the one before. On record: epsilon {total} at "
            f"delta {tick(book.delta)}; data: {history.dataset}; adjacency: {history.adjacency.replace('-', ' ')}.",
        )
    ]
    if history.budget is not None and book.gone is not None:
        gone = min(book.gone, 1.0)
        budget = f"epsilon {history.budget.epsilon:g} at delta {tick(history.budget.delta)}"
        said = f"{100 * gone:.1f} % of the budget, {budget}"
        parts.append(tag("p", tag("meter", min=0, max=1, value=f"{gone:.4f}", aria_label=said), " ", said))
    head = ("run", "began", "steps", "rate", "noise multiplier", "charges")
    parts.append(table(head, rows, caption=f"History of the ledger of {name}"))
    parts.append(tag("p", "Head: ", tag("code", history.head)))
    return parts


def _ledger_rows(book: Book, run: int, names: Mapping[str, str]) -> list[list[str]]:
    """What one start of a run was charged, a row for each cost."""
    entries = book.history.entries
    body = entries[run].body
    charges = [e for e in entries if e.kind == "charge" and e.body["run"] == run]
    first = [
        names[str(body["name"])] + (f" ({body['stamp']})" if body["stamp"] else ""),
        str(body["time"]).replace("T", " "),
    ]
    costs = book.history.steps([run])
    if not costs:
        return [[*first, "0", words.NOTHING, words.NOTHING, str(len(charges))]]
    return [
        [*first, f"{steps:,}", f"{rate:.6g}", f"{noise:.6g}", str(_blocks(charges, rate, noise))]
        for (rate, noise), steps in costs.items()
    ]


def _blocks(charges: Iterable[Any], rate: float, noise: float) -> int:
    return sum((e.body["rate"], e.body["noise_multiplier"]) == (rate, noise) for e in charges)


def _audits(runs: Sequence[Kept]) -> Section:
    """What adversaries could show, and what that may be taken for."""
    parts: list[Html | None] = [_troubles(runs, lambda run: run.audit)]
    meaning: dict[str, None] = {}
    for run in runs:
        if run.audit.value is not None:
            parts += [tag("h3", run.name), *_audit(run, run.audit.value)]
            meaning |= dict.fromkeys(run.audit.value.meaning)
    if meaning:
        parts.append(tag("h3", "What a bound may be taken for"))
        parts += [tag("p", sentence) for sentence in meaning]
    missing = [run for run in runs if run.audit.missing and not run.empty]
    if missing:
        commands = items(tag("code", _audit_command(run)) for run in missing)
        listed = ", ".join(run.name for run in missing)
        parts.append(_note(f"No audit ({AUDIT}) of {listed}. It takes no budget; one is made by:"))
        parts.append(commands)
    return Section("audit", "Audit", join(parts))


def _audit(run: Kept, audited: Audited) -> list[Html | None]:
    said = audited.headline()
    bad = bool(audited.failed) or audited.verdict != SURVIVES
    numbers = items(audited.numbers(), class_="statement")
    done = tag("details", tag("summary", "What was done"), items(audited.about)) if audited.about else None
    return [
        *(alert(line, "") if bad and place == 0 else tag("p", line) for place, line in enumerate(said)),
        _of_another_claim(run, audited),
        numbers,
        done,
    ]


def _of_another_claim(run: Kept, audited: Audited) -> Html | None:
    """A word where the audited plan does not claim what the run costs: an audit is of a recipe, not of a run."""
    mine, claimed = run.spent.epsilon, audited.claim.epsilon
    if not run.spent.known or mine is None or abs(mine - claimed) <= 0.01 * mine:
        return None
    return alert(
        "Another claim was audited:",
        f"epsilon {rounded_up(claimed)}, while this run costs {words.epsilon(run.spent)}.",
    )


def _audit_command(run: Kept) -> str:
    place = shlex.quote(run.near)
    return f"saltflat audit {shlex.quote(f'{run.near}/{RECIPE}')} --out {place}"


SECTIONS: tuple[Callable[[Sequence[Kept]], Section], ...] = (
    _summary,
    _against,
    _training,
    _landscapes,
    _spectra,
    _measures,
    _configuration,
    _statements,
    _ledgers,
    _audits,
)

_TRAIN = "saltflat train --out"
_MEASURE = "saltflat landscape"


def _figures(pictures: Iterable[Picture | None]) -> Html | None:
    drawn = [
        tag("figure", inline(p), tag("figcaption", tag("strong", p.title), _caption(p.words)))
        for p in pictures
        if p
    ]
    return tag("div", *drawn, class_="figures") if drawn else None


def _caption(words_: str) -> str | None:
    """What a picture shows, unless there are so many runs that the summary says it better."""
    return words_ if len(words_) <= 300 else None


def _lacking(runs: Sequence[Kept], *parts: str) -> Html:
    """What is damaged, and what is missing with the command that makes it: one sentence for runs that lack the same."""
    lacking: dict[tuple[str, str], list[Kept]] = {}
    for run in runs:
        missing = [part for part in parts if getattr(run.shapes, part).missing]
        if missing:
            files = " and no ".join(map(_file, missing))
            lacking.setdefault((files, _measure_command(run, missing)), []).append(run)
    return join(
        (
            *(_troubles(runs, partial(_shape, part)) for part in parts),
            *(_absent(them, files, command) for (files, command), them in lacking.items()),
        )
    )


def _measure_command(run: Kept, missing: Sequence[str]) -> str:
    """What measures the missing parts in the way in which the others were, and leaves those alone."""
    there = run.shapes.measures.value
    if there is None:
        return _MEASURE
    return " ".join((_MEASURE, "--only", ",".join(missing), *flags(there)))


def _file(part: str) -> str:
    """Where a part of the landscape is kept, from the run's folder on."""
    return f"{LANDSCAPE}/{file_of(part)}"


def _shape(part: str, run: Kept) -> Found[Any]:
    return getattr(run.shapes, part)


def _troubles(runs: Sequence[Kept], of: Callable[[Kept], Found[Any]]) -> Html:
    return join(_note(f"{run.name}: {of(run).trouble}.") for run in runs if of(run).trouble)


def _absent(runs: Sequence[Kept], what: str, command: str) -> Html | None:
    """Which runs do not have a part, and how to get it."""
    if not runs:
        return None
    listed = ", ".join(run.name for run in runs)
    if command == _TRAIN:
        return _note(
            f"No {what} of {listed}: ", tag("code", "saltflat train"), " writes it as a run goes on."
        )
    return _note(f"No {what} of {listed}: ", _command(command, *runs), " makes what is missing.")


def _command(command: str, *runs: Kept) -> Html:
    return tag("code", f"{command} {' '.join(shlex.quote(run.near) for run in runs)}")


def _note(*inside: str) -> Html:
    return tag("p", *inside, class_="missing")


def alert(strong: str, rest: str) -> Html:
    """A sentence that must not be overlooked."""
    return tag("p", tag("strong", strong), f" {rest}", class_="alert")
