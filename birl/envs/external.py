"""Environments that only have spaces."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import Space

from birl.spaces.specs import single_spaces


class ExternalEnv(gymnasium.Env[Any, Any]):
    """Placeholder for an environment that birl cannot step, such as a robot, a game or a service that calls birl.

    Algorithms, replay buffers and agents take it as ``env`` for its spaces.

    Args:
        observation_space: observation space of one environment.
        action_space: action space of one environment.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        single_spaces(self)  # checks them
