"""What sequence models add to `Algorithm`: a context while acting, and a return to aim at."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, Self, TypeVar

import numpy as np
import torch
from torch import nn

from birl.algorithm import Algorithm
from birl.config import AlgorithmConfig
from birl.dataset import ReplayBufferBase
from birl.errors import ShapeError, UnsupportedError
from birl.run import evaluate
from birl.types import Array, State, Tree, tree_leaves, tree_map

__all__ = [
    "IdentityTransformerActionSampler",
    "StatefulTransformerWrapper",
    "TransformerActionSampler",
    "TransformerActor",
    "TransformerAlgorithm",
    "TransformerInput",
]

ConfigT = TypeVar("ConfigT", bound=AlgorithmConfig)
NetsT = TypeVar("NetsT", bound=nn.Module)


@dataclass(frozen=True)
class TransformerInput:
    """What a sequence model sees of one episode, oldest step first, in environment units.

    Attributes:
        observations: tree ``[L, …]``.
        actions: ``[L, A]``; the last one is not looked at.
        rewards: ``[L, 1]``.
        returns_to_go: ``[L, 1]``.
        timesteps: int ``[L]``, counted from 1; 0 is padding.
    """

    observations: Tree
    actions: Array
    rewards: Array
    returns_to_go: Array
    timesteps: Array


class TransformerActionSampler:
    """Turns a transformer's output for the newest step into an action."""

    def __call__(self, transformer_output: Array) -> Array:
        """Args: transformer_output: ``[..., A]``."""
        raise NotImplementedError


class IdentityTransformerActionSampler(TransformerActionSampler):
    """The output is the action (continuous actions)."""

    def __call__(self, transformer_output: Array) -> Array:
        """The output itself."""
        return transformer_output


