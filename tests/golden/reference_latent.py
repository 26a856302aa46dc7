"""BCQ (1812.02900), discrete BCQ (1910.01708), PLAS (2011.07213) and BEAR (1906.00949)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.golden.reference_actor_critic import _critic_error, _q
from tests.golden.reference_parts import (
    Adam,
    BatchOf,
    Parameters,
    average,
    features,
    gradients_of,
    last_layer,
    members,
    mlp,
    number,
    squashed_sample,
)
from tests.golden.reference_returns import Head


class DiscreteBCQReference:
    """1910.01708, section 4: actions that the data's policy makes too rarely are not considered.

    Args:
        parameters: ``critic.k.*``, ``critic_target.k.*`` and ``imitator.0.*``.
        head: the head of the Q-functions.
        rate: learning rate of all.
        interval: updates between target copies.
        threshold: ``tau``: smallest ratio of an action's probability to the largest one.
        beta: weight of the squared logits.
        shared: whether the imitator is a linear layer on the first Q-function's features.

    Attributes:
        constrained: how often the constraint barred the action of the highest value.
    """

    def __init__(
        self,
        parameters: Parameters,
        head: Head,
        *,
        rate: float,
        interval: int,
        threshold: float,
        beta: float,
        shared: bool,
    ) -> None:
        self.parameters, self.head, self.interval = dict(parameters), head, interval
        self.threshold, self.beta, self.shared = threshold, beta, shared
        self.optimizer, self.updates, self.constrained = Adam(rate), 0, 0
        self.n = members(parameters, "critic")

    def _all(self, p: Parameters, net: str, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
        taus = self.head.draw(len(x))
        return [self.head.forward(p, f"{net}.{k}", x, taus) for k in range(self.n)], taus

    def _logits(self, p: Parameters, x: Tensor) -> Tensor:
        if self.shared:
            return last_layer(p, "imitator.0", features(p, "critic.0", x))
        return mlp(p, "imitator.0", x)

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        p, head, size = self.parameters, self.head, len(batch["reward"])
        online, _ = self._all(p, "critic", batch["next_observation"])
        following, _ = self._all(p, "critic_target", batch["next_observation"])
        logits = self._logits(p, batch["next_observation"])
        y = []
        for b in range(size):
            probability = [math.exp(number(each)) for each in logits[b]]
            probability = [each / sum(probability) for each in probability]
            values = [sum(number(head.expectation(z[b, a])) for z in online) / self.n for a in range(len(probability))]
            best, highest = -1, -math.inf
            for a, value in enumerate(values):
                if probability[a] / max(probability) >= self.threshold and value > highest:
                    best, highest = a, value
            self.constrained += highest < max(values)
            worst = min(range(self.n), key=lambda k: number(head.expectation(following[k][b, best])))
            y.append(head.target(following[worst][b, best], number(batch["reward"][b]), number(batch["discount"][b])))
        state = torch.get_rng_state()
        parts: list[tuple[float, float]] = []

        def loss(q: Parameters) -> Tensor:
            torch.set_rng_state(state)
            z, taus = self._all(q, "critic", batch["observation"])
            logits = self._logits(q, batch["observation"])
            td, imitation = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
            for b in range(size):
                taken, weight = int(batch["action"][b]), batch["weight"][b] / size
                for k in range(self.n):
                    levels = None if taus is None else taus[b]
                    td = td + weight * head.loss(z[k][b, taken], y[b], levels, huber=True)
                log_probability = logits[b, taken] - torch.log(torch.exp(logits[b]).sum())
                penalty = (logits[b] ** 2).sum() / len(logits[b])
                imitation = imitation + weight * (self.beta * penalty - log_probability)
            parts.append((number(td), number(imitation)))
            return td + imitation

        gradients, value = gradients_of(loss, p, ["critic", "imitator"])
        self.optimizer.step(p, gradients)
        if self.updates % self.interval == 0:
            average(p, "critic", "critic_target", 1.0)
        return {"loss": value, "td_loss": parts[-1][0], "imitator_loss": parts[-1][1]}


def _blend(head: Head, rows: list[Tensor], lam: float) -> Tensor:
    """1812.02900 eq. 13 for one action: ``lam`` of the member with the lowest mean, the rest of the highest one.

    The result has masses in place of logits if the head is categorical.
    """
    rows = sorted(rows, key=lambda row: number(head.expectation(row)))
    low, high = rows[0], rows[-1]
    if head.kind == "c51":
        low, high = head.probabilities(low), head.probabilities(high)
    return lam * low + (1 - lam) * high


def _expected(head: Head, blended: Tensor) -> float:
    if head.kind == "c51":
        return sum(number(m) * atom for m, atom in zip(blended, head.support(), strict=True))
    return number(head.expectation(blended))


def _backup(head: Head, blended: Tensor, batch: BatchOf, b: int, bonus: float = 0.0) -> Tensor:
    reward, discount = number(batch["reward"][b]), number(batch["discount"][b])
    return head.target(blended, reward, discount, bonus, masses=head.kind == "c51")


def _weighted(value: Tensor, batch: BatchOf) -> Tensor:
    return sum(value[b] * batch["weight"][b] for b in range(len(value))) / len(value)  # type: ignore[return-value]


def _decoded(p: Parameters, x: Tensor, z: Tensor) -> Tensor:
    """The decoder before its tanh."""
    return mlp(p, "vae_decoder.0", torch.cat([x, z], -1))


def _random_decoded(p: Parameters, x: Tensor, count: int) -> list[Tensor]:
    """``count`` actions ``[B, A]``, before their tanh, of normal latents clipped to +-0.5."""
    size = p["vae_encoder.0.out.b"].shape[0] // 2
    z = torch.randn(count, len(x), size, dtype=torch.float64)
    return [_decoded(p, x, torch.where(z[i].abs() > 0.5, 0.5 * z[i].sign(), z[i])) for i in range(count)]


def _moved(p: Parameters, net: str, x: Tensor, a: Tensor, scale: float) -> Tensor:
    """BCQ's perturbation: ``a + xi(s, a)`` with ``|xi| <= scale``, inside [-1, 1]."""
    moved = a + scale * torch.tanh(mlp(p, net, torch.cat([x, a], -1)))
    return torch.where(moved > 1, torch.ones_like(moved), torch.where(moved < -1, -torch.ones_like(moved), moved))


