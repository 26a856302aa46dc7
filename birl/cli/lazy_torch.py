"""PyTorch, imported on first use: most of the time of commands that need no networks would be spent on its import."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


class _ImportedOnFirstUse(ModuleType):
    """A module that executes its code when its first attribute is read.

    Importing PyTorch takes more than a second. Modules that commands such as ``birl data`` need import it by
    ``import torch``, and use it only in functions for tensors. `importlib.util.LazyLoader` does not help in Python
    3.11, where a second ``import torch`` reads an attribute.
    """

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        assert spec is not None and spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__path__ = list(spec.submodule_search_locations or ())
        spec.loader.exec_module(self)
        return getattr(self, name)


def _import_on_first_use(name: str) -> None:
    """Put a package into ``sys.modules`` that is imported on first use."""
    spec = find_spec(name)
    assert spec is not None
    module = module_from_spec(spec)
    del module.__path__  # which is read, and thus imports the package, when a module in it is imported
    module.__class__ = _ImportedOnFirstUse
    sys.modules[name] = module


if "torch" not in sys.modules:
    _import_on_first_use("torch")
