"""A chain of 30 positions whose end is rewarded alone: learned with hindsight and not without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import birl
from birl import algos
from birl.dataset import HindsightSampler, ReplayBuffer, create_fifo_replay_buffer, create_infinite_replay_buffer
from birl.logging import NoopAdapterFactory
from birl.seeding import seed as seed_everything
from tests.tiers import slow_but

QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
LAST = 29


class GoalChain(gymnasium.Env[Any, Any]):
    """Left or right from position 0; the goal is position 29. Every step costs 1, but for the one that arrives."""

    place = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    observation_space = spaces.Dict({"observation": place, "achieved_goal": place, "desired_goal": place})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._position = self._steps = 0
        return self._observed(), {}

    def _observed(self) -> dict[str, Any]:
        here, goal = np.array([self._position / LAST], np.float32), np.ones(1, np.float32)
        return {"observation": here, "achieved_goal": here.copy(), "desired_goal": goal}

    def step(self, action: Any) -> Any:
        self._position = int(np.clip(self._position + (1 if action == 1 else -1), 0, LAST))
        self._steps += 1
        seen = self._observed()
        reward = float(self.compute_reward(seen["achieved_goal"], seen["desired_goal"], {}))
        return seen, reward, reward == 0, self._steps >= 2 * LAST, {}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -(np.abs(achieved - desired)[..., 0] > 0.5 / LAST).astype(np.float32)

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.abs(achieved - desired)[..., 0] < 0.5 / LAST


def sampler(hindsight: bool) -> HindsightSampler | None:
    env = GoalChain()
    return HindsightSampler(env.compute_reward, compute_terminated=env.compute_terminated) if hindsight else None


def dqn(**options: Any) -> Any:
    return algos.DQNConfig(
        **{"batch_size": 64, "learning_rate": 1e-3, "gamma": 0.95, "target_update_interval": 20, **options}
    ).create()


def arrives(algorithm: Any) -> bool:
    env = GoalChain()
    observation, _ = env.reset()
    while True:
        batch = {name: value[None] for name, value in observation.items()}
        observation, _, terminated, truncated, _ = env.step(int(algorithm.predict(batch)[0]))
        if terminated or truncated:
            return bool(terminated)


def logged(hindsight: bool, seed: int = 0) -> ReplayBuffer:
    """Steps of a policy that walks at random, in runs of about five to one side; it never gets to the goal."""
    env, random = GoalChain(), np.random.default_rng(seed)
    buffer = create_infinite_replay_buffer(env=env, sampler=sampler(hindsight))
    while buffer.size() < 40:
        seen, action, steps, over = env.reset()[0], 1, [], False
        while not over:
            action = action if random.random() < 0.8 else 1 - action
            following, reward, terminated, truncated, _ = env.step(action)
            steps.append((seen, action, reward))
            seen, over = following, terminated or truncated
        if not terminated:
            for step in steps:
                buffer.append(*step)
            buffer.clip_episode(False, final_observation=seen)
    return buffer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hindsight", "seed"), [(True, 0), (True, 1), (True, 2), (False, 1), (False, 2), (False, 3), (False, 4)]
)
def test_logs_of_a_random_walk_teach_the_way_in_hindsight_alone(hindsight: bool, seed: int) -> None:
    """What is known of a goal spreads by a step with each copy of the target network: 50 of them for 29 steps.

    Without hindsight all rewards are equal. A policy that has learned nothing may always go right; with the seed 0 the
    initial networks do.
    """
    seed_everything(seed)
    algorithm = dqn()
    algorithm.fit(logged(hindsight, seed), n_steps=1000, **QUIET)
    assert arrives(algorithm) == hindsight


@pytest.mark.slow
@pytest.mark.parametrize(("hindsight", "seed"), [(True, 0), (True, 1), (True, 2), (False, 0), (False, 1)])
def test_it_is_found_online_in_hindsight_alone(hindsight: bool, seed: int) -> None:
    """Most episodes get to the goal; without hindsight hardly one does.

    In the second case nothing is said of the last policy: one that has learned nothing may always go right.
    """
    seed_everything(seed)
    algorithm, env = dqn(), GoalChain()
    buffer = create_fifo_replay_buffer(100_000, env=env, sampler=sampler(hindsight))
    explorer = algos.ConstantEpsilonGreedy(0.3)
    algorithm.fit_online(env, buffer, explorer, n_steps=2500, random_steps=500, seed=seed, **QUIET)
    share = np.mean([episode.rewards.max() == 0 for episode in buffer.episodes])
    assert (share > 0.5) == hindsight and (arrives(algorithm) or not hindsight)


@pytest.mark.parametrize("number", slow_but([2], [None, 2]))
def test_what_was_achieved_is_stored_and_need_not_be_read(tmp_path: Path, number: int | None) -> None:
    """The networks read two parts; the third is there for hindsight, in the loop, in one's own loop and in logs."""
    keys = ("observation", "desired_goal")

    def made() -> Any:
        env: Any = GoalChain() if number is None else gymnasium.vector.SyncVectorEnv([GoalChain] * number)
        return env, create_fifo_replay_buffer(500, env=env, sampler=sampler(True))

    def run(folder: str, stop: int | None, go_on: bool = False) -> Any:
        seed_everything(3)
        algorithm, (env, buffer) = dqn(batch_size=16, observation_keys=keys), made()
        options: Any = {"n_steps": 160, "n_steps_per_epoch": 80, "update_start_step": 50, "go_on": go_on, **QUIET}
        algorithm.fit_online(
            env, buffer, algos.ConstantEpsilonGreedy(0.5), checkpoint=tmp_path / folder, seed=0, eval_env=GoalChain(),
            epoch_callback=lambda algo, epoch, step: stop is None or step < stop, **options
        )  # fmt: skip
        batch = buffer.sample_transition_batch(100)
        assert set(batch.observations) == {*keys, "achieved_goal"} and (batch.observations["desired_goal"] != 1).any()
        return repr((algorithm.get_state(), batch.rewards, batch.observations))

    whole = run("whole", None)
    run("parts", 80)
    assert run("parts", None, go_on=True) == whole

    env, buffer = made()
    algorithm = dqn(batch_size=16, observation_keys=keys)
    algorithm.collect(env, buffer, n_steps=20, show_progress=False)
    assert set(algorithm.spec.observations) == set(keys) and buffer.transition_count == 20
    env, buffer = made()
    agent = algorithm.agent(number or 1, buffer, env=GoalChain(), update_start_step=16)
    seen = env.reset()[0]
    for _ in range(20):
        seen, reward, terminated, truncated, _ = env.step(agent.act(seen))
        agent.observe(seen, reward, terminated, truncated)
    assert buffer.transition_count == 20 * (number or 1) and "loss" in agent.metrics()


