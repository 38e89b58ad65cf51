"""Data that ships with the package."""

from saltflat.data.digits import Split, digits

__all__ = ["Split", "digits"]
