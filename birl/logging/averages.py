"""Running means of metrics and durations, and running statistics of gradients, without waiting for the device."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from birl.checks import check
from birl.errors import CorruptFileError, NonFiniteError, StalledError
from birl.types import GRADIENT_STATISTICS, State

if TYPE_CHECKING:
    from torch import Tensor

FAILED_SEARCH: Final = "failed_search"
"""Metric that is 1 if the line search of an update found no step although there was something to learn."""

MOST_FAILED_SEARCHES: Final = 10
"""Number of failed searches in a row that ends a run."""


class Averages:
    """Means of metrics over many steps.

    Tensors are summed on their device and read in `check`, so a step costs one addition. A sum is finite only if all of
    its terms are, so a check of the sum checks every step.
    """

    def __init__(self) -> None:
        self._total: dict[str, float] = {}
        self._count: dict[str, int] = {}
        self._sums: dict[str, Tensor] = {}
        self._checked_at = 0
        self._failed = self._searches = 0  # failed searches in a row up to the last check; all searches since then

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Add the metrics of one step."""
        sums, values = [], []
        self._searches += FAILED_SEARCH in metrics
        for name, value in metrics.items():
            if not isinstance(value, torch.Tensor):
                self.add_number(name, value)
                continue
            self._count[name] = self._count.get(name, 0) + 1
            if name in self._sums:
                if self._sums[name].device != value.device:  # a resumed sum
                    self._sums[name] = self._sums[name].to(value.device)
                sums.append(self._sums[name])
                values.append(value.detach() if value.requires_grad else value)
            else:
                self._sums[name] = value.detach().to(torch.float32, copy=True)
        if sums:
            torch._foreach_add_(sums, values)

    def add_number(self, name: str, value: float) -> None:
        """Add the value of one metric of one step."""
        self._count[name] = self._count.get(name, 0) + 1
        self._total[name] = self._total.get(name, 0.0) + value

    def add_many(self, metrics: Mapping[str, Tensor]) -> None:
        """Add metrics ``[k]`` of ``k`` steps each."""
        self.add({name: values.sum() for name, values in metrics.items()})
        for name, values in metrics.items():
            self._count[name] += len(values) - 1

    def check(self, step: int, flush: bool = True) -> None:
        """Read the sums from the device, and raise an error if one is not finite.

        Args:
            step: current total step, for the message.
            flush: whether to reset the sums on the device, which keeps them exact over long epochs.

        Raises:
            NonFiniteError: if a sum is not finite; the message names the metrics and the range of steps.
            StalledError: if at least ten searches in a row have failed. A successful search resets the count at the
                next check.
        """
        values = {name: float(value) for name, value in self._sums.items()}
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise NonFiniteError(
                f"{', '.join(bad)} became NaN or infinite between step {self._checked_at + 1} and step {step}. "
                "Training has stopped; a checkpoint, if there is one, is from before. Lower the learning rate, clip "
                "gradients (clip_grad_norm of the optimiser factory), or scale observations and rewards"
            )
        if flush:
            for name, value in values.items():
                self._total[name] = self._total.get(name, 0.0) + value
            self._sums.clear()
            self._checked_at = step
            if self._searches:
                all_failed = values[FAILED_SEARCH] == self._searches
                self._failed, self._searches = (self._failed + self._searches) if all_failed else 0, 0
            failed = self._failed
            if failed >= MOST_FAILED_SEARCHES:
                self._failed = 0  # a caller that continues gets the next error after ten more
                raise StalledError(
                    f"{failed} line searches in a row failed, up to step {step}: the policy does not change. If its "
                    "return is good, training has converged; else give a smaller max_kl, more "
                    "conjugate_gradient_damping or longer rollouts"
                )

    def means(self) -> dict[str, float]:
        """Return the means of all checked values, in the order in which the names were first added."""
        return {name: self._total.get(name, math.nan) / count for name, count in self._count.items()}

    def clear(self) -> None:
        """Reset all means."""
        self._total.clear()
        self._count.clear()
        self._sums.clear()
        self._searches = 0

    def get_state(self) -> State:
        """Return sums and counts. Sums on the device are not flushed, because that would change the means."""
        return {
            "total": dict(self._total),
            "count": dict(self._count),
            "sums": {name: value.clone() for name, value in self._sums.items()},
            "checked_at": self._checked_at,
            "failed": self._failed,
            "searches": self._searches,
        }

    def set_state(self, state: State) -> None:
        """Restore the result of `get_state`; the sums stay on the CPU until the next step."""
        total = {name: float(value) for name, value in state["total"].items()}
        what = "a count of steps"
        count = {name: check(what, value, int, low=1, error=CorruptFileError) for name, value in state["count"].items()}
        sums = {name: value.reshape(()).to(torch.float32) for name, value in state["sums"].items()}
        names = ("failed", "searches")
        failed, searches = (check(name, state[name], int, low=0, error=CorruptFileError) for name in names)
        if searches and FAILED_SEARCH not in sums:
            raise CorruptFileError(f"the checkpoint counts {searches} line searches and has no sum of them: use a copy")
        self._total, self._count, self._sums, self._checked_at = total, count, sums, int(state["checked_at"])
        self._failed, self._searches = failed, searches


