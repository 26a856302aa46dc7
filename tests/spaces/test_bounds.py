"""Bounds of actions: float64 bounds that float32 rounds away from the space, and bounds that count as none."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from birl import algos
from birl.logging import NoopAdapterFactory
from birl.metrics import evaluate
from birl.models import VectorEncoderFactory
from birl.preprocessing import MinMaxActionScaler
from birl.spaces import actions_from_space
from birl.spaces.actions import inner_bounds

SMALL = VectorEncoderFactory([8])
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
LARGEST = float(np.finfo(np.float32).max)


class Strict(gymnasium.Env[Any, Any]):
    """Accepts only actions in its space."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.action_space = space

    def reset(self, **options: Any) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return np.zeros(1, np.float32), 0.0, True, False, {}


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.3), (-0.7, -0.1), (-1 / 3, 2 / 3), (1000.1, 1000.2)])
def test_no_float32_action_exceeds_float64_bounds(low: float, high: float) -> None:
    inner_low, inner_high = inner_bounds([low], [high])
    assert low <= inner_low < low + 1e-4 and high - 1e-4 < inner_high <= high
    for bound in (inner_low, inner_high):
        assert bound == bound.astype(np.float32)
    actions = actions_from_space(spaces.Box(low, high, (1,), np.float64))
    clipped = actions.clip(np.array([[-1e9], [1e9]], np.float32)).astype(np.float32)
    assert low <= clipped[0, 0] and clipped[1, 0] <= high
    drawn = actions.sample(1000, np.random.Generator(np.random.PCG64(0)))
    assert (drawn >= low).all() and (drawn <= high).all()
    scaler = MinMaxActionScaler([low], [high])
    ends = scaler.reverse_transform(torch.tensor([[-1.0], [1.0]])).numpy()
    assert low <= ends[0, 0] and ends[1, 0] <= high


def test_bounds_of_float32_stay_exact() -> None:
    low, high = np.array([-2.0, 0.1], np.float32), np.array([2.0, 0.3], np.float32)
    inner_low, inner_high = inner_bounds(low.astype(np.float64), high.astype(np.float64))
    assert np.array_equal(inner_low, low) and np.array_equal(inner_high, high)
    assert inner_bounds([0.3], [0.3]) == ([0.3], [0.3])  # nothing in float32 lies between them


@pytest.mark.parametrize("noise", [None, algos.NormalNoise(std=0.5), algos.OrnsteinUhlenbeckNoise(sigma=1.0)])
def test_environments_with_float64_bounds_receive_actions_in_their_space(noise: Any) -> None:
    env = Strict(spaces.Box(0.1, 0.3, (1,), np.float64))
    networks: Any = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
    td3 = algos.TD3Config(batch_size=8, action_scaler=MinMaxActionScaler(), **networks).create()
    td3.fit_online(env, explorer=noise, n_steps=30, random_steps=5, **QUIET)
    with torch.no_grad():
        td3.impl.nets.actor.linear.bias.fill_(50.0)  # saturated
    evaluate(td3, env, 2)
    assert env.action_space.contains(td3.predict(np.zeros((1, 1), np.float32))[0].astype(np.float64))


@pytest.mark.parametrize("bound", [LARGEST, 1e300, np.inf])
def test_actions_without_bounds_are_drawn_from_a_normal_distribution(bound: float) -> None:
    dtype = np.float32 if bound == LARGEST else np.float64
    actions = actions_from_space(spaces.Box(-bound, bound, (2,), dtype))
    assert actions.bounds is None
    drawn = actions.sample(4000, np.random.Generator(np.random.PCG64(0)))
    assert drawn.dtype == np.float32 and abs(drawn.mean()) < 0.1 and abs(drawn.std() - 1) < 0.1
    half = actions_from_space(spaces.Box(np.array([0.0, -bound], dtype), np.array([bound, 0.0], dtype), dtype=dtype))
    drawn = half.sample(100, np.random.Generator(np.random.PCG64(0)))
    assert (drawn[:, 0] >= 0).all() and (drawn[:, 1] <= 0).all() and np.isfinite(drawn).all()
