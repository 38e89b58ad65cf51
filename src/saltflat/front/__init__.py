"""The front of the house: training in one call, and in a loop of your own. All of it is made of the parts.

The public names are those of ``__init__.pyi``, loaded when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
