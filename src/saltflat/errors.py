"""The errors that saltflat raises on purpose. Each message says what was given, what is allowed, what to do."""

from __future__ import annotations


class SaltflatError(Exception):
    """The base of every error that saltflat raises on purpose; the command line prints it as one line."""


class SettingError(SaltflatError, ValueError):
    """A setting outside what is allowed."""


class UnknownSettingError(SettingError, TypeError):
    """A keyword argument that there is not; the message names the one that is meant."""


class ModelError(SaltflatError, ValueError):
    """A model or loss without per-unit gradients, or one whose units mix."""


class Interrupted(SaltflatError, RuntimeError):
    """A signal asked the run to stop; it finished its step, kept what it had, and left."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal

    def __reduce__(self) -> tuple[type[Interrupted], tuple[str, int]]:
        return type(self), (str(self), self.signal)


class GroupError(SaltflatError, RuntimeError):
    """Another process of the run ended, or cannot be reached; this one cannot go on alone."""


class DataError(SaltflatError, ValueError):
    """Data that cannot be read, or that has another shape than declared."""


class PrivacyError(SaltflatError, RuntimeError):
    """A request that would break a privacy promise; nothing was released."""


class AccountingError(SaltflatError, ValueError):
    """No sound privacy bound can be computed for this request."""


class CopyError(PrivacyError, TypeError):
    """A copy was asked for of something that counts what is spent, and that can exist only once."""


class BudgetError(PrivacyError):
    """The step asked for would pass the budget; it was not taken."""


class LedgerError(PrivacyError):
    """A ledger that cannot be trusted, or cannot be written."""
