"""Memory that a step frees is kept for the next one."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of mallopt(3)
_NEVER, _NONE = -1, 0


@cache
def keep_freed_memory() -> bool:
    """Ask the C library not to hand freed memory back to the system; True if it does so from now on.

    A training step frees and asks again for the same hundreds of megabytes. glibc returns large pieces to the
    system at once, and the next step pays a page fault for every 4 KiB of them: up to a third of its time for
    some models, by luck of the layout. The setting is the whole process's. Where there is another C library,
    or where the user has set glibc's own environment variables (``MALLOC_...``), nothing is changed.

    >>> keep_freed_memory() in (True, False)
    True
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_M_MMAP_MAX, _NONE))
