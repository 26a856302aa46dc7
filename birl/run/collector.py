"""Acting in environments and storing the steps."""

from __future__ import annotations

import abc
import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from birl.checks import check
from birl.envs import Step, Stepper, reset_generator
from birl.errors import ConfigError, CorruptFileError
from birl.run.protocols import Environment, ExplorerProtocol, Trainable
from birl.spaces import check_actions
from birl.types import Array, State, Tree

Measure = Callable[[str], contextlib.AbstractContextManager[None]]


def _unmeasured(name: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def check_parts(buffer: Any, explorer: Any) -> None:
    """Raise `ConfigError` for a buffer that cannot take steps, or an explorer that cannot choose actions."""
    if buffer is not None and not callable(getattr(buffer, "append_batch", None)):
        advice = (
            f"give birl.dataset.ReplayBuffer({type(buffer).__name__}(…), env=env)"
            if hasattr(buffer, "limit")
            else "make one with birl.dataset.create_fifo_replay_buffer(limit=100_000, env=env)"
        )
        raise ConfigError(f"buffer is {buffer!r:.80}; it must be a replay buffer: {advice}")
    if explorer is not None and (inspect.isclass(explorer) or not callable(getattr(explorer, "sample", None))):
        raise ConfigError(
            f"explorer is {explorer!r:.80}; it must be an object that chooses actions, such as "
            "birl.algos.LinearDecayEpsilonGreedy() or NormalNoise()"
        )


class Player(abc.ABC):
    """Lets an actor act in an environment; subclasses store the steps.

    Args:
        algorithm: gives the actor.
        env: environment or vector environment.
        resets: source of the seeds of resets.
        greedy: whether the actor acts greedily.

    Attributes:
        pending: steps that are stored and not yet counted (see `count`).
    """

    def __init__(self, algorithm: Trainable, env: Environment, resets: np.random.Generator, greedy: bool) -> None:
        self.stepper = Stepper(env, resets)
        self._actor = algorithm.actor(greedy=greedy, n=self.stepper.n)
        self.pending = 0

    @abc.abstractmethod
    def interact(self, *arguments: Any) -> Step:
        """Make one step in every environment and store it."""

    @abc.abstractmethod
    def close_episodes(self) -> None:
        """End the running episodes: the next steps that are stored do not continue them."""

    def count(self, *arguments: Any) -> list[float]:
        """Count one more step, making it first if need be; the arguments are those of `interact`.

        A vector environment makes several steps at once. They are counted one by one, so that updates, epochs and the
        end of a run fall on exact numbers of steps.

        Returns:
            Returns of the episodes that have ended.
        """
        ended: list[float] = []
        while self.pending == 0:  # a step may be only a reset
            result = self.interact(*arguments)
            self.pending = int(result.valid.sum())
            ended += result.returns.values()
        self.pending -= 1
        return ended

    def _act(self, clip: bool) -> tuple[Array, Array]:
        """The actor's actions, as it chose them and as the environment may take them."""
        stepper = self.stepper
        action = self._actor(stepper.observation, stepper.is_first, stepper.reward)
        return action, stepper.actions.clip(action) if clip else action

    def get_state(self) -> State:
        """Environment, actor and count; stored steps are not included."""
        return {"stepper": self.stepper.get_state(), "actor": self._actor.get_state(), "pending": self.pending}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`; call it when the stored steps are back."""
        self.stepper.set_state(state["stepper"])
        self._actor.set_state(state["actor"])
        self.pending = check("pending", state["pending"], int, low=0, error=CorruptFileError)
        if self.stepper.lost:
            self.close_episodes()


class Collector(Player):
    """Lets an actor, an explorer or chance act in an environment, and stores the steps in a replay buffer.

    Args:
        algorithm: gives the actor.
        env: environment or vector environment.
        buffer: replay buffer with one lane per environment.
        explorer: turns greedy actions into the ones taken; ``None`` for the policy's own (sampled, or greedy) ones.
        greedy: whether the policy acts greedily where there is no explorer.
        seed: fixes resets and random actions.
        see: called with each step that is stored: observation, reward, whether it begins an episode, and ``valid``.
        overlap: whether `interact` begins the next step before it returns, so that the environments make it meanwhile.
            The collector is a context then: leaving it waits for a step that was begun.
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
        see: Callable[[Tree, Array, Array, Array], None] | None = None,
    ) -> None:
        resets, self._generator = reset_generator(env, seed).spawn(2)
        super().__init__(algorithm, env, resets, greedy or explorer is not None)
        if check("overlap", overlap, bool) and not self.stepper.divisible:
            raise ConfigError(
                f"overlap=True was given with a {type(env.unwrapped).__name__}; only environments that run in "
                "processes of their own can be stepped meanwhile: use gymnasium.vector.AsyncVectorEnv without a "
                "wrapper around it "
                "(birl.envs.make_env(name, num_envs=…, asynchronous=True)), or leave overlap out"
            )
        self._overlap = overlap
        self._begun: tuple[Array, dict[str, Array]] | None = None  # the action, and the columns stored with it
        self._algorithm, self._buffer, self._see = algorithm, buffer, see
        self._explorer: Any = explorer
        acts = getattr(algorithm, "acts", None)
        self._unbounded = acts is not None and not acts.bounded
        bind = getattr(explorer, "bind", None)  # explorers written for d3rlpy have none
        if bind is not None:
            bind(self.stepper.action_space)

    def interact(
        self, step: int, random_steps: int = 0, measure: Measure = _unmeasured, most: int | None = None
    ) -> Step:
        """Make one step in every environment and store it.

        Args:
            step: steps counted so far, for the explorer.
            random_steps: number of steps at the start of the run that are uniformly random.
            measure: ``measure(name)`` is a context that times its block.
            most: further steps are marked as invalid and left out.
        """
        if self._begun is None:
            self._begin(step, random_steps, measure)
        assert self._begun is not None
        (action, extra), self._begun = self._begun, None
        observation, is_first = self.stepper.observation, self.stepper.is_first
        with measure("environment_step"):
            result = self.stepper.finish() if self._overlap else self.stepper.step(action)
        if most is not None:
            result.valid[np.flatnonzero(result.valid)[most:]] = False
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
        if self._see is not None:
            self._see(observation, result.reward, is_first, result.valid)
        if self._overlap:
            self._begin(step + int(result.valid.sum()), random_steps, measure)
        return result

    def _begin(self, step: int, random_steps: int, measure: Measure) -> None:
        """Choose the actions of the next step; with ``overlap`` the environments set out on it."""
        stepper = self.stepper
        with measure("inference"):
            _, action = self._act(clip=self._unbounded)
            if step < random_steps:
                action = stepper.actions.sample(stepper.n, self._generator)
            elif self._explorer is not None:
                greedy = _WithGreedyActions(self._algorithm, action)
                action = self._explorer.sample(greedy, stepper.observation, step)
        check_actions(stepper.actions, action)
        if self._overlap:
            stepper.begin(action)
        self._begun = action, self._actor.extra

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for a step that was begun and forget it, so that others can use the environments."""
        if self._overlap and self._begun is not None:
            self._begun = None
            self.stepper.abandon()

    def close_episodes(self) -> None:
        for lane in range(self.stepper.n):
            self._buffer.clip_episode(False, truncated=True, lane=lane)

    def get_state(self) -> State:
        state = {**super().get_state(), "generator": self._generator.bit_generator.state}
        if self._begun is not None:
            state["begun"] = {"action": self._begun[0], "extra": self._begun[1]}
        if hasattr(self._explorer, "get_state"):
            state["explorer"] = self._explorer.get_state()
        return state

    def set_state(self, state: State) -> None:
        super().set_state(state)
        self._generator.bit_generator.state = state["generator"]
        if "explorer" in state and hasattr(self._explorer, "set_state"):
            self._explorer.set_state(state["explorer"])
        if "begun" in state and not self.stepper.lost:
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
