"""Training in environments, as ``birl train`` sets it up: environments, exploration, buffer, defaults that learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from birl.acting.explorers import Explorer, LinearDecayEpsilonGreedy, NormalNoise
from birl.actions import actions_of
from birl.algorithm import Algorithm
from birl.cli.common import flags, make_environment
from birl.config import AlgorithmConfig
from birl.dataset import (
    BasicTransitionPicker,
    FrameStackTransitionPicker,
    LastFrameWriterPreprocess,
    MultiStepTransitionPicker,
    PrioritizedSampler,
    ReplayBuffer,
    create_fifo_replay_buffer,
)
from birl.envs import FrameStack, environment_spec, single_spaces
from birl.errors import ConfigError
from birl.types import is_shape

BUFFER_SIZE = 1_000_000
_FIRST, _EPSILON, _NOISE = 1000, (1.0, 0.05), 0.1
_EPSILON_FLAGS = ("epsilon_start", "epsilon_end", "epsilon_steps")
_IMAGE, _PRIORITY = 3, "priority_"
# The Atari papers' numbers, which some algorithms have as defaults, and what learns where observations are vectors.
_ATARI: dict[str, Any] = {"batch_size": [32], "learning_rate": [5e-5, 6.25e-5], "target_update_interval": [8000]}
_VECTORS: dict[str, Any] = {"batch_size": 64, "learning_rate": 1e-3, "target_update_interval": 100}
_INTERVAL = 2


class ExplorerName(StrEnum):
    """What turns greedy actions into those that are taken."""

    EPSILON_GREEDY = "epsilon-greedy"
    NOISE = "noise"
    NONE = "none"


def training_environment(
    name: str, num_envs: int | None = None, frame_stack: int = 1, action_mask: bool = False, **options: Any
) -> Any:
    """Make the environment of ``--env-id``, its last ``frame_stack`` observations joined, with masks of actions."""
    wrapper = None if frame_stack == 1 else partial(FrameStack, num_stack=frame_stack)
    return make_environment(name, num_envs, wrapper, action_mask, **options)


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
    shape = environment_spec(env, config.observation_keys).encoder_shape
    changed = {k: v for k, v in _VECTORS.items() if k not in chosen and getattr(config, k, None) in _ATARI[k]}
    if not is_shape(shape) or len(shape) == _IMAGE or not changed.keys() - {"batch_size"}:
        return config, given, ""
    words = " ".join(f"{name}={value:g}" for name, value in changed.items())
    if "update_interval" not in given:
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
    discrete = actions.discrete
    usual = ExplorerName.EPSILON_GREEDY if discrete else ExplorerName.NOISE
    noisy = _is_noisy(algorithm)
    explores = algorithm.acts.explores or noisy
    kind = given.get("explorer", ExplorerName.NONE if explores else usual)
    if kind not in (usual, ExplorerName.NONE):
        what = "discrete" if discrete else "continuous"
        raise ConfigError(f"--explorer {kind}: the actions are {what}, which takes --explorer {usual} or none")
    wrong = [name for name in _EPSILON_FLAGS if name in given and kind != ExplorerName.EPSILON_GREEDY]
    wrong += ["noise_std"] if "noise_std" in given and kind != ExplorerName.NOISE else []
    if wrong:
        needs = ExplorerName.NOISE if wrong == ["noise_std"] else ExplorerName.EPSILON_GREEDY
        why = "whose policy explores by itself" if explores else f"which explores by {kind}"
        remedy = f"give --explorer {needs}, too" if needs == usual else "leave it out"
        raise ConfigError(f"{flags(wrong)}: not for {type(algorithm).__name__}, {why}: {remedy}")
    explorer: Explorer | None = None
    why = "actions that the policy samples" if explores else "greedy actions"
    why = "those of noisy networks" if noisy else why
    if kind == ExplorerName.EPSILON_GREEDY:
        start, end = given.get("epsilon_start", _EPSILON[0]), given.get("epsilon_end", _EPSILON[1])
        duration = given.get("epsilon_steps", max(1, n_steps // 5))
        explorer = LinearDecayEpsilonGreedy(start, end, duration)
        why = f"epsilon-greedy ones (from {start:g} to {end:g} in {duration} steps)"
    elif kind == ExplorerName.NOISE:
        low, high = actions.bounds or (-1.0, 1.0)
        std = given.get("noise_std", _NOISE * float(np.mean(np.subtract(high, low)) / 2))
        explorer = NormalNoise(std=std)
        why = f"greedy ones with noise of deviation {std:g}"
    options = {"update_start_step": first, "random_steps": first, "explorer": explorer}
    return options, f"exploration: {first} random actions, then {why}"


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


def replay_buffer(
    env: Any, config: AlgorithmConfig, given: dict[str, Any], sampler: PrioritizedSampler | None = None
) -> ReplayBuffer | None:
    """The buffer that the options ask for; ``None`` for the loop's own.

    Frames that are stacked are stored once if they are images of one channel and steps are not added up.
    """
    stack, steps = given.get("frame_stack", 1), given.get("multi_step", 1)
    if "buffer_size" not in given and sampler is None and stack == steps == 1:
        return None
    shape = environment_spec(env, config.observation_keys).encoder_shape
    picker, writer = BasicTransitionPicker(), None
    if steps > 1:
        picker = MultiStepTransitionPicker(steps, config.gamma)
    elif stack > 1 and is_shape(shape) and len(shape) == _IMAGE and shape[0] == stack:
        picker, writer = FrameStackTransitionPicker(stack), LastFrameWriterPreprocess()
    limit = given.get("buffer_size", BUFFER_SIZE)
    parts: dict[str, Any] = {"transition_picker": picker, "writer_preprocessor": writer, "sampler": sampler}
    return create_fifo_replay_buffer(limit, env=env, observation_keys=config.observation_keys, **parts)
