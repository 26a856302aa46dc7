"""Activations by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from birl.errors import ConfigError
from birl.models import PixelEncoderFactory, VectorEncoderFactory
from birl.models.layers import ACTIVATIONS, activation_named


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"none", "swish"}))
def test_names_are_those_of_torch(name: str) -> None:
    x = torch.linspace(-3, 3, 7)
    assert torch.equal(activation_named(name)(x), getattr(F, name)(x))
    encoder = VectorEncoderFactory([4], activation=name, last_activation=name).create((3,))
    assert encoder(torch.zeros(2, 3)).shape == (2, 4)
    PixelEncoderFactory(activation=name)


@pytest.mark.parametrize(("given", "meant"), [("LeakyReLU", "leaky_relu"), ("ELU", "elu"), ("Tanh", "tanh")])
def test_names_of_classes_are_answered(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"activation is '{given}' \\(did you mean '{meant}'\\?\\)"):
        VectorEncoderFactory([4], activation=given)
