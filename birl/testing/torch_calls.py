"""Interception of calls to torch's functions, on which several checks are built."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch.overrides import TorchFunctionMode


class TorchCalls(TorchFunctionMode):
    """Pass every call to a torch function inside the context to `call`."""

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Return the result of a call of ``func``."""
        raise NotImplementedError

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        return self.call(func, args, kwargs or {})
