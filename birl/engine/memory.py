"""Memory of finished updates kept for the next one, on the CPU.

An update frees its intermediate results, and the C library (glibc) gives much freed memory back to the system at once.
The next update asks for it again, and the system fills every page with zeros before it hands it out: for CQL with its
many proposals that is a third of an update's time.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_… of malloc.h
_KEPT: Final = 1 << 30
_LARGEST_BLOCK: Final = 32 << 20  # what every version of glibc takes; larger arrays, such as datasets, go back at once
_CHOICES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


@cache
def keep_freed_memory() -> bool:
    """Let the process keep up to 1 GiB of freed memory in blocks of up to 32 MiB. Returns whether it does.

    Does nothing where the C library is not glibc, where one of glibc's own variables (``MALLOC_TRIM_THRESHOLD_`` and
    its like, or ``glibc.malloc`` in ``GLIBC_TUNABLES``) already says what to do, or with ``BIRL_KEEP_MEMORY=0``.
    """
    chosen = any(name in os.environ for name in _CHOICES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or chosen or os.environ.get("BIRL_KEEP_MEMORY") == "0":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_TRIM_THRESHOLD, _KEPT))