class GradientStatistics:
    """Statistics of each parameter's gradient over many updates: minimum, maximum, mean, and mean standard deviation.

    They stay on the device until they are read. A parameter that two steps train is named ``<step>.<parameter>``.
    """

    def __init__(self) -> None:
        # by step: names of parameters, minimum and negative maximum [n, 2], sums of mean and std [n, 2], updates
        self._steps: dict[str, dict[str, Any]] = {}

    def add(self, step: str, names: Sequence[str], values: Tensor) -> None:
        """Add the statistics of one update ``[n, 4]``, or of several ``[k, n, 4]``."""
        values = values.reshape(-1, len(names), len(GRADIENT_STATISTICS))
        low, high, rest = values[..., 0], values[..., 1], values[..., 2:]
        extremes, sums, count = torch.stack([low, -high], -1).amin(0), rest.sum(0), len(values)
        if (before := self._steps.get(step)) is not None:
            # the statistics of a checkpoint are on the CPU
            extremes = torch.minimum(before["extremes"].to(extremes.device), extremes)
            sums, count = before["sums"].to(sums.device) + sums, before["count"] + count
        self._steps[step] = {"names": list(names), "extremes": extremes, "sums": sums, "count": count}

    def pop(self) -> dict[str, dict[str, float]]:
        """Read the statistics by parameter, and reset them."""
        result: dict[str, dict[str, float]] = {}
        every = [name for statistics in self._steps.values() for name in statistics["names"]]
        for step, statistics in self._steps.items():
            rows = torch.cat([statistics["extremes"], statistics["sums"] / statistics["count"]], -1).tolist()
            for name, (low, high, *rest) in zip(statistics["names"], rows, strict=True):
                label = name if every.count(name) == 1 else f"{step}.{name}"
                result[label] = dict(zip(GRADIENT_STATISTICS, (low, -high, *rest), strict=True))
        self._steps = {}
        return result

    def get_state(self) -> State:
        """Return the statistics since the last `pop`."""
        return dict(self._steps)

    def set_state(self, state: State) -> None:
        """Restore the result of `get_state`."""
        steps = {}
        for step, statistics in state.items():
            names, count = [str(name) for name in statistics["names"]], int(statistics["count"])
            shape = (len(names), 2)  # reshaping checks the number of values
            extremes, sums = (statistics[key].reshape(shape).to(torch.float32) for key in ("extremes", "sums"))
            steps[step] = {"names": names, "extremes": extremes, "sums": sums, "count": count}
        self._steps = steps


class Timer:
    """Context that adds its duration, divided by a number of steps, to a metric."""

    __slots__ = ("_averages", "_name", "_start", "_steps")

    def __init__(self, averages: Averages, name: str, steps: int) -> None:
        self._averages, self._name, self._start, self._steps = averages, name, 0.0, steps

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._averages.add_number(self._name, (time.perf_counter() - self._start) / self._steps)
