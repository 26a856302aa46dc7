"""Export to Parquet: other programs can read it, and its schema restores the same episodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from gymnasium import spaces

from birl.dataset import (
    InfiniteBuffer,
    LogSchema,
    MDPDataset,
    ReplayBuffer,
    Signature,
    from_table,
    write_parquet,
)
from birl.dataset.logs import columns as log_columns
from birl.datasets import get_dataset
from birl.errors import EmptyDataError, UnsupportedError, WriteError
from birl.run.fingerprint import digest
from birl.types import ActionSpace


def reimport(path: Path) -> ReplayBuffer:
    return from_table(pyarrow.parquet.read_table(path), LogSchema.load(path.with_suffix(".toml")))


def check_equal(found: ReplayBuffer, wanted: ReplayBuffer) -> None:
    """Check that all steps are equal. Imports do not read final observations."""
    assert len(found.episodes) == len(wanted.episodes)
    for own, other in zip(found.episodes, wanted.episodes, strict=True):
        for name in ("observations", "actions", "rewards", "terminated", "truncated"):
            np.testing.assert_equal(getattr(own, name), getattr(other, name))


def imported_data(discrete: bool, masked: bool = False) -> ReplayBuffer:
    """Three imported episodes."""
    rng = np.random.default_rng(0)
    table: dict[str, Any] = {
        "id": np.repeat([4, 2, 3], 5), "t": np.tile(np.arange(5) * 0.5, 3), "end": np.arange(15) == 4,
        "x": rng.normal(size=(15, 3)), "r": rng.normal(size=15), "p": rng.uniform(0.1, 0.9, 15),
        "who": rng.choice(["v2", "v1"], 15), "user": np.repeat([7, 7, 9], 5), "may": np.ones((15, 4), int),
        "a": rng.integers(4, size=15) if discrete else rng.normal(size=(15, 2)),
    }  # fmt: skip
    table["all"] = np.full((15, 4), 0.25)
    kind = 'kind = "discrete"\nsize = 4' if discrete else 'kind = "continuous"'
    mask = '\nmask = "may"' if masked else ""
    odds = '"all"\nkind = "vector"' if masked else f'"p"\nkind = "{"probability" if discrete else "density"}"'
    text = f"""
