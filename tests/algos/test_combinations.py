"""Parts of value networks combine with every algorithm that has the place for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl import algos
from birl.logging import NoopAdapterFactory
from birl.models import (
    CPW,
    BatchRenormEncoderFactory,
    C51QFunctionFactory,
    CVaR,
    DroQEncoderFactory,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
)
from birl.ope import DiscreteFQE, DiscreteFQEConfig
from birl.spaces import MultiDiscrete
from birl.types import Batch
from tests.algorithms import fill

NOISY = VectorEncoderFactory([8], noisy=True)
HEADS: dict[str, Any] = {
    "mean": MeanQFunctionFactory(dueling=[4], noisy=True),
    "c51": C51QFunctionFactory(n_atoms=7, dueling=[4], noisy=True, trunk_gradient=0.7),
    "qr": QRQFunctionFactory(n_quantiles=4, dueling=True, risk=CVaR(), noisy=0.1),
    "iqn": IQNQFunctionFactory(
        n_quantiles=4, n_greedy_quantiles=4, embed_size=4, n_choice_quantiles=3, dueling=[], risk=CPW(), noisy=0.2
    ),
}
CONFIGS = (
    algos.DQNConfig,
    algos.DoubleDQNConfig,
    algos.MunchausenDQNConfig,
    algos.DiscreteCQLConfig,
    algos.NFQConfig,
    algos.DiscreteBCQConfig,
    algos.DiscreteSACConfig,
    algos.DiscreteIQLConfig,
)


def batch(action: torch.Tensor) -> Batch:
    x = torch.randn(2, 6, 4)
    return Batch(x[0], action, torch.randn(6), x[1], torch.full((6,), 0.9), torch.ones(6))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__.removesuffix("Config"))
def test_every_part_learns(config: Any, head: str) -> None:
    """Noise included: nothing stays where it was."""
    birl.seed(0)
    algorithm = fill(config, NOISY, {"q_func_factory": HEADS[head], "learning_rate": 1e-2}).create()
    algorithm.create_impl((4,), 3, discrete_action=True)
    before = {name: tensor.clone() for name, tensor in algorithm.nets.named_parameters()}
    for _ in range(3):
        metrics = algorithm.update(batch(torch.arange(6) % 3))
        assert all(bool(torch.isfinite(value)) for value in metrics.values())
    trained = {name for step in algorithm.engine.gradient_steps for name in algorithm.engine.parameters[step.name]}
    still = {name for name in trained if torch.equal(before[name], algorithm.nets.get_parameter(name))}
    assert not still
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    assert np.array_equal(algorithm.predict(x), algorithm.predict(x))


@pytest.mark.parametrize("head", [head for head in HEADS if head != "iqn"])
def test_several_choices_at_once(head: str) -> None:
    birl.seed(0)
    algorithm: Any = algos.DoubleDQNConfig(encoder_factory=NOISY, q_func_factory=HEADS[head]).create()
    algorithm.create_impl((4,), MultiDiscrete((2, 3)))
    action = torch.stack((torch.arange(6) % 2, torch.arange(6) % 3), -1)
    for _ in range(2):
        algorithm.update(batch(action))
    x = np.zeros((5, 4), np.float32)
    assert algorithm.predict(x).shape == (5, 2) and algorithm.sample_action(x).shape == (5, 2)


def test_policies_are_evaluated_without_noise() -> None:
    """Fitted Q evaluation asks a noisy policy for its greedy actions, in whatever mode it was left."""
    birl.seed(0)
    dataset, _ = birl.datasets.get_dataset("cartpole-random")
    policy: Any = algos.DQNConfig(encoder_factory=NOISY, q_func_factory=HEADS["mean"], batch_size=8).create()
    policy.fit(dataset, n_steps=2, show_progress=False, logger_adapter=NoopAdapterFactory())
    fqe: Any = DiscreteFQE(policy, DiscreteFQEConfig(encoder_factory=VectorEncoderFactory([8]), batch_size=8))
    fqe.build_with_dataset(dataset)
    drawn, results = dataset.sample_transition_batch(8), []
    for _ in range(2):
        policy.learner.set_mode(acting=False)
        torch.manual_seed(len(results))  # noise would differ
        (shares,) = fqe.learner.batch(drawn).extra.values()
        results.append(shares)
    assert torch.equal(*results)
    assert np.array_equal(results[0].numpy(), np.eye(2)[policy.predict(drawn.next_observations)])


@pytest.mark.parametrize(
    ("config", "encoder"),
    [(algos.CrossQConfig, BatchRenormEncoderFactory([8])), (algos.DroQConfig, DroQEncoderFactory([8]))],
    ids=["CrossQ", "DroQ"],
)
def test_goals_are_learned_in_hindsight_with_encoders_that_normalise(config: Any, encoder: Any) -> None:
    rng = np.random.default_rng(0)
    there = rng.normal(size=(40, 2)).astype(np.float32)
    observations = {"observation": there, "achieved_goal": there, "desired_goal": np.ones_like(there)}
    rewards = np.append(_reached(there[1:], observations["desired_goal"][1:], {}), 0.0)
    dataset = birl.dataset.MDPDataset(
        observations,
        rng.uniform(-1, 1, (40, 2)).astype(np.float32),
        rewards,
        np.zeros(40),
        np.arange(40) == 39,
        sampler=birl.dataset.HindsightSampler(_reached),
    )
    algorithm = config(batch_size=8, critic_encoder_factory=encoder).create()
    algorithm.fit(dataset, n_steps=2, n_steps_per_epoch=2, show_progress=False, logger_adapter=NoopAdapterFactory())
    assert np.isfinite(algorithm.predict(observations)).all()


def _reached(achieved: Any, desired: Any, info: Any) -> Any:
    return (np.linalg.norm(achieved - desired, axis=-1) < 1.0).astype(np.float32)
