"""Callbacks and evaluators: what they know of the run, and hooks with their own interval and state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from birl.checks import check
from birl.envs import EndedEpisode
from birl.errors import ConfigError
from birl.files.state_restore import check_array
from birl.logging import LoggerAdapter
from birl.run.protocols import Callback, Stateful
from birl.types import State


class Run:
    """A training run, as its callbacks and evaluators see it.

    A callback or hook receives it as the fourth argument and an evaluator as the third, if they have such an argument
    without a default value, or one called ``run``::

        def stop_without_improvement(algo, epoch, step, run):
            if run.best is not None and step - run.best["step"] >= 50_000:
                run.stop("no improvement in 50,000 steps")

    Attributes:
        step: number of steps made so far.
        n_steps: number of steps of the whole run.
        n_steps_per_epoch: length of an epoch.
        metrics: metrics of the newest epoch, by name. Evaluators see those of the ending epoch so far.
        scores: score of each epoch that has one, by the step at its end; see ``score`` in `Options`.
        best: the best score so far: its ``metric``, ``score``, ``step`` and ``direction``; ``None`` if there is none.
        episode_returns: undiscounted returns of the training episodes that ended in the current epoch.
        episode_lengths: their lengths, in the same order.
        episode_successes: their successes, ``info["is_success"]``, in the same order; NaN where there is none.
        adapter: the run's logger adapter, for `LoggerAdapter.write_histogram` and others.
        stop_reason: why the run ends; empty if it does not.
    """

    adapter: LoggerAdapter

    def __init__(self, n_steps: int, n_steps_per_epoch: int) -> None:
        self.n_steps, self.n_steps_per_epoch, self.step = n_steps, n_steps_per_epoch, 0
        self.metrics: dict[str, float] = {}
        self.scores: dict[int, float] = {}
        self.best: Mapping[str, Any] | None = None
        self.episode_returns: list[float] = []
        self.episode_lengths: list[int] = []
        self.episode_successes: list[float] = []
        self.stop_reason = ""

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 1. Epochs end at multiples of their length, whatever ``n_steps`` is."""
        return max(self.step - 1, 0) // self.n_steps_per_epoch + 1

    @property
    def score(self) -> float | None:
        """The newest score; ``None`` if there is none."""
        return next(reversed(self.scores.values()), None)

    def stop(self, reason: str = "stop() was called") -> None:
        """End the run: after this step, or after this epoch if an evaluator calls it. Its model is saved."""
        self.stop_reason = self.stop_reason or str(reason)

    def add_episodes(self, episodes: Sequence[EndedEpisode]) -> None:
        """Add training episodes that ended."""
        for value, length, success in episodes:
            self.episode_returns.append(value)
            self.episode_lengths.append(length)
            self.episode_successes.append(success)

    def start_epoch(self) -> None:
        """Start a new epoch, in which no episode has ended."""
        self.episode_returns, self.episode_lengths, self.episode_successes = [], [], []

    def get_state(self) -> State:
        """Return the metrics, scores and episodes."""
        return {
            "metrics": dict(self.metrics),
            "scores": {str(step): score for step, score in self.scores.items()},
            "returns": np.array(self.episode_returns, np.float64),
            "lengths": np.array(self.episode_lengths, np.int64),
            "successes": np.array(self.episode_successes, np.float64),
        }

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        metrics = {str(name): float(value) for name, value in state["metrics"].items()}
        scores = {int(step): float(score) for step, score in state["scores"].items()}
        returns = check_array(state["returns"], (None,), np.float64, "returns")
        lengths = check_array(state["lengths"], returns.shape, np.int64, "lengths")
        successes = check_array(state["successes"], returns.shape, np.float64, "successes")
        self.metrics, self.scores = metrics, scores
        self.episode_returns, self.episode_lengths = returns.tolist(), lengths.tolist()
        self.episode_successes = successes.tolist()


def with_run(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a function of ``count`` arguments and a `Run`, which passes the run on if ``function`` takes it.

    Raises:
        ConfigError: if the function cannot be called with ``count`` arguments or one more, or is a generator function
            or a coroutine function, whose calls run nothing.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    for each in (function, type(function).__call__):
        if inspect.isgeneratorfunction(each) or inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            word = "yield" if inspect.isgeneratorfunction(each) else "async"
            raise ConfigError(
                f"{name} is a function with {word}, which does not run when it is called; it must be a plain "
                f"function: define it without {word}"
            )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # such as some functions of C extensions
        return lambda *arguments: function(*arguments[:count])
    parameters = list(signature.parameters.values())
    named = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if "run" in {each.name for each in parameters if each.kind is each.KEYWORD_ONLY or each in named[count:]}:
        return lambda *arguments: function(*arguments[:count], run=arguments[count])
    starred = len(named) == count and any(each.kind is each.VAR_POSITIONAL for each in parameters)
    required = len(named) > count and named[count].default is inspect.Parameter.empty
    takes = starred or required
    try:
        signature.bind(*range(count + takes))
    except TypeError as error:
        names = ", ".join(("algo", "epoch", "step") if count == 3 else ("algo", "dataset"))
        raise ConfigError(
            f"{name}{signature} cannot be called with ({names}) or ({names}, run): {error}. Give it these arguments"
        ) from error
    return function if takes else lambda *arguments: function(*arguments[:count])


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
        """React to a step, given the epoch number and the number of steps so far. Return ``False`` to end the run.

        A subclass may add an argument ``run``, a `Run`.
        """
        raise NotImplementedError


class Hooks(NamedTuple):
    """The callbacks of a run, each with its interval."""

    hooks: tuple[Callback, ...]
    every: tuple[int, ...]
    calls: tuple[Callable[..., object], ...]

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
        every = tuple(check("every", getattr(each, "every", 1), int, low=1) for each in listed)
        return cls(tuple(listed), every, tuple(with_run(each, 3) for each in listed))

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

    def call(self, algo: Any, run: Run) -> list[object]:
        """Call the hooks that are due, and return their results."""
        epoch, step = run.epoch, run.step
        due = zip(self.calls, self.every, strict=True)
        return [call(algo, epoch, step, run) for call, every in due if step % every == 0]
