"""Extra columns of steps: every view of the data contains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.dataset import (
    BasicTrajectorySlicer,
    BasicTransitionPicker,
    InfiniteBuffer,
    MDPDataset,
    MultiStepTransitionPicker,
    ReplayBuffer,
)
from birl.errors import ConfigError, NonFiniteError, ShapeError

COUNT = 12
NUMBERS = np.arange(COUNT)


class OwnPicker(BasicTransitionPicker):
    """One by one."""

    def __call__(self, episode: Any, index: int) -> Any:
        return super().__call__(episode, index)


class OwnSlicer(BasicTrajectorySlicer):
    """One by one."""

    def __call__(self, episode: Any, end_index: int, size: int) -> Any:
        return super().__call__(episode, end_index, size)


def logged(extra: Any = None, **options: Any) -> MDPDataset:
    """Step i has the observation i, and the columns say i, too. Episodes of 4 steps; the second one is cut."""
    extra_arrays = (
        {"propensity": (NUMBERS + 1) / 16, "gap": np.stack([NUMBERS, -NUMBERS], 1)} if extra is None else extra
    )
    ends = NUMBERS % 4 == 3
    flags = {"terminals": ends & (NUMBERS != 7), "timeouts": NUMBERS == 7}
    observations = NUMBERS[:, None].astype(np.float32)
    return MDPDataset(observations, NUMBERS % 2, np.ones(COUNT), **flags, extra=extra_arrays, **options)


def agree(observations: Any, extra: Any, real: Any = True) -> None:
    """The columns are those of the steps with these observations, zero at padding."""
    number = np.asarray(observations)[..., 0]
    assert set(extra) >= {"propensity", "gap"}
    expected = np.where(real, (number + 1) / 16, 0)
    np.testing.assert_array_equal(np.asarray(extra["propensity"])[..., 0], expected)
    np.testing.assert_array_equal(np.asarray(extra["gap"])[..., 0], number)
    np.testing.assert_array_equal(np.asarray(extra["gap"])[..., 1], -number)


@pytest.mark.parametrize("storage", ["memory", "cpu"])
@pytest.mark.parametrize("own", [False, True], ids=["at-once", "one-by-one"])
def test_extra_columns_come_in_every_view(storage: str, own: bool) -> None:
    extra = {"propensity": ((NUMBERS + 1) / 16)[:, None], "gap": np.stack([NUMBERS, -NUMBERS], 1)}
    parts: dict[str, Any] = {"transition_picker": OwnPicker(), "trajectory_slicer": OwnSlicer()} if own else {}
    data = logged(extra, storage=storage, **parts)
    transitions = data.sample_transition_batch(64)
    agree(transitions.observations, transitions.extra)
    assert "next_action" in transitions.extra
    windows = data.sample_trajectory_batch(64, 3)
    assert 0 < np.asarray(windows.masks).mean() < 1
    agree(windows.observations, windows.extra, np.asarray(windows.masks) > 0)
    for batch in data.all_transitions():
        agree(batch.observations, batch.extra)
        np.testing.assert_array_equal(batch.extra["episode"], batch.observations[:, 0] // 4)
    if own:
        return  # sequences and tails need the built-in picker
    tails = data.sample_tail_batch(32)
    agree(tails.observations, tails.extra)
    sequences = data.sample_sequence_batch(64, 2, burn_in=2)
    inside = np.asarray(sequences.extra["propensity"])[..., 0] > 0
    agree(sequences.observations, sequences.extra, inside)
    assert inside.any() and not inside.all()


def test_extra_columns_come_with_transitions_of_several_steps() -> None:
    picker = MultiStepTransitionPicker(3, 0.9)
    batch = logged({"mark": NUMBERS}, transition_picker=picker).sample_transition_batch(32)
    np.testing.assert_array_equal(batch.extra["mark"], batch.observations[:, 0])


def test_extra_columns_survive_files_in_their_own_dtype(tmp_path: Path) -> None:
    data = logged(storage=tmp_path / "folder")
    data.dump(tmp_path / "data.h5")
    data.close()
    read = ReplayBuffer.load(tmp_path / "data.h5", InfiniteBuffer())
    for found in (data, read, ReplayBuffer.open(tmp_path / "folder")):
        extra = [episode.extra for episode in found.episodes]
        joined = np.concatenate([each["propensity"] for each in extra if each])
        np.testing.assert_array_equal(joined.ravel(), (NUMBERS + 1) / 16)
        assert joined.dtype == np.float64
        assert extra[1] is not None and extra[1]["gap"].dtype == NUMBERS.dtype


def test_bad_extra_columns_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"extra\['x'\] 11.*one row per step"):
        logged({"x": NUMBERS[:-1]})
    with pytest.raises(NonFiniteError, match=r"extra\['x'\]\[3\] is nan"):
        logged({"x": np.where(NUMBERS == 3, np.nan, 1.0)})
    with pytest.raises(ShapeError, match=r"extra\['who'\] is <U3, text"):
        logged({"who": np.array(["ann"] * COUNT)})
    with pytest.raises(ConfigError, match="'next_action'; a name must be text, and none of next_action, next_action_k"):
        logged({"next_action": NUMBERS})
    with pytest.raises(ConfigError, match="extra is 3; it must be a Mapping.*give arrays by name"):
        logged(3)
