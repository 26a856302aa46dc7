"""Decision Transformer: reinforcement learning as sequence modelling."""

from __future__ import annotations

from typing import final

from torch import nn

from birl.config import AlgorithmConfig, config, default
from birl.engine import Loss, Phase
from birl.models import (
    AdamWFactory,
    ContinuousDecisionTransformer,
    DefaultEncoderFactory,
    EncoderFactory,
    OptimizerFactory,
    PositionEncodingType,
    WarmupSchedulerFactory,
)
from birl.transformer import TransformerAlgorithm
from birl.types import ActionSpace, Batch, Spec, weighted_mean

__all__ = ["DecisionTransformer", "DecisionTransformerConfig"]


@config
class DecisionTransformerConfig(AlgorithmConfig):
    """Decision Transformer for continuous actions (Chen et al. 2021, arXiv:2106.01345).

    Logs ``loss``.

    ``warmup_steps`` and ``clip_grad_norm`` give ``optim_factory`` a schedule and a clipping where it has none itself.
    """

    batch_size: int = 64
    context_size: int = 20
    max_timestep: int = 1000
    learning_rate: float = 1e-4
    encoder_factory: EncoderFactory = default(DefaultEncoderFactory)
    optim_factory: OptimizerFactory = default(lambda: AdamWFactory(weight_decay=1e-4))
    num_heads: int = 1
    num_layers: int = 3
    attn_dropout: float = 0.1
    resid_dropout: float = 0.1
    embed_dropout: float = 0.1
    activation_type: str = "relu"
    position_encoding_type: PositionEncodingType = PositionEncodingType.SIMPLE
    warmup_steps: int = 10000
    clip_grad_norm: float | None = 0.25
    compile: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # The fields of d3rlpy 2.3; what an optimiser factory says itself goes first.
        factory = self.optim_factory
        if factory.clip_grad_norm is None and self.clip_grad_norm is not None:
            factory = factory.replace(clip_grad_norm=self.clip_grad_norm)
        if factory.lr_scheduler_factory is None and self.warmup_steps > 0:
            factory = factory.replace(lr_scheduler_factory=WarmupSchedulerFactory(self.warmup_steps))
        object.__setattr__(self, "optim_factory", factory)
        object.__setattr__(self, "compile_graph", self.compile or self.compile_graph)


class DecisionTransformerNets(nn.Module):
    """The transformer."""

    def __init__(self, spec: Spec, cfg: DecisionTransformerConfig) -> None:
        super().__init__()
        self.transformer = ContinuousDecisionTransformer(
            spec,
            cfg.encoder_factory,
            context_size=cfg.context_size,
            max_timestep=cfg.max_timestep,
            num_heads=cfg.num_heads,
            num_layers=cfg.num_layers,
            attn_dropout=cfg.attn_dropout,
            resid_dropout=cfg.resid_dropout,
            embed_dropout=cfg.embed_dropout,
            activation=cfg.activation_type,
            position_encoding_type=cfg.position_encoding_type,
        )


def loss(nets: DecisionTransformerNets, batch: Batch, cfg: DecisionTransformerConfig) -> Loss:
    """Squared error of the predicted actions at the real steps (section 3)."""
    predicted = nets.transformer(
        batch.observation, batch.action, batch.extra["returns_to_go"], batch.extra["timestep"], batch.weight
    )
    return Loss(weighted_mean((predicted - batch.action).square().mean(-1), batch.weight))


@final
class DecisionTransformer(TransformerAlgorithm[DecisionTransformerConfig, DecisionTransformerNets]):
    """See `DecisionTransformerConfig`."""

    config_class = DecisionTransformerConfig
    networks = DecisionTransformerNets
    action_space = ActionSpace.CONTINUOUS
    phases = (Phase("transformer", loss, prefix="", metric="loss"),)
