"""``birl plot``: curves of one or many runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

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
from birl.cli.curves import RETURNS, read_curve
from birl.errors import ConfigError, FileError, NonFiniteError, require
from birl.types import EPISODES, Array

# Classes of matplotlib, which is optional and therefore not imported here.
Axes: TypeAlias = Any
Figure: TypeAlias = Any
Line2D: TypeAlias = Any

_WITHOUT_WINDOWS: Final = {"agg", "cairo", "pdf", "pgf", "ps", "svg", "template"}
"""Matplotlib's backends that only write files."""

_FIRST_CHOICE = (*RETURNS, "loss", "critic_loss", "actor_loss")


def plot(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Run folders, also of several seeds, or CSV files in them.")
    ],
    save: Save = None,
    metric: Annotated[str | None, typer.Option(help="Metric to plot of run folders; by default the return.")] = None,
    window: Annotated[int, typer.Option(min=1, help="Epochs of the moving average.")] = 1,
    show_steps: ShowSteps = False,
    show_max: Annotated[
        bool, typer.Option("--show-max", help="Show each curve's maximum in the legend, and the overall one as a line.")
    ] = False,
    label: Annotated[list[str] | None, typer.Option(help="Name in the legend; give it once for each path.")] = None,
    xlim: Annotated[tuple[float, float] | None, typer.Option(metavar="LOW HIGH", help="Limits of the x-axis.")] = None,
    ylim: Annotated[tuple[float, float] | None, typer.Option(metavar="LOW HIGH", help="Limits of the y-axis.")] = None,
    title: Title = None,
    ylabel: Annotated[str | None, typer.Option(help="Name of the y-axis; by default the metric.")] = None,
) -> None:
    """Plot a metric of one or more runs. A gradient is drawn with its mean and range."""
    others = [path for path in paths if path.is_file() and path.suffix != ".csv"]
    if len(others) < len(paths):  # as in runs/many/*
        paths = [path for path in paths if path not in others]
        if others:
            note(f"left out, as they are not metrics: {', '.join(map(str, others))}")
    if label and len(label) != len(paths):
        raise ConfigError(f"{len(label)} labels for {len(paths)} paths: give --label once for each path, or not at all")
    _check_limits("--xlim", xlim)
    _check_limits("--ylim", ylim)
    curves = [_curve_files(path, metric) for path in paths]
    names = label or _labels(paths, curves)
    metrics = list(dict.fromkeys(files[0].stem for files in curves))
    limits = {"xlim": xlim, "ylim": ylim, "title": title, "ylabel": ylabel or ", ".join(metrics)}
    figure = draw(curves, names, window=window, show_steps=show_steps, show_max=show_max, **limits)
    show_or_save(figure, save)
    if save is not None:
        print_line(f"{save}: {', '.join(str(file) for files in curves for file in files)}")


def draw(
    curves: Sequence[Sequence[Path]],
    labels: Sequence[str],
    *,
    window: int = 1,
    show_steps: bool = False,
    show_max: bool = False,
    **limits: Any,
) -> Figure:
    """Draw CSV files of metrics into a matplotlib figure.

    Args:
        curves: files of each curve, see `read_curve`. If a curve has several files, one for each seed, their mean is
            drawn up to the end of the shortest, and each seed as a thin line.
        labels: name of each curve.
        window: length of the moving average in epochs; at the start it is shorter.
        show_steps: steps along the x-axis instead of epochs.
        show_max: the maximum of each curve in the legend, and of all curves as a dashed line.
        **limits: ``xlim``, ``ylim``, ``title`` and ``ylabel``; those that are ``None`` are left out.

    Raises:
        MissingExtraError: without matplotlib.
        FileError: if a file cannot be read.
        NonFiniteError: if no value is finite.
    """
    pyplot = require("matplotlib.pyplot", "plot")
    figure, axes = subplots(figsize=(7, 4.3))
    largest: list[float] = []
    for number, (files, name) in enumerate(zip(curves, labels, strict=True)):
        curve = draw_curve(axes, files, f"C{number}", window=window, show_steps=show_steps)
        finite = [value for value in np.asarray(curve.get_ydata(), float).tolist() if math.isfinite(value)]
        curve.set_label(f"{name} (max {max(finite):.4g})" if show_max and finite else name)
        largest += [max(finite)] if finite else []
    if not any(np.isfinite(np.asarray(line.get_ydata(), float)).any() for line in axes.lines):
        pyplot.close(figure)
        raise NonFiniteError(
            f"{', '.join(str(file) for files in curves for file in files)}: all values are NaN or infinite, so "
            "there is nothing to draw: give another metric or run"
        )
    if show_max and largest:
        axes.axhline(max(largest), color="black", linestyle="dashed", linewidth=1)
    axes.set(xlabel="step" if show_steps else "epoch", **{k: v for k, v in limits.items() if v is not None})
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def draw_curve(axes: Axes, files: Sequence[Path], color: str, *, window: int = 1, show_steps: bool = False) -> Line2D:
    """Draw one curve: a metric of a run, its mean over several seeds, or a gradient with the range of its values.

    Returns:
        Matplotlib's line.
    """
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)  # epochs are whole numbers
    seeds = [read_curve(file) for file in files]
    shared = min(len(curve.step) for curve in seeds)
    places = (seeds[0].step if show_steps else seeds[0].epoch)[:shared]
    values = np.array([_moving_average(curve.value[:shared], window) for curve in seeds])
    mean = values.mean(0)
    (line,) = axes.plot(places, mean, marker="o" if shared < 30 else "", markersize=4, color=color)
    for seed_curve in values if len(values) > 1 else ():
        axes.plot(places, seed_curve, linewidth=0.7, alpha=0.4, color=color)
    if len(seeds) == 1 and seeds[0].is_gradient:
        low, high = (_moving_average(values, window) for values in (seeds[0].low, seeds[0].high))
        axes.fill_between(places, low, high, alpha=0.2, color=color)
    return line


