"""Compare scripts/peers/*.toml with the source of a peer: ``python -m scripts.check_peers pfrl FOLDER``.

FOLDER is a checkout of the peer at the commit that the file names, or at a newer one to see what has changed. The check
only reads and parses the source. It reports options that are missing in the file or gone in the source, other defaults,
other lines, values of recipes that the peer's scripts do not have, and files that have changed since the statements
about them were written.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.make_moving_pages import options, read


def signature(node: ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[str, str, int]]:
    """Yield name, default and line of the options of a function, or of a class's fields and constructor.

    A constructor also takes the options that it takes out of its keyword arguments.
    """
    if isinstance(node, ast.FunctionDef):
        positional = [*node.args.posonlyargs, *node.args.args]
        pairs = [*zip(positional[len(positional) - len(node.args.defaults) :], node.args.defaults, strict=True)]
        pairs += [(arg, value) for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value]
        yield from ((arg.arg, ast.unparse(value), value.lineno) for arg, value in pairs)
        return
    fields = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    for part in node.body:
        if fields and isinstance(part, ast.AnnAssign) and part.value and "ClassVar" not in ast.unparse(part.annotation):
            yield ast.unparse(part.target), ast.unparse(part.value), part.lineno
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            yield from signature(part)
            for call in ast.walk(part):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "kwargs.pop" and len(call.args) == 2:
                    yield ast.literal_eval(call.args[0]), ast.unparse(call.args[1]), call.lineno


def digest(tree: ast.AST) -> str:
    """Return a digest of code that comments and line breaks do not change."""
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def values(tree: ast.AST, keyword: str) -> set[str]:
    """Return the values that a script gives to a keyword of a call, or to an option of its command line."""
    found = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            given = {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg}
            if keyword in given:
                found.add(given[keyword])
            named = [each.value for each in call.args if isinstance(each, ast.Constant)]
            if f"--{keyword.replace('_', '-')}" in named or f"--{keyword}" in named:
                found.add(given.get("default", ""))
    return found


def problems(peer: str, folder: Path) -> list[str]:
    """Return the differences between the file of a peer and its source."""
    data: dict[str, Any] = read(peer)
    out = []
    trees = {}
    for file, known in data["files"].items():
        try:
            trees[file] = ast.parse((folder / data["package"] / file).read_text(encoding="utf-8"))
        except OSError:
            out.append(f"{file}: is gone")
            continue
        if digest(trees[file]) != known:
            out.append(f"{file}: has changed since it was read; read it again, then write {digest(trees[file])!r}")
    rows: dict[str, dict[str, tuple[str, int]]] = {}
    for each in options(data):
        rows.setdefault(each.of, {})[each.name] = (each.default, each.line)
    for name, entry in data["names"].items():
        file, _, _ = entry.get("at", "").partition(":")
        if file not in trees:
            continue
        nodes = [node for node in ast.walk(trees[file]) if getattr(node, "name", "") == name.rsplit(".", 1)[1]]
        there = {option: rest for node in nodes for option, *rest in signature(node)}  # type: ignore[arg-type]
        known_rows = rows.get(name, {})
        out += [f"{name}: the option {option} has no row" for option in there.keys() - known_rows.keys()]
        out += [f"{name}: the option {option} is gone" for option in known_rows.keys() - there.keys()]
        for option in there.keys() & known_rows.keys():
            if tuple(there[option]) != known_rows[option]:
                out.append(f"{name}({option}): is {there[option]}, the file has {known_rows[option]}")
    for recipe, setting, file, keyword, value, *_ in data["recipes"]:
        script = folder / file
        if not script.exists() or value not in values(ast.parse(script.read_text(encoding="utf-8")), keyword):
            out.append(f"recipe {recipe}, {setting}: {file} does not have {keyword}={value}")
    return out


if __name__ == "__main__":
    name, folder_name = sys.argv[1:]
    result = problems(name, Path(folder_name))
    print("\n".join(result) or "no differences")
    sys.exit(bool(result))
