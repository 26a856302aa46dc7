"""Files in D4RL's layout: made here, read by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces

import birl.datasets.d4rl
from birl.dataset import MultiStepTransitionPicker, PrioritizedSampler, ReplayBuffer
from birl.datasets import get_d4rl, get_dataset
from birl.errors import ConfigError, CorruptFileError, EnvironmentMismatchError, FileError, ForeignFileError
from birl.types import ActionSpace

ENDS = {3: "terminal", 4: "terminal", 7: "timeout", 9: "both"}  # a one-step episode at 4; 10 and 11 are left over
STEPS = 12


class Asked(gymnasium.Env[Any, Any]):
    """An environment with the shapes of `arrays`, which remembers how it was asked for."""

    observation_space = spaces.Box(-1, 1, (3,))

    def __init__(self, name: str, **options: Any) -> None:
        self.asked = name, options
        self.action_space = spaces.Discrete(4) if name.startswith("minigrid") else spaces.Box(-1, 1, (1,))


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environments need MuJoCo; what is asked for is looked at instead. The home folder is an empty one."""
    monkeypatch.setattr(birl.datasets.d4rl, "make_env", Asked)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BIRL_DATA_DIR", raising=False)
    monkeypatch.delenv("D4RL_DATASET_DIR", raising=False)


def arrays(following: bool = True) -> dict[str, Any]:
    observations = np.arange(STEPS * 3, dtype=np.float32).reshape(STEPS, 3)
    data: dict[str, Any] = {
        "observations": observations,
        "actions": (np.arange(STEPS)[:, None] % 2).astype(np.float32),
        "rewards": np.arange(STEPS, dtype=np.float32),
        "terminals": np.array([ENDS.get(step) in ("terminal", "both") for step in range(STEPS)]),
        "timeouts": np.array([ENDS.get(step) in ("timeout", "both") for step in range(STEPS)]),
    }
    if following:
        data["next_observations"] = np.concatenate([observations[1:], np.float32([[36, 37, 38]])])
        data["next_observations"][list(ENDS)] = -1.0
    return data


