"""AWAC (2006.09359), CRR (2006.15134), EDAC (2110.01548) and Cal-QL (2303.05479)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.golden.reference_actor_critic import CQLReference, SACReference, _critic_error, _lowest, _q
from tests.golden.reference_parts import (
    Adam,
    BatchOf,
    Parameters,
    average,
    gradients_of,
    members,
    mlp,
    normal_log_density,
    number,
    squashed_sample,
)
from tests.golden.reference_returns import Head

_MEAN = Head("mean")


def _clip(a: Tensor) -> Tensor:
    """Every number to [-1, 1]."""
    return torch.tensor([[min(max(number(x), -1.0), 1.0) for x in row] for row in a], dtype=torch.float64)


class AWACReference:
    """Algorithm 1 of 2006.09359: policy evaluation (eq. 9), then the weighted log-likelihood (eq. 13).

    Weights are at most ``max_weight``.
    """

    log_std_range = (-6.0, 0.0)

    def __init__(
        self,
        parameters: Parameters,
        *,
        actor_rate: float,
        critic_rate: float,
        tau: float,
        lam: float,
        n_samples: int,
        max_weight: float,
        head: Head = _MEAN,
    ) -> None:
        self.parameters, self.head, self.tau = dict(parameters), head, tau
        self.lam, self.n_samples, self.max_weight = lam, n_samples, max_weight
        self.actor, self.critic = Adam(actor_rate), Adam(critic_rate)

    def policy(self, p: Parameters, net: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the standard deviation ``[B, A]``."""
        mean = torch.tanh(mlp(p, f"{net}.0", x))
        return mean, torch.clamp(p[f"{net}.log_std"], *self.log_std_range).expand(mean.shape)

    def evaluate(self, batch: BatchOf, policy: str) -> float:
        """One critic step; the next action is that of the network ``policy``."""
        p, head, following = self.parameters, self.head, batch["next_observation"]
        mean, log_std = self.policy(p, policy, following)
        action = _clip(mean + torch.exp(log_std) * torch.randn(mean.shape, dtype=torch.float64))
        z, _ = _q(p, "critic_target", head, following, action)
        y = [
            head.target(_lowest(head, z, b), number(batch["reward"][b]), number(batch["discount"][b]))
            for b in range(len(action))
        ]
        gradients, value = gradients_of(lambda q: _critic_error(q, head, batch, y), p, ["critic"])
        self.critic.step(p, gradients)
        return value

    def candidates(self, batch: BatchOf) -> list[list[list[float]]]:
        """Values ``[member][candidate][b]``: the first candidate is the data's action, the others are the policy's."""
        p, x = self.parameters, batch["observation"]
        mean, log_std = self.policy(p, "actor", x)
        noise = torch.randn((self.n_samples, *mean.shape), dtype=torch.float64)
        actions = [batch["action"]] + [_clip(mean + torch.exp(log_std) * e) for e in noise]
        z, _ = _q(p, "critic", self.head, torch.cat([x] * len(actions)), torch.cat(actions))
        size = len(x)
        return [
            [[number(self.head.expectation(row)) for row in member[i : i + size]] for i in range(0, len(member), size)]
            for member in z
        ]

    def weights(self, batch: BatchOf) -> list[float]:
        """``exp(A / lam)``, ``A = Q(s, a) - E Q(s, a')``, ``Q`` the smaller of the two."""
        values = self.candidates(batch)
        result = []
        for b in range(len(batch["reward"])):
            q = [min(member[j][b] for member in values) for j in range(self.n_samples + 1)]
            advantage = q[0] - sum(q[1:]) / self.n_samples
            result.append(min(math.exp(advantage / self.lam), self.max_weight))
        return result

    def improve(self, batch: BatchOf) -> float:
        """One policy step."""
        weights = self.weights(batch)

        def loss(p: Parameters) -> Tensor:
            mean, log_std = self.policy(p, "actor", batch["observation"])
            total = torch.zeros((), dtype=torch.float64)
            for b, weight in enumerate(weights):
                log_density = normal_log_density(batch["action"][b], mean[b], log_std[b]).sum()
                total = total - batch["weight"][b] * weight * log_density / len(weights)
            return total

        gradients, value = gradients_of(loss, self.parameters, ["actor"])
        self.actor.step(self.parameters, gradients)
        return value

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        metrics = {"critic_loss": self.evaluate(batch, "actor"), "actor_loss": self.improve(batch)}
        average(self.parameters, "critic", "critic_target", self.tau)
        return metrics


