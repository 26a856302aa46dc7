"""A policy and a value function with one encoder: one module, two heads, one optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.algos import PPOConfig
from birl.models import EncoderFactory, GRUEncoderFactory, NormalFactory, PixelEncoderFactory, VectorEncoderFactory
from birl.models.actor_critic import PolicyAndValue
from birl.types import Inputs

DENSE = VectorEncoderFactory(hidden_units=[6])


def built(encoder: EncoderFactory, shape: tuple[int, ...] = (3,), **fields: Any) -> Any:
    config = PPOConfig(actor_encoder_factory=encoder, **{"value_encoder_factory": None, **fields})
    algorithm = config.create()
    algorithm.create_impl(shape, 2, discrete_action=False)
    return algorithm


@pytest.mark.parametrize(
    ("shape", "encoder"), [((3,), DENSE), ((4, 36, 36), PixelEncoderFactory()), ((3,), GRUEncoderFactory(5))]
)
def test_one_encoder_has_one_optimiser_of_parameters_that_occur_once(
    shape: tuple[int, ...], encoder: EncoderFactory
) -> None:
    algorithm = built(encoder, shape)
    ((_, optimizer),) = algorithm.engine.optimizers.items()
    (group,) = optimizer.param_groups
    assert len({id(each) for each in group["params"]}) == len(group["params"])
    assert {id(each) for each in group["params"]} == {id(each) for each in algorithm.nets.parameters()}
    assert not [name for name in algorithm.nets.state_dict() if name.startswith("value.encoder")]


def test_one_encoder_is_asked_once() -> None:
    nets, calls = built(DENSE).nets, []
    nets.actor.encoder.register_forward_hook(lambda *_: calls.append(1))
    inputs = Inputs(torch.randn(5, 3))
    policy, value = nets.both(inputs)
    assert len(calls) == 1
    assert torch.equal(policy.mode(), nets.actor(inputs).mode()) and torch.equal(value, nets.values(inputs))
    assert value.shape == (5,)


@pytest.mark.parametrize("own", [None, DENSE])
def test_both_losses_reach_an_encoder_for_both_and_only_it(own: EncoderFactory | None) -> None:
    nets = built(DENSE, value_encoder_factory=own).nets
    value = nets.values(Inputs(torch.randn(5, 3))).sum()
    (found,) = torch.autograd.grad(value, [nets.actor.encoder.layers[0].linear.weight], allow_unused=True)
    assert (found is not None and bool(found.any())) == (own is None)


@pytest.mark.parametrize(
    ("discrete", "distribution"),
    [(True, NormalFactory()), (False, NormalFactory()), (False, NormalFactory(std="state"))],
)
def test_the_policy_reads_features_as_it_reads_inputs(discrete: bool, distribution: NormalFactory) -> None:
    algorithm = PPOConfig(actor_encoder_factory=DENSE, distribution_factory=distribution).create()
    algorithm.create_impl((3,), 2, discrete_action=discrete)
    actor, inputs = algorithm.nets.actor, Inputs(torch.randn(4, 3))
    assert torch.equal(actor(inputs).parameters(), actor.read(actor.encode(inputs), inputs).parameters())


def test_a_recurrent_encoder_for_both_keeps_one_state() -> None:
    algorithm = built(GRUEncoderFactory(5))
    actor = algorithm.actor(greedy=False, n=2)
    actor(np.zeros((2, 3), np.float32), np.ones(2, bool), np.zeros(2, np.float32))
    assert set(actor.get_state()) == {"actor"} and set(actor.extra) == {"state.actor", "policy_action"}


def test_saved_networks_do_not_hold_an_encoder_twice_and_come_back(tmp_path: Any) -> None:
    algorithm = built(DENSE)
    algorithm.save(tmp_path / "model.birl")
    other = birl.load_learnable(tmp_path / "model.birl")
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    assert other.config == algorithm.config and isinstance(other.nets, PolicyAndValue)
    np.testing.assert_array_equal(other.predict(x), algorithm.predict(x))
