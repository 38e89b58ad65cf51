"""Plays the adversary: tries to show that a run costs more than it claims. docs/audit.md says what a result means.

The public names are those of ``__init__.pyi``, loaded when first used: a kept result is read without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
