"""Goldens of AWR and DiscreteAWR."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl import algos
from birl.dataset import Episode, ReplayBuffer, create_fifo_replay_buffer, create_infinite_replay_buffer
from birl.seeding import seed
from birl.types import ActionSpace
from tests.golden.case import ACTIONS, ACTOR_FIELDS, ACTOR_RATES, OBSERVATION, Case
from tests.golden.reference_awr import AWRReference

LENGTHS = ((5, "terminated"), (4, "truncated"), (6, "unknown"), (1, "terminated"), (9, "truncated"))
"""Steps of each episode, and how it ends; "unknown" is a time limit whose last observation is unknown."""


def episodes(discrete: bool) -> list[dict[str, Any]]:
    """Episodes of random numbers that float32 holds exactly."""
    generator = np.random.default_rng(21)

    def exact(*shape: int) -> Tensor:
        return torch.from_numpy(generator.normal(size=shape).astype(np.float32).astype(np.float64))

    return [
        {
            "observation": exact(length, OBSERVATION),
            "action": torch.from_numpy(generator.integers(3, size=length)) if discrete else exact(length, ACTIONS) / 4,
            "reward": exact(length),
            "terminated": end == "terminated",
            "final": None if end == "unknown" else exact(OBSERVATION),
        }
        for length, end in LENGTHS
    ]


def stored(plain: list[dict[str, Any]], discrete: bool, ring: bool) -> ReplayBuffer:
    """The same in a replay buffer; a ring has held others before and has wrapped around."""

    def float32(x: Tensor) -> Any:
        return x.numpy().astype(np.float32)

    made = [
        Episode(
            float32(each["observation"]),
            each["action"].numpy()[:, None] if discrete else float32(each["action"]),
            float32(each["reward"])[:, None],
            each["terminated"],
            final_observation=None if each["final"] is None else float32(each["final"]),
        )
        for each in plain
    ]
    space = {"action_space": ActionSpace.DISCRETE if discrete else ActionSpace.CONTINUOUS}
    if not ring:
        return create_infinite_replay_buffer(made, **space)
    return create_fifo_replay_buffer(sum(length for length, _ in LENGTHS), made[:3] + made, **space)


def drawn(minibatch: Any, plain: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Which steps were drawn: no two have the same observation."""
    where = {
        tuple(row): (number, step)
        for number, each in enumerate(plain)
        for step, row in enumerate(each["observation"].float().tolist())
    }
    return [where[tuple(row)] for row in minibatch.observations.tolist()]


def _awr(discrete: bool, ring: bool = False, lam: float = 0.8, weighted: bool = False) -> Case:
    plain = episodes(discrete)
    weight = torch.linspace(0.3 if weighted else 1.0, 1.0, 11, dtype=torch.float64)
    config = (algos.DiscreteAWRConfig if discrete else algos.AWRConfig)(
        **ACTOR_FIELDS,
        batch_size=11,
        batch_size_per_update=4,
        n_critic_updates=3,
        n_actor_updates=5,
        gamma=0.9,
        lam=lam,
        beta=0.7,
        max_weight=2.5,
    )
    numbers = {"gamma": 0.9, "lam": lam, "beta": 0.7, "max_weight": 2.5}
    sizes = {"size": 4, "critic_updates": 3, "actor_updates": 5}

    def inputs(algorithm: Any) -> list[tuple[Any, dict[str, Any]]]:
        seed(0)
        dataset = stored(plain, discrete, ring)
        minibatches = [algorithm.sample_minibatch(dataset) for _ in range(4)]
        return [(each, {"episodes": plain, "drawn": drawn(each, plain), "weight": weight}) for each in minibatches]

    def update(algorithm: Any, minibatch: Any) -> Any:
        if not weighted:
            return algorithm.update(minibatch)
        return algorithm.update(replace(algorithm.learner.batch(minibatch), weight=weight))

    return Case(
        " ".join(["ring"] * ring + ["weighted"] * weighted + [f"lambda {lam:g}"] * (lam != 0.8)),
        config,
        partial(AWRReference, **ACTOR_RATES, **numbers, **sizes, discrete=discrete),
        inputs,
        update=update,
    )


CASES: tuple[Case, ...] = (
    _awr(False),
    _awr(True),
    _awr(False, ring=True),
    _awr(False, weighted=True),
    _awr(True, lam=0.0),
    _awr(True, lam=1.0),
)
