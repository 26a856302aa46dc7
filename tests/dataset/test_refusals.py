"""What datasets refuse, and frames that were evicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from birl.dataset import (
    BasicTransitionPicker,
    Episode,
    FIFOBuffer,
    FrameStackTrajectorySlicer,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    MDPDataset,
    MultiStepTransitionPicker,
    ReplayBuffer,
)
from birl.errors import ConfigError, CorruptFileError, EmptyDataError, ShapeError, UnsupportedError


def episode(steps: int, terminated: bool = True) -> Episode:
    frames = np.arange(1, steps + 1, dtype=np.float32)[:, None]
    return Episode(frames, np.zeros((steps, 1), np.float32), np.ones((steps, 1), np.float32), terminated)


class Custom(BasicTransitionPicker):
    def __call__(self, episode: Any, index: int) -> Any:
        return super().__call__(episode, index)


def test_pickers_of_ones_own_read_no_sequences() -> None:
    data = ReplayBuffer(InfiniteBuffer(), Custom(), episodes=[episode(9)])
    with pytest.raises(UnsupportedError, match="sequences"):
        data.sample_sequence_batch(2, 3)


@pytest.mark.parametrize("storage", ["memory", "cpu"])
def test_evicted_frames_are_not_drawn_as_zeros(storage: str) -> None:
    slicer = FrameStackTrajectorySlicer(3)
    data = ReplayBuffer(FIFOBuffer(8), FrameStackTransitionPicker(3), slicer, episodes=[episode(40)], storage=storage)
    batch = data.sample_transition_batch(500)
    assert (np.asarray(batch.observations) > 0).all()
    assert set(np.asarray(batch.observations)[:, -1].tolist()) == set(range(35, 41))
    windows = data.sample_trajectory_batch(200, 4)
    assert (np.asarray(windows.observations)[np.asarray(windows.masks) > 0] > 0).all()
    sequences = data.sample_sequence_batch(200, 2, 3)
    real = np.asarray(sequences.masks) > 0
    assert (np.asarray(sequences.observations)[real] > 0).all()
    few = ReplayBuffer(FIFOBuffer(2), FrameStackTransitionPicker(4), episodes=[episode(40)])
    with pytest.raises(EmptyDataError, match="evicted"):
        few.sample_transition_batch(2)


def test_folders_that_hold_something_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "column_0.4.npy").write_text("mine")
    zeros = np.zeros((3, 1), np.float32)
    with pytest.raises(ConfigError, match="has files but no dataset of birl: name a new folder"):
        MDPDataset(zeros, zeros, zeros, np.ones(3), storage=tmp_path)
    with pytest.raises(ConfigError, match="has files but no dataset of birl"):
        ReplayBuffer(InfiniteBuffer(), episodes=[episode(3)], storage=tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    MDPDataset(zeros, zeros, zeros, np.ones(3), storage=tmp_path / "empty")
    with pytest.raises(ConfigError, match="holds a dataset already"):
        MDPDataset(zeros, zeros, zeros, np.ones(3), storage=tmp_path / "empty")


def link(file: Any, kind: Any) -> None:
    del file["actions_0"]
    file["actions_0"] = kind


def put(file: Any, name: str, value: Any) -> None:
    if name in file:
        del file[name]
    file[name] = value


@pytest.mark.parametrize(
    "change",
    [
        lambda file: link(file, h5py.SoftLink("/rewards_0")),
        lambda file: link(file, h5py.ExternalLink("other.h5", "/actions_0")),
        lambda file: put(file, "num_episodes", 1.5),
        lambda file: put(file, "num_episodes", 2),
        lambda file: put(file, "terminated_0", 2),
        lambda file: put(file, "truncated_0", 0.5),
    ],
)
def test_unguarded_files_are_checked(tmp_path: Path, change: Any) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        for name in ("observations_0", "actions_0", "rewards_0"):
            file[name] = np.zeros((3, 1), np.float32)
        file["terminated_0"], file["num_episodes"], file["version"] = True, 1, "2.1"
    assert ReplayBuffer.load(tmp_path / "data.h5").step_count == 3
    with h5py.File(tmp_path / "data.h5", "a") as file:
        change(file)
    with pytest.raises(CorruptFileError):
        ReplayBuffer.load(tmp_path / "data.h5")


@pytest.mark.parametrize(
    "make",
    [
        lambda: FrameStackTransitionPicker(1.5),  # type: ignore[arg-type]
        lambda: MultiStepTransitionPicker(1.5, 0.9),  # type: ignore[arg-type]
        lambda: FIFOBuffer(float("nan")),  # type: ignore[arg-type]
        lambda: FIFOBuffer(float("inf")),  # type: ignore[arg-type]
        lambda: FIFOBuffer("a"),  # type: ignore[arg-type]
        lambda: FIFOBuffer(None),  # type: ignore[arg-type]
        lambda: ReplayBuffer(InfiniteBuffer(), episodes=[episode(3)]).sample_transition_batch(1.5),  # type: ignore[arg-type]
    ],
)
def test_numbers_that_are_not_whole(make: Any) -> None:
    with pytest.raises(ConfigError, match="it must be an int >= 1$"):
        make()


def test_repr_of_an_episode_is_short() -> None:
    assert repr(episode(4)) == "<Episode: 4 steps, terminated, return 4, observations (4, 1), actions (4, 1)>"


@pytest.mark.parametrize(("shape", "message"), [((0,), "a size below 1"), ((1,) * 33, "at most 30 can be stored")])
def test_observations_that_no_file_can_hold(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises((ConfigError, ShapeError), match=message):
        MDPDataset(np.zeros((20, *shape), np.float32), np.zeros((20, 2)), np.zeros(20), np.arange(20) % 5 == 4)
