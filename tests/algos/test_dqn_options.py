"""Options of DQN and its relatives: soft target updates and the form of the error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.errors import ConfigError
from birl.models import (
    C51QFunctionFactory,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
)

OWN = ("DQN", "DoubleDQN", "MunchausenDQN", "AL", "PAL", "DoublePAL", "DPP", "DiscreteCQL", "DiscreteBCQ")


def dataset() -> birl.dataset.MDPDataset:
    rng = np.random.default_rng(0)
    ends = np.arange(1, 61) % 10 == 0
    return birl.dataset.MDPDataset(
        rng.normal(size=(60, 3)).astype("f4"), rng.integers(0, 2, 60), 5 * rng.normal(size=60).astype("f4"), ends
    )


def built(name: str = "DQN", **options: Any) -> Any:
    birl.seed(1)
    config = getattr(birl.algos, f"{name}Config")
    algo = config(encoder_factory=VectorEncoderFactory([8]), batch_size=4, learning_rate=1e-2, **options).create()
    algo.build_with_dataset(dataset())
    return algo


def parameters(network: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


@pytest.mark.parametrize("name", OWN)
def test_targets_follow_softly(name: str) -> None:
    algo, data = built(name, tau=0.25, target_update_interval=2), dataset()
    before = parameters(algo.nets.critic_target)
    algo.update(data.sample_transition_batch(4))
    assert all(map(torch.equal, before, parameters(algo.nets.critic_target)))
    algo.update(data.sample_transition_batch(4))
    for old, new, own in zip(before, parameters(algo.nets.critic_target), parameters(algo.nets.critic), strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * own)
        assert not torch.equal(old, new)


def test_targets_are_copied_by_default() -> None:
    algo = built(target_update_interval=1)
    algo.update(dataset().sample_transition_batch(4))
    assert all(map(torch.equal, parameters(algo.nets.critic), parameters(algo.nets.critic_target)))


@pytest.mark.parametrize("threshold", [None, 0.5, 1.0, 3.0])
def test_the_error_has_the_given_form(threshold: float | None) -> None:
    algo, batch = built(huber_threshold=threshold), dataset().sample_transition_batch(16)
    q = algo.nets.critic(birl.types.Inputs(torch.tensor(batch.observations))).mean()[0].detach()
    following = algo.nets.critic_target(birl.types.Inputs(torch.tensor(batch.next_observations))).mean()[0].detach()
    total = 0.0
    for i in range(16):
        target = float(batch.rewards[i, 0]) + 0.99 * (1 - float(batch.terminals[i, 0])) * float(following[i].max())
        error = abs(float(q[i, int(batch.actions[i, 0])]) - target)
        if threshold is None:
            total += error**2
        elif error <= threshold:
            total += error**2 / 2
        else:
            total += threshold * (error - threshold / 2)
    assert algo.update(batch)["loss"] == pytest.approx(total / 16, rel=1e-5)


def test_kappa_of_quantiles_is_the_threshold() -> None:
    small, large = (built(q_func_factory=QRQFunctionFactory(n_quantiles=8), huber_threshold=k) for k in (0.1, 10.0))
    batch = dataset().sample_transition_batch(16)
    inputs, actions = birl.types.Inputs(torch.tensor(batch.observations)), torch.tensor(batch.actions[:, 0]).long()
    own = small.nets.critic(inputs, actions).values[0].detach()
    next_returns = small.nets.critic_target(birl.types.Inputs(torch.tensor(batch.next_observations)))
    following = next_returns.values[0].detach()[torch.arange(16), next_returns.mean()[0].argmax(-1)]
    for algo, kappa in ((small, 0.1), (large, 10.0)):
        total = 0.0
        for row in range(16):
            discount = 0.99 * (1 - float(batch.terminals[row, 0]))
            for i in range(8):
                for j in range(8):
                    u = float(batch.rewards[row, 0]) + discount * float(following[row, j]) - float(own[row, i])
                    huber = u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)
                    total += abs((i + 0.5) / 8 - (u < 0)) * huber / kappa / 8
        assert algo.update(batch)["loss"] == pytest.approx(total / 16, rel=1e-4)


def test_thresholds_that_a_head_does_not_have() -> None:
    for head in (QRQFunctionFactory(), IQNQFunctionFactory()):
        with pytest.raises(ConfigError, match=r"huber_threshold is None, but the quantile loss .*give a number"):
            birl.algos.DQNConfig(q_func_factory=head, huber_threshold=None)
    with pytest.raises(ConfigError, match=r"huber_threshold is 2.0, but .*cross-entropy.*leave it out"):
        birl.algos.DQNConfig(q_func_factory=C51QFunctionFactory(), huber_threshold=2.0)
    birl.algos.DQNConfig(q_func_factory=MeanQFunctionFactory(), huber_threshold=None)


def test_implicit_quantiles_of_losses_and_targets_have_their_own_number() -> None:
    algo = built(q_func_factory=IQNQFunctionFactory(n_quantiles=5, n_target_quantiles=7))
    inputs = birl.types.Inputs(torch.zeros(2, 3))
    assert algo.nets.critic(inputs).values.shape[-1] == 5
    with torch.no_grad():
        assert algo.nets.critic_target(inputs).values.shape[-1] == 7
    assert np.isfinite(float(algo.update(dataset().sample_transition_batch(4))["loss"]))
    assert built(q_func_factory=IQNQFunctionFactory(n_quantiles=5)).nets.critic.head.n_target_quantiles == 5
