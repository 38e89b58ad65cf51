"""Recipes: everything that decides a run, as a TOML tree of the library's own values.

The settings of the experiments ship as files beside this one; `names` lists them. Files, lines, old versions and
changes of documents need no torch (`saltflat.recipes.documents`); the names below are loaded when first used, so that
the command line starts without it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
