"""Write docs/combinations.md from `birl.incompatible`. A test compares the file with what this would write."""

from __future__ import annotations

from pathlib import Path

from birl.incompatible import FEATURES, INCOMPATIBLE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "combinations.md"

HEAD = """# What cannot be combined

Each row names two features that exclude each other. An error names both, with the reason and what to do; it comes
before anything is trained. `scripts/make_combinations_page.py` makes the table from `birl.incompatible`.

| this | with this | because | instead |
|---|---|---|---|
"""


def page() -> str:
    """The text of the page."""
    rows = [(FEATURES[row.first], FEATURES[row.second], row.reason, row.remedy) for row in INCOMPATIBLE]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
