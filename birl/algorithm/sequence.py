"""Sequence models: algorithms that act on contexts and are conditioned on a target return."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

import numpy as np
import torch
from torch import nn

from birl.acting.export import export_policy
from birl.acting.sequence_context import (
    ContextModule,
    IdentityTransformerActionSampler,
    SoftmaxTransformerActionSampler,
    StatefulTransformerWrapper,
    TransformerActionSampler,
    TransformerInput,
    newest_output,
)
from birl.algorithm import environments
from birl.algorithm.algorithm import Algorithm
from birl.algorithm.experience import Trajectories
from birl.checks import check, named_arguments
from birl.config import AlgorithmConfig, config, field
from birl.dataset import ReplayBufferBase
from birl.errors import ShapeError, UnsupportedError
from birl.metrics import EnvironmentEvaluator
from birl.metrics.evaluators import OverTransitions
from birl.models import PositionEncodingType
from birl.preprocessing.units import copy_array
from birl.run.agent import Agent
from birl.run.options import AgentOptions, FitOptions
from birl.run.protocols import Evaluator, ExplorerProtocol, StepBuffer
from birl.types import Array, Environment, State, Tree, tree_leaves, tree_map

ACTIVATION_TYPES = ("relu", "gelu", "tanh", "swish")


@config
class TransformerConfig(AlgorithmConfig):
    """Fields that every sequence model has."""

    context_size: int = field(20, "Number of steps that the transformer sees.", low=1)
    max_timestep: int = field(1000, "Largest step number with its own embedding; later steps share it.", low=1)
    num_heads: int = field(1, "Number of attention heads.", low=1)
    num_layers: int = field(3, "Number of attention blocks.", low=1)
    attn_dropout: float = field(0.1, "Dropout probability of attention weights.", low=0, below=1)
    resid_dropout: float = field(0.1, "Dropout probability of residual branches.", low=0, below=1)
    embed_dropout: float = field(0.1, "Dropout probability of embeddings.", low=0, below=1)
    activation_type: str = field("relu", "Activation inside the blocks.", choices=ACTIVATION_TYPES)
    position_encoding_type: PositionEncodingType = field(PositionEncodingType.SIMPLE, "Position encoding.")
    layer_norm_eps: float = field(1e-5, "Added to the variance in the layer norms of blocks.", low=0)

    @property
    def network_options(self) -> dict[str, Any]:
        """The arguments for `birl.models.DecisionTransformerNetwork`."""
        options = {name: getattr(self, name) for name in TransformerConfig.__annotations__}
        options["activation"] = options.pop("activation_type")
        return options


ConfigT = TypeVar("ConfigT", bound=TransformerConfig)
NetsT = TypeVar("NetsT", bound=nn.Module)
P = ParamSpec("P")
Result = TypeVar("Result")


def _with_signature_of(other: Callable[P, object]) -> Callable[[Callable[..., Result]], Callable[P, Result]]:
    """Return a decorator for a method that passes on the arguments of another method, which editors then complete."""

    def decorate(method: Callable[..., Result]) -> Callable[P, Result]:
        result = inspect.signature(method).return_annotation
        vars(method)["__signature__"] = inspect.signature(other).replace(return_annotation=result)
        return method

    return decorate


class TransformerAlgorithm(Algorithm[ConfigT, NetsT], Generic[ConfigT, NetsT]):
    """Base of sequence models: trained on slices of trajectories, acting with a context."""

    learns_from = Trajectories()

    def as_stateful_wrapper(
        self, target_return: float, action_sampler: TransformerActionSampler | None = None
    ) -> StatefulTransformerWrapper:
        """Return a wrapper that remembers the steps of its episode.

        Args:
            target_return: the target return.
            action_sampler: makes actions from outputs. By default the output is the continuous action, and a
                `SoftmaxTransformerActionSampler` samples discrete ones.
        """
        discrete = self.spec.actions.discrete
        default = SoftmaxTransformerActionSampler() if discrete else IdentityTransformerActionSampler()
        return StatefulTransformerWrapper(self, target_return, action_sampler or default)

    def agent(  # type: ignore[override]
        self,
        n: int = 1,
        buffer: StepBuffer | None = None,
        explorer: ExplorerProtocol | None = None,
        *,
        target_return: float,
        action_sampler: TransformerActionSampler | None = None,
        env: Environment | None = None,
        **options: Unpack[AgentOptions],
    ) -> Agent:
        """Make an agent with a target return in every episode. See `birl.algorithm.Algorithm.agent`.

        Args:
            target_return, action_sampler: see `as_stateful_wrapper`.
            n, buffer, explorer, env, **options: see `birl.algorithm.Algorithm.agent`.
        """
        aiming: Any = self.as_stateful_wrapper(target_return, action_sampler)
        return environments.agent(aiming, n, buffer, explorer, env, options)

    def fitter(
        self,
        dataset: ReplayBufferBase,
        n_steps: int,
        n_steps_per_epoch: int = 10000,
        experiment_name: str | None = None,
        with_timestamp: bool = True,
        *,
        evaluators: Mapping[str, Evaluator] | None = None,
        enable_ddp: bool = False,
        eval_env: Environment | None = None,
        eval_target_return: float | None = None,
        eval_action_sampler: TransformerActionSampler | None = None,
        **options: Unpack[FitOptions],
    ) -> Generator[tuple[int, dict[str, float]], None, None]:
        """Train on a dataset, one epoch at each iteration. See `fit`."""
        evaluators = {} if evaluators is None else evaluators
        if isinstance(evaluators, Mapping):  # `Algorithm.fitter` refuses anything else
            for name, evaluator in evaluators.items():
                if isinstance(evaluator, OverTransitions):
                    raise UnsupportedError(
                        f"the evaluator {name!r} asks for single transitions, which {type(self).__name__} does not act "
                        "on: give eval_env and eval_target_return, or an evaluator of your own"
                    )
            if eval_env is not None:
                if eval_target_return is None:
                    raise UnsupportedError("eval_env needs eval_target_return: the return that the policy is to aim at")
                played = _AimedEvaluator(eval_env, eval_target_return, eval_action_sampler)
                evaluators = {**evaluators, "environment": played}
        run = dataset, n_steps, n_steps_per_epoch, experiment_name, with_timestamp
        yield from super().fitter(*run, evaluators=evaluators, enable_ddp=enable_ddp, **options)

    @named_arguments
    @_with_signature_of(fitter)
    def fit(self, *args: Any, **options: Any) -> list[tuple[int, dict[str, float]]]:
        """Train on a dataset. See `birl.algorithm.Algorithm.fit`.

        Args:
            dataset: replay buffer or dataset.
            n_steps: number of updates.
            eval_env: environment for evaluation after each epoch. The mean return of 10 episodes, the same ones each
                time, is logged as ``environment``.
            eval_target_return: target return in ``eval_env``.
            eval_action_sampler: makes the actions in ``eval_env``; see `as_stateful_wrapper`.
            n_steps_per_epoch, experiment_name, with_timestamp, evaluators, enable_ddp, **options: see
                `birl.algorithm.Algorithm.fit`.

        Returns:
            ``(epoch, metrics)`` for each epoch.
        """
        return super().fit(*args, **options)

    def predict(self, inpt: TransformerInput) -> Array:
        """Return action ``[A]``, or logits ``[A]`` of discrete actions, for the newest step of one context.

        `as_stateful_wrapper` keeps the context between steps.
        """
        if not isinstance(inpt, TransformerInput):
            raise ShapeError(
                f"{type(self).__name__}.predict takes a TransformerInput: to act step by step, use "
                "as_stateful_wrapper(target_return).predict(observation, reward)"
            )
        size, actions = self.config.context_size, np.asarray(inpt.actions)
        parts = {each.name: getattr(inpt, each.name) for each in dataclasses.fields(inpt) if each.name != "rewards"}
        lengths = {name: [len(leaf) for leaf in tree_leaves(part)] for name, part in parts.items()}
        if min(map(min, lengths.values())) < 1 or len({each for part in lengths.values() for each in part}) > 1:
            raise ShapeError(f"a context has {lengths} steps: all parts must have the same number of them, at least 1")
        actions = actions.reshape(len(actions), *self.spec.actions.storage_spec.shape)
        rows = (self.learner.policy.checked(inpt.observations), actions, inpt.returns_to_go, inpt.timesteps)
        observation, action, returns, step = (
            tree_map(lambda leaf: np.asarray(leaf)[None, -size:], part) for part in rows
        )
        return self.predict_context(observation, action, returns, step)[0]

    def predict_context(self, observation: Tree, action: Array, returns_to_go: Array, timestep: Array) -> Array:
        """Return outputs for the newest steps ``[n, A]`` of ``n`` contexts ``[n, L, …]``; padding has timestep 0."""
        policy, context = self.learner.policy, tree_map(copy_array, (observation, action, returns_to_go, timestep))
        policy.set_mode(True)
        with torch.no_grad():
            output = newest_output(self.nets.get_submodule(policy.policy.network), self.units, *context)
            return policy.to_environment(output)

    def save_policy(self, fname: str | Path, batched: bool = False) -> None:
        """Export the greedy policy with its scalers: ``.pt`` (TorchScript), ``.onnx`` or ``.pt2`` (torch.export).

        The file needs no birl. Before it gets its name, its outputs are compared with the policy's. It takes a context
        in environment units, oldest step first, with ``L = context_size`` steps. Steps before the beginning of an
        episode are padding, whose timestep is 0 and whose other values are ignored:

        ====================  =================  ==============================================================
        name (ONNX)           float32            meaning
        ====================  =================  ==============================================================
        ``observation_0``, …  ``[L, *shape]``    observations, one input for each array
        ``action``            ``[L, A]``         actions; the last is ignored (``[L, 1]`` if discrete)
        ``return_to_go``      ``[L, 1]``         remaining returns to collect at each step
        ``timestep``          (int64) ``[L]``    numbers of the steps, from 1
        ``output_0``          ``[A]``            action of the last step (int64 ``[]`` if discrete)
        ====================  =================  ==============================================================

        Differs from d3rlpy: contexts may be padded, and the reward scaler is part of the export, too.

        Args:
            fname: path of the file; its suffix names the format.
            batched: whether the export takes contexts of any number of episodes at once: every shape has a first
                dimension ``B``, and discrete actions are int64.

        Raises:
            ConfigError: for another suffix.
            UnsupportedError: if the export behaves differently; nothing is written then.
        """
        spec, length, device = self.spec, self.config.context_size, self.torch_device
        steps = torch.arange(length, device=device)
        started = (steps + steps.unsqueeze(1) + 2 - length).clamp(min=0)  # contexts of 1, 2, … real steps
        late = (steps + self.config.max_timestep).unsqueeze(0)
        timestep = torch.cat((started, late))
        count = len(timestep)
        steps_of = lambda leaf: leaf.example(count * length, device).view(count, length, *leaf.shape)  # noqa: E731
        observation = tree_map(steps_of, spec.observations)
        drawn = spec.actions.sample(count * length, np.random.default_rng(0))
        action = torch.as_tensor(drawn, device=device).view(count, length, *spec.actions.storage_spec.shape)
        example = (observation, action, torch.zeros(count, length, 1, device=device), timestep)
        names = [f"observation_{index}" for index, _ in enumerate(tree_leaves(observation))]
        self.learner.set_mode(acting=True)
        module = ContextModule(self.learner.policy)
        single = [torch.float32] * (len(names) + 2) + [torch.int64]
        inputs = [*names, "action", "return_to_go", "timestep"]
        export_policy(module, example, fname, inputs, None if check("batched", batched, bool) else single)


class _AimedEvaluator:
    """Mean return of episodes with a target return. Its seed is part of checkpoints."""

    def __init__(self, env: Environment, target_return: float, sampler: TransformerActionSampler | None) -> None:
        self._evaluator, self._target_return, self._sampler = EnvironmentEvaluator(env), target_return, sampler

    def __call__(self, algo: TransformerAlgorithm[Any, Any], dataset: object = None) -> float:
        return self._evaluator(algo.as_stateful_wrapper(self._target_return, self._sampler))

    def get_state(self) -> State:
        return self._evaluator.get_state()

    def set_state(self, state: State) -> None:
        self._evaluator.set_state(state)
