"""Freed memory is kept for the next update, and who only acts needs less of it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from birl.engine.memory import keep_freed_memory

GLIBC = platform.libc_ver()[0] == "glibc"  # no other C library is configured

BLOCK = """
import ctypes
import torch
from birl.algos import BCConfig
from birl.testing import build_algorithm, random_batch

class Info(ctypes.Structure):  # `struct mallinfo` of malloc.h
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_int) for name in names.split()]

algorithm = build_algorithm(BCConfig())
algorithm.engine.update(random_batch())
mallinfo = ctypes.CDLL(None).mallinfo
mallinfo.restype = Info
before = mallinfo()
block = torch.empty(24 << 20, dtype=torch.uint8)
held = mallinfo()
del block
print(held.hblkhd - before.hblkhd, mallinfo().fordblks)
"""


def mapped_and_kept(**variables: str) -> tuple[int, int]:
    """Bytes that the C library asks the system for to hold 24 MiB after an update, and those it then keeps.

    The library's own account: faults of pages, which are what costs time, depend on the system.
    """
    environment = {key: value for key, value in os.environ.items() if "MALLOC" not in key and key != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", BLOCK], env=environment | variables, capture_output=True, text=True, check=True
    )
    mapped, kept = (int(word) for word in done.stdout.split())
    return mapped, kept


@pytest.mark.slow
def test_updates_find_the_memory_of_the_last_one() -> None:
    if not GLIBC:
        assert not keep_freed_memory()
        return
    mapped, kept = mapped_and_kept()
    assert mapped == 0
    assert kept >= 24 << 20
    mapped, kept = mapped_and_kept(BIRL_KEEP_MEMORY="0")
    assert mapped >= 24 << 20  # a block of its own, which goes back to the system when it is freed
    assert kept < 24 << 20


@pytest.mark.slow
def test_a_user_s_own_choice_stands() -> None:
    if not GLIBC:
        assert not keep_freed_memory()
        return
    mapped, _ = mapped_and_kept(GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072")
    assert mapped >= 24 << 20


ACTS = """
import sys
import numpy as np
from birl.testing import build_algorithm
from birl.algos import SACConfig

algorithm = build_algorithm(SACConfig())
algorithm.sample_action(np.zeros((1, *algorithm.observation_shape), np.float32))
print("torch._dynamo" in sys.modules)
algorithm.engine.optimizers
print("torch._dynamo" in sys.modules)
"""


def test_who_only_acts_loads_no_compiler() -> None:
    """torch loads it for the first optimiser: 70 MB and 2 s in every collector."""
    done = subprocess.run([sys.executable, "-c", ACTS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
