"""Lets these tests call the benchmarks' functions, from wherever they are started."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
