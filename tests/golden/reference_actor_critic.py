"""TD3 (1802.09477), SAC (1812.05905), discrete SAC (1910.07207), CQL (2006.04779) and IQL (2110.06169)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

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


def _q(p: Parameters, net: str, head: Head, x: Tensor, a: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """Outputs ``[B, Q]`` of each member for one action per state."""
    taus = head.draw(len(x))
    joint = torch.cat([x, a], -1)
    return [head.forward(p, f"{net}.{k}", joint, taus)[:, 0] for k in range(members(p, net))], taus


def _lowest(head: Head, z: list[Tensor], b: int) -> Tensor:
    """The member with the lowest expectation at element ``b``."""
    return min((member[b] for member in z), key=lambda row: number(head.expectation(row)))


def _critic_error(p: Parameters, head: Head, batch: BatchOf, y: list[Tensor]) -> Tensor:
    """Sum over members of the mean loss."""
    z, taus = _q(p, "critic", head, batch["observation"], batch["action"])
    total = torch.zeros((), dtype=torch.float64)
    for member in z:
        for b, goal in enumerate(y):
            error = head.loss(member[b], goal, None if taus is None else taus[b], huber=False)
            total = total + batch["weight"][b] * error / len(y)
    return total


class TD3Reference:
    """Algorithm 1 of 1802.09477."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        actor_rate: float,
        critic_rate: float,
        tau: float,
        sigma: float,
        clip: float,
        interval: int,
        head: Head = _MEAN,
    ) -> None:
        self.parameters, self.head = dict(parameters), head
        self.tau, self.sigma, self.clip, self.interval = tau, sigma, clip, interval
        self.actor, self.critic = Adam(actor_rate), Adam(critic_rate)
        self.updates = 0

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        p, head, metrics = self.parameters, self.head, {}
        action = torch.tanh(mlp(p, "actor_target.0", batch["next_observation"]))
        noise = torch.randn(action.shape, dtype=torch.float64)
        for b in range(action.shape[0]):
            for d in range(action.shape[1]):
                e = min(max(self.sigma * number(noise[b, d]), -self.clip), self.clip)
                action[b, d] = min(max(number(action[b, d]) + e, -1.0), 1.0)
        following, _ = _q(p, "critic_target", head, batch["next_observation"], action)
        y = [
            head.target(_lowest(head, following, b), number(batch["reward"][b]), number(batch["discount"][b]))
            for b in range(len(action))
        ]
        gradients, metrics["critic_loss"] = gradients_of(lambda q: _critic_error(q, head, batch, y), p, ["critic"])
        self.critic.step(p, gradients)
        if self.updates % self.interval == 0:

            def actor_loss(q: Parameters) -> Tensor:
                a = torch.tanh(mlp(q, "actor.0", batch["observation"]))
                first = _q(q, "critic", head, batch["observation"], a)[0][0]
                return -head.expectation(first).mean()

            gradients, metrics["actor_loss"] = gradients_of(actor_loss, p, ["actor"])
            self.actor.step(p, gradients)
            average(p, "critic", "critic_target", self.tau)
            average(p, "actor", "actor_target", self.tau)
        return metrics


