"""D4RL (Fu et al. 2020, arXiv:2004.07219): logged data of continuous control."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np

from birl.checks import check
from birl.dataset import MDPDataset, ReplayBuffer, Sampler
from birl.dataset.hdf5 import read_arrays
from birl.dataset.replay_buffer import StorageLocation
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.dataset.validation import as_flags
from birl.datasets.folders import Where, environment_or_none, find
from birl.envs import make_env
from birl.errors import EnvironmentMismatchError
from birl.types import ActionSpace, Array

FAMILIES: Final = (
    *("hopper", "halfcheetah", "walker2d", "ant", "antmaze", "maze2d", "pen", "hammer", "door", "relocate"),
    *("kitchen", "minigrid", "carla", "flow"),
)
"""Prefixes of the names of datasets."""

PATTERN: Final = re.compile(rf"(bullet-)?({'|'.join(FAMILIES)})(-[a-z0-9-]+)?-v[0-2]")
"""Names of D4RL's datasets."""

_SERVER: Final = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
_LOCOMOTION: Final = re.compile(r"(bullet-)?(hopper|halfcheetah|walker2d|ant)-([a-z-]+)-v(\d+)")
_MAZE: Final = re.compile(r"maze2d-([a-z-]+?)(-dense)?-v(\d+)")
_ANT_MAZE: Final = re.compile(r"antmaze-(umaze|medium|large)(?:-(diverse|play))?-v(\d+)")
_HAND: Final = re.compile(r"(pen|hammer|door|relocate)-(human|cloned|expert)-v(\d+)")
_HAND_FILES: Final = {
    "human": "{}-v0_demos_clipped",
    "cloned": "{}-demos-v0-bc-combined",
    "expert": "{}-v0_expert_clipped",
}
_KITCHEN_FILES: Final = {
    "complete": "mini_kitchen_microwave_kettle_light_slider",
    "partial": "kitchen_microwave_kettle_light_slider",
    "mixed": "kitchen_microwave_kettle_bottomburner_light",
}
_ENVIRONMENTS: Final = {
    "hopper": ("Hopper-v4", {}),
    "halfcheetah": ("HalfCheetah-v4", {}),
    "walker2d": ("Walker2d-v4", {}),
    "ant": ("Ant-v4", {"use_contact_forces": True}),
}
_SAME: Final = 1e-4  # tolerance: some files store next observations with fewer digits


def get_d4rl(
    env_name: str,
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    render_mode: str | None = None,
    max_episode_steps: int = 1000,
    *,
    path: Where = None,
    storage: StorageLocation = "memory",
    sampler: Sampler | None = None,
) -> tuple[ReplayBuffer, gymnasium.Env[Any, Any] | None]:
    """Read a dataset of D4RL from its HDF5 file. Nothing is downloaded: if the file is missing, the error names it.

    Terminations and time limits are distinguished. The observation after a time limit is kept if the file has
    ``next_observations``. Episodes that a file cuts without a flag end where ``next_observations`` are discontinuous.
    Arrays below ``infos/`` are left out.

    Differs from d3rlpy: neither d4rl nor an old gym is needed, a step may be both terminal and a time limit, and
    episodes of one step and steps after the last end are included.

    Args:
        env_name: such as ``"hopper-medium-v0"``.
        transition_picker: makes transitions from steps.
        trajectory_slicer: makes windows of steps.
        render_mode: render mode of the environment.
        max_episode_steps: time limit of the environment, and of the data if the file has no ``timeouts``.
        path: the file, or its folder; ``None`` for ``BIRL_DATA_DIR`` (else ``~/.birl/datasets``) and
            ``~/.d4rl/datasets``.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: selects the steps of minibatches; `birl.dataset.Uniform` if ``None``.

    Returns:
        The dataset, and its environment in today's Gymnasium (``None``, with a warning, if it is not available:
        hopper, halfcheetah, walker2d and ant have one).

    Raises:
        FileError: if the file is missing; the message says what to download and where to put it.
        CorruptFileError, ForeignFileError: if it cannot be used.
        EnvironmentMismatchError: if its shapes differ from the environment's.
    """
    check("max_episode_steps", max_episode_steps, int, low=1)
    relative = _file_name(check("env_name", env_name, str))
    listed = "the file that https://github.com/Farama-Foundation/D4RL lists for it in d4rl/infos.py"
    names = [f"{env_name}.hdf5"] if relative is None else [Path(relative).name, f"{env_name}.hdf5"]
    file = find(f"the dataset {env_name!r}", names, path, listed if relative is None else _SERVER + relative)
    data = read_arrays(file, ("observations", "actions", "rewards", "terminals"), ("timeouts", "next_observations"))
    env = environment_or_none(repr(env_name), lambda: _environment(env_name, render_mode, max_episode_steps))
    discrete = env_name.startswith("minigrid")
    if env is not None:
        _check_shapes(file, data, env_name, env, discrete=discrete)
    terminals = as_flags("terminals", data["terminals"])
    following = data.get("next_observations")
    if "timeouts" in data:
        timeouts = as_flags("timeouts", data["timeouts"])
    else:
        timeouts = _time_limits(terminals, max_episode_steps)
    if following is not None:
        timeouts |= _breaks(data["observations"], following)
        following = _only_at_ends(data["observations"], following, terminals | timeouts)
    dataset = MDPDataset(
        data["observations"],
        data["actions"],
        data["rewards"],
        terminals,
        timeouts,
        transition_picker,
        trajectory_slicer,
        ActionSpace.DISCRETE if discrete else ActionSpace.CONTINUOUS,
        next_observations=following,
        storage=storage,
        sampler=sampler,
    )
    return dataset, env


