"""The factor on the initial weights of the layer after an encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import birl
from birl.errors import ConfigError
from birl.models import MeanQFunctionFactory, PixelEncoderFactory, VectorEncoderFactory


def nets(name: str, scale: float, **options: Any) -> Any:
    birl.seed(1)
    config = getattr(birl.algos, f"{name}Config")
    encoder = VectorEncoderFactory([8], output_scale=scale)
    fields = {field: encoder for field in config.__dataclass_fields__ if field.endswith("encoder_factory")}
    algo = config(**{**fields, **options}).create()
    algo.create_impl((3,), 2, **({"discrete_action": False} if name == "PPO" else {}))
    return algo.nets


def last(network: Any) -> list[torch.Tensor]:
    linear = network.linear if hasattr(network, "linear") else network.head.linear
    layers = [linear.value[-1], linear.advantage[-1]] if hasattr(linear, "advantage") else [linear]
    return [parameter for layer in layers for parameter in layer.parameters()]


@pytest.mark.parametrize(
    ("name", "networks", "options"),
    [
        ("SAC", ("actor", "critic"), {}),
        ("TD3", ("actor", "critic", "actor_target", "critic_target"), {}),
        ("DQN", ("critic",), {}),
        ("DQN", ("critic",), {"q_func_factory": MeanQFunctionFactory(dueling=True)}),
        ("PPO", ("actor", "value"), {}),
        ("NAF", ("critic",), {}),
    ],
)
def test_initial_outputs_are_scaled(name: str, networks: tuple[str, ...], options: dict[str, Any]) -> None:
    plain, small = nets(name, 1.0, **options), nets(name, 0.25, **options)
    for network in networks:
        pairs = zip(last(getattr(plain, network)), last(getattr(small, network)), strict=True)
        assert all(torch.allclose(0.25 * one, other, atol=1e-6) for one, other in pairs)
    first = [next(getattr(made, networks[0]).encoder.parameters()) for made in (plain, small)]
    assert torch.equal(*first)


def test_factors_are_checked() -> None:
    with pytest.raises(ConfigError, match="output_scale is -1"):
        VectorEncoderFactory([8], output_scale=-1.0)
    assert PixelEncoderFactory(output_scale=0.5).serialize()["params"]["output_scale"] == 0.5
