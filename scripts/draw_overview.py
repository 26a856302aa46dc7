"""Draw ``docs/overview.svg``, the figure at the top of the README, from a run of some minutes.

Left: the returns of `cartpole-replay`. Middle: five seeds of DiscreteCQL, learning from these logs alone. Right: the
return that fitted Q evaluation estimates from the logs, next to the logged one and the one measured afterwards.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import birl
from birl.errors import require
from birl.logging import NoopAdapterFactory
from birl.models import AdamFactory, C51QFunctionFactory, CosineAnnealingLRFactory, VectorEncoderFactory

SEEDS, STEPS, EPOCH, UPDATES, GAMMA, EPISODES = range(5), 5000, 500, 5000, 0.99, 100
BLUE, GREY, GREEN, RED, INK, FAINT = "#1f77b4", "#9aa5b1", "#2a9d5c", "#c0392b", "#243b53", "#52606d"
STYLE = {"svg.hashsalt": "birl", "font.size": 9.5, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT}
STYLE |= {"xtick.color": FAINT, "ytick.color": INK}


def discounted(rewards: np.ndarray) -> float:
    """Return the discounted return of one episode."""
    return float(np.sum(np.ravel(rewards) * GAMMA ** np.arange(len(rewards))))


def played(policy: Any, env: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the returns and discounted returns of episodes in the environment, where each reward is 1."""
    returns = np.array(birl.metrics.evaluate(policy, env, n_episodes=EPISODES, seed=1000))
    return returns, (1 - GAMMA**returns) / (1 - GAMMA)


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean and a 95 % bootstrap interval."""
    generator = np.random.default_rng(0)
    means = generator.choice(values, (10_000, len(values))).mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def learn(dataset: Any, env: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return steps, returns ``[seed, step]`` of the learning curves, and the policy of the first seed."""
    config = birl.algos.DiscreteCQLConfig(
        alpha=4.0,
        batch_size=64,
        learning_rate=1e-3,
        optim_factory=AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=STEPS)),
        target_update_interval=500,
    )
    with tempfile.TemporaryDirectory() as folder:
        policies = birl.fit_many(
            config,
            dataset,
            STEPS,
            seeds=SEEDS,
            n_steps_per_epoch=EPOCH,
            evaluators=lambda seed: {
                "environment": birl.metrics.EnvironmentEvaluator(birl.envs.make_env("CartPole-v1"), 10, seed=seed)
            },
            experiment_name="run",
            with_timestamp=False,
            logger_adapter=birl.logging.FileAdapterFactory(root_dir=folder),
            show_progress=False,
        )
        files = [Path(folder) / "run" / f"seed_{seed}" / "environment.csv" for seed in SEEDS]
        rows = np.stack([np.loadtxt(file, delimiter=",") for file in files])
    return rows[0, :, 1], rows[:, :, 2], policies[0]


def estimates(policy: Any, dataset: Any) -> np.ndarray:
    """Estimate the value of the policy at the first observations of the logs, with three seeds of FQE."""
    starts = np.stack([episode.observations[0] for episode in dataset.episodes])
    found = []
    for seed in SEEDS[:3]:
        birl.seed(seed)
        config = birl.ope.DiscreteFQEConfig(
            gamma=GAMMA,
            batch_size=256,
            learning_rate=3e-3,
            optim_factory=AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=UPDATES)),
            encoder_factory=VectorEncoderFactory([64, 64]),
            q_func_factory=C51QFunctionFactory(n_atoms=51, v_min=0.0, v_max=1 / (1 - GAMMA)),  # the range of returns
            target_update_interval=10,
        )
        fqe = birl.ope.DiscreteFQE(algo=policy, config=config)
        fqe.fit(dataset, UPDATES, show_progress=False, logger_adapter=NoopAdapterFactory())
        found.append(float(fqe.predict_value(starts, policy.predict(starts)).mean()))
    return np.array(found)