def _file_name(name: str) -> str | None:
    """Return the path of a dataset on D4RL's server, ``None`` if it follows no rule."""
    if found := _LOCOMOTION.fullmatch(name):
        bullet, task, kind, version = found.groups()
        kind = kind.replace("-", "_")
        if bullet:
            return f"bullet/bullet-{task}_{kind}.hdf5"
        if version != "0":
            return f"gym_mujoco_v{version}/{task}_{kind}-v{version}.hdf5"
        if kind == "medium_replay":
            return f"gym_mujoco/{'walker' if task == 'walker2d' else task}_mixed.hdf5"
        return f"gym_mujoco/{task}_{kind}.hdf5"
    if found := _MAZE.fullmatch(name):
        maze, dense, version = found.groups()
        suffix = "" if version == "0" else f"-v{version}"
        return f"maze2d/maze2d-{maze}-{'dense' if dense else 'sparse'}{suffix}.hdf5"
    if found := _ANT_MAZE.fullmatch(name):
        maze, kind, version = found.groups()
        maze = {"umaze": "u-maze", "medium": "big-maze", "large": "hardest-maze"}[maze]
        starts, goals = kind is not None, kind == "diverse"
        folder, suffix = ("ant_maze_new", "") if version == "0" else (f"ant_maze_v{version}", "_fixed")
        return f"{folder}/Ant_maze_{maze}_noisy_multistart_{starts}_multigoal_{goals}_sparse{suffix}.hdf5"
    if found := _HAND.fullmatch(name):
        task, kind, version = found.groups()
        if version == "0":
            return f"hand_dapg/{_HAND_FILES[kind].format(task)}.hdf5"
        return f"hand_dapg_v{version}/{task}-{kind}-v{version}.hdf5"
    kind = name.removeprefix("kitchen-").removesuffix("-v0")
    return f"kitchen/{_KITCHEN_FILES[kind]}-v0.hdf5" if kind in _KITCHEN_FILES else None


def _environment(name: str, render_mode: str | None, max_episode_steps: int) -> gymnasium.Env[Any, Any]:
    env_id, options = _ENVIRONMENTS.get(name.partition("-")[0], (name, {}))
    with warnings.catch_warnings():
        # Version 4 is the newest one with the dynamics and observations of the data.
        warnings.filterwarnings("ignore", ".*is out of date.*", DeprecationWarning)
        more: dict[str, Any] = {"render_mode": render_mode, "max_episode_steps": max_episode_steps, **options}
        return make_env(env_id, **more)


def _check_shapes(
    file: Path, data: dict[str, Array], name: str, env: gymnasium.Env[Any, Any], *, discrete: bool
) -> None:
    """Refuse a file with the data of another environment."""
    given = data["observations"].shape[1:], () if discrete else data["actions"].shape[1:] or (1,)
    wanted = env.observation_space.shape, env.action_space.shape
    if given != wanted:
        raise EnvironmentMismatchError(
            f"{file} has observations of shape {given[0]} and actions of shape {given[1]}, the environment of {name!r} "
            f"has {wanted[0]} and {wanted[1]}: give path= the file of this dataset"
        )


def _time_limits(terminals: Array, limit: int) -> Array:
    """Return every ``limit``-th step of an episode, where older files without ``timeouts`` were cut."""
    timeouts = np.zeros(len(terminals), bool)
    begin = 0
    for end in [*(np.flatnonzero(terminals) + 1).tolist(), len(terminals)]:
        timeouts[begin + limit - 1 : end : limit] = True
        begin = end
    return timeouts


def _breaks(observations: Array, following: Array) -> Array:
    """Return the steps whose next observation differs from the observation of the next row."""
    breaks = np.zeros(len(observations), bool)
    if observations.shape == following.shape:
        same = np.isclose(following[:-1], observations[1:], _SAME, _SAME, equal_nan=True)
        breaks[:-1] = ~same.reshape(len(same), -1).all(axis=1)
    return breaks


def _only_at_ends(observations: Array, following: Array, ends: Array) -> Array:
    """Replace next observations inside episodes by the observations of the next rows, which are exact."""
    if observations.shape != following.shape:
        return following  # MDPDataset raises the error
    exact = following.copy()
    inside = np.flatnonzero(~ends[:-1])
    exact[inside] = observations[inside + 1]
    return exact
