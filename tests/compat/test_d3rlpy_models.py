"""Models and data that d3rlpy 2.8.1 wrote (``tests/data/d3rlpy/write.py``), and pickles that it did not write."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl.algos import DQN, SAC, GreedyTransformerActionSampler
from birl.cli import main
from birl.compat.d3rlpy_models import CONVERTIBLE, read_d3rlpy
from birl.dataset import MDPDataset, ReplayBuffer
from birl.errors import BirlError, CorruptFileError, FileError, ForeignFileError, UnsupportedError
from birl.types import ActionSpace

DATA = Path(__file__).parents[1] / "data" / "d3rlpy"
INPUTS = np.load(DATA / "data.npz")
UNLIKE = ("bcq", "plas", "plas_with_perturbation")
MODELS = sorted(path.stem for path in DATA.glob("*.d3") if path.stem not in UNLIKE)
RANDOM = ("crr", "bear")  # d3rlpy samples these actions each time
TRANSFORMERS = ("decision_transformer", "global_transformer", "discrete_decision_transformer", "tacr")


def inputs(name: str) -> Any:
    return INPUTS["images" if name.startswith("pixels") else "observations"]


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_those_of_d3rlpy(name: str, tmp_path: Path) -> None:
    expected = np.load(DATA / f"{name}.npz")
    read_d3rlpy(DATA / f"{name}.d3").save(tmp_path / "new.d3")
    algorithm = birl.load_learnable(tmp_path / "new.d3")
    if name in TRANSFORMERS:
        sampler = GreedyTransformerActionSampler() if name.startswith("discrete") else None
        actor = algorithm.as_stateful_wrapper(target_return=5.0, action_sampler=sampler)
        steps = zip(INPUTS["observations"], INPUTS["rewards"], strict=True)
        actions = np.array([actor.predict(observation, float(reward)) for observation, reward in steps])
    else:
        actions = algorithm.predict(inputs(name))
    if name not in RANDOM:
        np.testing.assert_allclose(actions, expected["actions"], atol=1e-5)
    if expected["values"].any():
        discrete = algorithm.spec.actions.discrete
        taken = INPUTS["discrete"] if discrete else INPUTS["continuous"] / (1 if name == "sac" else 2)
        values = algorithm.predict_value(inputs(name), taken)
        np.testing.assert_allclose(values.reshape(-1), expected["values"].reshape(-1), atol=1e-5)


@pytest.mark.parametrize(("name", "log_std"), [("iql", [-1.4900, -1.4904]), ("awac", [-2.9913, -2.9915])])
def test_standard_deviations_are_those_of_d3rlpy(name: str, log_std: list[float]) -> None:
    actor = read_d3rlpy(DATA / f"{name}.d3").nets.actor
    torch.testing.assert_close(actor.log_std.data, torch.tensor(log_std), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", UNLIKE)
def test_fault_10_models_that_would_act_otherwise_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="omits the tanh of their decoder"):
        read_d3rlpy(DATA / f"{name}.d3")


def test_a_model_is_not_written_over_its_source(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "dqn.d3"
    path.write_bytes((DATA / "dqn.d3").read_bytes())
    assert main(["convert", str(path), str(path)]) == 1
    assert "give NEW another name" in capsys.readouterr().err
    assert path.read_bytes() == (DATA / "dqn.d3").read_bytes()


def test_every_algorithm_has_a_model_here() -> None:
    assert {type(read_d3rlpy(DATA / f"{name}.d3")).__name__ for name in MODELS} == set(CONVERTIBLE)


def test_settings_scalers_and_targets() -> None:
    sac, dqn = read_d3rlpy(DATA / "sac.d3"), read_d3rlpy(DATA / "dqn_tuned.d3")
    assert isinstance(sac, SAC) and isinstance(dqn, DQN)
    config = sac.config
    assert (config.batch_size, config.tau, config.n_critics) == (8, 0.005, 2)
    assert config.actor_encoder_factory.hidden_units == [8, 8]
    assert config.actor_optim_factory.lr_scheduler_factory is None
    assert config.reward_scaler is None and config.action_scaler.built and config.observation_scaler.built
    assert dqn.config.encoder_factory.use_layer_norm and dqn.config.encoder_factory.activation == "tanh"
    assert dqn.config.reward_scaler.std > 0
    # after 20 soft updates a target is near its source and not the same
    source, target = (
        torch.cat([leaf.flatten() for leaf in getattr(sac.nets, name).parameters()])
        for name in ("critic", "critic_target")
    )
    assert 0 < (source - target).abs().max() < 0.1
    assert sac.nets.temperature.raw.item() != 0  # twenty updates from log 1


@pytest.mark.parametrize("name", ["bear", "decision_transformer", "discrete_bcq", "dqn", "pixels", "tacr"])
def test_training_goes_on(name: str, tmp_path: Path) -> None:
    algorithm = read_d3rlpy(DATA / f"{name}.d3")
    data = np.load(DATA / "dataset.npz")
    actions = data["discrete"] if algorithm.spec.actions.discrete else data["continuous"] / 2
    observations = data["images"] if name == "pixels" else data["vectors"]
    dataset = MDPDataset(observations, actions, data["rewards"], np.arange(60) % 12 == 11)
    before = {key: value.clone() for key, value in algorithm.nets.state_dict().items()}
    options = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}
    algorithm.fit(dataset, n_steps=2, n_steps_per_epoch=2, **options)
    assert any(not torch.equal(value, before[key]) for key, value in algorithm.nets.state_dict().items())


def test_command(tmp_path: Path, capsys: Any) -> None:
    assert main(["convert", str(DATA / "dqn.d3"), str(tmp_path / "new.d3")]) == 0
    assert "DQN" in capsys.readouterr().out
    assert isinstance(birl.load_learnable(tmp_path / "new.d3"), DQN)
    assert main(["convert", str(tmp_path / "new.d3"), str(tmp_path / "newer.d3")]) == 1
    assert "not a model that d3rlpy 2 saved" in capsys.readouterr().err
    assert not (tmp_path / "newer.d3").exists()


# -- files that are something else -----------------------------------------------------------------------------


def content(name: str = "dqn") -> dict[str, Any]:
    return pickle.loads((DATA / f"{name}.d3").read_bytes())  # noqa: S301


def write(path: Path, value: Any) -> Path:
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value))
    return path


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_outer_pickles_that_would_run_code(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for value in (Evil(mark), {**content(), "version": Evil(mark)}, {**content(), "more": [print]}, torch.nn.ReLU()):
        with pytest.raises(ForeignFileError, match="names .*refused, and no code has run"):
            read_d3rlpy(write(tmp_path / "x.d3", value))
    assert not mark.exists()
    with pytest.raises(ForeignFileError, match="posix.system"):
        read_d3rlpy(write(tmp_path / "x.d3", Evil(mark)))


def with_inner(data: bytes) -> dict[str, Any]:
    """The model with another ``data.pkl``."""
    old, new = zipfile.ZipFile(io.BytesIO(content()["torch"])), io.BytesIO()
    with zipfile.ZipFile(new, "w") as archive:
        for item in old.infolist():
            archive.writestr(item.filename, data if item.filename.endswith("data.pkl") else old.read(item))
    return {**content(), "torch": new.getvalue()}


def test_inner_pickles_that_would_run_code(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    programs = [
        pickle.dumps({"q_funcs": Evil(mark)}, 2),
        b"\x80\x02ctorch\nload\n(X\x01\x00\x00\x00atR.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor\n.",
        b"\x80\x02cbuiltins\ngetattr\n(ctorch\nFloatStorage\nX\x07\x00\x00\x00__str__tR.",
        b"\x80\x02ccollections\nOrderedDict.__init__\n.",
        b"\x80\x02X\x03\x00\x00\x00abcQ.",
    ]
    for program in programs:
        with pytest.raises((ForeignFileError, CorruptFileError)):
            read_d3rlpy(write(tmp_path / "x.d3", with_inner(program)))
    with pytest.raises(ForeignFileError, match=r"torch\.load.*refused"):
        read_d3rlpy(write(tmp_path / "x.d3", with_inner(programs[1])))
    assert not mark.exists()


def test_tensors_that_lie_about_their_size(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"q_funcs": {"0._fc.weight": torch.zeros(24)}}, buffer)  # as many as the first of the model
    with zipfile.ZipFile(buffer) as archive:
        program = archive.read("archive/data.pkl")
    assert b"K\x18\x85" in program  # the shape (24,)
    assert b"K\x01\x85" in program  # the stride (1,)
    for value in (b"\x00", b"\x03"):  # a stride of 0 would make many numbers out of few
        strides = program.replace(b"K\x18\x85", b"K\x7f\x85").replace(b"K\x01\x85", b"K" + value + b"\x85")
        with pytest.raises(CorruptFileError, match="does not fit"):
            read_d3rlpy(write(tmp_path / "x.d3", with_inner(strides)))
    for shape in (b"J\xff\xff\xff\x7f\x85", b"K\x7f\x85", b"J\xff\xff\xff\xff\x85"):
        with pytest.raises(CorruptFileError, match="damaged|does not fit|bytes|cannot have"):
            read_d3rlpy(write(tmp_path / "x.d3", with_inner(program.replace(b"K\x18\x85", shape))))


def test_pickles_cannot_change_what_they_name(tmp_path: Path) -> None:
    """BUILD sets attributes of the object on the stack, here of the stand-in for torch's function."""
    for state in (b"}X\x01\x00\x00\x00aK\x01s", b"N}X\x0c\x00\x00\x00__defaults__K\x01\x85s\x86"):
        program = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + state + b"b."
        with pytest.raises(CorruptFileError, match="damaged"):
            read_d3rlpy(write(tmp_path / "x.d3", with_inner(program)))
    read_d3rlpy(DATA / "dqn.d3")


