"""Preprocessing of steps before they are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from birl.dataset.episode import Observation, parts_like, stack_trees
from birl.types import Array, Tree, tree_leaves, tree_map


@runtime_checkable
class WriterPreprocessProtocol(Protocol):
    """Changes one step on its way into a buffer. A method that is not overridden changes nothing."""

    def process_observation(self, observation: Observation) -> Observation:
        """The observation to store; final observations pass here too."""
        return observation

    def process_action(self, action: Array) -> Array:
        """The action to store."""
        return action

    def process_reward(self, reward: Array) -> Array:
        """The reward to store."""
        return reward


class BasicWriterPreprocess(WriterPreprocessProtocol):
    """Stores steps unchanged."""


class LastFrameWriterPreprocess(BasicWriterPreprocess):
    """Stores only the newest frame of stacked observations ``[n, …]``, as ``[1, …]``.

    With `birl.dataset.FrameStackTransitionPicker` the stack is made again when it is sampled: a frame is stored once.
    """

    def process_observation(self, observation: Observation) -> Observation:
        """The last item of the first axis, axis kept."""
        return tree_map(lambda leaf: np.asarray(leaf)[-1:], observation)


def process_batch(method: Callable[[Tree], Tree], values: Tree) -> Tree:
    """The results of a writer's ``method`` for each of the observations ``[n, …]``, or of the actions or rewards.

    Only observations are trees: a list or tuple of actions is an array.
    """
    function = getattr(method, "__func__", method)
    if function in vars(WriterPreprocessProtocol).values():  # it is not overridden
        return values
    if method.__name__ != "process_observation":
        return np.stack([np.asarray(method(value)) for value in np.asarray(values)])
    values = tree_map(np.asarray, values)
    if function is LastFrameWriterPreprocess.process_observation:
        return tree_map(lambda leaf: leaf[:, -1:], values)

    def process(index: int) -> Tree:
        return tree_map(np.asarray, parts_like(method(tree_map(lambda leaf: leaf[index], values)), values))

    return stack_trees(map(process, range(len(next(tree_leaves(values))))))
