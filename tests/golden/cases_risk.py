"""Goldens of choices by risk measures and by levels of their own (1806.06923 section 3), with their reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from birl import algos
from birl.models import CPW, CVaR, Norm, Power, Wang
from tests.golden.case import HEADS, VALUE_FIELDS, Case, weighted_transitions
from tests.golden.reference_parts import BatchOf, Parameters, number
from tests.golden.reference_value import ValueReference

NORMAL, SPREAD = NormalDist(), 6.0
DISTORTED: dict[str, Callable[[float], float]] = {
    "cvar": lambda tau: 0.3 * tau,
    "cpw": lambda tau: tau**0.71 / (tau**0.71 + (1 - tau) ** 0.71) ** (1 / 0.71),
    "wang": lambda tau: NORMAL.cdf(NORMAL.inv_cdf(tau) - 0.75),
    "power": lambda tau: 1 - (1 - tau) ** (1 / 3),
}
MEASURES = {"cvar": CVaR(0.3), "cpw": CPW(0.71), "wang": Wang(-0.75), "power": Power(-2.0), "norm": Norm(3)}


class RiskReference(ValueReference):
    """DQN and Double DQN whose targets' actions are chosen by some levels and valued at all.

    Args:
        risk: name of the measure, or ``""``.
        levels: number of levels that IQN chooses by.
        **others: see `ValueReference`.
    """

    def __init__(self, parameters: Parameters, risk: str, levels: int, **others: Any) -> None:
        super().__init__(parameters, **others)
        self.risk, self.levels, self.differently = risk, levels, 0

    def _judged(self, net: str, x: Tensor, choosing: bool) -> tuple[list[Tensor], Tensor]:
        """Rows of all members, and the preferences ``[B, A]``."""
        p, head, taus = self.parameters, self.head, self.head.draw(len(x))
        rows = [head.forward(p, f"{net}.{k}", x, taus) for k in range(self.n)]
        if not choosing:
            return rows, torch.zeros(())
        if taus is None:  # the quantile function is a staircase: count how many of many levels fall on each stair
            counts = [0] * head.size
            for i in range(100_000):
                tau = DISTORTED[self.risk]((i + 0.5) / 100_000)
                counts[min(int(tau * head.size), head.size - 1)] += 1
            parts = [sum(row[..., j] * (count / 100_000) for j, count in enumerate(counts)) for row in rows]
            return rows, sum(parts) / self.n  # type: ignore[return-value]
        if self.risk == "norm":
            own = torch.rand(len(x), self.levels, 3, dtype=torch.float64).sum(-1) / 3
        else:
            own = torch.rand(len(x), self.levels, dtype=torch.float64)
            for each in own if self.risk else ():
                for j in range(self.levels):
                    each[j] = DISTORTED[self.risk](number(each[j]))
        size, total = head.size, torch.zeros(())
        head.size = self.levels
        for k in range(self.n):
            total = total + head.forward(p, f"{net}.{k}", x, own).sum(-1) / self.levels / self.n
        head.size = size
        return rows, total

    def targets(self, batch: BatchOf) -> list[Tensor]:
        x, head, result = batch["next_observation"], self.head, []
        preferences = self._judged("critic", x, True)[1] if self.double else None
        following, own = self._judged("critic_target", x, not self.double)
        preferences = own if preferences is None else preferences
        for b in range(len(x)):
            best = int(torch.argmax(preferences[b]))
            self.differently += best != int(torch.argmax(sum(head.expectation(z[b]) for z in following)))
            worst = min(range(self.n), key=lambda k: number(head.expectation(following[k][b, best])))
            reward, discount = number(batch["reward"][b]), number(batch["discount"][b])
            result.append(head.target(following[worst][b, best], reward, discount))
        return result


def _spread(algorithm: Any) -> None:
    """Make returns that are spread, and actions that are close to each other, so that risk counts."""
    with torch.no_grad():
        for network in (algorithm.nets.critic, algorithm.nets.critic_target):
            if hasattr(network.head, "embedding"):
                network.head.embedding.weight.mul_(SPREAD)
                network.head.linear.weight.mul_(2)
                network.head.linear.bias.zero_()


def _case(config: Any, head: str, risk: str, levels: int | None = None) -> Case:
    factory, own = HEADS[head]
    options: dict[str, Any] = {"risk": MEASURES.get(risk)}
    if levels is not None:
        options["n_choice_quantiles"] = levels
    fields = {**VALUE_FIELDS, "q_func_factory": replace(factory, **options), "n_critics": 2}
    numbers = {"double": config is not algos.DQNConfig, "rate": 1e-2, "interval": 2}

    def check(reference: Any) -> None:
        assert reference.differently >= 3, "the means would have chosen the same: nothing is shown about risk"

    label = f"{head} {risk or 'mean'}" + (f" of {levels}" if levels else "")
    reference = partial(RiskReference, risk=risk, levels=levels or own.size, head=replace(own), **numbers)
    config = config(**fields, target_update_interval=2)
    return Case(label, config, reference, weighted_transitions, prepare=_spread, check=check)


CASES: tuple[Case, ...] = (
    _case(algos.DQNConfig, "qr", "cvar"),
    _case(algos.DQNConfig, "qr", "wang"),
    *(_case(algos.DQNConfig, "iqn", risk) for risk in MEASURES),
    _case(algos.DQNConfig, "iqn", "", 7),
    _case(algos.DQNConfig, "iqn", "cvar", 7),
    _case(algos.DoubleDQNConfig, "qr", "power"),
    _case(algos.DoubleDQNConfig, "iqn", "cpw", 3),
)
