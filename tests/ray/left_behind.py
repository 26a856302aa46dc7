"""Processes that tests have started, found by a mark in their environment."""

from __future__ import annotations

import os
from pathlib import Path

MARK = "BIRL_TESTS_WITH_RAY"


def processes_started_here(mark: str) -> dict[int, str]:
    """Processes that have inherited a mark from this one, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:  # it has ended, or belongs to another user
            continue
    found.pop(os.getpid(), None)
    return {pid: line for pid, line in found.items() if line}  # zombies have none
