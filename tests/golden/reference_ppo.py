"""PPO with the clipped objective (1707.06347) and generalised advantage estimation (1506.02438)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.golden.reference_parts import Adam, BatchOf, Parameters, gradients_of, normal_log_density, number


def network(p: Parameters, net: str, x: Tensor) -> Tensor:
    """Dense layers with tanh; those of the policy if the network has none of its own."""
    layer, hidden = 0, net if f"{net}.w0" in p else "actor.0"
    while f"{hidden}.w{layer}" in p:
        x = torch.tanh(x @ p[f"{hidden}.w{layer}"] + p[f"{hidden}.b{layer}"])
        layer += 1
    return x @ p[f"{net}.out.w"] + p[f"{net}.out.b"]


def log_prob_and_entropy(
    policy: str, p: Parameters, x: Tensor, action: Tensor, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probability of one action and the policy's entropy; standard deviations that are not learned are 0.5.

    That of a squashed Gaussian is estimated by the action that the noise makes.
    """
    out = network(p, "actor.0", x)
    if policy == "discrete":
        log_probs = out - torch.log(torch.exp(out).sum())
        return log_probs[int(action)], -(torch.exp(log_probs) * log_probs).sum()
    size = len(action)
    if policy == "beta":  # 1 + softplus; a density of (a + 1) / 2, which is half as wide
        ours = torch.distributions.Beta(*(1 + torch.log(1 + torch.exp(part)) for part in (out[:size], out[size:])))
        log_prob = (ours.log_prob((action + 1) / 2) - math.log(2)).sum()
        return log_prob, (ours.entropy() + math.log(2)).sum()
    if policy == "squashed":
        mean, log_std = out[:size], out[size:] + math.log(0.5)

        def density(u: Tensor) -> Tensor:
            return (normal_log_density(u, mean, log_std) - torch.log(1 - torch.tanh(u) ** 2)).sum()

        estimate = mean.sum() if noise is None else -density(mean + torch.exp(log_std) * noise)
        return density(0.5 * torch.log((1 + action) / (1 - action))), estimate
    log_std = {
        "parameter": lambda: p["actor.log_std"],
        "spherical": lambda: p["actor.log_std"][0].repeat(size),
        "state": lambda: out[size:] + math.log(0.5),
        "fixed": lambda: torch.full((size,), math.log(0.5), dtype=torch.float64),
    }[policy]()
    entropy = (0.5 * math.log(2 * math.pi * math.e) + log_std).sum()
    return normal_log_density(action, out[:size], log_std).sum(), entropy


def divergence(policy: str, old: Parameters, new: Parameters, x: Tensor) -> Tensor:
    """KL(old || new) in one state, by torch's own formulas."""

    def distribution(p: Parameters) -> torch.distributions.Distribution:
        out = network(p, "actor.0", x)
        if policy == "discrete":
            return torch.distributions.Categorical(logits=out)
        return torch.distributions.Normal(out, torch.exp(p["actor.log_std"]))

    return torch.distributions.kl_divergence(distribution(old), distribution(new)).sum()


