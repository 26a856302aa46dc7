"""A saved model is compared with the networks that its configuration describes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import birl
from birl.algos import BCConfig, DQNConfig
from birl.errors import ConfigError, CorruptFileError, FileError, UnloadableModelWarning
from birl.models import EncoderFactory
from birl.testing.data import build_algorithm


class Flat(nn.Module):
    def __init__(self, n_inputs: int, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(n_inputs, size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


@dataclass
class CountingFactory(EncoderFactory, type="counting_of_test_round_trip"):
    """Every encoder is larger than the one before."""

    count: ClassVar[int] = 3

    def create(self, observation_shape: Any) -> nn.Module:
        CountingFactory.count += 1
        return Flat(observation_shape[0], CountingFactory.count)


@dataclass
class HostFactory(EncoderFactory, type="host_of_test_round_trip"):
    """Reads values of parameters, so that its networks cannot be planned."""

    def create(self, observation_shape: Any) -> nn.Module:
        encoder = Flat(observation_shape[0], 4)
        encoder.layer.weight.detach().numpy()[:] = 0.0
        return encoder


def _save(algorithm: Any, path: Path, words: str) -> None:
    with pytest.warns(UnloadableModelWarning, match=words) as caught:
        algorithm.save(path)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algorithm.save(path)  # once for the same networks
    with pytest.raises((CorruptFileError, ConfigError)):
        birl.load_learnable(path)


def test_factories_with_a_state(tmp_path: Path) -> None:
    algorithm = build_algorithm(BCConfig(encoder_factory=CountingFactory()))
    words = r"the parameter 'actor\..*layer\.weight' is float32 of shape \(4, 3\), and is float32 of shape \(5, 3\) in"
    _save(algorithm, tmp_path / "model.d3", words)


def test_networks_that_cannot_be_planned(tmp_path: Path) -> None:
    algorithm = build_algorithm(BCConfig(encoder_factory=HostFactory()))
    _save(algorithm, tmp_path / "model.d3", r"its networks cannot be made from its configuration \(")


def test_replaced_parameters(tmp_path: Path) -> None:
    algorithm = build_algorithm(DQNConfig(), action_size=3, discrete_action=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algorithm.save(tmp_path / "model.d3")
    assert birl.load_learnable(tmp_path / "model.d3").config == algorithm.config
    algorithm.nets.critic.extra = nn.Parameter(torch.zeros(2))
    words = r"'critic\.extra' is float32 of shape \(2,\), and does not exist in the networks that the configuration"
    _save(algorithm, tmp_path / "model.d3", words)


def test_the_check_draws_no_random_numbers(tmp_path: Path) -> None:
    numbers = []
    for save in (False, True):
        birl.seed(1)
        algorithm = build_algorithm(DQNConfig(), action_size=3, discrete_action=True)
        if save:
            algorithm.save(tmp_path / "model.d3")
        numbers.append((float(torch.rand(())), np.random.rand(), birl.seeding.new_generator().random()))
    assert numbers[0] == numbers[1]


@dataclass
class PretrainedFactory(EncoderFactory, type="pretrained_of_test_round_trip"):
    """Loads weights of its own, as encoders of pre-trained backbones do."""

    def create(self, observation_shape: Any) -> nn.Module:
        encoder = Flat(observation_shape[0], 4)
        weights = {"layer.weight": np.ones((4, observation_shape[0]), np.float32), "layer.bias": np.ones(4, np.float32)}
        encoder.load_state_dict({name: torch.from_numpy(each) for name, each in weights.items()})
        return encoder


def test_encoders_that_load_weights_are_saved_and_loaded_without_a_warning(tmp_path: Path) -> None:
    algorithm = build_algorithm(DQNConfig(encoder_factory=PretrainedFactory()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algorithm.save(tmp_path / "model.d3")
        again = birl.load_learnable(tmp_path / "model.d3")
    loaded = [tensor for name, tensor in again.nets.state_dict().items() if name.endswith("layer.weight")]
    assert loaded and all(tensor.eq(1).all() for tensor in loaded)


@dataclass
class BackboneFactory(EncoderFactory, type="backbone_of_test_round_trip"):
    """Reads a file of weights."""

    file: str = "backbone.npy"

    def create(self, observation_shape: Any) -> nn.Module:
        return Flat(observation_shape[0], len(np.load(self.file)))


def test_a_factory_whose_file_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("backbone.npy", np.ones(4))
    build_algorithm(DQNConfig(encoder_factory=BackboneFactory())).save("model.d3")
    Path("backbone.npy").unlink()
    with pytest.raises(
        FileError, match=r"the factory BackboneFactory, .* FileNotFoundError: .*'backbone\.npy'"
    ) as caught:
        birl.load_learnable("model.d3")
    assert "damaged" not in str(caught.value)
    Path("backbone.npy").write_bytes(b"")
    with pytest.raises((FileError, ConfigError), match="the factory BackboneFactory, .* raised EOFError") as caught:
        birl.load_learnable("model.d3")


def test_a_folder_names_its_newest_model(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="it is a folder; give a file in it$"):
        birl.load_learnable(tmp_path)
    build_algorithm(DQNConfig()).save(tmp_path / "model_20.d3")
    with pytest.raises(FileError, match=r"give a file in it, such as .*model_20\.d3, its newest model"):
        birl.load_learnable(tmp_path)
