"""A slow, independent model of a replay buffer: plain lists, one step at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from birl.dataset import ReplayBuffer, Signature

OBSERVATION = Signature([np.float32], [(2,)])
ACTION = Signature([np.float32], [(1,)])
REWARD = Signature([np.float32], [(1,)])


@dataclass
class Model:
    """Episodes as lists of (observation, action, reward), per lane; every observation has its own number."""

    lanes: int = 1
    limit: int | None = None
    closed: list[list[dict[str, Any]]] = field(default_factory=list)
    running: list[dict[str, Any] | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.closed = [[] for _ in range(self.lanes)]
        self.running = [None] * self.lanes

    def step(self, lane: int, observation: float, following: float | None = None) -> None:
        episode = self.running[lane]
        if episode is None:
            episode = self.running[lane] = {"steps": [], "end": None, "final": None, "dropped": 0}
        episode["steps"].append(observation)
        episode["final"] = following

    def close(self, lane: int, terminated: bool, final: float | None) -> None:
        episode = self.running[lane]
        if episode is not None:
            episode["end"] = "terminated" if terminated else "truncated"
            episode["final"] = episode["final"] if final is None else final
            self.closed[lane].append(episode)
            self.running[lane] = None

    def of_lane(self, lane: int) -> list[dict[str, Any]]:
        running = self.running[lane]
        return self.closed[lane] + ([] if running is None else [running])

    def counted(self, lane: int) -> int:
        """Steps that count towards the limit: all but a newest one that waits for its next observation."""
        running = self.running[lane]
        waiting = running is not None and running["final"] is None
        return sum(len(episode["steps"]) for episode in self.of_lane(lane)) - waiting

    def evict(self) -> None:
        while self.limit is not None and sum(map(self.counted, range(self.lanes))) > self.limit:
            lane = max(range(self.lanes), key=lambda one: (self.counted(one), -one))
            oldest = self.of_lane(lane)[0]
            del oldest["steps"][0]
            oldest["dropped"] += 1
            if not oldest["steps"]:
                self.closed[lane].pop(0)

    def episodes(self) -> list[dict[str, Any]]:
        return [episode for lane in range(self.lanes) for episode in self.of_lane(lane)]

    def transitions(self) -> list[tuple[float, float, float]]:
        """(observation, next observation, terminal) of all transitions."""
        found = []
        for episode in self.episodes():
            steps = episode["steps"]
            found += [(a, b, 0.0) for a, b in itertools.pairwise(steps)]
            if episode["end"] == "terminated":
                found.append((steps[-1], episode["final"] or 0.0, 1.0))
            elif episode["final"] is not None:
                found.append((steps[-1], episode["final"], 0.0))
        return found


def observe(number: float) -> np.ndarray[Any, Any]:
    return np.array([number, -number], np.float32)


def all_rows(buffer: ReplayBuffer, *, any_step: bool = False) -> np.ndarray[Any, Any]:
    """Every row that sampling can give, found without it."""
    reject = 4 if any_step else 4 | 8
    return np.flatnonzero((buffer.storage.flags & reject) == 0)


def check(buffer: ReplayBuffer, model: Model) -> None:
    """The buffer holds exactly what the model holds."""
    expected = model.episodes()
    assert buffer.size() == len(expected) == len(buffer.episodes)
    assert buffer.step_count == sum(len(episode["steps"]) for episode in expected)
    for episode, wanted in zip(buffer.episodes, expected, strict=True):
        numbers = np.array(wanted["steps"], np.float32)
        np.testing.assert_array_equal(episode.observations, np.stack([numbers, -numbers], 1))
        np.testing.assert_array_equal(episode.actions[:, 0], numbers / 100)
        np.testing.assert_array_equal(episode.rewards[:, 0], numbers * 10)
        assert (episode.terminated, episode.truncated) == (wanted["end"] == "terminated", wanted["end"] == "truncated")
        if wanted["final"] is None:
            assert episode.final_observation is None
        else:
            np.testing.assert_array_equal(episode.final_observation, observe(wanted["final"]))
    rows = all_rows(buffer)
    assert buffer.transition_count == len(rows) == len(model.transitions())
    batch = buffer.transition_picker.batch(buffer.storage, rows)  # type: ignore[attr-defined]
    got = zip(batch.observations[:, 0], batch.next_observations[:, 0], batch.terminals[:, 0], strict=True)
    assert sorted(tuple(map(float, item)) for item in got) == sorted(model.transitions())
    if model.limit is not None:
        waiting = int(buffer.storage.pending.sum())
        assert buffer.step_count - waiting <= model.limit