def write(path: Path, data: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, value in data.items():
            file.create_dataset(name, data=value, compression="gzip")
        file.create_dataset("infos/qpos", data=np.zeros((STEPS, 2)))
        file.create_dataset("metadata/policy/nonlinearity", data=b"relu")
    return path


def lengths(dataset: ReplayBuffer) -> list[int]:
    return [len(episode) for episode in dataset.episodes]


def test_episodes_and_ends(tmp_path: Path) -> None:
    """Faults 5 and 6 of d3rlpy: one-step episodes, steps behind the last end, terminal and timeout at once."""
    path = write(tmp_path / "hopper_medium.hdf5", arrays())
    dataset, env = get_d4rl("hopper-medium-v0", path=path)
    assert lengths(dataset) == [4, 1, 3, 2, 2]
    assert [e.terminated for e in dataset.episodes] == [True, True, False, True, False]
    assert [e.truncated for e in dataset.episodes] == [False, False, True, False, True]
    finals = [e.final_observation.tolist() for e in dataset.episodes]
    assert finals == [[-1.0] * 3, [-1.0] * 3, [-1.0] * 3, [-1.0] * 3, [36, 37, 38]]
    assert dataset.transition_count == dataset.step_count == STEPS
    assert np.concatenate([e.rewards[:, 0] for e in dataset.episodes]).tolist() == list(range(STEPS))
    assert env.asked == ("Hopper-v4", {"render_mode": None, "max_episode_steps": 1000})


def test_without_next_observations_truncated_ends_stay_unknown(tmp_path: Path) -> None:
    dataset, _ = get_d4rl("hopper-medium-v0", path=write(tmp_path / "x.hdf5", arrays(following=False)))
    assert lengths(dataset) == [4, 1, 3, 2, 2]
    assert dataset.episodes[2].final_observation is None and dataset.transition_count == STEPS - 2


def test_whole_actions_are_continuous(tmp_path: Path) -> None:
    """Fault 9."""
    data = arrays()
    for actions in (data["actions"], data["actions"][:, 0], data["actions"].astype(np.int64)):
        path = write(tmp_path / "x.hdf5", data | {"actions": actions})
        info = get_d4rl("hopper-medium-v0", path=path)[0].dataset_info
        assert (info.action_space, info.action_size) == (ActionSpace.CONTINUOUS, 1)


def test_cuts_that_are_not_marked(tmp_path: Path) -> None:
    data = arrays()
    data["next_observations"][1] = 77.0
    data["next_observations"][2] += 1e-6  # rounding is none
    dataset, _ = get_d4rl("hopper-medium-v0", path=write(tmp_path / "x.hdf5", data))
    assert lengths(dataset) == [2, 2, 1, 3, 2, 2]
    assert dataset.episodes[0].truncated and dataset.episodes[0].final_observation.tolist() == [77, 77, 77]


def test_files_without_timeouts_are_cut_at_the_limit(tmp_path: Path) -> None:
    data = arrays(following=False)
    del data["timeouts"]
    dataset, _ = get_d4rl("hopper-medium-v0", path=write(tmp_path / "x.hdf5", data), max_episode_steps=3)
    assert lengths(dataset) == [3, 1, 1, 3, 2, 2]  # ends: limit, terminal, terminal, limit, terminal, end of the data
    assert [e.terminated for e in dataset.episodes] == [False, True, True, False, True, False]


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("hopper-medium-v0", "gym_mujoco/hopper_medium.hdf5"),
        ("walker2d-medium-replay-v0", "gym_mujoco/walker_mixed.hdf5"),
        ("halfcheetah-medium-replay-v2", "gym_mujoco_v2/halfcheetah_medium_replay-v2.hdf5"),
        ("bullet-ant-medium-expert-v0", "bullet/bullet-ant_medium_expert.hdf5"),
        ("maze2d-umaze-v1", "maze2d/maze2d-umaze-sparse-v1.hdf5"),
        ("maze2d-open-dense-v0", "maze2d/maze2d-open-dense.hdf5"),
        (
            "antmaze-large-play-v2",
            "ant_maze_v2/Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5",
        ),
        ("antmaze-umaze-v0", "ant_maze_new/Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse.hdf5"),
        ("pen-cloned-v0", "hand_dapg/pen-demos-v0-bc-combined.hdf5"),
        ("kitchen-mixed-v0", "kitchen/kitchen_microwave_kettle_bottomburner_light-v0.hdf5"),
    ],
)
def test_a_missing_file_says_what_to_download_and_where_to_put_it(name: str, url: str, tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        get_dataset(name)
    place = tmp_path / "home" / ".birl" / "datasets" / Path(url).name
    assert f"http://rail.eecs.berkeley.edu/datasets/offline_rl/{url} " in str(caught.value)
    assert str(place) in str(caught.value)
    write(place, arrays())
    assert lengths(get_dataset(name)[0]) == [4, 1, 3, 2, 2]


def test_a_name_without_a_known_address(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="infos.py"):
        get_d4rl("carla-lane-v0")
    write(tmp_path / "home" / ".d4rl" / "datasets" / "carla-lane-v0.hdf5", arrays())
    assert get_d4rl("carla-lane-v0")[0].step_count == STEPS


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("BIRL_DATA_DIR", "D4RL_DATASET_DIR"):
        folder = tmp_path / variable
        monkeypatch.setenv(variable, str(folder))
        write(folder / "ant_expert.hdf5", arrays())
        assert get_d4rl("ant-expert-v0")[1].asked[0] == "Ant-v4"
        monkeypatch.delenv(variable)
    assert get_d4rl("ant-expert-v0", path=tmp_path / "BIRL_DATA_DIR")[0].step_count == STEPS


def test_discrete_minigrid(tmp_path: Path) -> None:
    path = write(tmp_path / "x.hdf5", arrays() | {"actions": np.arange(STEPS) % 4})
    sampler = PrioritizedSampler()
    data = get_d4rl("minigrid-fourrooms-v0", path=path, sampler=sampler)[0]
    assert data.reader.sources[0].sampler is sampler
    info = data.dataset_info
    assert (info.action_space, info.action_size) == (ActionSpace.DISCRETE, 4)


def test_options(tmp_path: Path) -> None:
    path = write(tmp_path / "x.hdf5", arrays())
    dataset, _ = get_dataset(
        "hopper-medium-v0", MultiStepTransitionPicker(3, 0.9), path=path, storage=tmp_path / "rows"
    )
    assert dataset.sample_transition_batch(64).intervals.max() == 3
    assert ReplayBuffer.open(tmp_path / "rows").step_count == STEPS


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    data = arrays()
    with pytest.raises(ForeignFileError, match="not rewards"):
        get_d4rl("ant-expert-v0", path=write(tmp_path / "x.hdf5", {k: v for k, v in data.items() if k != "rewards"}))
    (tmp_path / "y.hdf5").write_bytes(b"no such file, said the server")
    with pytest.raises(ForeignFileError, match="not an HDF5 file"):
        get_d4rl("ant-expert-v0", path=tmp_path / "y.hdf5")
    whole = write(tmp_path / "z.hdf5", data).read_bytes()
    (tmp_path / "z.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptFileError, match="damaged"):
        get_d4rl("ant-expert-v0", path=tmp_path / "z.hdf5")
    with h5py.File(tmp_path / "link.hdf5", "w") as file:
        for name in data:
            file[name] = h5py.ExternalLink("x.hdf5", name)
    with pytest.raises(CorruptFileError, match="no array of this file"):
        get_d4rl("ant-expert-v0", path=tmp_path / "link.hdf5")


def test_an_environment_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def missing(*args: Any, **options: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed")

    monkeypatch.setattr(gymnasium, "make", missing)
    path = write(tmp_path / "x.hdf5", arrays())
    with pytest.warns(UserWarning, match="'hopper-medium-v0' is not available, None.*MuJoCo is not installed"):
        dataset, env = get_d4rl("hopper-medium-v0", path=path)
    assert env is None and dataset.step_count == STEPS


@pytest.mark.parametrize(("columns", "shapes"), [(2, r"\(3,\) and actions of shape \(2,\)"), (3, r"\(3,\).*\(3,\)")])
def test_the_file_of_another_environment(columns: int, shapes: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.hdf5", arrays() | {"actions": np.zeros((STEPS, columns), np.float32)})
    with pytest.raises(EnvironmentMismatchError, match=shapes + r".*'hopper-medium-v0' has \(3,\) and \(1,\)"):
        get_d4rl("hopper-medium-v0", path=path, storage=tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


def test_versions_and_limits_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no dataset is called 'hopper-medium-v9'"):
        get_dataset("hopper-medium-v9")
    with pytest.raises(ConfigError, match="'hoper-medium-v0'; did you mean 'hopper-medium-v0'"):
        get_dataset("hoper-medium-v0")
    with pytest.raises(ConfigError, match="did you mean 'breakout-mixed-v0'"):
        get_dataset("brekout-mixed-v0")
    with pytest.raises(ConfigError, match="max_episode_steps is 0; it must be an int >= 1"):
        get_d4rl("hopper-medium-v0", path=tmp_path, max_episode_steps=0)
