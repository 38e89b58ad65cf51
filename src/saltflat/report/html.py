"""Markup in which text cannot be mistaken for tags: whatever is not :class:`Html` is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_VOID = {"meta", "br", "hr", "img", "col"}


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(element: str, /, *inside: str | None, **attributes: str | int | bool | None) -> Html:
    """An element. Names of attributes end in ``_`` where Python needs it, and ``_`` inside stands for ``-``.

    >>> tag("p", "1 < 2 ", tag("b", "<script>"), class_="note")
    '<p class="note">1 &lt; 2 <b>&lt;script&gt;</b></p>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    opening = f"<{element}{written}>"
    return Html(opening if element in _VOID else f"{opening}{join(inside)}</{element}>")


def _attribute(key: str, value: str | int | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def join(parts: Iterable[str | None]) -> Html:
    """Parts one after the other, text escaped, None left out."""
    return Html(
        "".join(part if isinstance(part, Html) else escape(part) for part in parts if part is not None)
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str) -> Html:
    """A table whose first column names the rows, in a box of its own that scrolls if the page is narrow."""
    top = tag("tr", *(tag("th", each, scope="col") for each in head))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    whole = tag("table", tag("caption", caption), tag("thead", top), tag("tbody", *body))
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def items(parts: Iterable[str], **attributes: str) -> Html:
    """A list."""
    return tag("ul", *(tag("li", part) for part in parts), **attributes)
