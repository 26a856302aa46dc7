"""Acting in environments and storing the steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from birl.checks import check
from birl.envs import Step, Stepper, reset_generator, sample_actions
from birl.errors import ConfigError
from birl.run.protocols import Environment, ExplorerProtocol, Trainable
from birl.spaces import check_actions
from birl.types import Array, State, Tree

Measure = Callable[[str], contextlib.AbstractContextManager[None]]


class Collector:
    """Lets an actor, an explorer or chance act in an environment, and stores the steps in a replay buffer.

    Args:
        algorithm: gives the actor.
        env: environment or vector environment.
        buffer: replay buffer with one lane per environment.
        explorer: changes greedy actions; ``None`` for the policy's own (sampled, or greedy) ones.
        greedy: whether the policy acts greedily where there is no explorer.
        seed: fixes resets and random actions.
        overlap: whether `count` begins the next step before it counts the present one, so that the environments make
            it meanwhile. The collector is a context then: leaving it waits for a step that was begun.

    Attributes:
        pending: steps that are in the buffer and not yet counted (see `count`).
    """

    def __init__(
        self,
        algorithm: Trainable,
        env: Environment,
        buffer: Any,
        explorer: ExplorerProtocol | None = None,
        *,
        greedy: bool = False,
        seed: int | None = None,
        overlap: bool = False,
    ) -> None:
        resets, self._generator = reset_generator(env, seed).spawn(2)
        self.stepper = Stepper(env, resets)
        if check("overlap", overlap, bool) and not self.stepper.divisible:
            raise ConfigError(
                f"overlap=True was given with a {type(env.unwrapped).__name__}; only environments that run in "
                "processes of their own can be stepped meanwhile: use gymnasium.vector.AsyncVectorEnv without a "
                "wrapper around it "
                "(birl.envs.make_env(name, num_envs=…, asynchronous=True)), or leave overlap out"
            )
        self._overlap = overlap
        self._begun: tuple[Array, dict[str, Array]] | None = None  # the action, and the columns stored with it
        self._algorithm, self._buffer = algorithm, buffer
        self._explorer: Any = explorer
        self._actor = algorithm.actor(greedy=greedy or explorer is not None, n=self.stepper.n)
        acts = getattr(algorithm, "acts", None)
        self._unbounded = acts is not None and not acts.bounded
        self.pending = 0
        bind = getattr(explorer, "bind", None)  # explorers written for d3rlpy have none
        if bind is not None:
            bind(self.stepper.action_space)

    def count(self, step: int, random_steps: int, measure: Measure) -> list[float]:
        """Count one more step, making it first if need be.

        A vector environment makes several steps at once. They are counted one by one, so that updates, epochs and the
        end of a run fall on exact numbers of steps.

        Args:
            step: steps counted so far, for the explorer.
            random_steps: number of steps at the start of the run that are uniformly random.
            measure: ``measure(name)`` is a context that times its block.

        Returns:
            Returns of the episodes that have ended.
        """
        ended: list[float] = []
        while self.pending == 0:  # a step may be only a reset
            if self._overlap:
                result = self._advance(step, random_steps, measure)
            else:
                result = self.interact(step, step < random_steps, measure)
            self.pending = int(result.valid.sum())
            ended += result.returns.values()
        self.pending -= 1
        return ended

    def _advance(self, step: int, random_steps: int, measure: Measure) -> Step:
        """Finish the step that was begun (or is begun now), store it, and begin the next one."""
        if self._begun is None:
            self._begin(step, random_steps, measure)
        assert self._begun is not None
        (action, extra), self._begun = self._begun, None
        observation = self.stepper.observation
        with measure("environment_step"):
            result = self.stepper.finish()
        self._store(observation, action, extra, result)
        self._begin(step + int(result.valid.sum()), random_steps, measure)
        return result

    def _begin(self, step: int, random_steps: int, measure: Measure) -> None:
        action = self._choose(step, step < random_steps, measure)
        self.stepper.begin(action)
        self._begun = action, self._actor.extra

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for a step that was begun and forget it, so that others can use the environments."""
        if self._begun is not None:
            self._begun = None
            self.stepper.abandon()

    def interact(self, step: int, random: bool, measure: Measure, most: int | None = None) -> Step:
        """Make one step in every environment and store it; those beyond ``most`` are marked as invalid and left out."""
        observation = self.stepper.observation
        action = self._choose(step, random, measure)
        with measure("environment_step"):
            result = self.stepper.step(action)
        if most is not None:
            result.valid[np.flatnonzero(result.valid)[most:]] = False
        self._store(observation, action, self._actor.extra, result)
        return result

    def _choose(self, step: int, random: bool, measure: Measure) -> Array:
        stepper = self.stepper
        observation = stepper.observation
        with measure("inference"):
            action = self._actor(observation, stepper.is_first, stepper.reward)
            if self._unbounded and isinstance(stepper.action_space, spaces.Box):
                action = np.clip(action, stepper.action_space.low, stepper.action_space.high)
            if random:
                action = sample_actions(stepper.action_space, stepper.n, self._generator)
            elif self._explorer is not None:
                action = self._explorer.sample(_WithGreedyActions(self._algorithm, action), observation, step)
        check_actions(stepper.action_space, action)
        return action

    def _store(self, observation: Tree, action: Array, extra: dict[str, Array], result: Step) -> None:
        self._buffer.append_batch(
            observation,
            action,
            result.reward,
            result.terminated,
            result.truncated,
            result.next_observation,
            extra=extra,
            mask=result.valid,
        )

    def close_episodes(self) -> None:
        """End the running episodes: the next steps in the buffer do not continue them."""
        for lane in range(self.stepper.n):
            self._buffer.clip_episode(False, truncated=True, lane=lane)

    def get_state(self) -> State:
        """Environment, actor, explorer, generator and count; the buffer is not included."""
        state = {
            "stepper": self.stepper.get_state(),
            "actor": self._actor.get_state(),
            "generator": self._generator.bit_generator.state,
            "pending": self.pending,
        }
        if self._begun is not None:
            state["begun"] = {"action": self._begun[0], "extra": self._begun[1]}
        if hasattr(self._explorer, "get_state"):
            state["explorer"] = self._explorer.get_state()
        return state

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`; call it after the buffer's."""
        self.stepper.set_state(state["stepper"])
        self._actor.set_state(state["actor"])
        self._generator.bit_generator.state = state["generator"]
        self.pending = state["pending"]
        if "explorer" in state and hasattr(self._explorer, "set_state"):
            self._explorer.set_state(state["explorer"])
        if self.stepper.lost:
            self.close_episodes()
        elif "begun" in state:
            action, extra = np.asarray(state["begun"]["action"]), state["begun"]["extra"]
            self._begun = action, {name: np.asarray(value) for name, value in extra.items()}
            self.stepper.begin(action)


class _WithGreedyActions:
    """Stands in for the algorithm before an explorer.

    An actor with the memory of its episode has already chosen the greedy actions; everything else is the algorithm's.
    """

    def __init__(self, algorithm: Trainable, action: Array) -> None:
        self._algorithm, self._action = algorithm, action

    def predict(self, x: Tree) -> Array:
        return self._action

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._algorithm, name)