def _imitation(p: Parameters, batch: BatchOf, noise: Tensor, kl_weight: float) -> Tensor:
    """1812.02900, the auto-encoder's loss, for ``z = mean + std * noise``."""
    out = mlp(p, "vae_encoder.0", torch.cat([batch["observation"], batch["action"]], -1))
    size = out.shape[-1] // 2
    mean, std = out[:, :size], torch.exp(torch.clamp(out[:, size:], -4, 15))
    actions = torch.tanh(_decoded(p, batch["observation"], mean + std * noise))
    squares = ((actions - batch["action"]) ** 2).sum(-1) / actions.shape[-1]
    divergence = (-torch.log(std) + (std**2 + mean**2) / 2 - 0.5).sum(-1) / size
    return _weighted(squares + kl_weight * divergence, batch)


class _Latent:
    """What BCQ, PLAS and BEAR share: an auto-encoder that learns from the data's actions."""

    def __init__(self, parameters: Parameters, *, imitator_rate: float, kl_weight: float) -> None:
        self.parameters, self.kl_weight, self.updates = dict(parameters), kl_weight, 0
        self.imitator = Adam(imitator_rate)

    def imitate(self, batch: BatchOf) -> float:
        """A step of the auto-encoder."""
        p = self.parameters
        size = p["vae_encoder.0.out.b"].shape[0] // 2
        noise = torch.randn(len(batch["reward"]), size, dtype=torch.float64)
        gradients, value = gradients_of(
            lambda q: _imitation(q, batch, noise, self.kl_weight), p, ["vae_encoder", "vae_decoder"]
        )
        self.imitator.step(p, gradients)
        return value


class BCQReference(_Latent):
    """Algorithm 1 of 1812.02900."""

    def __init__(
        self,
        parameters: Parameters,
        head: Head,
        *,
        actor_rate: float,
        critic_rate: float,
        imitator_rate: float,
        tau: float,
        lam: float,
        n_samples: int,
        scale: float,
        start: int,
        interval: int,
        kl_weight: float,
    ) -> None:
        super().__init__(parameters, imitator_rate=imitator_rate, kl_weight=kl_weight)
        self.head, self.tau, self.lam, self.n_samples, self.scale = head, tau, lam, n_samples, scale
        self.start, self.interval = start, interval
        self.actor, self.critic = Adam(actor_rate), Adam(critic_rate)

    def targets(self, batch: BatchOf) -> list[Tensor]:
        """Eq. 13."""
        p, head, x = self.parameters, self.head, batch["next_observation"]
        imitated = _random_decoded(p, x, self.n_samples)
        actions = [_moved(p, "actor_target.0", x, torch.tanh(each), self.scale) for each in imitated]
        # all at once, for the order of random levels
        z, _ = _q(p, "critic_target", head, torch.cat([x] * self.n_samples), torch.cat(actions))
        best = []
        for b in range(len(x)):
            values = [
                _expected(head, _blend(head, [member[i * len(x) + b] for member in z], self.lam))
                for i in range(self.n_samples)
            ]
            best.append(actions[max(range(self.n_samples), key=lambda i: values[i])][b])
        z, _ = _q(p, "critic_target", head, x, torch.stack(best))
        return [_backup(head, _blend(head, [member[b] for member in z], self.lam), batch, b) for b in range(len(x))]

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        p, head, metrics = self.parameters, self.head, {"vae_loss": self.imitate(batch)}
        if self.updates <= self.start:
            return metrics
        y = self.targets(batch)
        gradients, metrics["critic_loss"] = gradients_of(lambda q: _critic_error(q, head, batch, y), p, ["critic"])
        self.critic.step(p, gradients)
        if self.updates % self.interval == 0:
            x = batch["observation"]
            imitated = torch.tanh(_random_decoded(p, x, 1)[0])

            def actor_loss(q: Parameters) -> Tensor:
                first = _q(q, "critic", head, x, _moved(q, "actor.0", x, imitated, self.scale))[0][0]
                return -_weighted(head.expectation(first), batch)

            gradients, metrics["actor_loss"] = gradients_of(actor_loss, p, ["actor"])
            self.actor.step(p, gradients)
            average(p, "critic", "critic_target", self.tau)
            average(p, "actor", "actor_target", self.tau)
        return metrics


