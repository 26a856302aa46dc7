"""DPP: how it acts, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import birl
from birl import algos
from birl.errors import ConfigError
from birl.models import C51QFunctionFactory, VectorEncoderFactory
from birl.testing import ChainEnv, build_algorithm

SMALL = VectorEncoderFactory([8])
QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}


def test_it_samples_its_boltzmann_policy_and_predicts_its_mode() -> None:
    birl.seed(0)
    algorithm = build_algorithm(algos.DPPConfig(encoder_factory=SMALL, inverse_temperature=4.0), action_size=3)
    x = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
    values = np.array([algorithm.predict_value(x, np.array([a]))[0] for a in range(3)])
    wanted = np.exp(4.0 * values) / np.exp(4.0 * values).sum()
    drawn = algorithm.sample_action(np.repeat(x, 20_000, 0))
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 20_000, wanted, atol=0.02)
    assert wanted.max() - wanted.min() > 0.1, "all actions are alike: nothing is shown"
    assert algorithm.predict(x)[0] == wanted.argmax()


def test_each_choice_is_drawn_from_its_part_of_the_joint_policy() -> None:
    """The value of several choices is the mean of theirs, so each has but its share of the inverse temperature."""
    birl.seed(0)
    config = algos.DPPConfig(encoder_factory=SMALL, inverse_temperature=8.0)
    algorithm = build_algorithm(config, action_size=spaces.MultiDiscrete([2, 3]))
    x = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
    grid = np.array([[a, b] for a in range(2) for b in range(3)])
    values = algorithm.predict_value(np.repeat(x, 6, 0), grid)
    wanted = np.exp(8.0 * values) / np.exp(8.0 * values).sum()
    drawn = algorithm.sample_action(np.repeat(x, 20_000, 0))
    np.testing.assert_allclose(np.bincount(drawn @ [3, 1], minlength=6) / 20_000, wanted, atol=0.02)
    assert wanted.max() - wanted.min() > 0.1, "all actions are alike: nothing is shown"


def test_it_explores_by_its_policy_where_no_explorer_is_given() -> None:
    birl.seed(0)
    taken: list[int] = []

    class Watched(ChainEnv):
        def step(self, action: Any) -> Any:
            taken.append(int(action))
            return super().step(action)

    options: Any = {"n_steps": 60, "n_steps_per_epoch": 60, "update_start_step": 59, "explorer": None, **QUIET}
    algos.DPPConfig(encoder_factory=SMALL, batch_size=8).create().fit_online(Watched(), **options)
    assert 15 < sum(taken) < 45  # of preferences that are nearly equal it takes both


def test_preferences_of_poorer_actions_fall_with_each_copy_of_the_target() -> None:
    """Algorithm 1: they add up advantages, so that the gap of a one-step task grows by what the actions differ in."""
    birl.seed(0)
    config = algos.DPPConfig(
        encoder_factory=VectorEncoderFactory([32]), learning_rate=1e-2, operator="max", target_update_interval=150
    )
    algorithm = build_algorithm(config, (1,), 2)
    action = np.arange(32) % 2
    dataset = birl.dataset.MDPDataset(np.zeros((32, 1), np.float32), action, 1.0 - action, np.ones(32))
    gaps = []
    for _ in range(3):
        for _ in range(150):
            algorithm.update(algorithm.sample_minibatch(dataset))
        gaps.append(float(np.subtract(*algorithm.predict_value(np.zeros((2, 1), np.float32), np.arange(2)))))
    np.testing.assert_allclose(np.diff(gaps), 1.0, atol=0.1)


@pytest.mark.parametrize("head", ["c51", C51QFunctionFactory(n_atoms=5)])
def test_the_categorical_head_is_refused(head: Any) -> None:
    with pytest.raises(ConfigError, match="C51QFunctionFactory, whose returns end at v_min.*use MeanQFunctionFactory"):
        algos.DPPConfig(q_func_factory=head)


def test_what_it_learns_does_not_depend_on_values_of_masked_actions_anywhere() -> None:
    """Neither as the bootstrap nor as the value that is subtracted: masked preferences are in no operator."""
    for operator in ("softmax", "log_sum_exp", "max"):
        config = algos.DPPConfig(encoder_factory=SMALL, operator=operator, batch_size=4)
        algorithm = build_algorithm(config, {"observation": (2,), "action_mask": (3,)}, 3)
        x = {"observation": torch.randn(4, 2), "action_mask": torch.tensor([[1.0, 0.0, 1.0]] * 4)}
        batch = birl.types.Batch(x, torch.tensor([0, 2, 0, 2]), torch.ones(4), x, torch.full((4,), 0.9), torch.ones(4))
        losses = []
        for more in (0.0, 100.0):
            with torch.no_grad():
                algorithm.nets.critic_target.head.linear.bias.view(-1)[1] += more
            losses.append(config.algorithm.steps[0].loss(algorithm.nets, batch, config).value)
        torch.testing.assert_close(*losses)
