"""Preprocessing of steps before they are stored."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from birl.dataset.episode import Observation, stack_trees
from birl.types import Array, tree_map


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


def process_batch(writer: WriterPreprocessProtocol, observations: Observation, count: int) -> Observation:
    """`process_observation` for each of ``count`` observations ``[n, …]``."""
    method = type(writer).process_observation
    if method is BasicWriterPreprocess.process_observation:
        return observations
    if method is LastFrameWriterPreprocess.process_observation:
        return tree_map(lambda leaf: np.asarray(leaf)[:, -1:], observations)

    def process(index: int) -> Observation:
        item = writer.process_observation(tree_map(lambda leaf: np.asarray(leaf)[index], observations))
        is_list = isinstance(item, list) and isinstance(observations, tuple)  # the parts of a tuple, as d3rlpy has them
        return tree_map(np.asarray, tuple(item) if is_list else item)

    return stack_trees(process(index) for index in range(count))
