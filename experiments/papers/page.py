"""The page and the list of rows, from declared rows and finished runs."""

from __future__ import annotations


def listed(chosen, found):
    return "\n".join(f"{w}  published {w.arm.published or '-'}  {w.row.minutes} minutes" for w in chosen)


def page(papers, found):
    return ""
