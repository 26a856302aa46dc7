"""Datasets made by Minari's own DataCollector, by ``tests/data/minari/record.py``."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
import recorded_envs  # registers its environments
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from birl.dataset import FrameStackTransitionPicker, MDPDataset, PrioritizedSampler, ReplayBuffer
from birl.datasets import get_dataset, get_minari, write_minari
from birl.envs import environment_spec
from birl.errors import (
    ConfigError,
    CorruptFileError,
    DataError,
    EmptyDataError,
    EnvironmentMismatchError,
    FileError,
    ForeignFileError,
    MissingExtraError,
    WriteError,
)
from birl.spaces import action_at, actions_from_space, unflatten_actions
from birl.spaces.observations import Choices
from birl.types import ActionSpace, tree_map

assert recorded_envs


DATA = Path(__file__).parent.parent / "data" / "minari"


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(DATA))


def check(dataset: ReplayBuffer, value: Any) -> None:
    """The steps are those of ``record.py``; ``value`` reads the number out of an observation."""
    episodes = dataset.episodes
    assert [len(episode) for episode in episodes] == [4, 1, 3]
    assert [(episode.terminated, episode.truncated) for episode in episodes] == [
        (False, True),
        (True, False),
        (True, False),
    ]
    for number, episode in enumerate(episodes):
        base, steps = 100 * number, len(episode)
        each = [value(tree_map(lambda leaf: leaf[step], episode.observations)) for step in range(steps)]  # noqa: B023
        assert each == [base + step for step in range(steps)]
        assert value(episode.final_observation) == base + steps
        assert episode.rewards[:, 0].tolist() == list(range(1, steps + 1))
        assert episode.actions[:, 0].tolist() == [0.0] * (steps - 1) + [float(episode.terminated)]
    assert dataset.transition_count == 8  # fault 1: the step at the time limit too
    batch = dataset.sample_transition_batch(64)
    before = np.array([value(tree_map(lambda leaf: leaf[i], batch.observations)) for i in range(64)])  # noqa: B023
    after = np.array([value(tree_map(lambda leaf: leaf[i], batch.next_observations)) for i in range(64)])  # noqa: B023
    assert (after == before + 1).all()
    assert (batch.rewards[:, 0] == after % 100).all()
    assert ((batch.terminals[:, 0] == 1) == ((after == 101) | (after == 203))).all()


def test_vectors() -> None:
    """Fault 4 of d3rlpy: T + 1 observations joined with T actions shift by one more in every episode."""
    dataset, env = get_dataset("recorded/vector-v0")
    check(dataset, lambda x: x[0])
    assert dataset.dataset_info.action_space is ActionSpace.CONTINUOUS  # fault 9: all actions are whole numbers
    assert dataset.episodes[0].observations.dtype == np.float64
    assert environment_spec(env).observation_shape == dataset.observation_shape == (3,)
    assert env.spec.max_episode_steps == 4


def test_images_come_channels_first() -> None:
    dataset, env = get_minari("recorded/image-v0", transition_picker=FrameStackTransitionPicker(2))
    check(dataset, lambda x: int(x[-1, 0, 1]))
    assert dataset.observation_shape == (6, 6, 8) and dataset.episodes[0].observations.dtype == np.uint8
    assert env.observation_space.shape == (3, 6, 8) and env.reset()[0].shape == (3, 6, 8)
    assert dataset.dataset_info.action_size == 5  # of the space, not the largest one that was seen


def test_images_without_channels_get_one() -> None:
    sampler = PrioritizedSampler()
    dataset, env = get_minari("recorded/grey-v0", sampler=sampler)
    assert dataset.reader.sources[0].sampler is sampler
    check(dataset, lambda x: int(x[0, 0, 1]))
    assert dataset.observation_shape == env.observation_space.shape == (1, 6, 8)


def test_goals_are_joined() -> None:
    name = "recorded/goal-v0"
    dataset, env = get_minari(name)
    check(dataset, lambda x: x[0])
    assert dataset.observation_shape == env.observation_space.shape == (6,)
    assert dataset.episodes[2].final_observation.tolist() == [203, 203, 203, 0.5, 1.5, 2]
    assert env.reset()[0].tolist() == [0, 0, 0, 0.5, 1.5, 0]


def test_goals_as_tuples() -> None:
    dataset, env = get_minari("recorded/goal-v0", tuple_observation=True)
    check(dataset, lambda x: x[0][0])
    assert dataset.observation_shape == environment_spec(env).observation_shape == ((3,), (3,))
    assert [leaf.tolist() for leaf in env.reset()[0]] == [[0, 0, 0], [0.5, 1.5, 0]]


def test_trees_stay_trees() -> None:
    dataset, env = get_minari("recorded/dict-v0")
    check(dataset, lambda x: x["left"][0])
    assert dataset.observation_shape == environment_spec(env).observation_shape
    assert dataset.episodes[2].final_observation["right"][0].tolist() == [-203] * 3


def test_rows_can_lie_on_disk(tmp_path: Path) -> None:
    dataset, _ = get_minari("recorded/vector-v0", storage=tmp_path / "rows")
    check(dataset, lambda x: x[0])
    check(ReplayBuffer.open(tmp_path / "rows"), lambda x: x[0])


def test_an_environment_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "recorded/vector-v0"
    monkeypatch.setattr(gymnasium, "make", lambda *args, **options: (_ for _ in ()).throw(ImportError("gone")))
    with pytest.warns(UserWarning, match="None is returned for it.*gone"):
        dataset, env = get_minari(name)
    assert env is None
    check(dataset, lambda x: x[0])


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the metadata of ``recorded/vector-v0`` say, ``env_spec`` part by part."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    shutil.copytree(DATA / "recorded", tmp_path / "minari" / "recorded")
    file = tmp_path / "minari" / "recorded" / "vector-v0" / "data" / "metadata.json"
    about = json.loads(file.read_text())

    def change(spec: dict[str, Any], *removed: str, **others: Any) -> None:
        env_spec = json.dumps(json.loads(about["env_spec"]) | spec)
        changed = {**about, "env_spec": env_spec, "eval_env_spec": env_spec, **others}
        file.write_text(json.dumps({key: value for key, value in changed.items() if key not in removed}))

    return change


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the module ``named_by_a_file`` makes when it is imported."""
    mark = tmp_path / "imported"
    (tmp_path / "named_by_a_file.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "named_by_a_file", raising=False)
    return mark


WRAPPER = {"name": "Own", "entry_point": "named_by_a_file:Own", "kwargs": {}}
OLD = {"id": "GymV26Environment-v0", "kwargs": {"env_id": "named_by_a_file:Own-v0"}}  # makes others by their names
NAMED = [
    ({"id": "Own-v0", "entry_point": "named_by_a_file:Own", "kwargs": {}}, "'Own-v0' is not made.*not registered"),
    ({"id": "Own-v0", "entry_point": "os:system", "kwargs": {"command": "touch imported"}}, "not registered"),
    ({"id": "named_by_a_file:Own-v0", "kwargs": {}}, "names a module to import"),
    ({"additional_wrappers": [WRAPPER]}, r"adds wrappers \(Own\)"),
    ({"kwargs": {"kind": "named_by_a_file"}}, "its argument 'kind' is 'named_by_a_file', neither a number nor"),
    ({"kwargs": {"kind": "vector", "more": ["named_by_a_file"]}}, "its argument 'more' is"),
    ({"kwargs": "named_by_a_file"}, "its arguments are 'named_by_a_file'"),
    (OLD, "its argument 'env_id' is 'named_by_a_file:Own-v0'"),
]


@pytest.mark.parametrize(("spec", "said"), NAMED)
def test_no_code_runs_because_a_dataset_names_it(
    spec: dict[str, Any], said: str, described: Any, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mark.parent)
    described(spec)
    with pytest.warns(UserWarning, match=f"None is returned for it.*{said}.*trust_environment=True"):
        dataset, env = get_dataset("recorded/vector-v0")
    assert env is None
    check(dataset, lambda x: x[0])
    assert get_minari("recorded/vector-v0", make_environment=False)[1] is None  # without a warning
    assert not mark.exists()


def test_no_code_runs_for_spaces_that_a_dataset_does_not_say(described: Any, mark: Path) -> None:
    """Minari itself makes the environment to see them."""
    spec = {"id": "Own-v0", "entry_point": "named_by_a_file:Own", "kwargs": {}}
    for removed in ("action_space", "observation_space"):
        described(spec, removed)
        for make in (False, True):
            with pytest.raises(ConfigError, match=f"has no {removed} in its metadata.json.*trust_environment=True"):
                get_minari("recorded/vector-v0", make_environment=make)
        assert not mark.exists()
    described({}, "action_space")
    assert environment_spec(get_minari("recorded/vector-v0", trust_environment=True)[1]).observation_shape == (3,)


def test_what_the_user_trusts_is_made(described: Any, mark: Path) -> None:
    described({"id": "Own-v0", "entry_point": "recorded_envs:CountingEnv"})
    _, env = get_dataset("recorded/vector-v0", trust_environment=True)
    assert env.spec.id == "Own-v0" and env.spec.max_episode_steps == 4
    described({"id": "Own-v0", "entry_point": "named_by_a_file:Own", "kwargs": {}})
    with pytest.warns(UserWarning, match="None is returned for it.*named_by_a_file.*Own"):
        get_minari("recorded/vector-v0", trust_environment=True)
    assert mark.exists()


def test_registered_environments_keep_what_the_dataset_says_in_numbers(described: Any, mark: Path) -> None:
    name = "recorded/vector-v0"
    said = {"entry_point": "named_by_a_file:Own", "max_episode_steps": 7, "kwargs": {"kind": "vector", "scale": [1, 2]}}
    described(said)
    with pytest.warns(UserWarning, match="unexpected keyword argument 'scale'"):
        assert get_minari(name)[1] is None
    described(said | {"kwargs": {"render_mode": "human"}})
    _, env = get_minari(name)
    assert isinstance(env.unwrapped, recorded_envs.CountingEnv) and env.unwrapped.kind == "vector"
    assert env.spec.max_episode_steps == 7
    assert gymnasium.registry[name].max_episode_steps == 4
    assert not mark.exists()


@pytest.mark.parametrize(
    "other", [{"data_format": "x"}, {"env_spec": "{}"}, {"env_spec": 1}, {"action_space": "[" * 9999}]
)
def test_metadata_that_cannot_be_read(other: dict[str, Any], described: Any) -> None:
    described({}, **other)
    with pytest.raises(ConfigError, match=r"'recorded/vector-v0' cannot be used: .*check .*metadata\.json"):
        get_minari("recorded/vector-v0")


def test_integers_are_choices() -> None:
    dataset, env = get_minari("recorded/number-v0")
    own = dataset.dataset_info.observations
    assert isinstance(own, Choices) and own == environment_spec(env).observations and dataset.observation_shape == ()


def test_parts_that_are_named() -> None:
    dataset, _ = get_minari("recorded/dict-v0", observation_keys=["right"])
    assert set(dataset.observation_shape) == {"right"}
    with pytest.raises(ConfigError, match="is not a part of the observation; the parts are 'left'"):
        get_minari("recorded/dict-v0", observation_keys=["top"])


def in_columns(actions: Any) -> Any:
    """A list of actions in the form in which Minari's collector keeps them."""
    if isinstance(actions[0], dict):
        return {name: in_columns([each[name] for each in actions]) for name in actions[0]}
    return tuple(map(in_columns, zip(*actions, strict=True))) if isinstance(actions[0], tuple) else list(actions)


@pytest.mark.filterwarnings("ignore:`.*` is set to None:UserWarning")  # of Minari, about its own data
@pytest.mark.parametrize("kind", recorded_envs.ACTIONS)
def test_actions_of_every_space(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space = recorded_envs.ACTIONS[kind]
    space.seed(0)
    taken = [space.sample() for _ in range(8)]
    episodes = [
        EpisodeBuffer(
            id=number,
            observations=list(np.zeros((5, 3), np.float32)),
            actions=in_columns(taken[4 * number : 4 * number + 4]),
            rewards=[1.0] * 4,
            terminations=[False] * 4,
            truncations=[False] * 3 + [True],
        )
        for number in range(2)
    ]
    about = {"algorithm_name": "none", "code_permalink": "none", "author": "none", "author_email": "none"}
    env = gymnasium.make(f"taking/{kind}-v0", disable_env_checker=True)
    minari.create_dataset_from_buffers(f"taking/{kind}-v0", episodes, env, **about)

    dataset, again = get_dataset(f"taking/{kind}-v0")
    assert dataset.dataset_info.actions == actions_from_space(space) == environment_spec(again).actions
    found = unflatten_actions(space, np.concatenate([episode.actions for episode in dataset.episodes]))
    for index, action in enumerate(taken):
        own = action_at(space, found, index)
        assert space.contains(own)
        np.testing.assert_allclose(spaces.flatten(space, own), spaces.flatten(space, action), rtol=1e-6)


def test_missing_data_are_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(minari.storage.hosting, "download_dataset", refuse)
    with pytest.raises(FileError, match="minari download nothing/here-v0.*download=True"):
        get_dataset("nothing/here-v0")


def test_names_that_minari_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data = MDPDataset(np.zeros((20, 3), "f4"), np.zeros((20, 2), "f4"), np.zeros(20), np.arange(20) % 5 == 4)
    with pytest.raises(ConfigError, match="Minari takes no dataset called 'x/y-v0'.*give a longer name"):
        write_minari(data, "x/y-v0")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "a/b", "x-v0 ", "/", "../x-v0", "a//b-v0", "x-v", "nothing/here"])
