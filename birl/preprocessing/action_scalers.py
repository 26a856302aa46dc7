"""Action scalers. Policies act in ``[-1, 1]``; these translate to the units of the environment and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from birl.errors import ConfigError
from birl.files.named import Serializable
from birl.preprocessing.base import MinMax, Scaler, as_float
from birl.types import Array


class ActionScaler(Scaler, Serializable):
    """Base of scalers of continuous actions. Derive from it and give ``get_type`` a name to add one."""

    def _values(self, episode: Any) -> Array:
        return episode.actions  # type: ignore[no-any-return]

    def _space(self, env: Any) -> Any:
        return env.single_action_space if hasattr(env, "single_action_space") else env.action_space


def register_action_scaler(cls: type[ActionScaler]) -> None:
    """Kept for d3rlpy code: a scaler is known by its name as soon as its class is defined.

    Raises:
        ConfigError: if ``cls`` is not an action scaler with a name.
    """
    if not (isinstance(cls, type) and issubclass(cls, ActionScaler) and cls.get_type()):
        raise ConfigError(f"{cls!r} must be a class derived from ActionScaler whose get_type returns a name")


@dataclass(eq=False)
class MinMaxActionScaler(MinMax, ActionScaler):
    """Map ``[minimum, maximum]`` to ``[-1, 1]``, each dimension by itself.

    A dimension that is constant becomes 0, and whatever the policy says comes back as the constant.

    Args:
        minimum: lower bounds ``[action_size]``, or ``None`` to be fitted.
        maximum: upper bounds.
    """

    @staticmethod
    def get_type() -> str:
        """Name in files."""
        return "min_max"

    def reverse_transform(self, x: Any) -> Any:
        """Inverse of `transform`. -1 and 1 give the bounds to the last bit, so no action leaves its space."""
        x = as_float(x)
        *_, minimum, maximum = self._tensors(x)
        return torch.lerp(minimum, maximum, (x + 1) / 2)

    def _constants(self) -> tuple[Array, ...]:
        return *super()._constants(), self.minimum, self.maximum
