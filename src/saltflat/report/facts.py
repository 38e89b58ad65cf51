"""Sections of facts: the runs, their settings, statements and ledgers. What is the same for all is said once."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from saltflat.errors import SaltflatError
from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record.costs import columns, from_body
from saltflat.privacy.record.statement import PLAIN, TECHNICAL
from saltflat.report import spread, verdict, words
from saltflat.report.chart import tick
from saltflat.report.folder import Book, Kept, short_names, without_path
from saltflat.report.groups import Group, grouped
from saltflat.report.html import Html, folded, items, join, table, tag
from saltflat.report.joint import joint
from saltflat.report.parts import MANY, TRAIN, Section, absent, alert, command, figures, note, troubles
from saltflat.runs.layout import LEDGER, RECIPE, STATEMENT

Facts = dict[str, str]


def summary(runs: Sequence[Kept]) -> Section:
    """The runs: what is the same for all once, and a table of what differs."""
    there = [run for run in runs if not run.empty]
    facts = [_facts(run) for run in there]
    same, differing = apart(facts)
    groups = grouped(there)
    parts: list[Html | None] = [_same(same, there), *(tag("p", each.as_text()) for each in joint(runs))]
    if len(there) > MANY and len(groups) < len(there):
        parts += [_by_recipe(groups), folded(f"All {len(there)} runs", _by_run(there, facts, differing))]
    else:
        parts.append(_by_run(there, facts, differing))
    sources = dict.fromkeys(f"{run.name}: epsilon is {run.spent.source}" for run in there)
    parts.append(folded("Where each epsilon comes from", _sources(there, list(sources))))
    parts += [_incomplete(run) for run in runs if run.empty or not run.finished]
    return Section("summary", "Runs", join(parts))


def _facts(run: Kept) -> Facts:
    """What is said of each run, in the order of a table's columns."""
    ends = verdict.interval(run)
    return {
        "test accuracy": words.accuracy(run),
        "95 % interval": verdict.span(ends) if ends else words.NOTHING,
        "epsilon": words.epsilon(run.spent),
        "delta": words.delta(run.spent),
        "right guesses": words.guesses(run),
        "unit": words.unit(run),
        "adjacency": words.adjacency(run),
        "sampling": words.sampling(run),
        **{name: run.setting(name) or words.NOTHING for name in ("method", "data", "model", "seed")},
        "state": words.state(run),
    }


def apart(facts: Sequence[Facts]) -> tuple[Facts, list[str]]:
    """What all agree in, and the names of what they differ in; of a single run all of it is its own.

    >>> apart([{"a": "1", "b": "2"}, {"a": "1", "b": "3"}])
    ({'a': '1'}, ['b'])
    """
    names = list(dict.fromkeys(name for each in facts for name in each))
    if len(facts) < 2:
        return {}, names
    same = {
        name: facts[0][name] for name in names if all(each.get(name) == facts[0].get(name) for each in facts)
    }
    return same, [name for name in names if name not in same]


def _same(same: Facts, runs: Sequence[Kept]) -> Html | None:
    """What all runs agree in, said once."""
    told = {name: value for name, value in same.items() if value != words.NOTHING}
    if not told:
        return None
    who = "both runs" if len(runs) == 2 else f"all {len(runs)} runs"
    pairs = [join((tag("dt", name), tag("dd", value))) for name, value in told.items()]
    return join((tag("p", f"The same for {who}:", class_="said"), tag("dl", *pairs, class_="same")))


def _by_run(runs: Sequence[Kept], facts: Sequence[Facts], names: Sequence[str]) -> Html:
    rows = [[run.name, *(each[name] for name in names)] for run, each in zip(runs, facts, strict=True)]
    caption = "The runs, and what each costs by itself" if len(runs) > 1 else "The run"
    return table(("run", *names), rows, caption=caption)


def _by_recipe(groups: Sequence[Group]) -> Html:
    """A row for each recipe: how many runs, their mean, what each costs."""
    rows = [
        [
            group.name,
            str(len(group.runs)),
            verdict.accuracy(group),
            _range(words.epsilon(run.spent) for run in group.runs),
            group.runs[0].setting("method") or words.NOTHING,
        ]
        for group in groups
    ]
    head = ("recipe", "runs", "test accuracy (mean ± standard error)", "epsilon of each", "method")
    return table(head, rows, caption="Runs by recipe")


def _range(values: Iterable[str]) -> str:
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else f"{found[0]} and {len(found) - 1} others"


def _sources(runs: Sequence[Kept], said: Sequence[str]) -> Html:
    """One sentence where all have the same source."""
    kinds = {run.spent.source for run in runs}
    return tag("p", f"All: epsilon is {kinds.pop()}.") if len(kinds) == 1 and len(runs) > 1 else items(said)


