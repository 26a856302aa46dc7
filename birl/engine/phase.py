"""What an algorithm says about one of its gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from birl.engine.targets import TargetUpdate
from birl.losses.loss import Loss
from birl.types import Batch

LossFunction = Callable[[Any, Batch, Any], Loss]  # (networks, batch, config)


@dataclass(frozen=True)
class Phase:
    """One gradient step of an update: a loss, and the networks that follow its gradient.

    Attributes:
        name: name of the step; it names the optimiser and is what errors call it.
        loss: pure function ``(networks, batch, config) -> Loss``.
        modules: names of the trained networks; by default the one called ``name``.
        prefix: the optimiser is made from ``<prefix>_learning_rate`` and ``<prefix>_optim_factory`` of the config
            (without the underscore if empty); by default ``name``.
        metric: name under which the loss is logged; by default ``<name>_loss``.
        every: the step is made in every ``every``-th update; an int or the name of a config field.
        after: the step is made only after so many updates; an int or the name of a config field.
        until: the step is made only in the first so many updates, if it is not ``None``; likewise.
        splits: whether the gradient of a minibatch is the mean of those of its parts. It is not where the loss has a
            factor made from the whole minibatch, such as TD3+BC's mean ``|Q|``: of several processes each has its own.
    """

    name: str
    loss: LossFunction
    modules: tuple[str, ...] = ()
    prefix: str | None = None
    metric: str = ""
    every: int | str = 1
    after: int | str = 0
    until: int | str | None = None
    splits: bool = True

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the trained networks."""
        return self.modules or (self.name,)

    @property
    def logged(self) -> str:
        """Name under which the loss is logged."""
        return self.metric or f"{self.name}_loss"

    def setting(self, config: Any, name: str) -> Any:
        """This phase's ``learning_rate`` or ``optim_factory`` in the config."""
        prefix = self.name if self.prefix is None else self.prefix
        return getattr(config, f"{prefix}_{name}" if prefix else name)


class Due(NamedTuple):
    """What one update consists of: not every phase and target is due in each."""

    phases: tuple[Phase, ...]
    targets: tuple[TargetUpdate, ...]


def due_at(step: int, phases: Sequence[Phase], targets: Sequence[TargetUpdate], config: Any) -> Due:
    """What is due in the update number ``step``, counted from 1."""
    return Due(
        tuple(phase for phase in phases if _is_due(phase, step, config)),
        tuple(target for target in targets if _is_due(target, step, config)),
    )


def _is_due(what: Phase | TargetUpdate, step: int, config: Any) -> bool:
    def number(value: int | str) -> int:
        return int(getattr(config, value)) if isinstance(value, str) else value

    until = what.until if isinstance(what, Phase) else None
    within = number(what.after) < step and (until is None or step <= number(until))
    return within and step % number(what.every) == 0