def draw(out: Path, logged: Any, steps: Any, curves: Any, values: dict[str, Any], returns: Any) -> None:
    """Draw three panels from left to right."""
    pyplot = require("matplotlib.pyplot", "plot")
    pyplot.rcParams.update(STYLE)
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(12, 3.9), width_ratios=(1, 1.1, 1.05))
    titles = {left: "1  logs in", middle: "2  learn from them alone", right: "3  decide before deploying"}
    for axes, title in titles.items():
        axes.set_title(title, loc="left", fontweight="bold", fontsize=13.5, pad=22)
        axes.spines[["top", "right"]].set_visible(False)
    words = {"fontsize": 9, "color": FAINT}

    def subtitle(axes: Any, text: str) -> None:
        axes.text(0, 1.035, text, transform=axes.transAxes, **words)

    subtitle(left, f"CartPole: {int(logged.sum()):,} steps, {len(logged)} episodes")
    left.hist(logged, bins=np.arange(0, 501, 25), color=GREY)
    left.axvline(logged.mean(), color=INK, linewidth=1.5)
    left.text(logged.mean() + 12, left.get_ylim()[1] * 0.93, f"mean {logged.mean():.0f}", va="top")
    left.set(xlabel="return of a logged episode", ylabel="episodes", xlim=(0, 500))

    subtitle(middle, f"DiscreteCQL, {len(curves)} seeds in one process")
    middle.fill_between(steps, curves.min(0), curves.max(0), color=BLUE, alpha=0.2, linewidth=0)
    middle.plot(steps, curves.mean(0), color=BLUE, linewidth=2.2, marker="o", markersize=4)
    middle.axhline(logged.mean(), color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    middle.text(steps[-1], logged.mean() - 12, "logged behaviour", ha="right", va="top", color=INK)
    middle.set(xlabel="updates", ylabel="return in the environment", ylim=(0, 520), xlim=(0, steps[-1] * 1.03))

    subtitle(right, "off-policy evaluation (FQE), before anything runs")
    for height, name, color in ((3, "logs", GREY), (2, "estimate", BLUE), (0, "environment", GREEN)):
        mean, low, high = interval(values[name])
        if name == "estimate":
            low, high = values[name].min(), values[name].max()
        right.barh(height, mean, color=color, height=0.6)
        right.plot([low, high], [height, height], color=INK, linewidth=1.6, solid_capstyle="butt")
        right.text(max(mean, high) + 2, height, f"{mean:.0f}", va="center", fontweight="bold", fontsize=11)
    right.set_yticks([3, 2, 0], ["logged\nbehaviour", "new policy,\nfrom the logs", "in the\nenvironment"])
    right.set(xlim=(0, 115), ylim=(-0.5, 3.5), xlabel="discounted return (at most 99)")
    better = values["estimate"].min() > interval(values["logs"])[2]
    badge = {"boxstyle": "round,pad=0.35", "facecolor": GREEN if better else RED, "edgecolor": "none"}
    style = {"ha": "left", "va": "center", "color": "white", "fontweight": "bold", "bbox": badge}
    right.text(3, 1, "higher: ship it" if better else "not higher: keep the old one", **style)
    right.text(3, 0, f"return {returns.mean():.0f} of 500", va="center", color="white", fontweight="bold")
    figure.subplots_adjust(left=0.05, right=0.985, top=0.8, bottom=0.14, wspace=0.34)
    figure.savefig(out, metadata={"Date": None, "Creator": None})


def main() -> None:
    """Run and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parent.parent / "docs" / "overview.svg"
    parser.add_argument("--out", type=Path, default=default)
    out = parser.parse_args().out
    birl.seed(0)
    dataset, env = birl.datasets.get_dataset("cartpole-replay")
    logged = np.array([episode.compute_return() for episode in dataset.episodes])
    values = np.array([discounted(episode.rewards) for episode in dataset.episodes])
    steps, curves, policy = learn(dataset, env)
    estimated = estimates(policy, dataset)
    returns, truth = played(policy, env)
    print(f"logs {logged.mean():.1f} ({len(logged)} episodes), environment {returns.mean():.1f}, curves", curves[:, -1])
    print("behaviour", interval(values), "estimated", estimated, "measured", interval(truth))
    draw(out, logged, steps, curves, {"logs": values, "estimate": estimated, "environment": truth}, returns)


if __name__ == "__main__":
    main()