class SACReference:
    """Algorithm 1 of 1812.05905, one critic, actor and temperature step an update.

    The actions that the actor's loss sampled serve the temperature's too, if that step comes later.

    Args:
        logarithm: whether the temperature's loss has ``log(alpha)`` in the place of ``alpha``.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        actor_rate: float,
        critic_rate: float,
        temp_rate: float,
        tau: float,
        head: Head = _MEAN,
        logarithm: bool = False,
    ) -> None:
        self.logarithm = logarithm
        self.parameters, self.head, self.tau = dict(parameters), head, tau
        self.actor, self.critic, self.temp = Adam(actor_rate), Adam(critic_rate), Adam(temp_rate)
        self.drawn: list[float] | None = None

    def critic_step(self, batch: BatchOf) -> float:
        """Eqs. 5-6."""
        p, head = self.parameters, self.head
        following = batch["next_observation"]
        noise = torch.randn(batch["action"].shape, dtype=torch.float64)
        action, log_density = squashed_sample(p, "actor.0", following, noise)
        z, _ = _q(p, "critic_target", head, following, action)
        alpha = math.exp(number(p["temperature"]))
        y = [
            head.target(
                _lowest(head, z, b),
                number(batch["reward"][b]),
                number(batch["discount"][b]),
                -alpha * number(log_density[b]),
            )
            for b in range(len(action))
        ]
        gradients, value = gradients_of(lambda q: _critic_error(q, head, batch, y), p, ["critic"])
        self.critic.step(p, gradients)
        return value

    def actor_step(self, batch: BatchOf) -> float:
        """Eq. 9 with the smaller of the Q-functions."""
        p, head = self.parameters, self.head
        noise = torch.randn(batch["action"].shape, dtype=torch.float64)

        def loss(q: Parameters) -> Tensor:
            a, log_density = squashed_sample(q, "actor.0", batch["observation"], noise)
            self.drawn = [number(d) for d in log_density]
            z, _ = _q(q, "critic", head, batch["observation"], a)
            total = torch.zeros((), dtype=torch.float64)
            for b in range(len(a)):
                total = total + torch.exp(q["temperature"]) * log_density[b] - head.expectation(_lowest(head, z, b))
            return total / len(a)

        gradients, value = gradients_of(loss, p, ["actor"])
        self.actor.step(p, gradients)
        return value

    def temp_step(self, batch: BatchOf) -> float:
        """Eq. 18: ``E[-alpha log pi - alpha H]`` with ``H = -|A|``."""
        p, drawn = self.parameters, self.drawn
        if drawn is None:
            noise = torch.randn(batch["action"].shape, dtype=torch.float64)
            drawn = [number(d) for d in squashed_sample(p, "actor.0", batch["observation"], noise)[1]]
        goal = -number(batch["action"].shape[-1])

        def loss(q: Parameters) -> Tensor:
            alpha = q["temperature"] if self.logarithm else torch.exp(q["temperature"])
            return sum(-alpha * d - alpha * goal for d in drawn) / len(drawn)  # type: ignore[return-value]

        gradients, value = gradients_of(loss, p, ["temperature"])
        self.temp.step(p, gradients)
        return value

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        metrics = {
            "critic_loss": self.critic_step(batch),
            "actor_loss": self.actor_step(batch),
            "temp_loss": self.temp_step(batch),
        }
        average(self.parameters, "critic", "critic_target", self.tau)
        return metrics


class MeanOfCriticsReference(SACReference):
    """SAC whose policy climbs the mean of all critics; what their targets are is another matter."""

    def __init__(self, parameters: Parameters, **rest: Any) -> None:
        super().__init__(parameters, **rest)
        self.n = members(parameters, "critic")

    def _values(self, p: Parameters, net: str, x: Tensor, a: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Outputs ``[B, Q]`` of each member."""
        return _q(p, net, self.head, x, a)

    def actor_step(self, batch: BatchOf) -> float:
        """The policy climbs the mean of all critics."""
        p, size = self.parameters, len(batch["reward"])
        noise = torch.randn(batch["action"].shape, dtype=torch.float64)

        def loss(q: Parameters) -> Tensor:
            a, log_density = squashed_sample(q, "actor.0", batch["observation"], noise)
            self.drawn = [number(d) for d in log_density]
            z, _ = self._values(q, "critic", batch["observation"], a)
            total = torch.zeros((), dtype=torch.float64)
            for b in range(size):
                mean = sum(self.head.expectation(member[b]) for member in z) / self.n
                total = total + torch.exp(q["temperature"]) * log_density[b] - mean
            return total / size

        gradients, value = gradients_of(loss, p, ["actor"])
        self.actor.step(p, gradients)
        return value


