"""Write the API reference: one page for each public package, from `__all__`, signatures and docstrings.

mkdocs generates the pages when it builds the site (see docs_hooks.py); none is committed. Static generators see neither
the algorithms, which `birl.algos` finds at import, nor the documentation of configuration fields. Run as a script, this
module writes the table of public names in ``docs/public-api.md``; a test compares the two.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from pathlib import Path
from typing import Any

import birl
from birl.config import AlgorithmConfig

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = DOCS / "algorithms"
PUBLIC_API = DOCS / "public-api.md"
_BEGIN, _END = "<!-- names: written by scripts/api_pages.py -->\n", "<!-- end of names -->"
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Keyword Args):$")
_ITEM = re.compile(r"^([\w*.,` ]+?)(?: \(.*\))?: +(.*)$")
_REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(…?\))?`(?!`)")
_LONGEST_SIGNATURE = 90


def modules() -> dict[str, Any]:
    """Return `birl` and its public packages by name."""
    packages = {f"birl.{name}": getattr(birl, name) for name in birl.__all__ if inspect.ismodule(getattr(birl, name))}
    return {"birl": birl, **packages}


def pages() -> dict[str, str]:
    """Return the Markdown of the reference by file name; ``README.md`` is its index."""
    found = modules()
    homes = _homes(found)
    rows = [f"| [`{name}`]({name}.md) | {_summary(module)} |" for name, module in found.items()]
    index = ["# API reference", "", "| package | contents |", "|---|---|", *rows, ""]
    return {"README.md": "\n".join(index), **{f"{name}.md": _page(name, found[name], homes) for name in found}}


def public_api() -> str:
    """Return ``docs/public-api.md`` with the table of public names as the code has them."""
    found = modules()
    rows = [f"| `{name}` | {_summary(module)} |" for name, module in found.items() if name != "birl"]
    others = [f"`birl.{name}`" for name in birl.__all__ if f"birl.{name}" not in found]
    text = "\n".join(
        ["| package | contents |", "|---|---|", *rows, "", f"Directly in `birl`: {', '.join(others)}.", ""]
    )
    head, _, rest = PUBLIC_API.read_text(encoding="utf-8").partition(_BEGIN)
    return head + _BEGIN + text + _END + rest.partition(_END)[2]


def targets() -> dict[str, str]:
    """Return the page and anchor of each public name, dotted (``birl.run.Hook``) and, if unambiguous, short."""
    found = modules()
    homes = _homes(found)
    links = {name: f"{name}.md" for name in found}
    for module_name, module in found.items():
        for name in module.__all__:
            value = getattr(module, name)
            if not inspect.ismodule(value):
                home = homes.get(id(value), (module_name, name))
                links[f"{module_name}.{name}"] = f"{home[0]}.md#{'.'.join(home)}"
                for each in _members(value, homes) if inspect.isclass(value) else ():
                    links[f"{module_name}.{name}.{each}"] = f"{home[0]}.md#{'.'.join(home)}.{each}"
    return links | {name: links[f"{home}.{name}"] for home, name in homes.values() if not name.islower()}


def _homes(found: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """Return the package and the name under which each object is described.

    This is the package that defines it or, if that is not public, the first that lists it.
    """
    homes: dict[int, tuple[str, str]] = {}
    for module_name, module in sorted(found.items(), key=lambda item: item[0] == "birl"):
        for name in sorted(module.__all__):
            value = getattr(module, name)
            defined = str(getattr(value, "__module__", ""))
            inside = defined == module_name or defined.startswith(f"{module_name}.")
            if _described(value) and (id(value) not in homes or (inside and name == getattr(value, "__name__", ""))):
                homes[id(value)] = (module_name, name)
    return homes


def _members(cls: type[Any], homes: dict[int, tuple[str, str]]) -> dict[str, Any]:
    """Return documented methods and properties, with those of bases that have no entry of their own."""
    members: dict[str, Any] = {}
    for base in cls.__mro__:
        if base is cls or (base.__module__.startswith("birl") and id(base) not in homes):
            members = {**vars(base), **members}
    return {
        name: value
        for name, value in members.items()
        if not name.startswith("_") and inspect.isfunction(_function_of(value)) and _function_of(value).__doc__
    }


def _function_of(value: Any) -> Any:
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _described(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _page(module_name: str, module: Any, homes: dict[int, tuple[str, str]]) -> str:
    links = {name: f"{home}.md#{home}.{name}" for home, name in homes.values() if not name.islower()}
    links |= {n: f"{homes[id(v)][0]}.md#{'.'.join(homes[id(v)])}" for n, v in vars(module).items() if id(v) in homes}
    parts = [f"# {module_name}", text_of(module.__doc__ or "", links)]
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        anchor = f"{module_name}.{name}"
        plain = f'<h2 id="{anchor}">{name}</h2>'  # markdown would make __version__ bold
        parts.append(plain if name.startswith("__") else f"## {name} {{#{anchor}}}")
        home = homes.get(id(value))
        if inspect.ismodule(value):
            parts.append(f"The package [`{value.__name__}`]({value.__name__}.md).")
        elif home is None:
            parts.append(f"```python\n{name} = {value!r:.200}\n```")
        elif home != (module_name, name):
            parts.append(f"The same as [`{'.'.join(home)}`]({home[0]}.md#{'.'.join(home)}).")
        else:
            described = _class(name, value, links, homes) if inspect.isclass(value) else None
            parts += _function(name, value, links) if described is None else described
    return "\n\n".join(part for part in parts if part) + "\n"


def _class(name: str, cls: type[Any], links: dict[str, str], homes: dict[int, tuple[str, str]]) -> list[str]:
    bases = [base.__name__ for base in cls.__bases__ if base.__module__.startswith("birl")]
    parts = [f"Derived from {', '.join(_linked(f'`{base}`', links) for base in bases)}."] if bases else []
    configuration = issubclass(cls, AlgorithmConfig)
    if not (configuration or issubclass(cls, enum.Enum | BaseException) or _is_interface(cls)):
        parts.append(_signature(name, cls))
    parts.append(text_of(cls.__doc__ or "", links))
    if (PAGES / f"{name}.md").exists() and cls.__module__.startswith(("birl.algos", "birl.ope")):
        parts.append(f"More, with its scores: [{name}](../algorithms/{name}.md).")
    if configuration and dataclasses.is_dataclass(cls):
        rows = [f"| `{row[0]}` | `{_default(row[1])}` | {row[2]} | {row[3]} |" for row in cls.documentation()]
        parts.append("\n".join(["| field | default | allowed | |", "|---|---|---|---|", *rows]))
    if issubclass(cls, enum.Enum):
        parts.append("\n".join(f"- `{member.name}` = `{member.value!r}`" for member in cls))
    for each, value in _members(cls, homes).items():
        function = _function_of(value)
        parts.append(f"### {name}.{each} {{#{'.'.join(homes[id(cls)])}.{each}}}")
        parts += [] if isinstance(value, property) else [_signature(each, function)]
        parts.append(text_of(function.__doc__, links))
    return parts


def _is_interface(cls: type[Any]) -> bool:
    return inspect.isabstract(cls) or getattr(cls, "_is_protocol", False)


def _default(value: Any) -> str:
    """Return a default as code; factories show only the arguments that differ from their own defaults."""
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


def _summary(value: Any) -> str:
    """Return the first paragraph of a docstring in one line."""
    return " ".join((value.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")


def text_of(docstring: str, links: dict[str, str]) -> str:
    """Convert a docstring to Markdown: sections become lists, literal blocks code, and names links."""
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
    """Return the lines of a section: a list of its items, or plain text."""
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
    """Turn names in single backticks that the reference describes into links."""

    def link(match: re.Match[str]) -> str:
        target = links.get(match[1]) or links.get(match[1].rpartition(".")[2] if match[1].startswith("birl.") else "")
        return f"[{match.group()}]({target})" if target else match.group()

    return _REFERENCE.sub(link, line)


if __name__ == "__main__":
    PUBLIC_API.write_text(public_api(), encoding="utf-8")
