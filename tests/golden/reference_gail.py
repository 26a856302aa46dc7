"""Adversarial imitation: GAIL (1606.03476, algorithm 1) and AIRL's discriminator (1710.11248, section 4), with PPO."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.golden.reference_parts import Adam, BatchOf, Parameters, gradients_of, number
from tests.golden.reference_ppo import PPOReference, log_prob_and_entropy, network


class GAILReference(PPOReference):
    """Learning from one rollout and as many steps of the expert: the discriminator first, then the policy."""

    def __init__(
        self, parameters: Parameters, *, form: str, judge_rate: float, judge_epochs: int, choices: int, **ppo: Any
    ) -> None:
        super().__init__(parameters, **ppo)
        self.form, self.judge_epochs, self.choices = form, judge_epochs, choices
        self.judge_optimizer = Adam(judge_rate)

    def probability(self, p: Parameters, x: Tensor, action: Tensor) -> Tensor:
        """``D(s, a)``, the probability that a step is the expert's."""
        own = torch.eye(self.choices, dtype=torch.float64)[int(action)] if self.policy == "discrete" else action
        f = network(p, "discriminator.0", torch.cat([x, own]))[0]
        if self.form == "gail":
            return 1 / (1 + torch.exp(-f))
        density = torch.exp(log_prob_and_entropy(self.policy, p, x, action)[0]).detach()
        return torch.exp(f) / (torch.exp(f) + density)

    def update(self, rollout: BatchOf) -> dict[str, float]:
        """All passes."""
        length, lanes = rollout["reward"].shape
        steps = [(t, n) for t in range(length) for n in range(lanes) if rollout["valid"][t, n]]
        losses = []
        for _ in range(self.judge_epochs):
            order = torch.randperm(len(steps)).tolist()
            for first in range(0, len(order), self.batch_size):
                chosen = [steps[i] for i in order[first : first + self.batch_size]]

                def loss(p: Parameters, chosen=chosen) -> Tensor:  # type: ignore[no-untyped-def]
                    total = torch.zeros((), dtype=torch.float64)
                    for s in chosen:
                        own = self.probability(p, rollout["observation"][s], rollout["action"][s])
                        others = self.probability(p, rollout["expert_observation"][s], rollout["expert_action"][s])
                        total = total - torch.log(others) - torch.log(1 - own)
                    return total / len(chosen)

                gradients, value = gradients_of(loss, self.parameters, ["discriminator"])
                self.judge_optimizer.step(self.parameters, gradients)
                losses.append(value)
        reward = torch.zeros(length, lanes, dtype=torch.float64)
        for t in range(length):
            for n in range(lanes):
                d = number(self.probability(self.parameters, rollout["observation"][t, n], rollout["action"][t, n]))
                reward[t, n] = -torch.log(torch.tensor(1 - d))
                if self.form == "airl":
                    reward[t, n] += torch.log(torch.tensor(d))
        found = super().update({**rollout, "reward": reward})
        return {**found, "discriminator_loss": sum(losses) / len(losses)}
