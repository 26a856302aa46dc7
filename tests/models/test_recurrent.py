"""Recurrence: a sequence is its steps, states reset, next observations are seen from the right state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from birl.models import (
    CategoricalPolicy,
    ContinuousQFunction,
    DefaultEncoderFactory,
    DiscreteQFunction,
    GRUEncoderFactory,
    LSTMEncoderFactory,
    MeanQFunctionFactory,
    Network,
    ValueFunction,
    is_recurrent,
)
from birl.spaces import Continuous, Discrete
from birl.spaces.specs import Spec
from birl.types import Inputs

STEPS, BATCH = 6, 3
SPEC = Spec((4,), Discrete(2))


@pytest.fixture(params=["lstm", "gru"])
def factory(request: pytest.FixtureRequest) -> Any:
    return LSTMEncoderFactory(5, [7]) if request.param == "lstm" else GRUEncoderFactory(5, [7])


@pytest.fixture(params=["value", "ensemble"])
def network(request: pytest.FixtureRequest, factory: Any) -> Network:
    torch.manual_seed(0)
    network: Network = ValueFunction(SPEC, factory)
    if request.param == "ensemble":
        network = DiscreteQFunction(SPEC, factory, MeanQFunctionFactory(), 2)
    network.state_key = "net"
    return network


def output(network: Network, inputs: Inputs) -> Tensor:
    """Output with time and batch in front: ``[T, B, …]`` or ``[B, …]``."""
    result = network(inputs)
    return result if isinstance(result, Tensor) else result.mean().movedim(0, -1)


def step_by_step(network: Network, observation: Tensor, is_first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for x, first in zip(observation, is_first, strict=True):
        state = torch.where(first.unsqueeze(-1), torch.zeros_like(state), state)
        new: dict[str, Tensor] = {}
        outputs.append(output(network, Inputs(x, {"net": state}, state_out=new)))
        state = new["net"]
    return torch.stack(outputs), state


def test_a_sequence_is_its_steps(network: Network) -> None:
    observation = torch.randn(STEPS, BATCH, 4)
    is_first = torch.rand(STEPS, BATCH) < 0.3
    start = torch.randn(BATCH, network.state_size)
    final: dict[str, Tensor] = {}
    whole = output(network, Inputs(observation, {"net": start}, is_first, state_out=final))
    steps, state = step_by_step(network, observation, is_first, start)
    assert torch.allclose(whole, steps, atol=1e-6)
    assert torch.allclose(final["net"], state, atol=1e-6)


def test_no_start_state_is_the_zero_state(network: Network) -> None:
    observation = torch.randn(STEPS, BATCH, 4)
    zeros = {"net": torch.zeros(BATCH, network.state_size)}
    assert torch.equal(output(network, Inputs(observation)), output(network, Inputs(observation, zeros)))
    never = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    assert torch.equal(output(network, Inputs(observation)), output(network, Inputs(observation, None, never)))


def test_a_reset_forgets_everything_before_it(network: Network) -> None:
    observation = torch.randn(STEPS, BATCH, 4)
    is_first = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    is_first[3, 1] = True
    changed = observation.clone()
    changed[:3] += 1.0
    start = {"net": torch.randn(BATCH, network.state_size)}
    one = output(network, Inputs(observation, start, is_first))
    other = output(network, Inputs(changed, None, is_first))
    assert torch.equal(one[3:, 1], other[3:, 1])
    assert not torch.allclose(one[3:, 0], other[3:, 0])  # the other lanes remember
    fresh = output(network, Inputs(observation[3:, 1:2]))
    assert torch.allclose(one[3:, 1:2], fresh, atol=1e-6)


def test_acting_resets_too(network: Network) -> None:
    x, state = torch.randn(BATCH, 4), {"net": torch.randn(BATCH, network.state_size)}
    first = torch.tensor([True, False, False])
    out = output(network, Inputs(x, state, first))
    assert torch.allclose(out[:1], output(network, Inputs(x[:1])), atol=1e-6)
    assert torch.allclose(out[1:], output(network, Inputs(x, state))[1:], atol=1e-6)


def test_following_is_one_more_step_from_each_state(network: Network) -> None:
    observation, following = torch.randn(STEPS, BATCH, 4), torch.randn(STEPS, BATCH, 4)
    is_first = torch.rand(STEPS, BATCH) < 0.3
    start = torch.randn(BATCH, network.state_size)
    final: dict[str, Tensor] = {}
    whole = output(network, Inputs(observation, {"net": start}, is_first, following, final))
    for t in range(STEPS):
        _, state = step_by_step(network, observation[: t + 1], is_first[: t + 1], start)
        expected = output(network, Inputs(following[t], {"net": state}))
        assert torch.allclose(whole[t], expected, atol=1e-6)
    _, state = step_by_step(network, observation, is_first, start)
    assert torch.allclose(final["net"], state, atol=1e-6)


def test_following_inside_an_episode_is_the_next_step(network: Network) -> None:
    episode = torch.randn(STEPS + 1, BATCH, 4)
    here, there = episode[:-1], episode[1:]
    shifted = output(network, Inputs(here, following=there))
    assert torch.allclose(shifted, output(network, Inputs(episode))[1:], atol=1e-6)


def test_target_networks_start_from_the_online_networks_state(factory: Any) -> None:
    value = ValueFunction(SPEC, factory)
    value.state_key = "critic_target"
    x, state = torch.randn(BATCH, 4), torch.randn(BATCH, value.state_size)
    own = value(Inputs(x, {"critic_target": state, "critic": state + 1}))
    assert torch.equal(own, value(Inputs(x, {"critic": state})))
    assert not torch.allclose(own, value(Inputs(x)))


def test_action_conditioned_core_sees_observations_only(factory: Any) -> None:
    critic = ContinuousQFunction(Spec((4,), Continuous(2)), factory, MeanQFunctionFactory(), 2)
    observation, action = torch.randn(STEPS, BATCH, 4), torch.randn(STEPS, BATCH, 2)
    changed = action.clone()
    changed[2] += 1.0
    one, two = (critic(Inputs(observation), a).mean() for a in (action, changed))
    assert one.shape == (2, STEPS, BATCH)
    same = [t for t in range(STEPS) if torch.equal(one[:, t], two[:, t])]
    assert same == [0, 1, 3, 4, 5]
    final: dict[str, Tensor] = {}
    assert critic.encode(Inputs(observation, state_out=final)).shape == (2, STEPS, BATCH, 5)
    assert final[""].shape == (BATCH, critic.state_size)


def test_state_sizes_and_recognition(factory: Any) -> None:
    size = 10 if isinstance(factory, LSTMEncoderFactory) else 5
    assert CategoricalPolicy(SPEC, factory).state_size == size
    critic = DiscreteQFunction(SPEC, factory, MeanQFunctionFactory(), 3)
    assert critic.state_size == 3 * size and is_recurrent(critic)
    plain = CategoricalPolicy(SPEC, DefaultEncoderFactory())
    assert plain.state_size == 0 and not is_recurrent(plain)


@pytest.mark.parametrize("n", [1, 2])
def test_shared_recurrent_encoder(factory: Any, n: int) -> None:
    critic = DiscreteQFunction(SPEC, factory, MeanQFunctionFactory(share_encoder=True), n)
    assert critic(Inputs(torch.randn(STEPS, BATCH, 4))).mean().shape == (n, STEPS, BATCH, 2)


def test_images_and_trees_before_the_core(factory: Any) -> None:
    pixels = ValueFunction(Spec((1, 36, 36), Discrete(2)), factory)
    assert pixels(Inputs(torch.rand(2, BATCH, 1, 36, 36))).shape == (2, BATCH)
    tree = ValueFunction(Spec({"a": (4,), "b": (2,)}, Discrete(2)), factory)
    observation = {"a": torch.randn(2, BATCH, 4), "b": torch.randn(2, BATCH, 2)}
    assert tree(Inputs(observation)).shape == (2, BATCH)


def test_gradients_reach_the_first_step(network: Network) -> None:
    observation = torch.randn(STEPS, BATCH, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(output(network, Inputs(observation))[-1].sum(), observation)
    assert (gradient[0].abs().sum(-1) > 0).all()
