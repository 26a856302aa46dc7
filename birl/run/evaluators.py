"""Users' evaluators: their names, their results, and the direction of a score."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Final, SupportsFloat, SupportsIndex

from birl.dataset import ReplayBufferBase
from birl.errors import ConfigError, EvaluationWarning
from birl.logging.file_adapter import MAX_NAME
from birl.run.hooks import Run
from birl.run.options import DIRECTIONS
from birl.run.protocols import Evaluator


def evaluate_with(
    name: str, evaluator: Callable[..., object], algorithm: object, dataset: ReplayBufferBase | None, run: Run
) -> dict[str, float]:
    """Return the metrics of an evaluator: ``name``, or several, where ``mean`` is renamed to ``name``.

    Args:
        name: its name.
        evaluator: the result of `birl.run.hooks.with_run`.
        algorithm, dataset, run: its arguments.

    Errors of the evaluator or its environment get a note with the evaluator's name.
    """
    try:
        result = evaluator(algorithm, dataset, run)
    except Exception as error:
        error.add_note(f"This was in the evaluator {name!r}, not in the steps or updates of training.")
        raise
    if not isinstance(result, Mapping):
        return {name: metric_value(name, result)}
    return {
        name if key == "mean" else f"{name}_{key}": metric_value(f"{name}_{key}", value)
        for key, value in result.items()
    }


def metric_value(name: str, value: object) -> float:
    """Return the result of an evaluator as a number: that of a number, or of an array or tensor without dimensions.

    Raises:
        ConfigError: for anything else.
    """
    shape = getattr(value, "shape", ())
    if isinstance(value, SupportsFloat | SupportsIndex) and tuple(shape) == ():
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(value)
            if not math.isfinite(number):
                warnings.warn(
                    f"the evaluator {name!r} returned {number}, which is logged and does not rank the model",
                    EvaluationWarning,
                    stacklevel=2,
                )
            return number
    shown = f"an array of shape {tuple(shape)}" if shape else f"{value!r:.80}"
    advice = "return its mean" if shape else "does it end without a return?" if value is None else "return float(…)"
    raise ConfigError(
        f"the evaluator {name!r} returned {shown}; it must return a number, or a dict of numbers by name: {advice}"
    )


RESERVED_NAMES: Final = ("epoch", "step", "gradients", "rollout_return")
"""Names of metrics that evaluators cannot have."""


def check_names(evaluators: Mapping[str, Evaluator]) -> None:
    """Raise `ConfigError` for a name of an evaluator that cannot name a metric and its file."""
    for name in evaluators:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME:
            raise ConfigError(
                f"evaluators has the name {name!r:.80}; it must be a printable text of 1 to {MAX_NAME} characters, "
                "which names the metric and its file"
            )
        if name in RESERVED_NAMES:
            raise ConfigError(
                f"evaluators has the name {name!r}, which is a column or metric of every run: give another name"
            )


def check_new_names(evaluator: str, results: Mapping[str, float], metrics: Mapping[str, float]) -> None:
    """Raise `ConfigError` if a result of an evaluator has the name of another metric of the epoch."""
    files = {name.replace("/", "_") for name in metrics}
    taken = [name for name in results if name.replace("/", "_") in files or name in RESERVED_NAMES]
    if taken:
        raise ConfigError(
            f"the evaluator {evaluator!r} returned {', '.join(map(repr, taken))}, the name of another metric of the "
            "run: give the evaluator another name"
        )


_LOWER_IS_BETTER: Final = frozenset({"cost", "diff", "difference", "error", "loss", "mae", "mse", "regret", "rmse"})
"""Words of the names of metrics whose lower values are better."""


def default_direction(score: str | None, evaluators: Mapping[str, Evaluator]) -> str:
    """Return the direction of a score: that of the evaluator if it has one, else what its name says."""
    own = getattr(evaluators.get(score or ""), "direction", None)
    if own in DIRECTIONS:
        return str(own)
    return "minimize" if _LOWER_IS_BETTER & set((score or "").lower().split("_")) else "maximize"
