"""Building an algorithm for data or an environment, and argument checks that catch mistakes before training starts."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from birl.algorithm.learner import KNOWN, Definition
from birl.checks import check
from birl.config import AlgorithmConfig
from birl.dataset import ReplayBufferBase
from birl.envs import single_spaces
from birl.errors import ActionRangeWarning, ConfigError, EnvironmentMismatchError, ShapeError
from birl.spaces import as_shape, describe_spec
from birl.types import ActionSpace, Array, Shape, Spec


def check_fit_arguments(dataset: Any, evaluators: Any, *callbacks: Any) -> None:
    """Catch common mistakes in calls of `Algorithm.fit`."""
    for callback in callbacks:
        if callback is not None and not callable(callback):
            raise ConfigError(f"a callback is {callback!r:.80}; it must be a function (algo, epoch, step)")
    if not isinstance(dataset, ReplayBufferBase):
        raise ConfigError(
            f"fit takes a dataset, got {type(dataset).__name__}: make one with birl.dataset.MDPDataset(observations, "
            "actions, rewards, terminals, timeouts)"
        )
    if evaluators is not None and not (isinstance(evaluators, Mapping) and all(map(callable, evaluators.values()))):
        raise ConfigError("evaluators must be a dict from names to evaluators: {'td_error': TDErrorEvaluator()}")
    for name, evaluator in (evaluators or {}).items():
        if inspect.isclass(evaluator):
            raise ConfigError(f"the evaluator {name!r} is a class: give an object, {evaluator.__name__}(…)")


def check_picker(dataset: Any, config: Any) -> None:
    """Reject n-step returns whose discount or reward scaling differs from the configuration's.

    Raises:
        ConfigError: naming both.
    """
    picker, scaler = dataset.transition_picker, config.reward_scaler
    gamma = getattr(picker, "gamma", None)
    if gamma is None:
        return
    if gamma != config.gamma:
        raise ConfigError(
            f"the dataset's {type(picker).__name__} discounts with gamma={gamma}, {type(config).__name__} with "
            f"gamma={config.gamma}: give both the same"
        )
    if picker.n_steps > 1 and scaler is not None and scaler.get_type() not in ("multiply", "return"):
        raise ConfigError(
            f"{type(scaler).__name__} cannot be used with n-step returns: scaling the sum is not the sum of scaled "
            "rewards. Use MultiplyRewardScaler or ReturnBasedRewardScaler, or single steps"
        )


def check_scalers(config: Any, spec: Spec) -> None:
    """Reject scalers of the wrong shape (broadcasting would hide the error) and scalers of discrete actions.

    Raises:
        ShapeError: naming the scaler.
        ConfigError: if discrete actions are to be scaled.
    """
    if spec.discrete_action and config.action_scaler is not None:
        raise ConfigError(
            f"action_scaler is a {type(config.action_scaler).__name__}, but the actions are discrete: they are numbers "
            "of choices, which cannot be scaled; leave action_scaler out"
        )
    wanted = {"observation_scaler": spec.observation_shape}
    if not spec.discrete_action:
        wanted["action_scaler"] = (spec.action_size,)
    for name, shape in wanted.items():
        scaler = getattr(config, name)
        fitted: Any = getattr(scaler, "minimum", getattr(scaler, "mean", None))
        own = np.shape(fitted)
        stacked = len(own) == 3  # images: one frame's parameters serve a stack of them
        if scaler is not None and scaler.built and own and not stacked and own != shape:
            raise ShapeError(f"{name} has parameters of shape {own}, but what it scales has shape {shape}")


def checked_spec(kind: Definition, shape: Shape, action_size: int, discrete: bool | None) -> Spec:
    """The spec that an algorithm's networks are built for.

    Raises:
        ConfigError: if the sizes are impossible, or the actions are not those that it takes.
    """
    action_size = check("action_size", action_size, int, low=1)
    if kind.actions is ActionSpace.BOTH:
        if discrete is None:
            raise ConfigError(f"{kind.name} handles both kinds of actions: say discrete_action=True or False")
    else:
        own = kind.actions is ActionSpace.DISCRETE
        if discrete not in (None, own):
            raise ConfigError(_other_actions(kind, own))
        discrete = own
    return Spec(as_shape(shape), action_size, bool(discrete))


def fit_to_dataset(kind: Definition, config: AlgorithmConfig, dataset: ReplayBufferBase) -> Spec:
    """Check that a dataset is one to learn from, and fit the scalers that are not fitted.

    Returns:
        The dataset's shapes.
    """
    info = dataset.dataset_info
    discrete = info.action_space is ActionSpace.DISCRETE
    check_actions(kind, discrete, "the dataset")
    check_picker(dataset, config)
    for scaler in (config.observation_scaler, None if discrete else config.action_scaler, config.reward_scaler):
        if scaler is not None and not scaler.built:
            scaler.fit_with_dataset(dataset)
    if not discrete and config.action_scaler is None:
        minimum, maximum = dataset.action_bounds()
        # less than the range is fine
        _warn_of_range(kind, np.minimum(minimum, -1), np.maximum(maximum, 1), "the dataset")
    return Spec(as_shape(dataset.observation_shape), info.action_size, discrete)


def check_dataset(kind: Definition, own: Spec, spec: Spec) -> None:
    """Raise `ShapeError` if a dataset's shapes are not those of the networks. It may lack the last discrete actions."""
    fits = spec.action_size <= own.action_size if own.discrete_action else spec.action_size == own.action_size
    if spec.observation_shape != own.observation_shape or not fits:
        raise ShapeError(
            f"the dataset has observations {spec.observation_shape} and {spec.action_size} actions, but this "
            f"{kind.name} was built for {own.observation_shape} and {own.action_size}"
        )


