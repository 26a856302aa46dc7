"""Environments that are known by their spaces alone."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import Space


class ExternalEnv(gymnasium.Env[Any, Any]):
    """Stands for an environment that birl cannot step: a robot, a game, a service that calls in.

    Algorithms, replay buffers and agents take it as their ``env``, for its spaces.

    Args:
        observation_space, action_space: of one environment.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
