"""Devices by the names that users give them."""

from __future__ import annotations

import pytest
import torch

from birl.algos import DQNConfig
from birl.devices import resolve_device
from birl.errors import ConfigError
from birl.ope import DiscreteFQE


@pytest.mark.parametrize("device", [None, False, "cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)])
def test_one_device_has_one_name(device: bool | str | None) -> None:
    assert resolve_device(device) == torch.zeros(1).device == torch.device("cpu")


def test_unusable_devices_are_refused() -> None:
    for device in ("gpu", "cuda:99", 1.5):
        with pytest.raises(ConfigError, match="cannot be used"):
            resolve_device(device)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["gpu", "GPU:0", "cuda:99", "xla", "cuda0"])
@pytest.mark.parametrize("count", [0, 2])
def test_the_message_names_cuda_and_no_list_of_what_pytorch_could_be_built_with(
    device: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ConfigError, match="^device .* cannot be used: .*Devices that .*: .*'cuda'") as error:
        resolve_device(device)
    assert len(str(error.value)) < 300 and "hpu" not in str(error.value)


def test_a_policy_is_on_the_device_of_its_evaluation_whatever_its_name() -> None:
    policy = DQNConfig().create(device="cpu")
    policy.create_impl((3,), 2)
    assert DiscreteFQE(policy, device="cpu:0").torch_device == policy.torch_device
