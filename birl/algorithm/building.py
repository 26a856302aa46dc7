"""Building an algorithm for data or an environment, and argument checks that catch mistakes before training starts."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from birl.checks import check
from birl.dataset import ReplayBufferBase
from birl.envs import environment_spec, single_spaces
from birl.errors import ActionRangeWarning, ConfigError, EnvironmentMismatchError, ShapeError
from birl.preprocessing import MinMaxActionScaler
from birl.spaces import as_shape, describe_spec
from birl.types import ActionSpace, Array, Shape, Spec

if TYPE_CHECKING:
    from birl.algorithm.algorithm import Algorithm


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


def checked_spec(kind: type[Algorithm[Any, Any]], shape: Shape, action_size: int, discrete: bool | None) -> Spec:
    """The spec that an algorithm's networks are built for.

    Raises:
        ConfigError: if the sizes are impossible, or the actions are not those that it takes.
    """
    action_size = check("action_size", action_size, int, low=1)
    if kind.actions is ActionSpace.BOTH:
        if discrete is None:
            raise ConfigError(f"{kind.__name__} handles both kinds of actions: say discrete_action=True or False")
    else:
        own = kind.actions is ActionSpace.DISCRETE
        if discrete not in (None, own):
            raise ConfigError(_other_actions(kind, own))
        discrete = own
    return Spec(as_shape(shape), action_size, bool(discrete))


def build_with_dataset(algorithm: Algorithm[Any, Any], dataset: ReplayBufferBase) -> None:
    """See `Algorithm.build_with_dataset`."""
    info, config, name = dataset.dataset_info, algorithm.config, type(algorithm).__name__
    discrete = info.action_space is ActionSpace.DISCRETE
    shape = as_shape(dataset.observation_shape)
    check_actions(type(algorithm), discrete, "the dataset")
    check_picker(dataset, config)
    for scaler in (config.observation_scaler, None if discrete else config.action_scaler, config.reward_scaler):
        if scaler is not None and not scaler.built:
            scaler.fit_with_dataset(dataset)
    if not discrete and config.action_scaler is None:
        minimum, maximum = dataset.action_bounds()
        # less than the range is fine
        _warn_of_range(type(algorithm), np.minimum(minimum, -1), np.maximum(maximum, 1), "the dataset")
    if not algorithm.built:
        algorithm.create_impl(shape, info.action_size, discrete_action=discrete)
        return
    spec = algorithm.spec
    fits = info.action_size <= spec.action_size if discrete else info.action_size == spec.action_size
    if shape != spec.observation_shape or not fits:
        raise ShapeError(
            f"the dataset has observations {shape} and {info.action_size} actions, but this {name} was built for "
            f"{spec.observation_shape} and {spec.action_size}"
        )


def build_with_env(algorithm: Algorithm[Any, Any], env: Any) -> None:
    """See `Algorithm.build_with_env`. An unbounded policy that is clipped is scaled to an environment's bounds."""
    spec, kind = environment_spec(env), type(algorithm)
    check_actions(kind, spec.discrete_action, "the environment")
    space: Any = single_spaces(env)[1]
    scaled = kind.acts.clipped and not kind.acts.bounded and _bounded(space)
    if scaled and not algorithm.built and algorithm.config.action_scaler is None:
        algorithm.replace_config(action_scaler=MinMaxActionScaler())
    config = algorithm.config
    for scaler in (config.observation_scaler, None if spec.discrete_action else config.action_scaler):
        if scaler is not None and not scaler.built:
            scaler.fit_with_env(env)
    if not spec.discrete_action and config.action_scaler is None:
        _warn_of_range(kind, space.low, space.high, "the environment")
    if not algorithm.built:
        algorithm.create_impl(spec.observation_shape, spec.action_size, discrete_action=spec.discrete_action)
    else:
        check_env(algorithm, env)


def _bounded(space: Any) -> bool:
    """Whether actions are continuous with finite bounds."""
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    return low is not None and high is not None and bool((abs(low) < 1e30).all() and (abs(high) < 1e30).all())


def check_env(algorithm: Algorithm[Any, Any], env: Any) -> None:
    """See `Algorithm.check_env`."""
    spec = environment_spec(env)
    if spec != algorithm.spec:
        raise EnvironmentMismatchError(
            f"this {type(algorithm).__name__} was built for {describe_spec(algorithm.spec)}, the environment has "
            f"{describe_spec(spec)}: use the environment (or the model) that belongs to it"
        )


def check_actions(kind: type[Algorithm[Any, Any]], discrete: bool, source: str) -> None:
    """Raise `ConfigError` if an algorithm does not take the kind of actions that ``source`` has."""
    if kind.actions is not ActionSpace.BOTH and discrete != (kind.actions is ActionSpace.DISCRETE):
        other = _other_actions(kind, not discrete)
        raise ConfigError(f"{source} has {'discrete' if discrete else 'continuous'} actions: {other}")


def _warn_of_range(kind: type[Algorithm[Any, Any]], low: Array, high: Array, source: str) -> None:
    bounded = np.isfinite(low).all() and np.isfinite(high).all()
    if kind.acts.bounded and bounded and not (np.allclose(low, -1) and np.allclose(high, 1)):
        warnings.warn(
            f"actions of {source} reach from {low.min():g} to {high.max():g}, but {kind.__name__}'s policy acts in "
            "[-1, 1]: set action_scaler=birl.preprocessing.MinMaxActionScaler()",
            ActionRangeWarning,
            stacklevel=4,
        )


def _other_actions(kind: type[Algorithm[Any, Any]], discrete: bool) -> str:
    """The message for the other kind of actions: names the sibling, or algorithms that learn in the same loops."""
    name = kind.__name__
    sibling = name.removeprefix("Discrete") if discrete else f"Discrete{name}"
    if sibling == name or sibling not in kind._known:
        wanted = ActionSpace.CONTINUOUS if discrete else ActionSpace.DISCRETE
        own = kind.learns_from
        others = (each for each in kind._known.values() if each.actions is wanted and not each.evaluates)
        kinds = {each.__name__: (each.learns_from.loops, each.learns_from.contexts) for each in others}
        fitting = sorted(each for each in kinds if kinds[each] == (own.loops, own.contexts))
        sibling = fitting[0] if len(fitting) == 1 else f"one of {', '.join(fitting)}"
    return f"{name} takes {'discrete' if discrete else 'continuous'} actions only; use {sibling}"

