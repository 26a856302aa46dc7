"""Fitted Q evaluation: exact values, any policy, its own units, files, resuming, and how it ranks policies."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from run.fakes import Drift
from torch import Tensor, nn

import birl
from birl import algos
from birl.algorithm import Algorithm, Nothing, Policy, load_learnable
from birl.config import AlgorithmConfig, config, hyperparameters
from birl.dataset import InfiniteBuffer, MDPDataset, MultiStepTransitionPicker, PrioritizedSampler, ReplayBuffer
from birl.errors import (
    ConfigError,
    CorruptFileError,
    NotBuiltError,
    ResolutionWarning,
    ResumeError,
    ShapeError,
    ShortRunWarning,
    UnsupportedError,
)
from birl.logging import NoopAdapterFactory
from birl.metrics import (
    AverageValueEstimationEvaluator,
    CompareContinuousActionDiffEvaluator,
    CompareDiscreteActionMatchEvaluator,
    ContinuousActionDiffEvaluator,
    DiscountedSumOfAdvantageEvaluator,
    DiscreteActionMatchEvaluator,
    EnvironmentEvaluator,
    InitialStateValueEstimationEvaluator,
    SoftOPCEvaluator,
    TDErrorEvaluator,
    evaluate,
)
from birl.models import (
    C51QFunctionFactory,
    DefaultEncoderFactory,
    GRUEncoderFactory,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    QFunctionFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
)
from birl.ope import FQE, DiscreteFQE, DiscreteFQEConfig, FQEConfig
from birl.optimizers import AdamFactory, CosineAnnealingLRFactory
from birl.preprocessing import MinMaxActionScaler, StandardObservationScaler, StandardRewardScaler
from birl.seeding import seed as seed_everything
from birl.spaces import Composite, Continuous, Discrete, MultiDiscrete
from birl.spaces.specs import Spec
from birl.testing import CHECKS, SLOW_CHECKS, ChainEnv, check_algorithm, collect_dataset, random_dataset
from birl.types import ActionSpace, Inputs
from tests.tiers import slow_but

# most runs here look at something else than estimates, and are as short as can be
pytestmark = pytest.mark.filterwarnings("ignore:n_steps=.* copies of:birl.errors.ShortRunWarning")

SMALL = VectorEncoderFactory(hidden_units=[6, 5])
SMALL_CHAIN = VectorEncoderFactory(hidden_units=[32, 32])
GRU = GRUEncoderFactory(hidden_size=5, hidden_units=[6])
QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": NoopAdapterFactory()}
HEADS: dict[str, QFunctionFactory] = {
    "mean": MeanQFunctionFactory(),
    "qr": QRQFunctionFactory(n_quantiles=8),
    "iqn": IQNQFunctionFactory(n_quantiles=8, n_greedy_quantiles=16, embed_size=8),
    "c51": C51QFunctionFactory(n_atoms=41, v_min=-10.0, v_max=10.0),
}


def dataset_of(discrete: bool, seed: int = 0, scale: float = 1.0, shape: Any = (3,), size: int = 3) -> MDPDataset:
    """Random data: 12 episodes of 5 steps, every other one cut by a time limit."""
    sizes = {"action_size": size if discrete else 2, "discrete_action": discrete}
    return random_dataset(shape, **sizes, action_scale=scale, seed=seed, next_observations=None)


def small(name: str, **fields: Any) -> Any:
    """A configuration of ``algos`` with networks of a few units, as far as it has such fields."""
    cls = getattr(algos, f"{name}Config")
    known = {item.name for item in dataclasses.fields(cls)}
    encoders = {f: SMALL for f in known if f.endswith("encoder_factory")}
    return cls(**{**encoders, **{f: value for f, value in fields.items() if f in known}})


def policy_of(name: str, discrete: bool, seed: int = 1, shape: Any = (3,), size: int = 3, **fields: Any) -> Any:
    """An untrained policy, the same for every call, leaving the global random numbers as they are."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    algorithm = small(name, **fields).create()
    algorithm.create_impl(shape, size if discrete else 2, discrete_action=discrete)
    torch.set_rng_state(state)
    return algorithm


def fqe_of(policy: Any, **fields: Any) -> Any:
    """An evaluation of it with small networks."""
    discrete = policy.spec.actions.discrete
    cls, config_class = (DiscreteFQE, DiscreteFQEConfig) if discrete else (FQE, FQEConfig)
    return cls(algo=policy, config=config_class(**{"encoder_factory": SMALL, "batch_size": 16, **fields}))


# -- the contract --------------------------------------------------------------------------------------------------


@config
class EvaluatedBCConfig(FQEConfig):
    """An evaluation that can be made of its configuration alone, as the contract wants it."""

    def create(self, device: Any = False) -> Any:
        return FQE(policy_of("BC", False), self, device)


@config
class EvaluatedSACConfig(FQEConfig):
    def create(self, device: Any = False) -> Any:
        return FQE(policy_of("SAC", False), self, device)


@config
class EvaluatedDQNConfig(DiscreteFQEConfig):
    def create(self, device: Any = False) -> Any:
        return DiscreteFQE(policy_of("DQN", True), self, device)


@config
class EvaluatedMemoryConfig(DiscreteFQEConfig):
    def create(self, device: Any = False) -> Any:
        return DiscreteFQE(policy_of("DQN", True, encoder_factory=GRU), self, device)


FIELDS: dict[str, Any] = {"encoder_factory": SMALL, "batch_size": 16}
ROWS: dict[str, tuple[Any, int]] = {
    "FQE of BC": (EvaluatedBCConfig(**FIELDS), 2),
    "FQE of SAC, sampled": (EvaluatedSACConfig(**FIELDS, n_action_samples=2), 2),
    "DiscreteFQE of DQN": (EvaluatedDQNConfig(**FIELDS), 3),
    "DiscreteFQE of DQN, GRU": (
        EvaluatedMemoryConfig(**{**FIELDS, "encoder_factory": GRU}, sequence_length=4, burn_in=2),
        3,
    ),
}


# what a sampled policy does is no function of the observation, as these checks expect
OF_GREEDY_POLICIES = ("export_onnx", "export_torch", "export_torchscript", "save_load_continue")


def rows_of(checks: Any) -> list[Any]:
    pairs = [(row, name) for row in ROWS for name in checks if "sampled" not in row or name not in OF_GREEDY_POLICIES]
    return [pytest.param(row, name, id=f"{row}-{name}") for row, name in pairs]


