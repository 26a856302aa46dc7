"""Goldens of sequence models: decision transformers with both position encodings, and TACR."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from birl import algos
from birl.models import AdamWFactory, GPTAdamWFactory, PositionEncodingType, VectorEncoderFactory
from birl.testing import GoldenReport, compare_with_reference, double_precision, plain_parameters
from birl.types import Batch
from tests.golden.cases import ACTIONS, ENCODER, HEADS, Case, build, windows
from tests.golden.reference_sequence import (
    DiscreteTransformerReference,
    GlobalReference,
    TACRReference,
    Transformer,
)
from tests.golden.reference_transformer import TransformerReference

CHOICES = 3
_NETWORK: dict[str, Any] = {
    "context_size": 5,  # larger than the windows: places are counted from the end
    "max_timestep": 10,
    "num_heads": 2,
    "num_layers": 2,
    "attn_dropout": 0.0,
    "resid_dropout": 0.0,
    "embed_dropout": 0.0,
}
_TOKENS = VectorEncoderFactory(hidden_units=[6])
_MODULES = {
    "return_token": "return",
    "action_token": "action",
    "token_norm": "token_norm",
    "transformer.norm": "last_norm",
    "linear": "out",
}
_TABLES = {"position_embedding.weight": "position", "block_embedding": "block", "action_embedding.weight": "choice"}
_BLOCK = {
    "attention_norm": "norm1",
    "query_key_value": "qkv",
    "attention_out": "attn_out",
    "mlp_norm": "norm2",
    "mlp_in": "up",
    "mlp_out": "down",
}


def sequence_parameters(nets: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters under the references' names."""
    result = {}
    for net, module in nets.named_children():
        if not hasattr(module, "transformer"):
            rest = nn.ModuleDict({net: module})
            result.update(plain_parameters(rest))
            continue
        for name, tensor in module.state_dict().items():
            value = tensor.detach().clone()
            if name in _TABLES:
                result[f"{net}.0.{_TABLES[name]}"] = value
                continue
            value = value.T if value.dim() == 2 else value
            part, _, kind = name.rpartition(".")
            short = {"weight": "w", "bias": "b"}[kind]
            if part.startswith("encoder.layers."):
                result[f"{net}.0.{short}{part.split('.')[2]}"] = value
            elif part.startswith("transformer.blocks."):
                _, _, index, layer = part.split(".")
                result[f"{net}.0.block{index}.{_BLOCK[layer]}.{short}"] = value
            else:
                result[f"{net}.0.{_MODULES[part]}.{short}"] = value
    return result


def _made(config: Any, action_size: int) -> Any:
    algorithm = build(config, action_size)
    with torch.no_grad():  # GPT-2's small weights would hide much
        for parameter in algorithm.nets.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return algorithm


def _transformer_case(positions: PositionEncodingType) -> Case:
    simple = positions is PositionEncodingType.SIMPLE

    def run() -> GoldenReport:
        with double_precision():
            algorithm = _made(
                algos.DecisionTransformerConfig(
                    **{**_NETWORK, "context_size": 4 if simple else 5},
                    learning_rate=1e-2,
                    encoder_factory=_TOKENS,
                    optim_factory=AdamWFactory(weight_decay=1e-2),
                    position_encoding_type=positions,
                    warmup_steps=3,
                    clip_grad_norm=0.25,
                ),
                ACTIONS,
            )
            start = sequence_parameters(algorithm.nets)
            rates: dict[str, Any] = {"rate": 1e-2, "decay": 1e-2, "max_norm": 0.25, "warmup": 3}
            reference: Any = (
                TransformerReference(start, **rates, heads=2, layers=2)
                if simple
                else GlobalReference(start, Transformer(heads=2, layers=2, positions="global"), **rates)
            )
            return compare_with_reference(algorithm, reference, windows(), parameters=sequence_parameters)

    return Case("DecisionTransformer" if simple else "DecisionTransformer global", run)


def _discrete_windows() -> list[Batch]:
    generator = torch.Generator().manual_seed(23)
    return [
        replace(batch, action=torch.randint(0, CHOICES, batch.weight.shape, generator=generator))
        for batch in windows() + windows()[:3]
    ]


def _discrete_case(positions: PositionEncodingType) -> Case:
    def run() -> GoldenReport:
        with double_precision():
            algorithm = _made(
                algos.DiscreteDecisionTransformerConfig(
                    **_NETWORK,
                    batch_size=3,
                    learning_rate=1e-2,
                    encoder_factory=_TOKENS,
                    optim_factory=GPTAdamWFactory(betas=(0.8, 0.95), weight_decay=0.1),
                    position_encoding_type=positions,
                    warmup_tokens=40,  # 15 tokens an update: two updates of warm-up, and the end in the seventh
                    final_tokens=100,
                    clip_grad_norm=0.5,
                ),
                CHOICES,
            )
            reference = DiscreteTransformerReference(
                sequence_parameters(algorithm.nets),
                Transformer(heads=2, layers=2, positions=positions.value, discrete=True),
                rate=1e-2,
                betas=(0.8, 0.95),
                decay=0.1,
                max_norm=0.5,
                tokens_an_update=15,
                warmup_tokens=40,
                final_tokens=100,
            )
            return compare_with_reference(
                algorithm, reference, _discrete_windows(), parameters=sequence_parameters, update=algorithm.update
            )

    return Case(f"DiscreteDecisionTransformer {positions.value}", run)


def _ended_windows() -> list[Batch]:
    """Windows the last steps of which are the ends of episodes, or not; discounts are 0 where one terminated."""
    batches = []
    for batch in windows():
        discount = torch.full_like(batch.weight, 0.9)
        discount[0, -1] = 0.0
        batches.append(replace(batch, discount=discount))
    return batches


def _tacr_case(head: str, positions: PositionEncodingType) -> Case:
    def run() -> GoldenReport:
        factory, reference_head = HEADS[head]
        with double_precision():
            algorithm = _made(
                algos.TACRConfig(
                    **_NETWORK,
                    actor_learning_rate=1e-2,
                    critic_learning_rate=2e-2,
                    actor_encoder_factory=_TOKENS,
                    critic_encoder_factory=ENCODER,
                    q_func_factory=factory,
                    position_encoding_type=positions,
                    alpha=1.5,
                    tau=0.1,
                    target_smoothing_sigma=0.6,
                ),
                ACTIONS,
            )
            reference = TACRReference(
                sequence_parameters(algorithm.nets),
                Transformer(heads=2, layers=2, positions=positions.value),
                actor_rate=1e-2,
                critic_rate=2e-2,
                tau=0.1,
                sigma=0.6,
                clip=0.5,
                alpha=1.5,
                head=reference_head,
            )
            return compare_with_reference(algorithm, reference, _ended_windows(), parameters=sequence_parameters)

    return Case(f"TACR {head} {positions.value}", run)


CASES: tuple[Case, ...] = (
    *(_transformer_case(positions) for positions in PositionEncodingType),
    *(_discrete_case(positions) for positions in PositionEncodingType),
    _tacr_case("mean", PositionEncodingType.SIMPLE),
    _tacr_case("qr", PositionEncodingType.GLOBAL),
    _tacr_case("c51", PositionEncodingType.SIMPLE),
)
