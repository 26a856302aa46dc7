"""Loading of algorithms, models, policies and environments for the subcommands."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from birl import algos, ope
from birl.acting.sequence_context import SoftmaxTransformerActionSampler, StatefulTransformerWrapper
from birl.algorithm import Algorithm, TransformerAlgorithm
from birl.algorithm.policy_api import PolicyAPI
from birl.base import load_learnable
from birl.cli.common import BEST_MODEL, find_modules_here, flags, import_user_module, newest_model, several_runs
from birl.config import AlgorithmConfig
from birl.envs import make_env
from birl.errors import ConfigError, FileError, ForeignFileError
from birl.habits import name_hint
from birl.ope.decision_table import SUFFIXES, DecisionTable
from birl.ope.evaluated_policies import (
    ClassifierPolicy,
    EvaluatedPolicy,
    HistoryPolicy,
    PredictingPolicy,
    ProbabilisticPolicy,
)
from birl.types import Environment

AnyAlgorithm: TypeAlias = Algorithm[Any, Any]

_NO_BEST = (
    "the folder {} has no model_best.d3: a run keeps one if it is evaluated in an environment (--env-id), without "
    "--no-best, and is not one of several seeds on logged data (--seeds). Leave --best out for the newest model"
)
_PICKLES: Final = (".pkl", ".pickle", ".joblib")
_NO_MODEL = "the folder {} has no model_<step>.d3: train there first, or give a model file"

# -- algorithms --------------------------------------------------------------------------------------------------------


def algorithm_classes() -> dict[str, type[AnyAlgorithm]]:
    """Return all algorithms of birl by name, sorted."""
    found = {name: getattr(algos, name) for name in sorted(algos.__all__)}
    return {name: value for name, value in found.items() if hasattr(value, "config_class")}


def algorithm_class(name: str) -> type[AnyAlgorithm]:
    """Find an algorithm by its name, ignoring case, ``_`` and ``-``, or the user's own by ``module:Class``.

    Raises:
        ConfigError: if there is none.
    """
    if ":" in name:
        return _user_algorithm(name)
    known = {_plain(key): value for key, value in algorithm_classes().items()}
    algorithm = known.get(_plain(name))
    for evaluation in ope.__all__:
        if _plain(name) == _plain(evaluation):
            raise ConfigError(
                f"{evaluation} evaluates the policy of a trained algorithm and is not trained by itself: in Python, "
                f"birl.ope.{evaluation}(algo).fit(dataset, …)"
            )
    if algorithm is None:
        if hint := name_hint(name):
            raise ConfigError(f"no algorithm is called {name!r}{hint}".replace("birl.algos.", ""))
        near = difflib.get_close_matches(_plain(name), known, 2)
        hint = f"Did you mean {' or '.join(known[key].__name__ for key in near)}? " if near else ""
        names = ", ".join(value.__name__ for value in known.values())
        raise ConfigError(
            f"no algorithm is called {name!r}. {hint}The algorithms are: {names}; for one of your own give module:Class"
        )
    return algorithm


def _user_algorithm(name: str) -> type[AnyAlgorithm]:
    found = import_user_module(name)
    if isinstance(found, type) and issubclass(found, AlgorithmConfig) and hasattr(found, "algorithm"):
        return found.algorithm
    if isinstance(found, type) and issubclass(found, Algorithm) and hasattr(found, "config_class"):
        return found
    raise ConfigError(f"{name} is {found!r:.80}; it must be a class derived from birl.Algorithm, or its configuration")


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


# -- models and policies ----------------------------------------------------------------------------------------------


def load_model(path: Path, device: str, module: str | None = None, best: bool = False) -> tuple[Path, AnyAlgorithm]:
    """Load a model file, or the newest or best model of a run folder.

    Args:
        path: file or folder.
        device: device of the networks.
        module: the user's ``module`` or ``module:Class`` that defines classes which the file names.
        best: whether to load the best model of the folder.

    Returns:
        The file and the algorithm.

    Raises:
        FileError: if there is no model.
    """
    if module is not None:
        import_user_module(module)
    file: Path | None = path
    if path.is_dir():
        file = path / BEST_MODEL if best else newest_model(path)
        if file is None or not file.exists():
            missing = _NO_BEST if best and newest_model(path) else _NO_MODEL
            raise FileError(several_runs(path) or missing.format(path))
    elif best:
        raise FileError(f"--best: {path} is no folder of a run; leave it out")
    elif not path.exists():
        raise FileError(f"there is no {path}: give a model file (.d3) or the folder of a run")
    assert file is not None
    try:
        return file, load_learnable(file, device)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


_SAMPLED_POLICIES: Final[Mapping[str, Callable[[AnyAlgorithm, float], ope.StochasticPolicy]]] = {
    "epsilon": ope.EpsilonGreedy,
    "temperature": ope.Softmax,
    "std": ope.Gaussian,
}


def load_policy(
    path: Path, device: str, sampling: Mapping[str, float | None], module: str | None = None, best: bool = False
) -> tuple[Path, AnyAlgorithm | ope.StochasticPolicy]:
    """Load the policy that a command evaluates or exports.

    Args:
        path: saved policy, model file, or folder of a run.
        device, module, best: see `load_model`.
        sampling: at most one of ``epsilon``, ``temperature`` and ``std``, which make a stochastic policy of a model.

    Returns:
        The file, and the saved policy, the stochastic policy, or the algorithm itself, whose policy is greedy.

    Raises:
        ConfigError: if several policies are asked for, or a saved policy is to be changed.
    """
    asked = _asked_sampling(sampling)
    file, policy = _load_saved(path, device, module, best)
    return file, _sampled(path, policy, asked)


def load_evaluated_policy(
    path: Path, device: str, sampling: Mapping[str, float | None], target_return: float | None
) -> tuple[Path, AnyAlgorithm | StatefulTransformerWrapper | EvaluatedPolicy]:
    """Load a policy that logs evaluate, as `load_policy` does, or a sequence model with its target return.

    A file .csv, .toml or .json is a decision table; ``module:name`` is a function, a classifier or another policy of
    the user's own.

    Args:
        path, device, sampling: see `load_policy`. A sequence model takes ``temperature`` only, with which it samples.
        target_return: target return of a sequence model; other policies ignore it.
    """
    asked = _asked_sampling(sampling)
    own = _load_own(path)
    if own is not None:
        if asked:
            raise ConfigError(
                f"{path} is no model, and {flags(asked)} changes models only: leave it out, and give probabilities in "
                "the table or in the function"
            )
        return path, own
    file, policy = _load_saved(path, device)
    if target_return is None or not isinstance(policy, TransformerAlgorithm):
        return file, _sampled(path, policy, asked)
    if set(asked) - {"temperature"}:
        raise ConfigError(f"{file} is a sequence model, which {flags(asked)} does not change: leave it out")
    sampler = SoftmaxTransformerActionSampler(asked["temperature"]) if asked else None
    return file, policy.as_stateful_wrapper(target_return, sampler)


def _load_own(path: Path) -> EvaluatedPolicy | None:
    """Load a decision table, or import a policy by ``module:name``; ``None`` for other paths."""
    if path.suffix in SUFFIXES and not path.is_dir():
        return DecisionTable.load(path)
    if path.suffix in _PICKLES:
        raise ConfigError(
            f"{path} is a pickle, which may run any code when it is read: write a module that loads it, with "
            "model = joblib.load(…), and give module:model"
        )
    if not is_import(path):
        return None
    found = import_user_module(str(path))
    if isinstance(found, PolicyAPI | ProbabilisticPolicy | PredictingPolicy | HistoryPolicy | DecisionTable):
        usable = not isinstance(found, type)
    else:
        usable = isinstance(found, ClassifierPolicy) or (callable(found) and not isinstance(found, type))
    if not usable:
        raise ConfigError(
            f"{path} is {found!r:.80}; it must be a function of observations, a classifier with predict, or an object "
            "with action_probability(x, action=None): give such an object, not its class"
        )
    return cast(EvaluatedPolicy, found)


def is_import(path: Path) -> bool:
    """Return whether a path is ``module:name`` and no file."""
    return ":" in str(path) and not path.exists()


def _asked_sampling(sampling: Mapping[str, float | None]) -> dict[str, float]:
    """Return the given options of sampling, at most one."""
    asked = {name: value for name, value in sampling.items() if value is not None}
    if len(asked) > 1:
        raise ConfigError(f"give one of {flags(asked)}: they make different policies")
    return asked


def _load_saved(
    path: Path, device: str, module: str | None = None, best: bool = False
) -> tuple[Path, AnyAlgorithm | ope.StochasticPolicy]:
    """Load a saved policy or a model."""
    if path.is_file() and not best:
        try:
            return path, ope.load_policy(path, device)
        except ForeignFileError:
            pass  # a model; load_model reports other files
    return load_model(path, device, module, best)


def _sampled(
    path: Path, policy: AnyAlgorithm | ope.StochasticPolicy, asked: Mapping[str, float]
) -> AnyAlgorithm | ope.StochasticPolicy:
    """Return the policy, or the stochastic one that an option makes of an algorithm."""
    for name, value in asked.items():
        if isinstance(policy, ope.StochasticPolicy):
            raise ConfigError(f"{path} is a stochastic policy already: leave out {flags(asked)}")
        return _SAMPLED_POLICIES[name](policy, value)
    return policy


# -- environments -----------------------------------------------------------------------------------------


def make_environment(
    name: str,
    num_envs: int | None = None,
    wrapper: Callable[[Environment], Environment] | None = None,
    action_mask: bool = False,
    **options: Any,
) -> Environment:
    """Call `birl.envs.make_env`, with ``module:factory`` also from the working folder.

    Args:
        name, num_envs, wrapper, action_mask: see `birl.envs.make_env`.
        **options: options of the environment; a factory that does not take them is called without them.
    """
    if ":" in name:
        find_modules_here()
    try:
        return make_env(name, num_envs, wrapper=wrapper, action_mask=action_mask, **options)
    except TypeError as error:
        if not options or not any(part in str(error) for part in (*options, "takes no arguments")):
            raise
        if ":" not in name:
            raise ConfigError(f"the environment {name} cannot be made with {options}: {error}") from error
        return make_env(name, num_envs, wrapper=wrapper, action_mask=action_mask)
