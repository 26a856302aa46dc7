"""``python -m benchmarks.peers_ray.torchrl_ray --workers 4 --kills 3``: the task with TorchRL's RayCollector."""

from __future__ import annotations

from collections.abc import Callable

from torchrl.collectors.distributed import RayCollector
from torchrl.envs import GymWrapper
from torchrl.modules import RandomPolicy

from benchmarks.peers_ray.harness import STEP, measure
from benchmarks.peers_ray.task import Task

__all__ = ["run"]


def _make() -> GymWrapper:
    return GymWrapper(Task(STEP), categorical_action_encoding=True)


def run(workers: int, n_steps: int, started: Callable[[], None]) -> int:
    """Random actions in batches of 50 steps of each worker. Returns the steps of the batches that came."""
    init = {"num_cpus": workers + 1, "include_dashboard": False, "log_to_driver": False}
    collector = RayCollector(
        [_make] * workers,
        RandomPolicy(_make().action_spec),
        frames_per_batch=50 * workers,
        total_frames=n_steps,
        sync=True,
        ray_init_config=init,
        remote_configs={"num_cpus": 1, "num_gpus": 0},
    )
    started()
    reported = 0
    for batch in collector:
        reported += batch.numel()
    collector.shutdown()
    return reported


if __name__ == "__main__":
    measure("TorchRL", run)