class PLASReference(_Latent):
    """2011.07213: the policy's latents, in [-2, 2], are decoded; ``scale`` adds the perturbation layer."""

    def __init__(
        self,
        parameters: Parameters,
        head: Head,
        *,
        actor_rate: float,
        critic_rate: float,
        imitator_rate: float,
        tau: float,
        lam: float,
        warmup: int,
        kl_weight: float,
        scale: float | None = None,
    ) -> None:
        super().__init__(parameters, imitator_rate=imitator_rate, kl_weight=kl_weight)
        self.head, self.tau, self.lam, self.warmup, self.scale = head, tau, lam, warmup, scale
        self.actor, self.critic = Adam(actor_rate), Adam(critic_rate)

    def action(self, p: Parameters, x: Tensor, target: str = "") -> Tensor:
        """The policy's action, or the target policy's."""
        action = torch.tanh(_decoded(p, x, 2 * torch.tanh(mlp(p, f"actor{target}.0", x))))
        return action if self.scale is None else _moved(p, f"perturbation{target}.0", x, action, self.scale)

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        p, head = self.parameters, self.head
        if self.updates <= self.warmup:
            return {"vae_loss": self.imitate(batch)}
        x, metrics = batch["next_observation"], {}
        z, _ = _q(p, "critic_target", head, x, self.action(p, x, "_target"))
        y = [_backup(head, _blend(head, [member[b] for member in z], self.lam), batch, b) for b in range(len(x))]
        gradients, metrics["critic_loss"] = gradients_of(lambda q: _critic_error(q, head, batch, y), p, ["critic"])
        self.critic.step(p, gradients)

        def actor_loss(q: Parameters) -> Tensor:
            x = batch["observation"]
            return -_weighted(head.expectation(_q(q, "critic", head, x, self.action(q, x))[0][0]), batch)

        gradients, metrics["actor_loss"] = gradients_of(actor_loss, p, ["actor", "perturbation"])
        self.actor.step(p, gradients)
        for name in ("critic", "actor", "perturbation"):
            average(p, name, f"{name}_target", self.tau)
        return metrics


def _discrepancy(x: list[Tensor], y: list[Tensor], kernel: str, sigma: float) -> Tensor:
    """1906.00949: MMD of two samples of one state, with the kernels of the authors' code."""

    def k(a: Tensor, b: Tensor) -> Tensor:
        distance = torch.zeros((), dtype=torch.float64)
        for d in range(len(a)):
            difference = a[d] - b[d]
            distance = distance + (difference**2 if kernel == "gaussian" else torch.abs(difference))
        return torch.exp(-distance / (2 * sigma))

    square = torch.zeros((), dtype=torch.float64)
    for a in x:
        for b in x:
            square = square + k(a, b) / len(x) ** 2
        for b in y:
            square = square - 2 * k(a, b) / (len(x) * len(y))
    for a in y:
        for b in y:
            square = square + k(a, b) / len(y) ** 2
    return torch.sqrt(square + 1e-6)


