"""Scores beside peers': the same task, hyper-parameters, steps and seeds on every side.

One run: ``python benchmarks/scores.py run --task sac-halfcheetah --side birl --seed 0``. It appends one line per
evaluation to ``benchmarks/results/scores.csv``. ``--side sb3`` and ``--side d3rlpy`` need an interpreter that has them.

``python benchmarks/scores.py table`` prints means of the last evaluations with 95 % bootstrap intervals over seeds.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import csv
import fcntl
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # many runs side by side: one thread each

import numpy as np

RESULTS = Path(__file__).parent / "results" / "scores.csv"
FIELDS = ("task", "side", "seed", "step", "score", "seconds", "versions")
EPISODES = 10

@dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        algorithm: its name.
        env: environment that scores come from.
        data: named dataset, `REPLAY`, or ``""`` to learn in the environment.
        steps: number of updates, or of environment steps.
        interval: steps between evaluations.
        fields: of the configuration, the same on all sides.
    """

    algorithm: str
    env: str
    data: str
    steps: int
    interval: int
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def scaled(self) -> bool:
        """Whether actions need scaling to [-1, 1]."""
        return self.env == "Pendulum-v1"


DISCRETE = ("DQN", "DoubleDQN", "NFQ", "DiscreteSAC", "DiscreteBCQ", "DiscreteCQL", "DiscreteBC")
CONTINUOUS = ("DDPG", "TD3", "SAC", "BCQ", "BEAR", "CRR", "CQL", "AWAC", "PLAS", "PLASWithPerturbation", "TD3PlusBC")
CONTINUOUS += ("IQL", "ReBRAC", "CalQL", "BC")
# Defaults that wait for longer runs than these, or that these environments are not made for.
SHORTER: dict[str, dict[str, Any]] = {
    **{name: {"target_update_interval": 1000} for name in ("DQN", "DoubleDQN", "DiscreteSAC", "DiscreteBCQ")},
    "DiscreteCQL": {"target_update_interval": 1000},
    "BEAR": {"warmup_steps": 1000},
    "PLAS": {"warmup_steps": 2000},
    "PLASWithPerturbation": {"warmup_steps": 2000},
}

TASKS: dict[str, Task] = {
    "sac-halfcheetah": Task("SAC", "HalfCheetah-v5", "", 50_000, 10_000),
    "td3-hopper": Task("TD3", "Hopper-v5", "", 50_000, 10_000),
    "iql-halfcheetah-replay": Task("IQL", "HalfCheetah-v5", "REPLAY", 20_000, 5_000, {"batch_size": 256}),
    **{
        f"{name.lower()}-cartpole-replay": Task(
            name, "CartPole-v1", "cartpole-replay", 5_000, 1_000, SHORTER.get(name, {})
        )
        for name in DISCRETE
    },
    **{
        f"{name.lower()}-pendulum-replay": Task(
            name, "Pendulum-v1", "pendulum-replay", 5_000, 1_000, SHORTER.get(name, {})
        )
        for name in CONTINUOUS
    },
    **{
        f"{name.lower()}-halfcheetah-replay-10k": Task(name, "HalfCheetah-v5", "REPLAY", 10_000, 5_000)
        for name in ("TD3PlusBC", "IQL", "CQL", "AWAC", "BCQ")
    },
}
RANDOM_STEPS = 10_000  # uniformly random actions, before the first update
WIDTHS = [256, 256]
RATE = 3e-4
NOISE = 0.1  # TD3's exploration
REPLAY = Path(__file__).parent / "results" / "halfcheetah-replay.h5"  # made by `make-replay`, not committed


def mean_return(env: Any, act: Callable[[Any], Any]) -> float:
    """Mean undiscounted return of `EPISODES` greedy episodes, which begin with the seeds 1000, 1001 and so on."""
    returns = []
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=1000 + episode)
        total, done = 0.0, False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    return statistics.fmean(returns)


