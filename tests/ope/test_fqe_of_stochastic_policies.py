"""Fitted Q evaluation of policies that draw: expectations over their probabilities, files, and who acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ope.test_fqe import QUIET, SMALL, STATES, dataset_of, exact_values, tabular, trained, values_of
from ope.test_stochastic_policies import dqn, sac, td3

import birl
from birl.algorithm import load_learnable
from birl.errors import ConfigError, ResumeError
from birl.ope import FQE, DiscreteFQE, DiscreteFQEConfig, EpsilonGreedy, FQEConfig, Gaussian, Mixture, Softmax
from tests.tiers import slow_but

pytestmark = pytest.mark.filterwarnings("ignore:n_steps=.* copies of:birl.errors.ShortRunWarning")
X = np.eye(STATES, dtype=np.float32)


def of_states(kind: str) -> Any:
    first, second = dqn(3, (STATES,), 1), dqn(3, (STATES,), 2)
    return {
        "epsilon": lambda: EpsilonGreedy(first, 0.5),
        "softmax": lambda: Softmax(first, 1.0),
        "mixture": lambda: Mixture([EpsilonGreedy(first, 0.3), second], [0.6, 0.4]),
    }[kind]()


@pytest.mark.parametrize("kind", slow_but(["mixture"], ["epsilon", "softmax", "mixture"]))
def test_exact_values_of_policies_that_draw(kind: str) -> None:
    """The solution of the linear equations of the data with the policy's probabilities."""
    data, r, p, _ = tabular()
    policy = of_states(kind)
    table = policy.action_probability(X)
    exact, greedy = exact_values(r, p, table), exact_values(r, p, np.eye(3)[table.argmax(-1)])
    assert np.abs(exact - greedy).max() > 0.5
    fqe = trained(policy, data, 400)
    assert np.abs(values_of(fqe, X) - exact).max() <= 0.25
    np.testing.assert_allclose(fqe.policy_value(X), (table * values_of(fqe, X)).sum(-1), atol=1e-5)


@pytest.mark.parametrize("kind", ["epsilon", "mixture"])
def test_targets_take_probabilities_not_draws(kind: str) -> None:
    data, policy = tabular()[0], of_states(kind)
    fqe = DiscreteFQE(policy, DiscreteFQEConfig(encoder_factory=SMALL))
    fqe.build_with_dataset(data)
    minibatch = data.sample_transition_batch(20)
    share = fqe.learner.batch(minibatch).extra["policy_share"]
    np.testing.assert_allclose(share.numpy(), policy.action_probability(minibatch.next_observations), atol=1e-6)


def test_quantities_are_drawn_from_each_policy_as_often_as_it_is() -> None:
    narrow, wide = Gaussian(td3(), 0.01), Gaussian(td3(seed=1), 0.01)
    fqe = FQE(Mixture([narrow, wide], [0.8, 0.2]), FQEConfig(encoder_factory=SMALL, n_action_samples=2000))
    data = dataset_of(False)
    fqe.build_with_dataset(data)
    minibatch = data.sample_transition_batch(3)
    actions = fqe.learner.batch(minibatch).extra["policy_action"].numpy()
    assert actions.shape == (3, 2000, 2)
    middles = [each.algo.predict(minibatch.next_observations) for each in (narrow, wide)]
    distance = np.abs(actions[:, :, None] - np.stack(middles, 1)[:, None]).sum(-1)
    np.testing.assert_allclose((distance.argmin(-1) == 0).mean(1), 0.8, atol=0.05)
    assert fqe.member_values(minibatch.observations).shape == (1, 3)


@pytest.mark.parametrize("kind", ["epsilon", "mixture"])
def test_a_saved_evaluation_holds_its_policy(kind: str, tmp_path: Path) -> None:
    data, policy = tabular()[0], of_states(kind)
    fqe = DiscreteFQE(policy, DiscreteFQEConfig(encoder_factory=SMALL))
    fqe.fit(data, n_steps=4, n_steps_per_epoch=2, **QUIET)
    fqe.save(tmp_path / "fqe.d3")
    again = load_learnable(tmp_path / "fqe.d3")
    assert type(again.algo) is type(policy)
    np.testing.assert_array_equal(again.policy_value(X), fqe.policy_value(X))
    for other in (fqe, again):
        birl.seed(0)
        drawn = other.predict(np.repeat(X, 200, 0))
        assert len(np.unique(drawn[:200])) > 1
        birl.seed(0)
        assert np.array_equal(drawn, policy.predict(np.repeat(X, 200, 0)))
        np.testing.assert_allclose(other.action_probability(X), policy.action_probability(X))
    again.set_state(fqe.get_state())
    changed = DiscreteFQE(EpsilonGreedy(dqn(3, (STATES,), 5), 0.5), DiscreteFQEConfig(encoder_factory=SMALL))
    changed.build_with_dataset(data)
    with pytest.raises(ResumeError, match="was evaluating another policy"):
        changed.set_state(fqe.get_state())


def test_another_epsilon_is_another_policy() -> None:
    data = tabular()[0]
    both = []
    for epsilon in (0.1, 0.2):
        fqe = DiscreteFQE(EpsilonGreedy(dqn(3, (STATES,), 1), epsilon), DiscreteFQEConfig(encoder_factory=SMALL))
        fqe.build_with_dataset(data)
        both.append(fqe)
    with pytest.raises(ResumeError, match="was evaluating another policy"):
        both[1].set_state(both[0].get_state())


def test_stochastic_algorithms_are_evaluated_by_their_probabilities() -> None:
    """With ``n_action_samples`` of one choice nothing is drawn where probabilities are known."""
    from birl import algos
    from birl.testing import build_algorithm

    cloned = build_algorithm(algos.DiscreteBCConfig(encoder_factory=SMALL), (STATES,), 3)
    data = tabular()[0]
    for count in (0, 1):
        fqe = DiscreteFQE(cloned, DiscreteFQEConfig(encoder_factory=SMALL, n_action_samples=count))
        fqe.build_with_dataset(data)
        minibatch = data.sample_transition_batch(10)
        wanted = cloned.action_probability(minibatch.next_observations, greedy=not count)
        share = fqe.learner.batch(minibatch).extra["policy_share"].numpy()
        np.testing.assert_allclose(share, wanted, atol=1e-6)


def test_the_wrong_kind_of_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="DiscreteFQE"):
        FQE(EpsilonGreedy(dqn(), 0.1))
    with pytest.raises(ConfigError, match="FQE"):
        DiscreteFQE(Mixture([sac(), sac(1)]))
