"""``python -m benchmarks.peers_ray.ours --workers 4 --kills 3``: the task with birl's collectors, which Ray places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import birl
from benchmarks.peers_ray.harness import STEP, measure
from benchmarks.peers_ray.task import Task
from birl.models import VectorEncoderFactory

__all__ = ["run"]


def run(workers: int, n_steps: int, started: Callable[[], None]) -> int:
    """PPO with rollouts of 50 steps of each environment. Returns the steps that were counted."""
    birl.seed(0)
    small = VectorEncoderFactory(hidden_units=[16])
    encoders = {"actor_encoder_factory": small, "value_encoder_factory": small}
    ppo = birl.algos.PPOConfig(rollout_length=50, n_epochs=1, batch_size=50 * workers, **encoders).create()
    counted: list[int] = []

    def callback(algo: Any, epoch: int, step: int) -> None:
        if not counted:
            started()
        counted[:] = [step]

    quiet = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False}
    cluster = birl.Cluster(workers, transport="ray", resources={"num_cpus": 0.1})
    ppo.fit_online(Task(STEP), n_steps=n_steps, cluster=cluster, callback=callback, seed=0, **quiet)
    return counted[0]


if __name__ == "__main__":
    measure("birl", run)
