"""Freed memory is kept for the next update."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

from birl.engine.memory import keep_freed_memory

GLIBC = platform.libc_ver()[0] == "glibc"  # no other C library is told anything

FAULTS = """
import resource
import numpy as np
from birl.algos import CQLConfig
from birl.dataset import MDPDataset

rng = np.random.default_rng(0)
data = MDPDataset(rng.normal(size=(300, 3)), rng.uniform(-1, 1, (300, 2)), np.zeros(300), np.arange(300) % 100 == 99)
cql = CQLConfig().create()
cql.build_with_dataset(data)
batch = data.sample_transition_batch(64)
for _ in range(8):  # the heap grows at first
    cql.update(batch)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    cql.update(batch)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 4)
"""


def faults(**variables: str) -> int:
    """Pages that one update of CQL has to ask the system for."""
    environment = {key: value for key, value in os.environ.items() if "MALLOC" not in key and key != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment | variables, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_updates_find_the_memory_of_the_last_one() -> None:
    if not GLIBC:
        assert not keep_freed_memory()
        return
    without = faults(BIRL_KEEP_MEMORY="0")
    assert without > 1000
    assert faults() < without / 10


def test_a_user_s_own_choice_stands() -> None:
    if not GLIBC:
        assert not keep_freed_memory()
        return
    assert faults(GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072") > 1000
