"""TRPO (1502.05477, appendix C; advantages of 1506.02438) with the whole Fisher matrix instead of its products."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.golden.reference_parts import Adam, BatchOf, Parameters, gradients_of, normal_log_density, number
from tests.golden.reference_ppo import network

Step = tuple[int, int]


class TRPOReference:
    """One step of the policy from each rollout ``[T, N, …]``, and passes of shuffled minibatches for the values.

    Without ``gae_lambda`` there are no values: advantages are sums of rewards to the end of the episode, and steps of
    episodes that do not end in the rollout are left out.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        policy: str,
        gamma: float,
        max_kl: float,
        damping: float,
        directions: int,
        lengths: int,
        entropy_coefficient: float,
        gae_lambda: float | None = None,
        rate: float = 0.0,
        epochs: int = 0,
        batch_size: int = 0,
        normalize: bool = False,
    ) -> None:
        self.parameters = dict(parameters)
        self.policy, self.gamma, self.gae_lambda = policy, gamma, gae_lambda
        self.max_kl, self.damping, self.directions, self.lengths = max_kl, damping, directions, lengths
        self.entropy_coefficient, self.epochs, self.batch_size = entropy_coefficient, epochs, batch_size
        self.normalize, self.optimizer = normalize, Adam(rate)
        self.shares: list[float] = []

    # -- the policy ------------------------------------------------------------------------------------------------

    def _distribution(self, p: Parameters, x: Tensor) -> tuple[Tensor, ...]:
        """Log-probabilities, or means and logarithms of standard deviations."""
        out = network(p, "actor.0", x)
        if self.policy == "discrete":
            return (out - torch.log(torch.exp(out).sum()),)
        if self.policy == "state":
            return out[: len(out) // 2], out[len(out) // 2 :]
        return out, p["actor.log_std"]

    def _log_prob(self, of: tuple[Tensor, ...], action: Tensor) -> Tensor:
        return of[0][int(action)] if self.policy == "discrete" else normal_log_density(action, *of).sum()

    def _entropy(self, of: tuple[Tensor, ...]) -> Tensor:
        if self.policy == "discrete":
            return -(torch.exp(of[0]) * of[0]).sum()
        return (0.5 * math.log(2 * math.pi * math.e) + of[1]).sum()

    def _divergence(self, old: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> Tensor:
        """``KL(old || new)``."""
        if self.policy == "discrete":
            return (torch.exp(old[0]) * (old[0] - new[0])).sum()
        variance, other = torch.exp(2 * old[1]), torch.exp(2 * new[1])
        return (new[1] - old[1] + (variance + (old[0] - new[0]) ** 2) / (2 * other) - 0.5).sum()

    # -- advantages ------------------------------------------------------------------------------------------------

    def _advantages(self, rollout: BatchOf) -> tuple[dict[Step, float], dict[Step, float]]:
        """Advantages, and what the values are to be, of the steps that are learned from."""
        length, lanes = rollout["reward"].shape
        advantages, goals = {}, {}
        for n in range(lanes):
            for t in range(length):
                if not rollout["valid"][t, n]:
                    continue
                total, factor, ends, own = 0.0, 1.0, False, 0.0
                for later in range(t, length):
                    if not rollout["valid"][later, n]:
                        break
                    reward = number(rollout["reward"][later, n])
                    terminated = bool(rollout["terminated"][later, n])
                    if self.gae_lambda is None:
                        total, factor = total + factor * reward, factor * self.gamma
                    else:
                        v = number(network(self.parameters, "value.0", rollout["observation"][later, n]))
                        after = number(network(self.parameters, "value.0", rollout["next_observation"][later, n]))
                        total += factor * (reward + self.gamma * (0.0 if terminated else after) - v)
                        factor, own = factor * self.gamma * self.gae_lambda, v if later == t else own
                    if terminated or rollout["truncated"][later, n]:
                        ends = True
                        break
                if ends or self.gae_lambda is not None:
                    advantages[t, n], goals[t, n] = total, total + own
        if self.normalize:
            mean = sum(advantages.values()) / len(advantages)
            std = math.sqrt(sum((a - mean) ** 2 for a in advantages.values()) / len(advantages)) + 1e-8
            advantages = {step: (a - mean) / std for step, a in advantages.items()}
        return advantages, goals

    # -- one rollout -----------------------------------------------------------------------------------------------

    def update(self, rollout: BatchOf) -> dict[str, float]:
        """The step of the policy, then the values."""
        advantages, goals = self._advantages(rollout)
        metrics = self._policy_step(rollout, advantages)
        if self.gae_lambda is None:
            return metrics
        steps, losses = list(goals), []
        steps = [(t, n) for t in range(rollout["reward"].shape[0]) for n in range(rollout["reward"].shape[1])]
        steps = [step for step in steps if step in goals]
        for _ in range(self.epochs):
            order = torch.randperm(len(steps)).tolist()
            for first in range(0, len(order), self.batch_size):
                chosen = [steps[i] for i in order[first : first + self.batch_size]]

                def error(p: Parameters, chosen: list[Step] = chosen) -> Tensor:
                    values = [network(p, "value.0", rollout["observation"][step])[0] for step in chosen]
                    errors = [(v - goals[step]) ** 2 for v, step in zip(values, chosen, strict=True)]
                    return torch.stack(errors).mean()

                gradients, value = gradients_of(error, self.parameters, ["value"])
                self.optimizer.step(self.parameters, gradients)
                losses.append(value)
        return {**metrics, "value_loss": sum(losses) / len(losses)}

    def _policy_step(self, rollout: BatchOf, advantages: dict[Step, float]) -> dict[str, float]:
        names = [name for name in self.parameters if name.startswith("actor")]
        sizes = [self.parameters[name].numel() for name in names]
        start = torch.cat([self.parameters[name].reshape(-1) for name in names])

        def parameters(theta: Tensor) -> Parameters:
            parts = zip(names, theta.split(sizes), strict=True)
            return {**self.parameters, **{name: part.view(self.parameters[name].shape) for name, part in parts}}

        def policies(theta: Tensor) -> dict[Step, tuple[Tensor, ...]]:
            p = parameters(theta)
            return {step: self._distribution(p, rollout["observation"][step]) for step in advantages}

        old = {step: tuple(x.detach() for x in of) for step, of in policies(start).items()}

        def surrogate(theta: Tensor) -> Tensor:
            terms = []
            for step, new in policies(theta).items():
                action = rollout["action"][step]
                ratio = torch.exp(self._log_prob(new, action) - self._log_prob(old[step], action))
                terms.append(ratio * advantages[step] + self.entropy_coefficient * self._entropy(new))
            return torch.stack(terms).mean()

        def divergence(theta: Tensor) -> Tensor:
            return torch.stack([self._divergence(old[step], new) for step, new in policies(theta).items()]).mean()

        gradient = torch.autograd.functional.jacobian(surrogate, start)
        matrix = torch.autograd.functional.hessian(divergence, start) + self.damping * torch.eye(len(start))
        direction = self._solve(matrix, gradient)
        step = math.sqrt(2 * self.max_kl / number(direction @ matrix @ direction)) * direction
        before, share = number(surrogate(start)), 1.0
        entropy = number(torch.stack([self._entropy(of) for of in old.values()]).mean())
        for _ in range(self.lengths):
            theta = start + share * step
            after, distance = number(surrogate(theta)), number(divergence(theta))
            if math.isfinite(after) and after > before and distance <= self.max_kl:
                break
            share *= 0.5
        else:
            theta, after, distance, share = start, before, 0.0, 0.0
        self.shares.append(share)
        self.parameters = {name: x.detach() for name, x in parameters(theta).items()}
        return {"policy_loss": -after, "kl": distance, "entropy": entropy, "step_share": share}

    def _solve(self, matrix: Tensor, right: Tensor) -> Tensor:
        """Hestenes and Stiefel 1952: conjugate gradients, from zero."""
        x, r = torch.zeros_like(right), right.clone()
        p = r.clone()
        for _ in range(self.directions):
            alpha = (r @ r) / (p @ matrix @ p)
            x = x + alpha * p
            smaller = r - alpha * (matrix @ p)
            p = smaller + (smaller @ smaller) / (r @ r) * p
            r = smaller
        return x
