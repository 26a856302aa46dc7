"""Mistakes that would otherwise show up late, or never: found early and named."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from birl.dataset import ReplayBufferBase
from birl.errors import BirlError, ConfigError, CorruptFileError, ShapeError
from birl.types import Spec


def check_fit_arguments(dataset: Any, evaluators: Any, *callbacks: Any) -> None:
    """Name the mistakes that are easily made in a call of `Algorithm.fit`."""
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
    """Refuse n-step returns whose discount or reward scaling would not be the configured one.

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
    """Refuse scalers that were fitted for another size, which tensors would silently be stretched to, or of no use.

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


@contextlib.contextmanager
def damaged_as_typed_errors(fname: Any) -> Iterator[None]:
    """What goes wrong inside with a file of valid form but impossible content is a `CorruptFileError`."""
    try:
        yield
    except BirlError:
        raise
    except (AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptFileError(
            f"{fname} is a birl file, but its content does not fit together ({type(error).__name__}: {error}). "
            "Restore it from a copy"
        ) from error
