"""Who may see a result: every measure here reads its examples raw, without clip and without noise."""

from __future__ import annotations

from dataclasses import dataclass

from saltflat.errors import PrivacyError


@dataclass(frozen=True)
class Access:
    """What was declared about the examples; ``status`` goes into everything that is written about them."""

    status: str


PUBLIC = Access("public")
STAYS_PRIVATE = Access("private: keep this file")


def declared(access: object, what: str = "this measure") -> Access:
    """The declaration, or a refusal where there is none.

    *Guarantee*: nothing in this room looks at an example before its data was declared `PUBLIC`, or the result was
    declared to stay with those who may see the data (`STAYS_PRIVATE`).

    >>> declared(PUBLIC).status
    'public'
    >>> declared(None)
    Traceback (most recent call last):
    saltflat.errors.PrivacyError: this measure reads examples without noise, and no epsilon covers it: ...
    """
    if isinstance(access, Access):
        return access
    raise PrivacyError(
        f"{what} reads examples without noise, and no epsilon covers it: declare access=PUBLIC if the examples are "
        "public, or access=STAYS_PRIVATE if the result is kept as private as they are"
    )
