"""Datasets of Minari, which the Farama Foundation publishes or Minari's ``DataCollector`` makes.

They need the extra ``minari``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from birl.checks import check
from birl.dataset import Episode, ReplayBuffer, ReplayBufferBase, Sampler, Signature, create_zero_observation
from birl.dataset.hdf5 import open_hdf5
from birl.dataset.logs.files import LogFile
from birl.dataset.replay_buffer import StorageLocation
from birl.dataset.slicers import TrajectorySlicerProtocol
from birl.dataset.transitions import TransitionPickerProtocol
from birl.datasets.folders import environment_or_none, store_episodes
from birl.envs.wrappers import ChannelFirst, GoalConcatWrapper, concatenate_goal, is_channel_last, to_channel_first
from birl.errors import (
    BirlError,
    ConfigError,
    CorruptFileError,
    DataError,
    EmptyDataError,
    EnvironmentMismatchError,
    FileError,
    ForeignFileError,
    MissingExtraError,
    ShapeError,
    WriteError,
    require,
)
from birl.files.atomic import convert_to_write_error, reserve_space
from birl.files.state_restore import convert_to_corrupt_error
from birl.spaces import Actions, actions_from_space, flatten_actions, space_from_actions, unflatten_actions
from birl.spaces.observations import Choices, leaf_spaces, match_parts, observations_from_spaces, select_parts
from birl.spaces.specs import Spec, environment_spec
from birl.types import Array, Tree, tree_map

PATTERN: Final = re.compile(r"([\w-]+/)*[\w-]+-v\d+")
"""Names of Minari's datasets."""

_GOAL = ("observation", "desired_goal")
_ARRAY: Final = 2950  # bytes that HDF5 adds to each array that Minari writes, most of them for its chunks
_CHUNKS: Final = 1.12  # size of large arrays in chunks, relative to their numbers


class _MinariEpisode(Protocol):
    """The attributes of `minari.EpisodeData` that birl reads."""

    observations: Tree
    actions: Tree
    rewards: Array
    terminations: Array
    truncations: Array


class _MinariStorage(Protocol):
    """The attributes of `minari.dataset.minari_storage.MinariStorage` that birl reads."""

    FORMAT: str

    @property
    def data_path(self) -> Path: ...


class _MinariDataset(Protocol):
    """The attributes and methods of `minari.MinariDataset` that birl uses."""

    @property
    def observation_space(self) -> spaces.Space[Any]: ...

    @property
    def action_space(self) -> spaces.Space[Any]: ...

    @property
    def env_spec(self) -> EnvSpec | None: ...

    @property
    def storage(self) -> _MinariStorage: ...

    @property
    def episode_indices(self) -> Array: ...

    def iterate_episodes(self) -> Iterator[_MinariEpisode]: ...

    def recover_environment(self, **kwargs: object) -> gymnasium.Env[Any, Any]: ...


