"""The API reference: one page for each public module, made from `__all__`, signatures and docstrings.

mkdocs makes the pages when it builds the site (see docs_hooks.py); none is committed. Static generators do not see the
algorithms, which `birl.algos` finds at import, nor what configurations say about their fields.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import birl
from birl.config import AlgorithmConfig

PAGES = Path(__file__).resolve().parent.parent / "docs" / "algorithms"
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Keyword Args):$")
_ITEM = re.compile(r"^([\w*.,` ]+?)(?: \(.*\))?: +(.*)$")
_REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(…?\))?`(?!`)")
_LONGEST_SIGNATURE = 90


def modules() -> dict[str, Any]:
    """Modules with a public face, by name."""
    names = ["birl", *(found.name for found in pkgutil.walk_packages(birl.__path__, "birl."))]
    public = [name for name in names if not any(part.startswith("_") for part in name.split("."))]
    found = {name: importlib.import_module(name) for name in public}
    return {name: module for name, module in found.items() if hasattr(module, "__all__")}


def pages() -> dict[str, str]:
    """Markdown of the reference by file name; ``README.md`` is its index."""
    found = modules()
    homes = _homes(found)
    rows = [f"| [`{name}`]({name}.md) | {_summary(module)} |" for name, module in found.items()]
    index = ["# API reference", "", "| module | |", "|---|---|", *rows, ""]
    return {"README.md": "\n".join(index), **{f"{name}.md": _page(name, found[name], homes) for name in found}}


def _homes(found: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """Module and name under which each object is described: where it is defined, or else the first that has it."""
    homes: dict[int, tuple[str, str]] = {}
    for module_name, module in sorted(found.items(), key=lambda item: item[0] == "birl"):
        for name in sorted(module.__all__):
            value = getattr(module, name)
            defined = str(getattr(value, "__module__", ""))
            inside = defined == module_name or defined.startswith(f"{module_name}.")
            if _described(value) and (id(value) not in homes or (inside and name == getattr(value, "__name__", ""))):
                homes[id(value)] = (module_name, name)
    return homes


def _described(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _page(module_name: str, module: Any, homes: dict[int, tuple[str, str]]) -> str:
    links = {name: f"{home}.md#{home}.{name}" for home, name in homes.values()}
    links |= {n: f"{homes[id(v)][0]}.md#{'.'.join(homes[id(v)])}" for n, v in vars(module).items() if id(v) in homes}
    parts = [f"# {module_name}", text_of(module.__doc__ or "", links)]
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        anchor = f"{module_name}.{name}"
        plain = f'<h2 id="{anchor}">{name}</h2>'  # markdown would make __version__ bold
        parts.append(plain if name.startswith("__") else f"## {name} {{#{anchor}}}")
        home = homes.get(id(value))
        if inspect.ismodule(value):
            parts.append(f"The module [`{value.__name__}`]({value.__name__}.md).")
        elif home is None:
            parts.append(f"```python\n{name} = {value!r:.200}\n```")
        elif home != (module_name, name):
            parts.append(f"The same as [`{'.'.join(home)}`]({home[0]}.md#{'.'.join(home)}).")
        else:
            parts += _class(name, value, links) if inspect.isclass(value) else _function(name, value, links)
    return "\n\n".join(part for part in parts if part) + "\n"


def _class(name: str, cls: type[Any], links: dict[str, str]) -> list[str]:
    bases = [base.__name__ for base in cls.__bases__ if base.__module__.startswith("birl")]
    parts = [f"Derived from {', '.join(_linked(f'`{base}`', links) for base in bases)}."] if bases else []
    configuration = issubclass(cls, AlgorithmConfig)
    if not (configuration or issubclass(cls, enum.Enum | BaseException) or inspect.isabstract(cls)):
        parts.append(_signature(name, cls))
    parts.append(text_of(cls.__doc__ or "", links))
    if (PAGES / f"{name}.md").exists() and cls.__module__.startswith(("birl.algos", "birl.ope")):
        parts.append(f"More, with its scores: [{name}](../algorithms/{name}.md).")
    if configuration and dataclasses.is_dataclass(cls):
        rows = [f"| `{row[0]}` | `{_default(row[1])}` | {row[2]} | {row[3]} |" for row in cls.documentation()]
        parts.append("\n".join(["| field | default | allowed | |", "|---|---|---|---|", *rows]))
    if issubclass(cls, enum.Enum):
        parts.append("\n".join(f"- `{member.name}` = `{member.value!r}`" for member in cls))
    for each, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if each.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        parts.append(f"### {name}.{each} {{#{cls.__module__}.{name}.{each}}}")
        parts += [] if isinstance(value, property) else [_signature(each, function)]
        parts.append(text_of(function.__doc__, links))
    return parts


def _default(value: Any) -> str:
    """A default as code; of a factory, only the arguments that are not its own defaults."""
    if not dataclasses.is_dataclass(value):
        return repr(value)
    usual = type(value)()
    given = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    words = [f"{name}={each!r}" for name, each in given.items() if each != getattr(usual, name)]
    return f"{type(value).__name__}({', '.join(words)})"


def _function(name: str, function: Any, links: dict[str, str]) -> list[str]:
    return [_signature(name, function), text_of(function.__doc__ or "", links)]


def _signature(name: str, what: Any) -> str:
    try:
        signature = inspect.signature(what)
    except (TypeError, ValueError):
        return ""
    words, star = [], False
    for each in signature.parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            words, star = [*words, "*"], True
        star = star or each.kind is each.VAR_POSITIONAL
        prefix = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        word = prefix + each.name + (f": {_type(each.annotation)}" if each.annotation is not each.empty else "")
        if each.default is not each.empty:
            default = repr(each.default)
            word += f" = {'…' if default.startswith('<') else default}"
        words.append(word)
    end = "" if signature.return_annotation is signature.empty else f" -> {_type(signature.return_annotation)}"
    line = f"{name}({', '.join(words)}){end}"
    if len(line) > _LONGEST_SIGNATURE:
        line = "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){end}"])
    return f"```python\n{line}\n```"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _summary(module: Any) -> str:
    return " ".join((module.__doc__ or "").split("\n\n")[0].split())


def text_of(docstring: str, links: dict[str, str]) -> str:
    """A docstring as markdown: sections become lists, literal blocks code, names links."""
    lines, found = inspect.cleandoc(docstring).splitlines(), []
    place = 0
    while place < len(lines):
        section = _SECTION.match(lines[place])
        body = []
        while section and place + 1 < len(lines) and (not lines[place + 1] or lines[place + 1].startswith(" ")):
            place += 1
            body.append(lines[place])
        if section:
            found += ["", f"**{section[1]}**", "", *_section(body), ""]
        else:
            found.append(re.sub(r"::$", ":", lines[place]) if lines[place] != "::" else "")
        place += 1
    return "\n".join(line if line.startswith("    ") else _linked(line, links) for line in found).strip()


def _section(body: list[str]) -> list[str]:
    """The lines of a section: a list of its items, or plain text."""
    text = inspect.cleandoc("\n" + "\n".join(body)).splitlines()
    entries: list[list[str]] = []
    for line in text:
        item = _ITEM.match(line)
        if item and not line.startswith(" "):
            entries.append([f"- `{item[1].replace('`', '')}`: {item[2]}"])
        elif entries:
            entries[-1].append(line.strip())
        else:
            entries.append([line])
    return [" ".join(words).strip() for words in entries]


def _linked(line: str, links: dict[str, str]) -> str:
    """Names in single backticks that the reference describes become links."""

    def link(match: re.Match[str]) -> str:
        target = links.get(match[1]) or links.get(match[1].rpartition(".")[2] if match[1].startswith("birl.") else "")
        return f"[{match.group()}]({target})" if target else match.group()

    return _REFERENCE.sub(link, line)
