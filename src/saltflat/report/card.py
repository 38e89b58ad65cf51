"""A model card: Markdown with the front matter that Hugging Face reads, and the privacy statement inside.

A card is made to be published, so nothing that was computed on private data without noise goes into it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from saltflat.errors import SettingError
from saltflat.privacy.record.statement import PLAIN, TECHNICAL
from saltflat.report import words
from saltflat.report.folder import Kept
from saltflat.report.groups import grouped
from saltflat.report.joint import joint
from saltflat.report.verdict import interval, span
from saltflat.runs.layout import MODEL, number
from saltflat.runs.measures import entries

MARK = "<!-- saltflat report -->"
HOUSEKEEPING = ("version", "physical", "spare", "seed", "table", "test")
NEUTRAL = {  # what is as it always is, and so says nothing
    **{"weight_decay": "0", "drift": "1", "views": "1", "noise_schedule": "1", "momentum": "0"},
    **{"draw": "Poisson", "budget_split": "joint_ratio", "accountant": "PLD"},
}
DATASETS = {
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "svhn": "ufldl-stanford/svhn",
}


def check_card(run: Kept) -> None:
    """Refuse a card of a run that has not said what it promises."""
    if run.statement.value is None or not run.has_model:
        why = run.statement.trouble or "it has not ended, so there is no statement or no model"
        raise SettingError(
            f"no model card of {run.path}: {why}; saltflat train --resume --out {run.path} goes on"
        )


def card(runs: Sequence[Kept]) -> str:
    """The card of the first run's model; the others are named, as comparing costs privacy too."""
    run = runs[0]
    check_card(run)
    parts = [
        _front(run),
        MARK,
        f"# {_plain(run.name)}",
        _first_words(runs),
        "## Intended use",
        _intended(run),
        "## Limits",
        _limits(run),
        "## Privacy",
        *_privacy(runs),
        "## Training",
        _settings(run),
        *_flatness(run),
        "## How to load it",
        _use(run),
    ]
    return "\n\n".join(parts) + "\n"


def _front(run: Kept) -> str:
    """The front matter; every value is written as JSON, which YAML understands, whatever a run is called."""
    data, method = run.setting("data"), run.setting("method")
    task = {"task": {"type": _task(data)}}
    result = {
        **task,
        "dataset": {
            "name": data or "unknown",
            "type": DATASETS.get(data, data or "unknown"),
            "split": "test",
        },
        "metrics": [{"type": "accuracy", "value": round(run.accuracy or 0.0, 4), "name": "test accuracy"}],
    }
    facts: dict[str, Any] = {
        "license": "unknown",
        "library_name": "pytorch",
        "tags": [tag for tag in ("differential-privacy", "saltflat", method) if tag],
        "pipeline_tag": _task(data),
        "metrics": ["accuracy"],
    }
    if data in DATASETS:
        facts["datasets"] = [DATASETS[data]]
    if run.accuracy is not None:
        facts["model-index"] = [{"name": run.name, "results": [result]}]
    lines = [f"{key}: {json.dumps(value)}" for key, value in facts.items()]
    return "\n".join(["---", *lines, "---"])


def _task(data: str) -> str:
    return "tabular-classification" if data == "adult" or data.endswith(".csv") else "image-classification"


def _first_words(runs: Sequence[Kept]) -> str:
    run = runs[0]
    said = f"A {run.setting('model') or 'network'} for {run.setting('data') or 'data that is not named'}, trained with "
    said += f"{run.setting('method') or 'a method that is not named'} by saltflat."
    right = "" if run.last is None else f" Test accuracy: {words.accuracy(run)}{_interval(run)}."
    said = _plain(f"{said}{right}{_repeats(runs)}")
    if run.spent.stamp:
        return f"{said}\n\n**{_plain(run.spent.stamp)}. This model has no privacy guarantee.**"
    return said


def _interval(run: Kept) -> str:
    """By test sampling, where the run kept on how many examples it was tested."""
    ends, told = interval(run), run.evaluation.value
    if ends is None or told is None:
        return ""
    return f" (95 % interval {span(ends)}, {told.count:,} test examples)"


def _repeats(runs: Sequence[Kept]) -> str:
    """What other runs of the same recipe say."""
    group = next(group for group in grouped(runs) if runs[0] in group.runs)
    if group.error is None or group.accuracy is None:
        return " One run: another one of the same recipe would give another figure."
    return (
        f" Over {len(group.ended)} runs of this recipe: mean {100 * group.accuracy:.2f} %, standard error "
        f"{100 * group.error:.2f} %."
    )


def _intended(run: Kept) -> str:
    """What the model is for; nobody but its author can say more."""
    data, kind = run.setting("data") or "data that is not named", _task(run.setting("data"))
    return _plain(
        f"{kind.replace('-', ' ').capitalize()} on data like {data}: research, comparison of private training "
        "methods, and releases that need the guarantee below. Whoever publishes it adds what it may be used for."
    )


