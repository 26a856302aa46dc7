"""Cal-QL: returns of the data as lower bounds of values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from birl import algos
from birl.dataset import MixedReplayBuffer
from birl.errors import DataError
from birl.logging import NoopAdapterFactory
from birl.models import VectorEncoderFactory
from birl.preprocessing import MultiplyRewardScaler
from birl.testing import ProbeEnv, build_algorithm, random_batch, random_dataset

ENCODER = VectorEncoderFactory(hidden_units=[8, 8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 8}


def test_cal_ql_with_low_returns_is_cql() -> None:
    low = {"discounted_return": torch.full((6,), -1e6)}
    found = []
    for config, extra in ((algos.CalQLConfig(**ACTOR), low), (algos.CQLConfig(**ACTOR), {})):
        algorithm = build_algorithm(config)
        for seed in range(3):
            torch.manual_seed(seed)
            algorithm.engine.update(random_batch(seed=seed, **extra))
        found.append(algorithm.nets.state_dict())
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


def test_cal_ql_does_not_push_below_the_return() -> None:
    """Where all returns are higher, Q-values of the policy's actions make no difference to the critics' loss."""
    config = algos.CalQLConfig(**ACTOR, initial_alpha=1.0, conservative_weight=1.0, alpha_threshold=0.0)
    algorithm = build_algorithm(config)
    high = random_batch(discounted_return=torch.full((6,), 50.0))
    phase = algorithm.engine.steps[0]
    torch.manual_seed(0)
    loss = algorithm.engine.compute_gradients(phase, high)[1]
    torch.manual_seed(0)
    higher = replace(high, extra={"discounted_return": torch.full((6,), 51.0)})
    other = algorithm.engine.compute_gradients(phase, higher)[1]
    change = float(other.metrics["conservative_loss"] - loss.metrics["conservative_loss"])
    assert change == pytest.approx(2.0, abs=1e-3)  # 1 for each critic


def test_cal_ql_learns_from_scaled_discounted_returns() -> None:
    dataset = random_dataset()
    algorithm = algos.CalQLConfig(**ACTOR, gamma=0.5, reward_scaler=MultiplyRewardScaler(multiplier=3.0)).create()
    algorithm.build_with_dataset(dataset)
    made = algorithm.learner.batch(algorithm.sample_minibatch(dataset))
    episodes = {tuple(x): (e, i) for e in dataset.episodes for i, x in enumerate(e.observations.tolist())}
    for x, value in zip(made.observation.tolist(), made.extra["discounted_return"].tolist(), strict=True):
        episode, index = episodes[tuple(x)]
        rewards = 3 * episode.rewards[index:, 0]
        assert value == pytest.approx(float(sum(0.5**k * r for k, r in enumerate(rewards))), abs=1e-5)


def test_cal_ql_says_what_a_minibatch_lacks() -> None:
    dataset, algorithm = random_dataset(), algos.CalQLConfig(**ACTOR).create()
    algorithm.build_with_dataset(dataset)
    with pytest.raises(DataError, match="CalQL learns from the data's returns"):
        algorithm.update(dataset.sample_transition_batch(8))


def test_other_algorithms_ask_for_no_returns() -> None:
    dataset, algorithm = random_dataset(), algos.CQLConfig(**ACTOR).create()
    algorithm.build_with_dataset(dataset)
    assert algorithm.returns is None
    assert algorithm.learner.batch(algorithm.sample_minibatch(dataset)).extra == {}


def test_cal_ql_goes_on_online_with_both_kinds_of_data() -> None:
    env, algorithm = ProbeEnv("action", False), algos.CalQLConfig(**ACTOR, n_action_samples=2).create()
    from birl.dataset import create_fifo_replay_buffer
    from birl.testing import collect_dataset

    old = collect_dataset(env, 40)
    algorithm.build_with_dataset(old)
    online = create_fifo_replay_buffer(100, env=env)
    for step in range(20):
        observation, _ = env.reset(seed=step)
        action = algorithm.sample_action(observation[None])[0]
        _, reward, terminated, _, _ = env.step(action)
        online.append(observation, action, float(reward))
        online.clip_episode(bool(terminated))
        metrics = algorithm.update(algorithm.sample_minibatch(MixedReplayBuffer(online, old, 0.5)))
    assert np.isfinite([float(value) for value in metrics.values()]).all()
    algorithm.fit_online(
        env, n_steps=20, n_steps_per_epoch=20, show_progress=False, logger_adapter=NoopAdapterFactory()
    )
