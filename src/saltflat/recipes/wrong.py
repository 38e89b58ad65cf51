"""A mistake in a recipe: which entry it is in, and how it is put into words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from saltflat.errors import SettingError
from saltflat.recipes.toml import Keys, dotted


class Wrong(SettingError):
    """An entry that cannot be so; ``keys`` is the way to it."""

    def __init__(self, keys: Keys, message: str) -> None:
        super().__init__(f"{dotted(keys)}: {message}" if keys else message)
        self.keys, self.message = keys, message

    def under(self, keys: Keys) -> Wrong:
        """The same mistake, seen from further up."""
        return Wrong((*keys, *self.keys), self.message)


def known_or(name: str, known: Iterable[str]) -> str:
    """The known name that was meant, or all of them.

    >>> known_or("raduis", ["radius", "momentum"]), known_or("x", ["radius", "momentum"])
    ('did you mean radius?', 'known are radius, momentum')
    """
    by_letters = {each.lower(): each for each in known}
    near = difflib.get_close_matches(str(name).lower(), by_letters, 1)
    return f"did you mean {by_letters[near[0]]}?" if near else f"known are {', '.join(by_letters.values())}"


def shown(value: Any) -> str:
    """A value of a recipe in a message: short, whatever it is."""
    if isinstance(value, dict):
        return f"a table with {', '.join(map(str, value))}"[:60] if value else "an empty table"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    words = repr(value)
    return words if len(words) <= 60 else f"{words[:57]}..."
