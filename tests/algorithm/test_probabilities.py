"""Policies as probabilities: with what probability, or density, a policy takes an action."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from birl import algos
from birl.algorithm import Algorithm
from birl.errors import ActionError, ConfigError, ShapeError, UnsupportedError
from birl.models import BetaFactory, VectorEncoderFactory
from birl.ope import FQE
from birl.preprocessing import ActionScaler, MinMaxActionScaler
from birl.testing import build_algorithm
from birl.types import Inputs
from tests.algorithms import CONTRACT_RUNS

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
LOW, HIGH = np.float32([-3.0, 0.0]), np.float32([5.0, 1.0])
SLOPE = (HIGH - LOW) / 2


def built(config: Any, action_size: Any = 2, shape: Any = (3,), **options: Any) -> Any:
    if isinstance(config, algos.PPOConfig) and isinstance(action_size, int):
        options.setdefault("discrete_action", False)
    return build_algorithm(config, shape, action_size, **options)


def scaled(config: type, **fields: Any) -> Any:
    return config(action_scaler=MinMaxActionScaler(LOW, HIGH), **fields)


def parameters(algo: Any) -> tuple[Any, Any]:
    """Mean and standard deviation of a Gaussian actor, squashed or not."""
    with torch.no_grad():
        given = algo.nets.actor(inputs())
    return given.mean.double().numpy(), np.broadcast_to(given.log_std.double().exp().numpy(), given.mean.shape)


def inputs() -> Any:
    return Inputs(torch.from_numpy(X))


def normal_density(x: Any, mean: Any, std: Any) -> Any:
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))


def below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def test_a_squashed_density_is_that_of_the_environments_actions() -> None:
    algo = built(scaled(algos.SACConfig))
    action = algo.sample_action(X)
    mean, std = parameters(algo)
    u = (action - LOW) / SLOPE - 1
    right = normal_density(np.arctanh(u), mean, std) / (1 - u**2) / SLOPE
    assert algo.action_probability(X, action) == pytest.approx(right.prod(-1), rel=1e-4)
    assert algo.action_log_probability(X, action) == pytest.approx(np.log(right).sum(-1), abs=1e-4)
    assert algo.action_probability(X, action).dtype == np.float64
    far = action.copy()
    far[2, 0] = 5.1
    assert np.flatnonzero(algo.action_probability(X, far) == 0).tolist() == [2]
    assert algo.action_log_probability(X, far)[2] == -np.inf


@pytest.mark.parametrize("config", [algos.SACConfig(), algos.PPOConfig(distribution_factory=BetaFactory())])
def test_a_density_over_all_actions_is_one(config: Any) -> None:
    algo = built(replace(config, action_scaler=MinMaxActionScaler([-3.0], [5.0])), 1)
    grid = np.linspace(-3, 5, 20001)[1:-1, None]
    density = algo.action_probability(np.repeat(X[:1], len(grid), 0), grid)
    assert np.trapezoid(density, grid[:, 0]) == pytest.approx(1, abs=2e-3)


def test_clipped_actions_have_the_probability_of_what_lies_beyond() -> None:
    algo = built(scaled(algos.PPOConfig))
    mean, std = parameters(algo)
    action = np.tile((LOW + HIGH) / 2, (5, 1))
    action[0], action[1, 0], action[2, 1] = HIGH, LOW[0], LOW[1]
    right = []
    for row in range(5):
        factors = []
        for d in range(2):
            u = 2 * (action[row, d] - LOW[d]) / (HIGH[d] - LOW[d]) - 1
            if abs(u) == 1:
                factors.append(below((u * mean[row, d] - 1) / std[row, d]))
            else:
                factors.append(normal_density(u, mean[row, d], std[row, d]) / SLOPE[d])
        right.append(math.prod(factors))
    assert algo.action_probability(X, action) == pytest.approx(right, rel=1e-5)
    action[4, 1] = 1.01
    assert algo.action_probability(X, action)[4] == 0
    # atoms and densities of one dimension are all there is
    algo = built(algos.PPOConfig(action_scaler=MinMaxActionScaler([-3.0], [5.0])), 1)
    grid = np.linspace(-3, 5, 20001)[1:-1, None]
    density = algo.action_probability(np.repeat(X[:1], len(grid), 0), grid)
    ends = algo.action_probability(np.repeat(X[:1], 2, 0), np.float32([[-3], [5]]))
    assert np.trapezoid(density, grid[:, 0]) + ends.sum() == pytest.approx(1, abs=2e-3)
    assert ends.min() > 0.05


def test_actions_without_a_scaler_are_not_clipped() -> None:
    algo = built(algos.PPOConfig())
    mean, std = parameters(algo)
    action = np.full((5, 2), 1.7, np.float32)
    assert algo.action_probability(X, action) == pytest.approx(normal_density(action, mean, std).prod(-1), rel=1e-5)


@dataclass(eq=False)
class Sinh(ActionScaler, type="test_sinh"):
    """A scaler that is not linear."""

    def transform(self, x: Any) -> Any:
        return torch.asinh(torch.as_tensor(x))

    def reverse_transform(self, x: Any) -> Any:
        return torch.sinh(torch.as_tensor(x))


def test_scalers_of_ones_own_have_their_slope() -> None:
    algo = built(algos.SACConfig(action_scaler=Sinh()))
    u = np.tanh(parameters(algo)[0] + 0.3)
    plain = built(algos.SACConfig()).action_probability(X, u)
    assert algo.action_probability(X, np.sinh(u)) == pytest.approx(plain / np.cosh(u).prod(-1), rel=1e-4)


def test_choices_have_the_probabilities_of_their_logits() -> None:
    algo = built(algos.DiscreteSACConfig(), {"size": 4, "start": 2})
    with torch.no_grad():
        logits = algo.nets.actor(inputs()).logits.double().numpy()
    right = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    every = algo.action_probability(X)
    assert every == pytest.approx(right, abs=1e-6)
    assert every.sum(-1) == pytest.approx(np.ones(5), abs=1e-12)
    action = np.array([2, 3, 4, 5, 3])
    assert np.array_equal(algo.action_probability(X, action), every[range(5), action - 2])
    assert np.array_equal(algo.action_probability(X, action[:, None]), every[range(5), action - 2])
    greedy = algo.action_probability(X, greedy=True)
    assert np.array_equal(greedy, np.eye(4)[algo.predict(X) - 2])
    assert np.array_equal(algo.action_probability(X, algo.predict(X), greedy=True), np.ones(5))


def test_greedy_critics_take_one_action() -> None:
    algo = built(algos.DQNConfig(), 4)
    assert np.array_equal(algo.action_probability(X), np.eye(4)[algo.predict(X)])
    assert np.array_equal(algo.action_log_probability(X, algo.predict(X)), np.zeros(5))


def test_actions_that_are_not_allowed_have_none() -> None:
    space = spaces.Dict({"position": spaces.Box(-1, 1, (3,), np.float32), "action_mask": spaces.MultiBinary(4)})
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 1]], np.int8)
    for config in (algos.DiscreteSACConfig(), algos.DPPConfig(), algos.DQNConfig(), algos.DiscreteRandomPolicyConfig()):
        algo = built(config, 4, space)
        every = algo.action_probability({"position": X[:2], "action_mask": mask})
        assert (every[mask == 0] == 0).all() and every.sum(-1) == pytest.approx([1, 1])
        assert every[1, 3] == 1
    assert algo.action_probability({"position": X[:2], "action_mask": mask})[0].tolist() == pytest.approx(
        [1 / 3, 0, 1 / 3, 1 / 3]
    )


def test_several_choices_multiply() -> None:
    for config in (algos.DiscreteBCConfig(), algos.DPPConfig()):
        algo = built(config, [3, 2])
        rows = np.repeat(X[:1], 6, 0)
        all_actions = np.array([(i, j) for i in range(3) for j in range(2)])
        probability = algo.action_probability(rows, all_actions)
        assert probability.sum() == pytest.approx(1) and probability.max() < 1
        table = probability.reshape(3, 2)
        assert table == pytest.approx(np.outer(table.sum(1), table.sum(0)))
    algo = built(algos.DQNConfig(), [3, 2])
    assert np.array_equal(algo.action_probability(X, algo.predict(X)), np.ones(5))
    assert np.array_equal(algo.action_probability(X, (algo.predict(X) + 1) % 2), np.zeros(5))


def test_choices_and_quantities_multiply() -> None:
    space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-2, 2, (1,), np.float32)))
    algo = built(algos.PPOConfig(action_scaler=MinMaxActionScaler([-1.0, -2.0], [1.0, 2.0])), space)
    rows = np.repeat(X[:1], 3, 0)

    def row(quantity: float) -> Any:
        return np.stack([np.arange(3.0), np.full(3, quantity)], -1).astype(np.float32)

    at = algo.action_probability(rows, row(0.4))
    shares = at / at.sum()
    for bound in (-2.0, 2.0):  # the quantity's part is the same for every choice
        assert algo.action_probability(rows, row(bound)) == pytest.approx(
            shares * algo.action_probability(rows, row(bound)).sum()
        )
    with torch.no_grad():
        joint = algo.nets.actor(inputs())
    quantity = joint.parts[1]
    mean, std = float(quantity.mean[0, 0]), float(quantity.log_std.exp().flatten()[0])
    assert at.sum() == pytest.approx(normal_density(0.2, mean, std) / 2, rel=1e-5)
    assert shares == pytest.approx(joint.parts[0].probs[0].numpy(), rel=1e-5)


def test_random_policies() -> None:
    algo = built(scaled(algos.RandomPolicyConfig))
    assert algo.action_probability(X, algo.sample_action(X)) == pytest.approx(np.full(5, 1 / np.prod(HIGH - LOW)))
    assert (algo.action_probability(X, np.full((5, 2), 6.0)) == 0).all()
    algo = built(algos.RandomPolicyConfig(distribution="normal", normal_std=2.0), 1)
    stated = algo.action_probability(X, np.float32([[-1], [-0.5], [0], [0.5], [1]]))
    inner = [normal_density(x, 0, 2) for x in (-0.5, 0, 0.5)]
    assert stated == pytest.approx([below(-0.5), *inner, below(-0.5)])
    assert built(algos.DiscreteRandomPolicyConfig(), 4).action_probability(X) == pytest.approx(np.full((5, 4), 0.25))


def test_an_evaluation_has_the_probabilities_of_the_policy_it_evaluates() -> None:
    policy = built(algos.SACConfig())
    evaluation = FQE(policy)
    evaluation.create_impl((3,), 2)
    action = policy.sample_action(X)
    assert np.array_equal(evaluation.action_probability(X, action), policy.action_probability(X, action))


NO_DENSITY = {"BCQ", "CRR", "CRR soft"}
ONE_ACTION = {"DDPG", "TD3", "TD3PlusBC", "PRDC", "ReBRAC", "NAF", "NAF GRU", "PLAS", "PLASWithPerturbation", "BC"}
CONTEXTS = {"DecisionTransformer", "DiscreteDecisionTransformer", "TACR"}
NOISE = {"DoubleDQN dueling noisy C51"}


def test_all_have_probabilities_but_those_that_cannot() -> None:
    reasons = {
        "no density in closed form": NO_DENSITY,
        "has no density": ONE_ACTION,
        "a return to aim at": CONTEXTS,
        "noise in its layers": NOISE,
    }
    for run in CONTRACT_RUNS:
        algo = built(run.config, run.action_size, discrete_action=run.variant.discrete)
        assert isinstance(algo, Algorithm)
        action = np.zeros(5, int) if run.discrete else np.zeros((5, 2), np.float32)
        why = next((reason for reason, names in reasons.items() if run.name in names), None)
        if why is None:
            probability = algo.action_probability(X, action)
            assert probability.shape == (5,) and (probability >= 0).all() and np.isfinite(probability).all(), run.name
        else:
            with pytest.raises(UnsupportedError, match=why):
                algo.action_probability(X, action)


def test_greedy_actions_that_are_quantities_have_none() -> None:
    with pytest.raises(UnsupportedError, match=r"SAC takes one action.*birl\.ope\.Gaussian"):
        built(algos.SACConfig()).action_probability(X, np.zeros((5, 2)), greedy=True)


def test_a_dimension_of_one_value_has_none() -> None:
    algo = built(algos.SACConfig(action_scaler=MinMaxActionScaler([-1.0, 2.0], [1.0, 2.0])))
    with pytest.raises(UnsupportedError, match="a dimension of actions to a single value"):
        algo.action_probability(X, algo.sample_action(X))


def test_what_is_no_action_is_refused() -> None:
    small = algos.DiscreteSACConfig(actor_encoder_factory=VectorEncoderFactory([4]))
    discrete, continuous = built(small, 4), built(algos.SACConfig())
    with pytest.raises(ActionError, match="from 0 to 4 were given; they must be integers from 0 to 3"):
        discrete.action_probability(X, np.arange(5))
    with pytest.raises(ShapeError, match=r"shape \(4,\); they must be numbers of shape \(5,\)"):
        discrete.action_probability(X, np.arange(4))
    with pytest.raises(ConfigError, match="action is None"):
        continuous.action_probability(X)
    action = np.zeros((5, 2))
    action[3, 1] = np.nan
    with pytest.raises(ActionError, match="row 3"):
        continuous.action_probability(X, action)
