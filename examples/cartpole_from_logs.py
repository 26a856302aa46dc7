"""Train and export a policy from logged data in less than a minute; ``make demo`` runs this script.

The script trains a policy from ``cartpole-replay`` alone, never in the environment. Then it evaluates the policy in
CartPole-v1, plots the learning curve, exports the policy to ONNX and compares the export with the policy.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import numpy as np

import birl
from birl.dataset import ReplayBuffer
from birl.errors import require
from birl.optimizers import AdamFactory, CosineAnnealingLRFactory

GOAL = 450.0


def main() -> int:
    """Run the demo; the exit status is 0 only if the goal is reached and the exported policy agrees."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("birl_demo"), help="folder for everything that is written")
    parser.add_argument("--n-steps", type=int, default=5000, help="updates")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    birl.seed(options.seed)
    dataset, env = birl.datasets.get_dataset("cartpole-replay")
    returns = [episode.compute_return() for episode in dataset.episodes]
    print(f"1. data      cartpole-replay: {dataset.transition_count} transitions in {len(returns)} episodes,")
    print(f"             mean return {np.mean(returns):.0f} (the experience of an online DQN during training)")

    folder = options.out / "run"
    shutil.rmtree(folder, ignore_errors=True)
    cql = birl.algos.DiscreteCQLConfig(
        alpha=4.0,  # weight of the penalty on actions that are not in the data
        batch_size=64,
        learning_rate=1e-3,
        optim_factory=AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=options.n_steps)),
        target_update_interval=500,
    ).create()
    print(f"2. training  DiscreteCQL, {options.n_steps} updates, from the data alone …", flush=True)
    start = time.perf_counter()
    cql.build_with_dataset(dataset)
    in_environment = birl.metrics.EnvironmentEvaluator(env, n_trials=10, seed=0)
    curve = [(0, in_environment(cql, dataset))]
    n_steps_per_epoch = max(1, options.n_steps // 10)
    for epoch, metrics in cql.fitter(
        dataset,
        n_steps=options.n_steps,
        n_steps_per_epoch=n_steps_per_epoch,
        experiment_name="run",
        with_timestamp=False,
        logger_adapter=birl.logging.FileAdapterFactory(root_dir=options.out),
        evaluators={"environment": in_environment},
        show_progress=False,
    ):
        curve.append((epoch * n_steps_per_epoch, metrics["environment"]))
        print(f"             update {curve[-1][0]:5d}: mean return {curve[-1][1]:5.1f}", flush=True)
    print(f"             {time.perf_counter() - start:.0f} s; run folder {folder}")

    scores = birl.metrics.evaluate(cql, env, n_episodes=50, seed=12345)
    mean = float(np.mean(scores))
    print(f"3. evaluated 50 new episodes of CartPole-v1: mean return {mean:.1f} of 500 (goal: {GOAL:.0f})")

    picture = options.out / "curve.png"
    plot(curve, float(np.mean(returns)), picture)
    print(f"4. plotted   {picture}")

    onnx = options.out / "policy.onnx"
    cql.save_policy(onnx)
    agree = compare(cql, onnx, dataset)
    print(f"5. exported  {onnx}: agrees with the policy on {agree:.2%} of the data's observations")
    ok = mean >= GOAL and agree == 1.0
    print("done" if ok else f"FAILED: the goal is a mean return of {GOAL:.0f} and full agreement")
    return 0 if ok else 1


def plot(curve: list[tuple[int, float]], mean_of_data: float, file: Path) -> None:
    """Plot the mean return after each number of updates, with the data's mean return and the goal."""
    figure, axes = require("matplotlib.pyplot", "plot").subplots(figsize=(7, 4.3), layout="constrained")
    axes.plot(*zip(*curve, strict=True), marker="o", markersize=4, label="DiscreteCQL, mean of 10 episodes")
    axes.axhline(GOAL, color="C2", linestyle="dashed", linewidth=1, label=f"goal: {GOAL:.0f}")
    axes.axhline(mean_of_data, color="C1", linestyle="dotted", linewidth=1, label=f"data's mean: {mean_of_data:.0f}")
    axes.set(xlabel="update", ylabel="mean return (maximum 500)", ylim=(0, 515))
    axes.set_title("CartPole-v1, learned from logged data")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(file, dpi=150)


def compare(algorithm: birl.algos.Algorithm, file: Path, dataset: ReplayBuffer) -> float:
    """Return the share of the first 20 episodes' observations for which both policies choose the same action."""
    session = require("onnxruntime", "onnx").InferenceSession(str(file), providers=["CPUExecutionProvider"])
    observations = np.concatenate([episode.observations for episode in dataset.episodes[:20]])
    (exported,) = session.run(None, {"input_0": observations})
    return float(np.mean(exported == algorithm.predict(observations)))


if __name__ == "__main__":
    sys.exit(main())
