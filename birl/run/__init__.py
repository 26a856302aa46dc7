"""Loops: training on data and in environments, collecting, evaluating and resuming.

One module per loop: `offline`, `online`, `on_policy`, `collect`, `evaluate`. Each loop is a generator of epochs;
`session` has everything around it (logging, models, progress, checkpoints, signals).
"""

from birl.acting.explorers import ConstantEpsilonGreedy, Explorer, LinearDecayEpsilonGreedy, NormalNoise
from birl.run.protocols import Actor, Learner, Rollout, Stateful, Trainable
from birl.run.session import FitOptions, NamedOptions, Options, check_options

__all__ = [
    "Actor",
    "ConstantEpsilonGreedy",
    "Explorer",
    "FitOptions",
    "Learner",
    "LinearDecayEpsilonGreedy",
    "NamedOptions",
    "NormalNoise",
    "Options",
    "Rollout",
    "Stateful",
    "Trainable",
    "check_options",
]