def test_broken_and_boasting_models(tmp_path: Path) -> None:
    inner = torch.load(io.BytesIO(content()["torch"]), weights_only=False)
    next(iter(inner["q_funcs"].values())).fill_(float("nan"))
    buffer = io.BytesIO()
    torch.save(inner, buffer)
    with pytest.raises(CorruptFileError, match="holds NaN or infinity"):
        read_d3rlpy(write(tmp_path / "x.d3", {**content(), "torch": buffer.getvalue()}))
    text = content()["config"].replace("[8, 8]", "[4000000, 4000000]")  # would be 64 TB
    with pytest.raises(UnsupportedError, match="another form"):
        read_d3rlpy(write(tmp_path / "x.d3", {**content(), "config": text}))


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    whole = (DATA / "dqn.d3").read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        with pytest.raises((CorruptFileError, ForeignFileError)):
            read_d3rlpy(write(tmp_path / "x.d3", whole[:size]))
    partly = {"torch": b"", "config": "{}"}
    for value in (b"hello", partly, [1], {**content(), "config": "{}"}, {**content(), "torch": b"x"}):
        with pytest.raises((CorruptFileError, ForeignFileError)):
            read_d3rlpy(write(tmp_path / "x.d3", value))
    with pytest.raises(FileError, match="cannot read .*check the path"):
        read_d3rlpy(tmp_path / "nothing.d3")
    generator = np.random.default_rng(0)
    for _ in range(60):  # any damage is an error that says so, or leaves a model that works
        damaged = bytearray(whole)
        for place in generator.integers(0, len(whole), 3):
            damaged[place] = generator.integers(256)
        try:
            read_d3rlpy(write(tmp_path / "x.d3", bytes(damaged)))
        except birl.errors.BirlError:
            continue


