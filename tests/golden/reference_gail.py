"""Adversarial imitation with PPO, TRPO and A2C.

GAIL is 1606.03476, algorithm 1; AIRL's discriminator 1710.11248, section 4 and eq. 4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.golden.reference_a2c import A2CReference
from tests.golden.reference_parts import Adam, BatchOf, Parameters, gradients_of, number
from tests.golden.reference_ppo import PPOReference, log_prob_and_entropy, network
from tests.golden.reference_trpo import TRPOReference


class Judged:
    """Learning from one rollout and as many steps of the expert: the discriminator first, then the policy.

    The class of the policy's reference comes after it.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        form: str,
        judge_rate: float,
        judge_epochs: int,
        judge_batch_size: int,
        choices: int,
        shaping: bool = False,
        states_only: bool = False,
        **policy: Any,
    ) -> None:
        super().__init__(parameters, **policy)
        self.form, self.judge_epochs, self.choices = form, judge_epochs, choices
        self.judge_batch_size, self.shaping, self.states_only = judge_batch_size, shaping, states_only
        self.judge_optimizer = Adam(judge_rate)

    def probability(self, p: Parameters, rollout: BatchOf, whose: str, s: tuple[int, int]) -> Tensor:
        """``D(s, a)``, the probability that a step is the expert's."""
        x, action, after, goes_on = (
            rollout[f"{whose}{name}"][s] for name in ("observation", "action", "next_observation", "goes_on")
        )
        own = torch.eye(self.choices, dtype=torch.float64)[int(action)] if self.policy == "discrete" else action
        f = network(p, "discriminator.0", x if self.states_only else torch.cat([x, own]))[0]
        if self.shaping:
            h, then = (network(p, "shaping.0", each)[0] for each in (x, after))
            f = f - h + (self.gamma * then if goes_on else 0.0)
        if self.form == "gail":
            return 1 / (1 + torch.exp(-f))
        density = torch.exp(log_prob_and_entropy(self.policy, p, x, action)[0]).detach()
        return torch.exp(f) / (torch.exp(f) + density)

    def update(self, rollout: BatchOf) -> dict[str, float]:
        """All passes."""
        rollout = {**rollout, "goes_on": ~rollout["terminated"]}
        length, lanes = rollout["reward"].shape
        steps = [(t, n) for t in range(length) for n in range(lanes) if rollout["valid"][t, n]]
        losses = []
        for _ in range(self.judge_epochs):
            order = torch.randperm(len(steps)).tolist()
            for first in range(0, len(order), self.judge_batch_size):
                chosen = [steps[i] for i in order[first : first + self.judge_batch_size]]

                def loss(p: Parameters, chosen=chosen) -> Tensor:  # type: ignore[no-untyped-def]
                    total = torch.zeros((), dtype=torch.float64)
                    for s in chosen:
                        own, others = (self.probability(p, rollout, whose, s) for whose in ("", "expert_"))
                        total = total - torch.log(others) - torch.log(1 - own)
                    return total / len(chosen)

                names = ["discriminator", "shaping"] if self.shaping else ["discriminator"]
                gradients, value = gradients_of(loss, self.parameters, names)
                self.judge_optimizer.step(self.parameters, gradients)
                losses.append(value)
        reward = torch.zeros(length, lanes, dtype=torch.float64)
        for t in range(length):
            for n in range(lanes):
                d = number(self.probability(self.parameters, rollout, "", (t, n)))
                reward[t, n] = -torch.log(torch.tensor(1 - d))
                if self.form == "airl":
                    reward[t, n] += torch.log(torch.tensor(d))
        found = super().update({**rollout, "reward": reward})
        return {**found, "discriminator_loss": sum(losses) / len(losses)}


class GAILReference(Judged, PPOReference):
    """With PPO."""


class TRPOGAILReference(Judged, TRPOReference):
    """With TRPO."""


class A2CGAILReference(Judged, A2CReference):
    """With A2C."""
