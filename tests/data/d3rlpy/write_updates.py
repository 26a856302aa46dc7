"""Writes ``updates/`` with d3rlpy 2.8.1: what ten of its updates make of the models next to this file.

Run it in this folder, with d3rlpy installed, after ``write.py``: ``python write_updates.py``.
"""

from __future__ import annotations

import d3rlpy
import numpy as np
import torch
from d3rlpy.torch_utility import TorchMiniBatch

NAMES = ("awac", "bc", "cal_ql", "cql", "crr", "ddpg", "discrete_bc", "discrete_bcq", "discrete_cql", "discrete_sac")
NAMES += ("dqn", "dqn_qr", "iql", "nfq", "rebrac", "sac", "sac_qr", "td3", "td3_plus_bc")
STEPS, BATCH, OBSERVATION, ACTION = 10, 16, 3, 2

generator = np.random.default_rng(1)
batches = {
    "observations": generator.normal(size=(STEPS, BATCH, OBSERVATION)).astype(np.float32),
    "next_observations": generator.normal(size=(STEPS, BATCH, OBSERVATION)).astype(np.float32),
    "continuous": generator.uniform(-1, 1, (STEPS, BATCH, ACTION)).astype(np.float32),
    "next_continuous": generator.uniform(-1, 1, (STEPS, BATCH, ACTION)).astype(np.float32),
    "discrete": generator.integers(0, 3, (STEPS, BATCH, 1)),
    "rewards": 2 * generator.normal(size=(STEPS, BATCH, 1)).astype(np.float32),  # on both sides of Huber's corner
    "returns_to_go": generator.normal(size=(STEPS, BATCH, 1)).astype(np.float32),
    "terminals": (generator.random((STEPS, BATCH, 1)) < 0.2).astype(np.float32),
}
np.savez_compressed("updates/batches.npz", **batches)


def reset_moments(algorithm: object) -> None:
    """birl begins with fresh optimisers, so d3rlpy does; and files without moments are small."""
    for wrapper in vars(algorithm.impl.modules).values():
        if hasattr(wrapper, "optim"):
            wrapper.optim.state.clear()


for name in NAMES:
    algorithm = d3rlpy.load_learnable(f"{name}.d3")
    reset_moments(algorithm)
    kind = "discrete" if algorithm.get_action_type().name == "DISCRETE" else "continuous"
    for step in range(STEPS):
        given = {key: torch.from_numpy(value[step]) for key, value in batches.items()}
        batch = TorchMiniBatch(
            observations=given["observations"],
            actions=given[kind],
            rewards=given["rewards"],
            next_observations=given["next_observations"],
            next_actions=given["next_continuous" if kind == "continuous" else kind],
            returns_to_go=given["returns_to_go"],
            terminals=given["terminals"],
            intervals=torch.ones(BATCH, 1),
            device="cpu:0",
        )
        torch.manual_seed(step)
        algorithm.impl.update(batch, step + 1)
    reset_moments(algorithm)
    algorithm.save(f"updates/{name}.d3")
