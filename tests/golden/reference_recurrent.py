"""DQN with a recurrent encoder and burn-in (Hausknecht and Stone 2015, 1507.06527; R2D2, Kapturowski et al. 2019).

Parameters: ``critic.0.w{i}``/``b{i}`` embed an observation, ``critic.0.cell.*`` is a GRU or an LSTM cell in its plain
form with the gates in the order of torch's documentation, ``critic.0.out.*`` the last layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.golden.reference_parts import Adam, BatchOf, Parameters, average, features, gradients_of, last_layer, number


def cell(p: Parameters, net: str, kind: str, x: Tensor, state: Tensor) -> Tensor:
    """New state of one sequence."""
    size = p[f"{net}.cell.w_h"].shape[0]
    h = state[:size]
    from_x, from_h = x @ p[f"{net}.cell.w_x"] + p[f"{net}.cell.b_x"], h @ p[f"{net}.cell.w_h"] + p[f"{net}.cell.b_h"]
    if kind == "gru":
        reset = torch.sigmoid(from_x[:size] + from_h[:size])
        update = torch.sigmoid(from_x[size : 2 * size] + from_h[size : 2 * size])
        new = torch.tanh(from_x[2 * size :] + reset * from_h[2 * size :])
        return (1 - update) * new + update * h
    gates = from_x + from_h
    enter, forget = torch.sigmoid(gates[:size]), torch.sigmoid(gates[size : 2 * size])
    candidate, leave = torch.tanh(gates[2 * size : 3 * size]), torch.sigmoid(gates[3 * size :])
    c = forget * state[size:] + enter * candidate
    return torch.cat([leave * torch.tanh(c), c])


class RecurrentReference:
    """DQN on sequences ``[T, B, …]`` with the first ``burn_in`` steps only warming up the states."""

    def __init__(self, parameters: Parameters, kind: str, rate: float, interval: int, burn_in: int) -> None:
        self.parameters, self.kind, self.interval, self.burn_in = dict(parameters), kind, interval, burn_in
        self.optimizer, self.updates = Adam(rate), 0

    def _run(self, p: Parameters, net: str, batch: BatchOf, b: int, start: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Q-values at every learning step and at what followed it, for one sequence."""
        size = p[f"{net}.cell.w_h"].shape[0]
        state, here, following = start, [], []
        for t in range(len(batch["reward"])):
            if bool(batch["is_first"][t, b]):
                state = torch.zeros_like(state)
            state = cell(p, net, self.kind, features(p, net, batch["observation"][t, b]), state)
            if t < self.burn_in:
                state = state.detach()
                continue
            here.append(last_layer(p, net, state[:size]))
            after = cell(p, net, self.kind, features(p, net, batch["next_observation"][t, b]), state)
            following.append(last_layer(p, net, after[:size]))
        return here, following

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update. ``batch["state"]`` ``[B, S]`` is the stored state of the online network."""
        self.updates += 1
        length, size = batch["reward"].shape
        count = number((batch["weight"][self.burn_in :] > 0).sum())
        goals = {}
        for b in range(size):
            _, following = self._run(self.parameters, "critic_target.0", batch, b, batch["state"][b])
            for t in range(self.burn_in, length):
                best = max(number(q) for q in following[t - self.burn_in])
                goals[t, b] = number(batch["reward"][t, b]) + number(batch["discount"][t, b]) * best

        def loss(p: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for b in range(size):
                here, _ = self._run(p, "critic.0", batch, b, batch["state"][b])
                for t in range(self.burn_in, length):
                    error = goals[t, b] - here[t - self.burn_in][int(batch["action"][t, b])]
                    small = abs(number(error)) <= 1
                    huber = 0.5 * error**2 if small else torch.abs(error) - 0.5
                    total = total + batch["weight"][t, b] * huber / count
            return total

        gradients, value = gradients_of(loss, self.parameters, ["critic"])
        self.optimizer.step(self.parameters, gradients)
        if self.updates % self.interval == 0:
            average(self.parameters, "critic", "critic_target", 1.0)
        return {"loss": value}
