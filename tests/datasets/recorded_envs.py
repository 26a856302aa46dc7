"""Small environments that Minari can make again, whose observations tell which step they belong to."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class CountingEnv(gymnasium.Env[Any, Any]):
    """Step t of episode e is observed as 100 e + t and rewarded with t. Action 0 goes on, 1 ends the episode."""

    def __init__(self, kind: str = "vector") -> None:
        self.kind = kind
        box = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        goals = spaces.Dict({"b": spaces.Box(-1, 1, (1,)), "a": spaces.Box(-2, 2, (2,))})
        self.observation_space: spaces.Space[Any] = {
            "vector": box,
            "image": spaces.Box(0, 255, (6, 8, 3), np.uint8),
            "grey": spaces.Box(0, 255, (6, 8), np.uint8),
            "goal": spaces.Dict({"observation": box, "achieved_goal": goals, "desired_goal": goals}),
            "dict": spaces.Dict({"left": box, "right": spaces.Tuple((box, spaces.MultiBinary(2)))}),
            "number": spaces.Discrete(300),
        }[kind]
        continuous = kind in ("vector", "goal")
        self.action_space = spaces.Box(-2.0, 2.0, (1,)) if continuous else spaces.Discrete(5)
        self.number = -1

    def observe(self) -> Any:
        value = 100.0 * self.number + self.time
        vector = np.full(3, value)
        if self.kind in ("image", "grey"):
            image = np.zeros(self.observation_space.shape, np.uint8)
            image[0, 1] = value
            return image
        goals = {"a": np.float32([0.5, 1.5]), "b": np.float32([self.number])}
        return {
            "vector": vector,
            "goal": {"observation": vector, "achieved_goal": goals, "desired_goal": goals},
            "dict": {"left": vector, "right": (-vector, np.array([0, 1], np.int8))},
            "number": int(value),
        }[self.kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number, self.time = self.number + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observe(), float(self.time), bool(np.asarray(action).reshape(-1)[0] == 1), False, {}


KINDS = ("vector", "image", "grey", "goal", "dict", "number")

for kind in KINDS:
    name = f"recorded/{kind}-v0"
    entry = "recorded_envs:CountingEnv"
    gymnasium.register(name, entry_point=entry, kwargs={"kind": kind}, max_episode_steps=4)


class TakingEnv(gymnasium.Env[Any, Any]):
    """Takes actions of any space."""

    observation_space = spaces.Box(-1, 1, (3,))

    def __init__(self, kind: str) -> None:
        self.action_space = ACTIONS[kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return np.zeros(3, np.float32), 1.0, False, False, {}


ACTIONS: dict[str, spaces.Space[Any]] = {
    "from-k": spaces.Discrete(3, start=2),
    "several": spaces.MultiDiscrete([3, 4], start=[1, -2]),
    "table": spaces.MultiDiscrete([[2, 3], [3, 2]]),
    "matrix": spaces.Box(-2, 2, (2, 2)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2, start=1))),
    "dict": spaces.Dict(move=spaces.Discrete(3, start=1), force=spaces.Box(0, 5, (2,)), buttons=spaces.MultiBinary(2)),
    "nested": spaces.Tuple((spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (1,))), spaces.Discrete(2))),
}

for kind in ACTIONS:
    entry = "recorded_envs:TakingEnv"
    gymnasium.register(f"taking/{kind}-v0", entry_point=entry, kwargs={"kind": kind}, max_episode_steps=4)
