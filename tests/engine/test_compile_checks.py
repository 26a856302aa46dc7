"""The first update of a compiled run is tried without compiling, so that its checks find what compiled code hides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from birl.algos import DQNConfig
from birl.errors import ConfigError
from birl.models import EncoderFactory
from birl.testing.data import build_algorithm, random_dataset


class InPlace(nn.Module):
    def __init__(self, n_inputs: int, changes: bool) -> None:
        super().__init__()
        self.layer, self.changes = nn.Linear(n_inputs, 4), changes
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.changes:
            x /= 255
        if self.training:
            self.seen.add_(1)
        return torch.tanh(self.layer(x) + torch.rand(()))


@dataclass(frozen=True)
class InPlaceFactory(EncoderFactory, type="in_place_of_test_compile_checks"):
    changes: bool = True

    def create(self, observation_shape: Any) -> nn.Module:
        return InPlace(observation_shape[0], self.changes)


def _dqn(changes: bool, discrete_actions: int = 2) -> Any:
    config = DQNConfig(encoder_factory=InPlaceFactory(changes), batch_size=8, compile_graph=True)
    return build_algorithm(config, action_size=discrete_actions, discrete_action=True)


def test_minibatches_that_a_module_changes() -> None:
    algorithm = _dqn(True)
    batch = algorithm.sample_minibatch(random_dataset((3,), algorithm.spec.actions))
    with pytest.raises(ConfigError, match="changed its minibatch in place"):
        algorithm.update(batch)


def test_the_trial_changes_nothing() -> None:
    algorithm = _dqn(False)
    engine, batch = algorithm.engine, algorithm.sample_minibatch(random_dataset((3,), algorithm.spec.actions))
    before = {name: value.clone() for name, value in algorithm.nets.state_dict().items()}
    state = torch.get_rng_state()
    engine._try_eagerly(algorithm.learner.batch(batch), engine.due(1))
    assert torch.equal(torch.get_rng_state(), state) and engine.grad_step == 0
    assert all(torch.equal(value, before[name]) for name, value in algorithm.nets.state_dict().items())