class Report:
    """Evaluates when it is due and appends the scores to the results."""

    def __init__(self, options: argparse.Namespace, versions: str) -> None:
        self.options, self.versions = options, versions
        task = TASKS[options.task]
        self.env_name, self.steps, self.interval = task.env, task.steps, task.interval
        self.begin, self.spent = time.perf_counter(), 0.0

    def due(self, step: int) -> bool:
        """Whether an evaluation belongs after ``step``."""
        return step % self.interval == 0 and step > 0

    def __call__(self, step: int, act: Callable[[Any], Any]) -> None:
        """Evaluate after ``step``; the time it takes is not counted."""
        import gymnasium

        seconds = time.perf_counter() - self.begin - self.spent
        env = gymnasium.make(self.env_name)
        score = mean_return(env, act)
        env.close()
        self.spent = time.perf_counter() - self.begin - seconds
        row = (self.options.task, self.options.side, self.options.seed, step, f"{score:.4f}", f"{seconds:.1f}")
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a", newline="") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if file.tell() == 0:
                csv.writer(file).writerow(FIELDS)
            csv.writer(file).writerow((*row, self.versions))
        print(*row, flush=True)


def run_birl(options: argparse.Namespace) -> None:
    """One run of birl, eager or compiled."""
    import gymnasium
    import torch

    import birl
    from birl import algos

    task = TASKS[options.task]
    name, steps = task.algorithm, task.steps
    report = Report(options, f"birl {birl.__version__} torch {torch.__version__}")
    birl.seed(options.seed)
    fields: dict[str, Any] = {"compile_graph": options.side == "birl-compiled", **task.fields}
    if not task.data:
        widths = birl.models.VectorEncoderFactory(WIDTHS)
        fields |= {"actor_encoder_factory": widths, "critic_encoder_factory": widths, "batch_size": 256}
        fields |= {"actor_learning_rate": RATE, "critic_learning_rate": RATE}
    if task.scaled:
        fields["action_scaler"] = birl.preprocessing.MinMaxActionScaler()
    algorithm = getattr(algos, f"{name}Config")(**fields).create()

    def evaluate(_: Any, __: int, step: int) -> None:
        if report.due(step):
            actor = algorithm.actor(greedy=True)
            report(step, lambda x: actor(x[None], np.array([False]), np.zeros(1))[0])

    common: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}
    if not task.data:
        explorer = birl.run.NormalNoise(std=NOISE) if name == "TD3" else None
        algorithm.fit_online(
            gymnasium.make(task.env),
            explorer=explorer,
            n_steps=steps,
            n_steps_per_epoch=steps,
            random_steps=RANDOM_STEPS,
            update_start_step=RANDOM_STEPS,
            callback=evaluate,
            seed=options.seed,
            **common,
        )
    else:
        dataset = load_birl() if task.data == "REPLAY" else birl.datasets.get_dataset(task.data)[0]
        algorithm.fit(dataset, n_steps=steps, n_steps_per_epoch=steps, callback=evaluate, **common)


def load_birl() -> Any:
    """The HalfCheetah replay as birl reads it."""
    import birl

    with REPLAY.open("rb") as file:
        return birl.dataset.ReplayBuffer.load(file, birl.dataset.InfiniteBuffer())


def run_sb3(options: argparse.Namespace) -> None:
    """One run of Stable-Baselines3."""
    import gymnasium
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    task = TASKS[options.task]
    name, env_name, steps = task.algorithm, task.env, task.steps
    report = Report(options, f"stable-baselines3 {sb3.__version__} torch {torch.__version__}")

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if report.due(self.num_timesteps):
                report(self.num_timesteps, lambda x: self.model.predict(x, deterministic=True)[0])
            return True

    env = gymnasium.make(env_name)
    fields: dict[str, Any] = {}
    if name == "TD3":
        size = env.action_space.shape[0]
        fields["action_noise"] = NormalActionNoise(np.zeros(size), NOISE * np.ones(size))
    model = getattr(sb3, name)(
        "MlpPolicy",
        env,
        learning_rate=RATE,
        batch_size=256,
        learning_starts=RANDOM_STEPS,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": WIDTHS},
        seed=options.seed,
        device="cpu",
        **fields,
    )
    model.learn(steps, callback=Evaluate())


