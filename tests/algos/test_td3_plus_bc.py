"""TD3+BC and its relatives: target smoothing and the scale of the loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from birl import algos
from birl.algorithm.batches import to_batch
from birl.algos.td3 import smoothed_action
from birl.models import VectorEncoderFactory
from birl.testing import build_algorithm, random_dataset
from birl.types import Batch

ENCODER = VectorEncoderFactory(hidden_units=[8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 32}
dataset = partial(random_dataset, episodes=4, action_scale=2.0)


def batch_of(algorithm: Any, data: Any) -> Batch:
    return to_batch(algorithm.sample_minibatch(data), algorithm.units, algorithm.config.gamma)


@pytest.mark.parametrize("config", [algos.TD3PlusBCConfig, algos.ReBRACConfig])
def test_trap_td3_noise_is_drawn_for_each_element_and_actions_stay_in_bounds(config: Any) -> None:
    algorithm = build_algorithm(config(**ACTOR, target_smoothing_sigma=10.0, target_smoothing_clip=0.8))
    with torch.no_grad():
        algorithm.nets.actor_target.linear.weight.mul_(5)
        batch = batch_of(algorithm, dataset())
        action = smoothed_action(algorithm.nets, batch, algorithm.config)
        plain = algorithm.nets.actor_target(batch.next_inputs)
    shift = action - plain
    assert float(action.abs().max()) == 1.0  # reached, and not left
    assert float(shift.abs().max()) <= 0.8 + 1e-6
    assert len(torch.unique(shift[:, 0].sign() * shift[:, 1].sign())) > 1  # not one number for a whole action
    assert len(torch.unique(shift[:, 0].sign())) > 1  # nor for a whole minibatch


def test_td3_plus_bc_does_not_depend_on_the_size_of_rewards() -> None:
    """``lambda`` makes the policy's loss the same when all values are 1000 times as large."""
    algorithm = build_algorithm(algos.TD3PlusBCConfig(**ACTOR))
    batch, phase = batch_of(algorithm, dataset()), algorithm.engine.steps[1]
    before, _ = algorithm.engine.compute_gradients(phase, batch)
    with torch.no_grad():
        for parameter in algorithm.nets.critic.head.parameters():
            parameter.mul_(1000)
    after, _ = algorithm.engine.compute_gradients(phase, batch)
    for name, gradient in before.items():
        torch.testing.assert_close(after[name], gradient)
