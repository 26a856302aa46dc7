"""The algorithm pages say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_algorithm_pages_are_up_to_date():
    path = ROOT / "scripts" / "make_algorithm_pages.py"
    spec = importlib.util.spec_from_file_location("make_algorithm_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "algorithms").iterdir()}
    assert written == module.pages(), "run scripts/make_algorithm_pages.py"
