"""Goldens of sequence models: decision transformers with both position encodings, and TACR."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from birl import algos
from birl.models import PositionEncodingType, VectorEncoderFactory
from birl.optimizers import AdamWFactory, GPTAdamWFactory
from birl.testing import plain_parameters
from birl.types import Batch
from tests.golden.case import (
    ACTIONS,
    ACTOR_FIELDS,
    ACTOR_RATES,
    CHOICES,
    OBSERVATION,
    Case,
    by_algorithm,
    exact,
    with_head,
)
from tests.golden.reference_sequence import (
    DiscreteTransformerReference,
    GlobalReference,
    TACRReference,
    Transformer,
)
from tests.golden.reference_transformer import TransformerReference

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


def windows(algorithm: Any) -> list[Batch]:
    """Windows ``[B, L, …]``, padded in front."""
    generator, size, length = np.random.default_rng(17), 3, 4
    batches = []
    for _ in range(5):
        weight = torch.ones(size, length, dtype=torch.float64)
        weight[1, :2] = 0
        timestep = torch.from_numpy(generator.integers(1, 5, size=(size, 1))) + torch.arange(length)
        timestep = torch.where(weight > 0, timestep, torch.zeros_like(timestep))
        action = torch.tanh(exact(generator, size, length, ACTIONS))
        extra = {"returns_to_go": exact(generator, size, length), "timestep": timestep}
        observation, reward = exact(generator, size, length, OBSERVATION), exact(generator, size, length)
        batches.append(Batch(observation, action, reward, None, torch.ones_like(weight), weight, extra=extra))
    return batches


def _scatter(algorithm: Any) -> None:
    """GPT-2's small weights would hide much."""
    with torch.no_grad():
        for parameter in algorithm.nets.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


_case = partial(Case, prepare=_scatter, parameters=sequence_parameters)


def _transformer(positions: PositionEncodingType) -> Case:
    simple = positions is PositionEncodingType.SIMPLE
    config = algos.DecisionTransformerConfig(
        **{**_NETWORK, "context_size": 4 if simple else 5},
        learning_rate=1e-2,
        encoder_factory=_TOKENS,
        optim_factory=AdamWFactory(weight_decay=1e-2),
        position_encoding_type=positions,
        warmup_steps=3,
        clip_grad_norm=0.25,
    )
    rates: dict[str, Any] = {"rate": 1e-2, "decay": 1e-2, "max_norm": 0.25, "warmup": 3}
    if simple:
        return _case("", config, partial(TransformerReference, **rates, heads=2, layers=2), windows)
    network = Transformer(heads=2, layers=2, positions="global")
    return _case("global", config, partial(GlobalReference, network=network, **rates), windows)


def _discrete_windows(algorithm: Any) -> list[Batch]:
    generator = torch.Generator().manual_seed(23)
    return [
        replace(batch, action=torch.randint(0, CHOICES, batch.weight.shape, generator=generator))
        for batch in windows(algorithm) + windows(algorithm)[:3]
    ]


def _discrete(positions: PositionEncodingType) -> Case:
    config = algos.DiscreteDecisionTransformerConfig(
        **_NETWORK,
        batch_size=3,
        learning_rate=1e-2,
        encoder_factory=_TOKENS,
        optim_factory=GPTAdamWFactory(betas=(0.8, 0.95), weight_decay=0.1),
        position_encoding_type=positions,
        warmup_tokens=40,  # 15 tokens an update: two updates of warm-up, and the end in the seventh
        final_tokens=100,
        clip_grad_norm=0.5,
    )
    reference = partial(
        DiscreteTransformerReference,
        network=Transformer(heads=2, layers=2, positions=positions.value, discrete=True),
        rate=1e-2,
        betas=(0.8, 0.95),
        decay=0.1,
        max_norm=0.5,
        tokens_an_update=15,
        warmup_tokens=40,
        final_tokens=100,
    )
    return _case(positions.value, config, reference, _discrete_windows, update=by_algorithm)


def _ended_windows(algorithm: Any) -> list[Batch]:
    """Windows the last steps of which are the ends of episodes, or not; discounts are 0 where one terminated."""
    batches = []
    for batch in windows(algorithm):
        discount = torch.full_like(batch.weight, 0.9)
        discount[0, -1] = 0.0
        batches.append(replace(batch, discount=discount))
    return batches


def _tacr(head: str, positions: PositionEncodingType) -> Case:
    fields = {
        **_NETWORK,
        **ACTOR_FIELDS,
        "actor_encoder_factory": _TOKENS,
        "position_encoding_type": positions,
        "alpha": 1.5,
        "tau": 0.1,
        "target_smoothing_sigma": 0.6,
    }
    network = Transformer(heads=2, layers=2, positions=positions.value)
    numbers = {**ACTOR_RATES, "network": network, "tau": 0.1, "sigma": 0.6, "clip": 0.5, "alpha": 1.5}
    parts = with_head(head, algos.TACRConfig, fields, TACRReference, numbers)
    return _case(f"{head} {positions.value}", **parts, inputs=_ended_windows)


CASES: tuple[Case, ...] = (
    *(_transformer(positions) for positions in PositionEncodingType),
    *(_discrete(positions) for positions in PositionEncodingType),
    _tacr("mean", PositionEncodingType.SIMPLE),
    _tacr("qr", PositionEncodingType.GLOBAL),
    _tacr("c51", PositionEncodingType.SIMPLE),
)
