"""D8: whatever is handed in, it is a valid run, or one typed line that names the field; nothing odd is taken in silence."""

from __future__ import annotations

import warnings
from random import Random

from fuzzed import Case, case

from saltflat.errors import SaltflatError


def trouble(one: Case) -> str:
    """What is wrong with how a case ended; nothing if all is as it should be."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.place.make(**one.given)
    except SaltflatError as error:
        return _of_message(one, str(error))
    except Exception as error:
        return f"a {type(error).__name__} ({error})"
    return f"{', '.join(one.wrong)} was taken in silence" if one.wrong else ""


def _of_message(one: Case, said: str) -> str:
    if "\n" in said:
        return f"more than one line: {said!r}"
    names = [one.place.words.get(name, name) for name in one.odd]
    plain = said.replace("_", " ")
    if one.wrong and not any(name.replace("_", " ") in plain for name in names):
        return f"it does not name the field: {said!r}"
    return ""


def troubles(seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        one = case(Random(seed))
        if what := trouble(one):
            found.append(f"{seed}: {one}: {what}")
    return found


def test_d8_settings() -> None:
    assert troubles(range(400)) == []
