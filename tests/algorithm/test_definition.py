"""What is refused when an algorithm's class is defined."""

from __future__ import annotations

from typing import Any

import pytest

from birl.acting.policy import GreedyCritic
from birl.algorithm import Algorithm, Transitions
from birl.algorithm.learner import KNOWN
from birl.algos import DQN, DQNConfig
from birl.algos.dqn import DQNNets
from birl.errors import ConfigError
from birl.types import ActionSpace

VALUES: dict[str, Any] = {"actions": ActionSpace.DISCRETE, "learns_from": Transitions(), "acts": GreedyCritic()}


def define(**values: Any) -> Any:
    """A class like DQN with these values."""
    bases = (Algorithm[DQNConfig, DQNNets],)
    body = {**VALUES, "steps": DQN.steps, **values, "__orig_bases__": bases}
    return type("Defined", (Algorithm,), {name: value for name, value in body.items() if value is not None})


def test_configuration_and_networks_are_taken_from_the_base() -> None:
    known = DQNConfig.algorithm
    try:
        made = define()
        assert made.config_class is DQNConfig
        assert made.networks is DQNNets
    finally:
        DQNConfig.set_algorithm(known)
        KNOWN["DQN"] = known.definition()


@pytest.mark.parametrize(
    "member",
    [lambda self: None, property(lambda self: None), classmethod(lambda cls: None), staticmethod(lambda: None)],
    ids=["method", "property", "classmethod", "staticmethod"],
)
def test_an_algorithm_defines_no_method(member: Any) -> None:
    with pytest.raises(ConfigError, match=r"Defined defines update; an algorithm defines no method. .*`steps`"):
        define(update=member)
    assert DQNConfig.algorithm is DQN  # the refused class has no part in anything


@pytest.mark.parametrize(
    ("name", "kind"), [("actions", "ActionSpace"), ("learns_from", "Experience"), ("acts", "Policy")]
)
def test_a_missing_value_is_named(name: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"Defined.{name} is missing; it must be of type {kind}"):
        define(**{name: None})


def test_an_algorithm_that_learns_has_steps() -> None:
    with pytest.raises(ConfigError, match=r"Defined.steps is missing; give what an update does: \(Gradient"):
        define(steps=None)


def test_a_value_of_another_type_is_shown() -> None:
    with pytest.raises(ConfigError, match=r"Defined.learns_from is 'transition'; it must be of type Experience"):
        define(learns_from="transition")


def test_a_class_names_its_configuration() -> None:
    with pytest.raises(ConfigError, match=r"Mine names no configuration; write class Mine\(Algorithm\[MineConfig, "):
        type("Mine", (Algorithm,), {})
