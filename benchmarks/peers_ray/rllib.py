"""``python -m benchmarks.peers_ray.rllib --workers 4 --kills 3``: the task with RLlib's PPO (ray[rllib]==2.60.0)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

from benchmarks.peers_ray.harness import STEP, measure
from benchmarks.peers_ray.task import Task

__all__ = ["run"]


def run(workers: int, n_steps: int, started: Callable[[], None]) -> int:
    """PPO with batches of 50 steps of each worker. Returns the steps that RLlib counts."""
    ray.init(num_cpus=workers + 1, include_dashboard=False, log_to_driver=False)
    register_env("task", lambda config: Task(STEP))
    config: Any = PPOConfig().environment("task")
    config = config.env_runners(num_env_runners=workers, rollout_fragment_length=50)
    config = config.training(train_batch_size_per_learner=50 * workers, minibatch_size=50 * workers, num_epochs=1)
    config = config.rl_module(model_config={"fcnet_hiddens": [16]}).learners(num_learners=0)
    config = config.fault_tolerance(restart_failed_env_runners=True, ignore_env_runner_failures=False)
    algorithm = config.build_algo()
    started()
    reported = 0
    while reported < n_steps:
        reported = int(algorithm.train()["num_env_steps_sampled_lifetime"])
    algorithm.stop()
    ray.shutdown()
    return reported


if __name__ == "__main__":
    measure("RLlib", run)
