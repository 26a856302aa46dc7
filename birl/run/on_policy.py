"""On-policy training in environments."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Unpack

import numpy as np
from gymnasium import spaces

from birl.envs import Step, Stepper, reset_generator
from birl.run.evaluate import online_evaluators
from birl.run.protocols import Environment, Rollout, Trainable
from birl.run.session import Options, Session, environment_settings, evaluator_parts, run_settings
from birl.spaces import check_actions
from birl.types import Array, State, Tree, tree_leaves, tree_map


class RolloutCollector:
    """Collects the next rollout, row by row.

    Args:
        algorithm: gives the actor; its configuration gives the length of a rollout.
        env: environment or vector environment.
        seed: fixes the environment's resets.

    Attributes:
        pending: steps that were made and are not yet counted.
    """

    def __init__(self, algorithm: Trainable, env: Environment, seed: int | None = None) -> None:
        self.stepper = Stepper(env, reset_generator(env, seed))
        self._actor = algorithm.actor(greedy=False, n=self.stepper.n)
        config: Any = algorithm.config
        self._length = config.rollout_length
        self._columns: dict[str, Tree] = {}
        self._rows = 0
        self.pending = 0

    def interact(self, most: int) -> Step:
        """Make one step in every environment; those beyond ``most`` are marked as not valid."""
        stepper = self.stepper
        observation, is_first = stepper.observation, stepper.is_first
        action = self._actor(observation, is_first, stepper.reward)
        space = stepper.action_space
        given = np.clip(action, space.low, space.high) if isinstance(space, spaces.Box) else action
        check_actions(space, given)
        step = stepper.step(given)
        step.valid[np.flatnonzero(step.valid)[most:]] = False
        if not step.valid.any():  # only resets: no row
            return step
        row = {
            "observation": observation,
            "action": action,
            "reward": step.reward,
            "next_observation": step.next_observation,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "is_first": is_first,
            "valid": step.valid,
            **{f"extra.{name}": value for name, value in self._actor.extra.items()},
        }
        if not self._columns:
            self._columns = tree_map(lambda leaf: np.zeros((self._length, *leaf.shape), leaf.dtype), row)
        tree_map(self._put, self._columns, row)
        self._rows += 1
        self.pending = int(step.valid.sum())
        return step

    def _put(self, column: Array, value: Array) -> None:
        column[self._rows] = value

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return self._rows == self._length

    def take(self) -> Rollout:
        """The rollout so far, copied; the next one begins."""
        columns = tree_map(lambda column: column[: self._rows].copy(), self._columns)
        self._rows = 0
        prefix = "extra."
        extra = {name.removeprefix(prefix): columns.pop(name) for name in list(columns) if name.startswith(prefix)}
        return Rollout(**columns, extra=extra)

    def get_state(self) -> State:
        """Environment, actor and the rollout so far."""
        rows = {name: self._leaves(tree, self._rows) for name, tree in self._columns.items()}
        return {
            "stepper": self.stepper.get_state(),
            "actor": self._actor.get_state(),
            "pending": self.pending,
            "rows": self._rows,
            "columns": rows,
        }

    @staticmethod
    def _leaves(tree: Tree, rows: int) -> dict[str, Array]:
        return {str(index): leaf[:rows].copy() for index, leaf in enumerate(tree_leaves(tree))}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        self.stepper.set_state(state["stepper"])
        self._actor.set_state(state["actor"])
        self.pending, self._rows = state["pending"], state["rows"]
        self._columns = {name: self._grown(name, leaves) for name, leaves in state["columns"].items()}
        if self.stepper.lost and self._rows:
            # The saved steps are complete, but the next ones do not continue them: their episodes end here.
            columns, last = self._columns, self._rows - 1
            columns["truncated"][last] |= columns["valid"][last] & ~columns["terminated"][last]

    def _grown(self, name: str, leaves: dict[str, Any]) -> Tree:
        """A column of full length that begins with the saved rows, in the structure it had."""
        saved = [np.asarray(leaf) for leaf in leaves.values()]
        empty = [np.zeros((self._length - len(leaf), *leaf.shape[1:]), leaf.dtype) for leaf in saved]
        full = [np.concatenate(pair) for pair in zip(saved, empty, strict=True)]
        if name not in ("observation", "next_observation"):
            return full[0]
        remaining = iter(full)
        return tree_map(lambda _: next(remaining), self.stepper.observation)


def on_policy_fitter(
    algorithm: Trainable,
    env: Environment,
    n_steps: int = 1_000_000,
    *,
    eval_env: Environment | None = None,
    eval_epsilon: float = 0.0,
    eval_n_trials: int = 10,
    seed: int | None = None,
    **options: Unpack[Options],
) -> Generator[tuple[int, dict[str, float]], None, None]:
    """Train on the policy's own rollouts, one epoch per iteration.

    Args:
        algorithm: on-policy algorithm; its networks are made if they do not exist.
        env: environment, or vector environment in any autoreset mode. It is given actions clipped to its bounds; the
            learner sees them as they were sampled.
        n_steps: number of environment steps over all environments that are trained on, exactly: the last rollout may be
            shorter.
        eval_env, eval_epsilon, eval_n_trials, seed: see `online_fitter`.
        **options: see `Options`.

    Yields:
        Number of the epoch (from 1) and its metrics. Losses are means over the rollouts of the epoch.
    """
    settings = run_settings(algorithm, "on_policy", **environment_settings(env, seed))
    algorithm.build_with_env(env)
    learner = algorithm.learner
    learner.begin_run(None, n_steps)
    collector = RolloutCollector(algorithm, env, seed)
    evaluators = online_evaluators(env, eval_env, eval_n_trials, eval_epsilon)
    parts = {"rollout": collector, **evaluator_parts(evaluators)}
    session = Session(algorithm, f"{type(algorithm).__name__}_online", n_steps, parts, settings, **options)
    with session:
        while session.unfinished:
            with session.interrupt.held_back():
                while session.in_epoch:
                    with session.time("step"):
                        while collector.pending == 0:
                            step = collector.interact(most=session.left)
                            for value in step.returns.values():
                                session.averages.add({"rollout_return": value})
                        collector.pending -= 1
                        if collector.pending == 0 and (collector.full or session.left == 1):
                            with session.time("algorithm_update"):
                                metrics = learner.learn(collector.take())
                            session.averages.add(metrics)
                    session.tick()
                result = session.end_epoch(evaluators, None)
            yield result


def fit_on_policy(algorithm: Trainable, env: Environment, **options: Any) -> list[tuple[int, dict[str, float]]]:
    """Train on the policy's own rollouts; see `on_policy_fitter`. Returns the number and the metrics of each epoch."""
    return list(on_policy_fitter(algorithm, env, **options))
