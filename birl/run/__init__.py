"""Loops: training on data and in environments, collecting, evaluating and resuming.

The loops are `offline`, `online` and `on_policy`, which are generators of epochs, and `collect`. `evaluate` makes the
evaluator of online training. `session` has everything around a loop (logging, models, progress, checkpoints, signals),
`options` the options of the loops.
"""

from birl.run.options import OnlineOptions, Options
from birl.run.protocols import Actor, Learner, Rollout, Stateful, Trainable

__all__ = [
    "Actor",
    "Learner",
    "OnlineOptions",
    "Options",
    "Rollout",
    "Stateful",
    "Trainable",
]
