"""Features that cannot be combined: one table, which code, tests and the documentation read.

A *feature* is something that an algorithm, its configuration or its data has (``recurrent network``), or a way to run
it (``fit_many``). Code names the features in use and asks `check_compatible`; the table says which two exclude each
other, why, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from birl.errors import BirlError, ConfigError, UnsupportedError

FEATURES: Final[Mapping[str, str]] = {
    # of an algorithm
    "logged data": "an algorithm that learns only from logged data, such as BC or DecisionTransformer",
    "fresh experience": "an algorithm that learns only from its own fresh experience, such as PPO",
    "replay buffer": "an algorithm that learns from a replay buffer, such as DQN or SAC",
    "rollouts": "an algorithm that learns from rollouts of its newest weights",
    "whole episodes": "an algorithm that learns from whole episodes, such as REINFORCE",
    "single states": "an algorithm that learns from states without the ones before, such as AWR, PRDC or NStepDQN",
    "airl": '`reward="airl"` of an imitation algorithm',
    "returns": "an algorithm that learns from returns up to the ends of episodes, such as AWR",
    "stored returns": "an algorithm that learns from returns that are computed once and stored",
    "further experience": "rollouts with demonstrations or a replay buffer in addition, as for GAIL and ACER",
    "single seed": "an algorithm whose updates cannot be stacked, such as PPO or DecisionTransformer",
    "several gradient steps": "an update with several gradient steps, such as those of SAC",
    "other steps": "an update with steps that are not gradient steps, such as TRPO's",
    "loss of whole minibatches": "a loss with a factor of the whole minibatch, such as TD3+BC's",
    "unstackable step": "a step that must run outside a compiled update, such as TRPO's",
    "no TD errors": "an algorithm without TD errors, such as BC or PPO",
    # of a configuration
    "recurrent network": "a network with memory, such as an LSTM",
    "burn_in": "`burn_in` above 0",
    "noisy layers": "noise in the layers of the policy",
    "batch statistics": "`use_batch_norm`, `BatchRenormEncoderFactory`, or CrossQ",
    "moving buffers": "networks that change buffers while they learn, as batch norm does",
    "running scaler": "a scaler whose statistics follow the environment, such as `RunningObservationScaler`",
    "running reward_scaler": "a running `reward_scaler` in an environment",
    "reset_interval": "`reset_interval`",
    "compile_graph": "`compile_graph=True`",
    "joint optimiser": "an optimiser that does not treat every number by itself",
    # of data and options
    "buffer": "a replay buffer that is given",
    "several buffers": "a `MixedReplayBuffer`",
    "prioritised sampler": "a sampler that draws by TD errors",
    "sampler": "a sampler that does not draw uniformly",
    "own reader": "a dataset without birl's reader",
    "info_keys": "a buffer with `info_keys`",
    "hooks": "a `birl.run.Hook`, or a list of callbacks",
    # of ways to run
    "fit": "`fit`",
    "fit_online": "`fit_online`, or an agent that learns",
    "fit_many": "`fit_many`, or `birl train --seeds` on a dataset",
    "enable_ddp": "`enable_ddp=True`",
    "several processes": "gradients averaged over several processes",
    "workers": "`workers=`",
    "cluster": "`cluster=`",
    "learners": "`Cluster.learners` above 1",
    "averaged gradients": "`Cluster.learners` above 1, without `gradients='pushed'`",
    "pushed gradients": "`Cluster.gradients='pushed'`",
    "shards": "`Cluster.shards`",
    "order": '`Cluster.order` other than `"together"`',
    "overlap": "`overlap=True`",
    "learning together": "seeds, workers or processes that learn together at the moment",
    "retune": "`retune`",
    "compute_gradients": "`compute_gradients`",
}
"""What each feature is, by its name in the table."""


class Incompatible(NamedTuple):
    """Two features that cannot be combined.

    Attributes:
        first, second: names in `FEATURES`.
        reason: why they cannot be combined.
        remedy: what to do instead.
        error: the error's class.
    """

    first: str
    second: str
    reason: str
    remedy: str
    error: type[BirlError] = UnsupportedError


_ALONE: Final = "train each seed by itself"

INCOMPATIBLE: Final = (
    Incompatible("logged data", "fit_online", "it would learn from its own actions", "use fit(dataset)"),
    Incompatible(
        "fresh experience",
        "fit",
        "logged steps come from other policies",
        "use fit_online(env), or an offline algorithm such as IQL, CQL or DiscreteCQL",
    ),
    Incompatible(
        "no TD errors",
        "prioritised sampler",
        "nothing sets priorities",
        "make the dataset or buffer without sampler=",
    ),
    Incompatible(
        "single states",
        "recurrent network",
        "the memory that leads to a state is not there",
        "use feed-forward encoders, stack frames, or use an algorithm for sequences, such as TD3PlusBC, PPO or A3C",
    ),
    Incompatible(
        "airl",
        "recurrent network",
        "a recurrent policy has probabilities of the expert's actions only along its own episodes",
        'use reward="gail", or a feed-forward actor_encoder_factory',
    ),
    Incompatible(
        "burn_in",
        "rollouts",
        "rollouts start with an episode or with the policy's recurrent states",
        "leave burn_in at 0",
        ConfigError,
    ),
    Incompatible(
        "noisy layers",
        "rollouts",
        "probabilities of rollouts are compared with those of the policy, and noise changes between the two",
        "leave noisy out of the encoder of the policy",
    ),
    Incompatible(
        "stored returns",
        "running reward_scaler",
        "returns are computed once and would not follow the scaler",
        "use MultiplyRewardScaler, or none",
    ),
    # several seeds
    Incompatible("single seed", "fit_many", "its updates cannot be stacked", _ALONE),
    Incompatible(
        "recurrent network",
        "fit_many",
        "networks with memory cannot be stacked",
        f"use an encoder without memory, or {_ALONE}",
    ),
    Incompatible("unstackable step", "fit_many", "it cannot run for stacked networks", _ALONE),
    Incompatible(
        "joint optimiser",
        "fit_many",
        "stacked seeds would influence each other",
        f"use an optimiser of torch.optim such as Adam, or {_ALONE}",
    ),
    Incompatible("reset_interval", "fit_many", "stacked networks cannot be reset", _ALONE),
    Incompatible(
        "own reader", "fit_many", "seeds cannot share it", f"use ReplayBuffer or MixedReplayBuffer, or {_ALONE}"
    ),
    Incompatible("hooks", "fit_many", "one function is called for all seeds", "give callback a function"),
    # several processes
    Incompatible("enable_ddp", "fit_online", "processes learn together from one dataset only", "use fit(dataset)"),
    Incompatible(
        "reset_interval",
        "several processes",
        "each process would draw other networks",
        "leave reset_interval out, or learn in one process",
    ),
    Incompatible("learning together", "retune", "the others would not follow", "retune before or after"),
    # asynchronous workers
    Incompatible(
        "cluster", "workers", "collectors only act, workers compute gradients", "give one of both", ConfigError
    ),
    Incompatible(
        "replay buffer",
        "workers",
        "each worker learns from rollouts of its own",
        "leave workers out, or use an algorithm that learns from rollouts, such as A3C",
    ),
    Incompatible(
        "buffer",
        "workers",
        "workers do not share a buffer",
        "leave buffer out, so that each worker replays its own steps, or leave workers out",
    ),
    Incompatible(
        "whole episodes", "workers", "steps are divided before their number is known", "leave workers out, or use A3C"
    ),
    Incompatible(
        "several gradient steps",
        "workers",
        "each step needs the parameters that the step before has moved",
        "leave workers out, or use A3C",
    ),
    Incompatible("other steps", "workers", "workers compute gradients only", "leave workers out, or use A3C"),
    Incompatible(
        "running scaler",
        "workers",
        "each worker would have other statistics",
        "fit it to data or bounds, or leave it out",
    ),
    Incompatible("reset_interval", "workers", "each worker would draw other networks", "leave reset_interval out"),
    Incompatible("compile_graph", "workers", "workers do not compile", "leave compile_graph out"),
    # several learners
    Incompatible(
        "further experience", "learners", "learners divide rollouts only", "leave learners out, or use PPO or A2C"
    ),
    Incompatible("whole episodes", "learners", "rollouts differ in length", "leave learners out, or use PPO or A2C"),
    Incompatible("several buffers", "learners", "learners divide one buffer", "give one buffer, or leave learners out"),
    Incompatible(
        "loss of whole minibatches",
        "averaged gradients",
        "it is not a mean over the minibatch, so gradients of parts cannot be averaged",
        "leave learners out",
    ),
    Incompatible(
        "batch statistics",
        "learners",
        "statistics of minibatches differ between learners",
        "leave use_batch_norm or BatchRenormEncoderFactory out, or leave learners out",
    ),
    Incompatible("other steps", "learners", "learners exchange gradients only", "leave learners out"),
    Incompatible(
        "running scaler",
        "learners",
        "each learner would have other statistics",
        "fit it to data or bounds, or leave it out",
    ),
    Incompatible("reset_interval", "learners", "each learner would draw other networks", "leave reset_interval out"),
    Incompatible("compile_graph", "learners", "learners do not compile", "leave compile_graph out"),
    Incompatible(
        "sampler",
        "pushed gradients",
        "it chooses rows of minibatches that all learners share",
        "make the buffer without sampler=, or leave gradients out",
    ),
    Incompatible(
        "rollouts",
        "pushed gradients",
        "pushed gradients are of older weights",
        "leave gradients out, or use workers= with A3C",
    ),
    # collectors
    Incompatible("overlap", "cluster", "collectors act meanwhile", "leave overlap out", ConfigError),
    Incompatible(
        "info_keys",
        "cluster",
        "collectors send no info",
        "leave cluster= or info_keys out, or put the entries into the observations",
    ),
    Incompatible("info_keys", "rollouts", "rollouts hold no info", "make the buffer without info_keys"),
    Incompatible(
        "order",
        "rollouts",
        "rollouts are of the newest weights",
        "give order='together', or leave order out",
        ConfigError,
    ),
    # replay shards
    Incompatible(
        "shards",
        "learners",
        "learners sample from their own steps",
        "leave shards out, or learners",
        ConfigError,
    ),
    Incompatible(
        "rollouts",
        "shards",
        "shards hold a replay buffer",
        "leave shards out, or use an algorithm that replays, such as SAC",
    ),
    Incompatible("several buffers", "shards", "shards divide one buffer", "give one buffer, or leave shards out"),
    Incompatible(
        "returns",
        "shards",
        "shards do not send the rest of an episode",
        "leave shards out, or use an algorithm that learns from transitions or sequences",
    ),
    # gradients as values
    Incompatible(
        "other steps", "compute_gradients", "their gradients depend on the steps before", "use update(minibatch)"
    ),
    Incompatible(
        "moving buffers",
        "compute_gradients",
        "several processes would move the buffers differently",
        "leave use_batch_norm out",
    ),
)
"""All pairs, the first match of which is the error."""


def prioritised_without_errors(name: str) -> dict[str, str]:
    """Return the features of an algorithm called ``name`` that has no TD errors and is given a prioritised sampler."""
    return {"no TD errors": f"{name}, which has no TD errors,", "prioritised sampler": "a prioritised sampler"}


def check_compatible(used: Mapping[str, str]) -> None:
    """Raise the error of the first row of the table whose features are both in use.

    Args:
        used: the features in use, by name, each with the text that messages have: ``{"workers": "workers=4"}``.

    Raises:
        UnsupportedError, ConfigError: with both features, the reason and what to do.
    """
    unknown = used.keys() - FEATURES.keys()
    assert not unknown, unknown
    for row in INCOMPATIBLE:
        if row.first in used and row.second in used:
            second = used[row.second].rstrip(",")  # of a clause that needs no comma at the end
            raise row.error(f"{used[row.first]} cannot be combined with {second}: {row.reason}; {row.remedy}")
