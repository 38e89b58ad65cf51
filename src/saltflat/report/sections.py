"""The sections of the page, in their order; each says what it has no files for, and what would make them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from saltflat.report import facts, kinds, made, spread, terrain, training, words
from saltflat.report.chart import rounded
from saltflat.report.draw import Picture
from saltflat.report.folder import Kept, in_words
from saltflat.report.found import Found
from saltflat.report.groups import Group, grouped
from saltflat.report.html import Html, folded, join, table, tag
from saltflat.report.parts import MANY, TRAIN, Section, absent, alert, figures, note, troubles
from saltflat.report.plot import swatch
from saltflat.report.shapes import file_of
from saltflat.runs.layout import LANDSCAPE, METRICS, number
from saltflat.runs.measures import Row, differing, flags, rows

_MEASURE = "saltflat landscape"
HOW = (
    "Drag a surface to turn all of them, or use the arrow keys or the buttons; Home resets. The dot is the model, the "
    "line the way of training, as far as it lies in the plane."
)
STAR = (
    "★ marks the best of a row, also where errors cannot tell it from the next. ± is a standard error: over repeats "
    "where there are any, else over the examples; of the trace over random probes."
)


def _against(runs: Sequence[Kept]) -> Section:
    picture = training.accuracy_against_epsilon(runs)
    said = tag(
        "p",
        "Lines: what was on record at each reading on the way. Large marks: the end of a run, at the epsilon that "
        "counts (the larger of statement and ledger).",
    )
    inside = (said, figures([picture])) if picture else ()
    return Section("accuracy", "Accuracy against epsilon", join((*inside, _no_readings(runs))))


def _training(runs: Sequence[Kept]) -> Section:
    pictures = [training.accuracy_on_the_way(runs), training.epsilon_on_the_way(runs)]
    return Section("training", "Training", join((figures(pictures), _no_readings(runs))))


def _no_readings(runs: Sequence[Kept]) -> Html:
    missing = [run for run in runs if not run.readings.value]
    said = absent(missing, f"readings ({METRICS})", TRAIN)
    return join((troubles(runs, lambda run: run.readings), said))


def _landscapes(runs: Sequence[Kept]) -> Section:
    straight = figures([*terrain.along_a_line(runs), *terrain.smoothed(runs)])
    maps = figures([*terrain.contours(runs), *terrain.trajectories(runs)])
    parts: list[Html | None] = [
        _few(runs),
        _surfaces(runs),
        _differing(runs),
        tag("h3", "Maps of the same surfaces") if maps else None,
        maps,
        tag("h3", "Along a direction") if straight else None,
        straight,
        _lacking(runs, "line", "surface"),
        *(troubles(runs, partial(_shape, part)) for part in ("smoothed", "trajectory")),
    ]
    parts += _between(runs) if len(runs) > 1 else []
    return Section("landscapes", "Landscapes", join(parts))


def _few(runs: Sequence[Kept]) -> Html | None:
    """A word where not all surfaces are drawn."""
    every = [run for run in runs if run.shapes.surface.value is not None]
    drawn = [run for _, run in terrain.shown(runs) if run.shapes.surface.value is not None]
    if len(drawn) == len(every):
        return None
    command = tag("code", "saltflat report ... --pictures FOLDER")
    which = f"drawn are {len(drawn)}, the first of each of the best recipes"
    said = f"{len(every)} runs have a surface; {which}. Fewer runs, or "
    return note(said, command, ", show the others.")


def _between(runs: Sequence[Kept]) -> list[Html | None]:
    between = terrain.between_models(runs)
    parts: list[Html | None] = [
        tag("h3", "Between models"),
        figures(between),
        troubles(runs, lambda r: r.shapes.interpolation),
    ]
    if not between:
        what = f"interpolation ({_file('interpolation')})"
        parts.append(absent(runs, what, _measure_command(runs[0], ["interpolation"])))
    return parts


def _surfaces(runs: Sequence[Kept]) -> Html | None:
    """Surfaces that can be turned: around the models, and over the planes of their ways."""
    around, ways = terrain.stills(runs), terrain.stills(runs, "trajectory")
    if not around and not ways:
        return None
    buttons = [
        tag("button", label, type="button", data_key=key)
        for label, key in (
            ("Turn left", "ArrowLeft"),
            ("Turn right", "ArrowRight"),
            ("Tilt up", "ArrowUp"),
            ("Tilt down", "ArrowDown"),
            ("Reset", "Home"),
            ("Logarithmic or linear", "Scale"),
        )
    ]
    label = "Turn the surfaces, or change their scale"
    parts = [
        *_side_by_side(runs, "surface", around),
        tag("div", *buttons, class_="turn", role="group", aria_label=label),
        tag("p", HOW, class_="how words", id="how"),
        tag("h3", "The way of each run, over the plane that holds most of it") if ways else None,
        *_side_by_side(runs, "trajectory", ways),
    ]
    return tag("div", *parts, id="surfaces")


def _side_by_side(runs: Sequence[Kept], part: str, pictures: Sequence[Picture]) -> list[Html | None]:
    """The surfaces of one kind, and how high they are."""
    if not pictures:
        return []
    there = [getattr(run.shapes, part).value for _, run in terrain.shown(runs)]
    scale = terrain.common_scale([surface for surface in there if surface is not None])
    first = (
        0
        if part == "surface"
        else sum(run.shapes.surface.value is not None for _, run in terrain.shown(runs))
    )
    drawn = [_surface(picture, first + number) for number, picture in enumerate(pictures)]
    said = f"Height and colour are the loss, {scale}; the same for all runs."
    return [tag("p", said, class_="said"), tag("div", *drawn, class_="figures")]


def _surface(picture: Picture, number_: int) -> Html:
    ((place, name),) = picture.names
    canvas = tag(
        "canvas",
        data_surface=number_,
        tabindex=0,
        role="application",
        aria_roledescription="surface that can be turned",
        aria_label=f"{picture.title}: {picture.words}",
        aria_describedby="how",
    )
    still = tag("div", picture.page(), class_="still")
    title = tag("figcaption", swatch(place), tag("strong", name))
    return tag("figure", title, canvas, still, tag("p", picture.words, class_="words"), data_run=place)


def _differing(runs: Sequence[Kept]) -> Html | None:
    """A word where surfaces were not made with the same directions and examples."""
    marks = {r.name: s.mark for r in runs if (s := r.shapes.surface.value) is not None}
    if len(set(marks.values())) < 2:
        return None
    said = "; ".join(f"{name}: {mark or 'not given'}" for name, mark in list(marks.items())[:MANY])
    return alert("These surfaces are not comparable:", f"directions or examples differ ({said}).")


def _spectra(runs: Sequence[Kept]) -> Section:
    said = tag("p", "How many directions have which curvature: a flat minimum ends early on the right.")
    picture = spread.spectra(runs)
    inside = (said if picture else None, figures([picture]), _lacking(runs, "spectrum"))
    return Section("spectra", "Spectra", join(inside))


def _measures(runs: Sequence[Kept]) -> Section:
    measured = [run for run in runs if run.shapes.measures.value]
    parts: list[Html | None] = []
    if measured:
        parts += [_table_of_measures(measured), _unlike(measured)]
    pictures = [spread.noise_tolerance(runs), spread.gradient_norms(runs)]
    parts += [_lacking(runs, "measures", "gradients"), figures(pictures), _clipped(runs)]
    return Section("measures", "Gradients and measures", join(parts))


def _table_of_measures(runs: Sequence[Kept]) -> Html:
    """What was found, with the best marked, and how it was taken; of repeats the means, of many runs a row for each."""
    groups = [group for group in grouped(runs) if group.runs]
    names = [group.name for group in groups]
    found = rows([_of_group(group) for group in groups])
    every = rows([run.shapes.measures.value or {} for run in runs], details=True)
    listed = {row.label for row in found}
    taken = [row for row in every if row.detail or row.label not in listed]
    caption = "Measures at the end of each run; compare them only beside loss and weight norm"
    if len(names) <= MANY:
        body = [[_label(row), *_cells(row)] for row in found]
        whole = table(("measure", *names), body, caption=caption)
    else:
        shown = [row for row in found if row.better]
        turned = [[name, *(_cells(row)[place] for row in shown)] for place, name in enumerate(names)]
        whole = table(("run", *(_arrow(row) + row.label for row in shown)), turned, caption=caption)
    mark = tag("p", STAR, class_="said")
    return join((whole, mark, folded("How they were taken", _taken(runs, taken))))


def _of_group(group: Group) -> dict[str, Any]:
    """The measures of a run, or the means of repeats with their standard errors."""
    taken = [run.shapes.measures.value for run in group.runs if run.shapes.measures.value]
    first: dict[str, Any] = dict(taken[0])
    if len(taken) < 2:
        return first
    for key in [key for key in first if number(first[key]) is not None and not key.endswith("_error")]:
        found = group.measure(key)
        if found is not None:
            first[key], first[f"{key}_error"] = found
    return first


def _arrow(row: Row) -> str:
    return {-1: "↓ ", 1: "↑ "}.get(row.better, "")


def _label(row: Row) -> Html:
    """The name, which way is better, and a sentence on what it is."""
    way = {-1: "lower is flatter", 1: "higher is better"}.get(row.better)
    way = "lower is better" if row.label == "loss" else way
    why = ". ".join(filter(None, (way and way[0].upper() + way[1:], row.words.rstrip("."))))
    return join((_arrow(row) + row.label, tag("small", why + ".", class_="why") if why else None))


def _cells(row: Row) -> list[str]:
    found = [_measure(*cell, percent=row.percent) for cell in row.cells]
    best = row.best
    if best is None:
        return found
    return [
        join((tag("strong", f"★ {cell}", class_="best"),)) if k == best else cell
        for k, cell in enumerate(found)
    ]


def _taken(runs: Sequence[Kept], found: Sequence[Row]) -> Html:
    """How measures were taken: once where all agree."""
    told = [
        {row.label: _measure(*row.cells[place], percent=row.percent) for row in found}
        for place in range(len(runs))
    ]
    same, names = facts.apart(told)
    body = [[run.name, *(each[name] for name in names)] for run, each in zip(runs, told, strict=True)]
    parts = [table(("", "all runs"), list(same.items()), caption="The same for all")] if same else []
    if names:
        parts.append(table(("run", *names), body, caption="What differs" if same else "Settings and hashes"))
    return join(parts)


def _measure(value: object, error: float | None, *, percent: bool) -> str:
    found = number(value)
    if found is None:
        return words.NOTHING if value is None else in_words(value)
    if percent:
        said = f"{100 * found:.2f} %"
        return said if error is None else f"{said} ± {100 * error:.2f}"
    said = f"{int(found):,}" if found == int(found) and abs(found) < 1e9 else rounded(found, 4)
    return said if error is None else f"{said} ± {rounded(error, 2)}"


def _unlike(runs: Sequence[Kept]) -> Html | None:
    """A word where measures were not taken on the same examples in the same way."""
    differ = differing([run.shapes.measures.value or {} for run in runs])
    if not differ:
        return None
    return alert("These measures are not comparable:", f"they differ in {', '.join(differ)}.")


def _clipped(runs: Sequence[Kept]) -> Html | None:
    there = [(run, g) for run in runs if (g := run.shapes.gradients.value) is not None]
    if not there:
        return None
    body = [
        (
            run.name,
            words.NOTHING if g.clip_norm is None else f"{g.clip_norm:g}",
            words.NOTHING if g.clipped_share is None else f"{100 * g.clipped_share:.1f} %",
            g.status or "not given",
        )
        for run, g in there
    ]
    head = ("run", "clip norm", "share above it", "status")
    whole = table(head, body, caption="Gradient norms and clipping")
    return folded("Gradient norms and clipping, run by run", whole) if len(there) > MANY else whole


SECTIONS: tuple[Callable[[Sequence[Kept]], Section | None], ...] = (
    _landscapes,
    facts.summary,
    kinds.repeats,
    kinds.sweep,
    _against,
    _training,
    kinds.clients,
    kinds.votes,
    made.synthetic,
    made.before,
    _measures,
    _spectra,
    kinds.features,
    facts.configuration,
    facts.statements,
    facts.ledgers,
    kinds.audits,
)


def _lacking(runs: Sequence[Kept], *parts: str) -> Html:
    """What is damaged, and what is missing with the command that makes it: one sentence for runs that lack the same."""
    lacking: dict[tuple[str, str], list[Kept]] = {}
    for run in runs:
        missing = [part for part in parts if getattr(run.shapes, part).missing]
        if missing and run.pate.missing:  # of a student nobody has a recipe to look at it with
            files = " and no ".join(map(_file, missing))
            lacking.setdefault((files, _measure_command(run, missing)), []).append(run)
    return join(
        (
            *(troubles(runs, partial(_shape, part)) for part in parts),
            *(absent(them, files, command) for (files, command), them in lacking.items()),
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
