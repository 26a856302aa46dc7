"""Replay by priority against uniform replay: updates until the blind cliff walk is learned.

``python benchmarks/cliff_walk.py --states 2 10 --seeds 10`` prints medians over seeds. In each state of the walk one of
two actions goes on and the other one ends the episode; the last step to the end gives the only reward. The data are
the episodes of all sequences of actions, in random order, so that of ``2**(n + 1) - 2`` steps one has a reward (Schaul
et al. 2015, arXiv:1511.05952, section 3.1 and figure 1). A table learns from one step at a time, drawn by birl's
samplers, until the mean squared error of its values is below 0.001.
"""
# ruff: noqa: T201  a script that prints

from __future__ import annotations

import argparse
import statistics

import numpy as np

import birl
from birl.dataset import MDPDataset, PrioritizedSampler, Uniform

__all__ = ["updates_until_learned"]

STEP_SIZE, ERROR, CHECK = 0.25, 1e-3, 10


def updates_until_learned(n: int, prioritized: bool, seed: int, limit: int = 1_000_000) -> int | None:
    """Number of updates, to within 10, that Q-learning needs for a walk of ``n`` states.

    Args:
        n: number of states.
        prioritized: whether steps are drawn by the size of their newest TD errors, or uniformly.
        seed: of the order of the episodes and of the draws.
        limit: updates after which to give up; the result is then ``None``.
    """
    birl.seed(seed)
    # Without weights, as in figure 1: the table needs no correction, as one step of it has one outcome.
    sampler = PrioritizedSampler(alpha=1.0, beta=0.0) if prioritized else Uniform()
    data, gamma = walks(n, np.random.default_rng(seed), sampler), 1 - 1 / n
    truth = np.zeros((n, 2))
    truth[np.arange(n), np.arange(n) % 2] = gamma ** np.arange(n - 1, -1, -1)
    table = np.zeros((n, 2))
    for update in range(limit):
        if update % CHECK == 0 and np.square(table - truth).mean() < ERROR:
            return update
        batch = data.sample_transition_batch(1)
        state, action = int(batch.observations[0]), int(batch.actions[0, 0])
        following = table[int(batch.next_observations[0])].max() * (1 - batch.terminals[0, 0])
        error = float(batch.rewards[0, 0] + gamma * following - table[state, action])
        table[state, action] += STEP_SIZE * error
        batch.update_priorities([abs(error)])
    return None


def walks(n: int, random: np.random.Generator, sampler: Uniform | PrioritizedSampler) -> MDPDataset:
    """The episodes of all sequences of ``n`` actions, each up to its end. The right action alternates."""
    right = (random.permutation(2**n)[:, None] >> np.arange(n)) & 1 == 1
    reached = np.cumprod(right, axis=1, dtype=bool)
    made = np.concatenate([np.ones((2**n, 1), bool), reached[:, :-1]], axis=1)
    state = np.broadcast_to(np.arange(n), right.shape)
    action = np.where(right, state % 2, 1 - state % 2)
    last = state == n - 1
    ends = ~right | last
    columns = (column[made] for column in (state, action, (reached & last).astype(np.float32), ends))
    return MDPDataset(*columns, sampler=sampler)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--states", type=int, nargs=2, default=(2, 12), metavar=("LEAST", "MOST"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--limit", type=int, default=1_000_000, help="updates after which a run is given up")
    options = parser.parse_args()
    print("| states | steps | uniform | prioritised | ratio |\n|---|---|---|---|---|")
    for n in range(options.states[0], options.states[1] + 1):
        medians = []
        for prioritized in (False, True):
            found = [updates_until_learned(n, prioritized, seed, options.limit) for seed in range(options.seeds)]
            medians.append(statistics.median(np.inf if each is None else each for each in found))
        uniform, by_priority = medians
        ratio = uniform / by_priority
        print(f"| {n} | {2 ** (n + 1) - 2} | {uniform:g} | {by_priority:g} | {ratio:.2g} |", flush=True)


if __name__ == "__main__":
    main()
