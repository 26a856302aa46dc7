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
from birl.types import State

_FIXED: Final = {
    "observation_keys": "networks are built for the parts that it names",
    "observation_scaler": "networks have learned from its scaled values",
    "action_scaler": "networks have learned from its scaled values",
    "reward_scaler": "networks have learned from its scaled values",
    "compile_graph": "compilation is decided when networks are made or a run starts",
    "rollout_length": "loops read it when they start",
    "n_episodes": "loops read it when they start",
    "context_size": "contexts are made when acting starts",
}
"""Fields that are read only once, before updates, each with the reason why it cannot change."""

_PLAIN: Final = (bool, int, float, str, type(None))


class Change(NamedTuple):
    """The difference between two configurations.

    Attributes:
        config: the new configuration.
        fields: the fields that differ, by name, with their new values in JSON form.
        constants: numbers that networks store: name of the module, name of the attribute, new value.
    """

    config: AlgorithmConfig
    fields: dict[str, Any]
    constants: list[tuple[str, str, Any]]


class Tuning:
    """The initial configuration of a learner and its changes.

    Args:
        steps: returns the steps of an update for a configuration.
        make: makes the networks of a configuration.
        config: the initial configuration.
    """

    def __init__(
        self, steps: Callable[[Any], tuple[Step, ...]], make: Callable[[Any], nn.Module], config: AlgorithmConfig
    ) -> None:
        self.original = self.config = config
        self._steps, self._make = steps, make
        self._history: dict[str, Any] = {}

    def new_networks(self) -> nn.Module:
        """Make networks of the current configuration."""
        return self._make(self.config)

    def history(self) -> dict[str, Any]:
        """Return all changes in JSON form: the number of updates before each, and the new values of fields."""
        return dict(self._history)

    def change_to(self, fields: Mapping[str, Any], config: AlgorithmConfig | None = None) -> Change:
        """Compute the change that new values of some fields make, without applying it.

        Args:
            fields: new values by name.
            config: configuration whose fields are replaced; by default the current one.

        Raises:
            ConfigError: if a field is unknown, a value is not allowed, or the field affects networks or is read only
                before updates.
        """
        new = dataclasses.replace(self.config if config is None else config, **fields)
        names = [item.name for item in dataclasses.fields(new)]
        changed = {name: getattr(new, name) for name in names if getattr(new, name) != getattr(self.config, name)}
        for name in changed.keys() & _FIXED.keys():
            raise self._refusal({name: changed[name]}, _FIXED[name])
        steps, new_steps = (
            [step for step in self._steps(each) if step.when.holds(each)] for each in (self.config, new)
        )
        if steps != new_steps:
            raise self._refusal(changed, "the steps of an update depend on it")
        given, others = ([addon.given for addon in each.loss_addons or ()] for each in (self.config, new))
        if given != others:
            raise self._refusal(changed, "networks get parameters from it")
        optimizer_fields = {name for step in steps if isinstance(step, Gradient) for name in step.fields}
        constants = [] if changed.keys() <= optimizer_fields else self._constants(new, changed)
        return Change(new, {name: encode(value) for name, value in changed.items()}, constants)

    def record(self, change: Change, grad_step: int) -> None:
        """Record a change that is made after ``grad_step`` updates."""
        self._history[str(len(self._history))] = {"grad_step": grad_step, "fields": change.fields}
        self.config = change.config

    def restore(self, history: State) -> Change:
        """Replace the history by a saved one, and return the change from the current configuration.

        Raises:
            CorruptFileError: if the saved history has unknown fields or values that are not allowed.
        """
        try:
            given: dict[str, Any] = {}
            for key in sorted(history, key=int):
                given |= history[key]["fields"]
            saved = self.original.serialize()
            plain = {**saved["params"], **dict.fromkeys(SCALERS)}  # their states may be partly loaded
            read = type(self.original).deserialize({**saved, "params": {**plain, **given}})
            change = self.change_to({name: getattr(read, name) for name in given}, self.original)
        except (BirlError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(
                f"the history of retuned fields does not fit the configuration: {error!s:.200}. Restore the file from "
                "a copy"
            ) from error
        self._history, self.config = dict(history), change.config
        return change

    def _constants(self, new: AlgorithmConfig, changed: dict[str, Any]) -> list[tuple[str, str, Any]]:
        """Return the numbers stored in networks that differ for another configuration.

        Networks of both configurations are made with the same random numbers and may differ only in such numbers.
        """
        current, other = self._make_seeded(self.config), self._make_seeded(new)
        refusal = self._refusal(changed, "networks are made from it")
        current_modules, new_modules = dict(current.named_modules()), dict(other.named_modules())
        kinds, new_kinds = ([(key, type(each)) for key, each in x.items()] for x in (current_modules, new_modules))
        if kinds != new_kinds:
            raise refusal
        constants = []
        for key, module in current_modules.items():
            for attribute, value in vars(new_modules[key]).items():
                if _is_plain(value) and attribute in vars(module) and vars(module)[attribute] != value:
                    constants.append((key, attribute, value))
                    setattr(module, attribute, value)
        if not _same_tensors(current, other):
            raise refusal
        try:
            if digest(current) != digest(other):
                raise refusal
        except OpaqueError:
            if not all(_is_plain(value) for value in changed.values()):  # a user's class may store anything
                raise refusal from None
        return constants

    def _make_seeded(self, config: AlgorithmConfig) -> nn.Module:
        with seeding.preserve_random_state(), seeding.preserve_seed():
            seeding.seed(0)
            return self._make(config)

    def _refusal(self, changed: Mapping[str, Any], why: str) -> ConfigError:
        given = ", ".join(f"{name}={value!r:.60}" for name, value in changed.items())
        return ConfigError(
            f"{type(self.config).__name__} cannot change to {given} once networks exist: {why}. Make another "
            f"algorithm, dataclasses.replace(algo.config, {given}).create(), and copy networks with copy_policy_from "
            "and copy_q_function_from"
        )


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _same_tensors(one: nn.Module, other: nn.Module) -> bool:
    tensors, other_tensors = ({**dict(each.named_parameters()), **dict(each.named_buffers())} for each in (one, other))
    same_names = tensors.keys() == other_tensors.keys()
    return same_names and all(torch.equal(tensors[name], other_tensors[name]) for name in tensors)
