"""Statistics of gradients over many updates, kept on the device until they are read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from birl.types import GRADIENT_STATISTICS, State


class GradientStatistics:
    """Statistics of each parameter's gradient: the smallest and the largest number, the mean of means and of stds.

    They are kept on the device until they are read. A parameter that two steps train is called
    ``<step>.<parameter>``.
    """

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._extremes: dict[str, Tensor] = {}  # by step: minimum and negative maximum [n, 2]
        self._sums: dict[str, Tensor] = {}  # by step: mean and std [n, 2]
        self._counts: dict[str, int] = {}

    def add(self, step: str, names: Sequence[str], values: Tensor) -> None:
        """Add the statistics of one update ``[n, 4]``, or of several ``[k, n, 4]``."""
        values = values.reshape(-1, len(names), len(GRADIENT_STATISTICS))
        low, high, rest = values[..., 0], values[..., 1], values[..., 2:]
        extremes, sums = torch.stack([low, -high], -1).amin(0), rest.sum(0)
        if step in self._names:
            # those of a checkpoint come from the CPU
            extremes = torch.minimum(self._extremes[step].to(extremes.device), extremes)
            sums = self._sums[step].to(sums.device) + sums
        self._names[step], self._extremes[step], self._sums[step] = list(names), extremes, sums
        self._counts[step] = self._counts.get(step, 0) + len(values)

    def take(self) -> dict[str, dict[str, float]]:
        """Read the statistics by parameter, and reset them."""
        result: dict[str, dict[str, float]] = {}
        every = [name for names in self._names.values() for name in names]
        for step, names in self._names.items():
            rows = torch.cat([self._extremes[step], self._sums[step] / self._counts[step]], -1).tolist()
            for name, (low, high, *rest) in zip(names, rows, strict=True):
                label = name if every.count(name) == 1 else f"{step}.{name}"
                result[label] = dict(zip(GRADIENT_STATISTICS, (low, -high, *rest), strict=True))
        self.__init__()  # type: ignore[misc]
        return result

    def get_state(self) -> State:
        """The statistics since the last reading."""
        return {
            step: {
                "names": list(names),
                "extremes": self._extremes[step],
                "sums": self._sums[step],
                "count": self._counts[step],
            }
            for step, names in self._names.items()
        }

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self._names = {step: list(own["names"]) for step, own in state.items()}
        self._extremes = {step: own["extremes"] for step, own in state.items()}
        self._sums = {step: own["sums"] for step, own in state.items()}
        self._counts = {step: own["count"] for step, own in state.items()}
