"""Whole rollouts compared with Stable-Baselines3 2.9.2: same weights and steps, same weights after learning.

The files were written by ``write_rollouts.py`` in ``tests/data/sb3``. Where birl differs on purpose, a test undoes what
the docstring says under "Differs from Stable-Baselines3" and nothing else.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from birl.algos import A2CConfig, PPOConfig, ppo
from birl.models import VectorEncoderFactory
from birl.optimizers import RMSpropFactory
from birl.run.protocols import Rollout

DATA = Path(__file__).parents[1] / "data" / "sb3"
SMALL = VectorEncoderFactory([8, 8], activation="tanh")
A2C: dict[str, Any] = {
    "optim_factory": RMSpropFactory(alpha=0.99, eps=1e-5, centered=False, clip_grad_norm=0.5),  # epsilon outside
    "entropy_coefficient": 0.0,
}
PPO: dict[str, Any] = {"batch_size": 6, "n_epochs": 3, "normalize_advantage": False, "learning_rate": 1e-2}
CASES: dict[str, dict[str, Any]] = {
    "A2C": {**A2C, "entropy_coefficient": 0.02},
    "A2C continuous": {**A2C, "gae_lambda": 0.9},
    "PPO": {**PPO, "entropy_coefficient": 0.02},
    "PPO continuous": {**PPO, "value_clip_range": 0.1, "entropy_coefficient": 0.0},
    "PPO standardised": {**PPO, "normalize_advantage": True, "entropy_coefficient": 0.0},
}


def weights(given: dict[str, torch.Tensor], when: str) -> dict[str, torch.Tensor]:
    """SB3's weights by birl's names; a layer's place there is twice its number, for activations count."""
    found = {}
    for (own, its, head), kind in itertools.product(
        (("actor", "policy", "action"), ("value", "value", "value")), ("weight", "bias")
    ):
        for layer in range(2):
            name = f"{own}.encoder.layers.{layer}.linear.{kind}"
            found[name] = given[f"{when}.mlp_extractor.{its}_net.{2 * layer}.{kind}"]
        found[f"{own}.linear.{kind}"] = given[f"{when}.{head}_net.{kind}"]
    if f"{when}.log_std" in given:
        found["actor.log_std"] = given[f"{when}.log_std"]
    return found


def distance(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """How far birl's weights are from SB3's after a rollout, and how far SB3's have moved."""
    with np.load(DATA / f"{name}.npz") as file:
        given = {key: file[key] for key in file.files}
    tensors = {key: torch.from_numpy(value) for key, value in given.items()}
    discrete, lead = "before.log_std" not in given, given["reward"].shape
    config: Any = A2CConfig if name.startswith("A2C") else PPOConfig
    encoders = {"actor_encoder_factory": SMALL, "value_encoder_factory": SMALL}
    algorithm = config(gamma=0.9, **encoders, **CASES[name]).create()
    algorithm.create_impl((3,), 3 if discrete else 2, discrete_action=discrete)
    before, wanted = weights(tensors, "before"), weights(tensors, "after")
    algorithm.nets.load_state_dict(before)
    steps = ("observation", "reward", "next_observation", "terminated", "truncated")
    rollout = Rollout(
        **{key: given[key] for key in steps},
        action=given["action"][..., 0].astype(np.int64) if discrete else given["action"],
        is_first=np.zeros(lead, bool),
        valid=np.ones(lead, bool),
        extra={},
    )
    length, lanes = lead  # SB3 counts steps of one environment after another, birl environments of one step
    orders = iter([torch.from_numpy(order % length * lanes + order // length) for order in given["orders"]])
    monkeypatch.setattr(torch, "randperm", lambda count: next(orders))
    algorithm.update(rollout)
    after = algorithm.nets.state_dict()
    apart = max((after[key] - value).abs().max().item() for key, value in wanted.items())
    return apart, max((before[key] - value).abs().max().item() for key, value in wanted.items())


def undo(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PPO's docstring says."""
    if name == "PPO standardised":
        monkeypatch.setattr(ppo, "standardized", lambda x, share: (x - x.mean()) / (x.std() + 1e-8))
    if name == "PPO continuous":
        monkeypatch.setattr(torch, "max", lambda error, clipped: clipped)


@pytest.mark.parametrize("name", CASES)
def test_rollouts_are_learned_as_by_stable_baselines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    undo(name, monkeypatch)
    apart, moved = distance(name, monkeypatch)
    assert apart < 1e-5 and moved > 1e-3, (apart, moved)


@pytest.mark.parametrize("name", ["PPO standardised", "PPO continuous"])
def test_what_is_documented_makes_a_difference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, _ = distance(name, monkeypatch)
    assert apart > 1e-4
