"""Recorded updates, runs that resume and many seeds, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import birl
from birl import fit_many
from birl.algos import DQNConfig, IQLConfig, SACConfig, TD3Config
from birl.logging import NoopAdapterFactory
from birl.models import VectorEncoderFactory
from birl.testing import random_dataset
from birl.testing.contract.states import differences

SMALL = VectorEncoderFactory([32, 32])
ACTOR_CRITIC = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL, "batch_size": 32}
CONFIGS: dict[str, Callable[..., Any]] = {
    "DQN": lambda **more: DQNConfig(encoder_factory=SMALL, target_update_interval=7, **more),
    "IQL": lambda **more: IQLConfig(**ACTOR_CRITIC, value_encoder_factory=SMALL, **more),
    "SAC": lambda **more: SACConfig(**ACTOR_CRITIC, **more),
    "TD3": lambda **more: TD3Config(**ACTOR_CRITIC, **more),
}
QUIET: dict[str, Any] = {
    "show_progress": False,
    "with_timestamp": False,
    "logger_adapter": NoopAdapterFactory(),
    "n_steps_per_epoch": 40,
}


def data(name: str) -> Any:
    return random_dataset(discrete_action=name == "DQN", episodes=40, action_size=2)


def fitted(name: str, n_steps: int, *, recorded: bool = True, **options: Any) -> Any:
    birl.seed(3)
    algorithm = CONFIGS[name](compile_graph=True).create("cuda")
    dataset = data(name)
    algorithm.build_with_dataset(dataset)
    if not recorded:
        algorithm.engine._updates._record = None
    algorithm.fit(dataset, n_steps, **QUIET, **options)
    assert not recorded or algorithm.engine._updates._recordings
    return algorithm


@pytest.mark.parametrize("name", CONFIGS)
def test_recorded_updates_are_the_compiled_ones_bit_for_bit(name: str) -> None:
    recorded, plain = fitted(name, 120), fitted(name, 120, recorded=False)
    assert not differences(recorded.get_state(), plain.get_state())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_resumed_run_ends_bit_for_bit_where_it_would_have(name: str, tmp_path: Path) -> None:
    whole = fitted(name, 120)
    fitted(name, 80, checkpoint=tmp_path / "run")
    resumed = fitted(name, 120, checkpoint=tmp_path / "run")
    assert not differences(whole.get_state(), resumed.get_state())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("compiled", [False, True])
def test_many_seeds_end_where_they_would_have_alone(name: str, compiled: bool) -> None:
    config = CONFIGS[name](compile_graph=compiled)
    many = fit_many(config, data(name), 100, (3, 5), device="cuda", **QUIET)
    for seed, found in zip((3, 5), many, strict=True):
        birl.seed(seed)
        alone = config.create("cuda")
        alone.fit(data(name), 100, **QUIET)
        for key, tensor in alone.nets.state_dict().items():
            torch.testing.assert_close(found.nets.state_dict()[key], tensor, atol=2e-3, rtol=0.05, msg=key)


@pytest.mark.parametrize("name", CONFIGS)
def test_many_seeds_resume_bit_for_bit(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name](compile_graph=True)
    whole = fit_many(config, data(name), 120, (3, 5), device="cuda", **QUIET)
    fit_many(config, data(name), 80, (3, 5), device="cuda", checkpoint=tmp_path / "runs", **QUIET)
    resumed = fit_many(config, data(name), 120, (3, 5), device="cuda", checkpoint=tmp_path / "runs", **QUIET)
    for one, other in zip(whole, resumed, strict=True):
        assert not differences(one.get_state(), other.get_state())
