"""A2C (1602.01783, algorithm S3) and REINFORCE (doi:10.1007/BF00992696, eq. 11), step by step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.golden.reference_parts import Adam, BatchOf, Parameters, gradients_of, number
from tests.golden.reference_ppo import log_prob_and_entropy, network


class SharedRMSprop:
    """1602.01783 section 4: ``g <- alpha g + (1 - alpha) d^2``, ``theta <- theta - rate d / sqrt(g + eps)``.

    Or ``eps`` is outside of the root.
    """

    def __init__(self, rate: float, alpha: float, eps: float, max_norm: float, *, inside: bool = True) -> None:
        self.rate, self.alpha, self.eps, self.max_norm, self.inside = rate, alpha, eps, max_norm, inside
        self.squares: dict[str, Tensor] = {}

    def step(self, parameters: Parameters, gradients: dict[str, Tensor]) -> None:
        """Move the parameters."""
        norm = math.sqrt(sum(number((g * g).sum()) for g in gradients.values()))
        for name, g in gradients.items():
            g = g * min(1.0, self.max_norm / norm)
            old = self.squares.get(name, torch.zeros_like(g))
            self.squares[name] = self.alpha * old + (1 - self.alpha) * g * g
            squares = self.squares[name]
            root = torch.sqrt(squares + self.eps) if self.inside else torch.sqrt(squares) + self.eps
            parameters[name] = parameters[name] - self.rate * g / root


def n_step_returns(rollout: BatchOf, p: Parameters, gamma: float, t: int, n: int, bootstrap: bool) -> list[float]:
    """Returns of 1, 2, … steps from one on, up to the end of its episode or of the rollout."""
    found, total, factor = [], 0.0, 1.0
    for later in range(t, len(rollout["reward"])):
        if not rollout["valid"][later, n]:
            break
        total += factor * number(rollout["reward"][later, n])
        factor *= gamma
        after = 0.0
        if bootstrap and not rollout["terminated"][later, n]:
            after = number(network(p, "value.0", rollout["next_observation"][later, n]))
        found.append(total + factor * after)
        if rollout["terminated"][later, n] or rollout["truncated"][later, n]:
            break
    return found


def real_steps(rollout: BatchOf) -> list[tuple[int, int]]:
    """Rows and lanes of the steps that were made."""
    length, lanes = rollout["reward"].shape
    return [(t, n) for t in range(length) for n in range(lanes) if rollout["valid"][t, n]]


class A2CReference:
    """One gradient step for each rollout ``[T, N, …]``; with ``summed`` it is A3C's."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        rate: float,
        gamma: float,
        gae_lambda: float,
        value_coefficient: float,
        entropy_coefficient: float,
        normalize: bool,
        policy: str,
        summed: bool = False,
        eps: float = 1e-5,
        max_norm: float = 0.5,
    ) -> None:
        self.parameters, self.summed = dict(parameters), summed
        self.optimizer = SharedRMSprop(rate, alpha=0.99, eps=eps, max_norm=max_norm, inside=summed)  # A3C's
        self.gamma, self.gae_lambda, self.normalize, self.policy = gamma, gae_lambda, normalize, policy
        self.value_coefficient, self.entropy_coefficient = value_coefficient, entropy_coefficient

    def _return(self, rollout: BatchOf, t: int, n: int) -> float:
        """The longest return, or the mixture of all of them (Sutton and Barto 2018, eq. 12.3)."""
        *shorter, longest = n_step_returns(rollout, self.parameters, self.gamma, t, n, bootstrap=True)
        share = self.gae_lambda
        mixed = sum((1 - share) * share**k * each for k, each in enumerate(shorter))
        return mixed + share ** len(shorter) * longest

    def update(self, rollout: BatchOf) -> dict[str, float]:
        """The step."""
        steps, start = real_steps(rollout), self.parameters
        returns = {s: self._return(rollout, *s) for s in steps}
        advantage = {s: returns[s] - number(network(start, "value.0", rollout["observation"][s])) for s in steps}
        if self.normalize:
            mean = sum(advantage.values()) / len(steps)
            std = math.sqrt(sum((x - mean) ** 2 for x in advantage.values()) / len(steps))
            advantage = {s: (x - mean) / (std + 1e-8) for s, x in advantage.items()}

        def loss(p: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for s in steps:
                x = rollout["observation"][s]
                log_prob, entropy = log_prob_and_entropy(self.policy, p, x, rollout["action"][s])
                error = (returns[s] - network(p, "value.0", x)[0]) ** 2
                total = total - log_prob * advantage[s]
                total = total + self.value_coefficient * error - self.entropy_coefficient * entropy
            return total if self.summed else total / len(steps)

        gradients, value = gradients_of(loss, self.parameters, ["actor", "value"])
        self.optimizer.step(self.parameters, gradients)
        return {"loss": value}


class REINFORCEReference:
    """One gradient step for each set of episodes ``[T, N, …]``."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        rate: float,
        gamma: float,
        entropy_coefficient: float,
        baseline: bool,
        policy: str,
    ) -> None:
        self.parameters = dict(parameters)
        self.optimizer = Adam(rate, max_norm=1.0)
        self.gamma, self.entropy_coefficient, self.baseline, self.policy = gamma, entropy_coefficient, baseline, policy

    def update(self, rollout: BatchOf) -> dict[str, float]:
        """The step."""
        steps, start = real_steps(rollout), self.parameters
        episodes = sum(bool(rollout["terminated"][s] | rollout["truncated"][s]) for s in steps)
        goal = {s: n_step_returns(rollout, start, self.gamma, *s, bootstrap=self.baseline)[-1] for s in steps}

        def loss(p: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for s in steps:
                x, weight = rollout["observation"][s], goal[s]
                log_prob, entropy = log_prob_and_entropy(self.policy, p, x, rollout["action"][s])
                if self.baseline:
                    weight = goal[s] - number(network(start, "value.0", x))
                    error = (network(p, "value.0", x)[0] - goal[s]) ** 2
                    total = total + 0.5 * error / len(steps)
                total = total - (weight * log_prob + self.entropy_coefficient * entropy) / episodes
            return total

        gradients, value = gradients_of(loss, self.parameters, ["actor", "value"] if self.baseline else ["actor"])
        self.optimizer.step(self.parameters, gradients)
        return {"loss": value}
