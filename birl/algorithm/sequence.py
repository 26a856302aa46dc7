"""What sequence models add to `Algorithm`: a context while acting, and a return to aim at."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from birl.acting.export import export_policy
from birl.algorithm.algorithm import Algorithm
from birl.checks import check
from birl.config import AlgorithmConfig, config, field
from birl.dataset import ReplayBufferBase
from birl.errors import ConfigError, NonFiniteError, ShapeError, UnsupportedError
from birl.metrics import EnvironmentEvaluator
from birl.metrics.evaluators import OverTransitions
from birl.models import PositionEncodingType
from birl.preprocessing.units import Units
from birl.spaces import example_observation
from birl.types import Array, Batch, State, Tree, is_shape, tree_leaves, tree_map

ACTIVATION_TYPES = ("relu", "gelu", "tanh", "swish")


@config
class TransformerConfig(AlgorithmConfig):
    """Fields that every sequence model has."""

    context_size: int = field(20, "Number of steps that the transformer sees.", low=1)
    max_timestep: int = field(1000, "Largest step number in an episode; later ones share its embedding.", low=1)
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
        """What `birl.models.DecisionTransformerNetwork` takes of these fields."""
        return {
            "context_size": self.context_size,
            "max_timestep": self.max_timestep,
            "num_heads": self.num_heads,
            "num_layers": self.num_layers,
            "attn_dropout": self.attn_dropout,
            "resid_dropout": self.resid_dropout,
            "embed_dropout": self.embed_dropout,
            "activation": self.activation_type,
            "position_encoding_type": self.position_encoding_type,
            "layer_norm_eps": self.layer_norm_eps,
        }


ConfigT = TypeVar("ConfigT", bound=TransformerConfig)
NetsT = TypeVar("NetsT", bound=nn.Module)


@dataclass(frozen=True)
class TransformerInput:
    """What a sequence model sees of one episode, oldest step first, in environment units.

    Attributes:
        observations: tree ``[L, …]``.
        actions: ``[L, A]``, or integers ``[L, 1]``; the last one is not looked at.
        rewards: ``[L, 1]``.
        returns_to_go: ``[L, 1]``.
        timesteps: int ``[L]``, counted from 1; 0 is padding.
    """

    observations: Tree
    actions: Array
    rewards: Array
    returns_to_go: Array
    timesteps: Array


class TransformerActionSampler(Protocol):
    """Turns a transformer's output for the newest step of one episode into an action."""

    def __call__(self, transformer_output: Array) -> Any:
        """The action, ``[A]`` or an integer.

        Args:
            transformer_output: ``[A]``: an action, or the logits of discrete actions.
        """


class IdentityTransformerActionSampler(TransformerActionSampler):
    """The output is the action (continuous actions)."""

    def __call__(self, transformer_output: Array) -> Array:
        """The output itself."""
        return transformer_output


