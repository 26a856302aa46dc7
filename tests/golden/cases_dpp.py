"""Goldens of dynamic policy programming (1004.2027), with their reference: plain loops over transitions and actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from birl import algos
from tests.golden.case import HEADS, VALUE_FIELDS, Case, weighted_transitions, with_head
from tests.golden.reference_parts import BatchOf, Parameters, number
from tests.golden.reference_returns import Head
from tests.golden.reference_value import ValueReference

ETA = 2.5


class PreferenceReference(ValueReference):
    """Updates of DPP.

    Args:
        parameters: ``critic.k.*`` and ``critic_target.k.*``.
        head: the head of the Q-functions.
        operator: ``M``, ``L`` or ``max`` of the paper.
    """

    def __init__(self, parameters: Parameters, head: Head, operator: str) -> None:
        super().__init__(parameters, head, double=False, rate=1e-2, interval=2)
        self.operator = operator

    def _preferences(self, z: list[Tensor], b: int) -> list[float]:
        """Of one state, action by action: the mean of the ensemble."""
        return [sum(number(self.head.expectation(each[b, a])) for each in z) / self.n for a in range(z[0].shape[1])]

    def _weights(self, values: list[float]) -> list[float]:
        """Of the actions, in the mean that is a state's value."""
        if self.operator == "max":
            return [float(a == values.index(max(values))) for a in range(len(values))]
        total = sum(math.exp(ETA * value) for value in values)
        return [math.exp(ETA * value) / total for value in values]

    def _value(self, values: list[float]) -> float:
        if self.operator == "log_sum_exp":
            return math.log(sum(math.exp(ETA * value) for value in values)) / ETA
        return sum(weight * value for weight, value in zip(self._weights(values), values, strict=True))

    def targets(self, batch: BatchOf) -> list[Tensor]:
        p, head = self.parameters, self.head
        present = self._all(p, "critic_target", batch["observation"])[0]
        following = self._all(p, "critic_target", batch["next_observation"])[0]
        result = []
        for b in range(len(batch["reward"])):
            here, there = self._preferences(present, b), self._preferences(following, b)
            reward = number(batch["reward"][b]) + here[int(batch["action"][b])] - self._value(here)
            weights = self._weights(there)
            rows = [sum(weight * z[b, a] for a, weight in enumerate(weights)) for z in following]
            # the distribution's mean is that of the policy; what the operator adds to it is added to all of it
            more = self._value(there) - sum(weight * value for weight, value in zip(weights, there, strict=True))
            worst = min(rows, key=lambda row: number(torch.as_tensor(row).sum()))
            result.append(head.target(worst, reward, number(batch["discount"][b]), more))
        return result


def _dpp(operator: str, head: str, n_critics: int = 2) -> Case:
    fields = {**VALUE_FIELDS, "n_critics": n_critics, "target_update_interval": 2, "inverse_temperature": ETA}
    given = {"operator": operator}
    parts = with_head(head, algos.DPPConfig, fields | given, PreferenceReference, given)
    return Case(f"{operator} {head} x{n_critics}", **parts, inputs=weighted_transitions)


OPERATORS = ("softmax", "log_sum_exp", "max")
CASES = (
    *(_dpp(operator, head) for operator in OPERATORS for head in HEADS if head != "c51"),
    *(_dpp(operator, "mean", 1) for operator in OPERATORS),
)