def get_minari(
    env_name: str,
    transition_picker: TransitionPickerProtocol | None = None,
    trajectory_slicer: TrajectorySlicerProtocol | None = None,
    render_mode: str | None = None,
    tuple_observation: bool = False,
    *,
    download: bool = False,
    storage: StorageLocation = "memory",
    sampler: Sampler | None = None,
    observation_keys: Sequence[str] | None = None,
    make_environment: bool = True,
    trust_environment: bool = False,
) -> tuple[ReplayBuffer, gymnasium.Env[Any, Any] | None]:
    """Load a Minari dataset, one episode at a time.

    Minari stores T + 1 observations for T steps. The last one becomes the final observation, so no step is lost.
    Observations and goals of goal-conditioned environments are concatenated, as `birl.envs.GoalConcatWrapper` does.
    Images become channels first, as with `birl.envs.ChannelFirst`. Other Dict and Tuple observations are unchanged.

    A dataset describes its environment by an id, an entry point, arguments and wrappers. birl uses the id alone, so
    that a dataset cannot choose the code that runs, unless ``trust_environment`` allows it. The environment must be
    registered in Gymnasium already: import the package that registers it first. Arguments in the dataset must be
    numbers, or equal those of the registration.

    Differs from d3rlpy: observations are not shifted against actions, the environment keeps its time limit, Dict and
    Tuple observations are allowed, nothing is downloaded unless requested, and a dataset cannot run code.

    Args:
        env_name: name of the dataset, such as ``"mujoco/hopper/medium-v0"``.
        transition_picker: makes transitions from steps.
        trajectory_slicer: makes windows of steps.
        render_mode: render mode of the environment.
        tuple_observation: whether observations with goals are ``(observation, goal)`` instead of one vector.
        download: whether Minari may download a dataset that is not on this machine.
        storage: ``"memory"``, a torch device, or the path of a new folder.
        sampler: selects the steps of minibatches; `birl.dataset.Uniform` if ``None``.
        observation_keys: names of the parts of Dict and Tuple observations to read; ``None`` for all.
        make_environment: whether to make the environment; otherwise ``None`` is returned for it.
        trust_environment: whether to make any environment that the dataset describes. This imports and calls code that
            the dataset names, so it is as risky as running a program from the same source.

    Returns:
        The dataset and its environment (``None``, with a warning, if it is not available or not trusted).

    Raises:
        ConfigError: if ``env_name`` is not a name of a Minari dataset, if Minari cannot read the dataset, or if reading
            it requires an environment that is not trusted.
        MissingExtraError: if Minari is not installed.
        FileError: if the dataset is not on this machine, or damaged.
        EmptyDataError: if the dataset has no step.
        DataError: if an episode ends before its last step.
        ShapeError, ActionError: if its spaces are not supported.
    """
    check("make_environment", make_environment, bool)
    source = _open_dataset(env_name, download, check("trust_environment", trust_environment, bool))
    space, goal = source.observation_space, _is_goal(source.observation_space) and observation_keys is None
    convert, observations = _converter(space, tuple_observation, goal, observation_keys)
    actions = actions_from_space(source.action_space)
    dataset = store_episodes(
        _read_episodes(source, env_name, convert, actions),
        transition_picker=transition_picker,
        trajectory_slicer=trajectory_slicer,
        action_signature=Signature.of(actions.storage_spec),
        action_space=actions.kind,
        action_size=actions.size_argument,
        observation_space=observations,
        storage=storage,
        sampler=sampler,
    )
    if dataset is None:
        raise EmptyDataError(f"the Minari dataset {env_name!r} has no step: collect some")

    make = partial(_make_environment, source, render_mode, tuple_observation, goal, trust_environment)
    return dataset, environment_or_none(repr(env_name), make) if make_environment else None


def _open_dataset(env_name: str, download: bool, trusted: bool) -> _MinariDataset:
    """Open a dataset with Minari. See `get_minari` for errors."""
    _check_name(env_name)
    minari = require("minari", "minari")
    folder = require("minari.storage.datasets_root_dir", "minari").get_dataset_path(env_name) / "data"
    try:
        if download and not folder.exists():
            minari.download_dataset(env_name)
        if not trusted:
            _check_spaces(env_name, folder)  # if they are missing, Minari makes the environment to read them
        _check_episode_count(folder, _check_hdf5(folder / "main_data.hdf5"))
        source: _MinariDataset = minari.load_dataset(env_name)
    except FileNotFoundError as error:
        raise FileError(
            f"the Minari dataset {env_name!r} is not on this machine: run `minari download {env_name}`, or pass "
            "download=True. MINARI_DATASETS_PATH names the folder of datasets (~/.minari/datasets if it is not set)"
        ) from error
    except ImportError as error:
        raise MissingExtraError(f"Minari misses a package ({error}): run `pip install 'birl[minari]'`") from error
    except BirlError:
        raise
    except OSError as error:
        raise FileError(
            f"the Minari dataset {env_name!r} cannot be read: {error}: check the folder {folder}, or download it again"
        ) from error
    except (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) or not str(error) else error
        raise ConfigError(
            f"the Minari dataset {env_name!r} cannot be used: {why}: check {folder / 'metadata.json'}, or download it "
            "again"
        ) from error
    return source


def _read_episodes(
    source: _MinariDataset, name: str, convert: Callable[[Any], Tree], actions: Actions
) -> Iterator[Episode]:
    """Read the episodes of a dataset, with observations as ``convert`` returns them."""
    label = f"the Minari dataset {name!r} in {source.storage.data_path}"
    with convert_to_corrupt_error(label, "its episodes cannot be read", "Download or write it again"):
        _check_tables(source)
        for number, item in enumerate(source.iterate_episodes()):
            if len(item.rewards):
                _check_ends(name, number, item)
                ended = bool(item.terminations[-1])
                taken = actions.to_stored(flatten_actions(source.action_space, item.actions))
                yield Episode(convert(item.observations), taken, item.rewards, ended, truncated=not ended)