def run_d3rlpy(options: argparse.Namespace) -> None:
    """One run of d3rlpy."""
    import d3rlpy
    import torch

    torch.set_num_threads(1)
    task = TASKS[options.task]
    steps = task.steps
    report = Report(options, f"d3rlpy {d3rlpy.__version__} torch {torch.__version__}")
    d3rlpy.seed(options.seed)
    shipped = Path(__file__).parent.parent / "birl" / "data" / f"{task.data}.h5"
    path = REPLAY if task.data == "REPLAY" else shipped
    with path.open("rb") as file:
        dataset = d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.InfiniteBuffer())
    scaler = {"action_scaler": d3rlpy.preprocessing.MinMaxActionScaler()} if task.scaled else {}
    algorithm = getattr(d3rlpy.algos, f"{task.algorithm}Config")(**task.fields, **scaler).create(device="cpu:0")

    def evaluate(_: Any, __: int, step: int) -> None:
        if report.due(step):
            report(step, lambda x: algorithm.predict(x[None])[0])

    algorithm.fit(
        dataset,
        n_steps=steps,
        n_steps_per_epoch=steps,
        callback=evaluate,
        show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )


def make_replay(options: argparse.Namespace) -> None:
    """The replay of a SAC run on HalfCheetah: every step of it, with its policies from random to middling."""
    import gymnasium

    import birl
    from birl.algos import SACConfig

    birl.seed(options.seed)
    env = gymnasium.make("HalfCheetah-v5")
    buffer = birl.dataset.create_infinite_replay_buffer(env=env)
    SACConfig(compile_graph=options.compile).create().fit_online(
        env,
        buffer,
        n_steps=options.steps,
        n_steps_per_epoch=options.steps,
        random_steps=RANDOM_STEPS,
        update_start_step=RANDOM_STEPS,
        seed=options.seed,
        show_progress=False,
        logger_adapter=birl.logging.NoopAdapterFactory(),
    )
    REPLAY.parent.mkdir(exist_ok=True)
    with REPLAY.open("wb") as file:
        buffer.dump(file)
    print(f"{buffer.transition_count} transitions in {REPLAY}")


def table() -> None:
    """Print the last scores: mean over seeds with a 95 % bootstrap interval, and the seconds a run took."""
    last: dict[tuple[str, str], dict[str, tuple[int, float, float]]] = defaultdict(dict)
    with RESULTS.open(newline="") as file:
        for row in csv.DictReader(file):
            seeds, step = last[row["task"], row["side"]], int(row["step"])
            if step >= seeds.get(row["seed"], (0,))[0]:
                seeds[row["seed"]] = step, float(row["score"]), float(row["seconds"])
    generator = np.random.default_rng(0)
    print("| task | side | steps | seeds | mean score | 95 % interval | each | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for (task, side), seeds in sorted(last.items()):
        done = [entry for entry in seeds.values() if entry[0] == TASKS[task].steps]
        if not done:
            continue
        scores = np.array([score for _, score, _ in done])
        means = generator.choice(scores, (10_000, len(scores))).mean(1)
        low, high = np.quantile(means, [0.025, 0.975])
        each = " ".join(f"{score:.0f}" for score in sorted(scores))
        seconds = statistics.median(entry[2] for entry in done)
        print(
            f"| {task} | {side} | {TASKS[task].steps} | {len(done)} | {scores.mean():.1f} | {low:.1f} … {high:.1f} | "
            f"{each} | {seconds:.0f} |"
        )


def main() -> None:
    """Run one of the subcommands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one run of one side")
    run.add_argument("--task", choices=TASKS, required=True)
    run.add_argument("--side", choices=["birl", "birl-compiled", "sb3", "d3rlpy"], required=True)
    run.add_argument("--seed", type=int, required=True)
    replay = commands.add_parser("make-replay", help="collect the HalfCheetah replay with birl's SAC")
    replay.add_argument("--steps", type=int, default=50_000)
    replay.add_argument("--seed", type=int, default=100)
    replay.add_argument("--compile", action="store_true")
    commands.add_parser("table", help="print the scores so far")
    options = parser.parse_args()
    if options.command == "table":
        table()
    elif options.command == "make-replay":
        make_replay(options)
    else:
        {"sb3": run_sb3, "d3rlpy": run_d3rlpy}.get(options.side, run_birl)(options)


if __name__ == "__main__":
    sys.exit(main())
