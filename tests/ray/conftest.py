"""All processes that the tests with Ray start end with them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator

import pytest
from left_behind import MARK, processes_started_here

PATIENCE = 60.0


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """Set up first and torn down last: Ray's processes of all tests must have ended by then."""
    mark = os.environ[MARK] = uuid.uuid4().hex
    yield
    until = time.monotonic() + PATIENCE
    while (left := processes_started_here(mark)) and time.monotonic() < until:
        time.sleep(0.5)
    assert not left, "left behind: " + "; ".join(f"{pid} {words[:120]}" for pid, words in left.items())
    print("\nno process is left behind")
