"""DDPG: n-step targets."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from birl import algos
from birl.algorithm.batches import to_batch
from birl.dataset import MultiStepTransitionPicker
from birl.models import VectorEncoderFactory
from birl.testing import build_algorithm, random_dataset

ENCODER = VectorEncoderFactory(hidden_units=[8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 32}
dataset = partial(random_dataset, episodes=4, action_scale=2.0)


def test_trap_ddpg_takes_the_discount_of_its_batch() -> None:
    """n-step targets bootstrap with ``gamma**n``, shorter at the end of an episode."""
    algorithm = build_algorithm(algos.DDPGConfig(**ACTOR, gamma=0.5))
    data = dataset(transition_picker=MultiStepTransitionPicker(3, 0.5))
    minibatch = algorithm.sample_minibatch(data)
    assert set(np.unique(minibatch.intervals)) == {1, 2, 3}
    batch, nets = to_batch(minibatch, algorithm.units, 0.5), algorithm.nets
    with torch.no_grad():
        following = nets.critic_target(batch.next_inputs, nets.actor_target(batch.next_inputs)).mean()[0]
        gamma = torch.from_numpy((0.5**minibatch.intervals * (1 - minibatch.terminals))[:, 0])
        target = torch.from_numpy(minibatch.rewards[:, 0]) + gamma * following
        expected = (nets.critic(batch.inputs, batch.action).mean()[0] - target).square().mean()
    loss = algorithm.engine.compute_gradients(algorithm.engine.steps[0], batch)[1]
    torch.testing.assert_close(loss.value, expected)
