"""PATE: teachers on disjoint parts of private data vote on public queries; a student learns from noisy pluralities.

The public names are those of ``__init__.pyi``, loaded when first used: what a run released is read without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
