"""Steps: when they are due, names that are checked early, and steps of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from birl.algorithm.algorithm import Algorithm
from birl.algos import DQN, DQNConfig
from birl.algos.dqn import DQNNets, q_loss
from birl.engine import Engine, Gradient, HardCopy, Polyak, Update, When
from birl.engine.compiled import Program
from birl.engine.steps import Step, check_networks
from birl.errors import ConfigError
from birl.models import VectorEncoderFactory
from birl.spaces import Discrete
from birl.spaces.specs import Spec
from birl.types import Batch

ALWAYS = When()
CRITIC = Gradient("critic", q_loss, optimizer="", metric="loss")


def define(*given: Any) -> Any:
    """An algorithm's class with these steps."""

    class Defined(Algorithm[DQNConfig, DQNNets]):
        actions, learns_from, acts = DQN.actions, DQN.learns_from, DQN.acts
        steps = given

    return Defined


def engine(*steps: Step, nets: nn.Module | None = None) -> Engine:
    torch.manual_seed(0)
    config = DQNConfig(encoder_factory=VectorEncoderFactory([4]), target_update_interval=2)
    return Engine(nets or DQNNets(Spec((3,), Discrete(2)), config), steps, config)


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    observation = torch.randn(6, 3, generator=generator)
    return Batch(observation, torch.arange(6) % 2, observation[:, 0], observation, torch.ones(6), torch.ones(6))


@dataclass(frozen=True)
class _Shrink:
    name: str
    fields: tuple[str, ...] = ()
    networks: tuple[str, ...] = ("critic",)
    when: When = ALWAYS
    eager_only: str = "it reads values"

    def __call__(self, on: Update, batch: Batch) -> Batch:
        """Shrink the network if its loss is finite, and tell the loss."""
        _, loss = on.gradients(q_loss, ("critic",), batch)
        if bool(torch.isfinite(loss.value)):
            with torch.no_grad():
                for parameter in on.nets.critic.parameters():
                    parameter.mul_(0.5)
        on.report({"before": loss.value})
        return batch


def test_steps_begin_and_end_when_they_say() -> None:
    steps: Any = (
        Gradient("early", q_loss, when=When(until="warmup")),
        Gradient("late", q_loss, when=When(after="warmup", every=2)),
        Gradient("always", q_loss),
        Polyak("a", "b", when=When(after=3)),
        HardCopy("c", "d", when=When(every=4)),
    )
    config = SimpleNamespace(warmup=3)
    found = {n: "".join(step.name[0] for step in steps if step.when.is_due(n, config)) for n in range(1, 9)}
    assert found == {1: "ea", 2: "ea", 3: "ea", 4: "labd", 5: "ab", 6: "lab", 7: "ab", 8: "labd"}


@pytest.mark.parametrize(
    ("step", "field"),
    [
        (Gradient("critic", q_loss, optimizer="", when=When(every="often")), "often"),
        (Gradient("critic", q_loss, optimizer="", when=When(after="start")), "start"),
        (Gradient("critic", q_loss, optimizer="", when=When(until="end")), "end"),
        (Gradient("critic", q_loss, optimizer="", when=When(given=("kind", "hard"))), "kind"),
        (Gradient("critic", q_loss), "critic_learning_rate"),
        (Gradient("critic", q_loss, optimizer="temp"), "temp_learning_rate"),
        (Polyak("critic", "critic_target", tau="share"), "share"),
        (_Shrink("shrink", fields=("factor",)), "factor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_does_not_exist_is_named_when_the_class_is_defined(step: Step, field: str) -> None:
    with pytest.raises(ConfigError, match=f"'{step.name}' needs the field '{field}'.*its fields are .*learning_rate"):
        define(step)
    assert DQNConfig.algorithm is DQN  # the refused class has no part in anything


def test_two_steps_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two steps are called 'critic_target'"):
        define(CRITIC, HardCopy("critic", "critic_target"), HardCopy("critic", "critic_target"))
    with pytest.raises(ConfigError, match="two steps are called 'critic'"):
        define(CRITIC, CRITIC)


def test_one_of_two_steps_of_one_name_may_belong_to_a_configuration() -> None:
    rare = HardCopy("critic", "critic_target", When(3, given=("n_critics", 2)))
    often = HardCopy("critic", "critic_target", When(1, given=("n_critics", 1)))
    assert engine(CRITIC, rare, often).steps == (CRITIC, often)
    with pytest.raises(ConfigError, match="two steps are called"):
        define(CRITIC, rare, HardCopy("critic", "critic_target"))


def test_a_target_that_is_its_source_is_refused() -> None:
    nets = nn.Module()
    nets.critic = nets.critic_target = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"critic_target is the same network as critic.* deepcopy\(self.critic\)"):
        check_networks((CRITIC, HardCopy("critic", "critic_target")), nets)


def test_a_network_that_does_not_exist_is_named_when_networks_are_built() -> None:
    with pytest.raises(ConfigError, match="'actor' needs the network 'actor'.*DQNNets.*it has critic, critic_target"):
        engine(CRITIC, Gradient("actor", q_loss, optimizer=""))
    with pytest.raises(ConfigError, match="'target' needs the network 'target'.*it has critic, critic_target"):
        engine(CRITIC, HardCopy("critic", "target"))


def test_a_step_must_train_something() -> None:
    nets = nn.ModuleDict({"critic": nn.Tanh()})
    with pytest.raises(ConfigError, match="'critic' trains critic, which has no parameters"):
        engine(CRITIC, nets=nets)


@pytest.mark.parametrize("fields", [{"every": 0}, {"every": True}, {"after": -1}, {"until": 1.5}], ids=str)
def test_numbers_out_of_range(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(ConfigError, match=rf"{name} is .*; it must be an int >= \d or the name of a config field"):
        When(**fields)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_of_ones_own_may_read_values(compiled: bool) -> None:
    """It leaves a program; its gradients may still be compiled."""
    expected, own = engine(CRITIC), engine(CRITIC, _Shrink("shrink"))
    if compiled:
        own.compile()
        assert own.compiled and not isinstance(own._updates, Program)
    first, second = expected.update(batch()), own.update(batch())
    assert list(second) == ["loss", "q_value", "before"]
    torch.testing.assert_close(first["loss"], second["loss"])
    assert second["before"] < first["loss"]
    for name, parameter in own.nets.critic.named_parameters():
        torch.testing.assert_close(parameter, 0.5 * expected.nets.critic.get_parameter(name))
