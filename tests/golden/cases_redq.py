"""Goldens of REDQ (2101.05982) and DroQ (2110.02034), with their references."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from birl import algos
from birl.models import DroQEncoderFactory
from tests.golden.case import ACTOR_FIELDS, ACTOR_RATES, HEADS, Case, transitions, with_head
from tests.golden.reference_actor_critic import MeanOfCriticsReference
from tests.golden.reference_parts import (
    BatchOf,
    Parameters,
    average,
    gradients_of,
    number,
    squashed_sample,
)

SOFT_FIELDS = {**ACTOR_FIELDS, "temp_learning_rate": 3e-2, "initial_temperature": 0.4, "tau": 0.1}
SOFT_RATES = {**ACTOR_RATES, "temp_rate": 3e-2, "tau": 0.1}


class REDQReference(MeanOfCriticsReference):
    """Algorithm 1 of 2101.05982: the policy moves after every ``interval`` updates of the critics."""

    def __init__(self, parameters: Parameters, *, subset: int, interval: int, **rest: Any) -> None:
        super().__init__(parameters, **rest)
        self.subset, self.interval, self.updates = subset, interval, 0
        self.seen: set[int] = set()

    def critic_step(self, batch: BatchOf) -> float:
        """The lowest of a few targets."""
        p, head, size = self.parameters, self.head, len(batch["reward"])
        following = batch["next_observation"]
        noise = torch.randn(batch["action"].shape, dtype=torch.float64)
        action, log_density = squashed_sample(p, "actor.0", following, noise)
        order = torch.rand(self.n, dtype=torch.float64)
        chosen = sorted(range(self.n), key=lambda k: number(order[k]))[: self.subset]
        self.seen |= set(chosen)
        z, _ = self._values(p, "critic_target", following, action)
        alpha = math.exp(number(p["temperature"]))
        y = []
        for b in range(size):
            worst = min((z[k][b] for k in chosen), key=lambda row: number(head.expectation(row)))
            reward, discount = number(batch["reward"][b]), number(batch["discount"][b])
            y.append(head.target(worst, reward, discount, -alpha * number(log_density[b])))

        def loss(q: Parameters) -> Tensor:
            predicted, taus = self._values(q, "critic", batch["observation"], batch["action"])
            total = torch.zeros((), dtype=torch.float64)
            for member in predicted:
                for b in range(size):
                    error = head.loss(member[b], y[b].detach(), None if taus is None else taus[b], huber=False)
                    total = total + batch["weight"][b] * error / size
            return total

        gradients, value = gradients_of(loss, p, ["critic"])
        self.critic.step(p, gradients)
        return value

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        metrics = {"critic_loss": self.critic_step(batch)}
        average(self.parameters, "critic", "critic_target", self.tau)
        if self.updates % self.interval == 0:
            metrics |= {"actor_loss": self.actor_step(batch), "temp_loss": self.temp_step(batch)}
        return metrics


class DroQReference(REDQReference):
    """2110.02034: linear, dropout, layer norm and ReLU; every pass, of targets too, has its own dropout.

    Layer ``i`` has ``w{2 i}``, ``b{2 i}`` and ``norm{2 i + 1}``. The noise of all members is drawn at once.
    """

    def __init__(self, parameters: Parameters, *, rate: float, **rest: Any) -> None:
        super().__init__(parameters, **rest)
        self.rate = rate

    def _values(self, p: Parameters, net: str, x: Tensor, a: Tensor) -> tuple[list[Tensor], Tensor | None]:
        hidden = [torch.cat([x, a], -1)] * self.n
        for layer in (0, 2):
            width = p[f"{net}.0.b{layer}"].shape[0]
            kept = torch.empty(self.n, len(x), width, dtype=torch.float64).bernoulli_(1 - self.rate)
            for k in range(self.n):
                h = hidden[k] @ p[f"{net}.{k}.w{layer}"] + p[f"{net}.{k}.b{layer}"]
                h = h * kept[k] / (1 - self.rate)
                mean = h.mean(-1, keepdim=True)
                variance = ((h - mean) ** 2).mean(-1, keepdim=True)
                h = (h - mean) / torch.sqrt(variance + 1e-5)
                h = h * p[f"{net}.{k}.norm{layer + 1}.weight"] + p[f"{net}.{k}.norm{layer + 1}.bias"]
                hidden[k] = torch.where(h > 0, h, torch.zeros_like(h))
        return [hidden[k] @ p[f"{net}.{k}.out.w"] + p[f"{net}.{k}.out.b"] for k in range(self.n)], None


def _redq(head: str) -> Case:
    def check(reference: REDQReference) -> None:
        assert len(reference.seen) > 2, "it is not shown that the members of targets change"

    fields = {**SOFT_FIELDS, "n_critics": 4, "n_target_critics": 2, "update_actor_interval": 3}
    parts = with_head(head, algos.REDQConfig, fields, REDQReference, {**SOFT_RATES, "subset": 2, "interval": 3})
    return Case(head, **parts, inputs=transitions, check=check)


CASES = (
    *(_redq(head) for head in HEADS),
    Case(
        "",
        algos.DroQConfig(
            **{**SOFT_FIELDS, "critic_encoder_factory": DroQEncoderFactory([7, 5], dropout_rate=0.3)},
            update_actor_interval=2,
        ),
        partial(DroQReference, **SOFT_RATES, subset=2, interval=2, rate=0.3),
        transitions,
    ),
)
