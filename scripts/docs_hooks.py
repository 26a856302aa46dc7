"""Hooks of mkdocs: folders as sections, generated pages, links to the API reference and to code outside docs/."""

from __future__ import annotations

import posixpath
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # `make docs` installs birl; this line serves a checkout without it
from scripts import api_pages  # noqa: E402

DOCS = ROOT / "docs"
REFERENCE = "reference"
ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the repository's root that the site has, too."""

_FENCE = re.compile(r"^(`{3,}).*?^\1`*\s*?$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[(?P<text>(?:[^]`]|`[^`]*`)*)\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"(?<!`)`(?P<name>birl(?:\.\w+)+|[A-Z]\w+)(?P<call>\([^`]*\))?`(?!`)")
_OTHERS = {"Box", "Discrete", "MultiBinary", "MultiDiscrete", "Dict", "Tuple", "Text"}
"""Names of Gymnasium's spaces, which guides use without their module."""


def on_config(config: Any) -> Any:
    """Replace folders in the navigation by their pages, the README first."""
    config["nav"] = _expanded(config["nav"])
    return config


def _expanded(nav: list[Any]) -> list[Any]:
    found: list[Any] = []
    for entry in nav:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            found.append({title: _expanded(target)})
        elif target.endswith(".md"):
            found.append(entry)
        else:
            names = api_pages.pages() if target == REFERENCE else [page.name for page in (DOCS / target).glob("*.md")]
            found.append({title: [f"{target}/{name}" for name in sorted(names, key=_readme_first)]})
    return found


def _readme_first(name: str) -> tuple[bool, str]:
    return name != "README.md", name.removesuffix(".md")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the API reference and the pages of the repository's root, which are generated for each build."""
    for name, text in api_pages.pages().items():
        files.append(File.generated(config, f"{REFERENCE}/{name}", content=text))
    for source, name in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=_moved(text)))
    return files


def _moved(text: str) -> str:
    """Rewrite the links of a page that moves from the repository's root to docs/."""

    def rewrite(match: re.Match[str]) -> str:
        target = match["target"]
        if target.startswith(("http", "#", "mailto:")):
            return match.group()
        return f"[{match['text']}]({target.removeprefix('docs/') if target.startswith('docs/') else '../' + target})"

    return _LINK.sub(rewrite, text)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Link code of the repository, and public names in backticks, outside code blocks."""
    source = page.file.src_path
    if source == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_linked(markdown[end : fence.start()], source, config["repo_url"]), fence.group()]
        end = fence.end()
    return "".join([*parts, _linked(markdown[end:], source, config["repo_url"])])


def _linked(text: str, source: str, repository: str) -> str:
    names = not source.startswith(f"{REFERENCE}/")  # whose pages have such links already
    lines = []
    for line in text.split("\n"):
        pieces, end = [], 0
        for match in _LINK.finditer(line):
            pieces += [_with_names(line[end : match.start()], source) if names else line[end : match.start()]]
            pieces += [f"[{match['text']}]({_target(match['target'], source, repository)})"]
            end = match.end()
        rest = line[end:]
        pieces.append(_with_names(rest, source) if names and not line.startswith("#") else rest)
        lines.append("".join(pieces))
    return "\n".join(lines)


def _target(target: str, source: str, repository: str) -> str:
    """Return the address of a link: pages of the site stay relative, other files of the repository are on GitHub."""
    path, mark, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return target
    inside = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), path))
    if inside in ROOT_PAGES:
        return _relative(ROOT_PAGES[inside], source) + mark + anchor
    if inside.startswith("docs/") or not (ROOT / inside).exists():
        return target
    return f"{repository}/{'tree' if (ROOT / inside).is_dir() else 'blob'}/main/{inside}{mark}{anchor}"


def _with_names(text: str, source: str) -> str:
    """Turn public names in backticks into links to their entries."""

    def link(match: re.Match[str]) -> str:
        name = match["name"]
        target = _names().get(name) if name not in _OTHERS else None
        return f"[{match.group()}]({_relative(target, source)})" if target else match.group()

    return _CODE.sub(link, text)


@cache
def _names() -> dict[str, str]:
    """Return the pages of public names; algorithms and estimators have pages of their own."""
    found = {name: f"{REFERENCE}/{target}" for name, target in api_pages.targets().items()}
    for folder in ("algorithms", "estimators"):
        for path in (DOCS / folder).glob("*.md"):
            found[path.stem] = f"{folder}/{path.name}"
    return found


def _relative(target: str, source: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(source) or ".")
