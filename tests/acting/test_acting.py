"""Acting: the quick form of small policies gives what the policies give, and is never stale."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import prune

from birl import algos
from birl.acting.flat_policy import FlatPolicy
from birl.errors import NonFiniteError
from birl.models import IQNQFunctionFactory, VectorEncoderFactory
from birl.models.recurrent import GRUEncoderFactory
from birl.preprocessing import MinMaxActionScaler, StandardObservationScaler
from birl.types import Inputs

SMALL = VectorEncoderFactory(hidden_units=[16, 8])
WIDE = VectorEncoderFactory(hidden_units=[600, 600])
SMOOTH = VectorEncoderFactory(hidden_units=[16], activation="silu")
TANH = VectorEncoderFactory(hidden_units=[16], activation="tanh")


def built(config: Any, shape: Any = (3,), size: int = 2, **options: Any) -> Any:
    algorithm = config.create()
    algorithm.create_impl(shape, size, **options)
    return algorithm


def plain(algorithm: Any, x: np.ndarray, greedy: bool = True) -> np.ndarray:
    """Actions the long way round."""
    policy = algorithm.learner.policy
    policy.set_mode(True)
    with torch.no_grad():
        action = policy.function(greedy)(algorithm.nets, Inputs(algorithm.units.observation(x)))
        return policy.to_environment(action)


def flat(algorithm: Any, greedy: bool = True) -> FlatPolicy | None:
    policy = algorithm.learner.policy
    return policy.flat(policy.function(greedy))  # type: ignore[no-any-return]


SCALED = {
    "observation_scaler": StandardObservationScaler(mean=np.ones(3), std=np.full(3, 2.0)),
    "action_scaler": MinMaxActionScaler(minimum=np.full(2, -3.0), maximum=np.full(2, 5.0)),
}
FLAT: dict[str, Any] = {
    "SAC": lambda: built(algos.SACConfig(actor_encoder_factory=SMALL)),
    "SAC scaled": lambda: built(algos.SACConfig(actor_encoder_factory=SMALL, **SCALED)),
    "SAC beyond numpy": lambda: built(algos.SACConfig(actor_encoder_factory=WIDE)),
    "SAC smooth": lambda: built(algos.SACConfig(actor_encoder_factory=SMOOTH)),
    "TD3": lambda: built(algos.TD3Config(actor_encoder_factory=SMALL)),
    "IQL": lambda: built(algos.IQLConfig(actor_encoder_factory=SMALL)),
    "DQN": lambda: built(algos.DQNConfig(encoder_factory=SMALL)),
    "DiscreteSAC": lambda: built(algos.DiscreteSACConfig(actor_encoder_factory=TANH)),
    "PPO continuous": lambda: built(algos.PPOConfig(), discrete_action=False),
    "PPO discrete": lambda: built(algos.PPOConfig(), discrete_action=True),
}


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("rows", [1, 5])
def test_flat_policies_give_what_the_policies_give(name: str, greedy: bool, rows: int) -> None:
    algorithm = FLAT[name]()
    assert flat(algorithm, greedy) is not None
    actor = algorithm.actor(greedy=greedy, n=rows)
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.normal(size=(rows, 3)).astype(np.float32)
        torch.manual_seed(1)
        expected = plain(algorithm, x, greedy)
        after = torch.get_rng_state()
        for act in (algorithm.predict if greedy else algorithm.sample_action, lambda x: actor(x, x[:, 0] > 0, x[:, 0])):
            torch.manual_seed(1)
            given = act(x)
            assert given.dtype == expected.dtype
            assert given.shape == expected.shape
            np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6)
            assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("rows", [1, 5])
def test_other_kinds_of_arrays_give_the_same(rows: int) -> None:
    sac = FLAT["SAC"]()
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    frozen = x.copy()
    frozen.flags.writeable = False
    expected = sac.predict(x)
    for given in (x.astype(np.float64), frozen, np.repeat(x, 2, axis=1)[:, ::2], x.tolist(), torch.from_numpy(x)):
        np.testing.assert_allclose(sac.predict(given), expected, rtol=1e-5, atol=1e-6)
    whole = np.round(x)
    np.testing.assert_allclose(sac.predict(whole.astype(np.int64)), sac.predict(whole), rtol=1e-5, atol=1e-6)
    first = sac.predict(x)
    kept = first.copy()
    sac.predict(x + 1)
    assert np.array_equal(first, kept)  # no result is written over by the next one


def changed_in_place(sac: Any) -> None:
    with torch.no_grad():
        for parameter in sac.nets.actor.parameters():
            parameter.mul_(1.5)


def changed_memory(sac: Any) -> None:
    for parameter in sac.nets.actor.parameters():
        parameter.data = parameter.data * 1.5


def changed_layer(sac: Any) -> None:
    sac.nets.actor.encoder.layers[0].linear = torch.nn.Linear(3, 16)


def changed_network(sac: Any) -> None:
    sac.nets.actor = FLAT["SAC"]().nets.actor


def changed_activation(sac: Any) -> None:
    sac.nets.actor.encoder.layers[0].activation = torch.tanh


def changed_forward(sac: Any) -> None:
    sac.nets.actor.encoder.forward = lambda x: x.new_zeros(len(x), 8)


def changed_by_a_hook(sac: Any) -> None:
    sac.nets.actor.encoder.register_forward_hook(lambda module, args, output: output * 0)


def changed_afterwards(sac: Any) -> None:
    sac.nets.actor.encoder.layers[1].after.append(torch.nn.LayerNorm(8))


def changed_by_a_mask(sac: Any) -> None:
    prune.l1_unstructured(sac.nets.actor.encoder.layers[0].linear, "weight", 0.9)


def changed_bias(sac: Any) -> None:
    sac.nets.actor.encoder.layers[0].linear = torch.nn.Linear(3, 16, bias=False)


def changed_depth(sac: Any) -> None:
    sac.nets.actor.encoder.layers.append(deepcopy(sac.nets.actor.encoder.layers[1]))
    sac.nets.actor.encoder.layers[2].linear = torch.nn.Linear(8, 8)


def changed_strides(sac: Any) -> None:
    weight = sac.nets.actor.linear.weight
    weight.data = weight.data.flatten().as_strided(weight.shape, (1, weight.shape[0]))


def changed_class(sac: Any) -> None:
    class Zero(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 0

    sac.nets.actor.encoder.layers[0].linear.__class__ = Zero


CHANGES = [
    changed_by_a_mask,
    changed_bias,
    changed_depth,
    changed_strides,
    changed_class,
    changed_in_place,
    changed_memory,
    changed_layer,
    changed_network,
    changed_activation,
    changed_forward,
    changed_by_a_hook,
    changed_afterwards,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rows", [1, 5])
def test_a_flat_policy_is_never_stale(change: Any, rows: int) -> None:
    sac = FLAT["SAC"]()
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    before = sac.predict(x)
    change(sac)
    after = sac.predict(x)
    np.testing.assert_allclose(after, plain(sac, x), rtol=1e-5, atol=1e-6)
    assert not np.allclose(before, after)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (algos.SACConfig(actor_encoder_factory=VectorEncoderFactory(hidden_units=[8], use_batch_norm=True)), (3,)),
        (algos.SACConfig(actor_encoder_factory=VectorEncoderFactory(hidden_units=[8], dropout_rate=0.5)), (3,)),
        (algos.DQNConfig(q_func_factory=IQNQFunctionFactory()), (3,)),
        (algos.DQNConfig(encoder_factory=GRUEncoderFactory(hidden_size=8, hidden_units=[8])), (3,)),
        (algos.SACConfig(), ((3,), (2,))),
        (algos.SACConfig(), {"one": (3,), "two": (2,)}),
        (algos.SACConfig(), (1, 40, 40)),
        (algos.DQNConfig(n_critics=2), (3,)),
        (algos.DiscreteRandomPolicyConfig(), (3,)),
    ],
)
def test_everything_else_goes_the_long_way(config: Any, shape: Any) -> None:
    algorithm = built(config, shape)
    assert flat(algorithm) is None


def test_memories_next_to_a_policy_without_one_see_every_step() -> None:
    memory = GRUEncoderFactory(hidden_size=4, hidden_units=[4])
    ppo = built(algos.PPOConfig(actor_encoder_factory=SMALL, value_encoder_factory=memory), discrete_action=True)
    actor, x = ppo.actor(greedy=False), np.random.default_rng(0).normal(size=(3, 1, 3)).astype(np.float32)
    for step in range(3):
        actor(x[step], np.array([step == 0]), np.zeros(1, np.float32))
    with torch.no_grad():
        ppo.nets.value(Inputs(torch.from_numpy(x[:2]), state_out=(after := {})))
    np.testing.assert_allclose(actor.extra["state.value"], after["value"], atol=1e-6)
    assert after["value"].abs().max() > 0.01


def test_training_goes_on_after_acting() -> None:
    sac = built(algos.SACConfig(actor_encoder_factory=SMALL, batch_size=4, **SCALED))
    x = np.ones((2, 3), np.float32)
    sac.predict(x)
    sac.sample_action(x)
    observation = torch.randn(4, 3)
    with torch.enable_grad():
        action = sac.nets.actor(Inputs(sac.units.observation(observation))).sample()[0]
        sac.units.environment_action(action).sum().backward()  # the scalers' tensors may be saved for it
    assert sac.nets.actor.linear.weight.grad is not None


@pytest.mark.parametrize("rows", [1, 5])
def test_numbers_that_are_not_finite_are_refused_and_large_ones_are_not(rows: int) -> None:
    sac = FLAT["SAC"]()
    for value in (np.nan, np.inf, -np.inf):
        x = np.zeros((rows, 3), np.float32)
        x[-1, 1] = value
        with pytest.raises(NonFiniteError, match="NaN or infinity"):
            sac.predict(x)
    assert np.isfinite(sac.predict(np.full((rows, 3), 1e30, np.float32))).all()
