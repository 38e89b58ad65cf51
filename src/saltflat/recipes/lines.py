"""In which line of a TOML text an entry stands, as far as the beginnings of lines tell."""

from __future__ import annotations

import re

from saltflat.recipes.toml import Keys

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEYS = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEYS})[ \t]*\]")
_ENTRY = re.compile(rf"[ \t]*({_KEYS})[ \t]*=")


def lines_of(text: str) -> dict[Keys, int]:
    """The first line of every table, phase and entry that begins a line; what stands inside a line is not listed.

    >>> lines_of('data = "mnist"\\n[[phase]]\\nsteps = 3\\n[[phase]]\\nsteps = 4')[("phase", "1", "steps")]
    5
    """
    found: dict[Keys, int] = {}
    counts: dict[Keys, int] = {}  # of [[tables]] so far
    above: Keys = ()
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            *outer, last = _parts(header[2])
            above = (*_inside(tuple(outer), counts), last)
            if header[1] == "[[":
                counts[above] = counts.get(above, 0) + 1
            found.setdefault(above, number)
            above = _inside(_parts(header[2]), counts)
            found.setdefault(above, number)
        elif entry := _ENTRY.match(line):
            found.setdefault((*above, *_parts(entry[1])), number)
    return found


def _inside(keys: Keys, counts: dict[Keys, int]) -> Keys:
    """The keys with the place of the last [[table]] behind the name of each."""
    way: Keys = ()
    for key in keys:
        way = (*way, key)
        if way in counts:
            way = (*way, str(counts[way] - 1))
    return way


def _parts(keys: str) -> Keys:
    return tuple(part.strip("\"'") for part in re.findall(_PART, keys))
