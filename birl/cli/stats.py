"""``birl stats``: statistics of a metric, a run or a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from birl.cli.common import (
    print_line,
    print_table,
)
from birl.cli.curves import metric_files, read_curve
from birl.cli.datasets import load_dataset
from birl.errors import ForeignFileError
from birl.types import ActionSpace, Array

_OTHER_FILES = {".d3": "model", ".d3c": "checkpoint"}


def stats(
    path: Annotated[str, typer.Argument(metavar="PATH", help="CSV file, run folder, or dataset (.h5, folder, name).")],
) -> None:
    """Print statistics of a metric (CSV file), of all metrics of a run (folder), or of a dataset."""
    place = Path(path)
    if place.is_dir() and not (place / "storage.json").is_file():
        _run(place)
    elif place.is_file() and place.suffix in _OTHER_FILES:
        raise ForeignFileError(
            f"{path} is a {_OTHER_FILES[place.suffix]}: stats takes a run folder, the CSV file of a metric, or a "
            "dataset (.h5)"
        )
    elif place.is_file() and place.suffix not in (".h5", ".hdf5"):
        _print({"FILE NAME": place, **_statistics(place)})
    else:
        _dataset(path)


def _statistics(file: Path) -> dict[str, Any]:
    """Return the statistics that d3rlpy's command prints, and the last value."""
    curve = read_curve(file)
    counts = {"EPOCH": int(curve.epoch[-1]), "TOTAL STEPS": int(curve.step[-1])}
    ends = {"MAX VALUE": np.max(curve.high), "MIN VALUE": np.min(curve.low)}
    return {**counts, **ends, "STD VALUE": np.std(curve.value), "LAST VALUE": curve.value[-1]}


def _run(folder: Path) -> None:
    columns = ["EPOCH", "TOTAL STEPS", "LAST VALUE", "MAX VALUE", "MIN VALUE", "STD VALUE"]
    table = [["METRIC", "EPOCH", "STEPS", "LAST", "MAX", "MIN", "STD"]]  # shorter: within 80 columns
    for file in metric_files(folder):
        statistics = _statistics(file)
        table.append([file.stem, *(_format(statistics[name], 5) for name in columns)])
    print_table(table, right=True)


def _dataset(name: str) -> None:
    data = load_dataset(name)
    episodes = data.episodes
    returns = np.array([episode.rewards.sum(dtype=np.float64) for episode in episodes])
    lengths = np.array([len(episode.rewards) for episode in episodes])
    rewards = np.concatenate([np.reshape(episode.rewards, -1) for episode in episodes])
    ended = sum(bool(episode.terminated) for episode in episodes)
    info, size = data.dataset_info, data.dataset_info.action_size
    kinds = {ActionSpace.DISCRETE: f"{size} discrete", ActionSpace.CONTINUOUS: f"continuous, {size} dimensions"}
    rows: dict[str, Any] = {
        "FILE NAME" if Path(name).exists() else "DATASET": name,
        "EPISODES": f"{len(episodes)}, {ended} of them terminated",
        "TRANSITIONS": data.transition_count,
        "OBSERVATIONS": f"shape {data.observation_shape}",
        "ACTIONS": kinds.get(info.action_space, str(info.actions)),
        "RETURN": _summary(returns),
        "LENGTH": _summary(lengths),
        "REWARD": _summary(rewards),
    }
    _print(rows)


def _summary(values: Array) -> str:
    return f"{np.mean(values):.5g} ± {np.std(values):.5g} (min {np.min(values):.5g}, max {np.max(values):.5g})"


def _print(rows: dict[str, Any]) -> None:
    width = max(map(len, rows))
    for name, value in rows.items():
        print_line(f"{name.ljust(width)}: {_format(value, 6)}")


def _format(value: object, digits: int) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
