"""Saving and loading of models, and exports of policies."""

from __future__ import annotations

import contextlib
import itertools
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from birl import seeding
from birl._version import __version__
from birl.acting.built_policy import BuiltPolicy
from birl.acting.export import PolicyModule, export_policy
from birl.algorithm.augmented_losses import make_networks, skip_addon_parameters
from birl.algorithm.building import checked_spec
from birl.algorithm.learner import Learner
from birl.checks import check, named_arguments
from birl.config import AlgorithmConfig, read_json_config
from birl.dataset.log_record import LogRecord
from birl.errors import (
    BirlError,
    ConfigError,
    CorruptFileError,
    FileError,
    ForeignFileError,
    ShapeError,
    UnloadableModelWarning,
    UnsupportedError,
    outside_birl,
)
from birl.files import load_archive, save_archive
from birl.files.reading import MAX_NETWORK_ARRAYS
from birl.files.serializable import Serializable
from birl.files.state_restore import convert_to_corrupt_error, restore_on_error
from birl.run.checkpoint import differences
from birl.spaces.observations import columns_from_json, merge_columns, observations_from_json
from birl.spaces.specs import Spec
from birl.types import State, Tree, tree_map

File = str | Path | BinaryIO
_OF_NETWORKS = ("EncoderFactory", "QFunctionFactory", "DistributionFactory")
"""Kinds of factories that determine which function networks compute with given parameters."""
_EXAMPLES = 64  # number of example observations for exports: enough for all values of most choices


def save(learner: Learner, fname: File) -> None:
    """See `Algorithm.save`."""
    learner.engine.check_finite()
    state = learner.engine.get_state()
    if learner.evaluated is not None:
        state["policy"] = learner.evaluated.policy_state()
    _check_loadable(learner, fname)
    save_archive(fname, "model", {**learner.describe(), "birl": __version__}, state)


def _check_loadable(learner: Learner, fname: File) -> None:
    """Warn if `load_learnable` would refuse the networks, whenever these have changed since the last check.

    The parameters are saved nevertheless: they may be the only result of a run.
    """
    tensors = learner.nets.state_dict()
    checked = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    if checked == learner.saved_tensors:
        return
    learner.saved_tensors = checked
    try:
        with seeding.preserve_random_state(), seeding.preserve_seed():
            seeding.seed(0)
            config, spec = read_description(learner.describe())
            problem = network_difference(planned_networks(config, spec, len(tensors)), tensors)
    except Exception as error:  # a user's factory can raise any error
        problem = f"its networks cannot be made from its configuration ({type(error).__name__}: {error!s:.200})"
    if problem:
        warnings.warn(
            f"load_learnable will refuse {fname!s:.100}: {problem}. Factories must make the same networks whenever "
            "their own fields are the same, without random sizes, counters or values from outside; networks that were "
            "changed afterwards are loaded with load_model, after the same changes",
            UnloadableModelWarning,
            stacklevel=outside_birl(),
        )


