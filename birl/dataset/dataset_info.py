"""`DatasetInfo` of environments and of signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from birl.dataset.episode import DatasetInfo, Signature
from birl.dataset.validation import check_stored, prepare_actions
from birl.dataset.writers import WriterPreprocessProtocol
from birl.errors import ConfigError
from birl.spaces import actions_of, actions_told
from birl.spaces.observations import as_observations, chosen, leaf_spaces, observations_of, shapes_of
from birl.spaces.specs import single_spaces
from birl.types import ActionSpace, parts_like, tree_map


def info_of_env(
    env: Any,
    writer: WriterPreprocessProtocol,
    reward: Signature,
    action_space: ActionSpace | None,
    action_size: Any,
    keys: Sequence[str] | None,
) -> DatasetInfo:
    """The info of an environment's steps, of observations those parts with these names, as ``writer`` stores them."""
    observation_space, env_action_space = single_spaces(env)
    leaves = chosen(leaf_spaces(observation_space), keys)
    observations = observations_of(leaves)
    unprocessed = tree_map(lambda space: np.zeros(space.shape, space.dtype), leaves)
    zero = parts_like(writer.process_observation(unprocessed), unprocessed)
    actions = actions_of(env_action_space)
    if action_space not in (None, actions.kind):
        raise ConfigError(f"action_space is {action_space}; it must be None or {actions.kind}, the environment's")
    if action_size is not None:
        actions = actions_told(action_size, actions.kind)
    observation = Signature.of(tree_map(np.asarray, zero))
    kept = observation == Signature.of(unprocessed)
    return DatasetInfo(
        observation, Signature.of(actions.leaf), reward, actions.kind, actions.told, observations if kept else None
    )


def info_of_signatures(
    observation: Signature,
    action: Signature,
    reward: Signature,
    action_space: ActionSpace | None,
    action_size: Any,
    observation_space: Any,
) -> DatasetInfo:
    """The info that signatures make up."""
    leaf = action.as_row().tree
    zeros, actions = prepare_actions(np.zeros((1, *leaf.shape), leaf.dtype), action_space, action_size)
    if actions.discrete and action_size is None:
        raise ConfigError("action_size is None; with signatures alone it must be the number of discrete actions")
    if zeros.shape[1:] != actions.leaf.shape:
        check_stored(actions, zeros)
    observations = None if observation_space is None else as_observations(observation_space)
    if observations is not None and shapes_of(observations) != observation.tree_shape:
        raise ConfigError(
            f"observation_space says {observations}, but observation_signature has the shapes "
            f"{observation.tree_shape}: give both of the same steps"
        )
    return DatasetInfo(observation, Signature.of(zeros, skip=1), reward, actions.kind, actions.told, observations)
