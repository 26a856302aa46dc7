"""Exports behave like the policy, carry no traces of where they were made, and are written whole or not at all."""

from __future__ import annotations

import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from birl.acting import export
from birl.acting.export import export_policy
from birl.errors import ConfigError, MissingExtraError, UnsupportedError, WriteError
from birl.preprocessing import MinMaxActionScaler, StandardObservationScaler

SUFFIXES = (".pt", ".onnx", ".pt2")


class Policy(nn.Module):
    """Scaled observations in, scaled (or integer) actions out."""

    def __init__(self, discrete: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        self.observation_scaler = StandardObservationScaler([0.5] * 4, [2.0] * 4)
        self.action_scaler = MinMaxActionScaler([-2.0, -1.0], [2.0, 3.0])
        self.discrete = discrete

    def forward(self, observation: Any) -> Tensor:
        if isinstance(observation, dict):
            observation = torch.cat([observation["a"].float(), observation["b"][0]], dim=-1)
        y = self.net(self.observation_scaler.transform(observation))
        return y.argmax(-1) if self.discrete else self.action_scaler.reverse_transform(y.tanh())


def runner(path: Path) -> Any:
    """What a user does with the file, without birl."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

        def run(*inputs: Tensor) -> Tensor:
            feed = {f"input_{i}": x.numpy() for i, x in enumerate(inputs)}
            return torch.from_numpy(session.run(["output_0"], feed)[0])

        return run
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(path) if path.suffix == ".pt" else torch.export.load(path).module()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("discrete", [False, True])
def test_exports_act_like_the_policy_for_every_batch_size(suffix: str, discrete: bool, tmp_path: Path) -> None:
    policy, path = Policy(discrete), tmp_path / f"policy{suffix}"
    export_policy(policy, torch.zeros(1, 4), path)
    run = runner(path)
    policy.eval()
    for size in (1, 2, 64):
        x = 3 * torch.randn(size, 4)
        action = run(x)
        assert not action.requires_grad  # who deploys a policy does not train it
        torch.testing.assert_close(action, policy(x).detach())
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_trees_become_several_inputs(suffix: str, tmp_path: Path) -> None:
    policy, path = Policy(), tmp_path / f"policy{suffix}"
    example = {"a": torch.zeros(1, 3, dtype=torch.uint8), "b": (torch.zeros(1, 1),)}
    export_policy(policy, example, path)
    policy.eval()
    a, b = torch.randint(0, 255, (5, 3), dtype=torch.uint8), torch.randn(5, 1)
    torch.testing.assert_close(runner(path)(a, b), policy({"a": a, "b": (b,)}).detach())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_policy_and_the_generators_are_left_as_they_were(suffix: str, tmp_path: Path) -> None:
    policy = Policy()
    policy.train()
    policy.net[0].eval()
    before = [module.training for module in policy.modules()]
    rng = torch.get_rng_state()
    export_policy(policy, torch.zeros(1, 4), tmp_path / f"policy{suffix}")
    assert [module.training for module in policy.modules()] == before
    assert torch.equal(torch.get_rng_state(), rng)
    x = torch.randn(3, 4)
    assert policy(x).requires_grad  # nothing that tracing made is left behind in the scalers
    policy.eval()
    torch.testing.assert_close(policy(x), policy(x))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_exports_do_not_tell_where_they_were_made(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"policy{suffix}"
    export_policy(Policy(), torch.zeros(1, 4), path)
    contents = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            contents += b"".join(archive.read(entry) for entry in archive.infolist())
    for source in (export.__file__, __file__, torch.__file__):
        assert str(Path(source).parent).encode() not in contents


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_exports_that_differ_are_not_written(suffix: str, tmp_path: Path) -> None:
    class Random(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    path = tmp_path / f"policy{suffix}"
    path.write_bytes(b"before")
    with pytest.raises(UnsupportedError, match=f"{suffix} export .* other actions .* nothing was written"):
        export_policy(Random(), torch.zeros(1, 4), path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"before"]


def test_a_branch_on_values_is_found_out(tmp_path: Path) -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if len(x) == 1 else x + 1

    with pytest.raises(UnsupportedError, match="other actions"):
        export_policy(Branching(), torch.zeros(1, 4), tmp_path / "policy.pt")

    class OfOneSize(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(3, 4) if len(x) == 3 else x

    with pytest.raises(UnsupportedError, match="fails on a batch of 1"):
        export_policy(OfOneSize(), torch.zeros(1, 4), tmp_path / "policy.pt")
    assert list(tmp_path.iterdir()) == []


def test_one_tie_is_no_difference_but_two_are(tmp_path: Path) -> None:
    class Integers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.argmax(-1)

    def off_by(count: int) -> Any:
        def make(flat: nn.Module, leaves: Any) -> Any:
            def run(*observations: Any) -> Tensor:
                action = flat(*observations)
                action[: count if len(action) > count else 0] += 1
                return action

            return b"data", run

        return make

    formats = pytest.MonkeyPatch()
    try:
        for count, passes in ((1, True), (2, False)):
            formats.setitem(export._FORMATS, ".pt", off_by(count))
            path = tmp_path / f"{count}.pt"
            if passes:
                export_policy(Integers(), torch.zeros(1, 4), path)
            else:
                with pytest.raises(UnsupportedError):
                    export_policy(Integers(), torch.zeros(1, 4), path)
            assert path.exists() is passes
    finally:
        formats.undo()


def test_what_cannot_be_traced_is_a_typed_error(tmp_path: Path) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("inside")

    with pytest.raises(UnsupportedError, match=r"cannot be exported as \.pt: .*inside"):
        export_policy(Broken(), torch.zeros(1, 4), tmp_path / "policy.pt")


@pytest.mark.parametrize("name", ["policy", "policy.pth", "policy.onnx.gz"])
def test_unknown_suffixes_list_the_known(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.pt .*\.onnx .*\.pt2"):
        export_policy(Policy(), torch.zeros(1, 4), tmp_path / name)


def test_missing_extra_and_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WriteError, match="its folder does not exist"):
        export_policy(Policy(), torch.zeros(1, 4), tmp_path / "none" / "policy.pt")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"birl\[onnx\]"):
        export_policy(Policy(), torch.zeros(1, 4), tmp_path / "policy.onnx")


def test_onnx_names_and_types(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    export_policy(Policy(), torch.zeros(1, 4), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,), (action,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape[1:], action.name) == ("input_0", [4], "output_0")
    assert isinstance(given.shape[0], str)
    result = session.run(None, {"input_0": np.zeros((1, 4), np.float32)})
    assert result[0].shape == (1, 2) and result[0].dtype == np.float32
