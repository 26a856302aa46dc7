"""Decision Transformer: reinforcement learning as sequence modelling, for continuous and for discrete actions."""

from __future__ import annotations

from typing import final

import torch.nn.functional as F
from torch import nn

from birl.algorithm import (
    ActionSpace,
    Batch,
    ContextActor,
    Gradient,
    Loss,
    NetworkConfig,
    Spec,
    TransformerAlgorithm,
    TransformerConfig,
    config,
    field,
    weighted_mean,
    window_outputs,
)
from birl.algorithm.sequence import ACTIVATION_TYPES
from birl.errors import ConfigError
from birl.models import ContinuousDecisionTransformer, PositionEncodingType
from birl.models import DiscreteDecisionTransformer as DiscreteTransformerNetwork
from birl.optimizers import (
    AdamWFactory,
    GPTAdamWFactory,
    LRSchedulerFactory,
    OptimizerFactory,
    WarmupCosineSchedulerFactory,
    WarmupSchedulerFactory,
)


@config
class ScheduledTransformerConfig(TransformerConfig, NetworkConfig):
    """Fields of both decision transformers."""

    clip_grad_norm: float | None = field(None, "Largest gradient norm.", above=0)
    compile: bool = field(False, "Older name of `compile_graph`.")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "compile_graph", self.compile or self.compile_graph)

    def schedule(self) -> LRSchedulerFactory | None:
        """Return the schedule of the learning rate."""
        raise NotImplementedError

    def optimizer(self, learning_rate: str, optim_factory: str) -> tuple[float, OptimizerFactory]:
        """Return the learning rate and the factory; clipping and schedule default to those of the configuration."""
        rate, factory = super().optimizer(learning_rate, optim_factory)
        if factory.clip_grad_norm is None and self.clip_grad_norm is not None:
            factory = factory.replace(clip_grad_norm=self.clip_grad_norm)
        if factory.lr_scheduler_factory is None and (schedule := self.schedule()) is not None:
            factory = factory.replace(lr_scheduler_factory=schedule)
        return rate, factory


@config
class DecisionTransformerConfig(ScheduledTransformerConfig):
    """Decision Transformer for continuous actions (Chen et al. 2021, arXiv:2106.01345).

    Logs ``loss``.

    ``warmup_steps`` and ``clip_grad_norm`` apply where ``optim_factory`` has no schedule or clipping of its own.
    """

    batch_size: int = 64
    learning_rate: float = 1e-4
    optim_factory: OptimizerFactory = field(lambda: AdamWFactory(weight_decay=1e-4))
    warmup_steps: int = field(10000, "Number of updates over which the learning rate rises.", low=0)
    clip_grad_norm: float | None = 0.25

    def schedule(self) -> LRSchedulerFactory | None:
        """Return the warm-up of d3rlpy 2.3."""
        return WarmupSchedulerFactory(self.warmup_steps) if self.warmup_steps > 0 else None


class DecisionTransformerNets(nn.Module):
    """The transformer."""

    def __init__(self, spec: Spec, cfg: DecisionTransformerConfig) -> None:
        super().__init__()
        self.transformer = ContinuousDecisionTransformer(spec, cfg.encoder_factory, **cfg.network_options)


def loss(nets: DecisionTransformerNets, batch: Batch, cfg: DecisionTransformerConfig) -> Loss:
    """Squared error of the predicted actions at the real steps (section 3)."""
    predicted = window_outputs(nets.transformer, batch)
    return Loss(weighted_mean((predicted - batch.action).square().mean(-1), batch.weight))


@final
class DecisionTransformer(TransformerAlgorithm[DecisionTransformerConfig, DecisionTransformerNets]):
    """See `DecisionTransformerConfig`."""

    actions = ActionSpace.CONTINUOUS
    acts = ContextActor(network="transformer")
    steps = (Gradient("transformer", loss, optimizer="", metric="loss"),)


@config
class DiscreteDecisionTransformerConfig(ScheduledTransformerConfig):
    """Decision Transformer for discrete actions (Chen et al. 2021, arXiv:2106.01345, the Atari experiments).

    Logs ``loss`` and ``learning_rate``.

    The learning rate rises over ``warmup_tokens``, falls along half a cosine until ``final_tokens``, and after the
    warm-up does not fall below a tenth of its maximum. An update counts ``batch_size * context_size`` tokens. This
    schedule and ``clip_grad_norm`` apply where ``optim_factory`` has no schedule or clipping of its own.

    Differs from d3rlpy: padding does not contribute to the loss. It is counted as tokens, as if all windows were full
    (the paper's are), so that the learning rate does not depend on the batch. The learning rate of an update counts the
    tokens of this update; d3rlpy's counts only those of earlier updates, and its first update uses the full learning
    rate. Beyond ``final_tokens`` the learning rate stays at a tenth instead of rising again. The ``GLOBAL`` position
    encoding has a vector for each token, as in the paper, not for each step.
    """

    batch_size: int = 128
    learning_rate: float = 6e-4
    optim_factory: OptimizerFactory = field(lambda: GPTAdamWFactory(betas=(0.9, 0.95), weight_decay=0.1))
    num_heads: int = 8
    num_layers: int = 6
    activation_type: str = "gelu"
    embed_activation_type: str = field(
        "tanh", "Activation of tokens before their positions are added.", choices=ACTIVATION_TYPES
    )
    position_encoding_type: PositionEncodingType = PositionEncodingType.GLOBAL
    warmup_tokens: int = field(10240, "Number of tokens over which the learning rate rises.", low=0)
    final_tokens: int = field(30000000, "Number of tokens at which the learning rate has fallen to its end.", low=1)
    clip_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.final_tokens <= self.warmup_tokens:
            raise ConfigError(
                f"final_tokens is {self.final_tokens} and warmup_tokens {self.warmup_tokens}; "
                "final_tokens must be larger than warmup_tokens"
            )

    def schedule(self) -> LRSchedulerFactory:
        """Return the paper's schedule over tokens."""
        tokens = self.batch_size * self.context_size
        return WarmupCosineSchedulerFactory(self.warmup_tokens / tokens, self.final_tokens / tokens)


class DiscreteDecisionTransformerNets(nn.Module):
    """The transformer."""

    def __init__(self, spec: Spec, cfg: DiscreteDecisionTransformerConfig) -> None:
        super().__init__()
        self.transformer = DiscreteTransformerNetwork(
            spec, cfg.encoder_factory, **cfg.network_options, embed_activation=cfg.embed_activation_type
        )


def discrete_loss(nets: DiscreteDecisionTransformerNets, batch: Batch, cfg: DiscreteDecisionTransformerConfig) -> Loss:
    """Cross-entropy of the actions at the real steps (section 3)."""
    logits = window_outputs(nets.transformer, batch)
    error = F.cross_entropy(logits.flatten(0, 1), batch.action.flatten(), reduction="none")
    return Loss(weighted_mean(error.view_as(batch.weight), batch.weight))


@final
class DiscreteDecisionTransformer(
    TransformerAlgorithm[DiscreteDecisionTransformerConfig, DiscreteDecisionTransformerNets]
):
    """See `DiscreteDecisionTransformerConfig`."""

    actions = ActionSpace.DISCRETE
    acts = ContextActor(network="transformer")
    steps = (Gradient("transformer", discrete_loss, optimizer="", metric="loss", rate_metric="learning_rate"),)
