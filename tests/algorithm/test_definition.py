"""What is refused when an algorithm's class is defined."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from torch import nn

from birl.acting.policy import GreedyCritic, Policy
from birl.algorithm import Algorithm, Gradient, HardCopy, Transitions, config
from birl.algorithm.learner import KNOWN
from birl.algos import DQN, DQNConfig
from birl.algos.dqn import DQNNets
from birl.engine import Engine, When
from birl.errors import ConfigError
from birl.testing import random_dataset
from birl.types import ActionSpace, Loss

VALUES: dict[str, Any] = {"actions": ActionSpace.DISCRETE, "learns_from": Transitions(), "acts": GreedyCritic()}


def define(**values: Any) -> Any:
    """A class like DQN with these values."""
    bases = (Algorithm[DQNConfig, DQNNets],)
    body = {**VALUES, "steps": DQN.steps, "__orig_bases__": bases, **values}
    return type("Defined", (Algorithm,), {name: value for name, value in body.items() if value is not None})


def test_configuration_and_networks_are_taken_from_the_base() -> None:
    @config
    class OwnConfig(DQNConfig):
        """Its configuration."""

    try:
        body = {**VALUES, "steps": DQN.steps, "__orig_bases__": (Algorithm[OwnConfig, DQNNets],)}
        made: Any = type("Own", (Algorithm,), body)
        assert made.config_class is OwnConfig and OwnConfig.algorithm is made
        assert made.networks is DQNNets
    finally:
        del KNOWN["Own"], OwnConfig._known["Own"]


def test_a_configuration_belongs_to_one_algorithm() -> None:
    with pytest.raises(ConfigError, match=r"DQNConfig is the configuration of DQN; give Defined its own: class"):
        define()
    assert DQNConfig.algorithm is DQN


def test_networks_with_computed_names_are_checked_when_they_are_built() -> None:
    class Computed(DQNNets):
        def __init__(self, spec: Any, cfg: Any) -> None:
            super().__init__(spec, cfg)
            for name in ("first", "second"):
                setattr(self, name, self.critic)

    bases = (Algorithm[DQNConfig, Computed],)
    with pytest.raises(ConfigError, match="DQNConfig is the configuration of DQN"):  # the only mistake that is found
        define(steps=(Gradient("first", print, optimizer=""),), __orig_bases__=bases)


def test_nothing_derives_from_an_algorithm() -> None:
    with pytest.raises(ConfigError, match="Mine derives from DQN, which is an algorithm already"):
        type("Mine", (DQN,), {})
    assert DQNConfig.algorithm is DQN


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"steps": "critic"}, r"Defined.steps is 'critic'; it must be a tuple"),
        ({"steps": (HardCopy,)}, r"Defined.steps is \(<class .*it must be a tuple"),
        ({"steps": (Gradient("critic", "loss"),)}, "the loss of step 'critic' is 'loss'; it must be a function"),
        ({"steps": (Gradient("critic", print, "critic"),)}, "the networks of step 'critic' are 'critic'; they must be"),
        ({"step": DQN.steps}, "Defined.step is not a value of an algorithm; the values are actions, learns_from,"),
        ({"steps": (Gradient("crtic", print, optimizer=""),)}, "the step 'crtic' needs the network 'crtic', which"),
        ({"acts": GreedyCritic(network="crtic")}, "its policy needs the network 'crtic', .* it has critic, "),
        ({"predict": print}, "Defined defines predict; an algorithm defines no method"),
        ({"predict": functools.partial(print)}, "Defined defines predict; an algorithm defines no method"),
    ],
)
def test_other_mistakes_in_a_definition(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        define(**values)


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


def learn(loss: Any) -> None:
    """One update of a DQN with another loss."""
    algorithm = DQNConfig().create()
    algorithm.create_impl((3,), 2)
    steps = (Gradient("critic", loss, optimizer=""),)
    engine = Engine(algorithm.nets, steps, algorithm.config)
    engine.update(algorithm.learner.batch(algorithm.sample_minibatch(random_dataset(discrete_action=True))))


def of_the_target(nets: Any, batch: Any, cfg: Any) -> Loss:
    nets.critic_target.requires_grad_(True)
    return Loss(nets.critic_target(batch.inputs, batch.action).mean().mean())


def number_as_metric(nets: Any, batch: Any, cfg: Any) -> Loss:
    number: Any = 0.5
    return Loss(nets.critic(batch.inputs, batch.action).mean().mean(), {"m": number})


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda nets, batch, cfg: batch.reward.mean(), "returned Tensor; it must return a Loss"),
        (lambda nets, batch, cfg: None, "returned NoneType; it must return a Loss"),
        (number_as_metric, "'m' of the loss number_as_metric is 0.5; it must be"),
        (lambda nets, batch, cfg: Loss(batch.reward), r"is \[32\]; it must be a scalar tensor"),
        (lambda nets, batch, cfg: Loss(3.0), "is 3.0; it must be a scalar tensor"),  # type: ignore[arg-type]
        (lambda nets, batch, cfg: Loss(batch.reward.mean()), "has no gradient"),
        (of_the_target, "the loss of_the_target does not depend on critic.encoder"),
    ],
)
def test_what_a_loss_returns(loss: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        learn(loss)


def test_a_configuration_needs_its_decorator() -> None:
    class BareConfig(DQNConfig):
        tau: float = 0.5

    with pytest.raises(ConfigError, match="BareConfig has no decorator: write @config above its class"):
        define(__orig_bases__=(Algorithm[BareConfig, DQNNets],))


def test_networks_are_made_with_a_spec_and_a_configuration() -> None:
    class Lonely(nn.Module):
        def __init__(self, spec: Any) -> None:
            super().__init__()

    with pytest.raises(ConfigError, match=r"Lonely must take the arguments \(spec, config\): too many"):
        define(__orig_bases__=(Algorithm[DQNConfig, Lonely],))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"acts": Policy("mode", print)}, "acts.greedy is 'mode'; it must be a function"),  # type: ignore[arg-type]
        ({"acts": Policy(print, print, 3)}, "acts.value is 3; it must be a function"),  # type: ignore[arg-type]
        (
            {"steps": (Gradient("critic", print, optimizer="", when=When(every="gamma")),)},
            "'critic' counts updates by DQNConfig.gamma, which is 0.99; it must be an int",
        ),
    ],
)
def test_functions_and_counters(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        define(**values)
