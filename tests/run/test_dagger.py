"""Collection with an expert's actions as labels: DAgger."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import birl
from birl.algos import DiscreteBCConfig, DiscreteRandomPolicyConfig, RandomPolicyConfig
from birl.errors import ActionError, ConfigError
from birl.logging import NoopAdapterFactory
from birl.testing import ChainEnv, average_return


def right(env: ChainEnv, x: Any) -> Any:
    return np.array([env.best_action(row) for row in x])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_experts_actions_are_stored_and_its_share_is_taken(share: float) -> None:
    """A random policy takes detours in the chain; its expert does not."""
    birl.seed(0)
    env = ChainEnv()
    policy = DiscreteRandomPolicyConfig().create()
    data = policy.collect(env, n_episodes=6, expert=lambda x: right(env, x), expert_share=share, show_progress=False)
    for episode in data.episodes:
        assert np.array_equal(episode.actions[:, 0], right(env, episode.observations))
    lengths = [len(episode) for episode in data.episodes]
    assert (set(lengths) == {env.n_states - 1}) if share else (min(lengths) > env.n_states - 1)


def test_dagger_learns_where_the_policy_goes() -> None:
    """Ross et al. 2011, algorithm 3.1: first the expert's steps, then its labels for the policy's steps."""
    birl.seed(0)
    env = ChainEnv()
    policy = DiscreteBCConfig(encoder_factory=[32], learning_rate=1e-2, batch_size=64).create()
    policy.build_with_env(env)
    data, quiet = None, {"show_progress": False, "logger_adapter": NoopAdapterFactory()}
    before = average_return(policy, ChainEnv())
    for share in (1.0, 0.0, 0.0):
        options: Any = {"expert": lambda x: right(env, x), "expert_share": share}
        data = policy.collect(env, data, n_steps=60, show_progress=False, **options)
        policy.fit(data, n_steps=60, **quiet)
    assert data is not None and data.transition_count == 180
    assert before < 1.0 and average_return(policy, ChainEnv()) == 1.0


def test_quantities_of_an_expert() -> None:
    env = ChainEnv(discrete=False)
    data = (
        RandomPolicyConfig()
        .create()
        .collect(env, n_steps=20, expert=lambda x: np.full((len(x), 1), 0.25), show_progress=False)
    )
    assert all((episode.actions == 0.25).all() for episode in data.episodes)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"expert": 3}, ConfigError, "expert is 3"),
        ({"expert_share": 0.5}, ConfigError, "there is no expert"),
        ({"expert": right, "expert_share": 2}, ConfigError, "expert_share is 2"),
        ({"expert": lambda x: np.array([7])}, ActionError, "7"),
        ({"expert": lambda x: 1}, ActionError, "one for each of 1 observations"),
    ],
)
def test_what_is_no_expert(options: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        DiscreteRandomPolicyConfig().create().collect(ChainEnv(), n_steps=5, show_progress=False, **options)
