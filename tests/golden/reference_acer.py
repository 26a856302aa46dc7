"""ACER (1611.01224, algorithms 2 and 3) and IMPALA's V-trace (1802.01561), step by step, backwards in time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.golden.reference_parts import (
    Adam,
    BatchOf,
    Parameters,
    average,
    features,
    gradients_of,
    last_layer,
    mlp,
    normal_log_density,
    number,
)


def log_softmax(logits: Tensor) -> Tensor:
    return logits - torch.log(torch.exp(logits).sum())


def critic(p: Parameters, net: str, x: Tensor) -> Tensor:
    """A critic with an encoder of its own, or on the policy's."""
    return last_layer(p, net, features(p, net if f"{net}.w0" in p else "actor.0", x))


def steps_of(rollout: BatchOf) -> list[tuple[int, int]]:
    """The real steps of a rollout ``[T, N, …]``."""
    length, lanes = rollout["reward"].shape
    return [(t, n) for n in range(lanes) for t in range(length) if rollout["valid"][t, n]]


def goes_on(rollout: BatchOf, t: int, n: int) -> bool:
    """Whether the next row is the next step of the same episode."""
    last = t + 1 == len(rollout["reward"]) or rollout["terminated"][t, n] or rollout["truncated"][t, n]
    return not last and bool(rollout["valid"][t + 1, n])


@dataclass
class ACERReference:
    """One update from a rollout."""

    parameters: Parameters
    rate: float
    gamma: float
    delta: float
    truncation: float
    tau: float
    value_coefficient: float
    entropy_coefficient: float
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.parameters, self.optimizer = dict(self.parameters), Adam(self.rate)
        self.used = {"cut": 0, "corrected": 0, "free": 0}  # how often each branch was taken

    def trusted(self, g: Tensor, k: Tensor) -> Tensor:
        """Eq. 12."""
        excess = number(k @ g) - self.delta
        self.used["cut" if excess > 0 else "free"] += 1
        return g - excess / number(k @ k) * k if excess > 0 else g

    def corrected(self, weight: float) -> float:
        """``[1 - c / weight]_+``"""
        self.used["corrected"] += weight > self.truncation
        return max(0.0, 1 - self.truncation / weight)

    def targets(self, rollout: BatchOf, q: Any, traces: Any, v: Any) -> dict[tuple[int, int], float]:
        """The recursion of algorithms 2 and 3 from the last step to the first."""
        found: dict[tuple[int, int], float] = {}
        for t, n in reversed(steps_of(rollout)):
            after = 0.0
            if not rollout["terminated"][t, n]:
                after = v(rollout["next_observation"][t, n])
                if goes_on(rollout, t, n):
                    after += traces[t + 1, n] * (found[t + 1, n] - q[t + 1, n])
            found[t, n] = number(rollout["reward"][t, n]) + self.gamma * after
        return found

    def learn(self, loss: Any, trained: list[str]) -> dict[str, float]:
        gradients, value = gradients_of(loss, self.parameters, trained)
        self.optimizer.step(self.parameters, gradients)
        average(self.parameters, "actor", "actor_average", self.tau)
        return {"loss": value}


