"""Creation and seeding of environments."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, cast, overload

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from birl.checks import check
from birl.envs.stepper import check_signature_of_reset
from birl.envs.wrappers import ActionMask
from birl.errors import ArgumentError, ConfigError, EnvironmentMismatchError, MissingExtraError, did_you_mean
from birl.habits import argument_hint
from birl.seeding import new_generator
from birl.spaces.specs import number_of_environments, single_spaces
from birl.types import Environment

_SEED_ATTRIBUTE: Final = "_birl_seeds"
_FAMILIES: Final = {
    "ALE/": ("ale_py", "birl[atari]"),  # prefix of ids: module that registers them, and package that has it
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
}


@overload
def make_env(
    name: str,
    num_envs: None = None,
    asynchronous: bool = ...,
    wrapper: Callable[[Any], Any] | None = ...,
    action_mask: bool = ...,
    **options: object,
) -> gymnasium.Env[Any, Any]: ...


@overload
def make_env(
    name: str,
    num_envs: int,
    asynchronous: bool = ...,
    wrapper: Callable[[Any], Any] | None = ...,
    action_mask: bool = ...,
    **options: object,
) -> VectorEnv[Any, Any, Any]: ...


def make_env(
    name: str,
    num_envs: int | None = None,
    asynchronous: bool = False,
    wrapper: Callable[[Any], Any] | None = None,
    action_mask: bool = False,
    **options: object,
) -> Environment:
    """Create an environment, or a vector environment.

    d3rlpy's command line executes a string of Python (``--env-header``). This function resolves a name and evaluates
    nothing.

    Args:
        name: a Gymnasium id such as ``"CartPole-v1"`` (``"module:Id-v0"`` imports ``module`` first), or
            ``"module:factory"`` for a function or class in an importable module, called with ``options``.
        num_envs: number of parallel environments; ``None`` for a single environment. birl resets vector environments
            itself (`AutoresetMode.DISABLED`), so resets take no steps.
        asynchronous: whether each parallel environment runs in its own process.
        wrapper: function that wraps each environment.
        action_mask: whether to wrap the result in `ActionMask`, for environments with ``info["action_mask"]``.
        **options: passed to the environment.

    Raises:
        ConfigError: if there is no such environment.
        MissingExtraError: if the name is ``"ALE/…"`` or ``"MiniGrid-…"`` and its package is not installed.
        EnvironmentMismatchError: if a factory returns something else, or `ActionMask` does not support the environment.
    """
    if not isinstance(name, str):
        hint = "it is used as it is" if hasattr(name, "step") and not isinstance(name, type) else "call it"
        raise ConfigError(
            f"name is {name!r:.80}; it must be text, such as 'CartPole-v1' or 'module:factory'. If this makes an "
            f"environment, or is one, leave make_env out: {hint}"
        )
    check("action_mask", action_mask, bool)
    check("num_envs", num_envs, int, optional=True, low=1)

    def make() -> gymnasium.Env[Any, Any]:
        env = _make(name, options)
        env = env if wrapper is None else wrapper(env)
        return ActionMask(env) if action_mask else env

    if num_envs is None:
        return make()
    makers = [make] * num_envs
    vector = gymnasium.vector.AsyncVectorEnv if asynchronous else gymnasium.vector.SyncVectorEnv
    return vector(makers, autoreset_mode=AutoresetMode.DISABLED)


def as_environment(env: object, name: str = "env") -> Environment:
    """Return an environment or vector environment as it is; create one from its name, see `make_env`.

    Raises:
        ConfigError: if there is no environment of that name.
        EnvironmentMismatchError: if ``env`` is not an environment; the message calls it ``name``.
    """
    if isinstance(env, str):
        return make_env(env)
    try:
        number_of_environments(env)
    except EnvironmentMismatchError as error:
        raise EnvironmentMismatchError(f"{name}: {error}") from error
    return cast(Environment, env)


def _make(name: str, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    module_name, _, attribute = name.rpartition(":")
    for prefix, (module, package) in _FAMILIES.items():
        if name.startswith(prefix):  # importing the module registers its environments
            gymnasium.register_envs(_import(module, package))
    try:
        if module_name and (factory := getattr(importlib.import_module(module_name), attribute, None)) is not None:
            _check_factory(name, factory, options)
            env = factory(**options)
        else:
            env = gymnasium.make(name, **options)
    except TypeError as error:
        for option in options:
            if f"unexpected keyword argument {option!r}" in str(error):
                own = ("num_envs", "asynchronous", "wrapper", "action_mask")
                known = [*own, *_options_of(name)]
                hint = argument_hint(option, own) or did_you_mean(option, known) or ": leave it out."
                raise ArgumentError(f"the environment {name!r} has no option {option!r}{hint} ({error})") from error
        raise
    except (gymnasium.error.Error, ImportError) as error:
        why = str(error) if str(error).endswith((".", "?")) else f"{error}."
        if module_name in sys.modules and not hasattr(sys.modules[module_name], attribute):
            why += f" The module {module_name} was imported, but it has no {attribute}."
        if game := re.fullmatch(r"(\w+?)(?:NoFrameskip|Deterministic)-v\d", name):
            why += f" Today the game is 'ALE/{game[1]}-v5', and birl.envs.AtariPreprocessing (--atari) skips frames."
        raise ConfigError(
            f"cannot create an environment from {name!r}: {why} Give a Gymnasium id such as "
            "'CartPole-v1', 'module:Id-v0' if importing the module registers it, or 'module:factory' for your "
            "own function"
        ) from error
    try:
        number_of_environments(env)
        single_spaces(env)
    except EnvironmentMismatchError as error:
        raise EnvironmentMismatchError(f"{name!r} does not return an environment: {error}") from error
    return env


def _options_of(name: str) -> list[str]:
    """Return the options of a registered environment."""
    spec = gymnasium.registry.get(name)
    if spec is None or spec.entry_point is None:
        return []
    entry = spec.entry_point
    creator = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    return [*inspect.signature(creator).parameters]


def _import(module: str, package: str) -> ModuleType:
    """Import a module that registers environments.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module!r} is needed here and is not installed: run `pip install '{package}'`"
        ) from error


