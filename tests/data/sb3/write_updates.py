"""Writes ``TD3.npz`` and ``DQN.npz`` with Stable-Baselines3 2.9.2: weights before and after ten of its updates.

Run it in this folder, with Stable-Baselines3 installed: ``python write_updates.py``. Minibatches are those of
``../d3rlpy/updates``.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

with np.load("../d3rlpy/updates/batches.npz") as file:
    batches = {name: torch.from_numpy(file[name]) for name in file.files}
STEPS = len(batches["rewards"])


class Spaces(gymnasium.Env):
    """Has shapes and does nothing."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, discrete: bool) -> None:
        self.action_space = gymnasium.spaces.Discrete(3) if discrete else gymnasium.spaces.Box(-1, 1, (2,))


for name in ("TD3", "DQN"):
    discrete = name == "DQN"
    options = {"policy_kwargs": {"net_arch": [8, 8]}, "seed": 0, "device": "cpu", "batch_size": 16}
    model = getattr(stable_baselines3, name)("MlpPolicy", Spaces(discrete), learning_rate=1e-3, **options)
    model.set_logger(Logger(None, []))
    found = {f"before.{key}": value.numpy().copy() for key, value in model.policy.state_dict().items()}
    for step in range(STEPS):
        given = {key: value[step] for key, value in batches.items()}
        sample = ReplayBufferSamples(
            observations=given["observations"],
            actions=given["discrete" if discrete else "continuous"],
            next_observations=given["next_observations"],
            dones=given["terminals"],
            rewards=given["rewards"],
        )
        model.replay_buffer.sample = lambda *_, sample=sample, **__: sample
        torch.manual_seed(step)
        model.train(gradient_steps=1, batch_size=16)
    found |= {f"after.{key}": value.numpy() for key, value in model.policy.state_dict().items()}
    np.savez_compressed(f"{name}.npz", **found)
