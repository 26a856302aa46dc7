"""What a learner that evaluates a policy needs of it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from birl.acting.built_policy import BuiltPolicy
from birl.types import State


class EvaluationTarget(Protocol):
    """A policy that is evaluated: that of a learner, or one that draws its actions.

    Attributes:
        recurrent: whether it remembers.
    """

    @property
    def recurrent(self) -> bool:
        """See above."""

    def policies(self) -> list[tuple[float, BuiltPolicy]]:
        """The policies of which each action draws one, with their probabilities."""

    def describe(self) -> dict[str, Any]:
        """What it is, in JSON form."""

    def policy_state(self) -> State:
        """Its networks."""


def same_networks(saved: State, own: State) -> bool:
    """Whether two results of `EvaluationTarget.policy_state` have the same networks."""
    there, here = _tensors(saved), _tensors(own)
    same = there.keys() == here.keys()
    return same and all(torch.equal(here[key], x.to(here[key].device)) for key, x in there.items())


def _tensors(state: Any, at: str = "") -> dict[str, Tensor]:
    if isinstance(state, Tensor):
        return {at: state}
    found: dict[str, Tensor] = {}
    for key, value in state.items() if isinstance(state, dict) else ():
        found |= _tensors(value, f"{at}/{key}")
    return found
