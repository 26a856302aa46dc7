"""Training loops, resumable runs, agents, and the worker processes of a run.

The loops `offline`, `online`, `on_policy` and `asynchronous` are generators of epochs; `data_collection` stores steps
without learning. An `agent_core` acts, stores steps and samples minibatches; a `collector` steps environments with it,
and an `agent` is driven by a user's own loop. `environment_run` has the checks that all loops in environments share and
selects where steps and updates are made. `session` has everything around a loop: logging, models, progress, checkpoints
and signals. `options` has the options of the loops, and `protocols` the interfaces of what they drive.
"""

from birl.run.agent import Agent
from birl.run.hooks import Hook
from birl.run.options import AgentOptions, OnlineOptions, Options
from birl.run.protocols import Actor, Callback, Evaluator, Learner, Rollout, Stateful, Trainable

__all__ = [
    "Actor",
    "Agent",
    "AgentOptions",
    "Callback",
    "Evaluator",
    "Hook",
    "Learner",
    "OnlineOptions",
    "Options",
    "Rollout",
    "Stateful",
    "Trainable",
]