class SoftmaxTransformerActionSampler(TransformerActionSampler):
    """Draws a discrete action with the probabilities ``softmax(logits / temperature)``.

    It draws from torch's generator, as policies do: `birl.seed` fixes it, and a resumed run goes on with it.

    Args:
        temperature: larger ones give more even probabilities; > 0.

    Raises:
        ConfigError: if it is not.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = float(check("temperature", temperature, float, above=0))

    def __call__(self, transformer_output: Array) -> int:
        """The drawn action."""
        noise = torch.empty(len(transformer_output), dtype=torch.float64).exponential_().numpy()
        return int(np.argmax(np.asarray(transformer_output, np.float64) / self.temperature - np.log(noise)))


class GreedyTransformerActionSampler(TransformerActionSampler):
    """Takes the most probable discrete action."""

    def __call__(self, transformer_output: Array) -> int:
        """The action of the largest logit; the first of several."""
        return int(np.argmax(transformer_output))


class TransformerActor:
    """Acts in ``n`` environments with the last ``context_size`` steps of each in view."""

    def __init__(self, algorithm: Any, target_return: float, sampler: TransformerActionSampler, n: int) -> None:
        self._target = _finite("target_return", target_return)
        self._algorithm, self._sampler, self.n = algorithm, sampler, n
        self.extra: dict[str, Array] = {}
        length, spec = algorithm.config.context_size, algorithm.spec
        self._observation: Tree = None
        if spec.discrete_action:
            self._action = np.zeros((n, length, 1), np.int64)
        else:
            self._action = np.zeros((n, length, spec.action_size), np.float32)
        self._return = np.zeros((n, length, 1), np.float32)
        self._step = np.zeros((n, length), np.int64)  # 0 is padding

    def __call__(self, observation: Tree, is_first: Array, reward: Array) -> Array:
        """Actions ``[n, A]`` or int64 ``[n]``; ``reward`` is that of the previous step."""
        first, reward = np.asarray(is_first, bool), np.asarray(reward, np.float32)
        observation = self._algorithm._observation(observation)
        if not np.isfinite(reward[~first]).all():
            raise NonFiniteError(f"a reward is {reward[~first]}: no return is left to aim at")
        wanted, step = self._return[:, -1, 0] - reward, self._step[:, -1] + 1
        if self._observation is None:
            length = self._step.shape[1]
            self._observation = tree_map(lambda x: np.zeros((self.n, length, *x.shape[1:]), x.dtype), observation)
        for context in (*tree_leaves(self._observation), self._action, self._return, self._step):
            context[:, :-1] = context[:, 1:]
            context[first] = 0
        tree_map(lambda context, x: context.__setitem__((slice(None), -1), x), self._observation, observation)
        self._return[:, -1, 0] = np.where(first, self._target, wanted)
        self._step[:, -1] = np.where(first, 1, np.minimum(step, self._algorithm.config.max_timestep))
        self._action[:, -1] = 0
        output = self._algorithm.predict_context(self._observation, self._action, self._return, self._step)
        chosen = [np.atleast_1d(self._sampler(row)) for row in output]
        if any(each.dtype.kind not in "biuf" or each.shape != self._action.shape[2:] for each in chosen):
            raise ShapeError(
                f"{type(self._sampler).__name__} gave {chosen[0].tolist()!r:.80}; an action sampler gives an action of "
                f"shape {self._action.shape[2:]}, or an integer where actions are discrete"
            )
        self._action[:, -1] = np.stack(chosen)
        newest = self._action[:, -1].copy()
        return newest[:, 0] if self._algorithm.spec.discrete_action else newest

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


def _finite(name: str, value: Any) -> float:
    """``value`` as a float.

    Raises:
        ConfigError: if it is none, or not finite.
    """
    try:
        number = float(np.asarray(value, np.float64).reshape(()))
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name} is {value!r:.80}; it must be a finite number")
    return number


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
        """Action ``[A]`` (or an integer) for the newest observation ``x``, without batch, and the reward before it."""
        shape = self._algo.spec.observation_shape
        if is_shape(shape) and (isinstance(x, tuple) or np.shape(x) != shape):  # type: ignore[arg-type]
            given = "a tuple" if isinstance(x, tuple) else f"an array of shape {np.shape(x)}"  # type: ignore[arg-type]
            raise ShapeError(
                f"{given} was given; predict takes one observation of shape {shape}, without batch (env.reset() gives "
                "an observation and a dict)"
            )
        observation = tree_map(lambda leaf: np.asarray(leaf)[None], x)
        reward = _finite("reward", reward)
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
            action_sampler: makes actions from outputs; by default the output itself is a continuous action, and a
                discrete one is drawn by a `SoftmaxTransformerActionSampler`.
        """
        sampler = action_sampler
        if sampler is None and self.spec.discrete_action:
            sampler = SoftmaxTransformerActionSampler()
        return StatefulTransformerWrapper(self, target_return, sampler or IdentityTransformerActionSampler())

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
        """Train on a dataset, one epoch at each iteration. See `birl.algorithm.Algorithm.fit`.

        Args:
            dataset: replay buffer or dataset.
            n_steps: number of updates.
            eval_env: environment that is played in after each epoch; the mean return of 10 episodes, the same ones
                each time, is logged as ``environment``.
            eval_target_return: return to aim at there.
            eval_action_sampler: makes actions there; see `as_stateful_wrapper`.
            evaluators, **options: as in `birl.algorithm.Algorithm.fit`.
        """
        if eval_env is not None and eval_target_return is None:
            raise UnsupportedError("eval_env needs eval_target_return: the return that the policy is to aim at")
        evaluators = {} if evaluators is None else evaluators
        if isinstance(evaluators, Mapping):  # anything else is refused below
            for name, evaluator in evaluators.items():
                if isinstance(evaluator, OverTransitions):
                    raise UnsupportedError(
                        f"the evaluator {name!r} asks for single transitions, which {type(self).__name__} does not act "
                        "on: give eval_env and eval_target_return, or an evaluator of your own"
                    )
            if eval_env is not None and eval_target_return is not None:
                played = _AimedEvaluator(eval_env, eval_target_return, eval_action_sampler)
                evaluators = {**evaluators, "environment": played}
        yield from super().fitter(dataset, n_steps, evaluators=evaluators, **options)

    def predict(self, inpt: TransformerInput) -> Array:
        """Action ``[A]``, or logits ``[A]`` of discrete actions, for the newest step of one context.

        `as_stateful_wrapper` keeps the context for you.
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
        if self.spec.discrete_action and actions.ndim == 1:
            actions = actions[:, None]
        rows = (self._observation(inpt.observations), actions, inpt.returns_to_go, inpt.timesteps)
        observation, action, returns, step = (
            tree_map(lambda leaf: np.asarray(leaf)[None, -size:], part) for part in rows
        )
        return self.predict_context(observation, action, returns, step)[0]

    def predict_context(self, observation: Tree, action: Array, returns_to_go: Array, timestep: Array) -> Array:
        """Outputs for the newest steps ``[n, A]`` of ``n`` contexts ``[n, L, …]``; padding has timestep 0."""
        with torch.no_grad(), self.in_acting_mode():
            context = (observation, action, returns_to_go, timestep)
            return self.to_environment(_newest_output(self.nets.get_submodule(self.acting), self.units, *context))

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
        """Export the greedy policy with its scalers: ``.pt`` (TorchScript), ``.onnx`` or ``.pt2`` (torch.export).

        The file needs no birl. It is checked against the policy itself before it gets its name. It takes contexts in
        environment units, oldest step first, with ``L = context_size`` steps and any batch size ``B``; what comes
        before the beginning of an episode is padding, whose timestep is 0 and whose other values are not looked at:

        ====================  ==========================================  ======================================
        name (ONNX)           shape                                       what
        ====================  ==========================================  ======================================
        ``observation_0``, …  ``[B, L, *shape]``                          observations, one input for each array
        ``action``            float ``[B, L, A]`` or int64 ``[B, L, 1]``  actions; the last is not looked at
        ``return_to_go``      float ``[B, L, 1]``                         returns to collect from each step on
        ``timestep``          int64 ``[B, L]``                            numbers of the steps, from 1
        ``output_0``          float ``[B, A]`` or int64 ``[B]``           actions of the last steps
        ====================  ==========================================  ======================================

        Differs from d3rlpy: there is a batch dimension, contexts may be padded, and the reward scaler is part of the
        export, too.

        Raises:
            ConfigError: for another suffix.
            UnsupportedError: if the export behaves differently; nothing is written then.
        """
        spec, length, device = self.spec, self.config.context_size, self.torch_device
        steps = torch.arange(length, device=device)
        begun = (steps + steps.unsqueeze(1) + 2 - length).clamp(min=0)  # contexts of 1, 2, … real steps
        late = (steps + self.config.max_timestep).unsqueeze(0)
        timestep = torch.cat((begun, late))
        count = len(timestep)
        observation = tree_map(
            lambda leaf: leaf.new_zeros(count, length, *leaf.shape[1:]),
            example_observation(spec.observation_shape, device),
        )
        if spec.discrete_action:
            action = (torch.arange(count * length, device=device) % spec.action_size).view(count, length, 1)
        else:
            action = torch.zeros(count, length, spec.action_size, device=device)
        example = (observation, action, torch.zeros(count, length, 1, device=device), timestep)
        names = [f"observation_{index}" for index, _ in enumerate(tree_leaves(observation))]
        with self.in_acting_mode():
            export_policy(ContextPolicy(self), example, fname, [*names, "action", "return_to_go", "timestep"])


class _AimedEvaluator:
    """Mean return of episodes that aim at a return. Its seed is part of checkpoints."""

    def __init__(self, env: Any, target_return: float, sampler: TransformerActionSampler | None) -> None:
        self._evaluator, self._target_return, self._sampler = EnvironmentEvaluator(env), target_return, sampler

    def __call__(self, algo: Any, dataset: Any = None) -> float:
        return self._evaluator(algo.as_stateful_wrapper(self._target_return, self._sampler))

    def get_state(self) -> State:
        return self._evaluator.get_state()

    def set_state(self, state: State) -> None:
        self._evaluator.set_state(state)


class ContextPolicy(nn.Module):
    """The greedy policy with its scalers: contexts in, environment actions out. This is what is exported."""

    def __init__(self, algorithm: Any) -> None:
        super().__init__()
        self.transformer = algorithm.nets.get_submodule(algorithm.acting)
        self._units = algorithm.units

    def forward(self, context: tuple[Tree, Tensor, Tensor, Tensor]) -> Tensor:
        """Actions ``[B, A]``, or int64 ``[B]``, for observations, actions, returns-to-go and timesteps."""
        output = _newest_output(self.transformer, self._units, *context)
        return output.argmax(-1) if self._units.discrete else self._units.environment_action(output)


def window_outputs(transformer: nn.Module, batch: Batch) -> Tensor:
    """A transformer's outputs ``[B, L, A]`` for the windows of a batch."""
    extra = batch.extra
    output: Tensor = transformer(
        batch.observation, batch.action, extra["returns_to_go"], extra["timestep"], batch.weight
    )
    return output


def _newest_output(
    transformer: nn.Module, units: Units, observation: Tree, action: Any, returns_to_go: Any, timestep: Any
) -> Tensor:
    """A transformer's outputs ``[B, A]`` for the newest steps of contexts in environment units."""
    step = units.tensor(timestep).to(torch.int64)
    output: Tensor = transformer(
        units.observation(observation),
        units.action(action),
        units.reward(returns_to_go),
        step,
        (step > 0).to(torch.float32),
    )
    return output[:, -1]
