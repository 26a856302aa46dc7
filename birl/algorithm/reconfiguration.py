"""Retuning: fields of a built algorithm's configuration that change while it learns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from birl import seeding
from birl.config import SCALERS, AlgorithmConfig
from birl.engine import Gradient, Step
from birl.engine.cache_keys import OpaqueError, digest
from birl.errors import BirlError, ConfigError, CorruptFileError
from birl.files.serializable import encode
from birl.run.checkpoint import preserve_random_state
from birl.types import State

_FIXED: Final = {
    "observation_keys": "networks are built for the parts that it names",
    "observation_scaler": "networks have learned from what it scales",
    "action_scaler": "networks have learned from what it scales",
    "reward_scaler": "networks have learned from what it scales",
    "compile_graph": "whether updates are compiled is decided when networks are made or a run begins",
    "rollout_length": "loops read it when they begin",
    "n_episodes": "loops read it when they begin",
    "context_size": "contexts are made when acting begins",
}
"""Fields that are read before an update is made, and why that cannot be done again."""

_PLAIN: Final = (bool, int, float, str, type(None))


class Change(NamedTuple):
    """What another configuration changes.

    Attributes:
        config: the other configuration.
        fields: the fields that differ, by name, with their new values in JSON form.
        constants: numbers that networks keep: name of the module, name of the attribute, value.
    """

    config: AlgorithmConfig
    fields: dict[str, Any]
    constants: list[tuple[str, str, Any]]


class Tuning:
    """The configuration that a learner was made with, and how it was changed since.

    Args:
        steps: the steps of an update, given a configuration.
        make: makes networks, given a configuration.
        config: the configuration.
    """

    def __init__(
        self, steps: Callable[[Any], tuple[Step, ...]], make: Callable[[Any], nn.Module], config: AlgorithmConfig
    ) -> None:
        self.original = self.config = config
        self._steps, self._make = steps, make
        self._history: dict[str, Any] = {}

    def new_networks(self) -> nn.Module:
        """New networks of the present configuration."""
        return self._make(self.config)

    def described(self) -> dict[str, Any]:
        """JSON: for each change the number of updates before it, and the new values of fields. Empty without any."""
        return dict(self._history)

    def change_to(self, fields: Mapping[str, Any], config: AlgorithmConfig | None = None) -> Change:
        """What new values of some fields change. Nothing is changed yet.

        Args:
            fields: new values by name.
            config: what they are changed in; by default the present configuration.

        Raises:
            ConfigError: if a field is unknown, a value is not allowed, or it is part of networks or of what is made
                before updates are.
        """
        new = dataclasses.replace(self.config if config is None else config, **fields)
        names = [item.name for item in dataclasses.fields(new)]
        changed = {name: getattr(new, name) for name in names if getattr(new, name) != getattr(self.config, name)}
        for name in changed.keys() & _FIXED.keys():
            raise self._refused({name: changed[name]}, _FIXED[name])
        steps, its = ([step for step in self._steps(each) if step.when.holds(each)] for each in (self.config, new))
        if steps != its:
            raise self._refused(changed, "which steps an update has depends on it")
        given, others = ([addon.given for addon in each.loss_addons or ()] for each in (self.config, new))
        if given != others:
            raise self._refused(changed, "networks are given their parameters by it")
        of_optimizers = {name for step in steps if isinstance(step, Gradient) for name in step.fields}
        constants = [] if changed.keys() <= of_optimizers else self._constants(new, changed)
        return Change(new, {name: encode(value) for name, value in changed.items()}, constants)

    def note(self, change: Change, grad_step: int) -> None:
        """Note a change that was made after ``grad_step`` updates."""
        self._history[str(len(self._history))] = {"grad_step": grad_step, "fields": change.fields}
        self.config = change.config

    def restored(self, history: State) -> Change:
        """What takes the present configuration to that of a saved history, which replaces the present one's.

        Raises:
            CorruptFileError: if the history names no fields, or values that are not allowed.
        """
        try:
            given: dict[str, Any] = {}
            for key in sorted(history, key=int):
                given |= history[key]["fields"]
            saved = self.original.serialize()
            plain = {**saved["params"], **dict.fromkeys(SCALERS)}  # their states may be half loaded at this moment
            read = type(self.original).deserialize({**saved, "params": {**plain, **given}})
            change = self.change_to({name: getattr(read, name) for name in given}, self.original)
        except (BirlError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(
                f"the state was retuned in a way that does not fit its configuration: {error!s:.200}. Restore it from "
                "a copy"
            ) from error
        self._history, self.config = dict(history), change.config
        return change

    def _constants(self, new: AlgorithmConfig, changed: dict[str, Any]) -> list[tuple[str, str, Any]]:
        """The numbers that networks keep of a configuration and that another one has differently.

        Both configurations make networks from the same random numbers. They may differ in nothing but such numbers.
        """
        present, other = self._made(self.config), self._made(new)
        refused = self._refused(changed, "networks are made from it")
        mine, its = dict(present.named_modules()), dict(other.named_modules())
        if [(key, type(each)) for key, each in mine.items()] != [(key, type(each)) for key, each in its.items()]:
            raise refused
        found = []
        for key, module in mine.items():
            for attribute, value in vars(its[key]).items():
                if _is_plain(value) and attribute in vars(module) and vars(module)[attribute] != value:
                    found.append((key, attribute, value))
                    setattr(module, attribute, value)
        if not _same_tensors(present, other):
            raise refused
        try:
            if digest(present) != digest(other):
                raise refused
        except OpaqueError:
            if not all(_is_plain(value) for value in changed.values()):  # a user's own class may keep anything
                raise refused from None
        return found

    def _made(self, config: AlgorithmConfig) -> nn.Module:
        with preserve_random_state(), seeding.preserve_seed():
            seeding.seed(0)
            return self._make(config)

    def _refused(self, changed: Mapping[str, Any], why: str) -> ConfigError:
        given = ", ".join(f"{name}={value!r:.60}" for name, value in changed.items())
        return ConfigError(
            f"{type(self.config).__name__} cannot change to {given} once there are networks: {why}. Make another "
            f"algorithm, dataclasses.replace(algo.config, {given}).create(), and copy what fits with copy_policy_from "
            "and copy_q_function_from"
        )


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _same_tensors(one: nn.Module, other: nn.Module) -> bool:
    mine, its = ({**dict(each.named_parameters()), **dict(each.named_buffers())} for each in (one, other))
    return mine.keys() == its.keys() and all(torch.equal(mine[name], its[name]) for name in mine)
