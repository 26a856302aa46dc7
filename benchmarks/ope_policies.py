"""Nine policies from poor to good, evaluated from logs of a mixed behaviour, and what they really earn.

``python benchmarks/ope_policies.py cartpole`` (or ``pendulum``) trains algorithms on a data set of birl and lets a
mixture of four of them act in the environment with known propensities. A candidate acts as that mixture did in three
of four steps, and as its algorithm in the fourth. Their evaluations are compared with true returns: fitted Q
evaluation by networks (FQE), the estimator that weighs (doubly robust for choices, weighted per decision for
quantities), and the order of `birl.ope.rank`. It appends to ``benchmarks/results/ope.csv`` and writes ``ope.md``.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import gymnasium
import numpy as np

import birl
from birl.dataset import Episode, create_infinite_replay_buffer
from birl.models import VectorEncoderFactory
from examples.fqe_ranking import copy_of, spearman

GAMMA, HORIZON = 0.9, 40
"""The question: weights of later steps are below 0.015."""
RESULTS = Path(__file__).parent / "results"
FIELDS = (
    *("environment", "seed", "policy", "true", "true_gain", "true_gain_error"),
    *("fqe", "weighed", "lower", "upper", "ess", "verdict", "rank"),
)
HEAD = """
| policy | true | FQE | weighed | true gain | interval of the gain | ESS | verdict | rank |
|---|---|---|---|---|---|---|---|---|
"""
SMALL = VectorEncoderFactory([64, 64])
QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}


def cartpole() -> tuple[str, dict[str, Any]]:
    """Snapshots of cloning and of CQL on replayed data, and one that was never trained; each explores a little."""
    dataset, _ = birl.datasets.get_dataset("cartpole-replay")
    shared: dict[str, Any] = {"encoder_factory": SMALL, "batch_size": 64, "learning_rate": 1e-3}
    learning = birl.algos.DiscreteCQLConfig(target_update_interval=100, gamma=0.99, **shared)
    makers = {"BC": (birl.algos.DiscreteBCConfig(**shared), (5, 20, 300)), "CQL": (learning, (5, 20, 50, 100, 500))}
    untrained = learning.create()
    untrained.build_with_dataset(dataset)
    found = {"untrained": untrained, **snapshots(makers, dataset)}
    return "CartPole-v1", {name: birl.ope.EpsilonGreedy(algo, 0.15) for name, algo in found.items()}


def pendulum() -> tuple[str, dict[str, Any]]:
    """Snapshots of cloning and of TD3+BC on replayed data, and one that was never trained; each with noise."""
    dataset, _ = birl.datasets.get_dataset("pendulum-replay")
    shared: dict[str, Any] = {"batch_size": 128, "actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3}
    encoders: dict[str, Any] = {"actor_encoder_factory": SMALL, "critic_encoder_factory": SMALL}
    learning = birl.algos.TD3PlusBCConfig(**shared, **encoders)
    cloning = birl.algos.BCConfig(batch_size=128, learning_rate=1e-3, encoder_factory=SMALL)
    makers = {"BC": (cloning, (20, 300)), "TD3+BC": (learning, (50, 100, 200, 400, 800, 1600))}
    untrained = learning.create()
    untrained.build_with_dataset(dataset)
    found = {"untrained": untrained, **snapshots(makers, dataset)}
    return "Pendulum-v1", {name: birl.ope.Gaussian(algo, 0.3) for name, algo in found.items()}


def snapshots(makers: Any, dataset: Any) -> dict[str, Any]:
    """Copies of algorithms after some numbers of updates."""
    found = {}
    for name, (config, counts) in makers.items():
        algo = config.create()
        algo.build_with_dataset(dataset)
        for count in counts:
            while algo.grad_step < count:
                algo.update(algo.sample_minibatch(dataset))
            found[f"{name} {count}"] = copy_of(algo)
    return found


def play(env_id: str, policy: Any, count: int, seed: int, given: bool = True) -> list[Episode]:
    """Episodes of up to `HORIZON` steps, with the log-propensities of their actions, in environments side by side."""
    envs = [gymnasium.make(env_id, max_episode_steps=HORIZON) for _ in range(count)]
    x = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)]).astype(np.float32)
    alive, rows = np.ones(count, bool), [[] for _ in range(count)]  # type: ignore[var-annotated]
    ended, final = np.zeros(count, bool), x.copy()
    for _ in range(HORIZON):
        here = np.flatnonzero(alive)
        action = policy.predict(x[here])
        log_probability = policy.action_log_probability(x[here], action) if given else np.zeros(len(here))
        for i, chosen, log in zip(here, action, log_probability, strict=True):
            after, reward, terminated, truncated, _ = envs[i].step(chosen)
            rows[i].append((x[i].copy(), np.atleast_1d(chosen), [float(reward)], log))
            x[i] = final[i] = after
            alive[i], ended[i] = not (terminated or truncated), terminated
        if not alive.any():
            break
    columns = [[np.stack(column) for column in zip(*each, strict=True)] for each in rows]
    return [
        Episode(
            o,
            a,
            np.asarray(r, np.float32),
            bool(ended[i]),
            truncated=not ended[i],
            final_observation=final[i],
            extra={"log_propensity": log},
        )
        for i, (o, a, r, log) in enumerate(columns)
    ]


def discounted(episodes: list[Episode]) -> np.ndarray:
    """Returns of episodes."""
    return np.array([(GAMMA ** np.arange(len(e.rewards)) * e.rewards[:, 0]).sum() for e in episodes])


def true_returns(env_id: str, policy: Any) -> np.ndarray:
    """Returns of 20,000 episodes from the same first states for each policy: gains are of pairs."""
    parts = [discounted(play(env_id, policy, 2000, 1_000_000 + 2000 * part, given=False)) for part in range(10)]
    return np.concatenate(parts)


def fitted(policy: Any, dataset: Any, steps: int) -> float:
    """The estimate of fitted Q evaluation, of the policy as it draws."""
    discrete = policy.spec.actions.discrete
    kind, config = (
        (birl.ope.DiscreteFQE, birl.ope.DiscreteFQEConfig) if discrete else (birl.ope.FQE, birl.ope.FQEConfig)
    )
    fqe = kind(policy, config(gamma=GAMMA, batch_size=128, encoder_factory=SMALL, learning_rate=2e-3))
    fqe.fit(dataset, n_steps=steps, n_steps_per_epoch=steps, **QUIET)
    return float(np.mean(fqe.policy_value(np.stack([episode.observations[0] for episode in dataset.episodes]))))


def measure(name: str, seed: int, episodes: int, steps: int) -> list[dict[str, Any]]:
    """All policies of an environment."""
    birl.seed(seed)
    env_id, policies = {"cartpole": cartpole, "pendulum": pendulum}[name]()
    alone = {key: float(discounted(play(env_id, policy, 100, 20_000)).mean()) for key, policy in policies.items()}
    order = sorted(alone, key=alone.__getitem__)
    behaviour = birl.ope.Mixture([policies[order[k]] for k in (1, 3, 5, 7)])
    policies = {key: birl.ope.Mixture([behaviour, policy], [0.75, 0.25]) for key, policy in policies.items()}
    returns = {key: true_returns(env_id, policy) for key, policy in {"behaviour": behaviour, **policies}.items()}
    truth = {key: float(each.mean()) for key, each in returns.items()}
    gains = {key: returns[key] - returns["behaviour"] for key in policies}
    logged = play(env_id, behaviour, episodes, 50_000 + 1000 * seed)
    spec = behaviour.spec.actions
    space = birl.ActionSpace.DISCRETE if spec.discrete else birl.ActionSpace.CONTINUOUS
    data = create_infinite_replay_buffer(episodes=logged, action_space=space, action_size=spec.size)
    ranking = birl.ope.rank(policies, data, gamma=GAMMA, behaviour=behaviour, keep=len(policies))
    verdicts = birl.ope.verdicts(ranking.evaluations)
    weigher = "doubly_robust" if spec.discrete else "weighted_per_decision"
    rows = []
    for place, (key, found) in enumerate(ranking.evaluations.items(), 1):
        row = found.rows.get(weigher)
        interval = None if row is None else row.gain_interval
        rows.append(
            {
                "environment": env_id,
                "seed": seed,
                "policy": key,
                "true": truth[key],
                "true_gain": float(gains[key].mean()),
                "true_gain_error": float(gains[key].std() / len(gains[key]) ** 0.5),
                "fqe": fitted(policies[key], data, steps),
                "weighed": np.nan if row is None else row.value,
                "lower": np.nan if interval is None else float(interval.lower),
                "upper": np.nan if interval is None else float(interval.upper),
                "ess": found.facts.get("ess"),
                "verdict": verdicts[key].verdict,
                "rank": place,
            }
        )
    return rows


def scores(rows: list[dict[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """Of each way: Spearman's correlation, regret@1 as a share of best - worst, mean absolute error."""
    truth = np.array([float(row["true"]) for row in rows])
    span, found = truth.max() - truth.min(), {}
    for name in ("fqe", "weighed", "rank"):
        value = np.array([float(row[name]) for row in rows]) * (-1 if name == "rank" else 1)
        error = np.nan if name == "rank" else float(np.abs(value - truth).mean())
        found[name] = (spearman(value, truth), float((truth.max() - truth[value.argmax()]) / span), error)
    return found


