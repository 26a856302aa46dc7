"""MPO and V-MPO: what goldens, probes and the chain do not show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from birl import algos
from birl.algos.v_mpo import better_half
from birl.errors import ConfigError
from birl.models import SquashedNormalFactory, VectorEncoderFactory
from birl.testing import build_algorithm, random_batch
from birl.types import Batch, Inputs

ENCODER = VectorEncoderFactory(hidden_units=[8])
SMALL: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 8}


@pytest.mark.parametrize(("penalty", "returns"), [(1e-2, True), (None, False)])
def test_means_out_of_range_come_back_only_with_a_penalty(penalty: float | None, returns: bool) -> None:
    """Critics see clipped actions: all that lie out of range are worth the same."""
    torch.manual_seed(0)
    config = algos.MPOConfig(
        **SMALL, actor_learning_rate=1e-2, epsilon_mean=0.1, target_update_interval=5, epsilon_penalty=penalty
    )
    algorithm = build_algorithm(config)
    nets, x = algorithm.nets, Inputs(torch.randn(20, 3))
    with torch.no_grad():
        for policy in (nets.actor, nets.actor_target):
            policy.linear.bias[:2] = 3.0
    before = nets.actor(x).mean.mean().item()
    for step in range(60):
        algorithm.engine.update(random_batch(8, seed=step))
    moved = before - nets.actor(x).mean.mean().item()
    assert (moved > 0.3) == returns, moved


def test_dual_variables_are_the_bounds_prices() -> None:
    """A multiplier grows while its own divergence is above its bound, and falls below it."""
    torch.manual_seed(0)
    algorithm = build_algorithm(algos.MPOConfig(**SMALL, actor_learning_rate=0.0, critic_learning_rate=0.0))
    nets = algorithm.nets
    with torch.no_grad():  # only the means are apart from their targets', in the first dimension
        nets.actor.linear.bias[0] += 0.5
    for step in range(20):
        algorithm.engine.update(random_batch(8, seed=step))
    mean, std = nets.alpha_mean().tolist(), nets.alpha_std().tolist()
    assert mean[0] > 1.05 and mean[1] < 0.95
    assert max(std) < 10.0


def test_the_better_half_are_real_steps_with_the_largest_advantages() -> None:
    advantage = torch.tensor([[3.0, 9.0], [1.0, 2.0], [5.0, 5.0], [0.0, 8.0]])
    weight = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    batch = Batch(advantage, advantage, advantage, None, advantage, weight, extra={"advantage": advantage})
    found = better_half(batch).view(4, 2)
    assert found.tolist() == [[True, False], [False, False], [True, True], [False, False]]  # 3 of 6
    one = advantage[:1, :1]
    assert better_half(Batch(one, one, one, None, one, weight[:1, :1], extra={"advantage": one})).tolist() == [True]


@pytest.mark.parametrize("config", [algos.MPOConfig, algos.VMPOConfig])
def test_bounds_of_mean_and_standard_deviation_need_a_gaussian(config: Any) -> None:
    with pytest.raises(ConfigError, match="distribution_factory is SquashedNormalFactory"):
        config(distribution_factory=SquashedNormalFactory())


def test_policies_act_within_bounds() -> None:
    algorithm = build_algorithm(algos.MPOConfig(**SMALL))
    with torch.no_grad():
        algorithm.nets.actor.linear.bias[:2] = 3.0
    x = np.zeros((5, 3), np.float32)
    assert np.abs(algorithm.predict(x)).max() == np.abs(algorithm.sample_action(x)).max() == 1.0
