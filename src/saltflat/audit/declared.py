"""Who may see a result of an adversary that reads real examples; the declarations are those of `saltflat.landscape`."""

from __future__ import annotations

from saltflat.errors import PrivacyError
from saltflat.landscape import Access


def declared(access: object, what: str) -> Access:
    """The declaration, or a refusal where there is none.

    *Guarantee*: nothing in this room looks at an example of yours before it was declared public, or the result was
    declared to stay with those who may see the examples.

    >>> declared(None, "this audit")
    Traceback (most recent call last):
    saltflat.errors.PrivacyError: this audit reads examples without noise, and no epsilon covers it: ...
    """
    if isinstance(access, Access):
        return access
    raise PrivacyError(
        f"{what} reads examples without noise, and no epsilon covers it: declare access=PUBLIC if the examples are "
        "public, or access=STAYS_PRIVATE if the result is kept as private as they are (saltflat.landscape has both)"
    )


def told_access(access: Access | None) -> str:
    """What everything written about the examples must say."""
    return "" if access is None else f"The examples are {access.status}."
