"""What was spent, what it means, and where the noise comes from.

The public names are those of ``__init__.pyi``, loaded when first used: a ledger is read without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
