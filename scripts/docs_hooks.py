"""What mkdocs does not do by itself: sections made of folders, and links to code, which lies outside docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def on_config(config: Any) -> Any:
    """Sections of the navigation that are a folder get its pages, its README first."""
    for section in config["nav"]:
        for title, target in section.items():
            if not target.endswith(".md"):
                pages = sorted(page.name for page in (ROOT / "docs" / target).glob("*.md"))
                pages.sort(key=lambda name: name != "README.md")
                section[title] = [f"{target}/{name}" for name in pages]
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to files of the repository beside docs/ become their paths."""
    folder = (ROOT / "docs" / page.file.src_path).parent

    def plain(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(ROOT / "docs") or not path.exists():
            return match.group()
        inside = str(path.relative_to(ROOT))
        return f"`{inside}`" if text == inside else f"{text} (`{inside}`)"

    return re.sub(r"\[([^]]+)\]\((?!https?:)([^)#]+)\)", plain, markdown)