def test_what_birl_does_not_have(tmp_path: Path) -> None:
    def changed(old: str, new: str) -> Path:
        text = content("cql")["config"].replace(old, new)
        assert text != content("cql")["config"]
        return write(tmp_path / "x.d3", {**content("cql"), "config": text})

    with pytest.raises(UnsupportedError, match="'a_later_one' cannot be converted; those of AWAC"):
        read_d3rlpy(changed('"type": "cql"', '"type": "a_later_one"'))
    with pytest.raises(UnsupportedError, match="a_later_option"):
        read_d3rlpy(changed('"max_q_backup": false', '"a_later_option": true'))
    assert read_d3rlpy(changed('"max_q_backup": false', '"max_q_backup": true')).config.max_q_backup
    soft = read_d3rlpy(changed('"soft_q_backup": false', '"soft_q_backup": true')).config
    assert soft.soft_q_backup
    default = read_d3rlpy(write(tmp_path / "x.d3", content("cql"))).config
    assert default.mode_q_backup and default.sum_proposals  # as in d3rlpy
    with pytest.raises(UnsupportedError, match="another form"):
        read_d3rlpy(changed("[8, 8]", "[8, 9]"))


@pytest.mark.parametrize(
    ("schedule", "params"),
    [("warmup", {"warmup_steps": 7}), ("cosine_annealing", {"T_max": 10, "eta_min": 0.0, "last_epoch": -1})],
)
def test_schedules(schedule: str, params: dict[str, Any], tmp_path: Path) -> None:
    value = content()
    config = json.loads(value["config"])
    factory = {"type": schedule, "params": params}
    config["config"]["params"]["optim_factory"]["params"] |= {"lr_scheduler_factory": factory, "clip_grad_norm": 0.5}
    dqn = read_d3rlpy(write(tmp_path / "x.d3", {**value, "config": json.dumps(config)}))
    found = dqn.config.optim_factory
    assert found.clip_grad_norm == 0.5
    assert found.lr_scheduler_factory.get_type() == schedule
    assert params.items() <= vars(found.lr_scheduler_factory).items()


# -- datasets of d3rlpy ----------------------------------------------------------------------------------------


