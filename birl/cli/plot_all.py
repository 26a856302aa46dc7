"""``birl plot-all``: every metric of a run in one picture."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from birl.cli.common import (
    Save,
    ShowSteps,
    Title,
    note,
    print_line,
    runs_of,
)
from birl.cli.curves import metric_files, read_curve
from birl.cli.plot import draw_curve, show_or_save, subplots
from birl.errors import FileError
from birl.text import printable


def plot_all(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Run folder, also of several seeds.")],
    save: Save = None,
    title: Title = None,
    show_steps: ShowSteps = False,
    params: Annotated[bool, typer.Option("--params", help="Print the parameters of the run, too.")] = False,
) -> None:
    """Plot all metrics of a run in a grid. A gradient is drawn with its mean and range.

    Durations (time_*.csv) are left out. Runs in environments are plotted by steps.
    """
    if not path.is_dir():
        raise FileError(f"there is no folder {path}: give a run folder")
    runs = runs_of(path) or [path]
    panels = [file for file in metric_files(runs[0]) if not file.stem.startswith("time_")]
    if not panels:
        raise FileError(f"{runs[0]} has no metrics (CSV files) but durations yet: train first")
    curves = [read_curve(file) for file in panels]
    # Metrics that were logged within epochs have several values in one epoch.
    within = any((np.diff(curve.epoch) == 0).any() for curve in curves)
    show_steps = show_steps or within or any(file.stem == "rollout_return" for file in panels)
    columns = math.ceil(math.sqrt(len(panels)))
    lines = math.ceil(len(panels) / columns)
    size = max(12, 3 * columns), max(7, 2.2 * lines)
    figure, grid = subplots(lines, columns, figsize=size, squeeze=False)
    for axes, file in zip(grid.flat, panels, strict=False):
        files = [run / file.name for run in runs if (run / file.name).is_file()]
        draw_curve(axes, files, "C0", show_steps=show_steps)
        axes.set_title(textwrap.fill(printable(file.stem), 40), fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("step" if show_steps else "epoch", fontsize=9)
    of_seeds = "" if len(runs) == 1 else f", mean of {len(runs)} seeds"
    figure.suptitle(title or printable(path.name) + of_seeds)
    if params:
        _print_params(runs[0] / "params.json")
    show_or_save(figure, save)
    if save is not None:
        print_line(f"{save}: {len(panels)} metrics of {path}")


def _print_params(file: Path) -> None:
    if not file.is_file():
        return
    try:
        params = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        note(f"{file} cannot be read: {error}")
        return
    for name, value in _flat(params) if isinstance(params, dict) else ():
        print_line(f"{name}={value}")


def _flat(value: dict[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted names and values of nested parameters; ``params``, which holds those of a type, is not named."""
    for key, item in value.items():
        name = prefix if key == "params" else f"{prefix}.{key}".lstrip(".")
        if isinstance(item, dict):
            yield from _flat(item, name)
        else:
            yield name, item
