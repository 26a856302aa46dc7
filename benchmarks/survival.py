"""What other libraries' formulas say of a world whose answer is known: each step pays 1, and actions decide how long.

Formulas are written again from what the libraries compute, as described in ``docs/peers-ope.md``, which also has this
script's tables; no library is needed. ``python benchmarks/survival.py``
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from statistics import NormalDist

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from birl.ope import (
    Estimate,
    Trajectories,
    bootstrap_counts,
    hoeffding_interval,
    kernel_log_density,
    log_ratios,
    on_policy,
    per_decision,
    t_interval,
    weighted_importance_sampling,
    weighted_per_decision,
)
from birl.ope.bootstrap import bootstrap_mean
from birl.ope.linear_models import StepFeatures, weighted_fitted_q

LOGGED, TARGET, END, HORIZON = np.array([0.5, 0.5]), np.array([0.2, 0.8]), np.array([0.5, 0.1]), 12


def truth() -> float:
    """Mean length of the policy's episodes, cut at the horizon."""
    return float(sum((1 - TARGET @ END) ** t for t in range(HORIZON)))


def survival(n: int, seed: int) -> tuple[np.ndarray, Trajectories]:
    """Logged actions ``[n, T]`` and episodes."""
    rng = np.random.default_rng(seed)
    action = (rng.random((n, HORIZON)) < LOGGED[1]).astype(int)
    goes_on = rng.random((n, HORIZON)) > END[action]
    mask = np.concatenate([np.ones((n, 1), bool), np.cumprod(goes_on, 1)[:, :-1].astype(bool)], 1)
    ratio = log_ratios(np.log(TARGET)[action], np.log(LOGGED)[action], mask)
    return action, Trajectories(mask * 1.0, mask, 1.0, ratio)


def divided_by_survivors(of: Trajectories) -> float:
    """``sum_t sum_i w_t r_t / sum_{i that reached t} w_t``: the length of episodes stays that of the logs."""
    w, alive = of.weight, of.mask
    with np.errstate(invalid="ignore"):
        return float(np.nansum((w * of.reward).sum(0) / (w * alive).sum(0)))


def by_episodes_of_each_length(of: Trajectories) -> float:
    """The weight of a step over the mean weight of episodes that reached it, times the reward; added up per episode."""
    w, alive = of.weight * of.mask, of.mask
    return float((w / (w.sum(0) / alive.sum(0)) * of.reward).sum(1).mean())


def of_a_new_action(of: Trajectories, seed: int) -> float:
    """A step's ratio of a freshly drawn action instead of the logged one, without product and discount."""
    drawn = (np.random.default_rng(seed).random(of.mask.shape) < TARGET[1]).astype(int)
    return float((TARGET[drawn] / LOGGED[drawn] * of.reward).sum(1).mean())


def zero_after_the_end(of: Trajectories) -> tuple[float, float]:
    """Weights that are 0 after an episode's end, over those who have one: self-normalised, and not."""
    returns, last = of.reward.sum(1), np.where(of.mask, of.weight, 0.0)[:, -1]
    total = float((last * returns).sum())
    return total / float(last.sum()), total / int((last > 0).sum())


def survival_table(n: int = 20_000) -> list[tuple[str, float, float, float]]:
    """Name, value, and how far off the truth."""
    _, of = survival(n, 0)
    weighted, plain = zero_after_the_end(of)
    right = truth()
    found = [
        ("truth", right),
        ("the logs earned", float(on_policy(of).value)),
        ("birl per_decision", float(per_decision(of).value)),
        ("birl weighted_per_decision", float(weighted_per_decision(of).value)),
        ("birl weighted_importance_sampling", float(weighted_importance_sampling(of).value)),
        ("weights over survivors (RLlib, old stack: WIS)", by_episodes_of_each_length(of)),
        ("per step over survivors", divided_by_survivors(of)),
        ("ratio of a new action, no product (RLlib, new stack: PDIS)", of_a_new_action(of, 1)),
        ("weights 0 after the end (ReAgent: WIS)", weighted),
        ("the same, not normalised (ReAgent: IS)", plain),
    ]
    return [(name, value, value - right, (value - right) / right) for name, value in found]


