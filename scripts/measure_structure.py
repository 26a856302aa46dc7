"""Print figures of the package's structure: code lines, longest functions and files, and the share of ``Any``.

Code lines are lines without blank lines, comments, docstrings, imports and ``__all__``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Figures:
    """Figures of some files.

    Attributes:
        code_lines: number of code lines.
        files: number of files.
        functions: code lines of each function, by ``file:name``.
        lengths: lines of each file.
        annotations: number of parameters and results with a type.
        any_places: parameters and results that are ``Any``, as ``file:function:parameter``.
    """

    code_lines: int = 0
    files: int = 0
    functions: dict[str, int] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    annotations: int = 0
    any_places: list[str] = field(default_factory=list)


def measure(package: Path) -> Figures:
    """Figures of the Python files below a folder."""
    figures = Figures()
    for path in sorted(package.rglob("*.py")):
        name, text = str(path.relative_to(package)), path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines = _code_lines(text, tree)
        figures.files += 1
        figures.code_lines += len(lines)
        figures.lengths[name] = len(text.splitlines())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                figures.functions[f"{name}:{node.name}:{node.lineno}"] = sum(line in lines for line in span)
                _count_annotations(figures, name, node)
    return figures


def _code_lines(text: str, tree: ast.Module) -> set[int]:
    left_out: set[int] = set()
    for node in ast.walk(tree):
        text_alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if text_alone or names or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    numbered = enumerate(map(str.strip, text.splitlines()), 1)
    return {number for number, line in numbered if line and line[0] != "#" and number not in left_out}


def _count_annotations(figures: Figures, name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    given = node.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    types = {parameter.arg: parameter.annotation for parameter in parameters if parameter.arg not in ("self", "cls")}
    for parameter, annotation in {**types, "return": node.returns}.items():
        figures.annotations += 1
        if annotation is not None and ast.unparse(annotation) in ("Any", "Any | None"):
            figures.any_places.append(f"{name}:{node.name}:{parameter}")


def main() -> None:
    """Print the figures."""
    figures = measure(ROOT / "birl")
    longest = sorted(figures.functions.items(), key=lambda item: -item[1])[:5]
    share = len(figures.any_places) / figures.annotations
    print(f"{figures.code_lines} code lines in {figures.files} files, {len(figures.functions)} functions")
    print("longest functions:", ", ".join(f"{name} ({lines})" for name, lines in longest))
    print("longest files:", sorted(figures.lengths.items(), key=lambda item: -item[1])[:3])
    print(f"Any: {len(figures.any_places)} of {figures.annotations} parameters and results ({share:.1%})")


if __name__ == "__main__":
    main()
