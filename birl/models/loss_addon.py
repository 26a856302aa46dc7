"""Terms that are added to an algorithm's loss: what they have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from birl.files.serializable import Serializable
from birl.spaces.specs import Spec
from birl.types import Batch


class LossAddOn(Serializable):
    """Base of terms that a configuration adds to the loss of one of its steps: ``loss_addons=(…,)``.

    Write one as a frozen dataclass with a name, ``class Mine(LossAddOn, type="mine")``, and the fields ``weight`` and
    ``phase``. Its network is a child of the algorithm's networks.

    Attributes:
        weight: factor of the term, at least 0.
        phase: name of the gradient step to whose loss the term is added; ``None`` for the one that trains the network
            which acts.
        trains: whether the step trains the add-on's network, too.
        returns: whether the term needs the returns of the data.
    """

    weight: float
    phase: str | None

    trains: ClassVar[bool] = False
    returns: ClassVar[bool] = False

    @abstractmethod
    def network(self, acting: nn.Module, spec: Spec, config: Any) -> nn.Module:
        """Its own network.

        Args:
            acting: the network that acts.
            spec: shapes of observations and actions.
            config: the algorithm's configuration.

        Raises:
            ConfigError: if it cannot be added to the algorithm.
        """

    @property
    def given(self) -> object:
        """Where the parameters come from that its network is given; ``None`` if they are not given."""
        return None

    def fill(self, own: nn.Module) -> None:
        """Put parameters that the term is given into its network ``own``, where they are not in the file of a model."""

    @abstractmethod
    def term(self, own: nn.Module, acting: nn.Module, batch: Batch) -> Tensor:
        """The term, a scalar with a graph, before its ``weight``.

        Args:
            own: its `network`.
            acting: the network that acts.
            batch: what the step's loss is given.
        """


def addon_names(addons: Sequence[LossAddOn]) -> list[str]:
    """Names of the add-ons' networks: their types, with a number from the second of a type on."""
    types = [each.get_type() for each in addons]
    counts = [types[: index + 1].count(name) for index, name in enumerate(types)]
    return [name if count == 1 else f"{name}_{count}" for name, count in zip(types, counts, strict=True)]
