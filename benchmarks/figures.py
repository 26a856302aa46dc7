"""Figures of the code itself: lines of each algorithm file, hops from ``fit`` to the gradient, repeated lines.

``python benchmarks/figures.py`` prints them. With ``--peer-python ENV/bin/python``, an interpreter that has d3rlpy,
the same figures are taken of d3rlpy, in the same way.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import io
import itertools
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

RUN = 6
"""So many equal lines in a row count as repeated."""


def package_folder(package: str) -> Path:
    """Where a package lies."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


# ---------------------------------------------------------------------------------------------------------- lines


def code_lines(text: str) -> int:
    """Lines with code: no blank lines, comments or docstrings."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if number not in skipped and line.strip() and line.strip()[0] != "#")


def import_lines(text: str) -> set[int]:
    """Numbers of the lines that import, or list names in ``__all__``."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        listed = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Assign) and listed):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def repeated_lines(texts: dict[str, str], *, with_imports: bool, run: int = RUN) -> tuple[dict[str, set[int]], int]:
    """Lines in runs of at least ``run`` lines that stand somewhere else too.

    Blank lines and indentation are not looked at; every copy counts, the first one too.

    Args:
        texts: contents by file.
        with_imports: whether imports and ``__all__`` are looked at.
        run: least length of a run.

    Returns:
        The numbers of the repeated lines by file, and the number of lines that were looked at.
    """
    rows: dict[str, list[tuple[int, str]]] = {}
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, text in texts.items():
        left_out = set() if with_imports else import_lines(text)
        lines = enumerate(text.splitlines(), 1)
        rows[name] = [(number, line.strip()) for number, line in lines if line.strip() and number not in left_out]
        for start in range(len(rows[name]) - run + 1):
            places[tuple(line for _, line in rows[name][start : start + run])].append((name, start))
    repeated: dict[str, set[int]] = defaultdict(set)
    for found in places.values():
        for name, start in found if len(found) > 1 else []:
            repeated[name].update(number for number, _ in rows[name][start : start + run])
    return dict(repeated), sum(map(len, rows.values()))


# ---------------------------------------------------------------------------------------------------------- hops


class _ReachedError(Exception):
    """The gradient is about to be computed: nothing more is needed."""


def hops(package: str) -> list[str]:
    """The calls of one real ``SAC.fit``, from ``fit`` to the one that asks torch for gradients.

    Returns:
        File, line and name of each function on the stack below ``fit``, the outermost first, torch's own left out.
    """
    import torch

    data, algos, logging = (importlib.import_module(f"{package}.{name}") for name in ("dataset", "algos", "logging"))
    generator = np.random.default_rng(0)
    dataset = data.MDPDataset(
        observations=generator.standard_normal((64, 3), dtype=np.float32),
        actions=generator.uniform(-1, 1, (64, 2)).astype(np.float32),
        rewards=generator.standard_normal((64, 1), dtype=np.float32),
        terminals=(np.arange(64) % 16 == 15).astype(np.float32)[:, None],
    )
    stack: list[str] = []

    def reached(*_: Any, **__: Any) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "main":
            stack.append(f"{_place(frame)} {frame.f_code.co_name}")
            frame = frame.f_back
        raise _ReachedError

    torch.autograd.grad = reached  # type: ignore[assignment]
    torch.Tensor.backward = reached  # type: ignore[method-assign]
    algorithm, logger = algos.SACConfig(batch_size=8).create(), logging.NoopAdapterFactory()
    with contextlib.suppress(_ReachedError):
        algorithm.fit(dataset, n_steps=1, n_steps_per_epoch=1, show_progress=False, logger_adapter=logger)
    chain = [place for place in reversed(stack) if place.startswith(package)]
    while chain and not chain[0].endswith(" fit"):
        chain.pop(0)
    return chain


def _place(frame: FrameType) -> str:
    words = Path(frame.f_code.co_filename).parts
    for package in ("birl", "d3rlpy"):
        if package in words:
            inner = words[len(words) - words[::-1].index(package) - 1 :]
            return f"{'/'.join(inner)}:{frame.f_lineno}"
    return "elsewhere"


# ---------------------------------------------------------------------------------------------------------- report


def figures(package: str) -> None:
    """Print all figures of one package."""
    folder = package_folder(package)
    texts = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    print(f"# {package}: {len(texts)} files, {sum(text.count(chr(10)) for text in texts.values())} lines\n")
    print("| algorithm file | lines | with code |\n|---|---|---|")
    sizes = []
    for name, text in texts.items():
        words = Path(name).parts
        if words[0] == "algos" and words[-1] not in ("__init__.py", "base.py"):
            sizes.append((text.count("\n"), code_lines(text)))
            print(f"| {name} | {sizes[-1][0]} | {sizes[-1][1]} |")
    total, code = (sum(column) for column in zip(*sizes, strict=True))
    print(f"| all {len(sizes)} | {total} | {code} |\n")
    for with_imports in (True, False):
        repeated, count = repeated_lines(texts, with_imports=with_imports)
        lines = sum(map(len, repeated.values()))
        what = "all lines" if with_imports else "without imports and __all__"
        print(f"in runs of {RUN} or more that stand elsewhere too, {what}: {lines} of {count} = {lines / count:.2%}")
        for name, numbers in sorted(repeated.items(), key=lambda item: -len(item[1]))[:5]:
            print(f"    {name}: {len(numbers)}, from line {min(numbers)}")
    with contextlib.redirect_stdout(io.StringIO()):  # d3rlpy logs there
        chain = hops(package)
    files = [place.split(":")[0] for place in chain]
    changes = sum(one != other for one, other in itertools.pairwise(files))
    print(f"\nfrom fit to torch's computing of a gradient: {len(chain)} calls, {changes} of them into another file")
    for depth, place in enumerate(chain):
        print(f"    {depth} {place}")
    print(f"    {len(chain)} torch\n", flush=True)


def main() -> None:
    """Print the figures of birl, and of d3rlpy where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="interpreter that has d3rlpy")
    parser.add_argument("--package", choices=["birl", "d3rlpy"], default="birl", help=argparse.SUPPRESS)
    options = parser.parse_args()
    figures(options.package)
    if options.peer_python:
        command = [options.peer_python, os.path.abspath(__file__), "--package", "d3rlpy"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