def _check_factory(name: str, factory: object, options: dict[str, Any]) -> None:
    """Raise `ConfigError` for a factory whose signature does not match the options."""
    wanted = "'module:factory' must name a function or class that returns an environment"
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
        raise ConfigError(f"{name!r} needs arguments ({', '.join(missing)}): {wanted} without other arguments")


def seed_env(env: Environment, seed: int) -> None:
    """Seed an environment (or vector environment) and its spaces.

    Later training, collection and evaluation with ``env`` derive the seeds of resets from ``seed``.

    Args:
        env: environment or vector environment.
        seed: integer >= 0.
    """
    number_of_environments(env)
    check("seed", seed, int, low=0)
    try:
        env.reset(seed=seed)
    except TypeError as error:
        check_signature_of_reset(error)
        raise
    env.action_space.seed(seed)
    env.observation_space.seed(seed)
    setattr(env.unwrapped, _SEED_ATTRIBUTE, np.random.SeedSequence(seed))


def reset_generator(env: Environment, seed: int | None = None) -> np.random.Generator:
    """Return the generator for the seeds of an environment's resets.

    Args:
        env: environment or vector environment.
        seed: seed of the generator; if ``None``, it is derived from the seed of `seed_env`, or else of `birl.seed`.
    """
    if seed is not None:
        check("seed", seed, int, low=0)
        return np.random.Generator(np.random.PCG64(seed))
    sequence = getattr(env.unwrapped, _SEED_ATTRIBUTE, None)
    if sequence is None:
        return new_generator()
    return np.random.Generator(np.random.PCG64(sequence.spawn(1)[0]))