@pytest.mark.parametrize(("row", "name"), rows_of(CHECKS))
def test_contract(row: str, name: str) -> None:
    check_algorithm(ROWS[row][0], action_size=ROWS[row][1], checks=[name])


@pytest.mark.slow
@pytest.mark.parametrize(("row", "name"), rows_of(SLOW_CHECKS))
def test_slow_contract(row: str, name: str) -> None:
    check_algorithm(ROWS[row][0], action_size=ROWS[row][1], checks=[name])


@pytest.mark.parametrize("cls", [FQEConfig, DiscreteFQEConfig])
def test_every_field_is_described(cls: Any) -> None:
    for name, default, allowed, meaning in cls.documentation():
        assert hyperparameters(cls)[name].allowed.accepts(default), name
        assert allowed and meaning.endswith(".")
    again = AlgorithmConfig.deserialize(json.loads(json.dumps(cls(gamma=0.5).serialize())))
    assert type(again) is cls and again.gamma == 0.5
    # the defaults of the specification, but for those that rank (below)
    assert (cls().learning_rate, cls().batch_size, cls().gamma) == (1e-3, 100, 0.99)
    assert (cls().n_critics, cls().target_update_interval, cls().n_action_samples) == (1, 10, 0)


# -- known values --------------------------------------------------------------------------------------------------

STATES, CHOICES, GAMMA = 4, 3, 0.8
UNIFORM = np.full((STATES, CHOICES), 1 / CHOICES)
GREEDY = np.eye(CHOICES)[[0, 2, 1, 2]]
MIXED = np.array([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])


@config
class TableConfig(AlgorithmConfig):
    """A policy of a table, as a user might write one."""

    probabilities: Any = None


class TableNets(nn.Module):
    def __init__(self, spec: Spec, cfg: TableConfig) -> None:
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", torch.tensor(cfg.probabilities, dtype=torch.float32))

    def __call__(self, inputs: Inputs) -> Tensor:
        return inputs.observation @ self.table


class Table(Algorithm[TableConfig, TableNets]):
    actions = ActionSpace.DISCRETE
    learns_from = Nothing()
    acts = Policy(
        lambda nets, inputs: nets(inputs).argmax(-1),
        lambda nets, inputs: torch.multinomial(nets(inputs), 1)[..., 0],
        network="",
    )


def table_of(probabilities: Any) -> Any:
    policy = TableConfig(probabilities=probabilities.tolist()).create()
    policy.create_impl((STATES,), CHOICES)
    return policy


def tabular() -> tuple[MDPDataset, Any, Any, Any]:
    """Data of a random process, and the rewards, transitions and chances to go on that are in these data.

    Rewards are mostly 0 and seldom large: their median is far from their mean.
    """
    rng, count = np.random.default_rng(7), 3000
    moves = rng.dirichlet(np.full(STATES, 0.3), (STATES, CHOICES))
    goal = rng.permutation(STATES * CHOICES).reshape(STATES, CHOICES) / (STATES * CHOICES)
    state, action = rng.integers(STATES, size=count), rng.integers(CHOICES, size=count)
    following = np.array([rng.choice(STATES, p=moves[s, a]) for s, a in zip(state, action, strict=True)])
    reward = 3.0 * (rng.random(count) < 0.5 * goal[state, action])
    ended = (action == 2) & (rng.random(count) < 0.2)
    eye = np.eye(STATES, dtype=np.float32)
    # every step is an episode of its own: terminated, or cut
    reward = reward.astype(np.float32)
    data = MDPDataset(eye[state], action, reward, ended, ~ended, action_size=CHOICES, next_observations=eye[following])
    r, p = np.zeros((STATES, CHOICES)), np.zeros((STATES, CHOICES, STATES))
    visits = np.zeros((STATES, CHOICES))
    np.add.at(visits, (state, action), 1)
    np.add.at(r, (state, action), reward)
    np.add.at(p, (state, action, following), ~ended)
    return data, r / visits, p / visits[..., None], eye


def exact_values(r: Any, p: Any, policy: Any) -> Any:
    """``Q = r + gamma P Pi Q`` solved as one linear system."""
    size = STATES * CHOICES
    step = np.einsum("sat,tb->satb", p, policy).reshape(size, size)
    return np.linalg.solve(np.eye(size) - GAMMA * step, r.reshape(size)).reshape(STATES, CHOICES)


def trained(policy: Any, data: Any, n_steps: int, **fields: Any) -> Any:
    settings = {
        "batch_size": 256,
        "learning_rate": 5e-2,
        "optim_factory": AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=n_steps)),
        "encoder_factory": VectorEncoderFactory(hidden_units=[]),
        "target_update_interval": 20,
        "gamma": GAMMA,
    }
    fqe = fqe_of(policy, **{**settings, **fields})
    fqe.build_with_dataset(data)
    for _ in range(n_steps):
        fqe.update(fqe.sample_minibatch(data))
    return fqe


def values_of(fqe: Any, eye: Any) -> Any:
    return np.stack([fqe.predict_value(eye, np.full(STATES, a)) for a in range(CHOICES)], 1)


@pytest.mark.parametrize(
    ("kind", "head", "samples"),
    [
        ("greedy", "mean", 0),
        ("greedy", "c51", 0),
        ("mixed", "mean", 1),
        ("mixed", "mean", 4),
        ("mixed", "c51", 2),
        ("uniform", "mean", 0),
    ],
)
def test_exact_values_of_a_fixed_policy(kind: str, head: str, samples: int) -> None:
    """The solution of the linear equations of the data. A Huber loss, whose minimum is no mean, misses it by far."""
    data, r, p, eye = tabular()
    table = {"greedy": GREEDY, "mixed": MIXED, "uniform": UNIFORM}[kind]
    exact = exact_values(r, p, table)
    if kind == "uniform":
        policy = algos.DiscreteRandomPolicyConfig().create()
        policy.create_impl((STATES,), CHOICES)
    else:
        policy = table_of(table)
    others = [exact_values(r, p, other) for other in (GREEDY, MIXED, UNIFORM) if other is not table]
    assert all(np.abs(exact - other).max() > 0.5 for other in others), "the policies are too much alike"
    rate = {} if head == "mean" else {"learning_rate": 0.1}
    q_func = C51QFunctionFactory(n_atoms=31, v_min=-0.5, v_max=14.5) if head == "c51" else HEADS[head]
    fqe = trained(policy, data, 400, q_func_factory=q_func, n_action_samples=samples, **rate)
    error = np.abs(values_of(fqe, eye) - exact).max()
    print(f"\n{kind} {head} {samples}: error {error:.3f} of values up to {exact.max():.2f}")
    assert error <= 0.25


