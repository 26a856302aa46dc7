"""Writes ``TRPO_continuous.npz`` and ``TRPO_discrete.npz`` with sb3-contrib 2.9.2: rollouts, and weights before and
after each of its updates from them.

Run it in this folder, with sb3-contrib installed: ``python write_trpo.py``.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from sb3_contrib import TRPO
from stable_baselines3.common.logger import Logger

STEPS, LANES, ROLLOUTS = 24, 2, 4


class Spaces(gymnasium.Env):
    """Has shapes and does nothing."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, discrete: bool) -> None:
        self.action_space = gymnasium.spaces.Discrete(3) if discrete else gymnasium.spaces.Box(-1, 1, (2,))


for discrete in (False, True):
    model = TRPO(
        "MlpPolicy",
        Spaces(discrete),
        n_steps=STEPS,
        batch_size=STEPS * LANES,
        n_critic_updates=3,
        line_search_shrinking_factor=0.5,
        policy_kwargs={"net_arch": [8, 8], "ortho_init": False},
        seed=0,
        device="cpu",
    )
    model.set_logger(Logger(None, []))
    buffer = model.rollout_buffer = type(model.rollout_buffer)(
        STEPS, model.observation_space, model.action_space, gamma=0.99, gae_lambda=0.95, n_envs=LANES
    )
    generator = np.random.default_rng(0)
    found = {}
    for number in range(ROLLOUTS):
        state = model.policy.state_dict()
        found |= {f"{number}.{key}": value.numpy().copy() for key, value in state.items()}
        observation = generator.normal(size=(STEPS + 1, LANES, 3)).astype(np.float32)
        action = generator.normal(size=(STEPS, LANES, 2)).astype(np.float32)
        if discrete:
            action = generator.integers(3, size=(STEPS, LANES, 1)).astype(np.float32)
        reward = (observation[:-1, :, 0] * action[..., 0] + generator.normal(size=(STEPS, LANES))).astype(np.float32)
        terminated = generator.random((STEPS, LANES)) < 0.15
        found |= {
            f"{number}.observation": observation,
            f"{number}.action": action,
            f"{number}.reward": reward,
            f"{number}.terminated": terminated,
        }
        buffer.reset()
        first = np.ones(LANES, bool)
        for t in range(STEPS):
            x, a = torch.from_numpy(observation[t]), torch.from_numpy(action[t])
            with torch.no_grad():
                value, log_prob, _ = model.policy.evaluate_actions(x, a.flatten().long() if discrete else a)
            buffer.add(observation[t], action[t], reward[t], first, value, log_prob)
            first = terminated[t]
        with torch.no_grad():
            last = model.policy.predict_values(torch.from_numpy(observation[STEPS]))
        buffer.compute_returns_and_advantage(last_values=last, dones=first)
        model.train()
    found |= {f"{ROLLOUTS}.{key}": value.numpy().copy() for key, value in model.policy.state_dict().items()}
    np.savez_compressed(f"TRPO_{'discrete' if discrete else 'continuous'}.npz", **found)
