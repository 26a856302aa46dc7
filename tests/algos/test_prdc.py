"""PRDC: the nearest step of the data."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from birl import algos
from birl.algorithm.multi_seed import fit_many
from birl.algos import prdc
from birl.dataset import MDPDataset
from birl.errors import DataError, UnsupportedError
from birl.logging import NoopAdapterFactory
from birl.models import VectorEncoderFactory
from birl.seeding import seed
from birl.testing import build_algorithm, random_dataset

ENCODER = VectorEncoderFactory(hidden_units=[8])
ACTOR: dict[str, Any] = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER, "batch_size": 32}
dataset = partial(random_dataset, episodes=4, action_scale=2.0)


def test_prdc_finds_the_nearest_step_of_all_data() -> None:
    algorithm = build_algorithm(algos.PRDCConfig(**ACTOR, beta=0.7))
    data = dataset()
    drawn = algorithm.sample_minibatch(data)
    steps = [data.transition_picker(episode, index) for episode in data.episodes for index in range(5)]
    keys = [np.r_[0.7 * step.observation, step.action] for step in steps]
    queries = np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32)
    distances = np.square(queries[:, None] - np.stack(keys)).sum(-1)
    expected = np.stack(keys)[distances.argmin(1)][:, -2:]
    np.testing.assert_array_equal(drawn.nearest(torch.from_numpy(queries)).numpy(), expected.astype(np.float32))
    assert algorithm.sample_minibatch(data).nearest is drawn.nearest  # read once
    data.append_episode(data.episodes[0])
    assert algorithm.sample_minibatch(data).nearest is not drawn.nearest


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize(("count", "size"), [(1, 5), (1024, 5), (1025, 5), (5000, 5), (3000, 50), (100, 2000)])
def test_nearest_of_many(count: int, size: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks, the last of which is not full."""
    monkeypatch.setattr(prdc, "_blocks_at_once", lambda device, distances: at_once)
    keys, queries = 5 + torch.randn(count, size), 5 + torch.randn(7, size)
    expected = keys[torch.cdist(queries.double(), keys.double()).argmin(1), -2:]
    assert torch.equal(prdc.NearestActions(keys, 2)(queries), expected)


def test_prdc_searches_only_where_the_policy_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, data, searched = build_algorithm(algos.PRDCConfig(**ACTOR, update_actor_interval=3)), dataset(), []
    search = prdc.with_nearest
    monkeypatch.setattr(prdc, "with_nearest", lambda *args: searched.append(1) or search(*args))
    found = ["dc_loss" in algorithm.update(algorithm.sample_minibatch(data)) for _ in range(7)]
    assert found == [False, False, True, False, False, True, False]
    assert len(searched) == 2


def test_prdc_takes_one_number_a_step() -> None:
    flat = np.random.default_rng(0).normal(size=20).astype(np.float32)
    last, actions = np.arange(20) % 5 == 4, np.linspace(-1, 1, 40, dtype=np.float32).reshape(20, 2)
    weights = []
    for observations in (flat, flat[:, None]):
        seed(1)
        algorithm = algos.PRDCConfig(**ACTOR).create()
        data = MDPDataset(observations, actions, flat, last)
        algorithm.fit(data, 4, show_progress=False, logger_adapter=NoopAdapterFactory())
        assert algorithm.predict(observations[:3]).shape == (3, 2)
        weights.append(torch.cat([x.flatten() for x in algorithm.nets.actor.parameters()]))
    torch.testing.assert_close(weights[0], weights[1])


def test_prdc_says_what_it_cannot_do() -> None:
    algorithm = build_algorithm(algos.PRDCConfig(**ACTOR))
    with pytest.raises(DataError, match=r"sample it with algo.sample_minibatch"):
        algorithm.update(dataset().sample_transition_batch(4))
    with pytest.raises(UnsupportedError, match="learns only from logged data"):
        algorithm.fit_online(gymnasium.make("Pendulum-v1"))
    with pytest.raises(UnsupportedError, match="train each seed by itself"):
        fit_many(algos.PRDCConfig(**ACTOR), dataset(), 3, seeds=2)
