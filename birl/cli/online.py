"""Parts of a ``birl train`` run in an environment: environments, cluster, explorer, sampler and replay buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, overload

import gymnasium
import numpy as np

from birl.acting.explorers import (
    Boltzmann,
    ConstantEpsilonGreedy,
    Explorer,
    ExponentialDecayEpsilonGreedy,
    Greedy,
    LinearDecayEpsilonGreedy,
    NormalNoise,
    OrnsteinUhlenbeckNoise,
    epsilon_ladder,
)
from birl.algorithm import Algorithm
from birl.cli.common import flags, import_user_module
from birl.cli.loading import make_environment
from birl.cli.train_options import BUFFER_SIZE, TABLE, ExplorerName, TrainOptions
from birl.config import AlgorithmConfig
from birl.dataset import (
    BasicTransitionPicker,
    EpisodicFIFOBuffer,
    FIFOBuffer,
    FrameStackTransitionPicker,
    HindsightSampler,
    LastFrameWriterPreprocess,
    MultiStepFrameStackTransitionPicker,
    MultiStepTransitionPicker,
    PrioritizedSampler,
    RandomShift,
    RecentSampler,
    ReplayBuffer,
    Sampler,
)
from birl.envs import Atari, FrameStack, environment_spec, single_spaces
from birl.errors import ConfigError
from birl.run.cluster import Cluster
from birl.spaces import Actions, actions_from_space
from birl.types import Environment, is_shape, leaf_shapes

_RANDOM_STEPS: Final = 1000
_EPSILON: Final = (1.0, 0.05)
_NOISE, _OU_NOISE, _OU_THETA = 0.1, 0.2, 0.15  # standard deviations as shares of half the action range, and a rate
_HINDSIGHT_K: Final = 4.0
_IMAGE_DIMENSIONS: Final = 3
# Fields whose defaults in some algorithms are from papers on Atari, and values that suit vector observations.
_ATARI_DEFAULTS: Final[dict[str, list[float]]] = {
    "batch_size": [32],
    "learning_rate": [5e-5, 6.25e-5],
    "target_update_interval": [8000],
}
_VECTOR_DEFAULTS: Final[dict[str, float]] = {"batch_size": 64, "learning_rate": 1e-3, "target_update_interval": 100}
_VECTOR_UPDATE_INTERVAL: Final = 2
_DISCRETE_EXPLORERS: Final = (ExplorerName.EPSILON_GREEDY, ExplorerName.BOLTZMANN, ExplorerName.EPSILON_LADDER)
_CONTINUOUS_EXPLORERS: Final = (ExplorerName.NOISE, ExplorerName.OU_NOISE)


# -- environments and processes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnvironmentSettings:
    """Settings of a run's environments.

    Attributes:
        name: Gymnasium id or ``module:factory``.
        frame_stack: number of stacked observations.
        action_mask: whether ``info["action_mask"]`` becomes a part of observations.
        atari: whether frames are preprocessed by `birl.envs.Atari`.
    """

    name: str
    frame_stack: int = 1
    action_mask: bool = False
    atari: bool = False

    @overload
    def make(self, num_envs: None = None, *, training: bool = False, **options: Any) -> gymnasium.Env[Any, Any]: ...

    @overload
    def make(self, num_envs: int | None, *, training: bool = False, **options: Any) -> Environment: ...

    def make(self, num_envs: int | None = None, *, training: bool = False, **options: Any) -> Environment:
        """Make the environment, or a vector of them.

        Args:
            num_envs: number of environments; ``None`` for a single environment, which is not a vector.
            training: whether ``atari`` clips rewards and ends an episode when a life is lost.
            **options: options of the environment.

        Raises:
            ConfigError: if it cannot be made, or if ``atari`` is set and it is not an Atari game.
        """
        wrapper: Any = None if self.frame_stack == 1 else partial(FrameStack, num_stack=self.frame_stack)
        if self.atari:
            stack = self.frame_stack if self.frame_stack > 1 else None
            wrapper = partial(Atari, num_stack=stack, is_eval=not training)
            options = {"frameskip": 1, "repeat_action_probability": 0.0, **options}
        try:
            return make_environment(self.name, num_envs, wrapper, self.action_mask, **options)
        except ConfigError as error:
            if not self.atari or "keyword argument 'frameskip'" not in str(error):
                raise
            raise ConfigError(
                f"{self.name} is not an Atari game, but --atari (or a recipe that sets it) preprocesses one: give a "
                "game such as ALE/Breakout-v5, or leave the option out"
            ) from error


def collector_environment(number: int, *, settings: EnvironmentSettings, module: str | None) -> Environment:
    """Make the environment of a collector, in the collector's process.

    Args:
        number: index of the environment among those of all collectors; it is not used, because all are equal.
        settings: settings of the environments.
        module: the user's module, which is imported first.
    """
    if module is not None:
        import_user_module(module)
    return settings.make(training=True)


def make_cluster(options: TrainOptions) -> Cluster | None:
    """Make the cluster of ``--collectors``; return ``None`` without this option."""
    if options.collectors is None:
        return None
    fields = options.feeding("Cluster")
    return Cluster(**fields, transport="processes" if options.address is None else "ray")


# -- defaults ----------------------------------------------------------------------------------------------------------


def with_vector_defaults(
    config: AlgorithmConfig, fields: Collection[str], env: Environment, options: TrainOptions
) -> tuple[AlgorithmConfig, TrainOptions, str]:
    """Replace defaults that were published for Atari if no observation is an image.

    Args:
        config: the algorithm's configuration.
        fields: fields that the user has set, which stay.
        env: training environment.
        options: options of the run; given options stay.

    Returns:
        Configuration, options, and a note about what was replaced.
    """
    shapes = leaf_shapes(environment_spec(env, config.observation_keys).encoder_shape)
    replaced: dict[str, Any] = {
        name: value
        for name, value in _VECTOR_DEFAULTS.items()
        if name not in fields and getattr(config, name, None) in _ATARI_DEFAULTS[name]
    }
    if any(len(shape) == _IMAGE_DIMENSIONS for shape in shapes) or not replaced.keys() - {"batch_size"}:
        game = str(getattr(env.spec, "id", ""))
        raw = game.startswith("ALE/") and not options.atari
        return config, options, f"{game} has raw frames; --atari preprocesses them as papers do" if raw else ""
    values = " ".join(f"{name}={value:g}" for name, value in replaced.items())
    if options.update_interval is None and not config.algorithm.learns_from.on_policy:
        options = dataclasses.replace(options, update_interval=_VECTOR_UPDATE_INTERVAL)
        values += f" --update-interval {_VECTOR_UPDATE_INTERVAL}"
    note = f"the defaults of {type(config).__name__} are for millions of images; set instead: {values}"
    return dataclasses.replace(config, **replaced), options, note


# -- exploration -------------------------------------------------------------------------------------------------------


def exploration(
    algorithm: Algorithm[Any, Any], env: Environment, n_steps: int, options: TrainOptions
) -> tuple[dict[str, Any], str]:
    """Choose the number of random steps at the start, and an explorer for policies that do not explore.

    Args:
        algorithm: the learner.
        env: training environment.
        n_steps: length of the run, which schedules follow.
        options: options of the run.

    Returns:
        Arguments of `Algorithm.fit_online`, and a note about them.

    Raises:
        ConfigError: if the options do not fit the actions or the algorithm.
    """
    random_steps = min(_RANDOM_STEPS, n_steps // 10) if options.random_steps is None else options.random_steps
    actions = actions_from_space(single_spaces(env)[1])
    noisy = _is_noisy(algorithm)
    explores = algorithm.acts.explores or noisy
    fitting = _DISCRETE_EXPLORERS if actions.discrete else _CONTINUOUS_EXPLORERS
    name = options.explorer or (ExplorerName.NONE if explores else fitting[0])
    allowed = (*fitting, ExplorerName.GREEDY, ExplorerName.NONE)
    if name not in allowed:
        kind = "discrete" if actions.discrete else "continuous"
        raise ConfigError(f"--explorer {name}: the actions are {kind}; give --explorer {' or '.join(allowed)}")
    wrong = [option for option in options.given() if TABLE[option].explorers and name not in TABLE[option].explorers]
    if wrong:
        needed = TABLE[wrong[0]].explorers[0]
        reason = "whose policy explores by itself" if explores else f"which explores by {name}"
        reason = "whose noisy networks explore" if noisy else reason
        remedy = f"give --explorer {needed}, too" if needed in fitting and not noisy else "leave it out"
        raise ConfigError(f"{flags(wrong)}: not for {type(algorithm).__name__}, {reason}: {remedy}")
    explorer, description = _make_explorer(name, actions, n_steps, options)
    if explorer is None:
        description = "actions sampled from the policy" if explores else "greedy actions"
        description = "actions of noisy networks" if noisy else description
    arguments = {"update_start_step": random_steps, "random_steps": random_steps, "explorer": explorer}
    note = f"exploration: {random_steps} random actions, then {description}"
    if random_steps >= n_steps:
        note = f"exploration: {random_steps} random actions, so nothing is learned in {n_steps} (--random-steps)"
    elif options.init_from is not None and (lower := _lower(name, random_steps, options)):
        note += f"; it starts from scratch with --init-from, too (to lower it: {' '.join(lower)})"
    return arguments, note


def _lower(name: ExplorerName, random_steps: int, options: TrainOptions) -> list[str]:
    """Return options with which a run that starts with a model explores less than by default."""
    lower = ["--random-steps 0"] if random_steps and options.random_steps is None else []
    falls = name == ExplorerName.EPSILON_GREEDY and not options.given("epsilon", "epsilon_start")
    return [*lower, *(["--epsilon-start 0.1"] if falls else [])]


def _make_explorer(
    name: ExplorerName, actions: Actions, n_steps: int, options: TrainOptions
) -> tuple[Explorer | list[Explorer] | None, str]:
    """Make the explorer of this name, or a list with an explorer for each collector; also return a description."""
    if name == ExplorerName.EPSILON_GREEDY:
        return _epsilon_greedy(n_steps, options)
    if name == ExplorerName.EPSILON_LADDER:
        if options.collectors is None:
            raise ConfigError("--explorer epsilon-ladder: one epsilon for each collector; give --collectors N, too")
        ladder = epsilon_ladder(options.collectors)
        highest, lowest = (member.compute_epsilon(0) for member in (ladder[0], ladder[-1]))
        return list(ladder), f"epsilon-greedy actions ({highest:.2g} to {lowest:.2g}, by collector)"
    if name == ExplorerName.BOLTZMANN:
        temperature = 1.0 if options.temperature is None else options.temperature
        return Boltzmann(temperature), f"actions from a softmax of values with temperature {temperature:g}"
    if name == ExplorerName.GREEDY:
        return Greedy(), "greedy actions"
    if name not in _CONTINUOUS_EXPLORERS:
        return None, ""
    return _noise(name, actions, options)


def _noise(name: ExplorerName, actions: Actions, options: TrainOptions) -> tuple[Explorer, str]:
    low, high = actions.bounds or (-1.0, 1.0)
    half_range = float(np.mean(np.subtract(high, low)) / 2)
    correlated = name == ExplorerName.OU_NOISE
    default = (_OU_NOISE if correlated else _NOISE) * half_range
    std = default if options.noise_std is None else _parse_numbers(options.noise_std)
    formatted = std if isinstance(std, list) else format(std, "g")
    description = f"greedy actions with noise of standard deviation {formatted}"
    if not correlated:
        return NormalNoise(std=std), description
    theta = _OU_THETA if options.noise_theta is None else options.noise_theta
    return OrnsteinUhlenbeckNoise(theta=theta, sigma=std), f"{description}, correlated in time (theta {theta:g})"


def _epsilon_greedy(n_steps: int, options: TrainOptions) -> tuple[Explorer, str]:
    if options.epsilon is not None:
        return ConstantEpsilonGreedy(options.epsilon), f"epsilon-greedy actions ({options.epsilon:g})"
    start = _EPSILON[0] if options.epsilon_start is None else options.epsilon_start
    end = _EPSILON[1] if options.epsilon_end is None else options.epsilon_end
    if (decay := options.epsilon_decay) is not None:
        description = f"epsilon-greedy actions (from {start:g} to {end:g}, times {decay:g} in each step)"
        return ExponentialDecayEpsilonGreedy(start, end, decay), description
    duration = options.epsilon_steps or max(1, n_steps // 5)
    explorer = LinearDecayEpsilonGreedy(start, end, duration)
    return explorer, f"epsilon-greedy actions (from {start:g} to {end:g} in {duration} steps)"


def _parse_numbers(text: str) -> float | list[float]:
    """Parse a number, or a list of numbers, such as ``0.1`` or ``0.1,0.2``."""
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--noise-std is {text!r}; give a number, or one for each dimension: 0.1,0.2") from error
    return numbers[0] if len(numbers) == 1 else numbers


def _is_noisy(algorithm: Algorithm[Any, Any]) -> bool:
    """Return whether the network that acts has, or will have, noisy layers."""
    names = {"critic": ("encoder_factory", "q_func_factory"), "actor": ("actor_encoder_factory", "encoder_factory")}
    factories = (getattr(algorithm.config, name, None) for name in names.get(algorithm.acts.network, ()))
    return any(getattr(factory, "noisy", False) for factory in factories)


# -- replay ------------------------------------------------------------------------------------------------------------


def prioritized_sampler(options: TrainOptions, n_minibatches: int) -> PrioritizedSampler | None:
    """Return the sampler of ``--prioritized``, with ``beta`` annealed to 1 over ``n_minibatches``, or ``None``."""
    if not options.prioritized:
        return None
    return PrioritizedSampler(**options.feeding("PrioritizedSampler"), beta_steps=max(1, n_minibatches))


def minibatch_sampler(env: Environment, options: TrainOptions, n_minibatches: int) -> Sampler | None:
    """Return the sampler of a replay buffer; ``None`` for uniform samples.

    Args:
        env: training environment, which computes the rewards for other goals.
        options: options of the run.
        n_minibatches: number of minibatches in the run, over which samplers are annealed.

    Raises:
        ConfigError: for ``--hindsight`` in an environment without goals.
    """
    sampler: Sampler | None = prioritized_sampler(options, n_minibatches)
    if options.recent is not None:
        sampler = RecentSampler(options.recent, anneal_steps=max(1, n_minibatches))
    if options.hindsight is None:
        return sampler
    unwrapped = getattr(env, "envs", [env])[0].unwrapped
    if not callable(getattr(unwrapped, "compute_reward", None)):
        raise ConfigError(
            f"--hindsight {options.hindsight}: the environment {type(unwrapped).__name__} has no compute_reward("
            "achieved_goal, desired_goal, info), which computes rewards for other goals, as in Gymnasium's GoalEnv: "
            "leave the option out"
        )
    ends = getattr(unwrapped, "compute_terminated", None)
    k = _HINDSIGHT_K if options.hindsight_k is None else options.hindsight_k
    goals, reward = str(options.hindsight), unwrapped.compute_reward
    return HindsightSampler(reward, goals, k, compute_terminated=ends, sampler=sampler)


def replay_buffer(
    env: Environment,
    config: AlgorithmConfig,
    options: TrainOptions,
    sampler: Sampler | None = None,
    lanes: int | None = None,
) -> ReplayBuffer | None:
    """Make a replay buffer; return ``None`` if the default buffer of the training loop suffices.

    Each of the stacked frames is stored only once if frames are images with one channel.

    Args:
        env: training environment.
        config: the algorithm's configuration.
        options: options of the run.
        sampler: see `minibatch_sampler`.
        lanes: number of lanes; by default one for each environment in ``env``.
    """
    stack, steps = options.frame_stack or 1, options.multi_step or 1
    is_default = not options.given("buffer_size", "whole_episodes", "random_shift")
    if is_default and sampler is None and stack == steps == 1:
        return None
    shape = environment_spec(env, config.observation_keys).encoder_shape
    picker, writer = BasicTransitionPicker(), None
    single_frames = stack > 1 and is_shape(shape) and len(shape) == _IMAGE_DIMENSIONS and shape[0] == stack
    if single_frames:
        picker, writer = FrameStackTransitionPicker(stack), LastFrameWriterPreprocess()
    if steps > 1:
        stacked = MultiStepFrameStackTransitionPicker(stack, steps, config.gamma)
        picker = stacked if single_frames else MultiStepTransitionPicker(steps, config.gamma)
    retention = EpisodicFIFOBuffer if options.whole_episodes else FIFOBuffer
    shift = None if options.random_shift is None else RandomShift(options.random_shift)
    keys = config.observation_keys
    if keys is not None and isinstance(sampler, HindsightSampler):  # stored even if networks do not read them
        keys = tuple(dict.fromkeys((*keys, "achieved_goal", "desired_goal")))
    parts: dict[str, Any] = {"transition_picker": picker, "writer_preprocessor": writer, "sampler": sampler}
    limit = options.buffer_size or BUFFER_SIZE
    return ReplayBuffer(retention(limit), env=env, lanes=lanes, observation_keys=keys, augmentation=shift, **parts)
