"""Learning whose gradients are found in several processes."""

from __future__ import annotations

from typing import Any

from birl.engine.gradient_exchange import check_gradient_steps, check_single
from birl.errors import UnsupportedError
from birl.models.networks import normalises_by_batch


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
    _check_own(learner, "worker")


def check_together(learner: Any, averaged: bool) -> None:
    """Raise `UnsupportedError` if several learners cannot learn one set of parameters.

    Args:
        learner: one of them.
        averaged: whether their gradients are averaged, and not applied one after another.
    """
    check_gradient_steps(learner.engine, learner.name)
    whole = [step.name for step in learner.engine.gradient_steps if not step.splits]
    if whole and averaged:
        raise UnsupportedError(
            f"the loss of {learner.name}'s step {', '.join(whole)} is no mean over its minibatch, so gradients of "
            "several learners cannot be averaged: leave learners out"
        )
    if normalises_by_batch(learner.nets):
        raise UnsupportedError(
            f"networks of {learner.name} are normalised by minibatches, which differ between learners: leave "
            "use_batch_norm or BatchRenormEncoderFactory out, or learners"
        )
    _check_own(learner, "learner")


def check_begun(learner: Any, growing: bool) -> None:
    """Raise `UnsupportedError` if a run of one process among several, or from growing data, would go wrong."""
    if learner.reset_interval is not None and learner.engine.reduce is not None:
        raise UnsupportedError(
            f"reset_interval={learner.reset_interval} was given to several processes, which would draw new networks "
            "of their own: leave it out, or learn in one process"
        )
    if growing and learner.returns is not None and "reward_scaler" in learner.running:
        raise UnsupportedError(
            f"{learner.name} learns from sums of scaled rewards, which it keeps: they would not follow a running "
            "reward_scaler in an environment. Use MultiplyRewardScaler, or none"
        )


def _check_own(learner: Any, who: str) -> None:
    """Raise `UnsupportedError` for what each worker, or learner, would do in its own way."""
    config = learner.config
    if learner.running:
        raise UnsupportedError(
            f"{', '.join(learner.running)} moves with what is seen, which is not the same in each {who}: fit it to "
            "data or bounds, or leave it out"
        )
    if getattr(config, "reset_interval", None) is not None:
        raise UnsupportedError(
            f"reset_interval={config.reset_interval} was given with {who}s, which would draw new networks of their "
            "own: leave it out"
        )
    if config.compile_graph is True:
        raise UnsupportedError(f"compile_graph=True was given with {who}s, which compile nothing: leave it out")
