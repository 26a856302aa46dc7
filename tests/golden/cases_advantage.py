"""Goldens of AL, PAL and DoublePAL (1512.04860), with their reference: plain loops over transitions and actions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from birl import algos
from tests.golden.case import HEADS, VALUE_FIELDS, Case, weighted_transitions, with_head
from tests.golden.reference_parts import BatchOf, Parameters, number
from tests.golden.reference_returns import Head
from tests.golden.reference_value import ValueReference

ALPHA = 0.7


class AdvantageReference(ValueReference):
    """Updates of AL, PAL and DoublePAL.

    Args:
        parameters: ``critic.k.*`` and ``critic_target.k.*``.
        head: the head of the Q-functions.
        double: choose the target's action by the online network.
        persistent: whether it is PAL.
    """

    def __init__(self, parameters: Parameters, head: Head, double: bool, persistent: bool) -> None:
        super().__init__(parameters, head, double, rate=1e-2, interval=2)
        self.persistent = persistent
        self.chosen = {"this": 0, "next": 0, "end": 0}

    def targets(self, batch: BatchOf) -> list[Tensor]:
        p, head = self.parameters, self.head
        online = self._all(p, "critic", batch["next_observation"])[0] if self.double else None
        # in the order in which the networks draw quantile levels
        if self.persistent:
            following = self._all(p, "critic_target", batch["next_observation"])[0]
            present = self._all(p, "critic_target", batch["observation"])[0]
        else:
            present = self._all(p, "critic_target", batch["observation"])[0]
            following = self._all(p, "critic_target", batch["next_observation"])[0]

        def q(z: list[Tensor], b: int, a: int) -> float:
            return sum(number(head.expectation(each[b, a])) for each in z) / self.n

        def best(z: list[Tensor], b: int) -> int:
            values = [q(z, b, a) for a in range(z[0].shape[1])]
            return values.index(max(values))

        result = []
        for b in range(len(batch["reward"])):
            taken, discount = int(batch["action"][b]), number(batch["discount"][b])
            gap = q(present, b, best(present, b)) - q(present, b, taken)
            if self.persistent:
                # section 5: the larger error, that is, the smaller gap; both values of a terminal state are 0
                other = q(following, b, best(following, b)) - q(following, b, taken) if discount else 0.0
                self.chosen["end" if not discount else "this" if gap < other else "next"] += 1
                gap = min(gap, other)
            action = best(following if online is None else online, b)
            worst = min(range(self.n), key=lambda k: number(head.expectation(following[k][b, action])))
            result.append(head.target(following[worst][b, action], number(batch["reward"][b]) - ALPHA * gap, discount))
        return result


def _advantage(config: Any, head: str, n_critics: int = 2) -> Case:
    fields = {**VALUE_FIELDS, "n_critics": n_critics, "target_update_interval": 2, "alpha": ALPHA}
    numbers = {"double": config is algos.DoublePALConfig, "persistent": config is not algos.ALConfig}

    def check(reference: AdvantageReference) -> None:
        assert not reference.persistent or min(reference.chosen.values()) >= 3, f"one gap is shown: {reference.chosen}"

    parts = with_head(head, config, fields, AdvantageReference, numbers)
    return Case(f"{head} x{n_critics}", **parts, inputs=weighted_transitions, check=check)


CONFIGS = (algos.ALConfig, algos.PALConfig, algos.DoublePALConfig)
CASES = (
    *(_advantage(config, head) for config in CONFIGS for head in HEADS),
    _advantage(algos.PALConfig, "mean", 1),
)
