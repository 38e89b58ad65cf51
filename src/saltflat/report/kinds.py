"""Sections for runs of some kinds: clients' rounds, repeats, sweeps, features, votes, audits."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from saltflat.audit.kept import FILE as AUDIT
from saltflat.audit.result import SURVIVES, Audited
from saltflat.pate.kept import Released
from saltflat.privacy.limits import rounded_up
from saltflat.report import training, words
from saltflat.report.chart import Axis, Series
from saltflat.report.draw import of_lines
from saltflat.report.folder import Kept
from saltflat.report.found import text
from saltflat.report.groups import FREE, Group, grouped
from saltflat.report.html import Html, folded, items, join, table, tag
from saltflat.report.joint import joint
from saltflat.report.parts import MANY, Section, alert, figures, named, note, troubles
from saltflat.runs.layout import RECIPE, number
from saltflat.runs.sweep import SELECTED, above, standings, verdict


def is_federated(run: Kept) -> bool:
    """Whether its steps are rounds of clients."""
    return bool(run.setting("clients.count"))


def clients(runs: Sequence[Kept]) -> Section | None:
    """Federations: who the clients are, and their rounds; norms of updates only where they were declared public."""
    there = [run for run in runs if is_federated(run)]
    if not there:
        return None
    measured = [run for run in there if any(r.clip_factor is not None for r in run.readings.value or ())]
    told: dict[str, list[str]] = {}
    for run in there:
        told.setdefault(_of_clients(run), []).append(run.name)
    parts: list[Html | None] = [_rounds_of(names, said) for said, names in told.items()]
    if measured:
        said = "norms of clients' updates were measured, as their data was declared public."
        parts.append(alert("Without noise:", said))
        parts.append(figures(training.clients_on_the_way(measured)))
    parts += [_rounds(run) for run in there[:MANY]]
    return Section("clients", "Client rounds", join(parts))


def _of_clients(run: Kept) -> str:
    """Who takes part, and how each of them trains."""
    keys = [name for name in run.recipe.value or {} if name.startswith("clients.")]
    own = {name.removeprefix("clients.").removeprefix("local.Local."): run.setting(name) for name in keys}
    count = own.pop("count")
    rest = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in own.items())
    unit = "A unit is one client: the promise covers everything that a client has."
    return f"{count} clients are declared; {rest}. {unit}"


def _rounds_of(names: Sequence[str], said: str) -> Html:
    """What is the same for several runs is said once."""
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return tag("p", tag("strong", f"Rounds of {', '.join(names[:MANY])}{more}: "), said)


def _rounds(run: Kept) -> Html:
    measured = any(each.clip_factor is not None for each in run.readings.value or ())
    names = ("update_norm", "clip_factor", "inconsistency") if measured else ()
    head = ("round", "test accuracy", "epsilon", *(name.replace("_", " ") for name in names))
    rows = [
        (
            str(each.step),
            words.NOTHING if each.accuracy is None else f"{each.accuracy:.2%}",
            words.NOTHING if each.epsilon is None else rounded_up(each.epsilon, 4),
            *(words.NOTHING if (n := getattr(each, name)) is None else f"{n:.4g}" for name in names),
        )
        for each in run.readings.value or ()
    ]
    return folded(f"Every round of {run.name} that was read", table(head, rows, caption="Rounds"))


def repeats(runs: Sequence[Kept]) -> Section | None:
    """Recipes that ran several times: mean, standard error, and what all of them cost together."""
    several = [group for group in grouped(runs) if len(group.runs) > 1]
    if not several:
        return None
    said = (
        "Runs of one recipe that differ in their seed are repeats. Their mean is that of the last weights; its "
        "standard error s / sqrt(k) is that of other first weights, noise and samples. Bands in the pictures are one "
        "standard error on each side. The test examples are the same for all, so their choice is not in it."
    )
    head = ("recipe", "runs", "mean", "standard error", "lowest", "highest", "epsilon of all together")
    rows = [_repeated(group) for group in several]
    return Section("repeats", "Repeats", join((tag("p", said), table(head, rows, caption="Repeats"))))


def _repeated(group: Group) -> list[str]:
    values = group.accuracies
    percent = lambda value: words.NOTHING if value is None else f"{100 * value:.2f} %"
    cost = next((each for each in joint(group.runs)), None)
    spent = words.UNKNOWN if cost is None or cost.epsilon is None else rounded_up(cost.epsilon, 4)
    ends = (min(values), max(values)) if values else (None, None)
    numbers = [percent(value) for value in (group.accuracy, group.error, *ends)]
    return [group.name, f"{len(group.ended)} of {len(group.runs)} ended", *numbers, spent]


def sweep(runs: Sequence[Kept]) -> Section | None:
    """Sweeps: who won and what having looked costs; of recipes that differ in one number, accuracy against it."""
    kept, drawn = _kept_sweeps(runs), _against_one_number(runs)
    return Section("sweep", "Sweep", join((*kept, drawn))) if kept or drawn else None


def _kept_sweeps(runs: Sequence[Kept]) -> list[Html]:
    """What ``saltflat sweep`` left: a table of all settings, the best first, and its sentences."""
    parts: list[Html] = []
    found = {of[0]: (of[1], run) for run in runs if (of := above(run.path)) is not None}
    for out, (kept, run) in found.items():
        rows = [] if kept.mode == SELECTED else standings(out, kept)
        delta = run.spent.delta or number((run.recipe.value or {}).get("delta"))
        head = ("setting", "mean ± standard error", "trials ended")
        body = [(each.setting.name, each.in_words(), f"{each.ended} of {each.trials}") for each in rows]
        said = ["What the sweep cost is not known: no delta."] if delta is None else verdict(out, kept, delta)
        parts.append(items(said, class_="statement"))
        parts += [table(head, body, caption="Settings, the best first")] if body else []
    return parts


def _against_one_number(runs: Sequence[Kept]) -> Html | None:
    """Of recipes that differ in one number alone: accuracy against that number, and what trying them all costs."""
    groups = [group for group in grouped(runs) if group.accuracy is not None]
    key = swept(groups)
    if not key:
        return None
    series = [
        Series(g.place, g.name, [_value(g, key)], [g.accuracy], error=None if g.error is None else [g.error])
        for g in sorted(groups, key=lambda group: _value(group, key))
    ]
    values = [_value(group, key) for group in groups]
    log = min(values) > 0 and max(values) >= 10 * min(values)
    axis = Axis(label=f"{key}{', logarithmic' if log else ''}", log=log)
    best = max(groups, key=lambda group: group.accuracy or 0.0)
    said = f"best {best.name} at {_value(best, key):g} with {100 * (best.accuracy or 0.0):.2f} %"
    title = f"Test accuracy against {key}"
    picture = of_lines("sweep", title, said, series, x=axis, y=training.ACCURACY)
    cost = next((each.short for each in joint([run for group in groups for run in group.runs])), "")
    why = (
        f"These recipes differ in {key} alone. Whoever picks the best of them uses all of them: what that costs is "
        f"{cost or 'unknown'}, and not the epsilon of the one that was picked."
    )
    return join((tag("p", why), figures([picture])))


def swept(groups: Sequence[Group]) -> str:
    """The one setting, a number, in which three or more recipes differ; nothing if there is no such setting."""
    tables = [group.runs[0].recipe.value or {} for group in groups]
    names = dict.fromkeys(name for table_ in tables for name in table_ if name not in FREE)
    differing = [name for name in names if len({str(table_.get(name)) for table_ in tables}) > 1]
    if len(groups) < 3 or len(differing) != 1:
        return ""
    return differing[0] if all(number(table_.get(differing[0])) is not None for table_ in tables) else ""


def _value(group: Group, key: str) -> float:
    return number((group.runs[0].recipe.value or {}).get(key)) or 0.0


def features(runs: Sequence[Kept]) -> Section | None:
    """Fixed maps before the network, and the statement's word on how they were made."""
    there = [run for run in runs if _features(run)]
    if not there:
        return None
    said: dict[str, list[Kept]] = {}
    for run in there:
        said.setdefault(_features(run), []).append(run)
    lines = [join((tag("strong", f"{named(them)}: "), f"{words_}.")) for words_, them in said.items()]
    why = "Features are fixed maps before the network, made without private data: they cost no privacy."
    return Section("features", "Features", join((tag("p", why), items(lines))))


