"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from birl.engine import compiler
from birl.seeding import seed


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Every test begins from the same random state, on one thread, whatever ran before it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seed(0)
    yield
    torch.set_num_threads(threads)


_COMPILER = compiler.has_compiler(torch.device("cpu"))


@pytest.fixture(autouse=True)
def _compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C++ compiler on the machine, programs are traced all the same, and run as they were traced."""
    if not _COMPILER:
        monkeypatch.setattr(compiler, "BACKEND", "aot_eager")
        monkeypatch.setattr(compiler, "which", lambda name: name)
