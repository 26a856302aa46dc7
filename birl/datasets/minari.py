"""Minari: the Farama Foundation's datasets, and those that its ``DataCollector`` makes.

They need the extra ``minari``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces

from birl.actions import actions_of, as_rows
from birl.checks import check
from birl.dataset import Episode, ReplayBuffer, Sampler, Signature
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.datasets.folders import environment_or_none, stored
from birl.envs.wrappers import ChannelFirst, GoalConcatWrapper, is_channel_last, with_channel_first, with_goal
from birl.errors import (
    ConfigError,
    EmptyDataError,
    EnvironmentMismatchError,
    FileError,
    MissingExtraError,
    ShapeError,
    require,
)
from birl.observations import chosen, leaf_spaces, observations_of, picked
from birl.types import Tree

PATTERN: Final = re.compile(r"([\w-]+/)*[\w-]+-v\d+")
"""Names of Minari's datasets."""

_GOAL = ("observation", "desired_goal")


def get_minari(
    env_name: str,
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    render_mode: str | None = None,
    tuple_observation: bool = False,
    *,
    download: bool = False,
    storage: Any = "memory",
    sampler: Sampler | None = None,
    observation_keys: Sequence[str] | None = None,
) -> tuple[ReplayBuffer, Any]:
    """Load a Minari dataset, one episode after the other.

    Minari keeps T + 1 observations of T steps; the last one becomes the final observation, so that no step is lost.
    Observations and goals of goal-conditioned environments are joined, as `birl.envs.GoalConcatWrapper` does; images
    come channels first, as `birl.envs.ChannelFirst` gives them; other Dict and Tuple observations stay as they are.

    Differs from d3rlpy: observations are not shifted against actions, the environment keeps its time limit, Dict and
    Tuple observations are allowed, and nothing is downloaded unless it is asked for.

    Args:
        env_name: name of the dataset, such as ``"mujoco/hopper/medium-v0"``.
        transition_picker: makes transitions of steps.
        trajectory_slicer: makes windows of steps.
        render_mode: of the environment.
        tuple_observation: give ``(observation, goal)`` instead of one vector.
        download: whether Minari may fetch what is not there.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: chooses the steps of minibatches; `birl.dataset.Uniform` if ``None``.
        observation_keys: names of the parts of Dict and Tuple observations that are read; all if ``None``.

    Returns:
        The dataset and its environment (``None``, with a warning, if it cannot be made here).

    Raises:
        ConfigError: if ``env_name`` is no name of a Minari dataset, or Minari cannot read it.
        MissingExtraError: if Minari is not installed.
        FileError: if the dataset is not on this machine.
        EmptyDataError: if it holds no step.
        ShapeError, ActionError: if its spaces are not supported.
    """
    if not PATTERN.fullmatch(check("env_name", env_name, str)):
        raise ConfigError(
            f"{env_name!r} is no name of a Minari dataset: these look like 'mujoco/hopper/medium-v0', with the version "
            "at the end and nothing but letters, digits, - and _ between slashes"
        )
    minari = require("minari", "minari")
    try:
        source = minari.load_dataset(env_name, download=download)
    except FileNotFoundError as error:
        raise FileError(
            f"the Minari dataset {env_name!r} is not on this machine: run `minari download {env_name}`, or pass "
            "download=True. MINARI_DATASETS_PATH names the folder of datasets (~/.minari/datasets if it is not set)"
        ) from error
    except ImportError as error:
        raise MissingExtraError(f"Minari misses a package ({error}): run `pip install 'birl[minari]'`") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the Minari dataset {env_name!r} cannot be used: {error}") from error

    space, goal = source.observation_space, _is_goal(source.observation_space) and observation_keys is None
    convert, observations = _converter(space, tuple_observation, goal, observation_keys)
    actions = actions_of(source.action_space)

    def episode(item: Any) -> Episode:
        ended = bool(item.terminations[-1])
        taken = actions.stored(as_rows(source.action_space, item.actions))
        return Episode(convert(item.observations), taken, item.rewards, ended, truncated=not ended)

    dataset = stored(
        (episode(item) for item in source.iterate_episodes() if len(item.rewards)),
        transition_picker=transition_picker,
        trajectory_slicer=trajectory_slicer,
        action_signature=Signature([actions.leaf.dtype], [actions.leaf.shape]),
        action_space=actions.kind,
        action_size=actions.told,
        observation_space=observations,
        storage=storage,
        sampler=sampler,
    )
    if dataset is None:
        raise EmptyDataError(f"the Minari dataset {env_name!r} holds no step: collect some")

    def make() -> Any:
        try:
            env = source.recover_environment(**({} if render_mode is None else {"render_mode": render_mode}))
        except (gymnasium.error.Error, ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"Minari cannot make it again: {error}") from error
        if goal:
            return GoalConcatWrapper(env, *_GOAL, tuple_observation)
        return ChannelFirst(env) if is_channel_last(space) else env

    return dataset, environment_or_none(repr(env_name), make)


def _is_goal(space: Any) -> bool:
    return isinstance(space, spaces.Dict) and set(_GOAL) <= set(space.spaces)


def _converter(
    space: Any, tuple_observation: bool, goal: bool, keys: Sequence[str] | None
) -> tuple[Callable[[Any], Tree], Tree]:
    """From observations as Minari keeps them to those that are learned from, and what these are if that is known."""
    if goal:
        return lambda given: with_goal(given, *_GOAL, tuple_observation), None
    if is_channel_last(space):
        return lambda given: with_channel_first(np.asarray(given), len(space.shape)), None
    try:
        observations = observations_of(chosen(leaf_spaces(space), keys))
    except EnvironmentMismatchError as error:
        raise ShapeError(str(error)) from error
    return lambda given: picked(observations, given), observations
