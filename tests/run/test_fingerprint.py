"""A run resumes only with the data that it started with, wherever they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.algos import DQNConfig
from birl.dataset import (
    InfiniteBuffer,
    MDPDataset,
    MixedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    create_fifo_replay_buffer,
)
from birl.errors import ResumeError
from birl.logging import NoopAdapterFactory
from birl.models import VectorEncoderFactory
from birl.run import fingerprint as identity
from birl.run.checkpoint import differences
from birl.run.offline import fitter
from birl.run.online import online_fitter
from run.fakes import Drift, FakeLearner
from run.test_offline import quiet

STEPS = 3000


def columns() -> dict[str, Any]:
    rng = np.random.Generator(np.random.PCG64(0))
    return {
        "observations": rng.normal(size=(STEPS, 2)).astype(np.float32),
        "actions": rng.integers(3, size=STEPS),
        "rewards": rng.normal(size=STEPS).astype(np.float32),
        "terminals": (np.arange(STEPS) % 10 == 9).astype(np.float32),
        "timeouts": (np.arange(STEPS) % 10 == 4).astype(np.float32),
    }


def fit(dataset: Any, folder: Path, n_steps: int) -> None:
    list(fitter(FakeLearner(), dataset, n_steps, **quiet(checkpoint=folder)))


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals", "timeouts"])
@pytest.mark.parametrize("at", [0, 1755, STEPS - 2])
def test_one_changed_value_anywhere_is_noticed(name: str, at: int, tmp_path: Path) -> None:
    changed = columns()
    if name == "terminals" or name == "timeouts":
        at -= at % 10  # a step that ends nothing so far
    values = changed[name].reshape(STEPS, -1)
    values[at, -1] = (values[at, -1] + 1) % 3 if name == "actions" else 1 - values[at, -1]
    fit(MDPDataset(**columns()), tmp_path, 4)
    with pytest.raises(ResumeError, match="digest_of_data was|transitions was"):
        fit(MDPDataset(**changed), tmp_path, 8)
    fit(MDPDataset(**columns()), tmp_path, 8)


@pytest.mark.parametrize("other", [{"alpha": 0.9}, {"beta": 1.0}, {"beta_steps": 9}, {"epsilon": 0.1}, None], ids=str)
def test_a_run_goes_on_with_its_sampler(other: Any, tmp_path: Path) -> None:
    def sampler(**options: Any) -> PrioritizedSampler:
        return PrioritizedSampler(**{"alpha": 0.6, "beta": 0.4, "beta_steps": 50, **options})

    def online(sampler: Any, n_steps: int) -> None:
        algorithm, env = DQNConfig(batch_size=4, encoder_factory=VectorEncoderFactory([4])).create(), Drift()
        buffer = create_fifo_replay_buffer(limit=50, env=env, sampler=sampler)
        list(online_fitter(algorithm, env, buffer, None, n_steps, **quiet(checkpoint=tmp_path / "online")))

    fit(MDPDataset(**columns(), sampler=sampler()), tmp_path / "logs", 4)
    online(sampler(), 20)
    given = (lambda: None) if other is None else lambda: sampler(**other)
    with pytest.raises(ResumeError, match=r"settings: sampler[.\w]* was [^;]*[.] Use"):
        fit(MDPDataset(**columns(), sampler=given()), tmp_path / "logs", 8)
    with pytest.raises(ResumeError, match=r"settings: sampler[.\w]* was [^;]*[.] Use"):
        online(given(), 30)
    fit(MDPDataset(**columns(), sampler=sampler()), tmp_path / "logs", 8)
    online(sampler(), 30)


def test_the_order_counts() -> None:
    one, other = columns(), columns()
    other["rewards"][[100, 101]] = other["rewards"][[101, 100]]
    assert _digest(MDPDataset(**one)) != _digest(MDPDataset(**other))


def _digest(dataset: Any) -> str:
    return identity.digest(dataset.reader.storages)


def test_where_the_data_lie_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = MDPDataset(**columns())
    whole = _digest(dataset)
    dataset.dump(tmp_path / "data.h5")
    with open(tmp_path / "data.h5", "rb") as file:
        assert _digest(ReplayBuffer.load(file, InfiniteBuffer())) == whole
    folder = MDPDataset(**columns(), storage=tmp_path / "folder")
    folder.flush()
    assert _digest(ReplayBuffer.open(tmp_path / "folder")) == whole
    monkeypatch.setattr(identity.os, "cpu_count", lambda: 1)
    assert _digest(dataset) == whole


def test_rings_that_wrapped_around() -> None:
    """The same steps at another position of the ring buffer, with other old values in its free rows."""

    def ring(before: int) -> ReplayBuffer:
        buffer = create_fifo_replay_buffer(limit=50, env=Drift())
        rng = np.random.Generator(np.random.PCG64(1))
        for step in range(-before, 50):
            observation = rng.normal(size=2) if step < 0 else np.array([step, -step])
            buffer.append(observation.astype(np.float32), step % 3, float(step))
            if step % 10 == 9:
                buffer.clip_episode(step % 20 == 9)
        return buffer

    assert _digest(ring(0)) == _digest(ring(10)) == _digest(ring(130))
    other = ring(0)
    other.append(np.zeros(2, np.float32), 0, 0.0)
    assert _digest(other) != _digest(ring(0))


def test_blocks_leave_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_BLOCK", 100)
    one, other = columns(), columns()
    other["observations"][2222, 1] += 1e-6
    assert _digest(MDPDataset(**one)) == _digest(MDPDataset(**columns()))
    assert _digest(MDPDataset(**one)) != _digest(MDPDataset(**other))


def test_the_second_buffer_of_a_mixture_is_looked_at_online(tmp_path: Path) -> None:
    def train(n_steps: int, **change: Any) -> None:
        mixed = MixedReplayBuffer(
            create_fifo_replay_buffer(limit=100, env=Drift()), MDPDataset(**{**columns(), **change}), 0.5
        )
        list(online_fitter(FakeLearner(), Drift(), mixed, n_steps=n_steps, **quiet(checkpoint=tmp_path)))

    train(10)
    with pytest.raises(ResumeError, match="digest_of_data was"):
        train(20, rewards=np.ones(STEPS, np.float32))
    train(20)


@pytest.mark.parametrize(
    ("saved", "given", "said"),
    [
        ({}, {"new": None}, ""),
        ({}, {"new": False}, ""),
        ({"old": None}, {}, ""),
        ({"field": False}, {"field": None}, "field was False, now None"),
        ({}, {"new": 0}, "new was not given, now 0"),
        ({"old": True}, {}, "old was True, now not given"),
        ({"field": 0}, {"field": None}, "field was 0, now None"),
    ],
)
def test_fields_that_a_build_does_not_know_are_the_same_as_off(saved: Any, given: Any, said: str) -> None:
    assert differences({"params": saved}, {"params": given}) == ([f"params.{said}"] if said else [])


def test_another_number_of_actions_is_another_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(20, 3)), rng.integers(2, size=20), rng.normal(size=20), np.arange(20) > 18
    config = DQNConfig(batch_size=4, encoder_factory=[4])
    options: Any = {"checkpoint": tmp_path, "logger_adapter": NoopAdapterFactory(), "show_progress": False}
    config.create().fit(MDPDataset(*arrays), 1, **options)
    with pytest.raises(ResumeError, match="action_size was 2, now 3"):
        config.create().fit(MDPDataset(*arrays, action_size=3), 2, **options)
