"""CRR: its critic-weighted policy, and its options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from birl import algos
from birl.algos.crr import HARD, SOFT
from birl.engine import HardCopy, Polyak
from birl.errors import ConfigError
from birl.models import (
    GRUEncoderFactory,
    VectorEncoderFactory,
)
from birl.testing import build_algorithm
from birl.types import Inputs

ENCODER = VectorEncoderFactory(hidden_units=[8, 8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 8}


def candidates(algorithm: Any, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions ``[n, B, A]`` and their values ``[n, B]``, averaged over the critics."""
    with torch.no_grad():
        policy = algorithm.nets.actor(Inputs(x))
        action = torch.stack([(policy.mean + policy.log_std.exp() * each).clamp(-1, 1) for each in noise])
        value = torch.stack([algorithm.nets.critic(Inputs(x), each).mean().mean(0) for each in action])
    return action, value


def test_crr_predicts_the_mean_of_the_critic_weighted_policy() -> None:
    algorithm, x = build_algorithm(algos.CRRConfig(**ACTOR, n_critics=2, beta=0.02)), torch.randn(40, 3)
    noise = algorithm.nets.noise
    assert torch.equal(noise[0], torch.zeros(2)), "the mean is not among them"
    assert len(noise.unique(dim=0)) == 4
    action, value = candidates(algorithm, x, noise)
    probability = (value / 0.02).softmax(0)
    assert probability.std() > 0.1
    expected = torch.einsum("nb,nba->ba", probability, action)
    got = algorithm.predict(x.numpy())
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-6)
    assert np.array_equal(got, algorithm.predict(x.numpy())), "the same observation gives another action"


def test_crr_samples_by_the_critic_weighted_policy() -> None:
    algorithm = build_algorithm(algos.CRRConfig(**ACTOR, n_action_samples=2, beta=0.05))
    x, count = torch.randn(1, 3).expand(4000, 3), 4000
    torch.manual_seed(1)
    noise = torch.randn(2, count, 2)
    action, value = candidates(algorithm, x, noise)
    torch.manual_seed(1)
    got = torch.from_numpy(algorithm.sample_action(x.numpy()))
    second = (got - action[1]).abs().sum(-1) < 1e-5
    assert bool((second | ((got - action[0]).abs().sum(-1) < 1e-5)).all()), "an action is none of the candidates"
    wanted = (value / 0.05).softmax(0)[1]
    assert float(wanted.std()) > 0.05
    for part in (wanted < 0.4, wanted > 0.6):
        assert float(second[part].float().mean()) == pytest.approx(float(wanted[part].mean()), abs=0.06)


def test_crr_with_one_sample_predicts_the_mean() -> None:
    algorithm, x = build_algorithm(algos.CRRConfig(**ACTOR, n_action_samples=1)), torch.randn(5, 3)
    with torch.no_grad():
        mean = algorithm.nets.actor(Inputs(x)).mean
    np.testing.assert_allclose(algorithm.predict(x.numpy()), mean.numpy(), atol=1e-6)


def test_crr_remembers_for_policy_and_critic() -> None:
    gru = GRUEncoderFactory(hidden_size=5, hidden_units=[5])
    algorithm = build_algorithm(algos.CRRConfig(actor_encoder_factory=gru, critic_encoder_factory=gru, n_critics=2))
    sequence = torch.randn(6, 1, 3)
    algorithm.learner.set_mode(acting=True)
    with torch.no_grad():
        expected = algorithm.acts.greedy(algorithm.nets, Inputs(sequence))[:, 0]
    actor = algorithm.actor(greedy=True, n=1)
    got = [actor(x.numpy(), np.array([i == 0]), np.zeros(1, np.float32))[0] for i, x in enumerate(sequence)]
    np.testing.assert_allclose(np.stack(got), expected.numpy(), atol=1e-5)


def test_crr_targets_are_what_the_configuration_says() -> None:
    configs = [algos.CRRConfig(**ACTOR, target_update_type=kind) for kind in ("hard", "soft")]
    hard, soft = (build_algorithm(config).engine.targets for config in configs)
    assert hard == (HardCopy("critic", "critic_target", HARD), HardCopy("actor", "actor_target", HARD))
    assert soft == (Polyak("critic", "critic_target", SOFT), Polyak("actor", "actor_target", SOFT))
    for field in ("target_update_type", "advantage_type", "weight_type"):
        with pytest.raises(ConfigError, match=f"{field} is 'other'"):
            algos.CRRConfig(**{field: "other"})