class CRRReference(AWACReference):
    """2006.15134, algorithm 1: both targets lag behind; the filter ``f`` of section 3 weights the log-likelihood."""

    log_std_range = (-5.0, 2.0)

    def __init__(
        self,
        parameters: Parameters,
        *,
        beta: float,
        advantage: str,
        weight: str,
        interval: int,
        actor_interval: int,
        **rest: float,
    ) -> None:
        super().__init__(parameters, lam=beta, **rest)  # type: ignore[arg-type]
        self.advantage, self.filter, self.interval, self.actor_interval = advantage, weight, interval, actor_interval
        self.updates = 0

    def policy(self, p: Parameters, net: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both parameters depend on the state."""
        out = mlp(p, f"{net}.0", x)
        size = out.shape[-1] // 2
        return torch.tanh(out[..., :size]), torch.clamp(out[..., size:], *self.log_std_range)

    def weights(self, batch: BatchOf) -> list[float]:
        """``f(A)`` with the mean of the ensemble."""
        values = self.candidates(batch)
        result = []
        for b in range(len(batch["reward"])):
            q = [sum(member[j][b] for member in values) / len(values) for j in range(self.n_samples + 1)]
            advantage = q[0] - (max(q[1:]) if self.advantage == "max" else sum(q[1:]) / self.n_samples)
            if self.filter == "binary":
                result.append(1.0 if advantage > 0 else 0.0)
            else:
                result.append(min(math.exp(advantage / self.lam), self.max_weight))
        return result

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        metrics = {"critic_loss": self.evaluate(batch, "actor_target")}
        if self.updates % self.actor_interval == 0:
            metrics["actor_loss"] = self.improve(batch)
        if self.interval == 0 or self.updates % self.interval == 0:  # 0: the targets follow slowly
            tau = self.tau if self.interval == 0 else 1.0
            average(self.parameters, "critic", "critic_target", tau)
            average(self.parameters, "actor", "actor_target", tau)
        return metrics


class EDACReference(SACReference):
    """2110.01548, algorithm 1: SAC's Bellman error plus ``eta / (N - 1)`` times the sum of all pairs' cosines."""

    def __init__(self, parameters: Parameters, *, eta: float, **rest: float) -> None:
        super().__init__(parameters, **rest)  # type: ignore[arg-type]
        self.eta = eta

    def _goals(self, batch: BatchOf) -> list[Tensor]:
        p, head, following = self.parameters, self.head, batch["next_observation"]
        noise = torch.randn(batch["action"].shape, dtype=torch.float64)
        action, log_density = squashed_sample(p, "actor.0", following, noise)
        z, _ = _q(p, "critic_target", head, following, action)
        alpha = math.exp(number(p["temperature"]))
        return [
            head.target(
                _lowest(head, z, b),
                number(batch["reward"][b]),
                number(batch["discount"][b]),
                -alpha * number(log_density[b]),
            )
            for b in range(len(action))
        ]

    def critic_step(self, batch: BatchOf) -> float:
        """Every cosine by itself."""
        p, head, size = self.parameters, self.head, len(batch["reward"])
        y = self._goals(batch)
        taus = head.draw(size)

        def loss(q: Parameters) -> Tensor:
            total, slopes = torch.zeros((), dtype=torch.float64), []
            for k in range(members(q, "critic")):
                action = batch["action"].clone().requires_grad_(True)
                z = head.forward(q, f"critic.{k}", torch.cat([batch["observation"], action], -1), taus)[:, 0]
                values = torch.stack([head.expectation(row) for row in z])
                slopes.append(torch.autograd.grad(values.sum(), action, create_graph=True)[0])
                for b in range(size):
                    error = head.loss(z[b], y[b], None if taus is None else taus[b], huber=False)
                    total = total + batch["weight"][b] * error / size
            for i, first in enumerate(slopes):
                for j, second in enumerate(slopes):
                    if i == j:
                        continue
                    for b in range(size):
                        if number(first[b].abs().sum()) == 0 or number(second[b].abs().sum()) == 0:
                            continue  # all units are off: there is no direction
                        lengths = torch.sqrt((first[b] ** 2).sum()) * torch.sqrt((second[b] ** 2).sum())
                        cosine = (first[b] * second[b]).sum() / lengths
                        total = total + self.eta / (len(slopes) - 1) * batch["weight"][b] * cosine / size
            return total

        gradients, value = gradients_of(loss, p, ["critic"])
        self.critic.step(p, gradients)
        return value


class CalQLReference(CQLReference):
    """2303.05479: CQL's regulariser with ``max(Q(s, a), V(s))`` of the policy's actions; ``V`` is the return to go."""

    def _gap(self, p: Parameters, batch: BatchOf, actions: Tensor, densities: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        size = len(batch["reward"])
        for k in range(members(p, "critic")):
            for b in range(size):
                x, mass = batch["observation"][b], torch.zeros((), dtype=torch.float64)
                for j in range(len(actions)):
                    q = mlp(p, f"critic.{k}", torch.cat([x, actions[j, b]]))[0]
                    if j < 2 * self.n_samples and number(q) < number(batch["discounted_return"][b]):
                        q = batch["discounted_return"][b]
                    mass = mass + torch.exp(q) / torch.exp(densities[j, b])
                data = mlp(p, f"critic.{k}", torch.cat([x, batch["action"][b]]))[0]
                gap = self._log(mass, actions) - data
                total = total + self.weight * (batch["weight"][b] * gap / size - self.threshold / size)
        return total
