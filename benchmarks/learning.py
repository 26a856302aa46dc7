"""How soon online training reaches its goal: steps and seconds, task by task and seed by seed.

``python benchmarks/learning.py`` runs everything on three seeds and prints a table;
``python benchmarks/learning.py pendulum-sac cartpole-ppo --seeds 0`` runs what is named. `tests/slow/test_learning.py`
asks of the same runs that they reach their goals.

A run is evaluated after each epoch, greedily, in `EPISODES` episodes of an environment of its own. It ends with the
first evaluation that reaches the target, or at the limit of steps. The seconds are of the whole run, evaluations
included.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import birl
from birl.algos import (
    DoubleDQNConfig,
    DQNConfig,
    ICML2018SACConfig,
    LinearDecayEpsilonGreedy,
    NormalNoise,
    PPOConfig,
    REDQConfig,
    SACConfig,
    TD3Config,
    TQCConfig,
    epsilon_ladder,
)
from birl.config import AlgorithmConfig
from birl.dataset import MultiStepTransitionPicker, PrioritizedSampler, create_fifo_replay_buffer
from birl.envs import make_env
from birl.logging import NoopAdapterFactory
from birl.models import (
    EncoderFactory,
    GRUEncoderFactory,
    LSTMEncoderFactory,
    MeanQFunctionFactory,
    VectorEncoderFactory,
)
from birl.preprocessing import MinMaxActionScaler
from birl.run.on_policy import on_policy_fitter
from birl.run.online import online_fitter

__all__ = ["EPISODES", "RELATIVE", "TASKS", "Outcome", "Task", "epochs", "learn"]

EPISODES = 20
"""Episodes of one evaluation, each in an environment of its own."""


@dataclass(frozen=True)
class Task:
    """An environment, an algorithm and the goal.

    Attributes:
        env_id: as for `birl.envs.make_env`.
        config: makes the algorithm's configuration.
        target: mean return that counts as solved.
        limit: environment steps within which it must be reached.
        epoch: steps between evaluations.
        num_envs: environments to train in at once; ``None`` for a plain one.
        explorer: makes the explorer, if there is one.
        options: further options of the loop; with a ``cluster`` there is an environment for each collector.
        stored: makes further options of the replay buffer.
        control: whether the target must stay out of reach: the task is there to show what is missing.
        episodes: episodes of one evaluation.
    """

    env_id: str
    config: Callable[[], AlgorithmConfig]
    target: float
    limit: int
    epoch: int
    num_envs: int | None = None
    explorer: Callable[[], Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    stored: Callable[[], dict[str, Any]] = dict
    control: bool = False
    episodes: int = EPISODES


@dataclass(frozen=True)
class Outcome:
    """What came of one run.

    Attributes:
        task, seed: which run.
        best: the highest mean return of an evaluation.
        steps: environment steps at the evaluation that reached the target; ``None`` if none did.
        made: environment steps made.
        seconds: of the whole run, on the clock.
        processor: processor seconds of the whole run, which other processes hardly change.
    """

    task: str
    seed: int
    best: float
    steps: int | None
    made: int
    seconds: float
    processor: float

    @property
    def solved(self) -> bool:
        """Whether the target was reached within the limit."""
        return self.steps is not None


# ----------------------------------------------------------------------------------------------------- the tasks

_SMALL = VectorEncoderFactory(hidden_units=[64, 64])


def _sac() -> SACConfig:
    return SACConfig(
        batch_size=256,
        gamma=0.98,
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        temp_learning_rate=1e-3,
        action_scaler=MinMaxActionScaler(),
    )


def _td3() -> TD3Config:
    return TD3Config(
        batch_size=256,
        gamma=0.98,
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        action_scaler=MinMaxActionScaler(),
    )


# SAC's relatives, small and with one update for each step, of which REDQ makes 20 by default.
RELATIVE: dict[str, Any] = {
    "batch_size": 64,
    "actor_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "actor_encoder_factory": _SMALL,
    "critic_encoder_factory": _SMALL,
    "action_scaler": MinMaxActionScaler(),
}


def _tqc() -> TQCConfig:
    return TQCConfig(temp_learning_rate=1e-3, **RELATIVE)


def _redq() -> REDQConfig:
    return REDQConfig(temp_learning_rate=1e-3, update_actor_interval=1, **RELATIVE)


def _first_sac() -> ICML2018SACConfig:
    return ICML2018SACConfig(value_encoder_factory=_SMALL, reward_scaler=None, **RELATIVE)


def _dqn() -> DQNConfig:
    # As RL Baselines3 Zoo tuned it for DQN: bursts of 128 updates, and the target network moves after each burst.
    return DQNConfig(batch_size=64, learning_rate=2.3e-3, target_update_interval=128)


def _ppo() -> PPOConfig:
    return PPOConfig(
        batch_size=256,
        gamma=0.98,
        learning_rate=1e-3,
        rollout_length=32,
        n_epochs=20,
        gae_lambda=0.8,
        actor_encoder_factory=VectorEncoderFactory(hidden_units=[64, 64], activation="tanh"),
        value_encoder_factory=VectorEncoderFactory(hidden_units=[64, 64], activation="tanh"),
    )


# The window must hold the cue and the question, eleven steps: through a shorter one no gradient reaches the cue.
_WINDOWS: dict[str, Any] = {
    "batch_size": 32,
    "learning_rate": 1e-3,
    "target_update_interval": 100,
    "sequence_length": 12,
    "burn_in": 4,
}


def _memory_dqn(encoder: EncoderFactory) -> Callable[[], DQNConfig]:
    return lambda: DQNConfig(encoder_factory=encoder, **_WINDOWS)


def _memory_r2d2() -> DoubleDQNConfig:
    # What `--recipe r2d2` has, made small.
    return DoubleDQNConfig(
        gamma=0.997,
        **_WINDOWS,
        encoder_factory=LSTMEncoderFactory(hidden_size=32, hidden_units=[32]),
        q_func_factory=MeanQFunctionFactory(dueling=[32]),
    )


def _sequences_by_priority() -> dict[str, Any]:
    sampler = PrioritizedSampler(alpha=0.9, beta=0.6, beta_steps=10_000)
    return {"sampler": sampler, "transition_picker": MultiStepTransitionPicker(n_steps=5, gamma=0.997)}


def _memory_ppo(encoder: EncoderFactory) -> Callable[[], PPOConfig]:
    return lambda: PPOConfig(
        batch_size=176,
        learning_rate=1e-3,
        rollout_length=44,
        sequence_length=44,  # a shorter one would cut episodes, and no gradient would reach the cues of these
        n_epochs=10,
        entropy_coefficient=0.01,
        actor_encoder_factory=encoder,
        value_encoder_factory=encoder,
    )


_PENDULUM: dict[str, Any] = {"env_id": "Pendulum-v1", "target": -200.0, "limit": 10_000, "epoch": 500}
_PENDULUM["options"] = {"random_steps": 1000, "update_start_step": 1000}
_RELATIVES: dict[str, Any] = {**_PENDULUM, "target": -400.0, "options": {**_PENDULUM["options"], "n_updates": 1}}
_CARTPOLE: dict[str, Any] = {"env_id": "CartPole-v1", "target": 475.0}
# The cue is -1 or 1, and so is the reward: without memory the mean return is 0.
_MEMORY: dict[str, Any] = {"env_id": "birl.testing:MemoryEnv", "target": 0.95, "epoch": 1000, "episodes": 100}
_MEMORY_DQN: dict[str, Any] = {
    **_MEMORY,
    "limit": 20_000,
    "explorer": lambda: LinearDecayEpsilonGreedy(1.0, 0.1, duration=4000),
    "options": {"update_start_step": 500, "update_interval": 4},
}
_MEMORY_R2D2: dict[str, Any] = {
    **_MEMORY_DQN,
    "explorer": lambda: epsilon_ladder(4),
    "options": {**_MEMORY_DQN["options"], "cluster": birl.Cluster(collectors=4, shards=1, transport="inline")},
}
_MEMORY_PPO: dict[str, Any] = {**_MEMORY, "limit": 60_000, "epoch": 352 * 5, "num_envs": 8}

TASKS: dict[str, Task] = {
    "pendulum-sac": Task(config=_sac, **_PENDULUM),
    "pendulum-td3": Task(config=_td3, explorer=lambda: NormalNoise(std=0.2), **_PENDULUM),
    "pendulum-tqc": Task(config=_tqc, **_RELATIVES),
    "pendulum-redq": Task(config=_redq, **_RELATIVES),
    "pendulum-icml2018sac": Task(config=_first_sac, **_RELATIVES),
    "cartpole-dqn": Task(
        config=_dqn,
        limit=50_000,
        epoch=1000,
        explorer=lambda: LinearDecayEpsilonGreedy(1.0, 0.04, duration=8000),
        options={"update_start_step": 1000, "update_interval": 256, "n_updates": 128},
        **_CARTPOLE,
    ),
    "cartpole-ppo": Task(config=_ppo, limit=100_000, epoch=2560, num_envs=8, **_CARTPOLE),
    "memory-dqn-gru": Task(config=_memory_dqn(GRUEncoderFactory(hidden_size=32, hidden_units=[32])), **_MEMORY_DQN),
    "memory-dqn-lstm": Task(config=_memory_dqn(LSTMEncoderFactory(hidden_size=32, hidden_units=[32])), **_MEMORY_DQN),
    "memory-dqn-none": Task(config=_memory_dqn(_SMALL), control=True, **_MEMORY_DQN),
    "memory-r2d2": Task(config=_memory_r2d2, stored=_sequences_by_priority, **_MEMORY_R2D2),
    "memory-ppo-gru": Task(config=_memory_ppo(GRUEncoderFactory(hidden_size=32, hidden_units=[32])), **_MEMORY_PPO),
    "memory-ppo-lstm": Task(config=_memory_ppo(LSTMEncoderFactory(hidden_size=32, hidden_units=[32])), **_MEMORY_PPO),
    "memory-ppo-none": Task(config=_memory_ppo(_SMALL), control=True, **_MEMORY_PPO),
}
"""The runs, by name."""


# --------------------------------------------------------------------------------------------------- running them


def learn(name: str, seed: int, report: Callable[[str], None] = lambda line: None) -> Outcome:
    """Run one task until its target is reached or its steps are used up.

    Args:
        name: key of `TASKS`.
        seed: of everything random.
        report: called with one line after each evaluation.
    """
    task = TASKS[name]
    birl.seed(seed)
    env, eval_env = make_env(task.env_id, task.num_envs), make_env(task.env_id, task.episodes)
    best, reached, made = float("-inf"), None, 0
    start, start_processor = time.perf_counter(), time.process_time()
    for epoch, metrics in epochs(task, task.env_id if "cluster" in task.options else env, eval_env, seed):
        made = min(epoch * task.epoch, task.limit)
        value = metrics["evaluation"]
        best = max(best, value)
        report(f"{name} seed {seed}: {made} steps, {time.perf_counter() - start:.0f} s, mean return {value:.2f}")
        if value >= task.target:
            reached = made
            break
    seconds, processor = time.perf_counter() - start, time.process_time() - start_processor
    env.close()
    eval_env.close()
    return Outcome(name, seed, best, reached, made, seconds, processor)


def epochs(task: Task, env: Any, eval_env: Any, seed: int, **options: Any) -> Iterator[tuple[int, dict[str, float]]]:
    """Epochs of one run, each with its number and its metrics.

    Args:
        task: what is learned.
        env: to train in, or the name of one for collectors.
        eval_env: to evaluate in, vectorised; ``None`` for no evaluation.
        seed: of environments and actions; call `birl.seed` before.
        **options: further ones of the loop.
    """
    algorithm = task.config().create()
    given: dict[str, Any] = {
        "n_steps": task.limit,
        "n_steps_per_epoch": task.epoch,
        "eval_env": eval_env,
        "eval_n_trials": task.episodes,
        "seed": seed,
        "show_progress": False,
        "logger_adapter": NoopAdapterFactory(),
        **task.options,
        **options,
    }
    if algorithm.learns_from.on_policy:
        return on_policy_fitter(algorithm, env, **given)
    lanes = {"lanes": given["cluster"].lanes} if "cluster" in given else {}
    like = make_env(env, 1) if isinstance(env, str) else env
    buffer = create_fifo_replay_buffer(limit=task.limit, env=like, **lanes, **task.stored())
    explorer = None if task.explorer is None else task.explorer()
    return online_fitter(algorithm, env, buffer, explorer, **given)


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a Markdown table."""
    lines = ["| task | seed | target | limit | reached after steps | best mean return | seconds | processor seconds |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for outcome in outcomes:
        task = TASKS[outcome.task]
        aim = f"below {task.target:g} (control)" if task.control else f"{task.target:g}"
        reached = "not reached" if outcome.steps is None else str(outcome.steps)
        lines.append(
            f"| {outcome.task} | {outcome.seed} | {aim} | {task.limit} | {reached} | {outcome.best:.2f} "
            f"| {outcome.seconds:.0f} | {outcome.processor:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TASK", help=f"some of {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in TASKS]
    if unknown:
        parser.error(f"there is no task {unknown[0]!r}; there are: {', '.join(TASKS)}")
    print(f"birl {birl.__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)", flush=True)
    outcomes = []
    for name in options.names or TASKS:
        for seed in options.seeds:
            outcomes.append(learn(name, seed, lambda line: print(line, file=sys.stderr, flush=True)))
            print(outcomes[-1], flush=True)
    print(f"\n{table(outcomes)}")
    failed = [each for each in outcomes if each.solved == TASKS[each.task].control]
    sys.exit(f"{len(failed)} of {len(outcomes)} runs missed their goal" if failed else 0)


if __name__ == "__main__":
    main()