def subplots(*shape: int, **options: Any) -> Any:
    """Make a figure and its axes.

    Raises:
        MissingExtraError: without matplotlib.
        ConfigError: if there is no screen, but the environment variable ``MPLBACKEND`` needs one.
    """
    pyplot = require("matplotlib.pyplot", "plot")
    try:
        return pyplot.subplots(*shape, layout="constrained", **options)
    except ImportError as error:
        raise ConfigError(
            f"there is no screen to open a window on ({error}): unset MPLBACKEND, and give --save FILE.png"
        ) from error


def show_or_save(figure: Figure, path: Path | None) -> None:
    """Write a figure to a file, or show it in a window if ``path`` is ``None``.

    Raises:
        ConfigError: if the file has an unknown suffix, or there is no screen.
        FileError: if the file cannot be written.
    """
    if path is None:
        pyplot = require("matplotlib.pyplot", "plot")
        if (backend := pyplot.get_backend().lower()) in _WITHOUT_WINDOWS:
            raise ConfigError(
                f"there is no screen to open a window on (matplotlib's backend is {backend}): give --save FILE.png"
            )
        pyplot.show()
        return
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}") from error


def _check_limits(option: str, limits: tuple[float, float] | None) -> None:
    """Reject limits of an axis that are not in order or not finite."""
    if limits is None or (limits[0] < limits[1] and all(map(math.isfinite, limits))):
        return
    low, high = limits
    raise ConfigError(f"{option} {low:g} {high:g}: the first must be below the second, and both finite numbers")


def _moving_average(values: Array, window: int) -> list[float]:
    return [values[max(end - window, 0) : end].mean() for end in range(1, len(values) + 1)]


def _labels(paths: list[Path], curves: list[list[Path]]) -> list[str]:
    """Return the names of curves in the legend, with their paths where the names of folders are equal."""
    names = [_label(path, files) for path, files in zip(paths, curves, strict=True)]
    count = Counter(names)
    return [name if count[name] == 1 else f"{path}: {name}" for path, name in zip(paths, names, strict=True)]


def _label(path: Path, files: list[Path]) -> str:
    """Return the name of a curve."""
    if len(files) > 1:
        return f"{path.name}/{files[0].stem}, mean of {len(files)} seeds"
    return f"{files[0].parent.name}/{files[0].stem}" if files[0].parent.name else files[0].stem


def _curve_files(path: Path, metric: str | None) -> list[Path]:
    """Return the files of one curve: the file of a run, or the files of the runs of all seeds."""
    run, *others = runs_of(path) or [path]
    first = _metric_file(run, metric)
    return [first, *(_metric_file(other, first.stem) for other in others)]


def _metric_file(path: Path, metric: str | None) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise FileError(f"there is no {path}: give a run folder or one of its CSV files")
    there = sorted(file.stem for file in path.glob("*.csv") if file.name != EPISODES)
    names = [metric] if metric else [name for name in (*_FIRST_CHOICE, *there) if name in there][:1]
    if not names or names[0] not in there:
        what = f"no metric {metric!r}" if metric and there else "no metrics (CSV files)"
        raise FileError(f"{path} has {what}" + (f"; it has: {', '.join(there)}" if there else " yet: train first"))
    if metric is None and names[0] not in RETURNS:
        note(f"{path} has no return ({', '.join(RETURNS)}): {names[0]} is drawn (--metric selects another)")
    return path / f"{names[0]}.csv"
