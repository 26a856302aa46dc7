"""Columns whose values float32 cannot tell apart are named where data come in."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pytest
import torch

import birl
from birl.algos import BCConfig
from birl.dataset import (
    Episode,
    HindsightSampler,
    InfiniteBuffer,
    LogSchema,
    MDPDataset,
    ReplayBuffer,
    dump,
    from_table,
)
from birl.dataset.views import TransitionView
from birl.errors import ResolutionWarning

CPU = torch.device("cpu")
N = 2000
RANGE = np.linspace(0, 20, N)
STEPS: dict[str, Any] = {"rewards": np.arange(N) % 7, "terminals": np.arange(N) % 100 == 99, "timeouts": np.zeros(N)}
FINE = np.random.default_rng(0).normal(size=(N, 2))

LOST = {
    "seconds since 1970": 1.7e9 + RANGE,
    "milliseconds": (1.7e12 + RANGE * 1000).astype(np.int64),
    "northing": 5_334_000 + RANGE,
    "northing in float32": (5_334_000 + RANGE).astype(np.float32),
    "ids": 2**40 + np.arange(N),
    "negative": -(1.7e9 + RANGE),
    "seconds, one missing": np.where(np.arange(N) == 7, 0, 1.7e9 + 4 * RANGE * 100),
    "two clusters": np.where(np.arange(N) % 2, 0, 1.7e9) + RANGE * 100,
}
KEPT = {
    "normal": FINE[:, 0],
    "constant": np.full(N, 1.7e9),
    "a year of seconds": 1.7e9 + RANGE * 1.5e6,
    "exact integers": 16_000_000 + np.arange(N),
    "exact integers in float32": (16_000_000 + np.arange(N)).astype(np.float32),
    "northing, 20 km": 5_334_000 + RANGE * 1000,
    "exact in float64": 2.0**40 + np.arange(N) * 2**20,
    "tiny": RANGE * 1e-30,
    "small integers": np.arange(N) % 5,
    "two values": np.where(np.arange(N) % 2, 0, 1.7e9 + 1),
    "noise around a point": np.where(np.arange(N) % 2, FINE[:, 0], 1.2345 + 1e-10 * FINE[:, 1]),
    "noise of float64": np.where(np.arange(N) % 2, 0, 1e6 + np.arange(N) % 7) * (1 + 1e-15 * (np.arange(N) % 3)),
}


@pytest.mark.parametrize("name", LOST)
def test_lost_columns_are_named(name: str, tmp_path: Path) -> None:
    column = LOST[name]
    observations = np.stack([FINE[:, 0].astype(column.dtype), column], 1)
    words = r"loses the resolution of {}\[:, 1\] \(from .* rounded by up to .*\): values that differ become equal"
    with pytest.warns(ResolutionWarning, match=words.format("observations")) as caught:
        MDPDataset(observations, np.zeros((N, 1)), **STEPS)
    assert caught[0].filename == __file__
    with pytest.warns(ResolutionWarning, match=words.format("observations.gps")):
        parts = MDPDataset({"gps": observations, "other": FINE}, np.zeros((N, 1)), **STEPS)
    with pytest.warns(ResolutionWarning, match=words.format("actions")):
        MDPDataset(FINE, observations.astype(np.result_type(column.dtype, np.float32)), **STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ReplayBuffer(InfiniteBuffer(), episodes=parts.episodes[:9])  # the dataset has warned
    own = [Episode(observations, np.zeros((N, 1)), np.zeros(N), True)]
    with pytest.warns(ResolutionWarning, match=words.format("observations")):
        ReplayBuffer(InfiniteBuffer(), episodes=own)
    for layout in ("episodes", "flat"):
        dump(own, tmp_path / "own.h5", layout=layout)
        with pytest.warns(ResolutionWarning, match=words.format("observations")):
            ReplayBuffer.load(tmp_path / "own.h5")


@pytest.mark.parametrize("name", KEPT)
def test_other_columns_cause_no_warning(name: str) -> None:
    column = KEPT[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MDPDataset(np.stack([column, column], 1), np.zeros((N, 1)), **STEPS)
        MDPDataset(FINE, FINE, **{**STEPS, "rewards": column})
        _table(column)


def _table(column: Any) -> ReplayBuffer:
    table = {"ep": np.arange(N) // 100, "t": np.arange(N), "x": column, "a": np.zeros(N), "r": np.zeros(N)}
    schema = (
        'episode = "ep"\ntime = "t"\nunmarked = "truncated"\n[[observation]]\ncolumn = "x"\n[reward]\ncolumn = "r"\n'
    )
    return from_table(pa.table(table), LogSchema.parse(schema + '[action]\ncolumn = "a"\nkind = "continuous"\n'))


@pytest.mark.parametrize("name", LOST)
def test_columns_of_tables_are_named(name: str) -> None:
    with pytest.warns(ResolutionWarning, match=r"loses the resolution of column 'x' \(from"):
        _table(LOST[name])


def test_rewards_and_unknown_final_observations() -> None:
    with pytest.warns(ResolutionWarning, match=r"of rewards\[:, 0\] \(from 1700000000 to 1700000020"):
        MDPDataset(FINE, FINE, **{**STEPS, "rewards": 1.7e9 + RANGE})
    with pytest.warns(ResolutionWarning, match="to 1700000020"):  # zeros of unknown final observations do not count
        MDPDataset(LOST["seconds since 1970"][:, None], FINE, **STEPS)
    with pytest.warns(ResolutionWarning, match=r"\[:, 4\] .* and 2 more: "):
        MDPDataset(np.repeat(LOST["northing"][:, None], 7, 1), FINE, **STEPS)


@pytest.mark.parametrize(
    ("column", "scaler"),
    [("seconds since 1970", "standard"), ("milliseconds", "standard"), ("northing", "running"), ("ids", "standard")],
)
def test_scalers_keep_it(column: str, scaler: Any, tmp_path: Path) -> None:
    """Observations are scaled in float64: in minibatches, where the policy acts, and after every way of storing."""
    observations = np.stack([FINE[:, 0].astype(LOST[column].dtype), LOST[column]], 1)
    with pytest.warns(ResolutionWarning, match="Set one, such as observation_scaler='standard'"):
        dataset = MDPDataset(observations, np.zeros((N, 1)), **STEPS, storage=tmp_path / "steps")
    dataset.close()
    dataset.dump(tmp_path / "all.h5")
    loaded = ReplayBuffer.load(tmp_path / "all.h5")
    algorithm = BCConfig(observation_scaler=scaler, batch_size=N).create()
    algorithm.build_with_dataset(dataset)
    units, mean, std = algorithm.learner.units, LOST[column].mean(), LOST[column].std()
    expected = (LOST[column] - mean) / std
    np.testing.assert_allclose(units.observation(observations)[:, 1], expected, atol=2e-3)
    for source in (dataset, ReplayBuffer.open(tmp_path / "steps"), loaded, _part(dataset), dataset.placed_for(CPU)):
        batch = algorithm.learner.batch(source.sample(TransitionView(), N))
        assert batch.observation.dtype == torch.float32 == batch.next_observation.dtype
        found = np.unique(batch.observation[:, 1].numpy())
        assert len(found) > N / 2 and np.abs(found[:, None] - expected).min(1).max() < 2e-3


def _part(dataset: ReplayBuffer) -> ReplayBuffer:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ReplayBuffer(InfiniteBuffer(), episodes=dataset.episodes)


def test_other_minibatches_stay_float32() -> None:
    dataset = MDPDataset(FINE, np.zeros((N, 1)), **STEPS)
    assert dataset.sample_transition_batch(4).observations.dtype == np.float32


class Clock(gymnasium.Env[Any, Any]):
    """Observations are seconds since 1970."""

    observation_space = gymnasium.spaces.Box(0, 1e10, (2,), np.float64)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.now = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.now += 1
        return self._observation(), float(action), self.now == 20, False, {}

    def _observation(self) -> Any:
        return np.array([self.now, 1.7e9 + self.now])


@pytest.mark.parametrize("config", [birl.algos.DQNConfig(batch_size=8), birl.algos.PPOConfig(rollout_length=10)])
def test_environments_are_looked_at(config: Any) -> None:
    options: Any = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False}
    words = r"observations\[:, 1\] \(from 17000000.* to 17000000(19|20), rounded by up to"
    with pytest.warns(ResolutionWarning, match=words) as caught:
        config.create().fit_online(Clock(), n_steps=300, **options)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_appended_steps_are_looked_at() -> None:
    buffer = birl.dataset.create_fifo_replay_buffer(500, env=Clock())

    def append(begin: int, end: int) -> None:
        for step in range(begin, end):
            buffer.append(np.array([step, 1.7e9 + step]), 0, 0.0)

    append(0, 64)  # 63 transitions
    with pytest.warns(ResolutionWarning, match="from 1700000000 to 1700000064"):
        append(64, 65)
    append(65, 200)
    assert buffer.sample_transition_batch(4).observations.dtype == np.float64
    again = birl.dataset.create_fifo_replay_buffer(500, env=Clock())
    again.set_state(buffer.get_state())
    assert again.sample_transition_batch(4).observations.dtype == np.float64
    assert again.target.next_look == buffer.target.next_look == 256


def test_replaced_goals_keep_the_resolution_of_the_goals() -> None:
    time = 1.7e9 + 20.0 * np.arange(40)[:, None]
    observations = {"observation": np.zeros((40, 1), np.float32), "achieved_goal": time, "desired_goal": time + 10}
    ends = np.arange(40) % 10 == 9
    sampler = HindsightSampler(lambda achieved, desired, info: np.zeros(len(achieved)))
    with pytest.warns(ResolutionWarning):
        data = MDPDataset(
            observations, np.arange(40) % 2, np.zeros(40), np.zeros(40), ends, sampler=sampler, action_size=2
        )
    goals = data.sample_transition_batch(200).observations["desired_goal"]
    replaced = np.isin(goals, time)
    assert replaced.any() and np.isin(goals[~replaced], time + 10).all()
