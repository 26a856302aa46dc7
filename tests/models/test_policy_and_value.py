"""A policy and its critics with one encoder: one module, several heads, one optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.algos import A2CConfig, A3CConfig, ACERConfig, DiscreteACERConfig, IMPALAConfig, PPOConfig
from birl.errors import ConfigError
from birl.models import EncoderFactory, GRUEncoderFactory, NormalFactory, PixelEncoderFactory, VectorEncoderFactory
from birl.models.actor_critic import PolicyAndValue
from birl.models.encoder_modules import PixelEncoder
from birl.run.protocols import Rollout
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


def images(*, discrete: bool, length: int = 6) -> Rollout:
    """Steps of one environment that shows images."""
    rng, last = np.random.default_rng(0), np.arange(length)[:, None] == length - 1
    observation = rng.integers(256, size=(length + 1, 1, 3, 36, 36), dtype=np.uint8)
    action = rng.integers(2, size=(length, 1)) if discrete else rng.normal(size=(length, 1, 2)).astype(np.float32)
    return Rollout(
        observation=observation[:-1],
        action=action,
        reward=rng.normal(size=(length, 1)).astype(np.float32),
        next_observation=observation[1:],
        terminated=last,
        truncated=np.zeros_like(last),
        is_first=np.arange(length)[:, None] == 0,
        valid=np.ones((length, 1), bool),
        extra={},
    )


@pytest.mark.parametrize(
    ("config", "field", "discrete"),
    [
        (DiscreteACERConfig, "critic_encoder_factory", True),
        (ACERConfig, "value_encoder_factory", False),
        *((each, "value_encoder_factory", True) for each in (PPOConfig, A2CConfig, A3CConfig, IMPALAConfig)),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else str(given),
)
def test_one_step_moves_an_encoder_of_images_and_all_heads(config: Any, field: str, discrete: bool) -> None:
    birl.seed(0)
    algorithm = config(actor_encoder_factory=PixelEncoderFactory(), learning_rate=0.1, **{field: None}).create()
    algorithm.create_impl((3, 36, 36), 2, discrete_action=discrete)
    algorithm.learner.set_mode(acting=False)
    (optimizer,) = algorithm.engine.optimizers.values()
    (group,) = optimizer.param_groups
    own = {name: value for name, value in algorithm.nets.named_parameters() if not name.startswith("actor_average")}
    assert len(group["params"]) == len(own) and {id(each) for each in group["params"]} == set(map(id, own.values()))
    of_images = [name for name, part in algorithm.nets.named_modules() if isinstance(part, PixelEncoder)]
    assert [name for name in of_images if "average" not in name] == ["actor.encoder"]
    before = {name: value.clone() for name, value in own.items()}
    algorithm.update(images(discrete=discrete))
    assert not [name for name, value in own.items() if torch.equal(value, before[name])]


@pytest.mark.parametrize(
    ("config", "field"), [(DiscreteACERConfig, "critic_encoder_factory"), (ACERConfig, "value_encoder_factory")]
)
def test_acer_encodes_each_observation_once(config: Any, field: str) -> None:
    algorithm = config(actor_encoder_factory=DENSE, **{field: None}).create()
    algorithm.create_impl((3, 36, 36), 2, discrete_action=config is DiscreteACERConfig)
    algorithm.learner.set_mode(acting=False)
    batch = algorithm.learner.batch(images(discrete=config is DiscreteACERConfig))
    calls: list[int] = []
    algorithm.nets.actor.encoder.register_forward_hook(lambda *_: calls.append(1))
    algorithm.engine.update(batch)
    assert len(calls) == 2  # those of the steps, and the next ones


def test_advantages_on_one_encoder_have_no_memory_of_their_own() -> None:
    memory = GRUEncoderFactory(5)
    algorithm = ACERConfig(
        actor_encoder_factory=memory, value_encoder_factory=None, critic_encoder_factory=memory
    ).create()
    with pytest.raises(ConfigError, match="critic_encoder_factory is GRUEnc.*remembers for both: give a feed-forward"):
        algorithm.create_impl((3,), 2, discrete_action=False)