episode = "id"
time = "t"
terminated = "end"
unmarked = "truncated"
logger = "who"
cluster = "user"
[[observation]]
column = "x"
[action]
column = "a"
{kind}{mask}
[reward]
column = "r"
[propensity]
column = {odds}
"""
    return from_table(table, LogSchema.parse(text))


@pytest.mark.parametrize("kind", ["discrete", "continuous", "masked", "small chunks"])
def test_imported_data_round_trips_exactly(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "small chunks":
        monkeypatch.setattr(log_columns, "MAX_CHUNK_ROWS", 4)
    data = imported_data(kind != "continuous", kind == "masked")
    found = write_parquet(data, tmp_path / "steps.parquet", loggers=["v2", "v1"])
    assert found == {"episodes": 3, "rows": 15, "schema": True}
    assert digest([reimport(tmp_path / "steps.parquet").storage]) == digest([data.storage])
    table = pyarrow.parquet.read_table(tmp_path / "steps.parquet").to_pydict()
    assert set(table["logger"]) == {"v1", "v2"}
    assert table["step"] == [*range(5)] * 3 and table["episode"] == [i // 5 for i in range(15)]
    assert sorted(os.listdir(tmp_path)) == ["steps.parquet", "steps.toml"]


def test_a_named_dataset_round_trips(tmp_path: Path) -> None:
    data, _ = get_dataset("pendulum-random")
    write_parquet(data, tmp_path / "steps.parquet")
    check_equal(reimport(tmp_path / "steps.parquet"), data)
    last = pyarrow.parquet.read_table(tmp_path / "steps.parquet").to_pydict()["final_observation"]
    finals = [each for each in last if each is not None]
    np.testing.assert_equal(finals, [episode.final_observation for episode in data.episodes])


def test_names_of_extra_columns(tmp_path: Path) -> None:
    """Extra columns keep their names if these are free; times that do not increase are no time column."""
    extra = {"time": [1.0, 0.0, 5.0, 6.0], "reward": [[1, 2]] * 4, "note": [1, 2, 3, 4]}
    data = MDPDataset(
        np.eye(4, dtype=np.float32), np.zeros((4, 1), int), [1.0, 2.0, 3.0, 4.0], [0, 1, 0, 0], [0, 0, 0, 1],
        extra={name: np.array(values) for name, values in extra.items()},
    )  # fmt: skip
    write_parquet(data, tmp_path / "steps.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "steps.parquet").to_pydict()
    assert table["extra.reward"] == extra["reward"] and [table[name] for name in ("note", "time")] == [
        extra["note"], extra["time"]
    ]  # fmt: skip
    assert table["terminated"] == [False, True, False, False] and table["truncated"] == [False, False, False, True]
    assert LogSchema.load(tmp_path / "steps.toml").time is None
    check_equal(reimport(tmp_path / "steps.parquet"), data)


def test_a_running_episode_is_exported_as_truncated(tmp_path: Path) -> None:
    signature = Signature([np.float32], [(2,)])
    data = ReplayBuffer(InfiniteBuffer(), observation_signature=signature, action_signature=signature)
    data.append(np.ones(2, np.float32), np.zeros(2, np.float32), 1.0)
    write_parquet(data, tmp_path / "steps.parquet")
    assert [(each.terminated, each.truncated) for each in reimport(tmp_path / "steps.parquet").episodes] == [
        (False, True)
    ]


def test_unsupported_signatures_have_no_schema(tmp_path: Path) -> None:
    parts = {"place": np.arange(4), "speed": np.zeros((4, 2), np.float32)}
    data = MDPDataset(parts, np.zeros((4, 2), int), np.zeros(4), [0, 0, 0, 1], action_space=ActionSpace.MULTI_DISCRETE)
    assert write_parquet(data, tmp_path / "parts.parquet") == {"episodes": 1, "rows": 4, "schema": False}
    table = pyarrow.parquet.read_table(tmp_path / "parts.parquet").to_pydict()
    assert table["observation.place"] == [0, 1, 2, 3] and table["observation.speed"] == [[0, 0]] * 4
    assert table["action"] == [[0, 0]] * 4
    started = MDPDataset(np.zeros((4, 1), np.float32), np.full((4, 1), 2), np.zeros(4), [0, 0, 0, 1],
                         action_size=spaces.Discrete(3, start=1))  # fmt: skip
    assert not write_parquet(started, tmp_path / "started.parquet")["schema"]
    assert sorted(os.listdir(tmp_path)) == ["parts.parquet", "started.parquet"]


def test_failed_exports_leave_nothing_behind(tmp_path: Path) -> None:
    images = MDPDataset(np.zeros((4, 1, 8, 8), np.uint8), np.zeros((4, 1), int), np.zeros(4), [0, 0, 0, 1])
    with pytest.raises(UnsupportedError, match=r"observation has the shape \(1, 8, 8\) in each step.*Minari"):
        write_parquet(images, tmp_path / "steps.parquet")
    data = imported_data(True)
    empty = ReplayBuffer(InfiniteBuffer(), observation_signature=data.dataset_info.observation_signature,
                         action_signature=data.dataset_info.action_signature, action_size=4)  # fmt: skip
    with pytest.raises(EmptyDataError, match="no episodes"):
        write_parquet(empty, tmp_path / "steps.parquet")
    assert not os.listdir(tmp_path)
    (tmp_path / "steps.toml").write_text("mine")
    with pytest.raises(WriteError, match=r"steps\.toml exists already"):
        write_parquet(data, tmp_path / "steps.parquet")
    with pytest.raises(WriteError, match="cannot write .*steps"):
        write_parquet(data, tmp_path / "steps.toml" / "steps.parquet")
    assert os.listdir(tmp_path) == ["steps.toml"]
