"""DQN (doi:10.1038/nature14236), Double DQN (1509.06461) with four heads, and discrete CQL (2006.04779)."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.golden.reference_parts import Adam, BatchOf, Parameters, average, gradients_of, members, number
from tests.golden.reference_returns import Head


class ValueReference:
    """Updates of DQN, DoubleDQN and DiscreteCQL.

    Args:
        parameters: ``critic.k.*`` and ``critic_target.k.*``.
        head: the head of the Q-functions.
        double: choose the target's action by the online network.
        conservative: weight of the conservative term, 0 for none.
        interval: updates between target copies.
        rate: learning rate.
    """

    def __init__(
        self, parameters: Parameters, head: Head, double: bool, rate: float, interval: int, conservative: float = 0.0
    ) -> None:
        self.parameters, self.head, self.double = dict(parameters), head, double
        self.interval, self.conservative = interval, conservative
        self.optimizer, self.updates = Adam(rate), 0
        self.n = members(parameters, "critic")

    def _all(self, p: Parameters, net: str, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
        taus = self.head.draw(len(x))
        return [self.head.forward(p, f"{net}.{k}", x, taus) for k in range(self.n)], taus

    def targets(self, batch: BatchOf) -> list[Tensor]:
        """Target of each transition, ``[Q]``."""
        p, head = self.parameters, self.head
        online = self._all(p, "critic", batch["next_observation"])[0] if self.double else None
        following, _ = self._all(p, "critic_target", batch["next_observation"])
        chooser = following if online is None else online
        result = []
        for b in range(len(batch["reward"])):
            # the action that is best on the average of the ensemble …
            mean = sum(head.expectation(z[b]) for z in chooser) / self.n
            best = int(torch.argmax(mean))
            # … valued by the most pessimistic member
            worst = min(range(self.n), key=lambda k: number(head.expectation(following[k][b, best])))
            reward, discount = number(batch["reward"][b]), number(batch["discount"][b])
            result.append(head.target(following[worst][b, best], reward, discount))
        return result

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        y = self.targets(batch)
        head, size = self.head, len(y)
        taus_box: list[Tensor | None] = []
        state = torch.get_rng_state()

        def loss(p: Parameters) -> Tensor:
            torch.set_rng_state(state)
            z, taus = self._all(p, "critic", batch["observation"])
            taus_box.append(taus)
            total = torch.zeros((), dtype=torch.float64)
            for k in range(self.n):
                for b in range(size):
                    taken = z[k][b, int(batch["action"][b])]
                    levels = None if taus is None else taus[b]
                    error = head.loss(taken, y[b], levels, huber=True)
                    total = total + batch["weight"][b] * error / size
                    if self.conservative:
                        q = head.expectation(z[k][b])
                        gap = torch.log(torch.exp(q).sum()) - q[int(batch["action"][b])]
                        total = total + self.conservative * batch["weight"][b] * gap / size
            return total

        gradients, value = gradients_of(loss, self.parameters, ["critic"])
        self.optimizer.step(self.parameters, gradients)
        if self.updates % self.interval == 0:
            average(self.parameters, "critic", "critic_target", 1.0)
        return {"loss": value}
