"""Decision Transformer with both position encodings, for both kinds of actions (2106.01345), and TACR.

Token by token, in loops. Parameters of the network ``net``: ``net.0.w{i}``/``b{i}`` embed observations and
``net.0.<part>.w``/``b`` are the other layers; ``net.0.position`` and ``net.0.block`` are tables of vectors, and so is
``net.0.choice`` for discrete actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.golden.reference_parts import Adam, BatchOf, Parameters, average, features, gradients_of, members, number
from tests.golden.reference_returns import Head


@dataclass
class Transformer:
    """GPT-2's pre-norm blocks over three tokens a step.

    Attributes:
        heads, layers: of the blocks.
        positions: ``simple``: a vector of the step number, for its three tokens. ``global``: one of the newest step's
            number, and one of the token's place counted from the end.
        discrete: whether actions are integers, outputs logits, the blocks' activation GELU, and tokens squashed by tanh
            before they get positions instead of normalised afterwards.
    """

    heads: int
    layers: int
    positions: str = "simple"
    discrete: bool = False

    def outputs(self, p: Parameters, net: str, batch: BatchOf, b: int) -> list[Tensor]:
        """What one window says at each step."""
        at = f"{net}.0"
        steps = [int(t) for t in batch["timestep"][b]]
        real = [bool(w > 0) for w in batch["weight"][b]]
        tokens = []
        for t in range(len(steps)):
            action = batch["action"][b, t]
            own = [
                _linear(p, f"{at}.return", batch["returns_to_go"][b, t][None]),
                features(p, at, batch["observation"][b, t]),
                p[f"{at}.choice"][int(action)] if self.discrete else _linear(p, f"{at}.action", action),
            ]
            for place, token in enumerate(own):
                token = torch.tanh(token) if self.discrete else token
                if self.positions == "simple":
                    token = token + p[f"{at}.position"][steps[t]]
                else:
                    behind = 3 * len(steps) - (3 * t + place)  # tokens from here to the end, this one included
                    token = token + p[f"{at}.position"][steps[-1]] + p[f"{at}.block"][-behind]
                tokens.append(token if self.discrete else _norm(p, f"{at}.token_norm", token))
        for layer in range(self.layers):
            part = f"{at}.block{layer}"
            tokens = [
                token + attended for token, attended in zip(tokens, self._attend(p, part, tokens, real), strict=True)
            ]
            tokens = [token + self._mlp(p, part, token) for token in tokens]
        result = []
        for t in range(len(steps)):
            last = _norm(p, f"{at}.last_norm", tokens[3 * t + 1])
            result.append(last @ p[f"{at}.out.w"] if self.discrete else torch.tanh(_linear(p, f"{at}.out", last)))
        return result

    def _mlp(self, p: Parameters, part: str, token: Tensor) -> Tensor:
        up = _linear(p, f"{part}.up", _norm(p, f"{part}.norm2", token))
        if self.discrete:  # GELU: x times the standard normal distribution function
            up = up * 0.5 * (1 + torch.erf(up / math.sqrt(2)))
        else:
            up = torch.where(up > 0, up, torch.zeros_like(up))
        return _linear(p, f"{part}.down", up)

    def _attend(self, p: Parameters, part: str, tokens: list[Tensor], real: list[bool]) -> list[Tensor]:
        size, result = len(tokens[0]), []
        width = size // self.heads
        packed = [_linear(p, f"{part}.qkv", _norm(p, f"{part}.norm1", token)) for token in tokens]
        for i in range(len(tokens)):
            seen = [j for j in range(i + 1) if real[j // 3] or j == i]
            outputs = []
            for head in range(self.heads):
                query, key, value = (slice(k * size + head * width, k * size + (head + 1) * width) for k in range(3))
                scores = [(packed[i][query] * packed[j][key]).sum() / math.sqrt(width) for j in seen]
                total = torch.stack([torch.exp(score) for score in scores]).sum()
                mixed = torch.zeros(width, dtype=torch.float64)
                for score, j in zip(scores, seen, strict=True):
                    mixed = mixed + torch.exp(score) / total * packed[j][value]
                outputs.append(mixed)
            result.append(_linear(p, f"{part}.attn_out", torch.cat(outputs)))
        return result


def _norm(p: Parameters, part: str, x: Tensor) -> Tensor:
    mean = x.sum() / len(x)
    variance = ((x - mean) ** 2).sum() / len(x)
    return (x - mean) / torch.sqrt(variance + 1e-5) * p[f"{part}.w"] + p[f"{part}.b"]


def _linear(p: Parameters, part: str, x: Tensor) -> Tensor:
    return x @ p[f"{part}.w"] + p[f"{part}.b"]


class GlobalReference:
    """Decision Transformer for continuous actions: squared errors at real steps."""

    def __init__(
        self, parameters: Parameters, network: Transformer, *, rate: float, decay: float, max_norm: float, warmup: int
    ) -> None:
        self.parameters, self.network, self.warmup = dict(parameters), network, warmup
        self.optimizer, self.updates = Adam(rate, decay=decay, max_norm=max_norm), 0

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""

        def loss(p: Parameters) -> Tensor:
            errors = []
            for b in range(len(batch["weight"])):
                outputs = self.network.outputs(p, "transformer", batch, b)
                for t, output in enumerate(outputs):
                    if batch["weight"][b, t] > 0:
                        errors.append(((output - batch["action"][b, t]) ** 2).sum() / len(output))
            return torch.stack(errors).sum() / len(errors)

        gradients, value = gradients_of(loss, self.parameters, ["transformer"])
        self.updates += 1
        self.optimizer.step(self.parameters, gradients, factor=min(self.updates / self.warmup, 1.0))
        return {"loss": value}


class AdamWOfSome:
    """AdamW with chosen betas that leaves biases, normalisation and tables of vectors without decay."""

    def __init__(self, rate: float, betas: tuple[float, float], decay: float, max_norm: float) -> None:
        self.rate, self.betas, self.decay, self.max_norm = rate, betas, decay, max_norm
        self.m: dict[str, Tensor] = {}
        self.v: dict[str, Tensor] = {}
        self.t = 0

    def step(self, parameters: Parameters, gradients: dict[str, Tensor], factor: float) -> None:
        """Move the parameters; ``factor`` scales the learning rate."""
        self.t += 1
        norm = math.sqrt(sum(number((g * g).sum()) for g in gradients.values()))
        scale = min(1.0, self.max_norm / norm)
        (b1, b2), rate = self.betas, self.rate * factor
        for name, gradient in gradients.items():
            g = gradient * scale
            m = self.m[name] = b1 * self.m.get(name, torch.zeros_like(g)) + (1 - b1) * g
            v = self.v[name] = b2 * self.v.get(name, torch.zeros_like(g)) + (1 - b2) * g * g
            spared = name.split(".")[-1] in ("position", "block", "choice") or g.dim() < 2
            old = parameters[name]
            if not spared:
                old = old - rate * self.decay * old
            parameters[name] = old - rate * (m / (1 - b1**self.t)) / (torch.sqrt(v / (1 - b2**self.t)) + 1e-8)


class DiscreteTransformerReference:
    """Decision Transformer for discrete actions: cross-entropy at real steps, a learning rate of counted tokens."""

    def __init__(
        self,
        parameters: Parameters,
        network: Transformer,
        *,
        rate: float,
        betas: tuple[float, float],
        decay: float,
        max_norm: float,
        tokens_an_update: int,
        warmup_tokens: int,
        final_tokens: int,
    ) -> None:
        self.parameters, self.network, self.rate = dict(parameters), network, rate
        self.optimizer = AdamWOfSome(rate, betas, decay, max_norm)
        self.tokens, self.tokens_an_update = 0, tokens_an_update
        self.warmup_tokens, self.final_tokens = warmup_tokens, final_tokens

    def share(self) -> float:
        """Share of the learning rate: rises with the tokens, then half a cosine down to a tenth."""
        if self.tokens < self.warmup_tokens:
            return self.tokens / self.warmup_tokens
        if self.tokens >= self.final_tokens:
            return 0.1
        angle = math.pi * (self.tokens - self.warmup_tokens) / (self.final_tokens - self.warmup_tokens)
        return max(0.1, (1 + math.cos(angle)) / 2)

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""

        def loss(p: Parameters) -> Tensor:
            total, count = torch.zeros((), dtype=torch.float64), 0
            for b in range(len(batch["weight"])):
                for t, logits in enumerate(self.network.outputs(p, "transformer", batch, b)):
                    if batch["weight"][b, t] > 0:
                        probability = torch.exp(logits[int(batch["action"][b, t])]) / torch.exp(logits).sum()
                        total, count = total - torch.log(probability), count + 1
            return total / count

        gradients, value = gradients_of(loss, self.parameters, ["transformer"])
        self.tokens += self.tokens_an_update
        self.optimizer.step(self.parameters, gradients, self.share())
        return {"loss": value, "learning_rate": self.rate * self.share()}


class TACRReference:
    """TACR (Lee and Moon 2023): a transformer climbs critics of single steps, as TD3+BC (2106.06860, eq. 5) does.

    Discounts are 0 where the episode terminated. The last step of a window has no next observation there, so that the
    critics learn from it only if its episode terminated.
    """

    def __init__(
        self,
        parameters: Parameters,
        network: Transformer,
        *,
        actor_rate: float,
        critic_rate: float,
        tau: float,
        sigma: float,
        clip: float,
        alpha: float,
        head: Head,
    ) -> None:
        self.parameters, self.network, self.head = dict(parameters), network, head
        self.tau, self.sigma, self.clip, self.alpha = tau, sigma, clip, alpha
        self.actor, self.critic = Adam(actor_rate), Adam(critic_rate)

    def _q(self, p: Parameters, net: str, k: int, x: Tensor, a: Tensor) -> Tensor:
        return self.head.forward(p, f"{net}.{k}", torch.cat([x, a])[None], None)[0, 0]

    def update(self, batch: BatchOf) -> dict[str, float]:
        """One update."""
        p, head, metrics = self.parameters, self.head, {}
        size, length = batch["weight"].shape
        noise = torch.randn(batch["action"].shape, dtype=torch.float64)
        goals: list[tuple[int, int, Tensor]] = []
        for b in range(size):
            planned = self.network.outputs(p, "actor_target", batch, b)
            for t in range(length):
                if not batch["weight"][b, t] > 0:
                    continue
                reward, discount = number(batch["reward"][b, t]), number(batch["discount"][b, t])
                if t + 1 < length:
                    after, action = batch["observation"][b, t + 1], planned[t + 1].clone()
                elif discount == 0:
                    after, action = batch["observation"][b, t], planned[t].clone()  # multiplied by 0
                else:
                    continue
                for d in range(len(action)):
                    e = min(max(self.sigma * number(noise[b, t, d]), -self.clip), self.clip)
                    action[d] = min(max(number(action[d]) + e, -1.0), 1.0)
                z = [self._q(p, "critic_target", k, after, action) for k in range(members(p, "critic_target"))]
                lowest = min(z, key=lambda row: number(head.expectation(row)))
                goals.append((b, t, head.target(lowest, reward, discount)))

        def critic_loss(q: Parameters) -> Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for k in range(members(q, "critic")):
                for b, t, goal in goals:
                    z = self._q(q, "critic", k, batch["observation"][b, t], batch["action"][b, t])
                    total = total + head.loss(z, goal, None, huber=False) / len(goals)
            return total

        gradients, metrics["critic_loss"] = gradients_of(critic_loss, p, ["critic"])
        self.critic.step(p, gradients)

        def actor_loss(q: Parameters) -> Tensor:
            values, errors = [], []
            for b in range(size):
                for t, action in enumerate(self.network.outputs(q, "actor", batch, b)):
                    if batch["weight"][b, t] > 0:
                        z = self._q(q, "critic", 0, batch["observation"][b, t], action)
                        values.append(head.expectation(z))
                        errors.append(((action - batch["action"][b, t]) ** 2).sum() / len(action))
            scale = self.alpha / (sum(abs(number(value)) for value in values) / len(values))
            return -scale * torch.stack(values).mean() + torch.stack(errors).mean()

        gradients, metrics["actor_loss"] = gradients_of(actor_loss, p, ["actor"])
        self.actor.step(p, gradients)
        average(p, "critic", "critic_target", self.tau)
        average(p, "actor", "actor_target", self.tau)
        return metrics
