"""ReBRAC: next actions of the data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from birl import algos
from birl.algorithm.batches import to_batch
from birl.algorithm.multi_seed import fit_many
from birl.algos.rebrac import critic_loss as rebrac_critic_loss
from birl.dataset import TransitionMiniBatch
from birl.errors import DataError
from birl.logging import NoopAdapterFactory
from birl.models import VectorEncoderFactory
from birl.preprocessing import MinMaxActionScaler
from birl.seeding import seed
from birl.testing import build_algorithm, random_dataset
from birl.types import Batch

ENCODER = VectorEncoderFactory(hidden_units=[8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 32}
dataset = partial(random_dataset, episodes=4, action_scale=2.0)


def batch_of(algorithm: Any, data: Any) -> Batch:
    return to_batch(algorithm.sample_minibatch(data), algorithm.units, algorithm.config.gamma)


def test_fault_1_rebrac_learns_from_cut_episodes_to_their_end() -> None:
    """Nothing is left out; where no next action is known the target has no penalty."""
    scaler = MinMaxActionScaler(minimum=np.full(2, -2, np.float32), maximum=np.full(2, 2, np.float32))
    algorithm = build_algorithm(algos.ReBRACConfig(**ACTOR, critic_beta=100.0, action_scaler=scaler))
    data = dataset()
    assert data.transition_count == 20
    minibatch = algorithm.sample_minibatch(data)
    batch = to_batch(minibatch, algorithm.units, 0.99)
    known = batch.extra["next_action_known"]
    assert known.shape == batch.reward.shape and 0 < float(known.mean()) < 1
    actions = {tuple(row) for episode in data.episodes for row in (episode.actions[1:] / 2).tolist()}
    assert {tuple(row) for row in batch.extra["next_action"][known > 0].tolist()} <= actions  # scaled
    cut = (known == 0) & (batch.discount > 0)
    assert bool(cut.any())
    with torch.no_grad():
        loss = rebrac_critic_loss(algorithm.nets, replace(batch, weight=cut.float()), algorithm.config)
        elsewhere = rebrac_critic_loss(algorithm.nets, replace(batch, weight=known), algorithm.config)
    assert float(loss.value) < 100 < float(elsewhere.value)


def test_rebrac_asks_for_next_actions_and_says_so() -> None:
    algorithm, data = build_algorithm(algos.ReBRACConfig(**ACTOR)), dataset()
    with pytest.raises(DataError, match=r"next actions.*sample_minibatch"):
        algorithm.update(data.sample_transition_batch(8, next_actions=False))
    algorithm.update(data.sample_transition_batch(8))
    algorithm.update(TransitionMiniBatch.from_transitions([data.sample_transition() for _ in range(8)]))
    assert not batch_of(build_algorithm(algos.TD3PlusBCConfig(**ACTOR)), data).extra


def test_rebrac_of_many_seeds_is_rebrac() -> None:
    config = algos.ReBRACConfig(
        **{**ACTOR, "batch_size": 8}, actor_beta=0.3, critic_beta=0.3, action_scaler=MinMaxActionScaler()
    )
    options: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, "n_steps_per_epoch": 6}
    seed(3)
    alone = config.create()
    alone.fit(dataset(), 6, **options)
    together = fit_many(config, dataset(), 6, [1, 3], **options)[1]
    for name, tensor in alone.nets.state_dict().items():
        torch.testing.assert_close(together.nets.state_dict()[name], tensor, atol=1e-5, rtol=1e-4)
