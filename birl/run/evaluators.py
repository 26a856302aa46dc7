"""Users' evaluators: their names, their results, and the direction of a score."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, SupportsFloat, SupportsIndex

from birl.checks import Allowed
from birl.dataset import ReplayBufferBase
from birl.errors import ConfigError, EvaluationWarning, did_you_mean
from birl.logging.file_adapter import MAX_NAME
from birl.metrics import EnvironmentEvaluator
from birl.run.hooks import Run, with_run
from birl.run.options import DIRECTIONS
from birl.run.protocols import Evaluator


def evaluate_with(
    name: str, evaluator: Evaluator, algorithm: object, dataset: ReplayBufferBase | None, run: Run
) -> dict[str, float]:
    """Return the metrics of an evaluator: ``name``, or several, where ``mean`` is renamed to ``name``.

    Args:
        name: its name.
        evaluator: the evaluator.
        algorithm, dataset, run: its arguments.

    Errors of the evaluator or its environment get a note with the evaluator's name.
    """
    try:
        result = call_evaluator(evaluator, algorithm, dataset, run)
    except Exception as error:
        error.add_note(f"This was in the evaluator {name!r}, not in the steps or updates of training.")
        raise
    parts = dict(result) if isinstance(result, Mapping) else {"mean": result}
    names = {key: name if key == "mean" else f"{name}_{key}" for key in parts}
    return {names[key]: metric_value(names[key], value) for key, value in parts.items()}


def call_evaluator(evaluator: Evaluator, algorithm: object, dataset: object, run: Run) -> object:
    """Call an evaluator, and add the success rate to the return that an `EnvironmentEvaluator` returns."""
    result: object = with_run(evaluator, 2)(algorithm, dataset, run)
    rate = evaluator.success_rate if isinstance(evaluator, EnvironmentEvaluator) else None
    return result if rate is None or isinstance(result, Mapping) else {"mean": result, "success_rate": rate}


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


TRAINING_SCORES: Final = ("rollout_return", "success_rate")
"""Metrics of training episodes that rank models."""

RESERVED_NAMES: Final = ("epoch", "step", "gradients", *TRAINING_SCORES)
"""Names of metrics that evaluators cannot have."""


def check_names(evaluators: Mapping[str, Evaluator]) -> None:
    """Raise `ConfigError` for an evaluator with other arguments, a name that no file can have, or another direction."""
    for name, evaluator in evaluators.items():
        with_run(evaluator, 2)  # checks its arguments
        own = getattr(evaluator, "direction", None)
        Allowed(str, choices=DIRECTIONS, optional=True).check(f"direction of the evaluator {name!r:.80}", own)
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


_LOWER_IS_BETTER: Final = frozenset({
    "brier", "collision", "cost", "crash", "delay", "diff", "difference", "distance", "error", "failure", "kl", "loss",
    "mae", "mse", "nll", "penalties", "penalty", "perplexity", "regret", "risk", "rmse", "violation",
})  # fmt: skip
"""Words of the names of metrics whose lower values are better; their plurals count, too."""
_WORD: Final = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""A word of names such as ``td_error``, ``val.loss`` and ``absTDError``."""


class Score(NamedTuple):
    """The metric that ranks models.

    Attributes:
        metric: its name.
        evaluator: name of the evaluator that returns it; ``None`` if training does.
    """

    metric: str
    evaluator: str | None

    @classmethod
    def find(cls, name: str, evaluators: Mapping[str, Evaluator], others: Sequence[str]) -> Score:
        """Return the score of this name: an evaluator, ``<evaluator>_<part>`` or ``<evaluator>/<part>``, or another.

        Parts of users' evaluators are not known before they are called: `check_found` is for these.

        Raises:
            ConfigError: if there is no such metric.
        """
        if name in evaluators or name in others:
            return cls(name, name if name in evaluators else None)
        known = [*evaluators, *others]
        for evaluator in sorted(evaluators, key=len, reverse=True):
            part = name.removeprefix(evaluator)[1:]
            if part and name[: -len(part)] in (f"{evaluator}_", f"{evaluator}/"):
                parts = getattr(evaluators[evaluator], "parts", None)
                if parts is None or part in parts or part == "mean":
                    return cls(evaluator if part == "mean" else f"{evaluator}_{part}", evaluator)
                known += [f"{evaluator}_{each}" for each in parts]
        raise ConfigError(
            f"score is {name!r:.80}; it must be the name of a metric that ranks models: "
            + (
                f"one of {', '.join(map(repr, known))}{did_you_mean(name, known)}"
                if known
                else "give an evaluator, evaluators={name: …}"
            )
        )

    def check_found(self, evaluator: str, results: Mapping[str, float]) -> None:
        """Raise `ConfigError` if the results of an evaluator do not have the part that is the score."""
        if evaluator == self.evaluator and self.metric not in results:
            raise ConfigError(
                f"the evaluator {evaluator!r} returned no {self.metric!r}, which is the score: give one of "
                f"{', '.join(map(repr, results))} as score{did_you_mean(self.metric, results)}"
            )

    def default_direction(self, evaluators: Mapping[str, Evaluator]) -> str:
        """Return its direction: that of the evaluator if it has one, else what the name says."""
        own = getattr(evaluators.get(self.evaluator or ""), "direction", None)
        return str(own) if own in DIRECTIONS else direction_of(self.metric)


def direction_of(metric: str) -> str:
    """Return what the name of a metric says about its direction."""
    words = {word.lower() for word in _WORD.findall(metric)}
    singular = {word.removesuffix(ending) for word in words for ending in ("", "s", "es")}
    lower = bool(_LOWER_IS_BETTER & singular) and "reduction" not in words
    return DIRECTIONS[lower != bool(words & {"neg", "negative"})]