class DiscreteSACReference:
    """1910.07207: expectations over all actions in place of samples. Target entropy ``0.98 log |A|``.

    The target of a distributional head is the mixture of the actions' distributions.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        actor_rate: float,
        critic_rate: float,
        temp_rate: float,
        interval: int,
        head: Head = _MEAN,
    ) -> None:
        self.parameters, self.interval, self.updates, self.head = dict(parameters), interval, 0, head
        self.actor, self.critic, self.temp = Adam(actor_rate), Adam(critic_rate), Adam(temp_rate)
        self.n = members(parameters, "critic")

    @staticmethod
    def _policy(p: Parameters, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = mlp(p, "actor.0", x)
        probs = torch.exp(logits) / torch.exp(logits).sum(-1, keepdim=True)
        return probs, torch.log(probs)

    def _outputs(self, p: Parameters, net: str, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Outputs ``[B, A, Q]`` of each member, and the levels that they are at."""
        taus = self.head.draw(len(x))
        return [self.head.forward(p, f"{net}.{k}", x, taus) for k in range(self.n)], taus

    def _lower(self, p: Parameters, net: str, x: Tensor) -> list[list[Tensor]]:
        """For each state and action the row ``[Q]`` of the member that expects least."""
        outputs, _ = self._outputs(p, net, x)
        return [
            [min((z[b, a] for z in outputs), key=lambda row: number(self.head.expectation(row))) for a in range(count)]
            for b, count in [(b, outputs[0].shape[1]) for b in range(len(x))]
        ]

    def _mixed(self, rows: list[Tensor], probs: list[float], reward: float, discount: float, bonus: float) -> Any:
        """The target: values with their probabilities, or for C51 the masses of its atoms."""
        if self.head.kind == "c51":
            masses = sum(prob * self.head.probabilities(row) for prob, row in zip(probs, rows, strict=True))
            return self.head.target(masses, reward, discount, bonus, masses=True)  # type: ignore[arg-type]
        if self.head.kind == "mean":
            value = sum(prob * number(row[0]) for prob, row in zip(probs, rows, strict=True))
            return torch.tensor([reward + discount * (value + bonus)], dtype=torch.float64)
        return [
            (reward + discount * (number(value) + bonus), prob / len(row))
            for prob, row in zip(probs, rows, strict=True)
            for value in row
        ]

    def _distance(self, z: Tensor, y: Any, taus: Tensor | None) -> Tensor:
        """Loss of one element: prediction ``z`` ``[Q]`` against a target."""
        if self.head.kind in ("mean", "c51"):
            return self.head.loss(z, y, taus, huber=False)
        total = torch.zeros((), dtype=z.dtype)
        for i in range(len(z)):
            tau = number(taus[i]) if taus is not None else (2 * i + 1) / (2 * len(z))
            for value, prob in y:
                u = value - z[i]
                half = 0.5 * u**2 if abs(number(u)) <= 1 else torch.abs(u) - 0.5
                total = total + prob * abs(tau - (1.0 if number(u) < 0 else 0.0)) * half
        return total

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        p, metrics = self.parameters, {}
        size = len(batch["reward"])
        probs, log_probs = self._policy(p, batch["next_observation"])
        lower = self._lower(p, "critic_target", batch["next_observation"])
        alpha = math.exp(number(p["temperature"]))
        y = []
        for b in range(size):
            own = [number(prob) for prob in probs[b]]
            bonus = -alpha * sum(prob * number(log) for prob, log in zip(own, log_probs[b], strict=True))
            y.append(self._mixed(lower[b], own, number(batch["reward"][b]), number(batch["discount"][b]), bonus))

        def critic_loss(q: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            outputs, taus = self._outputs(q, "critic", batch["observation"])
            for z in outputs:
                for b in range(size):
                    levels = None if taus is None else taus[b]
                    error = self._distance(z[b, int(batch["action"][b])], y[b], levels)
                    total = total + batch["weight"][b] * error / size
            return total

        gradients, metrics["critic_loss"] = gradients_of(critic_loss, p, ["critic"])
        self.critic.step(p, gradients)

        def actor_loss(q: Parameters) -> Tensor:
            pi, log_pi = self._policy(q, batch["observation"])
            rows = self._lower(q, "critic", batch["observation"])
            low = torch.stack([torch.stack([self.head.expectation(row) for row in state]) for state in rows])
            return (pi * (torch.exp(q["temperature"]) * log_pi - low)).sum(-1).mean()

        gradients, metrics["actor_loss"] = gradients_of(actor_loss, p, ["actor"])
        pi, log_pi = (each.detach() for each in self._policy(p, batch["observation"]))
        self.actor.step(p, gradients)
        goal = 0.98 * math.log(pi.shape[1])

        def temp_loss(q: Parameters) -> Tensor:
            alpha = torch.exp(q["temperature"])
            return (pi * (-alpha * (log_pi + goal))).sum(-1).mean()

        gradients, metrics["temp_loss"] = gradients_of(temp_loss, p, ["temperature"])
        self.temp.step(p, gradients)
        if self.updates % self.interval == 0:
            average(p, "critic", "critic_target", 1.0)
        return metrics


class CQLReference(SACReference):
    """CQL(H) with a Lagrange multiplier: eq. 4, eq. 30 and appendix F of 2006.04779.

    The logarithm is that of the mean over proposals, as there, or of their sum, as in the authors' program.
    The paper leaves the order of the four steps of an update open: ``order`` gives it, the critics before the
    multiplier.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        alpha_rate: float,
        threshold: float,
        weight: float,
        n_samples: int,
        mean: bool,
        backup: str,
        order: tuple[str, ...],
        **rest: float,
    ) -> None:
        super().__init__(parameters, **rest)  # type: ignore[arg-type]
        self.threshold, self.weight, self.n_samples, self.mean = threshold, weight, n_samples, mean
        self.backup, self.order = backup, order
        self.multiplier, self.found = Adam(alpha_rate), 0.0

    def _proposals(self, batch: BatchOf) -> tuple[Tensor, Tensor]:
        """Actions ``[3n, B, A]`` and the log-densities they were drawn with."""
        p, n = self.parameters, self.n_samples
        shape = (n, *batch["action"].shape)
        actions, densities = [], []
        for place in ("observation", "next_observation"):
            noise = torch.randn(shape, dtype=torch.float64)
            x = batch[place].expand(n, *batch[place].shape)
            a, density = squashed_sample(p, "actor.0", x, noise)
            actions.append(a)
            densities.append(density)
        actions.append(self._uniform(shape))
        densities.append(torch.full(shape[:2], -shape[2] * math.log(2.0), dtype=torch.float64))  # (1/2)^|A|
        return torch.cat(actions), torch.cat(densities)

    @staticmethod
    def _uniform(shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, dtype=torch.float64) * 2 - 1

    def _gap(self, p: Parameters, batch: BatchOf, actions: Tensor, densities: Tensor) -> Tensor:
        """Sum over critics of ``weight * (E[log mean(exp(Q) / density) - Q(s, a)] - threshold)`` (appendix F).

        Or with ``sum`` in place of ``mean``.
        """
        total = torch.zeros((), dtype=torch.float64)
        size = len(batch["reward"])
        for k in range(members(p, "critic")):
            for b in range(size):
                x = batch["observation"][b]
                mass = torch.zeros((), dtype=torch.float64)
                for j in range(len(actions)):
                    q = mlp(p, f"critic.{k}", torch.cat([x, actions[j, b]]))[0]
                    mass = mass + torch.exp(q) / torch.exp(densities[j, b])
                data = mlp(p, f"critic.{k}", torch.cat([x, batch["action"][b]]))[0]
                total = total + self.weight * (self._log(mass, actions) - data - self.threshold) / size
        return total

    def _log(self, mass: Tensor, actions: Tensor) -> Tensor:
        return torch.log(mass / len(actions) if self.mean else mass)

    def _lowest_value(self, x: Tensor, action: Tensor) -> float:
        p = self.parameters
        both = torch.cat([x, action])
        return min(number(mlp(p, f"critic_target.{k}", both)[0]) for k in range(members(p, "critic_target")))

    def critic_step(self, batch: BatchOf) -> float:
        """The Bellman error plus the conservative term."""
        p, head = self.parameters, self.head
        following = batch["next_observation"]
        tries = self.n_samples if self.backup == "max" else 1
        noise = torch.zeros((1, *batch["action"].shape), dtype=torch.float64)  # "mode": tanh of the mean
        if self.backup != "mode":
            noise = torch.randn((tries, *batch["action"].shape), dtype=torch.float64)
        drawn = [squashed_sample(p, "actor.0", following, each) for each in noise]
        action, log_density = drawn[0]
        for later, _ in drawn[1:]:  # "max": the action whose lowest value is the highest
            for b in range(len(action)):
                if self._lowest_value(following[b], later[b]) > self._lowest_value(following[b], action[b]):
                    action[b] = later[b]
        z, _ = _q(p, "critic_target", head, following, action)
        alpha = math.exp(number(p["temperature"])) if self.backup == "soft" else 0.0
        y = [
            head.target(
                _lowest(head, z, b),
                number(batch["reward"][b]),
                number(batch["discount"][b]),
                -alpha * number(log_density[b]),
            )
            for b in range(len(action))
        ]
        actions, densities = self._proposals(batch)
        multiplier = min(max(math.exp(number(p["alpha"])), 0.0), 1e6)

        def loss(q: Parameters) -> Tensor:
            gap = self._gap(q, batch, actions, densities)
            self.found = number(gap)
            return _critic_error(q, head, batch, y) + multiplier * gap

        gradients, value = gradients_of(loss, p, ["critic"])
        self.critic.step(p, gradients)
        return value

    def alpha_step(self, batch: BatchOf) -> float:
        """The multiplier ascends on the gap that the critics' step found."""
        p, gap = self.parameters, self.found
        gradients, value = gradients_of(lambda q: -torch.clamp(torch.exp(q["alpha"]), 0, 1e6) * gap, p, ["alpha"])
        self.multiplier.step(p, gradients)
        return value

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.drawn = None
        names = {"critic": "critic_loss", "actor": "actor_loss", "temp": "temp_loss", "alpha": "alpha_loss"}
        metrics = {names[step]: getattr(self, f"{step}_step")(batch) for step in self.order}
        average(self.parameters, "critic", "critic_target", self.tau)
        return metrics


class IQLReference:
    """2110.06169 algorithm 1: the value moves (eq. 5), the critics learn from the moved value (eq. 6), then eq. 7."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        actor_rate: float,
        critic_rate: float,
        tau: float,
        expectile: float,
        temperature: float,
        max_weight: float,
        log_std_range: tuple[float, float],
    ) -> None:
        self.parameters, self.tau, self.expectile = dict(parameters), tau, expectile
        self.temperature, self.max_weight, self.log_std_range = temperature, max_weight, log_std_range
        self.value, self.actor, self.critic = Adam(critic_rate), Adam(actor_rate), Adam(critic_rate)

    def _target_q(self, batch: BatchOf) -> list[float]:
        p = self.parameters
        z, _ = _q(p, "critic_target", _MEAN, batch["observation"], batch["action"])
        return [min(number(member[b, 0]) for member in z) for b in range(len(batch["reward"]))]

    def value_step(self, batch: BatchOf) -> float:
        """Eq. 5."""
        q = self._target_q(batch)

        def loss(p: Parameters) -> Tensor:
            v = mlp(p, "value.0", batch["observation"])[:, 0]
            total = torch.zeros((), dtype=torch.float64)
            for b in range(len(q)):
                u = q[b] - v[b]
                total = total + abs(self.expectile - (1.0 if number(u) < 0 else 0.0)) * u**2 / len(q)
            return total

        gradients, value = gradients_of(loss, self.parameters, ["value"])
        self.value.step(self.parameters, gradients)
        return value

    def actor_step(self, batch: BatchOf) -> float:
        """Eq. 7."""
        q = self._target_q(batch)
        v = mlp(self.parameters, "value.0", batch["observation"])[:, 0]

        def loss(p: Parameters) -> Tensor:
            mean = torch.tanh(mlp(p, "actor.0", batch["observation"]))
            log_std = torch.clamp(p["actor.log_std"], *self.log_std_range)
            total = torch.zeros((), dtype=torch.float64)
            for b in range(len(q)):
                weight = min(math.exp(self.temperature * (q[b] - number(v[b]))), self.max_weight)
                total = total - weight * normal_log_density(batch["action"][b], mean[b], log_std).sum() / len(q)
            return total

        gradients, value = gradients_of(loss, self.parameters, ["actor"])
        self.actor.step(self.parameters, gradients)
        return value

    def critic_step(self, batch: BatchOf) -> float:
        """Eq. 6."""
        v = mlp(self.parameters, "value.0", batch["next_observation"])[:, 0]
        y = [batch["reward"][b] + batch["discount"][b] * v[b] for b in range(len(v))]
        goals = [goal.detach()[None] for goal in y]
        gradients, value = gradients_of(lambda p: _critic_error(p, _MEAN, batch, goals), self.parameters, ["critic"])
        self.critic.step(self.parameters, gradients)
        return value

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        metrics = {"v_loss": self.value_step(batch), "q_loss": self.critic_step(batch)}
        metrics["actor_loss"] = self.actor_step(batch)
        average(self.parameters, "critic", "critic_target", self.tau)
        return metrics
