"""Draw the floors of the package and list its folders, from the code alone.

Writes ``docs/architecture.svg`` and the table of folders in ``ARCHITECTURE.md``. Floors come from the contract of
import-linter in ``pyproject.toml``, descriptions from the first line of each package's docstring.
"""

from __future__ import annotations

import ast
import html
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = ROOT / "docs" / "architecture.svg"
PAGE: Final = ROOT / "ARCHITECTURE.md"
LONGEST: Final = 100
"""Characters of a description."""

_WIDTH, _LEFT, _GAP, _LINE, _HEAD = 1180, 34, 10, 15, 24
_FONT = "font-family='Helvetica, Arial, sans-serif'"
_BEGIN, _END = "<!-- folders: written by scripts/draw_architecture.py -->", "<!-- end of folders -->"


def description(name: str) -> str:
    """First line of the docstring of a package or module of birl."""
    path = ROOT / "birl" / name
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0].replace("``", "").replace("`", "")


def floors() -> list[list[str]]:
    """Packages and modules of each floor, the top one first, without private modules and paths kept for other code."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    rows = [[name.strip() for name in re.split(r"[|:]", layer)] for layer in layers]
    return [[name for name in row if not name.startswith("_") and not _is_alias(name)] for row in rows]


def _is_alias(name: str) -> bool:
    return description(name).startswith(("d3rlpy's ", "Former path"))


def picture() -> str:
    """The floors as SVG."""
    parts: list[str] = []
    top = 14
    for row in floors():
        width = (_WIDTH - _LEFT - _GAP * len(row)) / len(row)
        texts = [textwrap.wrap(description(name), max(16, int((width - 20) / 6.6))) for name in row]
        height = _HEAD + _LINE * max(map(len, texts)) + 10
        for index, (name, lines) in enumerate(zip(row, texts, strict=True)):
            left = _LEFT + index * (width + _GAP)
            label = name + ("/" if (ROOT / "birl" / name).is_dir() else "")
            parts.append(
                f"<rect x='{left:.1f}' y='{top}' width='{width:.1f}' height='{height}' rx='7' class='box'/>"
                f"<text x='{left + 11:.1f}' y='{top + 19}' class='name'>{label}</text>"
            )
            parts += [
                f"<text x='{left + 11:.1f}' y='{top + 19 + _LINE * number}' class='text'>{html.escape(line)}</text>"
                for number, line in enumerate(lines, 1)
            ]
        top += height + _GAP
    arrow = (
        f"<line x1='16' y1='20' x2='16' y2='{top - 26}' class='arrow'/>"
        f"<path d='M 10 {top - 32} L 16 {top - 18} L 22 {top - 32}' class='arrow'/>"
        f"<text transform='translate(12 {top / 2:.0f}) rotate(-90)' class='side' text-anchor='middle'>imports</text>"
    )
    style = (
        ".box{fill:#f5f8fb;stroke:#9fb3c8}.name{font-weight:bold;font-size:14px;fill:#102a43}"
        ".text{font-size:12px;fill:#334e68}.side{font-size:12px;fill:#486581}"
        ".arrow{stroke:#829ab1;stroke-width:1.6;fill:none}.page{fill:#ffffff}"
    )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {top + 4}' {_FONT} role='img'>"
        f"<title>The packages of birl, floor by floor: imports point down</title><style>{style}</style>"
        f"<rect width='{_WIDTH}' height='{top + 4}' class='page'/>{arrow}{''.join(parts)}</svg>\n"
    )


def table() -> str:
    """Markdown table of the folders, one line each."""
    rows = [
        f"| `{name}{'/' if (ROOT / 'birl' / name).is_dir() else ''}` | {description(name)} |"
        for row in floors()
        for name in row
    ]
    return "\n".join(["| folder | what it holds |", "|---|---|", *rows])


def page() -> str:
    """``ARCHITECTURE.md`` with the table of today."""
    before, found, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    return f"{before}{found}\n{table()}\n{_END}{after}"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