def _incomplete(run: Kept) -> Html:
    """What to do about a run that has no end."""
    if run.empty:
        return note(f"{run.name}: the folder holds no run; ", command(TRAIN, run), " begins one.")
    lacking = [
        name
        for name, there in (("statement", run.statement.value is not None), ("model", run.has_model))
        if not there
    ]
    how = "federate" if run.setting("clients.count") else "train"
    going = command(f"saltflat {how} --resume --out", run)
    return note(f"{run.name} has not ended: no {' and no '.join(lacking)}. ", going, " goes on.")


_SAID = re.compile(r"phase\.\d+\.method")  # a method without settings, which the row "method" names


def configuration(runs: Sequence[Kept]) -> Section:
    """The settings that differ, then all; of repeats those of the first."""
    read = [group.runs[0] for group in grouped(runs) if group.runs[0].recipe.value]
    parts: list[Html | None] = [troubles(runs, lambda run: run.recipe)]
    parts.append(absent([run for run in runs if run.recipe.missing], RECIPE, TRAIN))
    if read:
        heads = {group.runs[0].name: group.name for group in grouped(runs)}
        found = dict.fromkeys(name for run in read for name in run.recipe.value or {})
        names = [name for name in found if not _SAID.fullmatch(name)]
        rows = [[name, *(run.setting(name) or words.NOTHING for run in read)] for name in names]
        head = ("setting", *(heads[run.name] for run in read))
        differing = [row for row in rows if len(set(row[1:])) > 1]
        if differing:
            parts.append(_settings(head, differing, "Settings that differ"))
        elif len(read) > 1:
            parts.append(tag("p", "All settings are the same."))
        parts.append(folded(f"All {len(rows)} settings", _whole(head, rows)))
    return Section("configuration", "Configuration", join(parts))