def fit_to_env(kind: Definition, config: AlgorithmConfig, spec: Spec, env: Any) -> None:
    """Fit the scalers that an environment's bounds determine and that are not fitted."""
    for scaler in (config.observation_scaler, None if spec.discrete_action else config.action_scaler):
        if scaler is not None and not scaler.built:
            scaler.fit_with_env(env)
    if not spec.discrete_action and config.action_scaler is None:
        space: Any = single_spaces(env)[1]
        _warn_of_range(kind, space.low, space.high, "the environment")


def needs_action_scaler(kind: Definition, config: AlgorithmConfig, env: Any) -> bool:
    """Whether an unbounded policy that is clipped is to be scaled to an environment's bounds."""
    space: Any = single_spaces(env)[1]
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    bounded = low is not None and high is not None and bool((abs(low) < 1e30).all() and (abs(high) < 1e30).all())
    return kind.acts.clipped and not kind.acts.bounded and bounded and config.action_scaler is None


def check_env(kind: Definition, own: Spec, spec: Spec) -> None:
    """Raise `EnvironmentMismatchError` if an environment's shapes are not those of the networks."""
    if spec != own:
        raise EnvironmentMismatchError(
            f"this {kind.name} was built for {describe_spec(own)}, the environment has {describe_spec(spec)}: use the "
            "environment (or the model) that belongs to it"
        )


def check_actions(kind: Definition, discrete: bool, source: str) -> None:
    """Raise `ConfigError` if an algorithm does not take the kind of actions that ``source`` has."""
    if kind.actions is not ActionSpace.BOTH and discrete != (kind.actions is ActionSpace.DISCRETE):
        other = _other_actions(kind, not discrete)
        raise ConfigError(f"{source} has {'discrete' if discrete else 'continuous'} actions: {other}")


def _warn_of_range(kind: Definition, low: Array, high: Array, source: str) -> None:
    bounded = np.isfinite(low).all() and np.isfinite(high).all()
    if kind.acts.bounded and bounded and not (np.allclose(low, -1) and np.allclose(high, 1)):
        warnings.warn(
            f"actions of {source} reach from {low.min():g} to {high.max():g}, but {kind.name}'s policy acts in "
            "[-1, 1]: set action_scaler=birl.preprocessing.MinMaxActionScaler()",
            ActionRangeWarning,
            stacklevel=4,
        )


def _other_actions(kind: Definition, discrete: bool) -> str:
    """The message for the other kind of actions: names the sibling, or algorithms that learn in the same loops."""
    sibling = kind.name.removeprefix("Discrete") if discrete else f"Discrete{kind.name}"
    if sibling == kind.name or sibling not in KNOWN:
        wanted = ActionSpace.CONTINUOUS if discrete else ActionSpace.DISCRETE
        own = kind.learns_from
        fitting = sorted(
            each.name
            for each in KNOWN.values()
            if each.actions is wanted
            and not each.evaluates
            and (each.learns_from.loops, each.learns_from.contexts) == (own.loops, own.contexts)
        )
        sibling = fitting[0] if len(fitting) == 1 else f"one of {', '.join(fitting)}"
    return f"{kind.name} takes {'discrete' if discrete else 'continuous'} actions only; use {sibling}"
