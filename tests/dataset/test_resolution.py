"""Columns whose values float32 cannot tell apart are named where data come in."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from birl.dataset import Episode, InfiniteBuffer, LogSchema, MDPDataset, ReplayBuffer, dump, from_table
from birl.errors import ResolutionWarning

N = 2000
RANGE = np.linspace(0, 20, N)
STEPS: dict[str, Any] = {"rewards": np.arange(N) % 7, "terminals": np.arange(N) % 100 == 99, "timeouts": np.zeros(N)}
FINE = np.random.default_rng(0).normal(size=(N, 2))

LOST = {
    "seconds since 1970": 1.7e9 + RANGE,
    "milliseconds": (1.7e12 + RANGE * 1000).astype(np.int64),
    "northing": 5_334_000 + RANGE,
    "northing in float32": (5_334_000 + RANGE).astype(np.float32),
    "ids": 2**40 + np.arange(N),
    "negative": -(1.7e9 + RANGE),
}
KEPT = {
    "normal": FINE[:, 0],
    "constant": np.full(N, 1.7e9),
    "a year of seconds": 1.7e9 + RANGE * 1.5e6,
    "exact integers": 16_000_000 + np.arange(N),
    "exact integers in float32": (16_000_000 + np.arange(N)).astype(np.float32),
    "northing, 20 km": 5_334_000 + RANGE * 1000,
    "exact in float64": 2.0**40 + np.arange(N) * 2**20,
    "tiny": RANGE * 1e-30,
    "small integers": np.arange(N) % 5,
}


@pytest.mark.parametrize("name", LOST)
def test_lost_columns_are_named(name: str, tmp_path: Path) -> None:
    column = LOST[name]
    observations = np.stack([FINE[:, 0].astype(column.dtype), column], 1)
    words = r"loses the resolution of {}\[:, 1\] \(from .* rounded by up to .*\): values that differ become equal"
    with pytest.warns(ResolutionWarning, match=words.format("observations")) as caught:
        MDPDataset(observations, np.zeros((N, 1)), **STEPS)
    assert caught[0].filename == __file__
    with pytest.warns(ResolutionWarning, match=words.format("observations.gps")):
        parts = MDPDataset({"gps": observations, "other": FINE}, np.zeros((N, 1)), **STEPS)
    with pytest.warns(ResolutionWarning, match=words.format("actions")):
        MDPDataset(FINE, observations.astype(np.result_type(column.dtype, np.float32)), **STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ReplayBuffer(InfiniteBuffer(), episodes=parts.episodes[:9])  # the dataset has warned
    own = [Episode(observations, np.zeros((N, 1)), np.zeros(N), True)]
    with pytest.warns(ResolutionWarning, match=words.format("observations")):
        ReplayBuffer(InfiniteBuffer(), episodes=own)
    for layout in ("episodes", "flat"):
        dump(own, tmp_path / "own.h5", layout=layout)
        with pytest.warns(ResolutionWarning, match=words.format("observations")):
            ReplayBuffer.load(tmp_path / "own.h5")


@pytest.mark.parametrize("name", KEPT)
def test_other_columns_cause_no_warning(name: str) -> None:
    column = KEPT[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MDPDataset(np.stack([column, column], 1), np.zeros((N, 1)), **STEPS)
        MDPDataset(FINE, FINE, **{**STEPS, "rewards": column})
        _table(column)


def _table(column: Any) -> ReplayBuffer:
    table = {"ep": np.arange(N) // 100, "t": np.arange(N), "x": column, "a": np.zeros(N), "r": np.zeros(N)}
    schema = (
        'episode = "ep"\ntime = "t"\nunmarked = "truncated"\n[[observation]]\ncolumn = "x"\n[reward]\ncolumn = "r"\n'
    )
    return from_table(pa.table(table), LogSchema.parse(schema + '[action]\ncolumn = "a"\nkind = "continuous"\n'))


@pytest.mark.parametrize("name", LOST)
def test_columns_of_tables_are_named(name: str) -> None:
    with pytest.warns(ResolutionWarning, match=r"loses the resolution of column 'x' \(from"):
        _table(LOST[name])


def test_rewards_and_unknown_final_observations() -> None:
    with pytest.warns(ResolutionWarning, match=r"of rewards\[:, 0\] \(from 1700000000 to 1700000020"):
        MDPDataset(FINE, FINE, **{**STEPS, "rewards": 1.7e9 + RANGE})
    with pytest.warns(ResolutionWarning, match="to 1700000020"):  # zeros of unknown final observations do not count
        MDPDataset(LOST["seconds since 1970"][:, None], FINE, **STEPS)
    with pytest.warns(ResolutionWarning, match=r"\[:, 4\] .* and 2 more: "):
        MDPDataset(np.repeat(LOST["northing"][:, None], 7, 1), FINE, **STEPS)
