"""Metrics of run folders, as `birl plot`, `birl plot-all` and `birl stats` read them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from birl.cli.common import several_runs
from birl.errors import FileError, ForeignFileError
from birl.types import GRADIENT_STATISTICS, Array

RETURNS = ("environment", "evaluation", "rollout_return")
"""Metrics that are returns of episodes."""

_METRIC = 3
_GRADIENT = ["epoch", "step", *GRADIENT_STATISTICS]
_GRADIENT_SUFFIX = "_grad"


@dataclass(frozen=True)
class Curve:
    """One CSV file: a metric, or the statistics of a parameter's gradient.

    Attributes:
        epoch, step: ``[n]``.
        value: ``[n]``; of a gradient, its mean.
        low, high: ``[n]``: smallest and largest number of a gradient; of a metric, its value.
    """

    epoch: Array
    step: Array
    value: Array
    low: Array
    high: Array

    @property
    def is_gradient(self) -> bool:
        """Whether it shows a gradient."""
        return self.low is not self.value


def read_curve(file: Path) -> Curve:
    """Read ``epoch,step,value`` without a header, or ``epoch,step,min,max,mean,std`` with it.

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
        reason = "it is no text" if isinstance(error, UnicodeDecodeError) else error
        raise ForeignFileError(
            f"{file} is not a metric of a run, that is, lines epoch,step,value (nor a gradient, with the header "
            f"{','.join(_GRADIENT)}): {reason}"
        ) from error
    if gradient:
        epoch, step, low, high, mean, _ = columns
        return Curve(epoch, step, mean, low, high)
    epoch, step, value = columns
    return Curve(epoch, step, value, value, value)


def in_order(folder: Path) -> list[Path]:
    """CSV files of a run folder: returns, then other metrics, times, and gradients.

    Raises:
        FileError: if there are none.
    """

    def key(file: Path) -> tuple[int, str]:
        name, time, gradient = file.stem, file.stem.startswith("time_"), file.stem.endswith(_GRADIENT_SUFFIX)
        return [name in RETURNS, not time and not gradient, time, True].index(True), name

    files = sorted(folder.glob("*.csv"), key=key)
    if not files:
        raise FileError(several_runs(folder) or f"{folder} has no metrics (CSV files) yet: train first")
    return files
