"""Checks of an algorithm's class, made when it is defined."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any, Final, get_args, get_origin

from torch import nn

from birl.acting.policy import Policy
from birl.algorithm.learner import Experience
from birl.engine import When
from birl.engine.steps import no_network
from birl.errors import ConfigError
from birl.types import ActionSpace

VALUES: Final[Mapping[str, type]] = {"actions": ActionSpace, "learns_from": Experience, "acts": Policy}


def named_parts(cls: type, root: type) -> tuple[Any, Any]:
    """Return the configuration and the networks that a subclass of ``root`` names as type arguments.

    Raises:
        ConfigError: if it does not name both.
    """
    for base in cls.__mro__[1:]:
        if "config_class" in vars(base):
            raise ConfigError(
                f"{cls.__name__} derives from {base.__name__}, which is an algorithm already; write class "
                f"{cls.__name__}(Algorithm[{cls.__name__}Config, {base.__name__}Nets]) with the same values"
            )
    arguments = type_arguments(cls, root)
    if len(arguments) != 2:
        raise ConfigError(
            f"{cls.__name__} names no configuration; write class {cls.__name__}(Algorithm[{cls.__name__}Config, "
            f"{cls.__name__}Nets])"
        )
    return arguments[0], arguments[1]


def type_arguments(cls: type, root: type) -> tuple[Any, ...]:
    """Return the type arguments that ``cls`` passes to ``root``: ``(XConfig, XNets)`` for an algorithm."""
    for base in vars(cls).get("__orig_bases__", ()):
        origin = get_origin(base)
        if origin is root:
            return get_args(base)
        if isinstance(origin, type) and issubclass(origin, root):
            given = dict(zip(origin.__parameters__, get_args(base), strict=True))  # type: ignore[attr-defined]
            return tuple(given.get(each, each) for each in type_arguments(origin, root))
    inherited = next((base for base in cls.__bases__ if issubclass(base, root) and base is not root), None)
    return () if inherited is None else type_arguments(inherited, root)


def check_definition(cls: type, config_class: type) -> None:
    """Raise `ConfigError` unless an algorithm's class has all values of the right types, and no methods.

    An algorithm is a description; its behaviour is in its losses, steps, policy and experience.
    """
    if "__annotations__" in vars(config_class) and "__dataclass_fields__" not in vars(config_class):
        raise ConfigError(f"{config_class.__name__} has no decorator: write @config above its class")
    known = (*VALUES, "steps", "evaluates")
    for name, value in vars(cls).items():
        if name in known or (name.startswith("__") and not isinstance(value, FunctionType)):
            continue
        if callable(value) or hasattr(value, "__get__"):
            raise ConfigError(
                f"{cls.__name__} defines {name}; an algorithm defines no method. Write what it learns as a loss in "
                "`steps`, how it acts as a `Policy` in `acts`, and what it samples as an `Experience` in `learns_from`"
            )
        raise ConfigError(f"{cls.__name__}.{name} is not a value of an algorithm; the values are {', '.join(known)}")
    for name, kind in VALUES.items():
        value = getattr(cls, name, None)
        if not isinstance(value, kind):
            given = "missing" if value is None else repr(value)[:80]
            raise ConfigError(f"{cls.__name__}.{name} is {given}; it must be of type {kind.__name__}")
    for name in ("greedy", "sample", "value"):
        function = getattr(cls.acts, name)  # type: ignore[attr-defined]
        if not (callable(function) or (name == "value" and function is None)):
            raise ConfigError(
                f"{cls.__name__}.acts.{name} is {function!r:.80}; it must be a function of (networks, inputs)"
            )
    steps: Any = cls.steps  # type: ignore[attr-defined]
    made = isinstance(steps, tuple) and not any(isinstance(step, type) for step in steps)
    if not made or not all(isinstance(getattr(step, "when", None), When) for step in steps):
        raise ConfigError(f"{cls.__name__}.steps is {steps!r:.80}; it must be a tuple: (Gradient(…), Polyak(…))")
    if cls.learns_from.loops and not steps:  # type: ignore[attr-defined]
        raise ConfigError(f"{cls.__name__}.steps is missing; give what an update does: (Gradient(…), Polyak(…))")


def check_named_networks(cls: type, networks: object) -> None:
    """Raise `ConfigError` if an algorithm's steps or policy name a network that its class of networks does not set.

    Classes that set attributes with computed names are not checked here. All networks are checked when they are built
    (`check_networks`).
    """
    if not (isinstance(networks, type) and issubclass(networks, nn.Module)):
        return
    try:
        inspect.signature(networks).bind("spec", "config")
    except TypeError as error:
        raise ConfigError(f"{networks.__name__} must take the arguments (spec, config): {error}") from error
    bases = networks.__mro__[: networks.__mro__.index(nn.Module)]
    made = [init for base in bases if isinstance(init := vars(base).get("__init__"), FunctionType)]
    known = {name for init in made for name in init.__code__.co_names}
    if known & {"add_module", "register_module", "setattr", "__setattr__", "__dict__"}:
        return
    policy, steps = cls.acts, cls.steps  # type: ignore[attr-defined]
    needed = [(f"the step {step.name!r}", name) for step in steps for name in step.networks]
    needed += [("its policy", name) for name in (policy.network, *policy.stateful_networks) if name]
    for part, name in needed:
        if name not in known:
            code = [each for init in made for each in dis.get_instructions(init)]  # slow, so only now
            names = {each.argval for each in code if each.opname == "STORE_ATTR"}
            raise ConfigError(f"{cls.__name__}: {no_network(part, name, networks, names)}")
