"""Advice before a budget is spent: settings that were measured (`suggest`), and what a model is in for (`doctor`)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