class BEARReference(_Latent):
    """Algorithm 1 of 1906.00949 with SAC's entropy bonus and temperature."""

    def __init__(
        self,
        parameters: Parameters,
        head: Head,
        *,
        actor_rate: float,
        critic_rate: float,
        imitator_rate: float,
        temp_rate: float,
        alpha_rate: float,
        tau: float,
        lam: float,
        threshold: float,
        n_target: int,
        n_mmd: int,
        kernel: str,
        sigma: float,
        warmup: int,
        kl_weight: float,
    ) -> None:
        super().__init__(parameters, imitator_rate=imitator_rate, kl_weight=kl_weight)
        self.head, self.tau, self.lam, self.threshold, self.warmup = head, tau, lam, threshold, warmup
        self.n_target, self.n_mmd, self.kernel, self.sigma = n_target, n_mmd, kernel, sigma
        self.critic, self.warming, self.actor = Adam(critic_rate), Adam(actor_rate), Adam(actor_rate)
        self.temp, self.alpha = Adam(temp_rate), Adam(alpha_rate)

    def targets(self, batch: BatchOf) -> list[Tensor]:
        """The best of several actions of the target policy, and the entropy bonus of that one."""
        p, head, x = self.parameters, self.head, batch["next_observation"]
        noise = torch.randn(self.n_target, *batch["action"].shape, dtype=torch.float64)
        drawn = [squashed_sample(p, "actor_target.0", x, noise[i]) for i in range(self.n_target)]
        z, _ = _q(p, "critic_target", head, torch.cat([x] * self.n_target), torch.cat([a for a, _ in drawn]))
        best, density = [], []
        for b in range(len(x)):
            values = [
                _expected(head, _blend(head, [member[i * len(x) + b] for member in z], self.lam))
                for i in range(self.n_target)
            ]
            chosen = max(range(self.n_target), key=lambda i: values[i])
            best.append(drawn[chosen][0][b])
            density.append(number(drawn[chosen][1][b]))
        z, _ = _q(p, "critic_target", head, x, torch.stack(best))
        temperature = math.exp(number(p["temperature"]))
        return [
            _backup(head, _blend(head, [member[b] for member in z], self.lam), batch, b, -temperature * density[b])
            for b in range(len(x))
        ]

    def gap(self, p: Parameters, batch: BatchOf, imitated: list[Tensor], noise: Tensor) -> Tensor:
        """``E[MMD] - threshold`` before the tanh."""
        out = mlp(p, "actor.0", batch["observation"])
        size = out.shape[-1] // 2
        mean, std = out[:, :size], torch.exp(torch.clamp(out[:, size:], -20, 2))
        own = [mean + std * noise[i] for i in range(self.n_mmd)]
        distances = [
            _discrepancy([each[b] for each in imitated], [each[b] for each in own], self.kernel, self.sigma)
            for b in range(len(mean))
        ]
        return _weighted(torch.stack(distances), batch) - self.threshold

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        self.updates += 1
        p, head, x = self.parameters, self.head, batch["observation"]
        metrics, size = {"imitator_loss": self.imitate(batch)}, len(x)
        y = self.targets(batch)
        gradients, metrics["critic_loss"] = gradients_of(lambda q: _critic_error(q, head, batch, y), p, ["critic"])
        self.critic.step(p, gradients)
        warm = self.updates <= self.warmup
        own = torch.zeros(0) if warm else torch.randn(batch["action"].shape, dtype=torch.float64)
        taus_state = torch.get_rng_state()
        if not warm:
            head.draw(size)  # the Q-function's random levels come before the discrepancy's draws
        imitated = [each.detach() for each in _random_decoded(p, x, self.n_mmd)]
        noise = torch.randn(self.n_mmd, *batch["action"].shape, dtype=torch.float64)
        alpha = math.exp(number(p["alpha"]))
        if warm:
            gradients, metrics["actor_loss"] = gradients_of(
                lambda q: alpha * self.gap(q, batch, imitated, noise), p, ["actor"]
            )
            self.warming.step(p, gradients)
        else:
            temperature = math.exp(number(p["temperature"]))
            density = squashed_sample(p, "actor.0", x, own)[1].detach()

            def actor_loss(q: Parameters) -> Tensor:
                torch.set_rng_state(taus_state)
                a, density = squashed_sample(q, "actor.0", x, own)
                z, _ = _q(q, "critic", head, x, a)
                worst = [
                    head.expectation(min((m[b] for m in z), key=lambda row: number(head.expectation(row))))
                    for b in range(size)
                ]
                climb = _weighted(temperature * density - torch.stack(worst), batch)
                return climb + alpha * self.gap(q, batch, imitated, noise)

            gap = number(self.gap(p, batch, imitated, noise))
            gradients, metrics["actor_loss"] = gradients_of(actor_loss, p, ["actor"])
            self.actor.step(p, gradients)
            metrics["mmd_loss"], metrics["alpha"] = alpha * gap, alpha
            self.alpha.step(p, gradients_of(lambda q: -torch.exp(q["alpha"]) * gap, p, ["alpha"])[0])
            goal = -float(batch["action"].shape[-1])
            gradients, metrics["temp_loss"] = gradients_of(
                lambda q: -_weighted(torch.exp(q["temperature"]) * (density + goal), batch), p, ["temperature"]
            )
            self.temp.step(p, gradients)
        average(p, "critic", "critic_target", self.tau)
        average(p, "actor", "actor_target", self.tau)
        return metrics