def test_a_run_that_is_resumed_draws_the_same_goals(tmp_path: Path) -> None:
    def run(folder: str, stop: int | None, go_on: bool = False) -> Any:
        seed_everything(3)
        algorithm, env = dqn(batch_size=16), GoalChain()
        buffer = create_fifo_replay_buffer(200, env=env, sampler=sampler(True))
        options: Any = {"n_steps": 240, "n_steps_per_epoch": 60, "update_start_step": 50, "go_on": go_on, **QUIET}
        algorithm.fit_online(
            env, buffer, algos.ConstantEpsilonGreedy(0.5), checkpoint=tmp_path / folder, seed=0,
            epoch_callback=lambda algo, epoch, step: stop is None or step < stop, **options
        )  # fmt: skip
        seen = buffer.sample_transition_batch(50)
        return algorithm.get_state(), seen.observations["desired_goal"], seen.rewards

    whole = run("whole", None)
    run("parts", 120)
    assert repr(run("parts", None, go_on=True)) == repr(whole)
    assert 0 < (whole[1] != 1).mean() < 1


def test_logs_that_are_resumed_draw_the_same_goals(tmp_path: Path) -> None:
    def run(folder: str, stop: int | None, go_on: bool = False) -> Any:
        seed_everything(3)
        algorithm = dqn(batch_size=16)
        algorithm.fit(
            logged(True), 40, n_steps_per_epoch=20, checkpoint=tmp_path / folder, go_on=go_on,
            epoch_callback=lambda algo, epoch, step: stop is None or step < stop, **QUIET
        )  # fmt: skip
        return repr(algorithm.get_state())

    whole = run("whole", None)
    run("parts", 20)
    assert run("parts", None, go_on=True) == whole


def test_many_seeds_learn_what_each_learns_alone() -> None:
    config, data = dqn(batch_size=8).config, logged(True)
    options: Any = {"n_steps": 12, **QUIET}
    together = birl.fit_many(config, data, seeds=(1, 5), **options)
    for seed, one in zip((1, 5), together, strict=True):
        birl.seed(seed)
        dataset, alone = logged(True), config.create()
        alone.fit(dataset, **options)
        for name, value in alone.learner.nets.state_dict().items():
            torch.testing.assert_close(one.learner.nets.state_dict()[name], value, rtol=1e-3, atol=1e-4)
