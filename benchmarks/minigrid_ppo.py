"""PPO with its defaults on MiniGrid's image and direction, with birl or Stable-Baselines3.

``python benchmarks/minigrid_ppo.py --side birl --env MiniGrid-DoorKey-5x5-v0 --seed 0`` appends one line per evaluation
to ``benchmarks/results/minigrid.csv``: the share of 20 episodes that reach the goal and their mean return, which falls
with the steps to the goal, with the most probable actions and with sampled ones. Both sides have 4 environments,
rollouts of 256 steps, and their own defaults for everything else. birl reads the dict observations as they are;
Stable-Baselines3 needs Gymnasium's `FlattenObservation`. The script needs `minigrid`, and `stable_baselines3` for that
side. ``python benchmarks/minigrid_ppo.py --table`` prints the last evaluations.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import csv
import fcntl
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np

RESULTS = Path(__file__).parent / "results" / "minigrid.csv"
STEPS = {"MiniGrid-Empty-5x5-v0": 10_240, "MiniGrid-DoorKey-5x5-v0": 102_400}
LANES, ROLLOUT, EPISODES, EVALUATIONS = 4, 256, 20, 10
PARTS = ("image", "direction")
Act = Callable[[Any], int]


def evaluate(env: gymnasium.Env, act: Act) -> tuple[float, float]:
    """Share of `EPISODES` episodes that reach the goal, and their mean return. The first has the seed 10,000."""
    returns = []
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=10_000 + episode)
        done = False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            done = terminated or truncated
        returns.append(float(reward))  # the only one of the episode
    return float(np.mean(np.greater(returns, 0))), float(np.mean(returns))


class Report:
    """Evaluates `EVALUATIONS` times in a run and appends what it finds; the time it takes is not counted."""

    def __init__(self, options: argparse.Namespace, env: gymnasium.Env) -> None:
        self.options, self.env = options, env
        self.interval = STEPS[options.env] // EVALUATIONS
        self.next, self.begin, self.spent = self.interval, time.process_time(), 0.0

    def __call__(self, step: int, greedy: Act, sampled: Act) -> None:
        """Evaluate if it is due."""
        if step < self.next:
            return
        self.next += self.interval
        before = time.process_time()
        found = [f"{value:.3f}" for act in (greedy, sampled) for value in evaluate(self.env, act)]
        row = (self.options.env, self.options.side, self.options.seed, step, *found)
        row = (*row, round(before - self.begin - self.spent))
        self.spent += time.process_time() - before
        with RESULTS.open("a", newline="") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if file.tell() == 0:
                names = ("success", "return", "sampled_success", "sampled_return", "cpu_seconds")
                csv.writer(file).writerow(("env", "side", "seed", "step", *names))
            csv.writer(file).writerow(row)
        print(*row, flush=True)


def run_birl(options: argparse.Namespace) -> None:
    """One run of birl, without a wrapper."""
    import birl

    birl.seed(options.seed)
    algorithm = birl.algos.PPOConfig(observation_keys=PARTS, rollout_length=ROLLOUT).create()
    env = gymnasium.make_vec(options.env, num_envs=LANES, vectorization_mode="sync")
    report = Report(options, gymnasium.make(options.env))

    def actions(greedy: bool) -> Act:
        actor = algorithm.actor(greedy=greedy)

        def act(x: Any) -> int:
            return int(actor({key: np.asarray(x[key])[None] for key in PARTS}, np.array([False]), np.zeros(1))[0])

        return act

    algorithm.fit_online(
        env,
        n_steps=STEPS[options.env],
        n_steps_per_epoch=STEPS[options.env],
        callback=lambda _, __, step: report(step, actions(True), actions(False)),
        seed=options.seed,
        show_progress=False,
        logger_adapter=birl.logging.NoopAdapterFactory(),
    )


def run_sb3(options: argparse.Namespace) -> None:
    """One run of Stable-Baselines3."""
    import torch
    from gymnasium.wrappers import FilterObservation, FlattenObservation
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)

    def flat(env: gymnasium.Env) -> gymnasium.Env:
        return FlattenObservation(FilterObservation(env, PARTS))

    env = make_vec_env(options.env, LANES, seed=options.seed, wrapper_class=flat)
    report = Report(options, flat(gymnasium.make(options.env)))
    model = PPO("MlpPolicy", env, n_steps=ROLLOUT, seed=options.seed, device="cpu")

    def actions(greedy: bool) -> Act:
        return lambda x: int(model.predict(x, deterministic=greedy)[0])

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            report(self.num_timesteps, actions(True), actions(False))

        _on_training_end = _on_rollout_start

    model.learn(STEPS[options.env], callback=Evaluate())


def table() -> None:
    """Print the last evaluation of each run."""
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    line = "{success} of episodes, return {return}; sampled {sampled_success}, {sampled_return}; {cpu_seconds} s of CPU"
    with RESULTS.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["env"], row["side"]][row["seed"]] = line.format(**row)
    for (env, side), seeds in sorted(found.items()):
        print(f"{env} {side}:", *(f"seed {seed}: {last}" for seed, last in sorted(seeds.items())), sep="\n  ")


def main() -> None:
    """One run, or the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=["birl", "sb3"])
    parser.add_argument("--env", choices=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        table()
        return
    if options.side is None or options.env is None:
        parser.error("--side and --env say what to run")
    import minigrid  # noqa: F401  it registers its environments

    {"birl": run_birl, "sb3": run_sb3}[options.side](options)


if __name__ == "__main__":
    main()
