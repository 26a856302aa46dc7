"""`DatasetInfo` of environments and of signatures."""

from __future__ import annotations

from typing import Any

import numpy as np

from birl.checks import check
from birl.dataset.episode import DatasetInfo, Signature
from birl.dataset.validation import check_stored, prepare_actions
from birl.dataset.writers import WriterPreprocessProtocol
from birl.errors import ConfigError
from birl.spaces import KINDS, actions_of, single_spaces, zero_observation
from birl.types import ActionSpace, parts_like, tree_map


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
    actions = actions_of(env_action_space)
    if action_space not in (None, actions.kind):
        raise ConfigError(f"action_space is {action_space}; it must be None or {actions.kind}, the environment's")
    observation, size = Signature.of(tree_map(np.asarray, zero)), _size(action_size, actions.size)
    return DatasetInfo(observation, Signature.of(actions.leaf), reward, actions.kind, size)


def info_of_signatures(
    observation: Signature,
    action: Signature,
    reward: Signature,
    action_space: ActionSpace | None,
    action_size: int | None,
) -> DatasetInfo:
    """The info that signatures make up."""
    leaf = action.as_row().tree
    zeros, space = prepare_actions(np.zeros((1, *leaf.shape), leaf.dtype), action_space)
    if KINDS[space].discrete and action_size is None:
        raise ConfigError("action_size is None; with signatures alone it must be the number of discrete actions")
    size = _size(action_size, zeros.shape[1])
    check_stored(KINDS[space](size), zeros)
    return DatasetInfo(observation, Signature.of(zeros, skip=1), reward, space, size)


def _size(given: int | None, found: int) -> int:
    return found if given is None else check("action_size", given, int, low=1)
