"""Loops: training on data and in environments, collecting, evaluating and resuming.

One module per loop: `offline`, `online`, `on_policy`, `collect`, `evaluate`. Each loop is a generator of epochs;
`session` has everything around it (logging, models, progress, checkpoints, signals).
"""

from birl.run.protocols import Actor, Learner, Rollout, Stateful, Trainable
from birl.run.session import FitOptions, NamedOptions, Options, check_options

__all__ = [
    "Actor",
    "FitOptions",
    "Learner",
    "NamedOptions",
    "Options",
    "Rollout",
    "Stateful",
    "Trainable",
    "check_options",
]