def coverage_table(repetitions: int = 400) -> list[tuple[str, float]]:
    """Share of intervals at nominal 95 % that hold the truth: the formulas of others, and birl's."""
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(repetitions, 30))
    own = t_interval(Estimate(terms))
    half = (own.upper - own.lower) / 2 * NormalDist().inv_cdf(0.95) / NormalDist().inv_cdf(0.975)  # about t's quantiles
    one_sided = np.abs(terms.mean(-1)) < half
    model, refitted = [], []
    for seed in range(repetitions // 2):
        fitted, refits = _model(100, seed)
        model.append(bool(t_interval(Estimate(fitted)).holds(truth())))
        refitted.append(bool(refits.interval().holds(truth())))
    return [
        ("one-sided quantile for two sides (SCOPE-RL: t)", float(one_sided.mean())),
        ("birl t_interval", float(own.holds(0.0).mean())),
        ("fitted values of first states resampled (SCOPE-RL: DM)", float(np.mean(model))),
        ("birl refits of fitted Q evaluation", float(np.mean(refitted))),
    ]


def _model(n: int, seed: int) -> tuple[np.ndarray, object]:
    """Fitted values of first states, and refits, of survival logs."""
    action, of = survival(n, 100 + seed)
    length = of.mask.sum(1)
    last = np.zeros(int(length.sum()), bool)
    last[np.cumsum(length) - 1] = True
    step = np.broadcast_to(np.arange(HORIZON), of.mask.shape)[of.mask]
    steps = StepFeatures(np.ones((len(last), 1)), action[of.mask], np.ones(len(last)), step, last, 1.0)
    times = bootstrap_counts(np.arange(n), 40, seed)
    weight = np.repeat(np.concatenate([np.ones((1, n)), times]), length, axis=1)
    first = np.cumsum(length) - length
    values = weighted_fitted_q(steps, np.tile(TARGET, (len(last), 1)), weight)[:, first] @ TARGET
    return values[0], bootstrap_mean(values, times)


def width_table(n: int = 10_000) -> list[tuple[str, float]]:
    """Half-widths: of Hoeffding's interval with its fraction turned over, and of a ratio whose truth is certain."""
    terms = Estimate(np.tile([-1.0, 1.0], n // 2))
    turned = 2 * math.sqrt(math.log(2 / 0.05) / 2 * n)  # (log / 2) * n for log / (2 n)
    own = hoeffding_interval(terms, -1, 1)
    rng = np.random.default_rng(0)
    mask = np.ones((200, 3), bool)
    of = Trajectories(mask * 1.0, mask, 1.0, rng.normal(size=mask.shape))
    before = of.relative_weight[:, -1] * 3.0  # terms that were normalised before
    resampled = [before[rng.integers(0, 200, 200)].mean() for _ in range(500)]
    ratio = t_interval(weighted_importance_sampling(of))
    plane = np.stack(np.meshgrid(*[np.linspace(-4, 4, 161)] * 2), -1)
    cell = 0.05**2
    naive = np.exp(-0.5 * (plane**2).sum(-1) / 0.25) / (math.sqrt(2 * math.pi) * 0.5)
    return [
        ("Hoeffding, fraction turned over (SCOPE-RL)", turned),
        ("birl hoeffding_interval", float(own.upper)),
        ("ratio of reward 1, terms resampled (SCOPE-RL, OBP)", 1.96 * float(np.std(resampled))),
        ("birl, the same ratio", float(ratio.upper - ratio.lower) / 2),
        ("a kernel's mass in 2 dimensions, divided by sqrt(2 pi) h once (SCOPE-RL)", float(naive.sum() * cell)),
        ("birl, the same kernel", float(np.exp(kernel_log_density(plane, np.zeros(2), 0.5)).sum() * cell)),
    ]


def main() -> None:
    """Print the tables as Markdown."""
    out = sys.stdout.write
    out("| estimate of the survival task | value | off by | |\n|---|---|---|---|\n")
    for name, value, off, share in survival_table():
        out(f"| {name} | {value:.2f} | {off:+.2f} | {share:+.0%} |\n")
    out("\n| interval at nominal 95 % | holds the truth |\n|---|---|\n")
    for name, share in coverage_table():
        out(f"| {name} | {share:.1%} |\n")
    out("\n| | |\n|---|---|\n")
    for name, width in width_table():
        out(f"| {name} | {width:.3g} |\n")


if __name__ == "__main__":
    main()
