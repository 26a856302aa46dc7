"""The layout of one step of a dataset, from environments, episodes or signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from birl.dataset.episode import DatasetInfo, EpisodeBase, Signature
from birl.dataset.validation import detect_action_size, detect_action_space, prepare_actions
from birl.dataset.writers import WriterPreprocessProtocol
from birl.errors import ConfigError, ShapeError
from birl.spaces import action_leaf, single_spaces, zero_observation
from birl.types import ActionSpace, Leaf, Tree, tree_map

FLOAT_REWARD = Leaf((1,), np.dtype(np.float32))


@dataclass(frozen=True)
class Layout:
    """Shapes and dtypes of one step.

    Attributes:
        observation: tree of `Leaf`.
        action: one action.
        reward: one reward.
        action_space: kind of the actions.
        action_size: number of action dimensions, or of discrete actions.
    """

    observation: Tree
    action: Leaf
    reward: Leaf
    action_space: ActionSpace
    action_size: int

    @classmethod
    def of_env(
        cls,
        env: Any,
        writer: WriterPreprocessProtocol,
        reward: Leaf,
        action_space: ActionSpace | None,
        action_size: int | None,
    ) -> Layout:
        """The layout of an environment's steps as ``writer`` stores them."""
        observation_space, env_action_space = single_spaces(env)
        unprocessed = zero_observation(observation_space)
        zero = writer.process_observation(unprocessed)
        zero = tuple(zero) if isinstance(unprocessed, tuple) and isinstance(zero, list) else zero
        action, space, size = action_leaf(env_action_space)
        if action_space is not None and action_space is not space:
            raise ConfigError(f"action_space is {action_space}; it must be the environment's, {space}: leave it out")
        return cls(Signature.of(tree_map(np.asarray, zero)).tree, action, reward, space, _size(action_size, size))

    @classmethod
    def of_episodes(
        cls, episodes: Sequence[EpisodeBase], action_space: ActionSpace | None, action_size: int | None
    ) -> Layout:
        """The layout of the steps of one or more episodes."""
        first = episodes[0]
        actions, space = prepare_actions(first.actions, action_space)
        size = _size(action_size, actions.shape[1])
        if space is ActionSpace.DISCRETE and action_size is None:
            size = max(detect_action_size(episode.actions, space) for episode in episodes)
        action, reward = row_leaf(Signature.of(actions, skip=1)), row_leaf(first.reward_signature)
        return cls(first.observation_signature.tree, action, reward, space, size)

    @classmethod
    def of_signatures(
        cls,
        observation: Signature,
        action: Signature,
        reward: Leaf,
        action_space: ActionSpace | None,
        action_size: int | None,
    ) -> Layout:
        """The layout that signatures describe."""
        leaf = row_leaf(action)
        space = action_space or detect_action_space(np.zeros((1, *leaf.shape), leaf.dtype))
        if space is ActionSpace.DISCRETE and action_size is None:
            raise ConfigError("action_size is None; with signatures alone it must be the number of discrete actions")
        if space is ActionSpace.DISCRETE and leaf.dtype.kind not in "iu":
            leaf = Leaf((1,), np.dtype(np.int64))
        return cls(observation.tree, leaf, reward, space, _size(action_size, leaf.shape[0]))

    @property
    def info(self) -> DatasetInfo:
        """Signatures, action space and size."""
        shape = tree_map(lambda leaf: leaf.shape, self.observation)
        dtype = tree_map(lambda leaf: leaf.dtype, self.observation)
        return DatasetInfo(
            Signature([dtype], [shape]) if isinstance(self.observation, Leaf) else Signature(dtype, shape),
            Signature([self.action.dtype], [self.action.shape]),
            Signature([self.reward.dtype], [self.reward.shape]),
            self.action_space,
            self.action_size,
        )


def _size(given: int | None, found: int) -> int:
    return found if given is None else int(given)


def row_leaf(signature: Signature) -> Leaf:
    """One row of numbers: a scalar counts as ``(1,)``."""
    leaf = signature.tree
    if not isinstance(leaf, Leaf) or len(leaf.shape) > 1:
        raise ShapeError(f"actions and rewards have the shape {signature.shape}; it must be [(size,)]: flatten them")
    return Leaf(leaf.shape or (1,), leaf.dtype)
