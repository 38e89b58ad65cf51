"""Markup in which text cannot be mistaken for tags: whatever is not :class:`Html` is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape, unescape

_VOID = {"meta", "br", "hr", "img", "col"}


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(element: str, /, *inside: str | None, **attributes: str | float | bool | None) -> Html:
    """An element. Names of attributes end in ``_`` where Python needs it, and ``_`` inside stands for ``-``.

    >>> tag("p", "1 < 2 ", tag("b", "<script>"), class_="note")
    '<p class="note">1 &lt; 2 <b>&lt;script&gt;</b></p>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    opening = f"<{element}{written}>"
    return Html(opening if element in _VOID else f"{opening}{join(inside)}</{element}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def join(parts: Iterable[str | None]) -> Html:
    """Parts one after the other, text escaped, None left out."""
    return Html(
        "".join(part if isinstance(part, Html) else escape(part) for part in parts if part is not None)
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, sort: bool = True) -> Html:
    """A table whose first column names the rows: it scrolls in a box of its own, and is a list of cards on a phone.

    Every cell carries the name of its column, which a card shows. A script makes the heads of a table that may be
    sorted into buttons.
    """
    top = tag("tr", *(tag("th", each, scope="col") for each in head))
    body = [_row(head, row) for row in rows]
    parts = (tag("caption", caption), tag("thead", top), tag("tbody", *body))
    whole = tag("table", *parts, class_="sortable" if sort and len(body) > 1 else None)
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _row(head: Sequence[str], row: Sequence[str]) -> Html:
    cells = [tag("td", cell, data_label=plain(name)) for name, cell in zip(head[1:], row[1:], strict=True)]
    return tag("tr", tag("th", row[0], scope="row"), *cells)


def plain(text: str) -> str:
    """The words of some markup, for an attribute; other text as it is.

    >>> plain(tag("b", "a < b")), plain("a < b")
    ('a < b', 'a < b')
    """
    return unescape(re.sub(r"<[^>]*>", "", text)) if isinstance(text, Html) else text


def folded(summary: str, *inside: str | None, **attributes: str | bool) -> Html:
    """What is there for whoever asks."""
    return tag("details", tag("summary", summary), *inside, **attributes)


def items(parts: Iterable[str], **attributes: str) -> Html:
    """A list."""
    return tag("ul", *(tag("li", part) for part in parts), **attributes)
