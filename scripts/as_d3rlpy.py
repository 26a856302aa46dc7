"""Run a program or tests written for d3rlpy on birl, as they stand: ``python scripts/as_d3rlpy.py -m pytest tests``.

``import d3rlpy`` and ``from d3rlpy.x.y import z`` give birl's objects: of ``birl.x.y``, or of the nearest package above
that has the name. A name that birl does not have is a class that raises `NameError` once it is used, so that a file of
tests is not lost for one import; such names are listed at the end. To move a program for good, see docs/moving.md.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from birl.habits import name_hint

MISSING: dict[str, None] = {}


class _Missing(type):
    """A name that birl does not have."""

    path: str

    def __call__(cls, *args: Any, **options: Any) -> Any:
        raise NameError(cls.explain())

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NameError(cls.explain())

    def explain(cls) -> str:
        """Return the text of the error."""
        hint = name_hint(cls.__name__) or name_hint(cls.path.split(".")[1])
        return f"birl has no {cls.path}{hint or ': see docs/moving.md'}"

    def __or__(cls, other: Any) -> Any:  # annotations
        return cls

    __ror__ = __or__


class _Module(types.ModuleType):
    """``d3rlpy.x.y``, which is ``birl.x.y`` if there is one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        parts = self.__name__.split(".")[1:]
        for length in range(len(parts), -1, -1):
            module = _birls(".".join(["birl", *parts[:length]]))
            found = getattr(module, name, None)
            if isinstance(found, types.ModuleType) and found.__name__.startswith("birl."):
                return importlib.import_module(f"{self.__name__}.{name}")
            if found is not None:
                return found
        path = f"{self.__name__}.{name}"
        MISSING[path] = None
        return _Missing(name, (), {"path": path})


def _birls(path: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and (path + ".").startswith(error.name + "."):
            return None
        raise


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] != "d3rlpy":
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        known = _birls("birl" + module.__name__.removeprefix("d3rlpy"))
        if hasattr(known, "__all__"):
            module.__dict__["__all__"] = list(known.__all__)  # type: ignore[union-attr]


def _tell() -> None:
    if MISSING:
        print(f"birl has none of these names: {', '.join(sorted(MISSING))}", file=sys.stderr)


def main(words: Sequence[str]) -> None:
    """``-m MODULE …`` or ``PROGRAM.py …``, as Python takes them."""
    if not words or words[0] in ("-h", "--help"):
        sys.exit(__doc__)
    sys.meta_path.insert(0, _Finder())
    atexit.register(_tell)
    module = words[0] == "-m" and len(words) > 1
    sys.argv = list(words[1:] if module else words)
    sys.path[0] = "" if module else str(Path(words[0]).resolve().parent)
    if module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
