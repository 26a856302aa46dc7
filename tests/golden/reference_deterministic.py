"""NFQ (Riedmiller 2005), DDPG (1509.02971), TD3+BC (2106.06860), ReBRAC (2305.09836), PRDC and discrete IQL."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.golden.reference_parts import Adam, BatchOf, Parameters, average, gradients_of, members, mlp, number
from tests.golden.reference_returns import Head


def _lowest(head: Head, rows: list[Tensor]) -> Tensor:
    """The member's ``[Q]`` with the lowest expectation."""
    return min(rows, key=lambda row: number(head.expectation(row)))


class NFQReference:
    """Fitted Q iteration on minibatches: the network itself says what the next state is worth.

    Args:
        parameters: ``critic.k.*``.
        head: the head of the Q-functions.
        rate: learning rate.
    """

    def __init__(self, parameters: Parameters, head: Head, rate: float) -> None:
        self.parameters, self.head, self.optimizer = dict(parameters), head, Adam(rate)
        self.n = members(parameters, "critic")

    def _all(self, p: Parameters, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
        taus = self.head.draw(len(x))
        return [self.head.forward(p, f"critic.{k}", x, taus) for k in range(self.n)], taus

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update: ``target = c + gamma * min_b Q(s', b)`` there in costs, with rewards the maximum."""
        head, size = self.head, len(batch["reward"])
        following, _ = self._all(self.parameters, batch["next_observation"])
        y = []
        for b in range(size):
            mean = sum(head.expectation(z[b]) for z in following) / self.n
            best = int(torch.argmax(mean))
            row = _lowest(head, [z[b, best] for z in following])
            y.append(head.target(row, number(batch["reward"][b]), number(batch["discount"][b])))
        state = torch.get_rng_state()

        def loss(p: Parameters) -> Tensor:
            torch.set_rng_state(state)
            z, taus = self._all(p, batch["observation"])
            total = torch.zeros((), dtype=torch.float64)
            for k in range(self.n):
                for b in range(size):
                    levels = None if taus is None else taus[b]
                    error = head.loss(z[k][b, int(batch["action"][b])], y[b], levels, huber=False)
                    total = total + batch["weight"][b] * error / size
            return total

        gradients, value = gradients_of(loss, self.parameters, ["critic"])
        self.optimizer.step(self.parameters, gradients)
        return {"loss": value}


class DeterministicReference:
    """A deterministic policy with Q-functions of state and action: DDPG, TD3+BC and ReBRAC by their options.

    Args:
        parameters: ``actor``, ``actor_target``, ``critic`` and ``critic_target``.
        head: the head of the Q-functions.
        actor_rate, critic_rate: learning rates.
        tau: share of the new in target updates.
        smoothing: standard deviation and largest size of the target action's noise; ``None`` for none (DDPG).
        interval: critic updates for one update of the policy and of both targets.
        alpha: TD3+BC's: the policy's loss is ``-alpha / mean |Q| * Q + mean squared error`` (eqs. 3 and 5).
        penalties: ReBRAC's ``beta_1`` and ``beta_2`` (eqs. 4 and 5): sums of squares over action dimensions.
    """

    def __init__(
        self,
        parameters: Parameters,
        head: Head,
        *,
        actor_rate: float,
        critic_rate: float,
        tau: float,
        smoothing: tuple[float, float] | None = None,
        interval: int = 1,
        alpha: float | None = None,
        penalties: tuple[float, float] | None = None,
    ) -> None:
        self.parameters, self.head, self.tau = dict(parameters), head, tau
        self.smoothing, self.interval, self.alpha, self.penalties = smoothing, interval, alpha, penalties
        self.actor, self.critic, self.updates = Adam(actor_rate), Adam(critic_rate), 0
        self.n = members(parameters, "critic")

    def _q(self, p: Parameters, net: str, x: Tensor, a: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """``[B, Q]`` of each member."""
        taus = self.head.draw(len(x))
        joint = torch.cat([x, a], -1)
        return [self.head.forward(p, f"{net}.{k}", joint, taus)[:, 0] for k in range(self.n)], taus

    def _targets(self, batch: BatchOf) -> list[Tensor]:
        p, head = self.parameters, self.head
        action = torch.tanh(mlp(p, "actor_target.0", batch["next_observation"]))
        if self.smoothing is not None:
            sigma, limit = self.smoothing
            noise = torch.randn(action.shape, dtype=torch.float64)
            for b in range(action.shape[0]):
                for d in range(action.shape[1]):
                    shift = min(max(sigma * number(noise[b, d]), -limit), limit)
                    action[b, d] = min(max(number(action[b, d]) + shift, -1.0), 1.0)
        following, _ = self._q(p, "critic_target", batch["next_observation"], action)
        y = []
        for b in range(len(action)):
            row, penalty = _lowest(head, [z[b] for z in following]), 0.0
            if self.penalties is not None and number(batch["next_action_known"][b]):
                for d in range(action.shape[1]):
                    penalty += self.penalties[1] * (number(action[b, d]) - number(batch["next_action"][b, d])) ** 2
            y.append(head.target(row, number(batch["reward"][b]), number(batch["discount"][b]), -penalty))
        return y

    def _critic_loss(self, p: Parameters, batch: BatchOf, y: list[Tensor]) -> Tensor:
        z, taus = self._q(p, "critic", batch["observation"], batch["action"])
        total = torch.zeros((), dtype=torch.float64)
        for member in z:
            for b in range(len(y)):
                error = self.head.loss(member[b], y[b], None if taus is None else taus[b], huber=False)
                total = total + batch["weight"][b] * error / len(y)
        return total

    def _actor_loss(self, p: Parameters, batch: BatchOf, terms: dict[str, float]) -> Tensor:
        w, size = batch["weight"], len(batch["reward"])
        action = torch.tanh(mlp(p, "actor.0", batch["observation"]))
        z, _ = self._q(p, "critic", batch["observation"], action)
        q, cloning = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        size_of_q = 0.0
        for b in range(size):
            # ReBRAC's code takes the lowest Q-function; the others the first
            row = z[0][b] if self.penalties is None else _lowest(self.head, [member[b] for member in z])
            value = self.head.expectation(row)
            q, size_of_q = q + w[b] * value / size, size_of_q + number(w[b]) * abs(number(value)) / size
            error = ((batch["action"][b] - action[b]) ** 2).sum()
            error = error if self.penalties is not None else error / action.shape[1]
            cloning = cloning + w[b] * error / size
        terms["bc_loss"] = number(cloning)
        if self.alpha is not None:
            return -self.alpha / size_of_q * q + cloning
        if self.penalties is not None:
            return -q / size_of_q + self.penalties[0] * cloning
        return -q

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        p, metrics = self.parameters, {}
        y = self._targets(batch)
        state = torch.get_rng_state()

        def critic_loss(q: Parameters) -> Tensor:
            torch.set_rng_state(state)
            return self._critic_loss(q, batch, y)

        gradients, metrics["critic_loss"] = gradients_of(critic_loss, p, ["critic"])
        self.critic.step(p, gradients)
        if self.updates % self.interval == 0:
            gradients, metrics["actor_loss"] = gradients_of(lambda q: self._actor_loss(q, batch, metrics), p, ["actor"])
            self.actor.step(p, gradients)
            average(p, "critic", "critic_target", self.tau)
            average(p, "actor", "actor_target", self.tau)
        return metrics


class PRDCReference(DeterministicReference):
    """2306.06569: TD3+BC's loss with another action to clone: that of the data's nearest state and action.

    Args:
        parameters, head: see `DeterministicReference`.
        steps: states and actions of the data.
        beta: how often states count.
        rest: see `DeterministicReference`.
    """

    def __init__(
        self, parameters: Parameters, head: Head, *, steps: list[tuple[Tensor, Tensor]], beta: float, **rest: Any
    ) -> None:
        super().__init__(parameters, head, **rest)
        self.steps, self.beta = steps, beta

    def _actor_loss(self, p: Parameters, batch: BatchOf, terms: dict[str, float]) -> Tensor:
        nearest = []
        for x in batch["observation"]:
            own = torch.tanh(mlp(self.parameters, "actor.0", x))
            distances = [
                sum((self.beta * number(d)) ** 2 for d in x - state) + sum(number(d) ** 2 for d in own - action)
                for state, action in self.steps
            ]
            nearest.append(self.steps[distances.index(min(distances))][1])
        loss = super()._actor_loss(p, {**batch, "action": torch.stack(nearest)}, terms)
        terms["dc_loss"] = terms.pop("bc_loss")
        return loss


class DiscreteIQLReference:
    """Algorithm 1 of 2110.06169 with a table of Q-values for each state and a categorical policy.

    Args:
        parameters: ``actor``, ``critic``, ``critic_target`` and ``value``.
        actor_rate, critic_rate: learning rates, the second also of the value.
        tau: share of the new in target updates.
        expectile, temperature, max_weight: eq. 5's, eq. 7's and the largest weight.
    """

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
    ) -> None:
        self.parameters, self.tau, self.expectile = dict(parameters), tau, expectile
        self.temperature, self.max_weight = temperature, max_weight
        self.value, self.critic, self.actor = Adam(critic_rate), Adam(critic_rate), Adam(actor_rate)
        self.n = members(parameters, "critic")

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update: the value, then the critics with the new value, then the policy."""
        p, metrics = self.parameters, {}
        w, size, taken = batch["weight"], len(batch["reward"]), [int(a) for a in batch["action"]]
        tables = [mlp(p, f"critic_target.{k}", batch["observation"]) for k in range(self.n)]
        q = [min(number(table[b, taken[b]]) for table in tables) for b in range(size)]

        def value_loss(c: Parameters) -> Tensor:
            v, total = mlp(c, "value.0", batch["observation"])[:, 0], torch.zeros((), dtype=torch.float64)
            for b in range(size):
                u = q[b] - v[b]
                total = total + w[b] * abs(self.expectile - (1.0 if number(u) < 0 else 0.0)) * u**2 / size
            return total

        gradients, metrics["v_loss"] = gradients_of(value_loss, p, ["value"])
        self.value.step(p, gradients)
        later = mlp(p, "value.0", batch["next_observation"])[:, 0]
        y = [number(batch["reward"][b]) + number(batch["discount"][b]) * number(later[b]) for b in range(size)]

        def critic_loss(c: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for k in range(self.n):
                table = mlp(c, f"critic.{k}", batch["observation"])
                for b in range(size):
                    total = total + w[b] * (table[b, taken[b]] - y[b]) ** 2 / size
            return total

        gradients, metrics["q_loss"] = gradients_of(critic_loss, p, ["critic"])
        metrics["critic_loss"] = metrics["q_loss"]
        self.critic.step(p, gradients)
        v = mlp(p, "value.0", batch["observation"])[:, 0]

        def actor_loss(c: Parameters) -> Tensor:
            logits, total = mlp(c, "actor.0", batch["observation"]), torch.zeros((), dtype=torch.float64)
            for b in range(size):
                log_prob = logits[b, taken[b]] - torch.log(torch.exp(logits[b]).sum())
                advantage = q[b] - number(v[b])
                total = total - w[b] * min(math.exp(self.temperature * advantage), self.max_weight) * log_prob / size
            return total

        gradients, metrics["actor_loss"] = gradients_of(actor_loss, p, ["actor"])
        self.actor.step(p, gradients)
        average(p, "critic", "critic_target", self.tau)
        return metrics
