"""EDAC: gradients of each member of an ensemble, and the diversity term."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from birl import algos
from birl.models import (
    EncoderFactory,
    GRUEncoderFactory,
    MeanQFunctionFactory,
    QRQFunctionFactory,
    SimBaEncoderFactory,
    VectorEncoderFactory,
    matmul,
)
from birl.testing import build_algorithm, random_batch
from birl.types import Inputs

ENCODER = VectorEncoderFactory(hidden_units=[8, 8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 8}


def test_edac_without_diversity_is_sac_n() -> None:
    edac = build_algorithm(algos.EDACConfig(**ACTOR, n_critics=4, eta=0.0))
    sac = build_algorithm(algos.SACConfig(**ACTOR, n_critics=4))
    for seed in range(3):
        for algorithm in (edac, sac):
            torch.manual_seed(seed)
            algorithm.engine.update(random_batch(seed=seed))
    for name, tensor in sac.nets.state_dict().items():
        assert torch.allclose(tensor, edac.nets.state_dict()[name], atol=1e-6), name


class OneAtATime(EncoderFactory):
    """Knows nothing of ensembles."""

    def create(self, observation_shape: Any) -> nn.Module:
        return Flat(observation_shape[0])

    def create_with_action(self, observation_shape: Any, action_size: int, discrete_action: bool = False) -> nn.Module:
        return Flat(observation_shape[0] + action_size)

    @staticmethod
    def get_type() -> str:
        return "one at a time, for EDAC"


class Flat(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 8)

    def forward(self, x: Tensor, action: Tensor | None = None) -> Tensor:
        return self.linear(x if action is None else torch.cat([x, action], -1)).tanh()


@pytest.mark.parametrize(
    ("encoder", "head"),
    [
        (ENCODER, MeanQFunctionFactory()),
        (ENCODER, QRQFunctionFactory(n_quantiles=4)),
        (ENCODER, MeanQFunctionFactory(share_encoder=True)),
        (SimBaEncoderFactory(), MeanQFunctionFactory()),
        (GRUEncoderFactory(hidden_size=4, hidden_units=[4]), MeanQFunctionFactory()),
        (OneAtATime(), MeanQFunctionFactory()),
    ],
    ids=["stacked", "quantiles", "shared", "SimBa", "GRU", "one by one"],
)
def test_gradients_are_those_of_each_member(encoder: Any, head: Any) -> None:
    fields = {**ACTOR, "critic_encoder_factory": encoder}
    critic = build_algorithm(algos.EDACConfig(**fields, n_critics=3, q_func_factory=head)).nets.critic
    inputs, action = Inputs(torch.randn(4, 5, 3)), torch.rand(4, 5, 2)
    returns, gradient = critic.differentiate(inputs, action)
    plain = action.clone().requires_grad_()
    values = critic(inputs, plain).mean()
    assert torch.allclose(returns.mean(), values, atol=1e-6)
    expected = torch.stack([torch.autograd.grad(each.sum(), plain, create_graph=True)[0] for each in values])
    assert gradient.shape == (3, 4, 5, 2)
    assert torch.allclose(gradient, expected, atol=1e-6)
    weights = list(critic.parameters())
    second, wanted = (
        torch.autograd.grad(each.square().sum(), weights, allow_unused=True, materialize_grads=True)
        for each in (gradient, expected)
    )
    assert all(torch.allclose(each, other, atol=1e-5) for each, other in zip(second, wanted, strict=True))
    assert any(bool((each != 0).any()) for each in second)


def test_gradients_can_be_differentiated_inside_fast_products(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = VectorEncoderFactory(hidden_units=[64, 64])
    critic = build_algorithm(algos.EDACConfig(**{**ACTOR, "critic_encoder_factory": wide}, n_critics=2)).nets.critic
    inputs, action = Inputs(torch.randn(5, 3)), torch.rand(5, 2)
    weights, found = [p for name, p in critic.named_parameters() if "bias" not in name], []
    for least in (matmul.NEVER, matmul.Threshold(1, 1)):
        monkeypatch.setattr(matmul, "threshold", lambda least=least: least)
        with matmul.products(matmul.threshold()):
            gradient = critic.differentiate(inputs, action)[1]
            found.append(torch.autograd.grad(gradient.square().sum(), weights))
    for plain, other in zip(*found, strict=True):
        assert torch.allclose(plain, other, atol=1e-6)


def test_edac_stays_finite_where_no_unit_is_on() -> None:
    algorithm = build_algorithm(algos.EDACConfig(**ACTOR, n_critics=3))
    with torch.no_grad():
        algorithm.nets.critic.encoder.layers[0].linear.bias.fill_(-100.0)
    metrics = algorithm.engine.update(random_batch())
    algorithm.engine.check_finite()
    assert float(metrics["diversity_loss"]) == 0.0


def test_edac_pulls_gradients_apart() -> None:
    algorithm = build_algorithm(algos.EDACConfig(**ACTOR, n_critics=4, eta=10.0, critic_learning_rate=3e-3))
    losses = [float(algorithm.engine.update(random_batch())["diversity_loss"]) for _ in range(100)]
    assert losses[-1] < min(losses[0], 0) - 1.0