class DiscreteACERReference(ACERReference):
    """Algorithm 2."""

    def update(self, rollout: BatchOf) -> dict[str, float]:
        p, steps = self.parameters, steps_of(rollout)

        def value(x: Tensor) -> float:
            return number((torch.exp(log_softmax(mlp(p, "actor.0", x))) * critic(p, "critic.0", x)).sum())

        q, ratio, trace = {}, {}, {}
        for step in steps:
            x, a = rollout["observation"][step], int(rollout["action"][step])
            mine, theirs = log_softmax(mlp(p, "actor.0", x)), log_softmax(rollout["policy"][step])
            q[step] = number(critic(p, "critic.0", x)[a])
            ratio[step] = torch.exp(mine - theirs)
            trace[step] = min(1.0, number(ratio[step][a]))
        target = self.targets(rollout, q, trace, value)

        z = {}
        for step in steps:
            x, a = rollout["observation"][step], int(rollout["action"][step])
            pi = torch.exp(log_softmax(mlp(p, "actor.0", x)))
            other = torch.exp(log_softmax(mlp(p, "actor_average.0", x)))
            v, table = value(x), critic(p, "critic.0", x)
            g = torch.zeros(len(pi), dtype=torch.float64)
            for b in range(len(pi)):
                score = -pi.clone()  # of log pi(b), by the logits
                score[b] += 1
                if b == a:
                    g += min(self.truncation, number(ratio[step][a])) * (target[step] - v) * score
                g += self.corrected(number(ratio[step][b])) * pi[b] * (table[b] - v) * score
            z[step] = self.trusted(g, pi - other)

        def loss(p: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for step in steps:
                x, a = rollout["observation"][step], int(rollout["action"][step])
                logits = mlp(p, "actor.0", x)
                log_probs = log_softmax(logits)
                entropy = -(torch.exp(log_probs) * log_probs).sum()
                error = (target[step] - critic(p, "critic.0", x)[a]) ** 2
                total = total - logits @ z[step].detach() - self.entropy_coefficient * entropy
                total = total + self.value_coefficient * error
            return total / len(steps)

        return self.learn(loss, ["actor", "critic"])


@dataclass
class ContinuousACERReference(ACERReference):
    """Algorithm 3, with a fixed standard deviation or a learned one."""

    n_samples: int = 2
    std: str = "fixed"
    initial_std: float = 0.5

    def policy(self, p: Parameters, net: str, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = mlp(p, f"{net}.0", x)
        fixed = torch.full_like(mean, math.log(self.initial_std))
        return mean, fixed if self.std == "fixed" else p[f"{net}.log_std"].expand_as(mean)

    def update(self, rollout: BatchOf) -> dict[str, float]:
        p, steps = self.parameters, steps_of(rollout)
        shape = rollout["action"].shape
        noise, more = torch.randn(shape, dtype=torch.float64), torch.randn(self.n_samples, *shape, dtype=torch.float64)
        size = shape[-1]

        def value(x: Tensor) -> float:
            return number(critic(p, "value.0", x)[0])

        drawn, samples = {}, {}
        for step in steps:
            mean, log_std = self.policy(p, "actor", rollout["observation"][step])
            drawn[step] = (mean + torch.exp(log_std) * noise[step]).detach()
            samples[step] = [(mean + torch.exp(log_std) * more[(i, *step)]).detach() for i in range(self.n_samples)]

        def advantage(p: Parameters, both: Tensor) -> Tensor:
            """Without a last bias, which eq. 13 would take away again."""
            return (features(p, "advantage.0", both) @ p["advantage.0.out.w"])[0]

        def q_value(p: Parameters, step: Any, a: Tensor) -> Tensor:
            """Eq. 13."""
            x = rollout["observation"][step]
            read = x if "value.0.w0" in p else features(p, "actor.0", x)
            of_each = [advantage(p, torch.cat((read, each))) for each in (a, *samples[step])]
            return critic(p, "value.0", x)[0] + of_each[0] - sum(of_each[1:]) / self.n_samples

        def weight(step: Any, a: Tensor) -> float:
            mean, log_std = self.policy(p, "actor", rollout["observation"][step])
            theirs = rollout["policy"][step]
            mine = normal_log_density(a, mean, log_std).sum()
            return math.exp(number(mine - normal_log_density(a, theirs[:size], theirs[size:]).sum()))

        q = {step: number(q_value(p, step, rollout["action"][step])) for step in steps}
        ratio = {step: weight(step, rollout["action"][step]) for step in steps}
        target = self.targets(rollout, q, {step: min(1.0, rho ** (1 / size)) for step, rho in ratio.items()}, value)
        opc = self.targets(rollout, q, dict.fromkeys(steps, 1.0), value)

        z, value_target = {}, {}
        for step in steps:
            x = rollout["observation"][step]
            mean, log_std = self.policy(p, "actor", x)
            old_mean, old_log_std = self.policy(p, "actor_average", x)
            variance, old_variance = torch.exp(2 * log_std), torch.exp(2 * old_log_std)
            v = value(x)

            def score(a: Tensor, mean=mean, variance=variance) -> Tensor:  # type: ignore[no-untyped-def]
                return torch.cat(((a - mean) / variance, (a - mean) ** 2 / variance - 1))

            first = min(self.truncation, ratio[step]) * (opc[step] - v)
            second = self.corrected(weight(step, drawn[step])) * (number(q_value(p, step, drawn[step])) - v)
            g = first * score(rollout["action"][step]) + second * score(drawn[step])
            distance = mean - old_mean
            k = torch.cat((distance / variance, 1 - (old_variance + distance**2) / variance))
            if self.std == "fixed":
                g, k = g[:size], k[:size]
            z[step] = self.trusted(g, k)
            value_target[step] = min(1.0, ratio[step]) * (target[step] - q[step]) + v  # eq. 14

        def loss(p: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for step in steps:
                x = rollout["observation"][step]
                mean, log_std = self.policy(p, "actor", x)
                phi = mean if self.std == "fixed" else torch.cat((mean, log_std))
                entropy = (0.5 * math.log(2 * math.pi * math.e) + log_std).sum()
                error = (target[step] - q_value(p, step, rollout["action"][step])) ** 2
                error = error + (value_target[step] - critic(p, "value.0", x)[0]) ** 2
                total = total - phi @ z[step].detach() - self.entropy_coefficient * entropy
                total = total + self.value_coefficient * error
            return total / len(steps)

        return self.learn(loss, ["actor", "value", "advantage"])


@dataclass
class IMPALAReference:
    """One update from a rollout: eq. 1 as the sum that it is."""

    parameters: Parameters
    rate: float
    gamma: float
    clip_rho: float
    clip_c: float
    trace_lambda: float
    value_coefficient: float
    entropy_coefficient: float
    discrete: bool

    def __post_init__(self) -> None:
        self.parameters, self.optimizer = dict(self.parameters), Adam(self.rate)

    def policy(self, p: Parameters, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of an action, and entropy."""
        out = mlp(p, "actor.0", x)
        if self.discrete:
            log_probs = log_softmax(out)
            return log_probs[int(a)], -(torch.exp(log_probs) * log_probs).sum()
        log_std = p["actor.log_std"]
        entropy = (0.5 * math.log(2 * math.pi * math.e) + log_std).sum()
        return normal_log_density(a, out, log_std).sum(), entropy

    def update(self, rollout: BatchOf) -> dict[str, float]:
        p, steps = self.parameters, steps_of(rollout)
        ratio, v, after = {}, {}, {}
        for step in steps:
            x, a, theirs = (rollout[name][step] for name in ("observation", "action", "policy"))
            size = len(theirs) // 2
            old = log_softmax(theirs)[int(a)] if self.discrete else normal_log_density(a, theirs[:size], theirs[size:])
            ratio[step] = math.exp(number(self.policy(p, x, a)[0] - old.sum()))
            v[step] = number(critic(p, "value.0", x)[0])
            ended = bool(rollout["terminated"][step])
            after[step] = 0.0 if ended else number(critic(p, "value.0", rollout["next_observation"][step])[0])
        target = {}
        for t, n in steps:
            total, factor = v[t, n], 1.0
            for s in range(t, len(rollout["reward"])):
                delta = number(rollout["reward"][s, n]) + self.gamma * after[s, n] - v[s, n]
                total += factor * min(self.clip_rho, ratio[s, n]) * delta
                factor *= self.gamma * self.trace_lambda * min(self.clip_c, ratio[s, n])
                if not goes_on(rollout, s, n):
                    break
            target[t, n] = total
        advantage = {}
        for t, n in steps:
            following = target[t + 1, n] if goes_on(rollout, t, n) else after[t, n]
            error = number(rollout["reward"][t, n]) + self.gamma * following - v[t, n]
            advantage[t, n] = min(self.clip_rho, ratio[t, n]) * error

        def loss(p: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for step in steps:
                x = rollout["observation"][step]
                log_prob, entropy = self.policy(p, x, rollout["action"][step])
                error = (target[step] - critic(p, "value.0", x)[0]) ** 2
                total = total - advantage[step] * log_prob - self.entropy_coefficient * entropy
                total = total + self.value_coefficient * error
            return total

        gradients, found = gradients_of(loss, self.parameters, ["actor", "value"])
        self.optimizer.step(self.parameters, gradients)
        return {"loss": found}
