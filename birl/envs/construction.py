"""Making and seeding environments."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from birl.checks import check
from birl.envs.wrappers import ActionMask
from birl.errors import ConfigError, EnvironmentMismatchError, require
from birl.seeding import new_generator
from birl.spaces.specs import number_of_environments, single_spaces

_MARK: Final = "_birl_seeds"
_ATARI: Final = "ALE/"


def make_env(
    name: str,
    num_envs: int | None = None,
    asynchronous: bool = False,
    wrapper: Callable[[Any], Any] | None = None,
    action_mask: bool = False,
    **options: Any,
) -> Any:
    """Make an environment, or a vector of them.

    Differs from d3rlpy, whose command line executes a string of Python (``--env-header``): here a name is looked up,
    nothing is evaluated.

    Args:
        name: a Gymnasium id such as ``"CartPole-v1"`` (``"module:Id-v0"`` imports ``module`` first), or
            ``"module:factory"`` for a function or class in an importable module, called with ``options``.
        num_envs: number of parallel environments; ``None`` for a plain environment. Vector environments are reset by
            birl (`AutoresetMode.DISABLED`), so no step is lost to resets.
        asynchronous: whether each parallel environment runs in its own process.
        wrapper: called with each environment; what it returns is used instead.
        action_mask: whether that is wrapped in `ActionMask`, for environments that say in ``info["action_mask"]`` which
            actions are allowed.
        **options: passed to the environment.

    Raises:
        ConfigError: if there is no such environment.
        MissingExtraError: if it is a game, ``"ALE/…"``, and ale-py is not installed.
        EnvironmentMismatchError: if a factory makes something else, or `ActionMask` does not fit it.
    """
    check("action_mask", action_mask, bool)
    check("num_envs", num_envs, int, optional=True, low=1)

    def make() -> Any:
        env = _make(name, options)
        env = env if wrapper is None else wrapper(env)
        return ActionMask(env) if action_mask else env

    if num_envs is None:
        return make()
    makers = [make] * num_envs
    vector = gymnasium.vector.AsyncVectorEnv if asynchronous else gymnasium.vector.SyncVectorEnv
    return vector(makers, autoreset_mode=AutoresetMode.DISABLED)


def as_environment(env: Any, name: str = "env") -> Any:
    """An environment or vector environment as it is; one given by its name is made, see `make_env`.

    Raises:
        ConfigError: if there is no environment of that name.
        EnvironmentMismatchError: if it is no environment; the message calls it ``name``.
    """
    if isinstance(env, str):
        return make_env(env)
    try:
        number_of_environments(env)
    except EnvironmentMismatchError as error:
        raise EnvironmentMismatchError(f"{name}: {error}") from error
    return env


def _make(name: str, options: dict[str, Any]) -> Any:
    module_name, _, attribute = name.rpartition(":")
    if name.startswith(_ATARI):  # which nobody has registered yet
        gymnasium.register_envs(require("ale_py", "atari"))
    try:
        if module_name and (factory := getattr(importlib.import_module(module_name), attribute, None)) is not None:
            _check_factory(name, factory, options)
            env = factory(**options)
        else:
            env = gymnasium.make(name, **options)
    except (gymnasium.error.Error, ImportError) as error:
        why = str(error) if str(error).endswith((".", "?")) else f"{error}."
        if module_name in sys.modules and not hasattr(sys.modules[module_name], attribute):
            why += f" The module {module_name} was imported, but it has no {attribute}."
        raise ConfigError(
            f"no environment can be made from {name!r}: {why} Give a Gymnasium id such as "
            "'CartPole-v1', 'module:Id-v0' for one that a module registers when it is imported, or 'module:factory' "
            "for one of your own"
        ) from error
    try:
        number_of_environments(env)
        single_spaces(env)
    except EnvironmentMismatchError as error:
        raise EnvironmentMismatchError(f"{name!r} makes no environment: {error}") from error
    return env


def _check_factory(name: str, factory: Any, options: dict[str, Any]) -> None:
    """Reject a factory that cannot take these options, as far as its signature shows."""
    wanted = "'module:factory' must be a function or class that makes an environment"
    if not callable(factory):
        raise ConfigError(f"{name!r} is an object of type {type(factory).__name__}: {wanted}")
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (ValueError, TypeError):  # some C functions have no signature
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in optional and each.name not in options
    ]
    if missing:
        raise ConfigError(f"{name!r} needs arguments ({', '.join(missing)}): {wanted} without being given any")


def seed_env(env: Any, seed: int) -> None:
    """Seed an environment (or vector environment) and its spaces.

    Every later training, collection or evaluation with ``env`` draws the seeds of its resets from ``seed``.

    Args:
        env: environment or vector environment.
        seed: integer >= 0.
    """
    number_of_environments(env)
    check("seed", seed, int, low=0)
    env.reset(seed=seed)
    env.action_space.seed(seed)
    env.observation_space.seed(seed)
    setattr(env.unwrapped, _MARK, np.random.SeedSequence(seed))


def reset_generator(env: Any, seed: int | None = None) -> np.random.Generator:
    """The generator that a loop draws the seeds of ``env``'s resets from.

    Args:
        env: environment or vector environment.
        seed: fixes it; otherwise `seed_env` does, otherwise `birl.seed`.
    """
    if seed is not None:
        check("seed", seed, int, low=0)
        return np.random.Generator(np.random.PCG64(seed))
    sequence = getattr(env.unwrapped, _MARK, None)
    if sequence is None:
        return new_generator()
    return np.random.Generator(np.random.PCG64(sequence.spawn(1)[0]))
