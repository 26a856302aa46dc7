"""`DatasetInfo` of environments and of signatures."""

from __future__ import annotations

from typing import Any

import numpy as np

from birl.dataset.episode import DatasetInfo, Signature, parts_like
from birl.dataset.validation import detect_action_space
from birl.dataset.writers import WriterPreprocessProtocol
from birl.errors import ConfigError
from birl.spaces import action_leaf, single_spaces, zero_observation
from birl.types import ActionSpace, tree_map


def info_of_env(
    env: Any,
    writer: WriterPreprocessProtocol,
    reward: Signature,
    action_space: ActionSpace | None,
    action_size: int | None,
) -> DatasetInfo:
    """The info of an environment's steps as ``writer`` stores them."""
    observation_space, env_action_space = single_spaces(env)
    unprocessed = zero_observation(observation_space)
    zero = parts_like(writer.process_observation(unprocessed), unprocessed)
    action, space, size = action_leaf(env_action_space)
    if action_space is not None and action_space is not space:
        raise ConfigError(f"action_space is {action_space}; it must be the environment's, {space}: leave it out")
    observation = Signature.of(tree_map(np.asarray, zero))
    return DatasetInfo(observation, Signature.of(action), reward, space, _size(action_size, size))


def info_of_signatures(
    observation: Signature,
    action: Signature,
    reward: Signature,
    action_space: ActionSpace | None,
    action_size: int | None,
) -> DatasetInfo:
    """The info that signatures make up."""
    leaf = action.as_row().tree
    space = action_space or detect_action_space(np.zeros((1, *leaf.shape), leaf.dtype))
    if space is ActionSpace.DISCRETE and action_size is None:
        raise ConfigError("action_size is None; with signatures alone it must be the number of discrete actions")
    if space is ActionSpace.DISCRETE and leaf.dtype.kind not in "iu":
        action = Signature([np.int64], [(1,)])
    return DatasetInfo(observation, action.as_row(), reward, space, _size(action_size, leaf.shape[0]))


def _size(given: int | None, found: int) -> int:
    return found if given is None else int(given)
