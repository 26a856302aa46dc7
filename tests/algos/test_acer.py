"""ACER's trust region: what it does to gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from birl import algos
from birl.algos.acer import trusted_gradient
from birl.dataset import MultiStepTransitionPicker, create_fifo_replay_buffer
from birl.errors import ConfigError
from birl.models.distributions import Categorical, Normal
from birl.testing import ChainEnv


def distributions(kind: str, seed: int) -> tuple[Any, Any, Any]:
    """A policy, its average, and actions."""
    generator = torch.Generator().manual_seed(seed)
    own, other = torch.randn(2, 50, 4, generator=generator, dtype=torch.float64)
    if kind == "categorical":
        return Categorical(own), Categorical(other), torch.randint(4, (50,), generator=generator)
    policy, average = (Normal(x[:, :2], 0.3 * x[:, 2:]) for x in (own, other))
    return policy, average, torch.randn(50, 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["categorical", "normal"])
def test_the_divergence_grows_no_faster_than_its_bound(kind: str) -> None:
    """Eq. 11: the nearest gradient with ``k.z <= delta``; one that is inside already stays as it is."""
    policy, average, action = distributions(kind, 0)
    phi = policy.parameters().clone().requires_grad_()
    (k,) = torch.autograd.grad(average.kl(policy.with_parameters(phi)).sum(), phi)
    (g,) = torch.autograd.grad(policy.with_parameters(phi).log_prob(action).sum(), phi)
    z = trusted_gradient(policy, average, lambda own: own.log_prob(action), 0.05)
    inside = (k * g).sum(-1) <= 0.05
    assert 5 < int(inside.sum()) < 45
    assert torch.equal(z[inside], g[inside])
    torch.testing.assert_close((k * z).sum(-1)[~inside], torch.full_like(z[~inside, 0], 0.05))
    cosine = torch.cosine_similarity((g - z)[~inside], k[~inside], dim=-1)  # it has moved against k alone
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_a_policy_at_its_average_is_free() -> None:
    """Nothing is divided by a divergence of 0."""
    policy, _, action = distributions("categorical", 1)
    z = trusted_gradient(policy, policy, lambda own: own.log_prob(action), 1e-3)
    assert bool(torch.isfinite(z).all()) and bool(z.abs().sum(-1).gt(0).all())


def test_a_fixed_deviation_has_no_part() -> None:
    """Only means move, and only they count in the trust region: with the deviation it would be another one."""
    policy, average, action = distributions("normal", 2)

    def objective(own: Any) -> Tensor:
        return own.log_prob(action)

    z = trusted_gradient(policy, average, objective, 0.1, fixed=True)
    assert not bool(z[:, 2:].any())
    free = trusted_gradient(policy, average, objective, 0.1)
    assert not torch.allclose(z[:, :2], free[:, :2])


@pytest.mark.parametrize("name", ["DiscreteACER", "IMPALA"])
def test_replayed_steps_are_single_ones(name: str) -> None:
    """Sums over several steps would be summed again."""
    env = ChainEnv()
    buffer = create_fifo_replay_buffer(100, env=env, transition_picker=MultiStepTransitionPicker(3, 0.99))
    algorithm = getattr(algos, f"{name}Config")().create()
    with pytest.raises(ConfigError, match=f"of up to 3 steps, but {name} learns from single steps"):
        algorithm.fit_online(env, n_steps=10, buffer=buffer)
    assert buffer.step_count == 0
