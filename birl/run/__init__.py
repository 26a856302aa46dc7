"""Loops: training on data and in environments, collecting, evaluating and resuming.

One module per loop: `offline`, `online`, `on_policy`, `collect`, `evaluate`. Each loop is a generator of epochs;
`session` has everything around it (logging, models, progress, checkpoints, signals), `options` what they are told.
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