def _limits(run: Kept) -> str:
    """Whom the promise covers, and what was not looked at."""
    unit = words.unit(run).removeprefix("one ")
    lines = [_unit_line(run, unit)]
    if run.accuracy is None:
        lines.append("No accuracy is known of it.")
    else:
        lines.append(
            "The accuracy is that of one test set, over all classes; groups in it were not looked at."
        )
    lines += [
        "Nothing is said about data of another kind than it was trained on.",
        "Noise and clipping cost accuracy, and small groups most; look at yours before relying on it.",
    ]
    return "\n".join(f"- {_plain(line)}" for line in lines)


def _unit_line(run: Kept, unit: str) -> str:
    """User-level, client-level or example-level: what one unit is, and what that means for people."""
    if run.spent.stamp:
        return "Nothing is promised to anybody: see Privacy."
    if unit in ("user", "client"):
        return f"{unit.capitalize()}-level privacy: the promise covers everything that one {unit} has in the data."
    if unit == words.UNKNOWN:
        return "What one unit of the promise is, is not on record."
    return (
        f"{unit.capitalize()}-level privacy: the promise covers one {unit}. Somebody with k of them in the data is "
        "protected less: by about k times the epsilon, and a larger delta."
    )


def _privacy(runs: Sequence[Kept]) -> list[str]:
    run = runs[0]
    rows = {
        "epsilon": words.epsilon(run.spent),
        "delta": words.delta(run.spent),
        "right guesses about one unit": words.guesses(run),
        "unit": words.unit(run),
        "adjacency": words.adjacency(run),
        "sampling": words.sampling(run),
        "epsilon from": run.spent.source,
    }
    correction, plain = words.correction(run), words.plain(run.statement.value or {})
    parts = [f"**{_plain(correction)}**"] if correction else []
    if plain:
        parts += [f"### {PLAIN}", "\n".join(f"- {_plain(line)}" for line in plain), f"### {TECHNICAL}"]
    parts += [_table("fact", "value", rows)]
    parts += ["\n".join(f"- {_plain(line)}" for line in words.sentences(run.statement.value or {}))]
    if run.ledger.trouble:
        parts.append(f"**The ledger cannot confirm this: {_plain(run.ledger.trouble)}.**")
    parts += _compared(runs)
    return parts


def _compared(runs: Sequence[Kept]) -> list[str]:
    """What the first run costs together with the others on its data, and what no number covers."""
    found = [each for each in joint(runs) if runs[0].name in each.names]
    others = sum(len(each.names) - 1 for each in found)
    if not others:
        return []
    said = f"This run was compared with {others} other{'s' if others > 1 else ''} on the same data. "
    said += "What was learnt by comparing is not covered by the epsilon above."
    return [said, *(f"**{_plain(each.as_text())}**" for each in found)]


def _settings(run: Kept) -> str:
    """The settings that decide what is learnt and what it costs: not where it ran, nor what is as it always is."""
    names = [name for name in run.recipe.value or {} if _mattered(name, run.setting(name))]
    settings = {name: run.setting(name) for name in names}
    return _table("setting", "value", settings) if settings else "The settings are not on record."


def _mattered(name: str, value: str) -> bool:
    last = name.rsplit(".", 1)[-1]
    return last not in HOUSEKEEPING and value not in ("", "[]") and NEUTRAL.get(last) != value


def _flatness(run: Kept) -> list[str]:
    """Measures of flatness, if all of them were taken on public data."""
    facts = run.shapes.measures.value
    if not facts or not run.shapes.public:
        return []
    found = {entry.label: number(facts.get(entry.key)) for entry in entries() if entry.card}
    errors = {
        entry.label: number(facts.get(entry.error)) for entry in entries() if entry.card and entry.error
    }
    rows = {
        label: f"{value:.4g}" + (f" ± {error:.2g}" if (error := errors.get(label)) is not None else "")
        for label, value in found.items()
        if value is not None
    }
    where = f"On {facts.get('examples', 'some')} public examples ({facts.get('data', '')} {facts.get('split', '')})."
    return ["## Flatness", _plain(" ".join(where.split())), _table("measure", "value", rows)] if rows else []


def _use(run: Kept) -> str:
    model = run.setting("model")
    if not model.isidentifier():
        return f"`{MODEL}` holds the weights by name."
    return "\n".join(
        [
            "```python",
            "from safetensors.torch import load_file",
            f"from saltflat.models import {model}",
            "",
            f"model = {model}({_arguments(run, model)})",
            f'model.load_state_dict(load_file("{MODEL}"))',
            "```",
        ]
    )


def _arguments(run: Kept, model: str) -> str:
    """What the recipe sets of its network, as Python has it."""
    prefix, found = f"model.{model}.", run.recipe.value or {}
    own = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    return ", ".join(f"{name}={value!r}" for name, value in own.items())


def _table(first: str, second: str, rows: dict[str, str]) -> str:
    lines = [f"| {_plain(name)} | {_plain(value)} |" for name, value in rows.items()]
    return "\n".join([f"| {first} | {second} |", "|---|---|", *lines])


def _plain(words_: str) -> str:
    """Text that Markdown leaves as it is: no tag, no table cell, no emphasis begins inside it."""
    return re.sub(r"([\\`*_{}\[\]<>|#$~])", r"\\\1", " ".join(words_.split()))
