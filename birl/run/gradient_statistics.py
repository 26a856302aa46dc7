"""Statistics of gradients over many updates, kept on the device until they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from birl.types import GRADIENT_STATISTICS, State


class GradientStatistics:
    """Statistics of each parameter's gradient: the smallest and the largest number, the mean of means and of stds.

    They are kept on the device until they are read. A parameter that two steps train is called
    ``<step>.<parameter>``.
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
            # those of a checkpoint come from the CPU
            extremes = torch.minimum(before["extremes"].to(extremes.device), extremes)
            sums, count = before["sums"].to(sums.device) + sums, before["count"] + count
        self._steps[step] = {"names": list(names), "extremes": extremes, "sums": sums, "count": count}

    def take(self) -> dict[str, dict[str, float]]:
        """Read the statistics by parameter, and reset them."""
        result: dict[str, dict[str, float]] = {}
        every = [name for own in self._steps.values() for name in own["names"]]
        for step, own in self._steps.items():
            rows = torch.cat([own["extremes"], own["sums"] / own["count"]], -1).tolist()
            for name, (low, high, *rest) in zip(own["names"], rows, strict=True):
                label = name if every.count(name) == 1 else f"{step}.{name}"
                result[label] = dict(zip(GRADIENT_STATISTICS, (low, -high, *rest), strict=True))
        self._steps = {}
        return result

    def get_state(self) -> State:
        """The statistics since the last reading."""
        return dict(self._steps)

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        steps = {}
        for step, own in state.items():
            names, count = [str(name) for name in own["names"]], int(own["count"])
            shape = (len(names), 2)  # reshaping checks the number of values
            extremes, sums = (own[key].reshape(shape).to(torch.float32) for key in ("extremes", "sums"))
            steps[step] = {"names": names, "extremes": extremes, "sums": sums, "count": count}
        self._steps = steps
