"""Fixtures of all tests."""

from __future__ import annotations

import getpass
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _no_compiled_updates(_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds updates that another one compiled. The compiler's own files serve all tests, of later runs too."""
    monkeypatch.setenv("BIRL_CACHE_DIR", str(_cache / str(next(_numbers))))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", _COMPILERS_FILES)


_COMPILERS_FILES = os.environ.get(  # before torch sets it
    "TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"torchinductor_birl_{getpass.getuser()}")
)
_numbers = itertools.count()
_COMPILER = compiler.has_compiler(torch.device("cpu"))


@pytest.fixture(autouse=True)
def _compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C++ compiler on the machine, programs are traced all the same, and run as they were traced."""
    if not _COMPILER:
        monkeypatch.setattr(compiler, "BACKEND", "aot_eager")
        monkeypatch.setattr(compiler, "which", lambda name: name)
