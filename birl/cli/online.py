"""Training in environments, as ``birl train`` sets it up: environments, exploration, buffer, defaults that learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from enum import StrEnum
from functools import partial
from typing import Any

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
from birl.cli.common import flags, import_own, make_environment
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
from birl.spaces import actions_of
from birl.types import is_shape, leaf_shapes

BUFFER_SIZE = 1_000_000
_GOALS = 4.0
_OF_BUFFER = {"buffer_size", "whole_episodes", "random_shift"}
_FIRST, _EPSILON, _NOISE, _OU_NOISE = 1000, (1.0, 0.05), 0.1, 0.2
_IMAGE, _PRIORITY = 3, "priority_"
# The Atari papers' numbers, which some algorithms have as defaults, and what learns where observations are vectors.
_ATARI: dict[str, Any] = {"batch_size": [32], "learning_rate": [5e-5, 6.25e-5], "target_update_interval": [8000]}
_VECTORS: dict[str, Any] = {"batch_size": 64, "learning_rate": 1e-3, "target_update_interval": 100}
_INTERVAL = 2


class ExplorerName(StrEnum):
    """What turns greedy actions into those that are taken."""

    EPSILON_GREEDY = "epsilon-greedy"
    EPSILON_LADDER = "epsilon-ladder"
    BOLTZMANN = "boltzmann"
    NOISE = "noise"
    OU_NOISE = "ou-noise"
    GREEDY = "greedy"
    NONE = "none"


class Order(StrEnum):
    """In which order the fragments of `birl.Cluster` are taken."""

    TOGETHER = "together"
    TURNS = "turns"
    ARRIVAL = "arrival"


class Gradients(StrEnum):
    """What several learners of `birl.Cluster` do with their gradients."""

    TOGETHER = "together"
    PUSHED = "pushed"


class ErrorAction(StrEnum):
    """What follows the error of an environment; see `birl.Cluster`."""

    STOP = "stop"
    RESTART = "restart"


class HindsightGoals(StrEnum):
    """Where the goals of `birl.dataset.HindsightSampler` come from."""

    FUTURE = "future"
    FINAL = "final"
    EPISODE = "episode"


_FOR_CHOICES = (ExplorerName.EPSILON_GREEDY, ExplorerName.BOLTZMANN, ExplorerName.EPSILON_LADDER)
_FOR_QUANTITIES = (ExplorerName.NOISE, ExplorerName.OU_NOISE)
_FLAGS: dict[str, tuple[ExplorerName, ...]] = {
    **dict.fromkeys(("epsilon_start", "epsilon_end", "epsilon_steps", "epsilon_decay"), _FOR_CHOICES[:1]),
    "epsilon": _FOR_CHOICES[:1],
    "temperature": _FOR_CHOICES[1:2],
    "noise_std": _FOR_QUANTITIES,
    "noise_theta": _FOR_QUANTITIES[1:],
}
EXPLORATION = ("explorer", *_FLAGS)
"""Options of what explores."""


def training_environment(
    name: str,
    num_envs: int | None = None,
    frame_stack: int = 1,
    action_mask: bool = False,
    *,
    atari: bool = False,
    training: bool = False,
    **options: Any,
) -> Any:
    """Make the environment of ``--env-id``, its last ``frame_stack`` observations joined, with masks of actions.

    With ``atari`` it is preprocessed: `birl.envs.Atari`, in ``training`` with clipped rewards and episodes of one life.
    """
    wrapper: Any = None if frame_stack == 1 else partial(FrameStack, num_stack=frame_stack)
    if atari:
        wrapper = partial(Atari, num_stack=frame_stack if frame_stack > 1 else None, is_eval=not training)
        options = {"frameskip": 1, "repeat_action_probability": 0.0, **options}
    try:
        return make_environment(name, num_envs, wrapper, action_mask, **options)
    except ConfigError as error:
        if not atari or "keyword argument 'frameskip'" not in str(error):
            raise
        raise ConfigError(
            f"{name} is no Atari game, which --atari and the recipes that set it are for: give a game such as "
            "ALE/Breakout-v5, or leave the option out"
        ) from error


def collector_environment(number: int, *, name: str, own: str | None, options: dict[str, Any]) -> Any:
    """The environment of a collector, in whichever process it is.

    Args:
        number: of the environment, among those of all collectors; they are alike.
        name, options: see `training_environment`.
        own: module that is imported first.
    """
    if own is not None:
        import_own(own)
    return training_environment(name, training=True, **options)


def cluster_of(given: dict[str, Any], num_envs: int | None) -> Cluster | None:
    """The collectors that the options ask for; ``None`` for none.

    Raises:
        ConfigError: for options of collectors that are not asked for.
    """
    if "collectors" not in given:
        if given:
            raise ConfigError(f"{flags(given)}: for collectors only; give --collectors N, too")
        return None
    address, order = given.get("address"), given.get("order")
    more: dict[str, Any] = {name: str(given[name]) for name in ("on_error", "gradients") if name in given}
    more |= {name: given[name] for name in ("learners", "shards") if name in given}
    if address is not None:
        more |= {"transport": "ray", "address": address}
    return Cluster(given["collectors"], num_envs or 1, given.get("fragment"), order and str(order), **more)


def with_defaults(
    config: AlgorithmConfig, chosen: Collection[str], env: Any, given: dict[str, Any]
) -> tuple[AlgorithmConfig, dict[str, Any], str]:
    """A configuration and options whose defaults learn in this environment.

    Args:
        config: the algorithm's own, with the user's choices.
        chosen: fields that the user has set; they stay.
        env: training environment.
        given: values of the command line's options; they stay, too.

    Returns:
        Both, and a note about what was changed.
    """
    shapes = leaf_shapes(environment_spec(env, config.observation_keys).encoder_shape)
    changed = {k: v for k, v in _VECTORS.items() if k not in chosen and getattr(config, k, None) in _ATARI[k]}
    if any(len(shape) == _IMAGE for shape in shapes) or not changed.keys() - {"batch_size"}:
        game = str(getattr(env.spec, "id", ""))
        raw = game.startswith("ALE/") and not given.get("atari")
        note = f"{game} gives its frames as they are; --atari preprocesses them as papers do" if raw else ""
        return config, given, note
    words = " ".join(f"{name}={value:g}" for name, value in changed.items())
    if "update_interval" not in given and not config.algorithm.learns_from.on_policy:
        given, words = {**given, "update_interval": _INTERVAL}, f"{words} --update-interval {_INTERVAL}"
    note = f"{type(config).__name__}'s own defaults are for millions of images; set here: {words}"
    return dataclasses.replace(config, **changed), given, note


def exploration(
    algorithm: Algorithm[Any, Any], env: Any, n_steps: int, given: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Options of `fit_online`: random steps at the start, and an explorer for policies that do not explore.

    Args:
        algorithm: the learner.
        env: training environment.
        n_steps: length of the run that schedules are made for.
        given: values of the command line's options.

    Returns:
        The options, and a note about them.

    Raises:
        ConfigError: if they do not fit together.
    """
    first = given.get("random_steps", min(_FIRST, n_steps // 10))
    actions = actions_of(single_spaces(env)[1])
    own, noisy = type(algorithm).__name__, _is_noisy(algorithm)
    explores = algorithm.acts.explores or noisy
    fitting = _FOR_CHOICES if actions.discrete else _FOR_QUANTITIES
    kind = given.get("explorer", ExplorerName.NONE if explores else fitting[0])
    allowed = (*fitting, ExplorerName.GREEDY, ExplorerName.NONE)
    if kind not in allowed:
        what = "discrete" if actions.discrete else "continuous"
        raise ConfigError(f"--explorer {kind}: the actions are {what}, which takes --explorer {' or '.join(allowed)}")
    wrong = [name for name, kinds in _FLAGS.items() if name in given and kind not in kinds]
    if wrong:
        needs = _FLAGS[wrong[0]][0]
        why = "whose policy explores by itself" if explores else f"which explores by {kind}"
        why = "whose noisy networks explore" if noisy else why
        remedy = f"give --explorer {needs}, too" if needs in fitting and not noisy else "leave it out"
        raise ConfigError(f"{flags(wrong)}: not for {own}, {why}: {remedy}")
    explorer, why = _explorer(kind, actions, n_steps, given)
    if explorer is None:
        why = "actions that the policy samples" if explores else "greedy actions"
        why = "those of noisy networks" if noisy else why
    options = {"update_start_step": first, "random_steps": first, "explorer": explorer}
    if first > n_steps:
        return options, f"exploration: {first} random actions, so nothing is learned in {n_steps} (--random-steps)"
    return options, f"exploration: {first} random actions, then {why}"


def _explorer(kind: str, actions: Any, n_steps: int, given: dict[str, Any]) -> tuple[Any, str]:
    """The explorer of this name with its options, or a list with one for each collector, and words about it."""
    if kind == ExplorerName.EPSILON_GREEDY:
        return _epsilon_greedy(n_steps, given)
    if kind == ExplorerName.EPSILON_LADDER:
        if "collectors" not in given:
            raise ConfigError("--explorer epsilon-ladder: one for each collector; give --collectors N, too")
        ladder = epsilon_ladder(given["collectors"])
        most, least = (each.compute_epsilon(0) for each in (ladder[0], ladder[-1]))
        return ladder, f"epsilon-greedy ones ({most:.2g} to {least:.2g}, by collector)"
    if kind == ExplorerName.BOLTZMANN:
        temperature = given.get("temperature", 1.0)
        return Boltzmann(temperature), f"those of a softmax of values with temperature {temperature:g}"
    if kind == ExplorerName.GREEDY:
        return Greedy(), "greedy actions"
    if kind not in _FOR_QUANTITIES:
        return None, ""
    low, high = actions.bounds or (-1.0, 1.0)
    drifts = kind == ExplorerName.OU_NOISE
    usual = (_OU_NOISE if drifts else _NOISE) * float(np.mean(np.subtract(high, low)) / 2)
    std = _numbers(given["noise_std"]) if "noise_std" in given else usual
    words = f"greedy ones with noise of deviation {std if isinstance(std, list) else format(std, 'g')}"
    if not drifts:
        return NormalNoise(std=std), words
    theta = given.get("noise_theta", 0.15)
    return OrnsteinUhlenbeckNoise(theta=theta, sigma=std), f"{words} that drifts (theta {theta:g})"


def _epsilon_greedy(n_steps: int, given: dict[str, Any]) -> tuple[Explorer, str]:
    chosen = [name for name in given if name.startswith("epsilon_")]
    if "epsilon" in given:
        if chosen:
            raise ConfigError(f"{flags(chosen)}: not with --epsilon, which is the same throughout; leave one out")
        return ConstantEpsilonGreedy(given["epsilon"]), f"epsilon-greedy ones ({given['epsilon']:g})"
    start, end = given.get("epsilon_start", _EPSILON[0]), given.get("epsilon_end", _EPSILON[1])
    if "epsilon_decay" in given:
        if "epsilon_steps" in given:
            raise ConfigError("--epsilon-steps and --epsilon-decay: a straight line or a factor; leave one out")
        decay = given["epsilon_decay"]
        words = f"epsilon-greedy ones (from {start:g} to {end:g}, times {decay:g} in each step)"
        return ExponentialDecayEpsilonGreedy(start, end, decay), words
    duration = given.get("epsilon_steps", max(1, n_steps // 5))
    explorer = LinearDecayEpsilonGreedy(start, end, duration)
    return explorer, f"epsilon-greedy ones (from {start:g} to {end:g} in {duration} steps)"


def _numbers(text: Any) -> Any:
    """A number, or a list of them, from ``0.1`` or ``0.1,0.2``."""
    try:
        numbers = [float(word) for word in str(text).split(",")]
    except ValueError as error:
        raise ConfigError(f"--noise-std is {text!r}; it must be a number, or one for each quantity: 0.1,0.2") from error
    return numbers[0] if len(numbers) == 1 else numbers


def _is_noisy(algorithm: Algorithm[Any, Any]) -> bool:
    """Whether the network that acts has, or will have, noise in its layers."""
    names = {"critic": ("encoder_factory", "q_func_factory"), "actor": ("actor_encoder_factory", "encoder_factory")}
    factories = (getattr(algorithm.config, name, None) for name in names.get(algorithm.acts.network, ()))
    return any(getattr(factory, "noisy", False) for factory in factories)


def prioritized_sampler(given: dict[str, Any], n_minibatches: int) -> PrioritizedSampler | None:
    """The sampler that the options ask for, whose ``beta`` rises to 1 over a run of so many minibatches.

    Raises:
        ConfigError: for options of a sampler that is not asked for.
    """
    chosen = {name: value for name, value in given.items() if name.startswith(_PRIORITY)}
    if "prioritized" in given:
        own = {name.removeprefix(_PRIORITY): value for name, value in chosen.items()}
        return PrioritizedSampler(**own, beta_steps=max(1, n_minibatches))
    if chosen:
        raise ConfigError(f"{flags(chosen)}: for prioritised replay only; give --prioritized, too")
    return None


def drawing_sampler(
    env: Any, given: dict[str, Any], n_minibatches: int, prioritized: Sampler | None = None
) -> Sampler | None:
    """The sampler that the options ask for; ``None`` for a uniform one.

    Args:
        env: training environment, which rewards other goals.
        given: values of the command line's options.
        n_minibatches: length of the run, in which recent steps come to count like all others.
        prioritized: that of ``--prioritized``.

    Raises:
        ConfigError: if they do not fit together, or the environment has no goals.
    """
    sampler = prioritized
    if "recent" in given:
        if prioritized is not None:
            raise ConfigError("--prioritized and --recent: both say which steps are drawn more often; leave one out")
        sampler = RecentSampler(given["recent"], anneal_steps=max(1, n_minibatches))
    if "hindsight" not in given:
        if "hindsight_k" in given:
            raise ConfigError(f"--hindsight-k {given['hindsight_k']:g}: for hindsight only; give --hindsight, too")
        return sampler
    own = getattr(env, "envs", [env])[0].unwrapped
    if not callable(getattr(own, "compute_reward", None)):
        raise ConfigError(
            f"--hindsight {given['hindsight']}: the environment {type(own).__name__} has no compute_reward("
            "achieved_goal, desired_goal, info), which rewards steps for other goals, as Gymnasium's GoalEnv has it: "
            "leave the option out"
        )
    ends = getattr(own, "compute_terminated", None)
    k = given.get("hindsight_k", _GOALS)
    return HindsightSampler(own.compute_reward, str(given["hindsight"]), k, compute_terminated=ends, sampler=sampler)


def replay_buffer(
    env: Any,
    config: AlgorithmConfig,
    given: dict[str, Any],
    sampler: Sampler | None = None,
    lanes: int | None = None,
) -> ReplayBuffer | None:
    """The buffer that the options ask for; ``None`` for the loop's own. It has ``lanes``, or as many as ``env``.

    Frames that are stacked are stored once if they are images of one channel.
    """
    stack, steps = given.get("frame_stack", 1), given.get("multi_step", 1)
    if not given.keys() & _OF_BUFFER and sampler is None and stack == steps == 1:
        return None
    shape = environment_spec(env, config.observation_keys).encoder_shape
    picker, writer = BasicTransitionPicker(), None
    once = stack > 1 and is_shape(shape) and len(shape) == _IMAGE and shape[0] == stack
    if once:
        picker, writer = FrameStackTransitionPicker(stack), LastFrameWriterPreprocess()
    if steps > 1:
        several = MultiStepFrameStackTransitionPicker(stack, steps, config.gamma)
        picker = several if once else MultiStepTransitionPicker(steps, config.gamma)
    retention = EpisodicFIFOBuffer if given.get("whole_episodes") else FIFOBuffer
    shift = RandomShift(given["random_shift"]) if "random_shift" in given else None
    keys = config.observation_keys
    if keys is not None and isinstance(sampler, HindsightSampler):  # stored, whether networks read them or not
        keys = tuple(dict.fromkeys((*keys, "achieved_goal", "desired_goal")))
    parts: dict[str, Any] = {"transition_picker": picker, "writer_preprocessor": writer, "sampler": sampler}
    limit = given.get("buffer_size", BUFFER_SIZE)
    return ReplayBuffer(retention(limit), env=env, lanes=lanes, observation_keys=keys, augmentation=shift, **parts)
