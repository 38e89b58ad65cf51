"""``--over KEY=V1,V2,...``: which setting of a recipe is meant, by its key or by a short name, and its values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from saltflat.cli.settings import CLIENT_FLAGS, FLAGS, Flag, keys_for, value_of
from saltflat.errors import DataError, SettingError
from saltflat.recipes import documents
from saltflat.recipes.documents import SETTINGS, Document
from saltflat.recipes.toml import Keys, dotted, inline, keys_of, word
from saltflat.recipes.wrong import known_or
from saltflat.runs.sweep import Axis

FIXED = {  # what all trials share, and why
    "seed": "give --seeds instead",
    "delta": "one epsilon covers all trials, at one delta",
    **dict.fromkeys(
        ("data", "table", "test", "classes", "target_range", "size"), "a sweep is on one data set"
    ),
    **dict.fromkeys(("version", "clients.count", "clients.user"), "it is no choice"),
    "public": "examples are public in all of them or in none",
}


def axes_of(over: Sequence[str], document: Document, whole: Document) -> tuple[Axis, ...]:
    """The axes that flags ask for; ``whole`` is the recipe with every setting written out, to find short names in."""
    if not over:
        raise SettingError("nothing is varied: write --over lr=1,2,4, once for each setting")
    axes = tuple(_axis(text, document, whole) for text in over)
    for axis in axes:
        if sum(axis.key == other.key for other in axes) > 1:
            raise SettingError(f"--over {axis.name}: {axis.key} is varied twice; give all its values at once")
    return axes


def _axis(text: str, document: Document, whole: Document) -> Axis:
    name, equals, given = text.partition("=")
    name, parts = name.strip(), list(split(given))
    if not (name and equals and all(parts)) or not parts:
        raise SettingError(f"--over {text[:60]} has no values, or an empty one; write --over lr=1,2,4")
    flag = _flag(name, whole)
    try:
        values = [inline(word(part) if flag is None else value_of(flag, part)) for part in parts]
        keys = found(name, flag, document, whole)
    except DataError as error:
        raise SettingError(f"--over {text[:60]}: {error}") from None
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise SettingError(f"--over {name}: {twice[0]} is there twice")
    above = [dotted(keys[:end]) for end in range(1, len(keys) + 1)]
    fixed = next((each for each in above if each in FIXED), None)
    if fixed is not None:
        raise SettingError(f"--over {name}: {fixed} is the same for all trials; {FIXED[fixed]}")
    short = re.sub(r"[^A-Za-z0-9_]+", "_", name.split(".")[-1]).strip("_")[-40:] or "setting"
    return Axis(dotted(keys), short, tuple(values))


def split(text: str) -> Iterator[str]:
    """The values between commas, but for commas inside of brackets and quotes.

    >>> list(split("DPSGD, {SAT = {radius = 0.1, momentum = 0}},[1,2]"))
    ['DPSGD', '{SAT = {radius = 0.1, momentum = 0}}', '[1,2]']
    """
    depth, quote, here = 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "{[") - (letter in "}]")
        if letter == "," and not quote and depth == 0:
            yield here.strip()
            here = ""
        else:
            here += letter
    yield here.strip()


def _flag(name: str, whole: Document) -> Flag | None:
    """The flag of this name, of recipes with clients or without."""
    flags = CLIENT_FLAGS if whole.table.get("clients") else FLAGS
    return next((flag for flag in flags if flag.name == name.replace("-", "_")), None)


def found(name: str, flag: Flag | None, document: Document, whole: Document) -> Keys:
    """The entry that a name means: a flag's, a whole key, or the only entry that ends so."""
    if flag is not None:
        return keys_for(flag, "...", document)
    keys = keys_of(name)
    if len(keys) > 1 or name in SETTINGS:
        return keys
    entries = [way for way, _ in documents.flat(whole.table)]
    cut = dict.fromkeys(way[: way.index(name) + 1] for way in entries if name in way)
    if len(cut) == 1:
        return next(iter(cut))
    if cut:
        listed = " or ".join(f"--over {dotted(way)}=..." for way in cut)
        raise SettingError(f"--over {name} may mean {len(cut)} settings: write {listed}")
    last = dict.fromkeys(way[-1] for way in entries if not way[-1].isdigit())
    raise SettingError(f"--over {name}: the recipe has no such setting; {known_or(name, last)}")
