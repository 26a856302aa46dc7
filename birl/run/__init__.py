"""Training loops, resumable runs, agents, and the worker processes of a run.

The loops are `offline`, `online`, `on_policy` and `asynchronous`, which are generators of epochs, and `collect`. What
acts, stores and learns in environments is a `player`, which knows none: a `collector` lets it play in environments that
birl steps, an `agent` in everybody's own loop. `evaluate` makes the evaluator of online training. `session` has
everything around a loop (logging, models, progress, checkpoints, signals), `options` the options of the loops.
"""

from birl.run.agent import Agent
from birl.run.hooks import Hook
from birl.run.options import AgentOptions, OnlineOptions, Options
from birl.run.protocols import Actor, Learner, Rollout, Stateful, Trainable

__all__ = [
    "Actor",
    "Agent",
    "AgentOptions",
    "Hook",
    "Learner",
    "OnlineOptions",
    "Options",
    "Rollout",
    "Stateful",
    "Trainable",
]
