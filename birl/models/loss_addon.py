"""The base class of terms that configurations add to losses."""

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

    A term of your own is a frozen dataclass with a name, ``class Mine(LossAddOn, type="mine")``, and the fields
    ``weight`` and ``phase``. Its network is a child of the algorithm's networks.

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
        """Make the network of the term.

        Args:
            acting: the network that acts.
            spec: shapes of observations and actions.
            config: the algorithm's configuration.

        Raises:
            ConfigError: if the term cannot be added to the algorithm.
        """

    @property
    def given(self) -> object:
        """The source of parameters that are loaded into the network; ``None`` if none are loaded."""
        return None

    def fill(self, network: nn.Module) -> None:
        """Load the term's given parameters into its network, unless a model file supplies them."""

    @abstractmethod
    def term(self, network: nn.Module, acting: nn.Module, batch: Batch) -> Tensor:
        """Return the term, a scalar with a graph, without its ``weight``.

        Args:
            network: the term's `network`.
            acting: the network that acts.
            batch: the batch of the step's loss.
        """


def addon_names(addons: Sequence[LossAddOn]) -> list[str]:
    """Return names of the add-ons' networks: their types, numbered from the second add-on of a type."""
    types = [each.get_type() for each in addons]
    counts = [types[: index + 1].count(name) for index, name in enumerate(types)]
    return [name if count == 1 else f"{name}_{count}" for name, count in zip(types, counts, strict=True)]
