"""N-step Q-learning (1602.01783, algorithm S2), step by step."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.golden.reference_a2c import SharedRMSprop, real_steps
from tests.golden.reference_parts import BatchOf, Parameters, average, gradients_of, number
from tests.golden.reference_returns import Head


class NStepDQNReference:
    """One gradient step for each rollout ``[T, N, …]``, and a copy of the target now and then."""

    def __init__(self, parameters: Parameters, head: Head, rate: float, gamma: float, interval: int) -> None:
        self.parameters, self.head = dict(parameters), head
        self.optimizer = SharedRMSprop(rate, alpha=0.99, eps=0.1, max_norm=40.0)
        self.gamma, self.interval, self.updates = gamma, interval, 0

    def _target(self, rollout: BatchOf, t: int, n: int) -> Tensor:
        """From the last step of the episode, or of the rollout, backwards."""
        last = t
        while (
            last + 1 < len(rollout["reward"])
            and not rollout["terminated"][last, n]
            and not rollout["truncated"][last, n]
        ):
            last += 1
        reward, discount = 0.0, 0.0 if rollout["terminated"][last, n] else 1.0
        for step in range(last, t - 1, -1):
            reward = number(rollout["reward"][step, n]) + self.gamma * reward
            discount = self.gamma * discount
        z = self.head.forward(self.parameters, "critic_target.0", rollout["next_observation"][last, n][None], None)[0]
        best = int(torch.argmax(self.head.expectation(z)))
        return self.head.target(z[best], reward, discount)

    def update(self, rollout: BatchOf) -> dict[str, float]:
        """The step."""
        self.updates += 1
        steps = real_steps(rollout)
        targets = {s: self._target(rollout, *s) for s in steps}

        def loss(p: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for s in steps:
                z = self.head.forward(p, "critic.0", rollout["observation"][s][None], None)[0]
                total = total + self.head.loss(z[int(rollout["action"][s])], targets[s], None, huber=True)
            return total

        gradients, value = gradients_of(loss, self.parameters, ["critic"])
        self.optimizer.step(self.parameters, gradients)
        if self.updates % self.interval == 0:
            average(self.parameters, "critic", "critic_target", 1.0)
        return {"loss": value}
