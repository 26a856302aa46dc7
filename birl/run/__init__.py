"""Training loops, resumable runs, agents, and the worker processes of a run.

The loops `offline`, `online`, `on_policy` and `asynchronous` are generators of epochs; `data_collection` stores steps
without learning. An `agent_core` acts, stores steps and samples minibatches; a `collector` steps environments with it,
and an `agent` is driven by a user's own loop. `environment_run` checks what all loops in environments have in common,
and decides where steps and updates are made. `session` handles everything around a loop: logging, models, progress,
checkpoints and signals. `options` defines the options of the loops, and `protocols` the interfaces that loops use.
"""

from typing import TYPE_CHECKING, Final

from birl.errors import explain_missing_names

if TYPE_CHECKING:
    from birl.run.agent import Agent
    from birl.run.hooks import Hook, Run
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
    "Run",
    "Stateful",
    "Trainable",
]

_HOMES: Final = {
    "Actor": "birl.run.protocols",
    "Agent": "birl.run.agent",
    "AgentOptions": "birl.run.options",
    "Callback": "birl.run.protocols",
    "Evaluator": "birl.run.protocols",
    "Hook": "birl.run.hooks",
    "Learner": "birl.run.protocols",
    "OnlineOptions": "birl.run.options",
    "Options": "birl.run.options",
    "Rollout": "birl.run.protocols",
    "Run": "birl.run.hooks",
    "Stateful": "birl.run.protocols",
    "Trainable": "birl.run.protocols",
}
"""Modules of the names, which are imported on first use."""


explain_missing_names(__name__, __all__, homes=_HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