class PPOReference:
    """Learning from one rollout ``[T, N, …]``: advantages once, then passes of shuffled minibatches."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        rate: float,
        eps: float,
        max_norm: float,
        gamma: float,
        gae_lambda: float,
        clip: float,
        value_clip: float | None,
        value_coefficient: float,
        entropy_coefficient: float,
        epochs: int,
        batch_size: int,
        normalize: bool,
        target_kl: float | None,
        policy: str,
        dual_clip: float | None = None,
        kl_coefficient: float = 0.0,
        kl_target: float | None = None,
        duration: int | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        self.optimizer = Adam(rate, eps=eps, max_norm=max_norm)
        self.gamma, self.gae_lambda, self.clip, self.value_clip = gamma, gae_lambda, clip, value_clip
        self.value_coefficient, self.entropy_coefficient = value_coefficient, entropy_coefficient
        self.target_kl, self.dual_clip, self.kl_coefficient = target_kl, dual_clip, kl_coefficient
        self.kl_target, self.ruled, self.duration, self.made = kl_target, "", duration, 0
        self.epochs, self.batch_size, self.normalize, self.policy = epochs, batch_size, normalize, policy

    def advantages(self, rollout: BatchOf) -> dict[tuple[int, int], float]:
        """1506.02438 eq. 16, written as the sum over the rest of the episode inside the rollout."""
        p = self.parameters
        length, lanes = rollout["reward"].shape
        result = {}
        for n in range(lanes):
            for t in range(length):
                total, factor = 0.0, 1.0
                for later in range(t, length):
                    if not rollout["valid"][later, n]:
                        break
                    v = number(network(p, "value.0", rollout["observation"][later, n]))
                    after = number(network(p, "value.0", rollout["next_observation"][later, n]))
                    if rollout["terminated"][later, n]:
                        after = 0.0
                    total += factor * (number(rollout["reward"][later, n]) + self.gamma * after - v)
                    if rollout["terminated"][later, n] or rollout["truncated"][later, n]:
                        break
                    factor *= self.gamma * self.gae_lambda
                result[t, n] = total
        return result

    def share(self) -> float:
        """Of learning rate and clip range, which fall to 0 in a straight line."""
        return 1.0 if self.duration is None else 1 - self.made / self.duration

    def update(self, rollout: BatchOf) -> dict[str, float]:
        """All passes."""
        start, clip = dict(self.parameters), self.clip * self.share()
        beta = self.kl_coefficient if self.kl_target is None else number(start["penalty"])
        length, lanes = rollout["reward"].shape
        steps = [(t, n) for t in range(length) for n in range(lanes) if rollout["valid"][t, n]]
        advantage = self.advantages(rollout)
        old_log_prob, old_value = {}, {}
        for t, n in steps:
            x, a = rollout["observation"][t, n], rollout["action"][t, n]
            old_log_prob[t, n] = number(log_prob_and_entropy(self.policy, start, x, a)[0])
            old_value[t, n] = number(network(start, "value.0", x))
        losses = []
        for _ in range(self.epochs):
            order = torch.randperm(len(steps)).tolist()
            divergences = []
            for first in range(0, len(order), self.batch_size):
                chosen = [steps[i] for i in order[first : first + self.batch_size]]
                mean, std = 0.0, 1.0
                if self.normalize:
                    mean = sum(advantage[s] for s in chosen) / len(chosen)
                    std = math.sqrt(sum((advantage[s] - mean) ** 2 for s in chosen) / len(chosen)) + 1e-8

                noise = iter([None] * len(chosen))
                if self.policy == "squashed":
                    noise = iter(torch.randn(len(chosen), rollout["action"].shape[-1], dtype=torch.float64))

                def loss(p: Parameters, chosen=chosen, mean=mean, std=std, noise=noise) -> Tensor:  # type: ignore[no-untyped-def]
                    total = torch.zeros((), dtype=torch.float64)
                    for t, n in chosen:
                        x, a = rollout["observation"][t, n], rollout["action"][t, n]
                        scaled = (advantage[t, n] - mean) / std
                        log_prob, entropy = log_prob_and_entropy(self.policy, p, x, a, next(noise))
                        ratio = torch.exp(log_prob - old_log_prob[t, n])
                        bounded = torch.clamp(ratio, 1 - clip, 1 + clip)
                        surrogate = torch.minimum(ratio * scaled, bounded * scaled)
                        if self.dual_clip is not None and scaled < 0:  # 1912.09729 eq. 5
                            surrogate = torch.maximum(surrogate, torch.tensor(self.dual_clip * scaled))
                        if self.kl_coefficient:
                            surrogate = surrogate - beta * divergence(self.policy, start, p, x)
                        value, goal = network(p, "value.0", x)[0], advantage[t, n] + old_value[t, n]
                        error = (value - goal) ** 2
                        if self.value_clip is not None:
                            moved = torch.clamp(value - old_value[t, n], -self.value_clip, self.value_clip)
                            error = torch.maximum(error, (old_value[t, n] + moved - goal) ** 2)
                        total = total - surrogate + self.value_coefficient * error - self.entropy_coefficient * entropy
                    return total / len(chosen)

                ratios = []
                for t, n in chosen:
                    x, a = rollout["observation"][t, n], rollout["action"][t, n]
                    now = number(log_prob_and_entropy(self.policy, self.parameters, x, a)[0])
                    ratios.append(now - old_log_prob[t, n])
                divergences.append(sum(math.exp(r) - 1 - r for r in ratios) / len(ratios))
                gradients, value = gradients_of(loss, self.parameters, ["actor", "value"])
                self.optimizer.step(self.parameters, gradients, self.share())
                self.made += 1
                losses.append(value)
            if self.target_kl is not None and sum(divergences) / len(divergences) > self.target_kl:
                break
        if self.kl_target is not None:  # 1707.06347, the rule below eq. 8
            observed = [rollout["observation"][s] for s in steps]
            d = sum(number(divergence(self.policy, start, self.parameters, x)) for x in observed) / len(observed)
            self.ruled += "-" if d < self.kl_target / 1.5 else "+" if d > self.kl_target * 1.5 else "0"
            factor = {"-": 0.5, "+": 2.0, "0": 1.0}[self.ruled[-1]]
            self.parameters["penalty"] = self.parameters["penalty"] * factor
        return {"loss": sum(losses) / len(losses)}
