"""The weights of a policy are all that its actions depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from birl.algos import SACConfig
from birl.errors import CorruptFileError
from birl.models import VectorEncoderFactory
from birl.preprocessing import RunningObservationScaler
from birl.testing import build_algorithm
from tests.algorithms import CONTRACT_RUNS, Run

ROWS = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)


def acts(algorithm: Any) -> list[Any]:
    """Greedy and sampled actions."""
    torch.manual_seed(0)
    return [algorithm.predict(ROWS), algorithm.sample_action(ROWS)]


RUNS = {type(run.config): run for run in CONTRACT_RUNS if not run.config.algorithm.acts.aims}  # one of each


@pytest.mark.parametrize("run", RUNS.values(), ids=lambda run: run.name)
def test_actions_depend_on_nothing_else(run: Run) -> None:
    one, other = (
        build_algorithm(run.config, (3,), run.action_size, discrete_action=run.variant.discrete, seed=seed)
        for seed in range(2)
    )
    places = [parameter.data_ptr() for parameter in other.nets.parameters()]
    other.learner.policy.set_weights(one.learner.policy.weights())
    assert all(map(np.array_equal, acts(one), acts(other)))
    assert places == [parameter.data_ptr() for parameter in other.nets.parameters()]  # the acting policy shares them


def sac(units: int, seed: int) -> Any:
    encoder = VectorEncoderFactory(hidden_units=[units])
    scaler = RunningObservationScaler()
    config = SACConfig(actor_encoder_factory=encoder, critic_encoder_factory=encoder, observation_scaler=scaler)
    return build_algorithm(config, seed=seed)


def test_scalers_move_with_them_and_others_are_refused() -> None:
    one, other = sac(4, 0), sac(4, 1)
    assert not np.array_equal(acts(one)[0], acts(other)[0])
    weights = one.learner.policy.weights()
    one.learner.update_observation_statistics(ROWS * 5 + 3, np.ones(9, bool))
    other.learner.policy.set_weights(weights)  # a copy, of the moment when it was made
    assert not np.array_equal(acts(one)[0], acts(other)[0])
    other.learner.policy.set_weights(one.learner.policy.weights())
    assert np.array_equal(acts(one)[0], acts(other)[0])
    with pytest.raises(CorruptFileError, match=r"it must be float32 of shape"):
        sac(5, 0).learner.policy.set_weights(weights)
    del weights["nets"]["actor.encoder.layers.0.linear.bias"]
    with pytest.raises(CorruptFileError, match="use a copy of the checkpoint"):
        other.learner.policy.set_weights(weights)
