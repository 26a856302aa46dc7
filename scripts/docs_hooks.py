"""What mkdocs does not do by itself: sections made of folders, the API reference, links to code outside docs/."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # `make docs` installs birl; this is for a checkout without it
from scripts import api_pages  # noqa: E402

REFERENCE = "reference"


def on_config(config: Any) -> Any:
    """Sections of the navigation that are a folder get its pages, its README first."""
    for section in config["nav"]:
        for title, target in section.items():
            if not target.endswith(".md"):
                folder = (ROOT / "docs" / target).glob("*.md")
                pages = sorted(api_pages.pages() if target == REFERENCE else (page.name for page in folder))
                pages.sort(key=lambda name: name != "README.md")
                section[title] = [f"{target}/{name}" for name in pages]
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """The pages of the API reference, which are made anew for each build."""
    for name, text in api_pages.pages().items():
        files.append(File.generated(config, f"{REFERENCE}/{name}", content=text))
    return files


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
