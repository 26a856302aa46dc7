"""States are set all or not at all, and compared before; checkpoints of an attacker's choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.errors import BirlError, CorruptFileError, ResumeError
from birl.files import load_archive, save_archive
from birl.files.state_restore import compare_states, restore_on_error, restore_states
from birl.types import State
from files import fuzzing


class Holder:
    """A part that takes only ints."""

    def __init__(self, value: int) -> None:
        self.value = value

    def get_state(self) -> State:
        return {"value": self.value}

    def set_state(self, state: State) -> None:
        self.value = state["value"]
        if state["value"] == 666:
            raise KeyError("a stray error")


@pytest.mark.parametrize("bad", [{"value": 666}, {"value": "x"}, {}, 3, {"value": np.zeros(2)}, {"value": True}])
def test_all_parts_are_set_or_none(bad: Any) -> None:
    one, two = Holder(1), Holder(2)
    with pytest.raises(CorruptFileError, match="two"), restore_on_error({"one": one, "two": two}):
        restore_states({"one": one, "two": two}, {"one": {"value": 3}, "two": bad}, "file")
    assert (one.value, two.value) == (1, 2)
    restore_states({"one": one, "two": two}, {"one": {"value": 3}}, "file")
    assert (one.value, two.value) == (3, 2)


def test_users_states_are_not_compared() -> None:
    part = Holder(1)
    restore_states({"evaluator x": part}, {"evaluator x": {"value": "anything"}}, "file")
    assert part.value == "anything"
    with pytest.raises(CorruptFileError, match="the state of its evaluator x cannot be used .KeyError"):
        restore_states({"evaluator x": part}, {"evaluator x": {}}, "file")


OWN: State = {"a": 1, "b": 0.5, "c": "x", "d": None, "e": [1], "f": {"g": torch.zeros(2)}, "h": np.zeros((2, 1))}


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"a": np.int64(5), "b": 1, "c": "", "d": [1.0], "e": (), "more": 3},
        {"f": {"g": torch.ones(2)}, "h": np.ones((5, 3))},
        {"b": None},
        {"f": {"other": 3}},
    ],
)
def test_states_that_vary(same: State) -> None:
    compare_states(same, OWN, "state", "file")


@pytest.mark.parametrize(
    "other",
    [
        *({"a": 1.0}, {"a": True}, {"a": []}, {"b": "x"}, {"c": 1}, {"e": {}}, {"f": None}, {"f": torch.zeros(2)}),
        *({"f": {"g": torch.zeros(3)}}, {"f": {"g": torch.zeros(2, dtype=torch.int64)}}, {"f": {"g": np.zeros(2)}}),
        *({"h": np.zeros(2)}, {"h": np.zeros((2, 1), np.int8)}, {"h": None}, 3, None, []),
    ],
)
def test_states_that_do_not_fit(other: Any) -> None:
    with pytest.raises(CorruptFileError, match="must be like"):
        compare_states(other, OWN, "state", "file")


def test_values_that_are_always_set() -> None:
    compare_states({"f": {}, "b": 3}, OWN, "state", "file", complete=True)
    with pytest.raises(CorruptFileError, match=r"state\.b is None; it must be like"):
        compare_states({"b": None}, OWN, "state", "file", complete=True)


# -- checkpoints -------------------------------------------------------------------------------------------------


def altered(folder: Path, change: Any) -> None:
    path = folder / "checkpoint.d3c"
    settings, state = load_archive(path, "checkpoint")
    change(state)
    save_archive(path, "checkpoint", settings, state)


def cut_off(folder: Path, train: Any = fuzzing.offline) -> None:
    fuzzing.cut(train)(folder)


@pytest.mark.parametrize("value", ["../../elsewhere", "/tmp/elsewhere", ""])
def test_a_checkpoint_cannot_name_another_folder(value: str, tmp_path: Path) -> None:
    cut_off(tmp_path)
    altered(tmp_path, lambda state: state["session"].update(experiment_name=value))
    with pytest.raises(CorruptFileError, match="use a copy"):
        fuzzing.offline(tmp_path)


def test_a_checkpoint_cannot_cut_other_files(tmp_path: Path) -> None:
    cut_off(tmp_path / "run")
    precious = tmp_path / "precious.csv"
    precious.write_text("much work")
    for name in ("../../precious.csv", str(precious), "params.json", "model_8.d3"):
        (tmp_path / "copy").mkdir(exist_ok=True)
        data = (tmp_path / "run" / "checkpoint.d3c").read_bytes()
        altered(tmp_path / "run", lambda state, name=name: state["session"]["logger"]["bytes"].update({name: 0}))
        before = (tmp_path / "run" / "run" / "loss.csv").read_bytes()
        with pytest.raises(CorruptFileError, match="has logs"):
            fuzzing.offline(tmp_path / "run")
        assert precious.read_text() == "much work"
        assert (tmp_path / "run" / "run" / "loss.csv").read_bytes() == before
        (tmp_path / "run" / "checkpoint.d3c").write_bytes(data)
    fuzzing.offline(tmp_path / "run")


def scalers(state: State) -> State:
    return state["parts"]["learner"]["scalers"]


CHANGES: dict[str, Any] = {
    "no step": lambda state: state["session"].pop("step"),
    "negative steps": lambda state: state["session"].update(step=-1),
    "more steps in epochs than steps": lambda state: state["session"].update(closed=11),
    "steps of another type": lambda state: state["session"].update(step="8"),
    "no parts": lambda state: state.pop("parts"),
    "parts of another type": lambda state: state.update(parts=[1]),
    "a part of another type": lambda state: state["parts"].update(learner=3),
    "a generator that overflows": lambda state: state["random"]["numpy"].update(position=10**30),
    "averages of text": lambda state: state["session"]["averages"]["count"].update(loss="x"),
    "averages of arrays": lambda state: state["session"]["averages"]["sums"].update(x=torch.zeros(3)),
    "a scaler of another shape": lambda state: scalers(state)["observation_scaler"].update(mean=[1.0]),
    "parameters of no scaler": lambda state: scalers(state).update(optim_factory={}),
    "gradients without names": lambda state: state["parts"].update(gradients={"critic": {}}),
    "no description": lambda state: state["session"].update(description=None),
    "no reason": lambda state: state["session"].update(ended=None),
    "no logger": lambda state: state["session"].pop("logger"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_checkpoint_that_does_not_fit_leaves_everything_as_it_was(change: Any, tmp_path: Path) -> None:
    cut_off(tmp_path)
    altered(tmp_path, change)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    algorithm = fuzzing.scaled()
    algorithm.build_with_dataset(fuzzing.example())
    algorithm.retune(learning_rate=0.5)
    before, drawn = fuzzing.content_of(algorithm.get_state()), np.random.get_state()[1].copy()
    with pytest.raises(BirlError) as caught:
        algorithm.fit(
            fuzzing.example(), fuzzing.STEPS, log_gradients=True, **fuzzing.options(tmp_path, logs=True, stop=False)
        )
    assert not isinstance(caught.value, ResumeError)
    assert fuzzing.content_of(algorithm.get_state()) == before
    np.testing.assert_array_equal(np.random.get_state()[1], drawn)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_actions_that_no_network_has_are_refused(tmp_path: Path) -> None:
    cut_off(tmp_path, fuzzing.online)
    altered(tmp_path, lambda state: state["parts"]["buffer"]["storage"]["columns"]["action"].fill(99))
    with pytest.raises(BirlError, match="99"):
        fuzzing.online(tmp_path)


def test_rollouts_that_no_environment_makes_are_refused(tmp_path: Path) -> None:
    cut_off(tmp_path, fuzzing.on_policy)
    good = (tmp_path / "checkpoint.d3c").read_bytes()
    for name in ("observation", "reward", "is_first", "action"):  # two rows that fit together, but not with new ones

        def widen(state: State, name: str = name) -> None:
            columns = state["parts"]["rollout"]["columns"]
            columns[name] = np.concatenate([columns[name][..., None]] * 2, -1)

        altered(tmp_path, widen)
        with pytest.raises(CorruptFileError, match=name):
            fuzzing.on_policy(tmp_path)
        (tmp_path / "checkpoint.d3c").write_bytes(good)
    altered(tmp_path, lambda state: state["parts"]["rollout"]["columns"]["extra"]["policy_action"].fill(99))
    with pytest.raises(BirlError, match="99"):
        fuzzing.on_policy(tmp_path)
    altered(tmp_path, lambda state: state["parts"]["rollout"].update(rows=5))
    with pytest.raises(BirlError, match="rollout|shape|99"):
        fuzzing.on_policy(tmp_path)


def test_numbers_of_an_optimiser_and_a_collector_are_there(tmp_path: Path) -> None:
    algorithm = fuzzing.dqn()
    algorithm.create_impl((2,), 2)
    algorithm.save_model(tmp_path / "x")
    config, state = load_archive(tmp_path / "x", "parameters")
    del state["optimizers"]["critic"]["param_groups"]["0"]["lr"]
    save_archive(tmp_path / "x", "parameters", config, state)
    with pytest.raises(CorruptFileError, match="lr is missing"):
        algorithm.load_model(tmp_path / "x")
    assert fuzzing.run(246872)[0] == "error"  # a checkpoint whose collector has None steps to count


def test_parameters_that_do_not_fit_leave_the_others(tmp_path: Path) -> None:
    algorithm = fuzzing.dqn()
    algorithm.create_impl((2,), 2)
    algorithm.save_model(tmp_path / "x")
    config, state = load_archive(tmp_path / "x", "parameters")
    state["schedulers"] = 3
    state["optimizers"]["critic"]["param_groups"]["0"]["lr"] = "x"
    state["nets"] = {name: tensor + 1 for name, tensor in state["nets"].items()}
    save_archive(tmp_path / "x", "parameters", config, state)
    before = fuzzing.content_of(algorithm.get_state())
    with pytest.raises(CorruptFileError):
        algorithm.load_model(tmp_path / "x")
    assert fuzzing.content_of(algorithm.get_state()) == before


@pytest.mark.parametrize("given", [None, 3, b"x", []])
def test_what_is_no_file_is_refused(given: Any) -> None:
    algorithm = fuzzing.dqn()
    algorithm.create_impl((2,), 2)
    reads = (
        birl.load_learnable,
        algorithm.load_model,
        type(algorithm).from_json,
        birl.compat.d3rlpy_models.read_d3rlpy,
    )
    for use in (*reads, algorithm.save, algorithm.save_model):
        with pytest.raises(birl.errors.ConfigError, match="give a path"):
            use(given)


def test_networks_of_20_000_layers_are_refused_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    original = torch.nn.Linear.__init__
    monkeypatch.setattr(torch.nn.Linear, "__init__", lambda *a, **k: (made.append(1), original(*a, **k))[1])
    fuzzing.save_model(tmp_path)
    config, state = load_archive(tmp_path / "file", "model")
    config["config"]["params"]["encoder_factory"]["params"]["hidden_units"] = [4] * 20_000
    save_archive(tmp_path / "deep", "model", config, state)
    (tmp_path / "params.json").write_text(json.dumps(config))
    for read, count in ((birl.load_learnable, 500), (birl.algos.DQN.from_json, 6_000)):
        made.clear()
        with pytest.raises(CorruptFileError, match="networks of more than"):
            read(tmp_path / ("deep" if read is birl.load_learnable else "params.json"))
        assert 0 < len(made) < count
    birl.load_learnable(tmp_path / "file")


def test_a_missing_description_is_reported(tmp_path: Path) -> None:
    with pytest.raises(birl.errors.FileError, match="check the path"):
        birl.algos.DQN.from_json(tmp_path / "params.json")


# -- folders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.update(end=[99]), "the rows of the saved steps go from .0. to .99. with a capacity of 64"),
        (lambda index: index.update(end=[-1]), "cannot be"),
        (lambda index: index.update(start=[3]), "cannot be"),
        (lambda index: index.update(capacity=10**12), "damaged"),
        (lambda index: index.update(lanes=10**10), "10000000000 environments"),
        (lambda index: index.update(tail=[[0, 0]]), "have the flags"),
        (lambda index: index.update(open=[3]), "open is"),
        (lambda index: index["leaves"].update(x=[[10**12], "<f8"]), "damaged"),
        (lambda index: index["leaves"].update(action=[[1], "O"]), "damaged"),
    ],
)
def test_the_index_of_a_folder_is_checked_before_anything_is_written(change: Any, message: str, tmp_path: Path) -> None:
    fuzzing.save_folder(tmp_path)
    path = tmp_path / "data" / "storage.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(CorruptFileError, match=message):
        fuzzing.open_folder(tmp_path)
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before


def test_a_column_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    fuzzing.save_folder(tmp_path)
    flags = tmp_path / "data" / "column_flags.64.npy"
    flags.rename(tmp_path / "precious.npy")
    flags.symlink_to(tmp_path / "precious.npy")
    before = (tmp_path / "precious.npy").read_bytes()
    with pytest.raises(CorruptFileError, match="is a link"):
        fuzzing.open_folder(tmp_path)
    assert (tmp_path / "precious.npy").read_bytes() == before
