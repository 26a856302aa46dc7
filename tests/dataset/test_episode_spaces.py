"""Episodes know the spaces of their dataset, and data with actions that were never logged cause a warning."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import birl
from birl.dataset import Episode, InfiniteBuffer, MDPDataset, ReplayBuffer, create_infinite_replay_buffer, dump, load
from birl.dataset.logs.proposal import propose
from birl.errors import UnloggedActionWarning

N = 40
STEPS: dict[str, Any] = {"rewards": np.zeros(N), "terminals": np.arange(N) % 4 == 3, "timeouts": np.zeros(N)}
NUMBERS = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
LATE = np.arange(N) // 36  # only the last episode holds the second value

DATASETS = {
    "action_size": lambda: MDPDataset(NUMBERS, np.arange(N) % 2, action_size=7, **STEPS),
    "an action of the last episode": lambda: MDPDataset(NUMBERS, LATE, **STEPS),
    "first action": lambda: MDPDataset(NUMBERS, 5 + LATE, action_size=spaces.Discrete(4, start=5), **STEPS),
    "several choices": lambda: MDPDataset(NUMBERS, np.stack([LATE, LATE], 1), action_size=[3, 4], **STEPS),
    "composite": lambda: MDPDataset(
        NUMBERS,
        {"a": LATE, "b": NUMBERS[:, :1]},
        action_size=spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-9, 9, (1,))}),
        **STEPS,
    ),
    "categories": lambda: MDPDataset(LATE * 15, np.zeros((N, 1)), **STEPS),
    "parts": lambda: MDPDataset({"b": LATE, "a": NUMBERS}, np.zeros((N, 1)), **STEPS),
    "a space": lambda: MDPDataset(LATE, np.zeros((N, 1)), observation_space=spaces.Discrete(9), **STEPS),
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_part_of_the_episodes_has_the_spaces_of_the_whole(name: str, tmp_path: Path) -> None:
    whole = DATASETS[name]()
    info, part = whole.dataset_info, whole.episodes[:5]
    whole.dump(tmp_path / "whole.h5")
    dump(part, tmp_path / "part.h5")
    dump(part, tmp_path / "flat.h5", layout="flat")
    buffer = create_infinite_replay_buffer(episodes=part)
    again = ReplayBuffer(InfiniteBuffer(), env=None, episodes=part)
    again.append_episode(whole.episodes[-1])
    buffers = {
        "slice": buffer,
        "and the rest": again,
        "a list": create_infinite_replay_buffer(episodes=[part[2], part[0]]),
        "a part of a part": create_infinite_replay_buffer(episodes=buffer.episodes[1:3]),
        "limited": birl.dataset.create_fifo_replay_buffer(12, episodes=part),
        "pickled": create_infinite_replay_buffer(episodes=pickle.loads(pickle.dumps(part))),  # noqa: S301
        "changed": create_infinite_replay_buffer(episodes=[replace(each, rewards=each.rewards + 1) for each in part]),
        "two datasets": create_infinite_replay_buffer(episodes=[*part, *DATASETS[name]().episodes[:2]]),
        "file": ReplayBuffer.load(tmp_path / "part.h5"),
        "flat file": ReplayBuffer.load(tmp_path / "flat.h5"),
        "part of a file": create_infinite_replay_buffer(episodes=ReplayBuffer.load(tmp_path / "whole.h5").episodes[:3]),
        "load": create_infinite_replay_buffer(episodes=load(tmp_path / "whole.h5")[0][:3]),
        "load, flat": create_infinite_replay_buffer(episodes=load(tmp_path / "flat.h5")[0][:3]),
        "a folder": create_infinite_replay_buffer(episodes=part, storage=tmp_path / "folder"),
    }
    for way, found in buffers.items():
        assert found.dataset_info == info, way


def test_parts_of_two_datasets_have_the_spaces_of_both() -> None:
    small, large = (MDPDataset(NUMBERS, np.arange(N) % 2, action_size=size, **STEPS) for size in (3, 7))
    own = Episode(NUMBERS[:4], np.array([0, 1, 8, 0]), np.zeros(4), True)
    for episodes, size in (([small, large], 7), ([large, small], 7)):
        buffer = create_infinite_replay_buffer(episodes=[each.episodes[0] for each in episodes])
        assert buffer.dataset_info.action_size == size
    with pytest.warns(UnloggedActionWarning):
        assert create_infinite_replay_buffer([small.episodes[0], own]).dataset_info.action_size == 9


def test_episodes_with_other_arrays_are_described_again() -> None:
    dataset = MDPDataset(LATE * 15, np.arange(N) % 2, action_size=7, **STEPS)
    whole = dataset.episodes
    one_hot = [replace(each, observations=np.eye(16)[each.observations], final_observation=None) for each in whole]
    info = create_infinite_replay_buffer(one_hot).dataset_info
    assert info.observations.shape == (16,) and info.action_size == 7
    floats = [replace(each, actions=np.ones((4, 2))) for each in whole]
    info = create_infinite_replay_buffer(floats).dataset_info
    assert info.action_size == 2 and info.action_space is birl.ActionSpace.CONTINUOUS
    assert info.observations == dataset.dataset_info.observations
    assert create_infinite_replay_buffer(whole[:2], action_size=9).dataset_info.action_size == 9
    assert whole[0].serialize().keys() == Episode(NUMBERS, LATE, LATE, True).serialize().keys()
    assert "spaces" not in whole[0].serialize()


def test_a_model_of_a_part_can_be_evaluated_on_the_rest() -> None:
    whole = MDPDataset(NUMBERS, LATE * 2, action_size=3, **STEPS)
    algorithm = birl.algos.DQNConfig(batch_size=4).create()
    held_out = birl.metrics.TDErrorEvaluator(whole.episodes[9:])
    part = create_infinite_replay_buffer(episodes=whole.episodes[:9])
    algorithm.build_with_dataset(part)
    assert algorithm.action_size == 3 and held_out(algorithm, part) >= 0


@pytest.mark.parametrize(
    ("logged", "message"),
    [
        ([1, 2, 3], r"1 of 4 actions are in none of 40 steps: 0\..*action_size=4 if they exist, action_size=gymnasium"
         r".spaces.Discrete\(3, start=1\) if they do not"),
        ([0, 2, 5], r"3 of 6 actions are in none of 40 steps: 1, 3, 4\..*=6 if they exist; if not, renumber"),
        ([0, 30], r"29 of 31 actions are .*: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …"),
    ],
)  # fmt: skip
def test_actions_that_no_step_holds_cause_a_warning(logged: list[int], message: str, tmp_path: Path) -> None:
    actions = np.resize(logged, N)
    with pytest.warns(UnloggedActionWarning, match=message) as caught:
        dataset = MDPDataset(NUMBERS, actions, **STEPS)
    assert caught[0].filename == __file__
    assert dataset.dataset_info.action_size == logged[-1] + 1
    own = [Episode(NUMBERS, actions, np.zeros(N), True)]
    with pytest.warns(UnloggedActionWarning, match=message) as caught:
        create_infinite_replay_buffer(own)
    dump(own, tmp_path / "own.h5")
    with pytest.warns(UnloggedActionWarning, match=message):
        ReplayBuffer.load(tmp_path / "own.h5")
    table = {"episode": np.arange(N) // 4, "time": np.arange(N), "action": actions, "reward": np.zeros(N)}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    assert f"values = {logged}   # all logged actions" in propose([tmp_path / "log.parquet"]).text


def test_no_warning_if_all_actions_were_logged_or_their_number_was_said() -> None:
    actions = np.resize([1, 2, 3], N)
    masks = np.resize([0, 1, 1, 1], (N, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MDPDataset(NUMBERS, np.resize([0, 1, 2], N), **STEPS)
        MDPDataset(NUMBERS, actions, action_size=4, **STEPS)
        MDPDataset(NUMBERS, actions, action_masks=masks, **STEPS)
        MDPDataset(NUMBERS, actions.astype(np.float32)[:, None], **STEPS)
        from_one = MDPDataset(NUMBERS, actions, action_size=spaces.Discrete(3, start=1), **STEPS)
        create_infinite_replay_buffer(from_one.episodes[:2])
    choices = np.stack([np.resize([0, 1], N), np.resize([0, 2], N)], 1)
    with pytest.warns(UnloggedActionWarning, match=r"1 of 3 actions of choice 1 are in none of 40 steps: 1"):
        MDPDataset(NUMBERS, choices, action_space=birl.ActionSpace.MULTI_DISCRETE, **STEPS)
    algorithm = birl.algos.DQNConfig().create()
    algorithm.build_with_dataset(from_one)
    assert set(algorithm.predict(NUMBERS).tolist()) <= {1, 2, 3}
