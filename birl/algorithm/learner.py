"""A built algorithm: networks, units, engine, and the state of learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from birl.acting.bound import BoundPolicy
from birl.acting.policy import Policy
from birl.algorithm.experience import Experience
from birl.dataset.return_to_go import DiscountedReturns
from birl.engine import Engine, Step
from birl.errors import ResumeError
from birl.models import set_acting
from birl.preprocessing.units import Units
from birl.types import Batch, Spec, State

COMPILE_FROM = 10_000
"""Length of a run, in updates, from which compiling (5 to 60 seconds) pays for itself even with small networks."""

UPDATES_AT_ONCE = 10
"""Updates in one recording, on devices that replay recordings."""

SCALERS = ("observation_scaler", "action_scaler", "reward_scaler")


class Learner:
    """Learns and acts; knows no environment, no loop and no file.

    Args:
        name: name of the algorithm, for messages.
        config: configuration with fitted scalers.
        spec: shapes that the networks are built for.
        device: device of the networks.
        networks: makes the networks, given ``spec`` and ``config``.
        steps: the steps of an update.
        policy: how it acts.
        experience: what it learns from.
        evaluated: the learner whose policy this one evaluates; ``None`` for most algorithms.

    Attributes:
        nets: the networks.
        engine: updates the networks.
        units: conversion between the units of data and environments and those of networks.
        policy: its own policy, bound to the networks.
        returns: makes discounted returns of a dataset; ``None`` where the experience does not ask for them.
        memory: values that the experience keeps between draws.
    """

    def __init__(
        self,
        name: str,
        config: Any,
        spec: Spec,
        device: torch.device,
        networks: Callable[[Spec, Any], nn.Module],
        steps: Sequence[Step],
        policy: Policy,
        experience: Experience,
        evaluated: Learner | None = None,
    ) -> None:
        self.name, self.config, self.spec, self.device = name, config, spec, device
        self.experience, self.evaluated = experience, evaluated
        self.nets: Any = networks(spec, config).to(device)
        self.engine = Engine(self.nets, steps, config)
        if config.compile_graph is True:
            self.engine.compile()
        self.units = Units(device, spec.discrete_action, *(getattr(config, name) for name in SCALERS))
        self._mode: bool | None = None
        self.policy = BoundPolicy(name, policy, self.nets, spec, self.units, self.set_mode)
        self.memory: dict[str, Any] = {}
        self.returns: DiscountedReturns | None = None
        if getattr(experience, "returns_to_go", False):
            reward = config.reward_scaler
            scale = None if reward is None else lambda x: reward.transform(torch.from_numpy(x)).numpy()
            self.returns = DiscountedReturns(config.gamma, scale)
        self.set_mode(acting=False)

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled."""
        return self.engine.compiled

    @property
    def recurrent(self) -> bool:
        """Whether a network that it learns or acts with is recurrent, so that training needs sequences."""
        return bool(self.engine.recurrent) or (self.evaluated is not None and self.evaluated.recurrent)

    def set_mode(self, acting: bool) -> None:
        """Prepare to act (dropout off, batch norm on running statistics, fixed IQN fractions) or to learn."""
        if acting != self._mode:
            set_acting(self.nets, acting)
            for step in self.engine.targets:
                self.nets.get_submodule(step.target).eval()
            self._mode = acting

    def draw(self, source: Any) -> Any:
        """Draw the data of one call of `learn`."""
        return self.experience.draw(self, source)

    def batch(self, drawn: Any) -> Batch:
        """The drawn steps in the networks' units."""
        return self.experience.batch(self, drawn)

    def learn(self, drawn: Any) -> dict[str, Tensor]:
        """Learn from a result of `draw` (or from a `Batch`).

        Returns:
            Losses and metrics as scalar tensors on the device, averaged over the passes that had them.
        """
        self.set_mode(acting=False)
        batch = drawn if isinstance(drawn, Batch) else self.batch(drawn)
        found: dict[str, list[Tensor]] = {}
        for minibatch, only in self.experience.passes(self, batch):
            for name, value in self.engine.update(minibatch, only).items():
                found.setdefault(name, []).append(value)
        return {name: values[0] if len(values) == 1 else torch.stack(values).mean() for name, values in found.items()}

    def updates_at_once(self, source: Any) -> int:
        """How many updates `learn_many` should make: several if the device replays updates and draws their batches."""
        drawn_there = getattr(source, "device_generator", None) is not None
        together = drawn_there and self.experience.plain and not self.recurrent and self.engine.records
        return UPDATES_AT_ONCE if together else 1

    def learn_many(self, source: Any, count: int) -> dict[str, Tensor]:
        """Make ``count`` updates with batches drawn on the device, without returning to Python in between."""
        self.set_mode(acting=False)
        generator = source.device_generator
        return self.engine.update_many(
            lambda: self.batch(self.draw(source)), count, [] if generator is None else [generator]
        )

    def begin_run(self, source: Any, count: int, *, growing: bool = False) -> Any:
        """Begin a run of ``count`` draws; with ``compile_graph="auto"``, compile if it is long.

        Returns:
            The source to draw from: ``source`` itself, or the result of its ``placed_for`` for the training device.
        """
        if self.config.compile_graph == "auto" and self.experience.updates(self.config, count) >= COMPILE_FROM:
            self.engine.compile(required=False)
        placed = getattr(source, "placed_for", None)
        return source if placed is None else placed(self.device, growing=growing)

    def get_state(self) -> State:
        """Everything that training reads or writes. Raises `NonFiniteError` if a parameter is not finite."""
        self.engine.check_finite()
        scalers = {name: getattr(self.config, name) for name in SCALERS}
        fitted = {name: scaler.serialize()["params"] for name, scaler in scalers.items() if scaler is not None}
        state: State = {"engine": self.engine.get_state(), "scalers": fitted}
        if self.evaluated is not None:  # so that a run cannot continue with another policy
            state["policy"] = {**policy_state(self.evaluated), "description": described(self.evaluated)}
        return state

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, for a learner of the same configuration and shapes.

        Raises:
            ResumeError: if another policy was evaluated.
        """
        if self.evaluated is not None:
            saved, own = state["policy"], policy_state(self.evaluated)["nets"]
            same = saved["description"] == described(self.evaluated) and saved["nets"].keys() == own.keys()
            if not (same and all(torch.equal(own[name], x.to(own[name].device)) for name, x in saved["nets"].items())):
                raise ResumeError(
                    f"this {self.name} was evaluating another policy: give it the same one to go on, or another "
                    "folder to start anew"
                )
        self.engine.set_state(state["engine"])
        for name, params in state["scalers"].items():
            getattr(self.config, name).__init__(**params)


def described(learner: Learner) -> dict[str, Any]:
    """Configuration and shapes in JSON form, with those of the learner whose policy is evaluated."""
    data = {
        "observation_shape": learner.spec.observation_shape,
        "action_size": learner.spec.action_size,
        "discrete_action": learner.spec.discrete_action,
        "config": learner.config.serialize(),
    }
    return data if learner.evaluated is None else {**data, "policy": described(learner.evaluated)}


def policy_state(learner: Learner) -> State:
    """The networks of a learner that is evaluated."""
    nets = {name: tensor.detach().clone() for name, tensor in learner.nets.state_dict().items()}
    return {"grad_step": learner.engine.grad_step, "nets": nets}