def table() -> str:
    """All runs of the file, as Markdown."""
    with open(RESULTS / "ope.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    runs = sorted({(row["environment"], row["seed"]) for row in rows})
    return "\n".join(part(run, [row for row in rows if (row["environment"], row["seed"]) == run]) for run in runs)


def part(run: tuple[str, str], rows: list[dict[str, Any]]) -> str:
    """The table of one run, worst policy first, and its scores."""
    lines = []
    for row in sorted(rows, key=lambda row: float(row["true"])):
        numbers = " | ".join(f"{float(row[key]):.2f}" for key in ("true", "fqe", "weighed", "true_gain"))
        ends = f"{float(row['lower']):.2f} to {float(row['upper']):.2f} | {float(row['ess']):.0f}"
        lines.append(f"| {row['policy']} | {numbers} | {ends} | {row['verdict']} | {row['rank']} |")
    names = {"fqe": "FQE", "weighed": "weighed", "rank": "`birl ope rank`"}
    lines += ["", "| | Spearman | regret@1 | absolute error |", "|---|---|---|---|"]
    for name, (correlation, regret, error) in scores(rows).items():
        given = "" if np.isnan(error) else f"{error:.2f}"
        lines.append(f"| {names[name]} | {correlation:.2f} | {regret:.2f} | {given} |")
    gains = {word: [float(row["true_gain"]) for row in rows if row["verdict"] == word] for word in birl.ope.STATUS}
    wrong = sum(gain <= 0 for gain in gains["ship"]), sum(gain > 0 for gain in gains["do_not_ship"])
    said = ", ".join(f"{len(each)} `{word}`" for word, each in gains.items())
    held = sum(float(row["lower"]) <= float(row["true_gain"]) <= float(row["upper"]) for row in rows)
    error = max(float(row["true_gain_error"]) for row in rows)
    lines += [
        "",
        f"Verdicts: {said}; wrong: {wrong[0]} `ship`, {wrong[1]} `do_not_ship`. "
        f"{held} of {len(rows)} intervals hold the true gain, whose standard error is {error:.3f} at most.",
        "",
    ]
    return f"**{run[0]}**, seed {run[1]}\n{HEAD}" + "\n".join(lines)


def main() -> None:
    """Measure one environment, or write the table only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", choices=["cartpole", "pendulum", "table"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=800, help="logged episodes")
    parser.add_argument("--steps", type=int, default=800, help="updates of each FQE")
    options = parser.parse_args()
    if options.environment != "table":
        start = time.process_time()
        rows = measure(options.environment, options.seed, options.episodes, options.steps)
        sys.stdout.write(f"{time.process_time() - start:.0f} s of CPU\n")
        new = not (RESULTS / "ope.csv").exists()
        with open(RESULTS / "ope.csv", "a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerows(rows)
    (RESULTS / "ope.md").write_text(table(), encoding="utf-8")
    sys.stdout.write(table())


if __name__ == "__main__":
    main()