def network_difference(planned: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Describe the first tensor that differs between the networks of a configuration and those that are given."""

    def text(tensors: Mapping[str, Tensor], name: str) -> str:
        found = tensors.get(name)
        return "does not exist" if found is None else f"is {str(found.dtype)[6:]} of shape {tuple(found.shape)}"

    for name in [*given, *(name for name in planned if name not in given)]:
        here, there = text(given, name), text(planned, name)
        if here != there:
            return f"the parameter {name!r} {here}, and {there} in the networks that the configuration describes"
    return ""


def save_model(learner: Learner, fname: File) -> None:
    """See `Algorithm.save_model`."""
    learner.engine.check_finite()
    state = learner.engine.get_state()
    if learner.running:
        state["running"] = {name: scaler.get_state() for name, scaler in learner.running.items()}
    description = learner.describe()
    about = {"birl": __version__, "networks": _of_networks(description), "shapes": _of_shapes(description)}
    if "columns" in description:
        about["columns"] = description["columns"]
    save_archive(fname, "parameters", about, state)


def _of_shapes(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shapes in a description of a learner."""
    return {name: description[name] for name in ("observation_shape", "action_size")}


def _check_shapes(name: str, fname: File, saved: object, here: Mapping[str, Any]) -> None:
    """Raise `ShapeError` if parameters were saved for observations or actions of other shapes than ``here``."""
    if isinstance(saved, dict) and saved.keys() == here.keys() and saved != here:
        there, own = (
            f"observations of shape {each['observation_shape']} and action size {each['action_size']}"
            for each in (saved, here)
        )
        raise ShapeError(
            f"{fname} has parameters for {there}, this {name} has networks for {own}: build it with these "
            "shapes, or load the parameters of others"
        )


def _of_networks(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the meaning of parameters depends on: the algorithm, and the factories that make its networks."""
    fields = description["config"]["params"].items()
    factories = {name: value for name, value in fields if isinstance(value, dict) and value.get("kind") in _OF_NETWORKS}
    return {"algorithm": description["config"]["type"], "discrete_action": description["discrete_action"], **factories}


def load_model(learner: Learner, fname: File) -> None:
    """See `Algorithm.load_model`."""
    about, state = load_archive(fname, "parameters")
    description = learner.describe()
    different = differences(about.get("networks"), _of_networks(description)) if "networks" in about else []
    if different:  # parameters of equal shapes would give another function without an error
        raise ConfigError(
            f"{fname} has the parameters of other networks: {'; '.join(different)}. Give the configuration that was "
            "saved, or load single networks, as with copy_policy_from(other)"
        )
    _check_shapes(learner.name, fname, about.get("shapes"), _of_shapes(description))
    columns = learner.spec.fitting_columns(columns_from_json(about.get("columns")))
    merge_columns(learner.policy.columns, columns, f"this {learner.name}", str(fname))
    saved = state.get("running", {})
    if saved.keys() != learner.running.keys():
        there, here = (", ".join(each) or "none" for each in (saved, learner.running))
        raise ConfigError(
            f"{fname} was saved with running scalers: {there}; this {learner.name} has: {here}. Give it the "
            "configuration that was saved"
        )
    with restore_on_error({"engine": learner.engine, **learner.running}), convert_to_corrupt_error(fname):
        learner.engine.set_state(state)
        for name, scaler in learner.running.items():
            scaler.set_state(saved[name])
    learner.policy.columns.update(columns)


def save_policy(policy: BuiltPolicy, fname: str | Path) -> None:
    """See `Algorithm.save_policy`."""
    policy.set_mode(True)
    module = PolicyModule(policy)
    example = example_of(policy)
    export_policy(module, example, fname, states=module.states(example))


def example_of(policy: BuiltPolicy) -> Tree:
    """Return example observations for an export of the policy, as tensors."""
    return tree_map(lambda leaf: leaf.example(_EXAMPLES, policy.units.device), policy.spec.observations)


def from_json(kind: type[Any], fname: str | Path, device: bool | int | str | None) -> Any:
    """See `Algorithm.from_json`."""
    data = read_json_config(fname)
    name = data["config"].get("type") if isinstance(data["config"], dict) else None
    if name != kind.config_class.get_type():
        raise ForeignFileError(f"{fname} describes {name!r}, not {kind.config_class.get_type()!r}")
    with convert_to_corrupt_error(fname, "it describes no algorithm"):
        return rebuild(data, device)


@named_arguments
def load_learnable(fname: File, device: bool | int | str | None = False, enable_ddp: bool = False) -> Any:
    """Load an algorithm that `Algorithm.save` wrote, with its configuration, networks, optimisers and step counter.

    Args:
        fname: path or binary file.
        device, enable_ddp: see `AlgorithmConfig.create`.
    """
    check("enable_ddp", enable_ddp, bool)
    data, state = load_archive(fname, "model")
    with convert_to_corrupt_error(fname):
        algorithm = rebuild(data, device, state)
        algorithm.engine.set_state(state)
    algorithm.enable_ddp = enable_ddp
    return algorithm


def rebuild(data: dict[str, Any], device: bool | int | str | None, state: State | None = None) -> Any:
    """Return an algorithm with new networks, from the result of `Learner.describe`.

    Args:
        data: result of `Learner.describe`.
        device: see `AlgorithmConfig.create`.
        state: engine state to check against ``data``; the caller loads it. Only the evaluated policy is loaded here.
    """
    config, spec = read_description(data)
    kind: type[Any] = config.algorithm
    given = (_evaluated(kind, data, device, state),) if kind.evaluates else ()
    algorithm = kind(*given, config, device)
    # sizes are compared before anything is allocated
    with _name_factory():
        planned = planned_networks(algorithm.config, spec, MAX_NETWORK_ARRAYS if state is None else len(state["nets"]))
    if state is not None and (problem := network_difference(planned, state["nets"])):
        raise CorruptFileError(
            f"its parameters are not those of the networks that its configuration describes: {problem}"
        )
    with _name_factory(), contextlib.nullcontext() if state is None else skip_addon_parameters():
        algorithm.create_impl(spec.observations, spec.actions)
    algorithm.learner.logs = LogRecord.from_json(data["logs"]) if "logs" in data else None
    algorithm.learner.policy.columns.update(spec.fitting_columns(columns_from_json(data.get("columns"))))
    return algorithm


@contextlib.contextmanager
def _name_factory() -> Iterator[None]:
    """Raise an error that names the user's factory in place of an error of this factory: the model file is sound."""
    try:
        yield
    except BirlError:
        raise
    except Exception as error:
        callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
        own = [type(each) for each in callers if isinstance(each, Serializable)]
        if not own or own[-1].__module__.partition(".")[0] == "birl":
            raise
        text = (
            f"the factory {own[-1].__qualname__}, which the model names, raised {type(error).__name__}: {error!s:.300}"
        )
        if isinstance(error, OSError):
            raise FileError(f"{text}. Make this file available, as when the model was saved") from error
        raise ConfigError(
            f"{text}. The model file is undamaged: the factory must make the saved networks again"
        ) from error


def read_description(data: dict[str, Any]) -> tuple[AlgorithmConfig, Spec]:
    """Return the configuration and the shapes in the result of `Learner.describe`."""
    config = AlgorithmConfig.deserialize(data["config"])
    kind: type[Any] = config.algorithm
    observations = observations_from_json(data["observation_shape"], data.get("choices"))
    return config, checked_spec(kind.definition(), observations, data["action_size"], data.get("discrete_action"))


def _evaluated(kind: type[Any], data: dict[str, Any], device: bool | int | str | None, state: State | None) -> Any:
    """Return the policy that a saved evaluation evaluates.

    Raises:
        UnsupportedError: if there is no state, because ``params.json`` only describes the policy.
    """
    if state is None:
        raise UnsupportedError(f"{kind.__name__} needs its policy: call load_learnable with a model that the run saved")
    return kind.saved_policy(data["policy"], state["policy"], device)


def saved_policy(data: dict[str, Any], state: State, device: bool | int | str | None) -> Any:
    """Rebuild an algorithm from its description and policy state. It has new optimisers."""
    policy = rebuild(data, device, state)
    policy.engine.load_networks(state["nets"])
    policy.engine.grad_step = state["grad_step"]
    return policy


def planned_networks(config: AlgorithmConfig, spec: Spec, saved: int = MAX_NETWORK_ARRAYS) -> dict[str, Tensor]:
    """Return the tensors of the networks that a configuration describes, without allocating memory for them.

    Args:
        config: the algorithm's configuration.
        spec: observations and actions of the networks.
        saved: number of tensors in the file.

    Raises:
        CorruptFileError: as soon as there are far more parameters than the file can have.
    """
    most = min(2 * saved + 64, MAX_NETWORK_ARRAYS)
    counted = itertools.count(1)

    def count(*_: object) -> None:
        if next(counted) > most:
            raise CorruptFileError(
                f"its configuration describes networks of more than {most} parameters, and the file has {saved}: at "
                f"most {MAX_NETWORK_ARRAYS} are allowed"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"), warnings.catch_warnings():
            # Encoders that load their own weights copy them to tensors without memory here.
            warnings.filterwarnings("ignore", ".*non-meta parameter.*", UserWarning)
            kind: type[Any] = config.algorithm
            return dict(make_networks(kind.networks, kind.acts.network, spec, config).state_dict())
    finally:
        hook.remove()