def _features(run: Kept) -> str:
    """What the statement says of them, or the recipe."""
    stated = text((run.statement.value or {}).get("features"))
    keys = [name for name in run.recipe.value or {} if name == "features" or name.startswith("features.")]
    listed = ", ".join(f"{name} {run.setting(name)}" for name in keys if run.setting(name) not in ("", "[]"))
    return stated or listed


def votes(runs: Sequence[Kept]) -> Section | None:
    """What runs of PATE released, if there are any; votes are in no file that is read here."""
    there = [run for run in runs if not run.pate.missing]
    if not there:
        return None
    parts: list[Html | None] = [troubles(there, lambda run: run.pate)]
    parts.append(
        tag("p", "Released figures only: teachers and their votes are private, and no report reads them.")
    )
    for run in there:
        if run.pate.value is not None:
            parts += [
                tag("h3", run.name),
                _answered(run.pate.value),
                items(run.pate.value.sentences(), class_="statement"),
            ]
    return Section("pate", "Votes of teachers", join(parts))


def _answered(found: Released) -> Html:
    """How many of the queries were answered, as a bar."""
    share = found.answered / found.asked if found.asked else 0.0
    said = f"{found.answered:,} of {found.asked:,} public queries answered ({100 * share:.1f} %)"
    return tag("p", tag("meter", min=0, max=1, value=f"{share:.4f}", aria_label=said), " ", said)


def audits(runs: Sequence[Kept]) -> Section:
    """What adversaries could show, and what that may be taken for."""
    parts: list[Html | None] = [troubles(runs, lambda run: run.audit)]
    meaning: dict[str, None] = {}
    for run in runs:
        if run.audit.value is not None:
            parts += [tag("h3", run.name), *_audit(run, run.audit.value)]
            meaning |= dict.fromkeys(run.audit.value.meaning)
    if meaning:
        parts.append(tag("h3", "What a bound may be taken for"))
        parts += [tag("p", sentence) for sentence in meaning]
    missing = [run for run in runs if run.audit.missing and not run.empty and run.pate.missing]
    if missing:
        parts.append(note(f"No audit ({AUDIT}) of {named(missing)}. It takes no budget; one is made by:"))
        parts.append(items(tag("code", _audit_command(run)) for run in missing[:MANY]))
    return Section("audit", "Audit", join(parts))


def _audit(run: Kept, audited: Audited) -> list[Html | None]:
    said = audited.headline()
    bad = bool(audited.failed) or audited.verdict != SURVIVES
    numbers = items(audited.numbers(), class_="statement")
    done = folded("What was done", items(audited.about)) if audited.about else None
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
