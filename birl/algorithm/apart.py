"""Learning whose gradients are found in other processes."""

from __future__ import annotations

from typing import Any

from birl.engine.remote import check_single
from birl.errors import UnsupportedError


def check_apart(learner: Any, count: int) -> None:
    """Raise `UnsupportedError` if a learner's gradients cannot be found by workers, in a run of ``count`` steps."""
    check_single(learner.engine, learner.name)
    learner.experience.check_run(learner, None, count)
    config = learner.config
    if not hasattr(config, "rollout_length"):
        raise UnsupportedError(
            f"{learner.name} learns from whole episodes, of which nobody knows the length when steps are handed out "
            "to workers: leave workers out, or use A3C"
        )
    if learner.running:
        raise UnsupportedError(
            f"{', '.join(learner.running)} moves with what is seen, which is not the same in each worker: fit it to "
            "data or bounds, or leave it out"
        )
    if getattr(config, "reset_interval", None) is not None:
        raise UnsupportedError(
            f"reset_interval={config.reset_interval} was given with workers, which would draw new networks of their "
            "own: leave it out"
        )
    if config.compile_graph is True:
        raise UnsupportedError("compile_graph=True was given with workers, which compile nothing: leave it out")