def _make_environment(
    source: _MinariDataset, render_mode: str | None, tuple_observation: bool, goal: bool, trusted: bool
) -> gymnasium.Env[Any, Any]:
    """Create the environment of a dataset, with a wrapper that converts its observations like those of the dataset."""
    options: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    try:
        if trusted:
            env = source.recover_environment(**options)
        else:
            env = gymnasium.make(_registered(source.env_spec), **options)
    except (gymnasium.error.Error, ImportError, AttributeError, ValueError, TypeError, AssertionError) as error:
        if isinstance(error, BirlError):
            raise
        raise ConfigError(f"it cannot be made again: {error}") from error
    if goal:
        return GoalConcatWrapper(env, *_GOAL, tuple_observation)
    return ChannelFirst(env) if is_channel_last(source.observation_space) else env


def _check_spaces(name: str, folder: Path) -> None:
    """Raise `ConfigError` if the metadata of a dataset lack its spaces."""
    about = json.loads((folder / "metadata.json").read_text())
    missing = [key for key in ("observation_space", "action_space") if not isinstance(about.get(key), str)]
    if missing:
        raise ConfigError(
            f"the Minari dataset {name!r} has no {' and no '.join(missing)} in its metadata.json: without them, Minari "
            "creates the environment to read its spaces. Pass trust_environment=True if you trust the dataset: the "
            "code that it names runs then"
        )


def _check_hdf5(path: Path) -> int | None:
    """Check the HDF5 file of a dataset, if it has one: Minari follows links to other files, and uses any filter.

    Returns:
        The number of its episodes; ``None`` if there is no file.
    """
    if not path.is_file():
        return None
    with open_hdf5(path) as file:
        file.check_objects()
        return sum(re.fullmatch(r"episode_\d+", each) is not None for each in file.members(""))


def _check_episode_count(folder: Path, found: int | None) -> None:
    """Compare the number of episodes in the metadata with those that are there, because Minari allocates an index.

    Args:
        folder: the folder of the data.
        found: the number of episodes in the HDF5 file; ``None`` if each episode has a folder.
    """
    if not folder.is_dir():
        return  # Minari raises an error
    given = json.loads((folder / "metadata.json").read_text())["total_episodes"]
    if found is None:
        found = sum(each.name.isdecimal() and each.is_dir() for each in folder.iterdir())
    if given != found:
        raise CorruptFileError(
            f"{folder / 'metadata.json'} has total_episodes={given!r:.60}, but the data have {found} episodes: correct "
            "it, or download the dataset again"
        )


def _check_ends(name: str, number: int, item: _MinariEpisode) -> None:
    """Raise `DataError` if an episode ends before its last step, or if its flags have another length."""
    for what, flags in (("terminations", item.terminations), ("truncations", item.truncations)):
        given = np.asarray(flags)
        if given.shape != (len(item.rewards),):
            raise DataError(
                f"{what} of episode {number} of the Minari dataset {name!r} have the shape {given.shape}; there must "
                f"be one for each of the {len(item.rewards)} rewards: write the episode again"
            )
        if given[:-1].any():
            raise DataError(
                f"{what}[{int(np.argmax(given))}] of episode {number} of the Minari dataset {name!r} is true, but the "
                f"episode has {len(given)} steps; only the last step may end it: split the episode there, or correct "
                "the flag"
            )


def _check_tables(source: _MinariDataset) -> None:
    """Check the Arrow or Parquet files of a dataset by reading them once, because Minari does not check them."""
    kind, folder = source.storage.FORMAT, Path(source.storage.data_path)
    if kind not in ("arrow", "parquet"):
        return
    for number in source.episode_indices:
        for file in sorted((folder / str(number)).rglob("*")):
            if not file.is_file() or file.name.startswith(("_", ".", "metadata.json")):  # Minari does not read it
                continue
            if file.suffix != f".{kind}":
                raise ForeignFileError(f"{file} is not a .{kind} file, unlike all steps of this dataset: remove it")
            for _ in LogFile(file).read(None):
                pass