def test_published_layout_2() -> None:
    data = np.load(DATA / "dataset.npz")
    with open(DATA / "vectors_v2.h5", "rb") as file:
        dataset = ReplayBuffer.load(file)
    info = dataset.dataset_info
    assert (info.action_space, info.action_size) == (ActionSpace.DISCRETE, 3)
    assert [len(episode) for episode in dataset.episodes] == [12] * 5
    assert all(episode.terminated for episode in dataset.episodes)
    assert np.array_equal(np.concatenate([episode.observations for episode in dataset.episodes]), data["vectors"])
    assert np.array_equal(np.concatenate([episode.rewards for episode in dataset.episodes])[:, 0], data["rewards"])
    assert np.array_equal(np.concatenate([episode.actions for episode in dataset.episodes])[:, 0], data["discrete"])


def test_published_layout_2_with_tuples() -> None:
    data = np.load(DATA / "dataset.npz")
    dataset = ReplayBuffer.load(DATA / "tuples_v2.h5")
    assert dataset.observation_shape == ((3,), (2, 12, 12))
    assert [(len(e), e.terminated, e.truncated) for e in dataset.episodes] == [
        (5, False, True),
        (1, True, False),
        (3, True, False),
    ]
    vectors, images = (np.concatenate([e.observations[part] for e in dataset.episodes]) for part in (0, 1))
    assert np.array_equal(vectors, data["vectors"][:9]) and np.array_equal(images, data["images"][:9])
    assert images.dtype == np.uint8 and dataset.transition_count == 8
    batch = dataset.sample_transition_batch(16)
    assert batch.observations[1].dtype == np.uint8 and batch.next_observations[0].shape == (16, 3)


# -- what a file may cost ----------------------------------------------------------------------------------------


def storages(count: int, references: int) -> bytes:
    """A torch file of one storage of ``count`` floats, and many tensors that are all of it."""
    buffer, whole = io.BytesIO(), torch.ones(count)
    torch.save({"q_funcs": {str(index): whole[:] for index in range(references)}}, buffer)
    return buffer.getvalue()


def test_small_pickles_take_little_memory(tmp_path: Path) -> None:
    big = struct.pack("<I", 60_000_000)
    nested = b"\x80\x02" + b"K\x00" + b"\x85q\x01h\x01h\x01\x86q\x01" * 60  # each twice what is before it
    cases: list[Any] = [
        b"\x80\x02}r" + big + b".",  # a memo of 60 million
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b".",  # bytes that are not there
        b"\x80\x02" + b"}" * 1_000_000 + b".",
        nested + b"Q.",
        with_inner(b"\x80\x02}r" + big + b"."),
        with_inner(nested + b"Q."),
        with_inner(b"\x80\x02ccollections\nOrderedDict\n" + b"(((((]t]t]tR."),
        {**content(), "torch": storages(1 << 16, 400)},  # 105 MB out of 256 kB
        {**content(), "config": "[" * 1_000_000},
    ]
    for case in cases:
        path = tmp_path / "x.d3"
        if isinstance(case, bytes):
            path.write_bytes(case)
        else:
            write(path, case)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(BirlError) as caught:
            read_d3rlpy(path)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB
        assert len(str(caught.value)) < 1000


def test_build_reaches_no_tensor(tmp_path: Path) -> None:
    """``Tensor.__setstate__`` would make a tensor larger than its storage."""
    program = (
        b"\x80\x02}X\x07\x00\x00\x00q_funcs}X\x0c\x00\x00\x000._fc.weightctorch._utils\n_rebuild_tensor_v2\n"
        b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x18tQ"
        b"K\x00K\x18\x85K\x01\x85\x89}tR"
    )
    with zipfile.ZipFile(io.BytesIO(content()["torch"])) as archive:
        size = archive.getinfo(next(name for name in archive.namelist() if name.endswith("data/0"))).file_size // 4
    program = program.replace(b"K\x18", b"K" + bytes([size]))
    assert size < 256
    with pytest.raises(BirlError, match="networks of another form|not agree|which birl"):
        read_d3rlpy(write(tmp_path / "x.d3", with_inner(program + b"ss.")))  # the tensor itself is fine
    state = b"(h\x00J\xff\xff\x00\x00\x85K\x01\x85t"
    with pytest.raises(CorruptFileError, match="attributes for Tensor"):
        read_d3rlpy(write(tmp_path / "x.d3", with_inner(program + state.replace(b"h\x00", b"N") + b"bss.")))


def test_networks_of_20_000_layers_are_refused_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    original = torch.nn.Linear.__init__
    monkeypatch.setattr(torch.nn.Linear, "__init__", lambda *a, **k: (made.append(1), original(*a, **k))[1])
    text = content()["config"].replace("[8, 8]", str([8] * 20_000))
    with pytest.raises(CorruptFileError, match="networks of more than .* parameters"):
        read_d3rlpy(write(tmp_path / "x.d3", {**content(), "config": text}))
    assert len(made) < 1000
