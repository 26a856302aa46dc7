"""AWR and DiscreteAWR beside their reference: rows of the table of goldens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl import algos
from birl.dataset import Episode, ReplayBuffer, create_fifo_replay_buffer, create_infinite_replay_buffer
from birl.seeding import seed
from birl.testing import GoldenReport, compare_with_reference, double_precision, plain_parameters
from birl.types import ActionSpace
from tests.golden.cases import ACTIONS, ENCODER, OBSERVATION, Case, build
from tests.golden.reference_awr import AWRReference

LENGTHS = ((5, "terminated"), (4, "truncated"), (6, "unknown"), (1, "terminated"), (9, "truncated"))
"""Steps of each episode, and how it ends; "unknown" is a time limit whose last observation nobody knows."""


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


def _awr_case(discrete: bool, ring: bool = False, lam: float = 0.8, weighted: bool = False) -> Case:
    def run() -> GoldenReport:
        plain = episodes(discrete)
        with double_precision():
            config_class = algos.DiscreteAWRConfig if discrete else algos.AWRConfig
            algorithm = build(
                config_class(
                    actor_learning_rate=1e-2,
                    critic_learning_rate=2e-2,
                    actor_encoder_factory=ENCODER,
                    critic_encoder_factory=ENCODER,
                    batch_size=11,
                    batch_size_per_update=4,
                    n_critic_updates=3,
                    n_actor_updates=5,
                    gamma=0.9,
                    lam=lam,
                    beta=0.7,
                    max_weight=2.5,
                ),
                3 if discrete else ACTIONS,
            )
            reference = AWRReference(
                plain_parameters(algorithm.nets),
                actor_rate=1e-2,
                critic_rate=2e-2,
                gamma=0.9,
                lam=lam,
                beta=0.7,
                max_weight=2.5,
                size=4,
                critic_updates=3,
                actor_updates=5,
                discrete=discrete,
            )
            seed(0)
            dataset = stored(plain, discrete, ring)
            minibatches = [algorithm.sample_minibatch(dataset) for _ in range(4)]
            weight = torch.linspace(0.3, 1.0, 11) if weighted else torch.ones(11)
            pairs = [(each, {"episodes": plain, "drawn": drawn(each, plain), "weight": weight}) for each in minibatches]

            def update(minibatch: Any) -> Any:
                return algorithm.update(replace(algorithm.make_batch(minibatch), weight=weight))

            return compare_with_reference(algorithm, reference, pairs, update=update if weighted else algorithm.update)

    words = ["DiscreteAWR" if discrete else "AWR", *["ring"] * ring, *["weighted"] * weighted]
    return Case(" ".join(words + [f"lambda {lam:g}"] * (lam != 0.8)), run)


CASES: tuple[Case, ...] = (
    _awr_case(False),
    _awr_case(True),
    _awr_case(False, ring=True),
    _awr_case(False, weighted=True),
    _awr_case(True, lam=0.0),
    _awr_case(True, lam=1.0),
)
