"""Writes ``A2C.npz`` and ``PPO*.npz`` with Stable-Baselines3 2.9.2: rollouts, and weights before and after learning.

Run it in this folder, with Stable-Baselines3 installed: ``python write_rollouts.py``. The environments play back random
numbers whatever is done in them, so that their steps are known; the library itself acts, collects and learns.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

LENGTH, LANES, SIZE = 12, 2, 3
SMALL = {"net_arch": [8, 8]}  # A2C writes its optimiser into it
COMMON = {"seed": 0, "device": "cpu", "gamma": 0.9, "n_steps": LENGTH}
PPO = {"batch_size": 6, "n_epochs": 3, "normalize_advantage": False, "learning_rate": 1e-2}
CASES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "A2C": ("A2C", True, {"ent_coef": 0.02}),
    "A2C continuous": ("A2C", False, {"gae_lambda": 0.9}),
    "PPO": ("PPO", True, {**PPO, "ent_coef": 0.02}),
    "PPO continuous": ("PPO", False, {**PPO, "clip_range_vf": 0.1}),
    "PPO standardised": ("PPO", True, {**PPO, "normalize_advantage": True}),
}


class Playback(gymnasium.Env):
    """Steps that are known before, two episodes of which end by themselves and one by a time limit."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)

    def __init__(self, lane: int, discrete: bool) -> None:
        self.action_space = gymnasium.spaces.Discrete(3) if discrete else gymnasium.spaces.Box(-1, 1, (2,))
        generator = np.random.default_rng(lane)
        self.observations = generator.normal(size=(LENGTH + 9, SIZE)).astype(np.float32)
        self.rewards = generator.normal(size=LENGTH).astype(np.float32)
        self.ends = {3 + lane: "terminated", 6 + lane: "truncated"}
        self.row, self.made = 0, 0
        self.rows: list[tuple[Any, ...]] = []

    def _next(self) -> Any:
        self.row += 1
        return self.observations[self.row - 1]

    def reset(self, **options: Any) -> Any:
        self.last = self._next()
        return self.last, {}

    def step(self, action: Any) -> Any:
        before, self.last = self.last, self._next()
        end, reward = self.ends.get(self.made), self.rewards[self.made]
        self.made += 1
        self.rows.append((before, reward, self.last, end == "terminated", end == "truncated"))
        return self.last, float(reward), end == "terminated", end == "truncated", {}


class Before(BaseCallback):
    """Keeps the weights that are there before an update, and the orders in which it draws minibatches."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        state = self.model.policy.state_dict()
        self.weights = {f"before.{key}": value.numpy().copy() for key, value in state.items()}


for name, (kind, discrete, options) in CASES.items():
    lanes = [Playback(lane, discrete) for lane in range(LANES)]
    envs = DummyVecEnv([lambda lane=lane: lane for lane in lanes])
    model = getattr(stable_baselines3, kind)("MlpPolicy", envs, policy_kwargs=dict(SMALL), **{**COMMON, **options})
    for lane in lanes:  # what building has used
        lane.row, lane.made, lane.rows = 0, 0, []
    orders: list[Any] = []
    permutation = np.random.permutation

    def kept(count: int, orders: list[Any] = orders, permutation: Any = permutation) -> Any:
        orders.append(permutation(count))
        return orders[-1]

    callback = Before()
    np.random.permutation = kept
    model.learn(LENGTH * LANES, callback=callback)
    np.random.permutation = permutation
    columns = zip(*(zip(*lane.rows, strict=True) for lane in lanes), strict=True)
    names = ("observation", "reward", "next_observation", "terminated", "truncated")
    found = {key: np.stack([np.stack(lane) for lane in column], 1) for key, column in zip(names, columns, strict=True)}
    found["action"] = model.rollout_buffer.actions.reshape(LANES, LENGTH, -1).swapaxes(0, 1)
    found["orders"] = np.stack(orders)
    found |= callback.weights
    found |= {f"after.{key}": value.numpy() for key, value in model.policy.state_dict().items()}
    np.savez_compressed(f"{name}.npz", **found)
