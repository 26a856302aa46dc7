"""Golden of CrossQ (1902.05605), with its reference: batch renormalisation feature by feature."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from birl import algos
from birl.models import AdamFactory, BatchRenormEncoderFactory
from tests.golden.case import ACTOR_FIELDS, ACTOR_RATES, Case, weighted_transitions
from tests.golden.reference_parts import Adam, BatchOf, Parameters, members, normal_log_density, number

LIMITS, EPS = (3.0, 5.0), 1e-3  # r_max and d_max of 1702.03275, and what is added to variances


class CrossQReference:
    """SAC without targets: each update of the critics is one pass of both pairs, without a gradient through the second.

    Layer ``i`` has ``w{2 i + 1}`` and ``b{2 i + 1}``; ``norm0`` is that of the inputs, ``norm{2 i + 2}`` that after it.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        actor_rate: float,
        critic_rate: float,
        temp_rate: float,
        interval: int,
        momentum: float,
        warmup: int,
    ) -> None:
        self.parameters, self.interval, self.updates = dict(parameters), interval, 0
        self.momentum, self.warmup = momentum, warmup
        self.actor, self.critic, self.temp = Adam(actor_rate), Adam(critic_rate), Adam(temp_rate)
        self.n = members(parameters, "critic")
        self.corrected = self.plain = 0

    def _norm(self, p: Parameters, name: str, count: str, x: Tensor, running: Parameters | None) -> Tensor:
        """With a dict ``running``, by the batch; the new running statistics are written into it."""
        mean, variance = p[f"{name}.running_mean"].reshape(-1), p[f"{name}.running_var"].reshape(-1)
        scale, shift = p[f"{name}.weight"].reshape(-1), p[f"{name}.bias"].reshape(-1)
        columns, means, variances = [], [], []
        warm = number(p[count]) >= self.warmup
        for f in range(x.shape[1]):
            column = x[:, f]
            old = math.sqrt(number(variance[f]) + EPS)
            if running is None:
                columns.append((column - mean[f]) / old * scale[f] + shift[f])
                continue
            m = column.sum() / len(column)
            v = ((column - m) ** 2).sum() / len(column)
            r, d = 1.0, 0.0
            if warm:
                r = min(max(math.sqrt(number(v) + EPS) / old, 1 / LIMITS[0]), LIMITS[0])
                d = min(max((number(m) - number(mean[f])) / old, -LIMITS[1]), LIMITS[1])
            columns.append(((column - m) / torch.sqrt(v + EPS) * r + d) * scale[f] + shift[f])
            means.append((1 - self.momentum) * number(mean[f]) + self.momentum * number(m))
            variances.append((1 - self.momentum) * number(variance[f]) + self.momentum * number(v))
        if running is not None:
            self.corrected, self.plain = self.corrected + warm, self.plain + (not warm)
            for key, row in (("running_mean", means), ("running_var", variances)):
                running[f"{name}.{key}"] = torch.tensor(row, dtype=torch.float64).reshape(p[f"{name}.{key}"].shape)
            running[count] = p[count] + 1
        return torch.stack(columns, -1)

    def _out(self, p: Parameters, net: str, k: int, x: Tensor, running: Parameters | None) -> Tensor:
        own = f"{net}.{k}"
        x = self._norm(p, f"{own}.norm0", f"{net}.0.norm0.batches", x, running)
        for layer in (1, 3):
            x = x @ p[f"{own}.w{layer}"] + p[f"{own}.b{layer}"]
            x = torch.where(x > 0, x, torch.zeros_like(x))
            x = self._norm(p, f"{own}.norm{layer + 1}", f"{net}.0.norm{layer + 1}.batches", x, running)
        return x @ p[f"{own}.out.w"] + p[f"{own}.out.b"]

    def _sample(self, p: Parameters, x: Tensor, noise: Tensor, running: Parameters | None) -> tuple[Tensor, Tensor]:
        out = self._out(p, "actor", 0, x, running)
        size = noise.shape[-1]
        mean, log_std = out[:, :size], torch.clamp(out[:, size:], -20, 2)
        u = mean + torch.exp(log_std) * noise
        density = normal_log_density(u, mean, log_std) - torch.log(1 - torch.tanh(u) ** 2)
        return torch.tanh(u), density.sum(-1)

    def _step(self, net: str, optimizer: Adam, loss: Callable[[Parameters, Parameters], Tensor]) -> float:
        """Follow the gradient of ``loss(parameters, running statistics to write)``."""
        p, running = self.parameters, {}
        ends = ("running_mean", "running_var", "batches")
        names = [name for name in p if name.split(".")[0] == net and not name.endswith(ends)]
        copies = {name: value.detach().clone().requires_grad_(name in names) for name, value in p.items()}
        value = loss(copies, running)
        gradients = torch.autograd.grad(value, [copies[name] for name in names])
        optimizer.step(p, dict(zip(names, gradients, strict=True)))
        p.update({name: tensor.detach() for name, tensor in running.items()})
        return number(value)

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        p, size, weight = self.parameters, len(batch["reward"]), batch["weight"]
        alpha = math.exp(number(p["temperature"]))
        noise = torch.randn(batch["action"].shape, dtype=torch.float64)
        action, density = self._sample(p, batch["next_observation"], noise, None)
        pairs = torch.cat(
            [
                torch.cat([batch["observation"], batch["action"]], -1),
                torch.cat([batch["next_observation"], action.detach()], -1),
            ]
        )

        def critic_loss(q: Parameters, running: Parameters) -> Tensor:
            values = [self._out(q, "critic", k, pairs, running)[:, 0] for k in range(self.n)]
            total = torch.zeros((), dtype=torch.float64)
            for b in range(size):
                lowest = min(number(value[size + b]) for value in values)
                soft = lowest - alpha * number(density[b])
                y = number(batch["reward"][b]) + number(batch["discount"][b]) * soft
                for value in values:
                    total = total + weight[b] * (value[b] - y) ** 2 / size
            return total

        metrics = {"critic_loss": self._step("critic", self.critic, critic_loss)}
        if self.updates % self.interval:
            return metrics
        noise = torch.randn(batch["action"].shape, dtype=torch.float64)
        drawn: list[float] = []

        def actor_loss(q: Parameters, running: Parameters) -> Tensor:
            a, log_density = self._sample(q, batch["observation"], noise, running)
            drawn.extend(number(d) for d in log_density)
            joint = torch.cat([batch["observation"], a], -1)
            values = [self._out(q, "critic", k, joint, None)[:, 0] for k in range(self.n)]
            total = torch.zeros((), dtype=torch.float64)
            for b in range(size):
                lowest = min((value[b] for value in values), key=number)
                total = total + weight[b] * (alpha * log_density[b] - lowest)
            return total / size

        def temp_loss(q: Parameters, _: Parameters) -> Tensor:
            goal = -number(batch["action"].shape[-1])
            total = sum(number(weight[b]) * (-drawn[b] - goal) for b in range(size)) / size
            return torch.exp(q["temperature"]) * total

        metrics["actor_loss"] = self._step("actor", self.actor, actor_loss)
        metrics["temp_loss"] = self._step("temperature", self.temp, temp_loss)
        return metrics


def _check(reference: CrossQReference) -> None:
    assert min(reference.corrected, reference.plain) >= 3, "one of the phases of batch renormalisation was not seen"


FIELDS: dict[str, Any] = {
    **ACTOR_FIELDS,
    **{f"{network}_optim_factory": AdamFactory() for network in ("actor", "critic", "temp")},
    **{
        f"{network}_encoder_factory": BatchRenormEncoderFactory([7, 5], momentum=0.2, warmup=2)
        for network in ("actor", "critic")
    },
    "temp_learning_rate": 3e-2,
    "initial_temperature": 0.4,
    "update_actor_interval": 2,
}

CASES = (
    Case(
        "",
        algos.CrossQConfig(**FIELDS),
        partial(CrossQReference, **ACTOR_RATES, temp_rate=3e-2, interval=2, momentum=0.2, warmup=2),
        weighted_transitions,
        check=_check,
    ),
)
