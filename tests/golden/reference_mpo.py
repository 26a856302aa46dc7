"""MPO (1806.06920, 1812.02256), its form for discrete actions, and V-MPO (1909.12238)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.golden.reference_actor_critic import DiscreteSACReference, _lowest, _q
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
)
from tests.golden.reference_returns import Head

_MEAN = Head("mean")
DUALS = ["temperature", "alpha_mean", "alpha_std"]


def positive(raw: Tensor) -> Tensor:
    """``log(1 + exp(x))``, never quite 0."""
    return torch.log(1 + torch.exp(raw)) + 1e-8


class MPOReference:
    """One gradient step each of the critic, the policy and the dual variables; the targets are copied now and then."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        actor_rate: float,
        critic_rate: float,
        dual_rate: float,
        max_norm: float,
        n_samples: int,
        epsilon: float,
        epsilon_penalty: float | None,
        epsilon_mean: float,
        epsilon_std: float,
        interval: int,
        per_dimension: bool,
        initial_std: float,
        tau: float,
        head: Head = _MEAN,
    ) -> None:
        self.tau = tau  # 0: targets are copied
        self.parameters, self.head, self.n_samples = dict(parameters), head, n_samples
        self.epsilon, self.epsilon_penalty = epsilon, epsilon_penalty
        self.epsilon_mean, self.epsilon_std, self.per_dimension = epsilon_mean, epsilon_std, per_dimension
        self.interval, self.initial_std, self.updates = interval, initial_std, 0
        self.actor, self.critic = Adam(actor_rate, max_norm=max_norm), Adam(critic_rate, max_norm=max_norm)
        self.dual = Adam(dual_rate)

    def policy(self, p: Parameters, net: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[B, A]``."""
        out = mlp(p, f"{net}.0", x)
        size = out.shape[-1] // 2
        return out[..., :size], self.initial_std * torch.exp(out[..., size:])

    def sampled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Actions of the target policy ``[S, B, A]``, and the same within [-1, 1]."""
        mean, std = self.policy(self.parameters, "actor_target", x)
        action = mean + std * torch.randn((self.n_samples, *mean.shape), dtype=torch.float64)
        inside = torch.tensor([[[min(max(number(u), -1.0), 1.0) for u in row] for row in rows] for rows in action])
        return action, inside

    def values(self, x: Tensor, actions: Tensor) -> list[list[list[Tensor]]]:
        """The target critic's rows ``[member][sample][b]``."""
        z, _ = _q(self.parameters, "critic_target", self.head, torch.cat([x] * len(actions)), torch.cat(list(actions)))
        return [[list(member[i : i + len(x)]) for i in range(0, len(member), len(x))] for member in z]

    def goal(self, rows: list[Tensor], reward: float, discount: float) -> Tensor:
        """The target of one state, of the rows of all samples."""
        head = self.head
        if head.kind == "c51":
            masses = sum(head.probabilities(row) for row in rows) / len(rows)
            return head.target(masses, reward, discount, masses=True)  # type: ignore[arg-type]
        if head.kind == "mean":
            return torch.stack([reward + discount * sum(row[0] for row in rows) / len(rows)])
        return torch.cat([head.target(row, reward, discount) for row in rows])

    def distance(self, z: Tensor, y: Tensor, taus: Tensor | None) -> Tensor:
        """Loss of a prediction ``[Q]`` against a target of any number of quantiles."""
        if self.head.kind in ("mean", "c51"):
            return self.head.loss(z, y, taus, huber=False)
        size = self.head.size
        parts = [self.head.loss(z, y[i : i + size], taus, huber=False) for i in range(0, len(y), size)]
        return sum(parts) / len(parts)  # type: ignore[return-value]

    def critic_step(self, batch: BatchOf) -> float:
        """The mean over samples of the target policy."""
        p, x = self.parameters, batch["next_observation"]
        z = self.values(x, self.sampled(x)[1])
        goals = []
        for b in range(len(x)):
            rows = [_lowest(self.head, [torch.stack(member[j]) for member in z], b) for j in range(self.n_samples)]
            goals.append(self.goal(rows, number(batch["reward"][b]), number(batch["discount"][b])).detach())
        joint = torch.cat([batch["observation"], batch["action"]], -1)
        taus = self.head.draw(len(x))

        def loss(q: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for k in range(members(q, "critic")):
                own = self.head.forward(q, f"critic.{k}", joint, taus)[:, 0]
                for b, y in enumerate(goals):
                    error = self.distance(own[b], y, None if taus is None else taus[b])
                    total = total + batch["weight"][b] * error / len(goals)
            return total

        gradients, value = gradients_of(loss, p, ["critic"])
        self.critic.step(p, gradients)
        return value

    def improve(self, batch: BatchOf) -> dict[str, float]:
        """The E-step, the M-step, and the dual variables; gradients are those before any of them."""
        p, x, weight = self.parameters, batch["observation"], batch["weight"]
        size = len(x)
        old_mean, old_std = (each.detach() for each in self.policy(p, "actor_target", x))
        action, inside = self.sampled(x)
        z = self.values(x, inside)
        objectives = []  # [K][b][j]
        values = []
        for b in range(size):
            rows = [[self.head.expectation(member[j][b]) for member in z] for j in range(self.n_samples)]
            values.append([number(sum(row)) / len(row) for row in rows])
        objectives.append(values)
        epsilons = [self.epsilon]
        if self.epsilon_penalty is not None:
            outside = action - inside
            squares = (outside**2).sum(-1).tolist()
            objectives.append([[-math.sqrt(row[b]) for row in squares] for b in range(size)])
            epsilons.append(self.epsilon_penalty)
        eta = [number(each) for each in positive(p["temperature"])]
        weights = [[0.0] * self.n_samples for _ in range(size)]
        for k, objective in enumerate(objectives):
            for b in range(size):
                top = max(objective[b])
                shares = [math.exp((each - top) / eta[k]) for each in objective[b]]
                weights[b] = [w + share / sum(shares) for w, share in zip(weights[b], shares, strict=True)]

        def bounds(q: Parameters) -> tuple[Tensor, Tensor]:
            """What a change of the mean, and of the standard deviation, makes of the divergence (section 4.2.1)."""
            mean, std = self.policy(q, "actor", x)
            by_mean = (mean - old_mean) ** 2 / (2 * old_std**2)
            by_std = torch.log(std / old_std) + old_std**2 / (2 * std**2) - 0.5
            both = [(each * weight[:, None]).sum(0) / size for each in (by_mean, by_std)]
            return tuple(each if self.per_dimension else each.sum()[None] for each in both)  # type: ignore[return-value]

        alpha = [positive(p[name]).detach() for name in ("alpha_mean", "alpha_std")]

        def actor_loss(q: Parameters) -> Tensor:
            mean, std = self.policy(q, "actor", x)
            total = torch.zeros((), dtype=torch.float64)
            for b in range(size):
                for j in range(self.n_samples):
                    fit = normal_log_density(action[j, b], mean[b], torch.log(old_std[b])).sum()
                    fit = fit + normal_log_density(action[j, b], old_mean[b], torch.log(std[b])).sum()
                    total = total - weight[b] * weights[b][j] * fit / size
            by_mean, by_std = bounds(q)
            return total + (alpha[0] * by_mean).sum() + (alpha[1] * by_std).sum()

        by_mean, by_std = (each.detach() for each in bounds(p))

        def dual_loss(q: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for own, objective, epsilon in zip(positive(q["temperature"]), objectives, epsilons, strict=True):
                total = total + own * epsilon
                for b in range(size):
                    inner = torch.exp(torch.tensor(objective[b], dtype=torch.float64) / own).sum() / self.n_samples
                    total = total + weight[b] * own * torch.log(inner) / size
            total = total + (positive(q["alpha_mean"]) * (self.epsilon_mean - by_mean)).sum()
            return total + (positive(q["alpha_std"]) * (self.epsilon_std - by_std)).sum()

        actor_gradients, actor_value = gradients_of(actor_loss, p, ["actor"])
        dual_gradients, dual_value = gradients_of(dual_loss, p, DUALS)
        self.actor.step(p, actor_gradients)
        self.dual.step(p, dual_gradients)
        return {
            "actor_loss": actor_value,
            "dual_loss": dual_value,
            "temp": eta[0],
            "kl_mean": number(by_mean.mean()),
            "kl_std": number(by_std.mean()),
        }

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        metrics = {"critic_loss": self.critic_step(batch), **self.improve(batch)}
        if self.tau or self.updates % self.interval == 0:
            average(self.parameters, "critic", "critic_target", self.tau or 1.0)
            average(self.parameters, "actor", "actor_target", self.tau or 1.0)
        return metrics


class DiscreteMPOReference(DiscreteSACReference):
    """Sums over all actions in place of samples, and one bound of the policy."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        dual_rate: float,
        max_norm: float,
        epsilon: float,
        epsilon_policy: float,
        actor_rate: float,
        critic_rate: float,
        interval: int,
        head: Head = _MEAN,
    ) -> None:
        super().__init__(
            parameters, actor_rate=actor_rate, critic_rate=critic_rate, temp_rate=0.0, interval=interval, head=head
        )
        self.actor, self.critic = Adam(actor_rate, max_norm=max_norm), Adam(critic_rate, max_norm=max_norm)
        self.dual, self.epsilon, self.epsilon_policy = Adam(dual_rate), epsilon, epsilon_policy

    def _log_policy(self, p: Parameters, net: str, x: Tensor) -> Tensor:
        logits = mlp(p, f"{net}.0", x)
        return logits - torch.log(torch.exp(logits).sum(-1, keepdim=True))

    def critic_step(self, batch: BatchOf) -> float:
        """The mixture of all actions' returns under the target policy."""
        p, following = self.parameters, batch["next_observation"]
        probs = torch.exp(self._log_policy(p, "actor_target", following)).tolist()
        rows = self._lower(p, "critic_target", following)
        goals = [
            self._mixed(rows[b], probs[b], number(batch["reward"][b]), number(batch["discount"][b]), 0.0)
            for b in range(len(rows))
        ]
        taus = self.head.draw(len(rows))

        def loss(q: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for k in range(self.n):
                z = self.head.forward(q, f"critic.{k}", batch["observation"], taus)
                for b, y in enumerate(goals):
                    own = z[b, int(batch["action"][b])]
                    error = self._distance(own, y, None if taus is None else taus[b])
                    total = total + batch["weight"][b] * error / len(goals)
            return total

        gradients, value = gradients_of(loss, p, ["critic"])
        self.critic.step(p, gradients)
        return value

    def improve(self, batch: BatchOf) -> dict[str, float]:
        """The E-step, the M-step, and the dual variables; gradients are those before any of them."""
        p, x, weight = self.parameters, batch["observation"], batch["weight"]
        outputs, _ = self._outputs(p, "critic_target", x)
        q = sum(self.head.expectation(z) for z in outputs).detach() / self.n  # type: ignore[union-attr]
        prior = torch.exp(self._log_policy(p, "actor_target", x)).detach()
        eta, alpha = (number(positive(p[name])) for name in ("temperature", "alpha"))
        tilted = prior * torch.exp(q / eta)
        wanted = tilted / tilted.sum(-1, keepdim=True)

        def divergence(own: Parameters) -> Tensor:
            log_policy = self._log_policy(own, "actor", x)
            return (weight * (prior * (torch.log(prior) - log_policy)).sum(-1)).sum() / len(x)

        def actor_loss(own: Parameters) -> Tensor:
            fit = (wanted * self._log_policy(own, "actor", x)).sum(-1)
            return alpha * divergence(own) - (weight * fit).sum() / len(x)

        kl = number(divergence(p))

        def dual_loss(own: Parameters) -> Tensor:
            temperature = positive(own["temperature"])
            mass = torch.log((prior * torch.exp(q / temperature)).sum(-1))
            total = temperature * self.epsilon + temperature * (weight * mass).sum() / len(x)
            return total + positive(own["alpha"]) * (self.epsilon_policy - kl)

        actor_gradients, actor_value = gradients_of(actor_loss, p, ["actor"])
        dual_gradients, dual_value = gradients_of(dual_loss, p, ["temperature", "alpha"])
        self.actor.step(p, actor_gradients)
        self.dual.step(p, dual_gradients)
        return {"actor_loss": actor_value, "dual_loss": dual_value, "temp": eta, "kl": kl}

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        metrics = {"critic_loss": self.critic_step(batch), **self.improve(batch)}
        if self.updates % self.interval == 0:
            average(self.parameters, "critic", "critic_target", 1.0)
            average(self.parameters, "actor", "actor_target", 1.0)
        return metrics
