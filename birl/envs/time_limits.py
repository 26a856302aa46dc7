"""A wrapper that reports time limits as terminations."""

from __future__ import annotations

from typing import Any

import gymnasium

from birl.envs.wrappers import Action, check_wrappable
from birl.types import Tree


class TruncationAsTermination(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Wrapper that reports the end of an episode by a time limit as a termination.

    The value of the state after the last step then does not count in targets and advantages. By default it does,
    because the task goes on where only the time has run out. Use this wrapper where the time limit is a part of the
    task, or to repeat results of libraries that do not distinguish the two.

    Args:
        env: environment.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(check_wrappable(env, self))

    def step(self, action: Action) -> tuple[Tree, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, bool(terminated or truncated), False, info