@config
class PartsConfig(TableConfig):
    """The same, for `TableOfParts`."""


class PartsNets(TableNets):
    def __init__(self, spec: Spec, cfg: PartsConfig) -> None:
        super().__init__(spec, cfg)
        self.actions = spec.actions


class TableOfParts(Algorithm[PartsConfig, PartsNets]):
    """A table's choice in other forms: two choices of two, or a choice and a number."""

    actions = ActionSpace.ANY
    learns_from = Nothing()
    acts = Policy(
        lambda nets, inputs: in_parts(nets.actions, nets(inputs).argmax(-1)),
        lambda nets, inputs: in_parts(nets.actions, torch.multinomial(nets(inputs), 1)[..., 0]),
        network="",
        bounded=False,
    )


def in_parts(actions: Any, choice: Tensor) -> Tensor:
    if isinstance(actions, MultiDiscrete):
        return torch.stack([choice // 2, choice % 2], -1)
    number = torch.full((*choice.shape, 1), 0.5)
    return choice if isinstance(actions, Discrete) else actions.join([choice, number])


PARTS: dict[str, Any] = {
    "one from k": Discrete(CHOICES, start=5),
    "several": MultiDiscrete((2, 2)),
    "several from k": MultiDiscrete((2, 2), (1, -3)),
    "composite": Composite((Discrete(CHOICES, start=2), Continuous(1))),
}


@pytest.mark.filterwarnings("ignore::birl.errors.ActionRangeWarning")
@pytest.mark.parametrize(
    ("name", "samples"),
    slow_but([("one from k", 0), ("several from k", 3)], [*((name, 0) for name in PARTS), ("several from k", 3)]),
)
def test_exact_values_of_other_actions(name: str, samples: int) -> None:
    """Those of the same process, whose actions are called otherwise. Two choices together are no sum of each."""
    data, r, p, eye = tabular()
    actions, table = PARTS[name], MIXED if samples else GREEDY
    exact = exact_values(r, p, table)

    def called(choices: Any) -> Any:
        return actions.to_environment(in_parts(actions, torch.as_tensor(choices))).numpy()

    batches = list(data.reader.all_transitions())
    names = ("observations", "actions", "rewards", "terminals", "next_observations")
    x, choice, reward, ended, following = (np.concatenate([getattr(each, name) for each in batches]) for name in names)
    logged = MDPDataset(
        x,
        called(choice[:, 0]),
        reward,
        ended,
        1 - ended,
        action_size=actions.size_argument,
        next_observations=following,
    )
    policy = PartsConfig(probabilities=table.tolist()).create()
    policy.create_impl((STATES,), actions.size_argument)
    torch.manual_seed(0)
    fields = {"encoder_factory": VectorEncoderFactory(hidden_units=[64]), "learning_rate": 1e-2}
    fqe = trained(policy, logged, 700, n_action_samples=samples, **fields)
    found = np.stack([fqe.predict_value(eye, np.repeat(called([a]), STATES, 0)) for a in range(CHOICES)], 1)
    visited = np.abs(found - exact).mean()
    other = exact_values(r, p, MIXED if table is GREEDY else GREEDY)
    assert visited < 0.35 and visited < 0.5 * np.abs(found - other).mean()


def test_a_greedy_evaluation_is_of_the_mode() -> None:
    """Without samples a stochastic policy is evaluated as it is deployed: by its most probable actions."""
    data, r, p, eye = tabular()
    greedy = np.eye(CHOICES)[MIXED.argmax(1)]
    fqe = trained(table_of(MIXED), data, 400)
    assert np.abs(values_of(fqe, eye) - exact_values(r, p, greedy)).max() <= 0.25
    assert np.array_equal(fqe.predict(eye), MIXED.argmax(1))


def test_exact_values_of_continuous_actions() -> None:
    """``s' = (s + a) / 2``, ``r = s - a``, ``pi(s) = 2 k s`` in the environment's units: Q is linear and known."""
    rng, count, k = np.random.default_rng(3), 2000, 0.4
    state = rng.uniform(-1, 1, (count, 1)).astype(np.float32)
    action = rng.uniform(-2, 2, (count, 1)).astype(np.float32)
    following, reward = (state + action) / 2, (state - action)[:, 0]
    data = MDPDataset(state, action, reward, np.zeros(count), np.ones(count), next_observations=following)
    policy = algos.BCConfig(
        encoder_factory=VectorEncoderFactory(hidden_units=[]),
        action_scaler=MinMaxActionScaler(minimum=[-2.0], maximum=[2.0]),
    ).create()
    policy.create_impl((1,), 1)
    with torch.no_grad():  # tanh(x) is x here, to a thousandth
        policy.nets.actor.linear.weight.fill_(0.01 * k)
        policy.nets.actor.linear.bias.zero_()
    policy.nets.actor.register_forward_hook(lambda module, args, output: output * 100)
    # Q = x s + y a with x = 1 + g (x + 2 k y) / 2 and y = -1 + g (x + 2 k y) / 2
    after = np.linalg.solve([[1 - GAMMA / 2, -GAMMA * k], [-GAMMA / 2, 1 - GAMMA * k]], [1.0, -1.0])
    fqe = trained(policy, data, 400)
    s, a = np.array([[-1.0], [0.5], [1.0]], np.float32), np.array([[1.0], [-2.0], [0.5]], np.float32)
    assert fqe.predict_value(s, a) == pytest.approx(after[0] * s[:, 0] + after[1] * a[:, 0], abs=0.05)


def test_ensembles_are_averaged_not_minimised() -> None:
    """The target is the mean over members: a minimum would evaluate every policy too low."""
    policy = policy_of("DQN", True)
    fqe = fqe_of(policy, n_critics=2, learning_rate=0.0)
    data = dataset_of(True)
    fqe.build_with_dataset(data)
    with torch.no_grad():
        for network in (fqe.nets.critic, fqe.nets.critic_target):
            for parameter in network.parameters():
                parameter.zero_()
        fqe.nets.critic_target.head.linear.bias[0].fill_(1.0)
        fqe.nets.critic_target.head.linear.bias[1].fill_(3.0)
    batch = fqe.learner.batch(data.sample_transition_batch(32))
    expected = 2 * (batch.reward + batch.discount * 2.0).square().mean()
    assert float(fqe.engine.update(batch)["loss"]) == pytest.approx(float(expected), rel=1e-5)


# -- the policy is an input ----------------------------------------------------------------------------------------

SINGLE = sorted(
    name
    for name in algos.__all__
    if inspect.isclass(cls := getattr(algos, name))
    and issubclass(cls, Algorithm)
    and "config_class" in vars(cls)
    and not cls.acts.aims
)


@pytest.mark.parametrize("samples", [0, 1])
@pytest.mark.parametrize("name", SINGLE)
def test_any_policy_is_evaluated_and_left_as_it_is(name: str, samples: int) -> None:
    discrete = ActionSpace.DISCRETE in getattr(algos, name).actions
    policy, data = policy_of(name, discrete, hidden_units=[6]), dataset_of(discrete)
    before = {key: x.clone() for key, x in policy.nets.state_dict().items()}
    fqe = fqe_of(policy, n_action_samples=samples)
    fqe.fit(data, n_steps=4, n_steps_per_epoch=4, **QUIET)
    after = policy.nets.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert policy.grad_step == 0 and all(p.grad is None for p in policy.nets.parameters())
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    seed_everything(3)
    expected = policy.sample_action(x) if samples else policy.predict(x)
    seed_everything(3)
    assert np.array_equal(fqe.predict(x), expected)
    value = fqe.predict_value(x, fqe.predict(x))
    assert value.shape == (5,) and np.isfinite(value).all()


@pytest.mark.parametrize("discrete", [True, False])
def test_a_policy_sees_raw_observations_and_acts_in_the_environments_units(discrete: bool) -> None:
    """d3rlpy gives it what the evaluation's own scaler made of them, and takes its actions unscaled."""
    data = dataset_of(discrete, scale=4.0)
    scalers: dict[str, Any] = {"observation_scaler": StandardObservationScaler(mean=[2.0, 0, 0], std=[0.1, 3, 1])}
    own: dict[str, Any] = {"observation_scaler": StandardObservationScaler(), "reward_scaler": StandardRewardScaler()}
    if not discrete:
        scalers["action_scaler"] = MinMaxActionScaler(minimum=[2.0, 0.0], maximum=[5.0, 1.0])
        own["action_scaler"] = MinMaxActionScaler()
    policy = policy_of("DQN" if discrete else "BC", discrete, **scalers)
    fqe = fqe_of(policy, **own)
    fqe.build_with_dataset(data)
    minibatch = data.sample_transition_batch(40)
    expected = policy.predict(minibatch.next_observations)
    batch = fqe.learner.batch(minibatch)
    got = batch.extra["policy_share" if discrete else "policy_action"]
    if discrete:
        assert np.array_equal(got.numpy(), np.eye(3)[expected])
        assert len(np.unique(expected)) > 1
    else:
        assert got.shape == (40, 1, 2)
        assert np.allclose(fqe.action_scaler.reverse_transform(got[:, 0]).numpy(), expected, atol=1e-5)
        assert expected[:, 0].min() >= 2.0
    assert np.allclose(
        batch.next_observation.numpy(), fqe.observation_scaler.transform_numpy(minibatch.next_observations), atol=1e-5
    )
    assert policy.observation_scaler.serialize() == scalers["observation_scaler"].serialize()


def test_dropout_and_batch_norm_of_the_policy_are_at_rest() -> None:
    encoder = VectorEncoderFactory(hidden_units=[16], use_batch_norm=True, dropout_rate=0.5)
    policy, data = policy_of("BC", False, encoder_factory=encoder), dataset_of(False)
    state = policy.get_state()
    fqe = fqe_of(policy)
    fqe.build_with_dataset(data)
    minibatch = data.sample_transition_batch(16)
    first, second = (fqe.learner.batch(minibatch).extra["policy_action"] for _ in range(2))
    assert torch.equal(first, second)
    for key, value in state["engine"]["nets"].items():
        assert torch.equal(value, policy.nets.state_dict()[key]), key
    policy.update(data.sample_transition_batch(16))  # and can go on learning
    assert any(not torch.equal(value, policy.nets.state_dict()[k]) for k, value in state["engine"]["nets"].items())


def test_samples_are_averaged() -> None:
    policy, data = policy_of("SAC", False), dataset_of(False)
    fqe = fqe_of(policy, n_action_samples=5)
    fqe.build_with_dataset(data)
    actions = fqe.learner.batch(data.sample_transition_batch(8)).extra["policy_action"]
    assert actions.shape == (8, 5, 2)
    assert bool((actions.std(1) > 1e-3).all())


def test_a_recurrent_policy_remembers() -> None:
    """Its actions are those it would take, step by step, from the sequences' first steps on; burn-in is cut off."""
    rng, count = np.random.default_rng(0), 36
    last = np.arange(count) % 9 == 8
    data = MDPDataset(
        rng.normal(size=(count, 3)).astype(np.float32), rng.integers(3, size=count), rng.normal(size=count), last
    )
    policy = policy_of("DQN", True, encoder_factory=GRU)
    for recurrent in (False, True):
        encoder = GRU if recurrent else SMALL
        fqe = fqe_of(policy, encoder_factory=encoder, batch_size=8, sequence_length=4, burn_in=2)
        fqe.build_with_dataset(data)
        assert fqe.is_recurrent
        minibatch = fqe.sample_minibatch(data)
        batch = fqe.learner.batch(minibatch)
        assert batch.reward.shape == (4, 8) and batch.extra["policy_share"].shape == (4, 8, 3)
        checked = 0
        for b in range(8):
            actor = policy.actor(greedy=True, n=1)
            for t in range(6):
                first = np.array([t == 0 or bool(minibatch.is_first[t, b])])
                actor(minibatch.observations[t, b][None], first, np.zeros(1))
                if t >= 2 and minibatch.masks[t, b]:
                    ahead = policy.actor(greedy=True, n=1)
                    ahead.set_state(actor.get_state())
                    wanted = ahead(minibatch.next_observations[t, b][None], np.array([False]), np.zeros(1))
                    assert batch.extra["policy_share"][t - 2, b].argmax() == wanted[0]
                    checked += 1
        assert checked > 8
        fqe.fit(data, n_steps=3, n_steps_per_epoch=3, **QUIET)


def test_tuple_observations() -> None:
    shape = ((3,), (2,))
    encoder = DefaultEncoderFactory()
    encoders = {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder}
    policy, data = policy_of("SAC", False, shape=shape, **encoders), dataset_of(False, shape=shape)
    fqe = fqe_of(policy, encoder_factory=encoder)
    metrics = fqe.fit(
        data, n_steps=4, n_steps_per_epoch=4, evaluators={"init": InitialStateValueEstimationEvaluator()}, **QUIET
    )
    assert np.isfinite(metrics[-1][1]["init"])


def test_data_without_some_of_the_policys_actions() -> None:
    policy, data = policy_of("DQN", True, size=5), dataset_of(True, size=3)
    fqe = fqe_of(policy)
    fqe.fit(data, n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert fqe.action_size == 5


# -- mistakes ------------------------------------------------------------------------------------------------------


def test_the_wrong_kind_of_actions_names_the_sibling() -> None:
    discrete, continuous = policy_of("DQN", True), policy_of("BC", False)
    with pytest.raises(ConfigError, match="policy of DQN has discrete actions.* use DiscreteFQE"):
        FQE(algo=discrete)
    with pytest.raises(ConfigError, match="policy of BC has continuous actions.* use FQE"):
        DiscreteFQE(algo=continuous)
    with pytest.raises(ConfigError, match="dataset has discrete actions.* use DiscreteFQE"):
        fqe_of(continuous).fit(dataset_of(True), n_steps=1, **QUIET)
    with pytest.raises(ConfigError, match="dataset has continuous actions.* use FQE"):
        fqe_of(discrete).fit(dataset_of(False), n_steps=1, **QUIET)


@pytest.mark.parametrize("discrete", [False, True])
def test_prioritised_minibatches_are_refused(discrete: bool) -> None:
    """An estimate that counts badly predicted steps more often is of other data."""
    data = dataset_of(discrete)
    prioritised = ReplayBuffer(InfiniteBuffer(), episodes=list(data.episodes), sampler=PrioritizedSampler())
    evaluation = fqe_of(policy_of("DQN" if discrete else "BC", discrete))
    with pytest.raises(UnsupportedError, match="all steps have equal weight.* without sampler="):
        evaluation.fit(prioritised, n_steps=1, **QUIET)


def test_what_is_no_policy_is_refused() -> None:
    policy = policy_of("BC", False)
    with pytest.raises(ConfigError, match=r"FQE\(algo=\.\.\., config=FQEConfig\(\)\)"):
        FQEConfig().create()
    with pytest.raises(ConfigError, match=r"DiscreteFQE\(algo=\.\.\., config=DiscreteFQEConfig\(\)\)"):
        DiscreteFQE(config=DiscreteFQEConfig())
    with pytest.raises(ConfigError, match=r"algo is a config; it must be an algorithm: FQE\(algo, config\)"):
        FQE(FQEConfig(), policy)  # type: ignore[arg-type]
    for wrong in (fqe_of(policy), small("DecisionTransformer").create()):
        with pytest.raises(ConfigError, match=f"not {type(wrong).__name__}"):
            FQE(algo=wrong)
    with pytest.raises(NotBuiltError, match="this BC has no networks yet"):
        FQE(algo=small("BC").create())
    with pytest.raises(ConfigError, match="FQE takes a FQEConfig"):
        FQE(algo=policy, config=algos.BCConfig())
    with pytest.raises(ConfigError, match="n_action_samples is -1"):
        FQEConfig(n_action_samples=-1)


def test_shapes_and_devices_must_be_the_policys(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of("BC", False, shape=(4,))
    built = r"observations \(3,\) and 2 action dimensions, but the policy of BC .* \(4,\) and 2"
    with pytest.raises(ShapeError, match=built):
        fqe_of(policy).build_with_dataset(dataset_of(False))
    with pytest.raises(ShapeError, match="5 discrete actions"):
        fqe_of(policy_of("DQN", True)).build_with_dataset(dataset_of(True, size=5))
    monkeypatch.setattr(policy, "torch_device", torch.device("cuda:0"))
    with pytest.raises(ConfigError, match="the policy is on cuda:0, FQE on cpu"):
        fqe_of(policy)


def test_pickers_that_discount_otherwise_are_refused() -> None:
    data = dataset_of(True)
    several = birl.dataset.ReplayBuffer(
        birl.dataset.InfiniteBuffer(), MultiStepTransitionPicker(3, 0.5), episodes=data.episodes
    )
    with pytest.raises(ConfigError, match="gamma"):
        fqe_of(policy_of("DQN", True)).fit(several, n_steps=1, **QUIET)


# -- files and resuming --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discrete", [True, False])
def test_fault_8_a_saved_evaluation_is_a_working_one(discrete: bool, tmp_path: Path) -> None:
    """d3rlpy cannot load one: its policy is not in the file."""
    data, own = dataset_of(discrete), {"observation_scaler": StandardObservationScaler()}
    scalers: dict[str, Any] = {"observation_scaler": StandardObservationScaler()}
    if not discrete:
        scalers["action_scaler"] = MinMaxActionScaler()
    policy = small("DQN" if discrete else "SAC", **scalers, batch_size=16).create()
    policy.fit(data, n_steps=5, n_steps_per_epoch=5, **QUIET)
    fqe = fqe_of(policy, **own, n_action_samples=0 if discrete else 2)
    folder = {"logger_adapter": birl.logging.FileAdapterFactory(root_dir=str(tmp_path)), "show_progress": False}
    fqe.fit(data, n_steps=6, n_steps_per_epoch=6, experiment_name="run", with_timestamp=False, **folder)
    assert json.loads((tmp_path / "run" / "params.json").read_text())["policy"] == json.loads(
        json.dumps(policy.describe())
    )
    fqe.save(tmp_path / "fqe.d3")
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    for file in (tmp_path / "fqe.d3", tmp_path / "run" / "model_6.d3"):
        loaded = birl.load_learnable(file)
        assert type(loaded) is type(fqe) and type(loaded.algo) is type(policy)
        assert loaded.config.serialize() == fqe.config.serialize()
        assert loaded.algo.config.serialize() == policy.config.serialize()
        assert (loaded.grad_step, loaded.algo.grad_step) == (6, 5)
        assert np.array_equal(loaded.algo.predict(x), policy.predict(x))
        action = policy.predict(x)
        assert np.array_equal(loaded.predict_value(x, action), fqe.predict_value(x, action))
        minibatches, state = [data.sample_transition_batch(16) for _ in range(3)], fqe.get_state()
        values = []
        for each in (fqe, loaded):  # both go on alike
            torch.manual_seed(5)
            for minibatch in minibatches:
                each.update(minibatch)
            values.append(each.predict_value(x, action))
        assert np.array_equal(*values)
        fqe.set_state(state)
    again = type(fqe)(policy, fqe.config)
    again.build_with_dataset(data)
    fqe.save_model(tmp_path / "nets.d3")
    again.load_model(tmp_path / "nets.d3")
    assert np.array_equal(again.predict_value(x, action), fqe.predict_value(x, action))


def test_a_policy_in_a_file_is_checked(tmp_path: Path) -> None:
    from birl.files import load_archive, save_archive

    fqe, file = fqe_of(policy_of("DQN", True)), tmp_path / "fqe.d3"
    fqe.create_impl((3,), 3)
    fqe.save(file)
    settings, state = load_archive(file, "model")
    for change in (lambda s: s["policy"]["nets"].popitem(), lambda s: s.pop("policy")):
        settings, state = load_archive(file, "model")
        change(state)
        save_archive(tmp_path / "other.d3", "model", settings, state)
        with pytest.raises(CorruptFileError):
            load_learnable(tmp_path / "other.d3")
    (tmp_path / "params.json").write_text(json.dumps(fqe.describe()))
    with pytest.raises(UnsupportedError, match="load_learnable"):
        DiscreteFQE.from_json(tmp_path / "params.json")


def test_the_exported_policy_is_the_evaluated_one(tmp_path: Path) -> None:
    policy = policy_of("DQN", True)
    fqe = fqe_of(policy)
    fqe.save_policy(tmp_path / "policy.pt2")
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    exported = torch.export.load(tmp_path / "policy.pt2").module()(torch.from_numpy(x))
    assert np.array_equal(exported.numpy(), policy.predict(x))


@pytest.mark.parametrize("samples", [0, 2])
def test_a_resumed_run_ends_where_an_unbroken_one_does(samples: int, tmp_path: Path) -> None:
    data, x = dataset_of(False), np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)

    def run(folder: str, steps: tuple[int, ...], policy: Any) -> Any:
        seed_everything(11)
        torch.manual_seed(2)
        for n_steps in steps:
            fqe = fqe_of(policy, n_action_samples=samples, target_update_interval=3)
            fqe.fit(dataset_of(False), n_steps=n_steps, n_steps_per_epoch=4, checkpoint=tmp_path / folder, **QUIET)
        return fqe

    policy = policy_of("SAC", False)
    whole, broken = run("whole", (12,), policy), run("broken", (5, 12), policy)
    states = [each.get_state()["engine"] for each in (whole, broken)]
    assert states[0]["grad_step"] == states[1]["grad_step"] == 12
    assert all(torch.equal(value, states[1]["nets"][name]) for name, value in states[0]["nets"].items())
    action = policy.predict(x)
    assert np.array_equal(whole.predict_value(x, action), broken.predict_value(x, action))
    assert data.transition_count == 54
    with pytest.raises(ResumeError, match="evaluating another policy"):
        run("whole", (16,), policy_of("SAC", False, seed=2))
    with pytest.raises(ResumeError, match="evaluating another policy"):
        run("whole", (16,), policy_of("SAC", False, action_scaler=MinMaxActionScaler(minimum=[-2, -2], maximum=[2, 2])))


# -- d3rlpy's code, options of fit and evaluators ------------------------------------------------------------------


def test_code_of_d3rlpys_documentation() -> None:
    import birl as d3rlpy

    dataset, env = d3rlpy.datasets.get_dataset("cartpole-replay")
    dqn = d3rlpy.algos.DQNConfig().create()
    dqn.build_with_dataset(dataset)
    for config_class in (d3rlpy.ope.DiscreteFQEConfig, d3rlpy.ope.FQEConfig):  # 2.3 has the one, 2.8 the other
        fqe = d3rlpy.ope.DiscreteFQE(algo=dqn, config=config_class(batch_size=7))
        assert type(fqe.config) is DiscreteFQEConfig and fqe.batch_size == 7 and fqe.algo is dqn
    metrics = fqe.fit(
        dataset,
        n_steps=4,
        n_steps_per_epoch=2,
        evaluators={
            "init_value": d3rlpy.metrics.InitialStateValueEstimationEvaluator(),
            "soft_opc": d3rlpy.metrics.SoftOPCEvaluator(return_threshold=180),
            "environment": d3rlpy.metrics.EnvironmentEvaluator(env, n_trials=2),
        },
        **QUIET,
    )
    assert [epoch for epoch, _ in metrics] == [1, 2]
    assert {"loss", "init_value", "soft_opc", "environment"} <= metrics[-1][1].keys()
    assert np.isfinite(list(metrics[-1][1].values())).all()


def test_ope_is_imported_when_it_is_needed(tmp_path: Path) -> None:
    """Not by ``import birl``, but before a saved evaluation is loaded; the command line finds it as well."""
    fqe = fqe_of(policy_of("DQN", True))
    fqe.create_impl((3,), 3)
    fqe.save(tmp_path / "fqe.d3")
    code = (
        "import sys, pathlib, birl\n"
        "print('birl.ope' in sys.modules)\n"
        "from birl.cli.loading import load_model\n"
        f"print(type(load_model(pathlib.Path({str(tmp_path / 'fqe.d3')!r}), 'cpu')[1].algo).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "DQN"]


def test_options_of_fit() -> None:
    policy, data, steps, epochs = policy_of("BC", False), dataset_of(False), [], []
    fqe = fqe_of(policy)
    result = list(
        fqe.fitter(
            data,
            5,
            n_steps_per_epoch=2,
            callback=lambda algo, epoch, step: steps.append((algo is fqe, step)),
            epoch_callback=lambda algo, epoch, step: epochs.append((epoch, step)),
            evaluators={"other": CompareContinuousActionDiffEvaluator(policy)},
            **QUIET,
        )
    )
    assert steps == [(True, step) for step in range(1, 6)] and epochs == [(1, 2), (2, 4), (3, 5)]
    assert [metrics["other"] for _, metrics in result] == [0.0] * 3
    fqe.fit(data, n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert fqe.grad_step == 7


def test_the_policys_own_experience_is_evaluated_online() -> None:
    env = Drift(discrete=True)
    policy = policy_of("DQN", True, shape=(2,))
    fqe = fqe_of(policy)
    fqe.fit_online(env, birl.dataset.create_fifo_replay_buffer(100, env=env), n_steps=40, update_start_step=20, **QUIET)
    assert fqe.grad_step == 20


@pytest.mark.parametrize("discrete", [True, False])
def test_evaluators_take_an_evaluation_for_an_algorithm(discrete: bool) -> None:
    data, policy = dataset_of(discrete), policy_of("DQN" if discrete else "BC", discrete)
    fqe = fqe_of(policy, gamma=0.9)
    fqe.fit(data, n_steps=3, n_steps_per_epoch=3, **QUIET)
    firsts = np.stack([episode.observations[0] for episode in data.episodes])
    initial = InitialStateValueEstimationEvaluator()(fqe, data)
    assert initial == pytest.approx(float(fqe.predict_value(firsts, policy.predict(firsts)).mean()), rel=1e-5)
    several = [
        AverageValueEstimationEvaluator(),
        DiscountedSumOfAdvantageEvaluator(),
        SoftOPCEvaluator(0.0),
        TDErrorEvaluator(),
        DiscreteActionMatchEvaluator() if discrete else ContinuousActionDiffEvaluator(),
    ]
    assert np.isfinite([evaluator(fqe, data) for evaluator in several]).all()
    same = CompareDiscreteActionMatchEvaluator if discrete else CompareContinuousActionDiffEvaluator
    assert same(policy)(fqe, data) == (1.0 if discrete else 0.0)
    env = Drift(discrete)
    policy = policy_of("DQN" if discrete else "BC", discrete, shape=(2,))
    fqe = fqe_of(policy)
    fqe.build_with_env(env)
    assert EnvironmentEvaluator(env, 5, seed=1)(fqe, None) == np.mean(evaluate(policy, env, 5, seed=1))


def test_a_stochastic_evaluation_plays_the_stochastic_policy() -> None:
    env, policy = Drift(discrete=False), policy_of("SAC", False, shape=(2,))
    greedy, sampled = fqe_of(policy), fqe_of(policy, n_action_samples=1)
    x = np.zeros((4, 2), np.float32)
    assert np.array_equal(greedy.predict(x), greedy.predict(x))
    assert not np.array_equal(sampled.predict(x), sampled.predict(x))
    for fqe in (greedy, sampled):
        fqe.build_with_env(env)
    seeds = [[evaluate(each, env, 3, seed=1) for _ in range(2)] for each in (greedy, sampled)]
    assert seeds[0][0] == seeds[0][1] and seeds[1][0] != seeds[1][1]


# -- ranking policies ----------------------------------------------------------------------------------------------


def ranking() -> Any:
    """The example as a module."""
    import importlib.util

    path = Path(__file__).parents[2] / "examples" / "fqe_ranking.py"
    spec = importlib.util.spec_from_file_location("fqe_ranking", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fqe_ranking"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_policies_of_cartpole_are_ranked() -> None:
    """A short run of the example: data alone distinguish bad policies from good ones."""
    example = ranking()
    chosen = {"random", "DQN 100", "DiscreteBC 2", "DiscreteBC 100", "DiscreteCQL 30"}
    found = example.evaluate_all(100, 300, 20, 0, choose=chosen.__contains__)
    assert {each.name for each in found} == chosen
    estimates, truth = [each.estimate for each in found], [each.discounted for each in found]
    assert max(truth) > 4 * min(truth)
    assert example.spearman(estimates, truth) >= 0.7


def estimate(policy: Any, data: Any, n_steps: int, **fields: Any) -> float:
    """By an evaluation with the defaults, but for ``fields``."""
    cls, config_class = (DiscreteFQE, DiscreteFQEConfig) if policy.spec.actions.discrete else (FQE, FQEConfig)
    evaluators = {"value": InitialStateValueEstimationEvaluator()}
    fqe = cls(algo=policy, config=config_class(**fields))
    return fqe.fit(data, n_steps, n_steps_per_epoch=n_steps, evaluators=evaluators, **QUIET)[-1][1]["value"]


def chain_values(goes_on: float, gamma: float, n_states: int) -> Any:
    """Values ``[n_states]`` of leading on with a probability in every state."""
    moves, ends = np.zeros((n_states, n_states)), n_states - 1
    for state in range(ends):
        moves[state, state + 1] += goes_on
        moves[state, max(state - 1, 0)] += 1 - goes_on
    reward = moves[:, ends].copy()
    moves[:, ends] = 0  # nothing follows the end
    return np.linalg.solve(np.eye(n_states) - gamma * moves, reward)


@pytest.mark.filterwarnings("error::birl.errors.ShortRunWarning")
@pytest.mark.parametrize("seed", slow_but([0], [0, 1]))
def test_policies_of_a_chain_are_ranked_by_their_true_values(seed: int) -> None:
    """With the defaults, and steps enough for ``gamma``: the only reward is seven steps away."""
    env, gamma = ChainEnv(), 0.9
    data = collect_dataset(env, 3000, seed, policy=env.best_action, skill=0.5)
    best = np.array([env.best_action(row) for row in np.eye(env.n_states)], int)
    truth, found = [], []
    seed_everything(seed)
    for goes_on in (1.0, 0.8, 0.5):
        table = np.full((env.n_states, 2), 1 - goes_on)
        table[np.arange(env.n_states), best] = goes_on
        policy = TableConfig(probabilities=table.tolist()).create()
        policy.create_impl((env.n_states,), 2)
        truth.append(chain_values(goes_on, gamma, env.n_states)[0])
        found.append(estimate(policy, data, 400, gamma=gamma, n_action_samples=1, encoder_factory=SMALL_CHAIN))
    assert truth[0] == pytest.approx(gamma**6) and truth[0] > truth[1] + 0.1 > truth[2] + 0.2
    assert found == sorted(found, reverse=True) and np.abs(np.array(found) - truth).max() <= 0.1


def test_a_run_that_cannot_carry_rewards_back_warns() -> None:
    """The guide's settings of old: 300 updates are three copies of the target, whatever is 100 steps away."""
    policy, cut = policy_of("DQN", True), dataset_of(True)
    fqe = fqe_of(policy, target_update_interval=100)
    with pytest.warns(ShortRunWarning, match="make 3 copies .* 100 steps count with gamma=0.99: use n_steps=30000"):
        next(fqe.fitter(cut, 300, n_steps_per_epoch=1, **QUIET))
    with pytest.warns(ShortRunWarning, match="4 steps count with gamma=0.75: use n_steps=120"):
        next(fqe_of(policy, gamma=0.75).fitter(cut, 39, n_steps_per_epoch=1, **QUIET))
    columns = np.zeros((20, 3), np.float32), np.arange(20) % 3, np.ones(20, np.float32), np.arange(20) % 5 == 4
    ending = MDPDataset(*columns, action_size=3)  # nothing is further away than five steps
    with pytest.warns(ShortRunWarning, match="5 steps count with gamma=0.99: use n_steps=150"):
        next(fqe_of(policy).fitter(ending, 49, n_steps_per_epoch=1, **QUIET))


def test_values_without_discount_and_end_warn() -> None:
    policy, ends = policy_of("DQN", True), np.arange(20) % 5 == 4
    columns = np.zeros((20, 3), np.float32), np.arange(20) % 3, np.ones(20, np.float32)
    cut = MDPDataset(*columns, np.zeros(20), ends, action_size=3)
    with pytest.warns(UserWarning, match="gamma is 1 and no episode of the data terminates.* gamma < 1"):
        next(fqe_of(policy, gamma=1.0).fitter(cut, 1, n_steps_per_epoch=1, **QUIET))
    next(fqe_of(policy, gamma=0.99).fitter(cut, 1, n_steps_per_epoch=1, **QUIET))  # a warning is an error here
    mixed = MDPDataset(*columns, np.arange(20) == 9, ends & (np.arange(20) != 9), action_size=3)
    next(fqe_of(policy, gamma=1.0).fitter(mixed, 1, n_steps_per_epoch=1, **QUIET))


@pytest.mark.filterwarnings("error::birl.errors.ShortRunWarning")
def test_a_run_that_is_long_enough_does_not_warn() -> None:
    policy, data = policy_of("DQN", True), dataset_of(True)
    next(fqe_of(policy, gamma=0.75).fitter(data, 40, n_steps_per_epoch=1, **QUIET))
    fqe = fqe_of(policy, target_update_interval=1, gamma=0.75)
    fqe.fit(data, 4, n_steps_per_epoch=4, **QUIET)
    fqe.fit(data, 1, n_steps_per_epoch=1, **QUIET)  # the copies of earlier calls count
    next(fqe_of(policy, gamma=0.0).fitter(data, 1, n_steps_per_epoch=1, **QUIET))  # nothing is carried
    columns = np.zeros((20, 3), np.float32), np.arange(20) % 3, np.ones(20, np.float32), np.arange(20) % 10 == 9
    far = MDPDataset(*columns, action_size=3, transition_picker=MultiStepTransitionPicker(5, 0.75))
    next(fqe_of(policy, target_update_interval=10, gamma=0.75).fitter(far, 10, n_steps_per_epoch=1, **QUIET))


@config
class SwingConfig(AlgorithmConfig):
    """Acrobot: pushes along with the velocity of the second joint, in both directions or in one."""

    directions: int = 2


class SwingNets(nn.Module):
    def __init__(self, spec: Spec, cfg: SwingConfig) -> None:
        super().__init__()
        self.least = 1 if cfg.directions == 1 else 0

    def __call__(self, inputs: Inputs) -> Tensor:
        return (1 + inputs.observation[..., 5].sign().long()).clamp(min=self.least)


class Swing(Algorithm[SwingConfig, SwingNets]):
    actions = ActionSpace.DISCRETE
    learns_from = Nothing()
    acts = Policy(lambda nets, inputs: nets(inputs), lambda nets, inputs: nets(inputs), network="")


def acrobot_logs(policies: Any, n_steps: int) -> MDPDataset:
    """Steps of all policies in turn, with a share of random actions."""
    env, rng = gymnasium.make("Acrobot-v1"), np.random.default_rng(0)
    columns: dict[str, list[Any]] = {name: [] for name in ("x", "a", "r", "end", "cut")}
    episode = 0
    while len(columns["x"]) < n_steps:
        policy, noise = policies[episode % len(policies)], rng.choice([0.1, 0.3, 0.6])
        x, done = env.reset(seed=episode)[0], False
        while not done:
            action = rng.integers(3) if rng.random() < noise else policy.predict(x[None])[0]
            following, reward, end, cut, _ = env.step(int(action))
            for name, value in zip(columns, (x, action, reward, end, cut), strict=True):
                columns[name].append(value)
            x, done = following, end or cut
        episode += 1
    x, a, r, end, cut = (np.array(column, np.float32) for column in columns.values())
    return MDPDataset(x, a.astype(int), r, end, cut, action_size=3)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::birl.errors.ShortRunWarning")
def test_policies_of_acrobot_are_ranked_with_the_defaults() -> None:
    """Other data than those on which the defaults were chosen (``cartpole-replay``)."""
    good, middling = SwingConfig().create(), SwingConfig(directions=1).create()
    for policy in (good, middling):
        policy.create_impl((6,), 3)
    data = acrobot_logs([good, middling], 20000)
    random = algos.DiscreteRandomPolicyConfig().create()
    random.build_with_dataset(data)
    truth, found = [], []
    for policy in (good, middling, random):
        lengths = -np.array(evaluate(policy, gymnasium.make("Acrobot-v1"), 20, seed=0))
        truth.append(float(np.mean((0.99**lengths - 1) / 0.01)))
        seed_everything(0)
        found.append(estimate(policy, data, 3000))
        print(f"\n{truth[-1]:.1f}: {found[-1]:.1f}")
    assert np.diff(truth).max() < -5 and np.diff(found).max() < -5


def test_correlations_of_the_example() -> None:
    example = ranking()
    assert example.ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [2.5, 0.0, 2.5, 1.0]
    assert example.spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1.0)
    assert example.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert example.pearson([0, 1, 2], [1, 3, 5]) == pytest.approx(1.0)


@pytest.mark.slow
def test_nine_policies_of_cartpole_are_ranked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    example = ranking()
    monkeypatch.setattr(sys, "argv", ["fqe_ranking.py", "--out", str(tmp_path / "ranking.csv")])
    assert example.main() == 0
    assert len((tmp_path / "ranking.csv").read_text().splitlines()) == 1 + 9


def test_a_scaler_of_the_policy_does_not_serve_the_q_functions() -> None:
    rows = np.arange(200)
    times = np.stack([1.7e9 + rows, rows % 5], 1)
    with pytest.warns(ResolutionWarning):
        dataset = MDPDataset(times, rows % 3, rows % 7, rows % 20 == 19, np.zeros(200))
    policy = algos.DiscreteCQLConfig(observation_scaler=StandardObservationScaler(), batch_size=16).create()
    policy.build_with_dataset(dataset)
    words = (
        "DiscreteFQE has no observation_scaler, but .* loses the resolution of observation; the scaler of the policy"
    )
    with pytest.warns(ResolutionWarning, match=words):
        DiscreteFQE(algo=policy, config=FQEConfig()).build_with_dataset(dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResolutionWarning)
        scaled = FQEConfig(observation_scaler=StandardObservationScaler())
        DiscreteFQE(algo=policy, config=scaled).build_with_dataset(dataset)
