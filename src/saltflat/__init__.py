"""saltflat: differentially private training in flat minima, at nearly the speed of plain training.

The public names are those of ``__init__.pyi``. They are loaded when first used, so that the command line starts without
torch.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
