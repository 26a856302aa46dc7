"""Collect the datasets that birl ships, with birl itself: ``make datasets`` (some minutes on two cores).

Each file holds the experience of one seeded run: a random policy's, or everything an online agent saw while it
learned. Run it with names to collect only some: ``python scripts/collect_datasets.py pendulum-replay``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import birl
from birl.algos import (
    DiscreteRandomPolicyConfig,
    DQNConfig,
    LinearDecayEpsilonGreedy,
    RandomPolicyConfig,
    SACConfig,
)
from birl.dataset import ReplayBuffer, create_infinite_replay_buffer
from birl.envs import make_env
from birl.preprocessing import MinMaxActionScaler

FOLDER = Path(birl.__file__).parent / "data"
LARGEST = 2 * 10**6  # bytes
SEED = 20


def random_steps(env_id: str, policy: Any, n_steps: int) -> ReplayBuffer:
    """Uniformly random actions."""
    env = make_env(env_id)
    policy.build_with_env(env)
    return policy.collect(env, n_steps=n_steps, seed=SEED, show_progress=False)  # type: ignore[no-any-return]


def cartpole_random() -> ReplayBuffer:
    """Random policy in CartPole-v1."""
    return random_steps("CartPole-v1", DiscreteRandomPolicyConfig().create(), 10_000)


def pendulum_random() -> ReplayBuffer:
    """Random policy in Pendulum-v1."""
    return random_steps("Pendulum-v1", RandomPolicyConfig(action_scaler=MinMaxActionScaler()).create(), 10_000)


def cartpole_replay() -> ReplayBuffer:
    """All that DQN saw in CartPole-v1 while it learned."""
    config = DQNConfig(batch_size=64, learning_rate=5e-4, target_update_interval=100)
    explorer = LinearDecayEpsilonGreedy(1.0, 0.04, duration=5_000)
    return replay("CartPole-v1", config.create(), 30_000, explorer=explorer, update_start_step=1000)


def pendulum_replay() -> ReplayBuffer:
    """All that SAC saw in Pendulum-v1 while it learned."""
    config = SACConfig(
        batch_size=128, actor_learning_rate=1e-3, critic_learning_rate=1e-3, action_scaler=MinMaxActionScaler()
    )
    return replay("Pendulum-v1", config.create(), 20_000, random_steps=1000, update_start_step=1000)


def replay(env_id: str, agent: Any, n_steps: int, **options: Any) -> ReplayBuffer:
    """Train online and return what the agent saw."""
    env = make_env(env_id)
    buffer = create_infinite_replay_buffer(env=env)
    agent.fit_online(
        env,
        buffer,
        n_steps=n_steps,
        seed=SEED,
        logger_adapter=birl.logging.NoopAdapterFactory(),
        show_progress=sys.stderr.isatty(),
        **options,
    )
    return buffer


COLLECTORS: dict[str, Callable[[], ReplayBuffer]] = {
    "cartpole-random": cartpole_random,
    "cartpole-replay": cartpole_replay,
    "pendulum-random": pendulum_random,
    "pendulum-replay": pendulum_replay,
}


def main() -> None:
    """Collect and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(COLLECTORS)}; all by default")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    for name in options.names or COLLECTORS:
        birl.seed(SEED)
        buffer = COLLECTORS[name]()
        path = options.out / f"{name}.h5"
        buffer.dump(path)
        returns = [episode.compute_return() for episode in buffer.episodes]
        print(
            f"{path}: {buffer.transition_count} transitions, {len(returns)} episodes, "
            f"returns mean {np.mean(returns):.1f}, last 20 {np.mean(returns[-20:]):.1f}, max {np.max(returns):.1f}, "
            f"{path.stat().st_size / 1e6:.2f} MB"
        )
        if path.stat().st_size > LARGEST:
            sys.exit(f"{path} is larger than {LARGEST} bytes")


if __name__ == "__main__":
    main()
