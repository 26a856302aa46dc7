"""AL, PAL and DoublePAL: what gaps do, and what PAL refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl import algos
from birl.dataset import FIFOBuffer, MDPDataset, MixedReplayBuffer, MultiStepTransitionPicker, ReplayBuffer
from birl.errors import ConfigError, DataError
from birl.models import VectorEncoderFactory
from birl.testing import build_algorithm, random_dataset
from birl.types import Batch

SMALL = VectorEncoderFactory([8])
QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}
PERSISTENT = (algos.PALConfig, algos.DoublePALConfig)


def data(n_steps: int = 0, gamma: float = 0.99) -> Any:
    picker = MultiStepTransitionPicker(n_steps, gamma) if n_steps else None
    return random_dataset(action_size=3, discrete_action=True, transition_picker=picker)


def test_action_gaps_grow_by_one_over_one_minus_alpha() -> None:
    """In a task of one step and rewards 1 and 0: ``Q(s, b) = 0 - alpha * (1 - Q(s, b))``."""
    birl.seed(0)
    config = algos.ALConfig(
        encoder_factory=VectorEncoderFactory([32]), learning_rate=1e-2, alpha=0.5, target_update_interval=60
    )
    algorithm = build_algorithm(config, (1,), 2)
    dataset = MDPDataset(np.zeros((32, 1), np.float32), np.arange(32) % 2, 1.0 - np.arange(32) % 2, np.ones(32))
    for _ in range(600):
        algorithm.update(algorithm.sample_minibatch(dataset))
    values = algorithm.predict_value(np.zeros((2, 1), np.float32), np.arange(2))
    np.testing.assert_allclose(values, [1.0, -1.0], atol=0.1)


def batch_with_masks(next_mask: list[int]) -> Batch:
    def seen(mask: list[int]) -> dict[str, torch.Tensor]:
        return {"observation": torch.randn(4, 2), "action_mask": torch.tensor([mask] * 4, dtype=torch.float32)}

    return Batch(
        seen([1, 1, 1]), torch.ones(4, dtype=torch.int64), torch.ones(4), seen(next_mask), torch.ones(4), torch.ones(4)
    )


def losses(batch: Batch) -> list[torch.Tensor]:
    """Those of AL and PAL with the same networks."""
    found = []
    for config in (algos.ALConfig(encoder_factory=SMALL), algos.PALConfig(encoder_factory=SMALL)):
        algorithm = build_algorithm(config, {"observation": (2,), "action_mask": (3,)}, 3)
        found.append(config.algorithm.steps[0].loss(algorithm.nets, batch, config).value)
    return found


def test_an_action_that_the_next_state_does_not_allow_cannot_be_repeated() -> None:
    """Its gap there is no number of steps; what is left is the gap of the state, as in AL."""
    birl.seed(0)
    here, persistent = losses(batch_with_masks([1, 0, 1]))
    torch.testing.assert_close(here, persistent)
    here, persistent = losses(batch_with_masks([0, 1, 0]))  # nothing but repeating it: the gap is 0
    assert not torch.isclose(here, persistent)


@pytest.mark.parametrize("config", PERSISTENT)
def test_persistent_advantages_refuse_n_step_returns(config: Any) -> None:
    """PFRL takes them: the second gap is then one of a state some steps later."""
    options: Any = {"encoder_factory": SMALL, "batch_size": 8}
    several, single = data(3), data()
    name = config.__name__.removesuffix("Config")
    wanted = f"MultiStepTransitionPicker makes transitions of up to 3 steps, but {name} learns from single steps"
    with pytest.raises(ConfigError, match=wanted):
        config(**options).create().fit(several, n_steps=1, **QUIET)
    built = config(**options).create()
    built.fit(single, n_steps=1, **QUIET)
    with pytest.raises(ConfigError, match=wanted):
        built.fit(several, n_steps=1, **QUIET)
    with pytest.raises(DataError, match=f"{name} learns from single steps, but this minibatch .* of up to 3:"):
        built.update(several.sample_transition_batch(16))
    built.update(single.sample_transition_batch(16))  # with intervals of 1
    built.fit(data(1), n_steps=1, **QUIET)
    algos.ALConfig(**options).create().fit(several, n_steps=1, **QUIET)


def test_mixtures_of_n_step_returns_are_refused_too() -> None:
    several = data(3)
    buffer = ReplayBuffer(FIFOBuffer(100), MultiStepTransitionPicker(3, 0.99), episodes=several.episodes[:2])
    mixed = MixedReplayBuffer(several, buffer, 0.5)
    with pytest.raises(ConfigError, match="of up to 3 steps, but PAL"):
        algos.PALConfig(encoder_factory=SMALL, batch_size=8).create().fit(mixed, n_steps=1, **QUIET)


@pytest.mark.parametrize("alpha", [-0.1, 1.0])
def test_alpha_is_a_share(alpha: float) -> None:
    with pytest.raises(ConfigError, match="ALConfig.alpha"):
        algos.ALConfig(alpha=alpha)
