"""Rank policies from logged data alone, by fitted Q evaluation.

The script trains policies of different quality on ``cartpole-replay``, including snapshots during training.
`birl.ope.DiscreteFQE` evaluates each on the same data; its estimate is the mean value of the initial states. Then each
policy acts in CartPole-v1, and the script compares the estimates with the true discounted returns, which they estimate,
and with the undiscounted returns, by which one would choose a policy.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import birl
from birl.models import C51QFunctionFactory, VectorEncoderFactory
from birl.optimizers import AdamFactory, CosineAnnealingLRFactory

GAMMA = 0.99
ENCODER = VectorEncoderFactory(hidden_units=[64, 64])


@dataclass
class Evaluated:
    """A policy with its estimate and its true mean returns."""

    name: str
    estimate: float
    discounted: float
    undiscounted: float


def candidates(dataset: Any, steps: int) -> list[tuple[str, Any]]:
    """Return policies of different quality: random ones, and snapshots of three algorithms."""
    random = birl.algos.DiscreteRandomPolicyConfig().create()
    random.build_with_dataset(dataset)
    found: list[tuple[str, Any]] = [("random", random)]
    common: dict[str, Any] = {"batch_size": 64, "encoder_factory": ENCODER}
    learning = {"learning_rate": 1e-3, "gamma": GAMMA, "target_update_interval": 100, **common}
    makers: dict[str, tuple[Any, tuple[float, ...]]] = {
        "DiscreteBC": (birl.algos.DiscreteBCConfig(learning_rate=1e-3, **common), (0.02, 1.0)),
        "DQN": (birl.algos.DQNConfig(**learning), (0.05, 1.0)),
        "DiscreteCQL": (birl.algos.DiscreteCQLConfig(alpha=1.0, **learning), (0.02, 0.05, 0.1, 0.3)),
    }
    for name, (config, shares) in makers.items():
        algorithm = config.create()
        algorithm.build_with_dataset(dataset)
        for share in shares:
            while algorithm.grad_step < int(share * steps):
                algorithm.update(algorithm.sample_minibatch(dataset))
            found.append((f"{name} {algorithm.grad_step}", copy_of(algorithm)))
    return found


def copy_of(algorithm: Any) -> Any:
    """Return a snapshot, through a model file in memory."""
    file = io.BytesIO()
    algorithm.save(file)
    file.seek(0)
    return birl.load_learnable(file)


def estimate(policy: Any, dataset: Any, steps: int) -> float:
    """Return the discounted return that fitted Q evaluation estimates for the policy."""
    fqe = birl.ope.DiscreteFQE(
        algo=policy,
        config=birl.ope.DiscreteFQEConfig(
            gamma=GAMMA,
            batch_size=256,
            learning_rate=3e-3,
            optim_factory=AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=steps)),
            encoder_factory=ENCODER,
            # Returns are in [0, 100]. With these atoms, all estimates are too, so they cannot diverge for policies
            # whose actions are rare in the data.
            q_func_factory=C51QFunctionFactory(n_atoms=51, v_min=0.0, v_max=1 / (1 - GAMMA)),
            target_update_interval=10,
        ),
    )
    initial = birl.metrics.InitialStateValueEstimationEvaluator()
    options: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}
    epochs = fqe.fit(dataset, n_steps=steps, n_steps_per_epoch=steps, evaluators={"initial": initial}, **options)
    return epochs[-1][1]["initial"]


def true_returns(policy: Any, env: Any, n_episodes: int, seed: int) -> tuple[float, float]:
    """Return mean discounted and undiscounted returns; rewards are 1, so an episode's length gives both."""
    lengths = np.array(birl.metrics.evaluate(policy, env, n_episodes, seed=seed))
    return float(np.mean((1 - GAMMA**lengths) / (1 - GAMMA))), float(np.mean(lengths))


def ranks(values: Any) -> Any:
    """Return ranks from 0; equal values share their mean rank."""
    values = np.asarray(values)
    return ((values[:, None] > values).sum(1) + (values[:, None] >= values).sum(1) - 1) / 2


def pearson(first: Any, second: Any) -> float:
    """Return the correlation of two lists."""
    return float(np.corrcoef(first, second)[0, 1])


def spearman(first: Any, second: Any) -> float:
    """Return the correlation of the ranks."""
    return pearson(ranks(first), ranks(second))


def evaluate_all(
    steps: int, fqe_steps: int, n_episodes: int, seed: int, choose: Callable[[str], bool] = lambda name: True
) -> list[Evaluated]:
    """Train the policies, estimate their returns, then run them."""
    birl.seed(seed)
    dataset, env = birl.datasets.get_dataset("cartpole-replay")
    found: list[Evaluated] = []
    for name, policy in candidates(dataset, steps):
        if choose(name):
            value = estimate(policy, dataset, fqe_steps)
            found.append(Evaluated(name, value, *true_returns(policy, env, n_episodes, seed=12345)))
            print(f"{name:20s} {value:8.1f} {found[-1].discounted:8.1f} {found[-1].undiscounted:8.1f}", flush=True)
    return found


def main() -> int:
    """Rank policies; the exit status is 0 only if the ranking is similar to that by true returns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="updates of the longest training")
    parser.add_argument("--fqe-steps", type=int, default=1500, help="updates of each evaluation")
    parser.add_argument("--n-episodes", type=int, default=50, help="episodes for the true returns of each policy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the table to this .csv file")
    options = parser.parse_args()

    start = time.perf_counter()
    print(f"{'policy':20s} {'FQE':>8s} {'true':>8s} {'undisc.':>8s}")
    found = evaluate_all(options.steps, options.fqe_steps, options.n_episodes, options.seed)
    estimates = [each.estimate for each in found]
    discounted, undiscounted = [each.discounted for each in found], [each.undiscounted for each in found]
    print(f"{len(found)} policies, {time.perf_counter() - start:.0f} s")
    for name, truth in (("discounted", discounted), ("undiscounted", undiscounted)):
        print(f"{name:13s} Spearman {spearman(estimates, truth):.3f}, Pearson {pearson(estimates, truth):.3f}")
    if options.out is not None:
        with open(options.out, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["policy", "estimate", "discounted", "undiscounted"])
            writer.writerows([each.name, each.estimate, each.discounted, each.undiscounted] for each in found)
    ok = spearman(estimates, discounted) >= 0.7
    print("done" if ok else "FAILED: the ranks should agree at 0.7 or more")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
