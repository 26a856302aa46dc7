"""Recurrent policies leave birl with their states as inputs and outputs, and act over episodes as birl does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from birl import algos
from birl.acting import export
from birl.acting.export import export_policy
from birl.errors import ConfigError, UnsupportedError
from birl.models import GRUEncoderFactory, LSTMEncoderFactory, VectorEncoderFactory
from birl.preprocessing import MinMaxActionScaler, StandardObservationScaler
from birl.testing import check_algorithm
from birl.testing.contract.acting import open_export
from tests.algorithms import CONTRACT_FIELDS, GRU, LSTM, ROWS, WHOLE, Row, fill
from tests.tiers import slow_but

SUFFIXES = (".pt", ".onnx", ".pt2")
SMALL = VectorEncoderFactory(hidden_units=[6])
OF_SINGLE_STATES = {"A2CGAIL", "AWR", "DiscreteAWR", "GAIL", "TRPOGAIL", "NStepDQN", "PRDC"}  # they, or a part of them
ROWS_WITH_MEMORY = [row for row in ROWS if row.name not in OF_SINGLE_STATES and not row.config.algorithm.acts.aims]


def check_row(row: Row, encoder: Any, name: str) -> None:
    variant = row.contract[0]
    config = fill(row.config, encoder, CONTRACT_FIELDS, {"batch_size": 8, "sequence_length": 4}, variant.fields)
    assert check_algorithm(config, action_size=3, discrete_action=variant.discrete, checks=[name]) == [name]


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[] if row.name in WHOLE else [pytest.mark.slow], id=row.name) for row in ROWS_WITH_MEMORY],
)
def test_every_algorithm_exports_its_memory(row: Row) -> None:
    check_row(row, LSTM, "export_torchscript")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["export_onnx", "export_torch"])
@pytest.mark.parametrize("encoder", [GRU, LSTM], ids=["gru", "lstm"])
@pytest.mark.parametrize("row", ROWS_WITH_MEMORY, ids=lambda row: row.name)
def test_every_algorithm_exports_its_memory_in_other_formats(row: Row, encoder: Any, name: str) -> None:
    check_row(row, encoder, name)


# -- in environments ---------------------------------------------------------------------------------------------------

CARTPOLE = {"observation_scaler": StandardObservationScaler([0.1] * 4, [0.5, 1.0, 0.1, 1.0])}
PENDULUM = {
    "observation_scaler": StandardObservationScaler([0.1] * 3, [0.7, 0.7, 3.0]),
    "action_scaler": MinMaxActionScaler([-2.0], [2.0]),
}
GATED, LONG = GRUEncoderFactory(16, [16]), LSTMEncoderFactory(16, [16])
ACTING = {
    "DQN, LSTM in ONNX": (algos.DQNConfig(encoder_factory=LONG, **CARTPOLE), ".onnx"),
    "SAC, LSTM in ONNX": (algos.SACConfig(actor_encoder_factory=LONG, **PENDULUM), ".onnx"),
    "PPO, GRU in torch.export": (algos.PPOConfig(actor_encoder_factory=GATED, **CARTPOLE), ".pt2"),
    "TD3, GRU in TorchScript": (algos.TD3Config(actor_encoder_factory=GATED, **PENDULUM), ".pt"),
}


@pytest.mark.parametrize("name", slow_but(["DQN, LSTM in ONNX", "TD3, GRU in TorchScript"], ACTING))
def test_an_export_acts_as_birl_does_for_200_steps(name: str, tmp_path: Path) -> None:
    config, suffix = ACTING[name]
    discrete = config.action_scaler is None
    env = gymnasium.make("CartPole-v1") if discrete else gymnasium.make("Pendulum-v1", max_episode_steps=60)
    algorithm = config.create()
    algorithm.build_with_env(env)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in algorithm.nets.parameters():  # so that actions depend on what was before
            parameter.normal_(0, 0.7) if parameter.dim() > 1 else parameter.zero_()
    algorithm.save_policy(tmp_path / f"policy{suffix}")
    run, sizes = open_export(tmp_path / f"policy{suffix}")
    start = {key: np.zeros((1, size), np.float32) for key, size in sizes.items()}

    actor, state = algorithm.actor(greedy=True), start
    observation, _ = env.reset(seed=0)
    begins, ends, rows = True, 0, []
    for _ in range(200):
        x = np.asarray(observation, np.float32)[None]
        state = start if begins else state
        expected = actor(x, np.array([begins]), np.zeros(1, np.float32))
        action, *after = run({"input_0": x, **state})
        state = dict(zip(sizes, after, strict=True))
        rows.append((expected[0], action[0], algorithm.predict(x)[0]))  # which sees each as the start of an episode
        assert action.dtype == expected.dtype and action.shape == expected.shape
        observation, _, terminated, truncated, _ = env.step(expected[0])
        begins = terminated or truncated
        if begins:
            observation, _ = env.reset()
            ends += 1
    expected, action, forgetful = (np.array(column) for column in zip(*rows, strict=True))
    assert ends >= 3
    np.testing.assert_allclose(action, expected, rtol=0, atol=0 if discrete else 1e-5)
    assert np.mean(~np.isclose(forgetful, expected, atol=1e-2)) > 0.1  # the memory is needed


# -- the file ----------------------------------------------------------------------------------------------------------


class Remembering(nn.Module):
    """Two memories behind two observations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.GRUCell(4, 5), nn.GRUCell(5, 3)

    def forward(self, observation: Any, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        first = self.first(torch.cat([observation["a"].float(), observation["b"]], -1), state["first"])
        second = self.second(first, state["second"])
        return 2 * second[:, :2], {"second": second, "first": first}


EXAMPLE = {"a": torch.zeros(1, 3, dtype=torch.uint8), "b": torch.zeros(1, 1)}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_states_follow_observations_and_actions(suffix: str, tmp_path: Path) -> None:
    policy, path = Remembering(), tmp_path / f"policy{suffix}"
    export_policy(policy, EXAMPLE, path, states={"first": 5, "second": 3})
    run, sizes = open_export(path)
    assert list(sizes.items()) == [("state_first", 5), ("state_second", 3)]
    for rows in (1, 6):
        a, b = torch.randint(0, 255, (rows, 3), dtype=torch.uint8), torch.randn(rows, 1)
        state = {"first": torch.randn(rows, 5), "second": torch.randn(rows, 3)}
        action, after = policy({"a": a, "b": b}, state)
        given = {"input_0": a, "input_1": b, **{f"state_{name}": each for name, each in state.items()}}
        got = run({name: each.numpy() for name, each in given.items()})
        for each, right in zip(got, (action, after["first"], after["second"]), strict=True):
            np.testing.assert_allclose(each, right.detach().numpy(), atol=1e-5)
    if suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs = {each.name: (each.shape[1:], each.type) for each in session.get_inputs()}
        assert inputs["state_first"] == ([5], "tensor(float)") and inputs["state_second"] == ([3], "tensor(float)")
        (batch,) = {each.shape[0] for each in (*session.get_inputs(), *session.get_outputs())}
        assert isinstance(batch, str)
        assert [each.name for each in session.get_outputs()] == ["output_0", "next_state_first", "next_state_second"]
        assert json.loads(session.get_modelmeta().custom_metadata_map["states"]) == sizes


def test_an_export_that_differs_after_the_first_step_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export_of(change: Any) -> Any:
        return lambda flat, leaves: (b"data", lambda *given: change(flat, *given))

    def forgets(flat: nn.Module, a: Tensor, b: Tensor, *states: Tensor) -> Any:
        return flat(a, b, *map(torch.zeros_like, states))

    def gives_another_state(flat: nn.Module, *given: Tensor) -> Any:
        action, first, second = flat(*given)
        return action, first[:, :1], second

    def gives_none(flat: nn.Module, *given: Tensor) -> Any:
        return flat(*given)[0]

    path = tmp_path / "policy.pt"
    for change, message in (
        (forgets, "gives other actions than the policy"),
        (gives_another_state, r"gives torch.float32 \(1, 2\) and torch.float32 \(1, 1\) and .* the policy .* \(1, 5\)"),
        (gives_none, r"gives torch.float32 \(1, 2\) for a batch of 1, the policy .* and "),
    ):
        monkeypatch.setitem(export._FORMATS, ".pt", export_of(change))
        with pytest.raises(UnsupportedError, match=message):
            export_policy(Remembering(), EXAMPLE, path, states={"first": 5, "second": 3})
        assert not path.exists()
    monkeypatch.setitem(export._FORMATS, ".pt", export_of(lambda flat, *given: flat(*given)))
    export_policy(Remembering(), EXAMPLE, path, states={"first": 5, "second": 3})
    assert path.read_bytes() == b"data"


# -- which states ------------------------------------------------------------------------------------------------------


def built(config: Any, **kind: Any) -> Any:
    algorithm = config.create()
    algorithm.create_impl((3,), 2, **kind)
    return algorithm


def test_only_what_acting_needs_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    built(algos.PPOConfig(actor_encoder_factory=GRU, value_encoder_factory=GRU), discrete_action=True).save_policy(path)
    assert open_export(path)[1] == {"state_actor": 6}
    built(algos.BEARConfig(actor_encoder_factory=SMALL, critic_encoder_factory=LSTM)).save_policy(path)
    assert open_export(path)[1] == {"state_critic": 24}


def test_a_memory_that_does_not_act_leaves_the_export_as_it_is(tmp_path: Path) -> None:
    sac = built(algos.SACConfig(actor_encoder_factory=SMALL, critic_encoder_factory=LSTM))
    sac.save_policy(tmp_path / "policy.pt")
    run, sizes = open_export(tmp_path / "policy.pt")
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    (action,) = run({"input_0": x})
    assert sizes == {}
    np.testing.assert_allclose(action, sac.predict(x), atol=1e-5)


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'\.pth'.*\.pt .*\.onnx .*\.pt2"):
        built(algos.DQNConfig(encoder_factory=GRU)).save_policy(tmp_path / "policy.pth")
    assert not list(tmp_path.iterdir())
