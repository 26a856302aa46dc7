"""Reuse of the memory of finished updates, on the CPU.

An update frees its intermediate results, and the C library (glibc) returns much of this memory to the system at once.
The next update requests it again, and the system fills every page with zeros first. For CQL, which samples many
actions, that takes a third of an update's time.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_… of malloc.h
_KEPT: Final = 1 << 30
_LARGEST_BLOCK: Final = 32 << 20  # the limit of every glibc; larger arrays, such as datasets, are returned at once
_CHOICES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


@cache
def keep_freed_memory() -> bool:
    """Let the process keep up to 1 GiB of freed memory in blocks of up to 32 MiB. Returns whether it does.

    Does nothing if the C library is not glibc, if the environment configures glibc's allocator
    (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_TOP_PAD_``, or ``glibc.malloc`` in
    ``GLIBC_TUNABLES``), or with ``BIRL_KEEP_MEMORY=0``.
    """
    chosen = any(name in os.environ for name in _CHOICES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or chosen or os.environ.get("BIRL_KEEP_MEMORY") == "0":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_TRIM_THRESHOLD, _KEPT))
