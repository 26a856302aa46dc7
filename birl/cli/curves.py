"""Reading of the metrics of run folders. It needs no PyTorch, see `birl.cli`."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from birl.cli.common import several_runs
from birl.errors import FileError, ForeignFileError
from birl.types import EPISODES, GRADIENT_STATISTICS, Array

RETURNS: Final = ("environment", "evaluation", "rollout_return")
"""Metrics that are returns of episodes."""

_METRIC: Final = 3
_GRADIENT: Final = ["epoch", "step", *GRADIENT_STATISTICS]
_GRADIENT_SUFFIX: Final = "_grad"


@dataclass(frozen=True)
class Curve:
    """The contents of a CSV file: a metric, or the statistics of a parameter's gradient.

    Attributes:
        epoch, step: epochs and steps, ``[n]``.
        value: metric, or mean of the gradient, ``[n]``.
        low, high: the metric again, or minimum and maximum of the gradient, ``[n]``.
    """

    epoch: Array
    step: Array
    value: Array
    low: Array
    high: Array

    @property
    def is_gradient(self) -> bool:
        """Whether it holds statistics of a gradient."""
        return self.low is not self.value


def read_curve(file: Path) -> Curve:
    """Read a CSV file: ``epoch,step,value`` without a header, or ``epoch,step,min,max,mean,std`` with it.

    Raises:
        ForeignFileError: if it is another kind of file.
    """
    try:
        with open(file, newline="", encoding="utf-8") as stream:
            rows = [row for row in csv.reader(stream) if row]
        gradient = rows[:1] == [_GRADIENT]
        columns = np.array([[float(cell) for cell in row] for row in rows[gradient:]]).T
        if len(columns) != (len(_GRADIENT) if gradient else _METRIC):
            raise ValueError("no lines of three numbers")
    except (ValueError, csv.Error) as error:
        reason = "it is not text" if isinstance(error, UnicodeDecodeError) else error
        raise ForeignFileError(
            f"{file} is neither a metric of a run (lines epoch,step,value) nor a gradient (with the header "
            f"{','.join(_GRADIENT)}): {reason}; give a CSV file of a run folder"
        ) from error
    if gradient:
        epoch, step, low, high, mean, _ = columns
        return Curve(epoch, step, mean, low, high)
    epoch, step, value = columns
    return Curve(epoch, step, value, value, value)


def metric_files(folder: Path) -> list[Path]:
    """Return the CSV files of a run folder in this order: returns, other metrics, times, gradients.

    Raises:
        FileError: if there are none.
    """

    def key(file: Path) -> tuple[int, str]:
        name, time, gradient = file.stem, file.stem.startswith("time_"), file.stem.endswith(_GRADIENT_SUFFIX)
        return [name in RETURNS, not time and not gradient, time, True].index(True), name

    files = sorted((file for file in folder.glob("*.csv") if file.name != EPISODES), key=key)
    if not files:
        raise FileError(several_runs(folder) or f"{folder} has no metrics (CSV files) yet: train first")
    return files
