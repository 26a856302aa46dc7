"""Published settings with their sources, and their conversion to a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

from birl import algos
from birl.config import AlgorithmConfig
from birl.files.serializable import Serializable, kind_of

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value]"
"""A value in a TOML file."""

_UPDATES, _NONE = "$updates", "none"


@dataclass(frozen=True)
class Setting:
    """One value and its source.

    Attributes:
        name: name of a config field, or of an option of ``birl train`` (with ``--``).
        value: the value in ``recipes.toml``.
        source: the paper or library that gives the value, and remarks.
    """

    name: str
    value: Value
    source: str

    @property
    def option(self) -> str | None:
        """The option's name in Python, such as ``n_steps``; ``None`` for a config field."""
        return self.name.removeprefix("--").replace("-", "_") if self.name.startswith("--") else None


@dataclass(frozen=True)
class Recipe:
    """Settings that were published together.

    Attributes:
        algorithm: name of the algorithm.
        name: name of the recipe.
        origin: papers and reproductions.
        settings: the settings; all other fields and options keep birl's defaults.
        updates: ``(a, b)`` for ``a`` updates in ``b`` steps, for schedules that end with the run.
    """

    algorithm: str
    name: str
    origin: str
    settings: tuple[Setting, ...]
    updates: tuple[int, int] = (1, 1)

    @property
    def options(self) -> dict[str, Value]:
        """Options of ``birl train``, by their names in Python."""
        return {each.option: each.value for each in self.settings if each.option is not None}

    @property
    def n_steps(self) -> int:
        """Number of environment steps."""
        steps = self.options["n_steps"]
        assert isinstance(steps, int)
        return steps

    def fields(self, n_steps: int | None = None) -> dict[str, object]:
        """Return the values of config fields; schedules span ``n_steps`` steps, by default the recipe's."""
        steps, (updates, interval) = n_steps or self.n_steps, self.updates
        total = max(1, steps * updates // interval)
        settings = [each for each in self.settings if each.option is None]
        return {each.name: _build(self._config_class, each.name, each.value, total) for each in settings}

    @property
    def _config_class(self) -> type[AlgorithmConfig]:
        found: type[AlgorithmConfig] = getattr(algos, f"{self.algorithm}Config")
        return found

    def config(self, n_steps: int | None = None, **changes: object) -> AlgorithmConfig:
        """Make the configuration.

        Args:
            n_steps: length of the run in environment steps, for schedules; by default the recipe's.
            **changes: other values of its fields.
        """
        make: Callable[..., AlgorithmConfig] = self._config_class
        return make(**self.fields(n_steps) | changes)

    def lines(self, n_steps: int | None = None, without: Collection[str] = ()) -> list[str]:
        """Format the settings, one per line.

        Args:
            n_steps: see `config`.
            without: names of fields and options (as in Python) to leave out.
        """
        values = {**self.fields(n_steps), **self.options}
        names = {each.option or each.name: each for each in self.settings}
        rows = [(each.name, _format(values[name]), each.source) for name, each in names.items() if name not in without]
        widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
        return [f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {source}" for name, value, source in rows]

    def __str__(self) -> str:
        return "\n".join([f"{self.algorithm} {self.name}: {self.origin}", *self.lines()])


def _build(owner: type, name: str, value: Value, n_updates: int) -> object:
    """Return the value of the field ``name`` of ``owner``: tables become objects, ``"$updates"`` becomes a number."""
    if isinstance(value, dict):
        kind = kind_of(owner, name)
        assert kind is not None
        made = kind.named(str(value["type"]))
        return made(**{key: _build(made, key, each, n_updates) for key, each in value.items() if key != "type"})
    return n_updates if value == _UPDATES else None if value == _NONE else value


def _format(value: object) -> str:
    if isinstance(value, Serializable):
        defaults: dict[str, object] = {}
        if dataclasses.is_dataclass(value):
            defaults = {each.name: each.default for each in dataclasses.fields(value)}
        params = {name: each for name, each in value.get_params().items() if each != defaults.get(name)}
        return f"{value.get_type()}({', '.join(f'{name}={_format(each)}' for name, each in params.items())})"
    return f"{value:g}" if isinstance(value, float) else str(value)