def _registered(spec: EnvSpec | None) -> EnvSpec:
    """Return the specification in Gymnasium's registry with the id of the dataset's one.

    Only code that this process has registered runs: entry points and wrappers in the dataset are never used. Arguments
    could name code or files as well, because some environments of Gymnasium make others by name.

    Raises:
        ConfigError: if there is none, or the environment of the dataset differs from the registered one.
    """
    if spec is None:
        raise ConfigError("the dataset does not name it: make it yourself, as birl.envs.make_env(name)")
    registered = gymnasium.registry.get(spec.id)
    if ":" in spec.id:
        why = "its id names a module to import"
    elif registered is None:
        why = "its id is not registered in Gymnasium: import the package that registers it first"
    elif spec.additional_wrappers:
        why = f"the dataset adds wrappers ({', '.join(str(each.name) for each in spec.additional_wrappers)!s:.100})"
    elif not isinstance(spec.kwargs, dict):
        why = f"its arguments are {spec.kwargs!r:.60}, they must be names with values"
    else:
        # the render mode is an argument of the caller
        given = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
        foreign = [
            name for name, value in given.items() if not (_is_number(value) or _is_same(value, name, registered))
        ]
        if not foreign:
            return dataclasses.replace(
                registered,
                kwargs={**registered.kwargs, **{name: value for name, value in given.items() if _is_number(value)}},
                max_episode_steps=spec.max_episode_steps,
                disable_env_checker=bool(spec.disable_env_checker),
            )
        name = foreign[0]
        why = f"its argument {name!r:.60} is {given[name]!r:.60}, neither a number nor the registered value"
    raise ConfigError(
        f"{spec.id!r:.100} is not made just because a dataset names it: {why}. Make the environment yourself, as "
        "birl.envs.make_env(name), or pass trust_environment=True to get_minari or get_dataset if you trust the "
        "dataset: the code that it names runs then"
    )


def _is_number(value: object) -> bool:
    """Return whether a JSON value holds only numbers, true, false and null."""
    if isinstance(value, list):
        return all(map(_is_number, value))
    return value is None or isinstance(value, bool | int | float)


def _is_same(value: object, name: str, registered: EnvSpec) -> bool:
    """Return whether the JSON value of an argument equals the registered one."""
    try:
        return name in registered.kwargs and bool(json.loads(json.dumps(registered.kwargs[name])) == value)
    except (TypeError, ValueError):
        return False


def write_minari(
    dataset: ReplayBufferBase, name: str, env: gymnasium.Env[Any, Any] | str | None = None
) -> dict[str, int]:
    """Write all episodes as a new Minari dataset, one at a time.

    Minari stores T + 1 observations for T steps. An unknown final observation of a terminated episode becomes zeros. Of
    a truncated episode without a final observation the last step is left out, and its observation becomes the final
    one. Extra columns become ``infos``. Minari stores one info for the reset, which is zeros here, and one after each
    step.

    Args:
        dataset: the episodes.
        name: name of the new dataset, such as ``"shop/prices-v0"``.
        env: the environment of the steps, or its id, so that Minari can make it again. Without it the spaces are those
            of the data, without bounds.

    Returns:
        The numbers of ``episodes`` and ``steps`` that were written, and the number of steps that were ``left_out``.

    Raises:
        ConfigError: if ``name`` is not a name of a Minari dataset.
        EnvironmentMismatchError: if the environment has other observations or actions.
        EmptyDataError: if no step could be written.
        WriteError: if the dataset exists already, or cannot be written.
        MissingExtraError: if Minari is not installed.
    """
    _check_name(name)
    minari = require("minari", "minari")
    try:
        require("minari.dataset.minari_dataset", "minari").parse_dataset_id(name)
    except ValueError as error:  # it wants two letters or digits on each side of a slash
        raise ConfigError(f"Minari takes no dataset called {name!r} ({error!s:.200}): give a longer name") from error
    buffer = require("minari.data_collector", "minari").EpisodeBuffer
    folder = require("minari.storage.datasets_root_dir", "minari").get_dataset_path(name)
    if folder.exists():
        raise WriteError(f"the Minari dataset {name!r} exists already at {folder}: give another name or version")
    info = dataset.dataset_info
    if env is None:
        action_space = space_from_actions(info.actions, -np.inf, np.inf)
        observation_space = _space(info.observations, info.observation_signature.tree)
    else:
        env = gymnasium.make(env) if isinstance(env, str) else env
        data_spec, given = Spec(info.observations, info.actions), environment_spec(env)
        if data_spec != given:
            raise EnvironmentMismatchError(f"the environment has {given}, but the data {data_spec}: leave it out")
        action_space, observation_space = env.action_space, env.observation_space
    found = {"episodes": 0, "steps": 0, "left_out": 0}

    def buffers() -> Iterator[Any]:
        for episode in dataset.episodes:
            steps, final = len(episode), episode.final_observation
            if final is None and not episode.terminated:
                steps -= 1
                final = tree_map(lambda leaf, last=steps: leaf[last], episode.observations)
                found["left_out"] += 1
            elif final is None:
                final = create_zero_observation(tree_map(lambda leaf: leaf[0], episode.observations))
            if not steps:
                continue
            last, extra = np.arange(steps) == steps - 1, (episode.extra or {}).items()
            infos = {key: np.concatenate([np.zeros_like(values[:1]), values[:steps]]) for key, values in extra}
            yield buffer(
                observations=tree_map(partial(_append_last, steps), episode.observations, final),
                actions=unflatten_actions(action_space, episode.actions[:steps]),
                rewards=episode.rewards[:steps, 0],
                terminations=last & episode.terminated,
                truncations=last & (not episode.terminated),
                infos=infos or None,
            )
            found["episodes"] += 1
            found["steps"] += steps

    spaces_of_data = {"observation_space": observation_space, "action_space": action_space}
    with convert_to_write_error(f"the Minari dataset {name!r}"):
        _check_disk(folder.parent, dataset)
        try:
            with warnings.catch_warnings(), _convert_system_errors():
                warnings.filterwarnings("ignore", ".* is (set to )?None", UserWarning)  # author and environment
                minari.create_dataset_from_buffers(name, buffers(), env=env, jpeg_encoding=False, **spaces_of_data)
            if not found["episodes"]:
                raise EmptyDataError("no episode has a step with a next observation: there is nothing to export")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return found