def test_names_that_none_has(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is not a name.*'mujoco/hopper/medium-v0'"):
        get_minari(name)


def test_a_dataset_of_another_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    shutil.copytree(DATA / "recorded", tmp_path / "recorded")
    about = tmp_path / "recorded" / "vector-v0" / "data" / "metadata.json"
    about.write_text(about.read_text().replace(json.loads(about.read_text())["minari_version"], "0.0.1"))
    with pytest.raises(ConfigError, match="cannot be used.*0.0.1"):
        get_minari("recorded/vector-v0")


def written(kind: str, folder: Path) -> Path:
    """The first episode's file of a dataset whose observations have images, in one of Minari's formats."""
    parts = {"x": list(np.zeros((5, 3), np.float32)), "seen": list(np.zeros((5, 40, 40, 3), np.uint8))}
    episodes = [
        EpisodeBuffer(
            id=number,
            observations=parts,
            actions=[0, 1, 0, 1],
            rewards=[1.0] * 4,
            terminations=[False] * 4,
            truncations=[False] * 3 + [True],
        )
        for number in range(2)
    ]
    minari.create_dataset_from_buffers(
        f"formats/{kind}-v0",
        iter(episodes),
        observation_space=spaces.Dict(x=spaces.Box(-1, 1, (3,)), seen=spaces.Box(0, 255, (40, 40, 3), np.uint8)),
        action_space=spaces.Discrete(2),
        data_format=kind,
    )
    return min(folder.rglob("main_data.hdf5" if kind == "hdf5" else f"part-0.{kind}"))


@pytest.mark.filterwarnings("ignore:.* is (set to )?`?None:UserWarning")  # of Minari, about its own data
@pytest.mark.parametrize("kind", ["hdf5", "arrow", "parquet"])
def test_damaged_datasets_of_every_format(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    file, name = written(kind, tmp_path), f"formats/{kind}-v0"
    good = file.read_bytes()
    assert get_minari(name, make_environment=False)[0].transition_count == 8
    for bad in (good[:1000], good.replace(b"\xff\xd8\xff", b"\0\0\0")):  # truncated; invalid images
        file.write_bytes(bad)
        with pytest.raises(CorruptFileError, match=r"(damaged|incomplete).* (again|from a copy)"):
            get_minari(name, make_environment=False)
    if kind == "arrow":  # where images end: Minari follows these numbers beyond the file
        sizes = np.cumsum([0, *[len(image(good))] * 4], dtype="<i4").tobytes()
        place = good.index(sizes) + 8
        file.write_bytes(good[:place] + (10**9).to_bytes(4, "little") + good[place + 4 :])
        with pytest.raises(CorruptFileError, match=r"part-0\.arrow cannot be read as arrow .*offset"):
            get_minari(name, make_environment=False)
    file.write_bytes(good)
    if kind != "hdf5":
        (file.parent / "more.ipc").write_bytes(good)
        with pytest.raises(ForeignFileError, match=rf"more\.ipc is not a \.{kind} file.*remove it"):
            get_minari(name, make_environment=False)


def image(data: bytes) -> bytes:
    """The first JPEG in some bytes."""
    begin = data.index(b"\xff\xd8\xff")
    return data[begin : data.index(b"\xff\xd9", begin) + 2]


def test_without_minari_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'birl\[minari\]'"):
        get_minari("recorded/vector-v0")


# -- writing -----------------------------------------------------------------------------------------------------------


def same(found: ReplayBuffer, wanted: ReplayBuffer) -> None:
    """All steps, ends and last observations agree, with their dtypes."""
    assert len(found.episodes) == len(wanted.episodes)
    for own, other in zip(found.episodes, wanted.episodes, strict=True):
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "final_observation"):
            np.testing.assert_equal(getattr(own, name), getattr(other, name))
        assert own.observation_signature == other.observation_signature


@pytest.mark.parametrize("name", ["vector", "image", "grey", "number", "dict"])
def test_what_was_read_can_be_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = get_minari(f"recorded/{name}-v0")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert write_minari(data, f"again/{name}-v0") == {"episodes": 3, "steps": 8, "left_out": 0}
    with pytest.warns(UserWarning, match="None is returned for it"):
        found, env = get_minari(f"again/{name}-v0")
    assert env is None
    same(found, data)
    assert found.dataset_info.observations == data.dataset_info.observations
    assert found.dataset_info.actions == data.dataset_info.actions


def test_images_are_written_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minari would make JPEGs of arrays that look like images."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    pixels = np.random.default_rng(0).integers(256, size=(4, 40, 40, 3), dtype=np.uint8)
    data = MDPDataset(pixels, np.zeros((4, 1), int), np.zeros(4), [0, 0, 0, 1])
    write_minari(data, "pixels-v0")
    rows = next(iter(minari.load_dataset("pixels-v0").iterate_episodes())).observations
    np.testing.assert_array_equal(rows[:4], pixels)
    assert not rows[4].any()


def test_a_dataset_of_one_s_own_with_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rows = np.arange(24, dtype=np.float32).reshape(6, 4) / 100
    extra = {"log_propensity": np.log([0.5, 0.6, 0.7, 0.8, 0.9, 1.0])}
    ends = {"terminals": [0, 1, 0, 0, 0, 0], "timeouts": [0, 0, 0, 1, 0, 1]}
    actions = np.array([[0], [1], [0], [1], [0], [1]])
    data = MDPDataset(rows, actions, np.arange(6.0), **ends, extra=extra, action_size=2)
    assert write_minari(data, "pole/own-v0", "CartPole-v1") == {"episodes": 3, "steps": 4, "left_out": 2}
    found, env = get_minari("pole/own-v0")
    assert env.spec.id == "CartPole-v1"
    assert [each.rewards[:, 0].tolist() for each in found.episodes] == [[0, 1], [2], [4]]
    assert [each.terminated for each in found.episodes] == [True, False, False]
    np.testing.assert_array_equal(found.episodes[1].final_observation, rows[3])
    assert not found.episodes[0].final_observation.any()
    first = next(iter(minari.load_dataset("pole/own-v0").iterate_episodes()))
    np.testing.assert_array_equal(first.infos["log_propensity"], [0, *extra["log_propensity"][:2]])
    with pytest.raises(EnvironmentMismatchError, match="the environment has .* but the data .*: leave it out"):
        write_minari(data, "pole/other-v0", "Pendulum-v1")
    with pytest.raises(WriteError, match="the Minari dataset 'pole/own-v0' exists already at "):
        write_minari(data, "pole/own-v0")
    with pytest.raises(ConfigError, match="'pole' is not a name of a Minari dataset"):
        write_minari(data, "pole")
    cut = MDPDataset(rows[:1], np.array([[0]]), [0.0], [0], [1], action_size=2)
    with pytest.raises(EmptyDataError, match="no episode has a step with a next observation"):
        write_minari(cut, "pole/empty-v0")
    assert [each for each in os.listdir(tmp_path / "pole") if each.endswith("v0")] == ["own-v0"]


def _at_another_file(file: h5py.File, other: Path) -> None:
    del file["episode_0/rewards"]
    file["episode_0/rewards"] = h5py.ExternalLink(other, "secret")


def _within_the_file(file: h5py.File, other: Path) -> None:
    del file["episode_0/rewards"]
    file["episode_0/rewards"] = h5py.SoftLink("/episode_0/actions")


def _raw_bytes_of_another_file(file: h5py.File, other: Path) -> None:
    del file["episode_0/rewards"]
    file["episode_0"].create_dataset("rewards", (4,), "f8", external=[(str(other), 0, 32)])


def _virtual(file: h5py.File, other: Path) -> None:
    del file["episode_0/rewards"]
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource(other, "secret", (4,))
    file["episode_0"].create_virtual_dataset("rewards", layout)


def _group_of_another_file(file: h5py.File, other: Path) -> None:
    del file["episode_1"]
    file["episode_1"] = h5py.ExternalLink(other, "/")


def _more_than_the_file_can_hold(file: h5py.File, other: Path) -> None:
    file["episode_0"].create_dataset("infos/large", (2**40,), "f8", chunks=(1024,))


def _in_itself(file: h5py.File, other: Path) -> None:
    file["episode_0/infos/itself"] = file["episode_0"]


@pytest.mark.parametrize(
    "change",
    [
        _at_another_file,
        _within_the_file,
        _raw_bytes_of_another_file,
        _virtual,
        _group_of_another_file,
        _more_than_the_file_can_hold,
        _in_itself,
    ],
)
def test_data_outside_the_file_are_not_read(change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    rows = np.arange(8, dtype=np.float32)
    write_minari(MDPDataset(rows[:, None], rows[:, None], rows, [0, 0, 0, 1] * 2), "own/links-v0")
    other = tmp_path / "other.hdf5"
    with h5py.File(other, "w") as file:
        file["secret"] = np.full(4, 7.0)
    (path,) = tmp_path.rglob("main_data.hdf5")
    assert get_minari("own/links-v0", make_environment=False)[0].transition_count == 8
    with h5py.File(path, "a") as file:
        change(file, other)
    opened: list[str] = []
    monkeypatch.setattr(minari, "load_dataset", opened.append)
    with pytest.raises(
        CorruptFileError, match=r"main_data\.hdf5: (.* is a link|.* is no array of this file|with .* it|.* second name)"
    ):
        get_minari("own/links-v0", make_environment=False)
    assert not opened


def test_a_full_disk_is_noticed_before_and_while_a_dataset_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5's library ends the process where it cannot write what it holds."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    rows = np.zeros(4, np.float32)
    data = MDPDataset(rows[:, None], rows[:, None], rows, [0, 0, 0, 1])
    asked: list[int] = []

    def full(file: int, begin: int, size: int) -> None:
        asked.append(size)
        raise OSError(errno.ENOSPC, "full")

    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("Unable to synchronously create dataset (file write failed, errno = 28, buf = 0x1)")

    with monkeypatch.context() as patch, pytest.raises(WriteError, match="the disk is full: free some space"):
        patch.setattr(os, "posix_fallocate", full, raising=False)
        write_minari(data, "own/full-v0")
    with monkeypatch.context() as patch, pytest.raises(WriteError, match="No space left .*the disk is full"):
        patch.setattr(minari, "create_dataset_from_buffers", fails)
        write_minari(data, "own/full-v0")
    assert not list(tmp_path.rglob("full-v0"))
    write_minari(data, "own/full-v0")
    written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert 0.8 * written < asked[0] < 1.2 * written


def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the data of a dataset of two episodes with four steps each."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rows = np.arange(8, dtype=np.float32)
    write_minari(MDPDataset(rows[:, None], rows[:, None], rows, [0, 0, 0, 1] * 2), "own/edited-v0")
    return tmp_path / "own" / "edited-v0" / "data"


@pytest.mark.parametrize("flag", ["terminations", "truncations"])
def test_episodes_that_end_before_their_last_step(flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = edited(tmp_path, monkeypatch)
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file[f"episode_1/{flag}"][2] = True
    with pytest.raises(DataError, match=rf"{flag}\[2\] of episode 1 .* is true, but the episode has 4 steps"):
        get_minari("own/edited-v0", make_environment=False)


@pytest.mark.parametrize("number", [10**8, 1, "many"])
def test_another_number_of_episodes(number: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(tmp_path, monkeypatch) / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"total_episodes": number}))
    monkeypatch.setattr(minari, "load_dataset", None)
    with pytest.raises(CorruptFileError, match=f"total_episodes='?{number}'?, but the data have 2 episodes"):
        get_minari("own/edited-v0", make_environment=False)


def test_metadata_that_are_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(tmp_path, monkeypatch) / "metadata.json"
    path.unlink()
    path.mkdir()
    for trusted in (False, True):
        with pytest.raises(FileError, match=r"own/edited-v0' cannot be read: .*metadata\.json"):
            get_minari("own/edited-v0", make_environment=False, trust_environment=trusted)
