"""Hooks: what is called after steps of a run, with a rhythm and a state of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

from birl.checks import check
from birl.errors import ConfigError
from birl.logging import LoggerAdapter
from birl.run.protocols import Callback, Stateful


class Hook:
    """Base of objects for ``callback=``: called after every ``every``-th step. A function does, too, at every step.

    With ``get_state`` and ``set_state`` it is a part of the run's checkpoint, and goes on from there.

    Args:
        every: number of steps between two calls, >= 1.

    Attributes:
        adapter: what the run writes to, set before the first call: `LoggerAdapter.write_histogram` and its siblings.
    """

    adapter: LoggerAdapter

    def __init__(self, every: int = 1) -> None:
        self.every = check("every", every, int, low=1)

    def __call__(self, algo: Any, epoch: int, step: int) -> object:
        """Called with the number of the epoch and of the steps made so far. The run ends if it returns ``False``."""
        raise NotImplementedError


class Hooks(NamedTuple):
    """The hooks of a run, each with its rhythm."""

    hooks: tuple[Callback, ...]
    every: tuple[int, ...]

    @classmethod
    def of(cls, given: Any) -> Hooks:
        """What users give: nothing, a function or `Hook`, or a list of them.

        Raises:
            ConfigError: for anything else.
        """
        listed = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
        for each in listed:
            if not callable(each) or isinstance(each, type):
                raise ConfigError(
                    f"callback is {each!r:.80}; it must be a function (algo, epoch, step), a birl.run.Hook, or a list "
                    "of them"
                )
        return cls(tuple(listed), tuple(check("every", getattr(each, "every", 1), int, low=1) for each in listed))

    def parts(self) -> dict[str, Stateful]:
        """Those with a state, by names for checkpoints."""
        named: dict[str, Any] = {f"hook {place} {type(each).__name__}": each for place, each in enumerate(self.hooks)}
        return {name: each for name, each in named.items() if isinstance(each, Stateful)}

    def begin(self, adapter: LoggerAdapter) -> None:
        """Tell hooks where the run writes."""
        for each in self.hooks:
            if isinstance(each, Hook):
                each.adapter = adapter

    def call(self, algo: Any, epoch: int, step: int) -> list[object]:
        """Call those whose step it is; their answers."""
        due = zip(self.hooks, self.every, strict=True)
        return [hook(algo, epoch, step) for hook, every in due if step % every == 0]