def _check_disk(folder: Path, dataset: ReplayBufferBase) -> None:
    """Raise an `OSError` if there is no space for a dataset, because a full disk ends the process in HDF5's library.

    The space is reserved for a moment, so that quotas count, too.
    """
    leaves = dataset.reader.storages[0].leaves.values()
    row = 2 + sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    episodes = dataset.size()
    numbers = (dataset.transition_count + episodes) * row
    while not folder.exists():
        folder = folder.parent
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        reserve_space(file.name, int(_CHUNKS * numbers) + episodes * (len(leaves) + 2) * _ARRAY)


@contextlib.contextmanager
def _convert_system_errors() -> Iterator[None]:
    """Raise an `OSError` in place of other errors of HDF5's library, whose text has the number of a system error."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if (number := re.search(r"\berrno = (\d+)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _append_last(steps: int, rows: Array, last: Array) -> Array:
    return np.concatenate([rows[:steps], np.asarray(last)[None]])


def _check_name(name: object) -> None:
    if not PATTERN.fullmatch(check("env_name", name, str)):
        raise ConfigError(
            f"{name!r} is not a name of a Minari dataset; names are such as 'mujoco/hopper/medium-v0', with the "
            "version at the end and only letters, digits, - and _ between slashes: give such a name"
        )


def _space(observations: Tree, data: Tree) -> spaces.Space[Any]:
    """Return the space of observations with these shapes and dtypes, without bounds."""
    if isinstance(observations, dict):
        return spaces.Dict({name: _space(part, data[name]) for name, part in observations.items()})
    if isinstance(observations, tuple):
        return spaces.Tuple([_space(*pair) for pair in zip(observations, data, strict=True)])
    if isinstance(observations, Choices):
        return observations.space
    kind = np.dtype(data.dtype)
    if kind.kind == "b":
        return spaces.MultiBinary(observations.shape)
    low, high = (-np.inf, np.inf) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return spaces.Box(low, high, observations.shape, kind.type)


def _is_goal(space: object) -> bool:
    return isinstance(space, spaces.Dict) and set(_GOAL) <= set(space.spaces)


def _converter(
    space: spaces.Space[Any], tuple_observation: bool, goal: bool, keys: Sequence[str] | None
) -> tuple[Callable[[Any], Tree], Tree]:
    """Return a function that converts Minari's observations, and the spec of its results; ``None`` if unknown."""
    if goal:
        return lambda given: concatenate_goal(given, *_GOAL, tuple_observation), None
    if is_channel_last(space):
        return lambda given: to_channel_first(np.asarray(given), len(space.shape or ())), None
    try:
        observations = observations_from_spaces(select_parts(leaf_spaces(space), keys))
    except EnvironmentMismatchError as error:
        raise ShapeError(str(error)) from error
    return lambda given: match_parts(observations, given), observations
