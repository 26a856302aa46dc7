"""Hooks: callbacks with their own interval and state."""

from __future__ import annotations

from typing import Any, NamedTuple

from birl.checks import check
from birl.errors import ConfigError
from birl.logging import LoggerAdapter
from birl.run.protocols import Callback, Stateful


class Hook:
    """Base class of objects for ``callback=`` that are called after every ``every``-th step.

    A plain function also works; it is called after every step. If a hook has ``get_state`` and ``set_state``, its state
    is a part of the run's checkpoint.

    Args:
        every: number of steps between two calls, >= 1.

    Attributes:
        adapter: the run's logger adapter, set before the first call, for `LoggerAdapter.write_histogram` and others.
    """

    adapter: LoggerAdapter

    def __init__(self, every: int = 1) -> None:
        self.every = check("every", every, int, low=1)

    def __call__(self, algo: Any, epoch: int, step: int) -> object:
        """React to a step, given the epoch number and the number of steps so far. Return ``False`` to end the run."""
        raise NotImplementedError


class Hooks(NamedTuple):
    """The callbacks of a run, each with its interval."""

    hooks: tuple[Callback, ...]
    every: tuple[int, ...]

    @classmethod
    def of(cls, callback: object) -> Hooks:
        """Make the hooks of ``callback=``: ``None``, a function or `Hook`, or a list of them.

        Raises:
            ConfigError: for anything else.
        """
        listed: list[Any] = (
            [] if callback is None else list(callback) if isinstance(callback, list | tuple) else [callback]
        )
        for each in listed:
            if not callable(each) or isinstance(each, type):
                raise ConfigError(
                    f"callback is {each!r:.80}; it must be a function (algo, epoch, step), a birl.run.Hook, or a list "
                    "of them"
                )
        return cls(tuple(listed), tuple(check("every", getattr(each, "every", 1), int, low=1) for each in listed))

    def parts(self) -> dict[str, Stateful]:
        """Return the hooks with a state, by their names in checkpoints."""
        named: dict[str, object] = {
            f"hook {place} {type(each).__name__}": each for place, each in enumerate(self.hooks)
        }
        return {name: each for name, each in named.items() if isinstance(each, Stateful)}

    def start(self, adapter: LoggerAdapter) -> None:
        """Set the adapter of the hooks."""
        for each in self.hooks:
            if isinstance(each, Hook):
                each.adapter = adapter

    def call(self, algo: Any, epoch: int, step: int) -> list[object]:
        """Call the hooks that are due, and return their results."""
        due = zip(self.hooks, self.every, strict=True)
        return [hook(algo, epoch, step) for hook, every in due if step % every == 0]
