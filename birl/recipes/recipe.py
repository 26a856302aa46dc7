"""What a recipe is: settings that were published together, each with its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from birl import algos
from birl.config import AlgorithmConfig
from birl.files.serializable import Serializable


@dataclass(frozen=True)
class Setting:
    """One number, and where it comes from.

    Attributes:
        name: of a config field, or of an option of ``birl train`` (with ``--``).
        value: its value, or a function of the number of steps that gives it.
        source: a few words.
    """

    name: str
    value: Any
    source: str

    @property
    def option(self) -> str | None:
        """The option's name in Python, such as ``n_steps``; ``None`` for a config field."""
        return self.name.removeprefix("--").replace("-", "_") if self.name.startswith("--") else None

    def of(self, n_steps: int) -> Any:
        """The value for a run of so many steps."""
        return self.value(n_steps) if callable(self.value) and not isinstance(self.value, Serializable) else self.value


@dataclass(frozen=True)
class Recipe:
    """Settings that were published together.

    Attributes:
        algorithm: name of the algorithm.
        name: of the recipe.
        origin: papers and reproductions.
        settings: what it sets; everything else stays as birl has it.
    """

    algorithm: str
    name: str
    origin: str
    settings: tuple[Setting, ...]

    @property
    def options(self) -> dict[str, Any]:
        """Options of ``birl train``, by their names in Python."""
        return {each.option: each.value for each in self.settings if each.option is not None}

    @property
    def n_steps(self) -> int:
        """Number of environment steps."""
        return int(self.options["n_steps"])

    def fields(self, n_steps: int | None = None) -> dict[str, Any]:
        """Config fields; schedules are those of a run of ``n_steps`` steps, by default the recipe's."""
        own = [each for each in self.settings if each.option is None]
        return {each.name: each.of(n_steps or self.n_steps) for each in own}

    def config(self, n_steps: int | None = None, **changes: Any) -> AlgorithmConfig:
        """The configuration.

        Args:
            n_steps: length of the run in environment steps, for schedules; by default the recipe's.
            **changes: other values of its fields.
        """
        return getattr(algos, f"{self.algorithm}Config")(**self.fields(n_steps) | changes)  # type: ignore[no-any-return]

    def lines(self, n_steps: int | None = None, without: Collection[str] = ()) -> list[str]:
        """A line for each setting but those of these fields and options (as in Python); ``n_steps`` as in `config`."""
        settings = [each for each in self.settings if (each.option or each.name) not in without]
        rows = [(each.name, _words(each.of(n_steps or self.n_steps)), each.source) for each in settings]
        widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
        return [f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {source}" for name, value, source in rows]

    def __str__(self) -> str:
        return "\n".join([f"{self.algorithm} {self.name}: {self.origin}", *self.lines()])


def _words(value: Any) -> str:
    if isinstance(value, Serializable) and dataclasses.is_dataclass(value):
        defaults = {each.name: each.default for each in dataclasses.fields(value)}
        own = {name: each for name, each in value.get_params().items() if each != defaults[name]}
        return f"{value.get_type()}({', '.join(f'{name}={_words(each)}' for name, each in own.items())})"
    if isinstance(value, Serializable):
        own = {name: each for name, each in value.get_params().items() if each is not None}
        return f"{value.get_type()}({', '.join(f'{name}={_words(each)}' for name, each in own.items())})"
    return f"{value:g}" if isinstance(value, float) else str(value)