class TransformerActor:
    """Acts in ``n`` environments with the last ``context_size`` steps of each in view."""

    def __init__(self, algorithm: Any, target_return: float, sampler: TransformerActionSampler, n: int) -> None:
        self._algorithm, self._target, self._sampler, self.n = algorithm, float(target_return), sampler, n
        self.extra: dict[str, Array] = {}
        length, spec = algorithm.config.context_size, algorithm.spec
        self._observation: Tree = None
        self._action = np.zeros((n, length, spec.action_size), np.float32)
        self._return = np.zeros((n, length, 1), np.float32)
        self._step = np.zeros((n, length), np.int64)  # 0 is padding

    def __call__(self, observation: Tree, is_first: Array, reward: Array) -> Array:
        """Actions ``[n, A]``; ``reward`` is that of the previous step."""
        first = np.asarray(is_first, bool)
        if self._observation is None:
            length = self._step.shape[1]
            self._observation = tree_map(lambda x: np.zeros((self.n, length, *x.shape[1:]), x.dtype), observation)
        for context in (*tree_leaves(self._observation), self._action, self._return, self._step):
            context[:, :-1] = context[:, 1:]
            context[first] = 0
        tree_map(lambda context, x: context.__setitem__((slice(None), -1), x), self._observation, observation)
        reward = np.asarray(reward, np.float32)
        self._return[:, -1, 0] = np.where(first, self._target, self._return[:, -2, 0] - reward)
        longest = self._algorithm.config.max_timestep
        self._step[:, -1] = np.where(first, 1, np.minimum(self._step[:, -2] + 1, longest))
        self._action[:, -1] = 0
        output = self._algorithm.predict_context(self._observation, self._action, self._return, self._step)
        action = self._sampler(output)
        self._action[:, -1] = action
        return action

    def get_state(self) -> State:
        """The contexts."""
        leaves = [] if self._observation is None else list(tree_leaves(self._observation))
        observation = {str(index): leaf.copy() for index, leaf in enumerate(leaves)}
        contexts = {"action": self._action.copy(), "return": self._return.copy(), "step": self._step.copy()}
        return {"observation": observation, **contexts}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`."""
        saved = state["observation"]
        if saved:
            leaves = iter(saved[str(index)] for index in range(len(saved)))
            structure = self._algorithm.observation_template()
            self._observation = tree_map(lambda _: np.array(next(leaves)), structure)
        self._action, self._return = np.array(state["action"]), np.array(state["return"])
        self._step = np.array(state["step"])


class StatefulTransformerWrapper:
    """A sequence model that remembers its episode: one environment, one step at a time.

    It also stands in for an algorithm in evaluators: `actor` aims at this wrapper's return.
    """

    def __init__(self, algo: Any, target_return: float, action_sampler: TransformerActionSampler) -> None:
        self._algo, self._target_return, self._sampler = algo, target_return, action_sampler
        self._actor, self._fresh = self.actor(), True

    @property
    def algo(self) -> Any:
        """The wrapped algorithm."""
        return self._algo

    def predict(self, x: Tree, reward: float) -> Array:
        """Action ``[A]`` for the newest observation ``x`` (no batch dimension) and the reward before it."""
        observation = tree_map(lambda leaf: np.asarray(leaf)[None], x)
        action = self._actor(observation, np.array([self._fresh]), np.array([reward], np.float32))
        self._fresh = False
        return action[0]

    def reset(self) -> None:
        """Forget the episode."""
        self._actor, self._fresh = self.actor(), True

    def actor(self, *, greedy: bool = True, n: int = 1) -> TransformerActor:
        """An actor for ``n`` environments that aims at this wrapper's return."""
        return TransformerActor(self._algo, self._target_return, self._sampler, n)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._algo, name)


class TransformerAlgorithm(Algorithm[ConfigT, NetsT], Generic[ConfigT, NetsT]):
    """Base of sequence models: trained on slices of trajectories, acting with a context."""

    data = "trajectory"

    def as_stateful_wrapper(
        self, target_return: float, action_sampler: TransformerActionSampler | None = None
    ) -> StatefulTransformerWrapper:
        """A wrapper that remembers its episode.

        Args:
            target_return: the return to aim at.
            action_sampler: makes actions from outputs; by default the output itself.
        """
        self.engine  # noqa: B018  raises before the networks exist
        sampler = action_sampler or IdentityTransformerActionSampler()
        return StatefulTransformerWrapper(self, target_return, sampler)

    def fitter(  # type: ignore[override]
        self,
        dataset: ReplayBufferBase,
        n_steps: int,
        *,
        eval_env: Any = None,
        eval_target_return: float | None = None,
        eval_action_sampler: TransformerActionSampler | None = None,
        evaluators: Mapping[str, Callable[..., float]] | None = None,
        **options: Any,
    ) -> Generator[tuple[int, dict[str, float]], None, None]:
        """Train on a dataset; with ``eval_env`` and ``eval_target_return``, log the mean return as ``environment``."""
        chosen = dict(evaluators or {})
        if eval_env is not None:
            if eval_target_return is None:
                raise UnsupportedError("eval_env needs eval_target_return: the return that the policy is to aim at")

            def environment(algo: Self, _: Any) -> float:
                wrapper = algo.as_stateful_wrapper(eval_target_return, eval_action_sampler)
                return float(np.mean(evaluate.evaluate(wrapper, eval_env, n_episodes=10)))

            chosen["environment"] = environment
        yield from super().fitter(dataset, n_steps, evaluators=chosen, **options)

    def predict(self, x: TransformerInput) -> Array:
        """Action ``[A]`` for the newest step of one context. `as_stateful_wrapper` keeps the context for you."""
        if not isinstance(x, TransformerInput):
            raise ShapeError(
                f"{type(self).__name__}.predict takes a TransformerInput: to act step by step, use "
                "as_stateful_wrapper(target_return).predict(observation, reward)"
            )
        size = self.config.context_size  # type: ignore[attr-defined]
        rows = (x.observations, x.actions, x.returns_to_go, x.timesteps)
        observation, action, returns, step = (
            tree_map(lambda leaf: np.asarray(leaf)[None, -size:], part) for part in rows
        )
        return self.predict_context(observation, action, returns, step)[0]

    def predict_context(self, observation: Tree, action: Array, returns_to_go: Array, timestep: Array) -> Array:
        """Outputs for the newest steps ``[n, A]`` of ``n`` contexts ``[n, L, …]``; padding has timestep 0."""
        units = self.units
        with torch.no_grad(), self.in_acting_mode():
            step = units.tensor(timestep)
            nets: Any = self.nets
            output = nets.transformer(
                units.observation(observation),
                units.action(action),
                units.reward(returns_to_go),
                step,
                (step > 0).to(torch.float32),
            )
            return self.to_environment(output[:, -1])

    def observation_template(self) -> Tree:
        """A tree with the structure of observations."""

        def template(shape: Any) -> Tree:
            if isinstance(shape, dict):
                return {key: template(value) for key, value in shape.items()}
            nested = isinstance(shape, tuple) and shape and not isinstance(shape[0], int)
            return tuple(template(item) for item in shape) if nested else 0

        return template(self.spec.observation_shape)

    def _no_actor(self, what: str) -> NoReturn:
        raise UnsupportedError(
            f"{what} of {type(self).__name__} needs a return to aim at: use as_stateful_wrapper(target_return)"
        )

    def actor(self, *, greedy: bool, n: int = 1) -> Any:
        """Refused: a sequence model cannot act without a return to aim at."""
        self._no_actor("acting")

    def sample_action(self, x: Tree) -> Array:
        """Refused, as `actor`."""
        self._no_actor("sampling")

    def save_policy(self, fname: str | Path) -> None:
        """Refused for now: an export would need the context as further inputs."""
        raise UnsupportedError(f"{type(self).__name__} cannot be exported yet: save the model with save() instead")
