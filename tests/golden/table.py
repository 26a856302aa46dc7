"""All goldens: the cases of every module ``cases_*`` of this folder."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))
CASES: tuple[Any, ...] = tuple(
    case for name in MODULES for case in importlib.import_module(f"tests.golden.{name}").CASES
)