def _whole(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Every setting; a column for all where all agree."""
    same = [[row[0], row[1]] for row in rows if len(set(row[1:])) == 1]
    own = [row for row in rows if len(set(row[1:])) > 1]
    value = "value" if len(head) == 2 else "value for all"
    parts = [table(("setting", value), same, caption="Settings" if not own else "Settings that are the same")]
    return join([*parts, _settings(head, own, "The others") if own else None])


def _settings(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Html:
    """A column for each run; of many runs a row for each instead."""
    if len(head) <= MANY + 1:
        return table(head, rows, caption=caption)
    turned = [[name, *(row[place] for row in rows)] for place, name in enumerate(head) if place]
    return table(("run", *(row[0] for row in rows)), turned, caption=caption)


def statements(runs: Sequence[Kept]) -> Section:
    """The statement: what all say once, and a table of what differs."""
    parts: list[Html | None] = []
    stated = [run for run in runs if run.statement.value is not None]
    plain = {run.name: words.plain(run.statement.value or {}) for run in stated}
    said = {run.name: words.sentences(run.statement.value or {}) for run in stated}
    common = [line for line in next(iter(said.values()), []) if all(line in each for each in said.values())]
    drawn = figures([spread.tradeoffs(runs)])
    if any(plain.values()):
        parts += [tag("h3", PLAIN), *_in_plain_words(plain), drawn, tag("h3", TECHNICAL)]
    if len(stated) > 1:
        parts.append(
            tag("p", f"All {len(stated)} statements say:" if len(stated) > 2 else "Both statements say:")
        )
        parts += [items(common, class_="statement"), _differences(stated, said, common)]
    elif stated:
        parts.append(items(common, class_="statement"))
    for run in runs:
        parts += _alone(run)
    return Section("statements", "Privacy statement" + ("s" if len(stated) > 1 else ""), join(parts))


def _in_plain_words(plain: Mapping[str, list[str]]) -> list[Html]:
    """The page for everybody: once where all runs say the same, else the first sentences of each."""
    told = {name: lines for name, lines in plain.items() if lines}
    same = [line for line in next(iter(told.values())) if all(line in each for each in told.values())]
    if len(told) == 1 or all(lines == same for lines in told.values()):
        return [items(same, class_="statement")]
    own = [
        join((tag("strong", name), items((line for line in lines if line not in same), class_="statement")))
        for name, lines in told.items()
    ]
    each = [folded(f"What differs between the {len(own)} runs", *own)] if len(own) > MANY else own
    return [*each, tag("p", "The same for all:", class_="said"), items(same, class_="statement")]


_NUMBERS = {
    "epsilon": 4,
    "delta": 0,
    "epsilon_unamplified": 4,
    "membership_advantage": 3,
    "membership_accuracy": 3,
    "posterior": 3,
}


def _differences(runs: Sequence[Kept], said: Mapping[str, list[str]], common: Sequence[str]) -> Html | None:
    """A row for each run that says something of its own: its numbers, and its other sentences folded away."""
    own = {name: [line for line in lines if line not in common] for name, lines in said.items()}
    if not any(own.values()):
        return tag("p", "They do not differ.")
    facts = [
        {name: _fact(run, name) for name in ("epsilon", *list(_NUMBERS)[1:], "sampling")} for run in runs
    ]
    _, names = apart(facts)
    head = ("run", *(name.replace("_", " ") for name in names))
    rows = [[run.name, *(each[name] for name in names)] for run, each in zip(runs, facts, strict=True)]
    full = [
        join((tag("strong", name), items(lines, class_="statement"))) for name, lines in own.items() if lines
    ]
    differing = table(head, rows, caption="Where the statements differ") if names else None
    return join((differing, folded("Those sentences in full", *full)))


def _fact(run: Kept, name: str) -> str:
    value: Any = (run.statement.value or {}).get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return rounded_up(value, _NUMBERS[name]) if _NUMBERS.get(name) else tick(float(value))
    return str(value) if isinstance(value, str) else words.NOTHING


def _alone(run: Kept) -> list[Html | None]:
    """What must be said of one run's statement by itself."""
    found: list[Html | None] = []
    if run.spent.stamp:
        found.append(
            alert(f"{run.name}: {run.spent.stamp}", "Whoever knows the seed can take the noise away.")
        )
    if run.statement.trouble:
        found.append(note(f"{run.name}: {run.statement.trouble}."))
    if run.statement.value is not None:
        correction = words.correction(run)
        found.append(alert(f"{run.name}: more was spent.", correction) if correction else None)
    elif not run.statement.trouble:
        found.append(_unstated(run))
    return found


def _unstated(run: Kept) -> Html:
    if run.spent.known:
        so_far = (
            f"The ledger has epsilon {words.epsilon(run.spent)} at delta {words.delta(run.spent)} on record so far "
            f"(unit: {words.unit(run)}; adjacency: {words.adjacency(run)}; {words.sampling(run)})."
        )
    else:
        so_far = f"What it cost is unknown: {run.spent.source}."
    return note(f"{run.name}: no {STATEMENT}: it is written when a run ends. {so_far}")


def ledgers(runs: Sequence[Kept]) -> Section:
    """Every ledger once, however many of the runs it is of; of many they are folded away."""
    books: dict[str, tuple[Book, list[Kept]]] = {}
    for run in runs:
        if run.ledger.value is not None:
            books.setdefault(run.ledger.value.history.head, (run.ledger.value, []))[1].append(run)
    parts: list[Html | None] = []
    for book, them in books.values():
        name = (
            them[0].name if len(them) == 1 else f"{len(them)} runs: {', '.join(run.name for run in them[:3])}"
        )
        inside = _ledger(name + (" ..." if len(them) > 3 else ""), book, runs)
        parts += [folded(f"Ledger of {name}", *inside)] if len(books) > 3 else [tag("h3", name), *inside]
    for run in runs:
        if run.ledger.trouble:
            parts.append(alert(f"{run.name}: damaged or unusable.", f"{run.ledger.trouble}."))
        if run.ledger.missing:
            hint = "If it was charged to a shared ledger, name that: "
            line = tag("code", f"saltflat report --ledger FILE {shlex.quote(run.near)}")
            parts.append(note(f"No {LEDGER} in {run.name}. {hint}", line))
    return Section("ledger", "Ledger" + ("s" if len(books) > 1 else ""), join(parts))


def _ledger(name: str, book: Book, runs: Sequence[Kept]) -> list[Html | None]:
    history = book.history
    names = short_names((str(entry.body["name"]) for entry in history.began()), runs)
    rows = [row for entry in history.began() for row in _ledger_rows(book, entry.number, names)]
    total = _on_record(book)
    parts: list[Html | None] = [
        tag(
            "p",
            f"Whole: {len(history.entries)} lines, each with the hash of the one before. {total}; data: "
            f"{without_path(history.dataset)}; adjacency: {history.adjacency.replace('-', ' ')}.",
        )
    ]
    if history.budget is not None and book.gone is not None:
        gone = min(book.gone, 1.0)
        budget = f"epsilon {rounded_up(history.budget.epsilon, 4)} at delta {tick(history.budget.delta)}"
        said = f"{100 * gone:.1f} % of the budget, {budget}"
        parts.append(tag("p", tag("meter", min=0, max=1, value=f"{gone:.4f}", aria_label=said), " ", said))
    head = ("run", "began", "steps", "rate", "noise multiplier", "charges")
    parts.append(table(head, rows, caption=f"History of the ledger of {name}"))
    parts.append(tag("p", "Head: ", tag("code", history.head)))
    return parts


def _on_record(book: Book) -> str:
    """What is on record: of a shared ledger for all its runs."""
    value = book.epsilon
    if book.runs is not None:
        try:
            value = book.history.epsilon(book.delta)
        except SaltflatError:  # no accountant answers for all of them together
            value = None
    total = words.UNKNOWN if value is None else rounded_up(value, 4)
    return f"On record: epsilon {total} at delta {tick(book.delta)}"


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
        [*first, f"{steps:,}", *columns(cost), str(sum(from_body(e.body) == cost for e in charges))]
        for cost, steps in costs.items()
    ]
