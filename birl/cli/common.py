"""Arguments, messages, and loading of models, datasets and environments, shared by the subcommands."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer
from tqdm import tqdm

from birl import algos, datasets, ope
from birl.algorithm import Algorithm, load_learnable
from birl.algorithm.aliases import alias_hint
from birl.config import AlgorithmConfig
from birl.dataset import InfiniteBuffer, ReplayBuffer, Sampler, TransitionPickerProtocol
from birl.dataset.logs.files import table_format
from birl.envs import make_env
from birl.errors import ConfigError, FileError, ForeignFileError
from birl.ope.html_page import printable
from birl.types import Environment

AnyAlgorithm: TypeAlias = Algorithm[Any, Any]
BEST_MODEL: Final = "model_best.d3"

_MODEL: Final = re.compile(r"model_(\d+)\.d3")

# -- arguments and options ---------------------------------------------------------------------------------------------

Model = Annotated[Path, typer.Argument(metavar="DIR|MODEL", help="Run folder (its newest model) or model file.")]
EnvId = Annotated[
    str | None,
    typer.Option(help="Gymnasium id, or module:factory for an environment of your own; by default the run's."),
]
Best = Annotated[bool, typer.Option("--best", help="Use the best model of a run folder, not its newest.")]
Import = Annotated[
    str | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Module in this folder (or installed) that defines your own encoders, algorithms and other classes that "
        "settings or models name.",
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
PolicyEpsilon = Annotated[
    float | None,
    typer.Option("--epsilon", min=0, max=1, help="Epsilon-greedy policy with this share of random actions."),
]
PolicyTemperature = Annotated[
    float | None, typer.Option("--temperature", help="Softmax policy over action values or logits.")
]
PolicyStd = Annotated[
    float | None,
    typer.Option("--std", help="Greedy continuous actions with Gaussian noise of this standard deviation."),
]
Epsilon = Annotated[float, typer.Option(min=0, max=1, help="Share of random actions.")]
TargetReturn = Annotated[float | None, typer.Option(help="Return that a sequence model aims at.")]
EpisodeSeed = Annotated[
    int, typer.Option(min=0, max=2**32 - 1, help="Seed from which the seeds of all episodes are derived.")
]

Save = Annotated[Path | None, typer.Option(help="Image to write (.png, .pdf, .svg) instead of opening a window.")]
Title = Annotated[str | None, typer.Option(help="Title of the picture.")]
ShowSteps = Annotated[bool, typer.Option("--show-steps", help="Steps instead of epochs along the x-axis.")]

# Options of d3rlpy's command line:
EnvHeader = Annotated[
    str | None, typer.Option(help="Refused, as birl executes no code of the command line: use --env-id module:factory.")
]
UseGymnasium = Annotated[bool, typer.Option("--use-gymnasium", hidden=True, help="No effect: birl uses Gymnasium.")]


def flags(names: Iterable[str]) -> str:
    """Return the options as they are written on the command line."""
    return " and ".join("--" + name.rstrip("_").replace("_", "-") for name in names)


def with_options(
    kind: type[Any], default_of: Callable[[dataclasses.Field[Any]], object] = attrgetter("default")
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command whose parameter ``options`` takes a dataclass: each of its fields becomes an option.

    Args:
        kind: the dataclass. Its fields are annotated like parameters of a typer command.
        default_of: returns the default of an option, or typer's description of it.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        hints = typing.get_type_hints(kind, include_extras=True)
        parameters = [parameter for name, parameter in own.items() if name != "options"]
        for field in dataclasses.fields(kind):
            keyword, default = inspect.Parameter.KEYWORD_ONLY, default_of(field)
            parameters.append(inspect.Parameter(field.name, keyword, default=default, annotation=hints[field.name]))

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            options = kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            command(**values, options=options)

        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


# -- messages ----------------------------------------------------------------------------------------------------------


def note(text: str) -> None:
    """Print a message to standard error; standard output is for results."""
    tqdm.write("\n".join(map(printable, text.split("\n"))), file=sys.stderr)  # above the progress bar, if there is one


def print_table(rows: Sequence[Sequence[str]], right: bool = False, below: Sequence[str] = ()) -> None:
    """Print rows in columns of equal width.

    Args:
        rows: cells of each row.
        right: whether all columns but the first are aligned on the right.
        below: text under each row, empty for none.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, text in zip(rows, below or [""] * len(rows), strict=True):
        cells = [f"{cell:{'>' if right and place else '<'}{widths[place]}}" for place, cell in enumerate(row)]
        print("  ".join(cells).rstrip() + (text and f"\n{text}"))


# -- the user's own code -----------------------------------------------------------------------------------------------


def import_user_module(name: str) -> object:
    """Import a user's module, also from the working folder, and return it, or the attribute of ``module:name``.

    ``name`` always comes from the command line: no file can cause an import.

    Raises:
        ConfigError: if there is no such module or attribute.
    """
    _find_modules_here()
    module_name, colon, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
        return getattr(module, attribute) if colon else module
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name!r} cannot be imported: {error}. Give module or module:Class, the module in this folder or installed"
        ) from error


def _find_modules_here() -> None:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)


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
        if alias := alias_hint(name):
            raise ConfigError(f"no algorithm is called {name!r}{alias}")
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


# -- models and policies -----------------------------------------------------------------------------------------------

_NO_BEST = "the folder {} has no model_best.d3: only runs that are evaluated in an environment (--env-id) keep one"
_NO_MODEL = "the folder {} has no model_<step>.d3: train there first, or give a model file"


def runs_of_seeds(folder: Path) -> list[Path]:
    """Return the run folders in the folder of several seeds, in the order of the seeds."""
    runs = [path for path in folder.glob("seed_*") if path.is_dir() and path.name[5:].isdecimal()]
    return sorted(runs, key=lambda path: int(path.name[5:]))


def runs_of(path: Path) -> list[Path]:
    """Return the folder itself if it has metrics, otherwise the run folders of several seeds in it."""
    return [path] if any(path.glob("*.csv")) else runs_of_seeds(path)


def several_runs(folder: Path) -> str:
    """Return a message about a folder with one run for each of several seeds; empty for other folders."""
    runs = runs_of_seeds(folder)
    return f"{folder} holds one run for each of {len(runs)} seeds: give one of them, {runs[0]}" if runs else ""


def models_of(folder: Path) -> list[Path]:
    """Return the models of a run folder in the order of training."""
    return sorted((path for path in folder.iterdir() if _MODEL.fullmatch(path.name)), key=step_of)


def step_of(model: Path) -> int:
    """Return the step after which a run saved one of its models."""
    match = _MODEL.fullmatch(model.name)
    assert match is not None
    return int(match[1])


def newest_model(folder: Path) -> Path | None:
    """Return the model of a run folder with the most steps, or ``None``."""
    models = models_of(folder)
    return models[-1] if models else None


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
    asked = {name: value for name, value in sampling.items() if value is not None}
    if len(asked) > 1:
        raise ConfigError(f"give one of {flags(asked)}: they make different policies")
    if path.is_file() and not best:
        try:
            policy = ope.load_policy(path, device)
        except ForeignFileError:
            pass  # a model; load_model reports other files
        else:
            if asked:
                raise ConfigError(f"{path} is a stochastic policy already: leave out {flags(asked)}")
            return path, policy
    file, algorithm = load_model(path, device, module, best)
    for name, value in asked.items():
        return file, _SAMPLED_POLICIES[name](algorithm, value)
    return file, algorithm


# -- datasets and environments -----------------------------------------------------------------------------------------


def load_dataset(
    name: str, picker: TransitionPickerProtocol | None = None, sampler: Sampler | None = None
) -> ReplayBuffer:
    """Load an h5 file, a folder of steps, or a dataset by its name for `birl.datasets.get_dataset`.

    Args:
        name: file, folder or name.
        picker: makes transitions from steps; by default the picker of the dataset.
        sampler: samples the steps of minibatches; uniformly by default.

    Raises:
        ConfigError, FileError: if neither exists.
    """
    path = Path(name)
    if path.suffix in (".h5", ".hdf5") and not path.exists():
        raise FileError(f"there is no file {name!r}: give the path of an .h5 file or the name of a dataset")
    if (path / "storage.json").is_file():
        return ReplayBuffer.open(path, picker, sampler=sampler)
    if table_format(path) and path.is_file():
        raise ForeignFileError(
            f"{name!r} is a table: birl data schema {name} > schema.toml describes its columns, and birl data import "
            f"{name} --schema schema.toml --out episodes makes the folder to give here"
        )
    if name not in datasets.NAMES and path.is_file():
        return ReplayBuffer.load(name, InfiniteBuffer(), transition_picker=picker, sampler=sampler)
    # Names of Minari have a slash. Its files name an environment, which is not needed here, so it is not made.
    options: dict[str, Any] = {"make_environment": False} if "/" in name else {}
    try:
        return datasets.get_dataset(name, transition_picker=picker, sampler=sampler, **options)[0]
    except ConfigError as error:
        if path.is_dir():
            raise FileError(
                f"{name!r} is a folder without episodes: give one that birl data import or birl data split wrote, the "
                "path of an .h5 file, or the name of a dataset"
            ) from error
        raise ConfigError(
            f"there is no file or folder {name!r} (birl data import and birl data split write folders), and {error}"
        ) from error


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
        _find_modules_here()
    try:
        return make_env(name, num_envs, wrapper=wrapper, action_mask=action_mask, **options)
    except TypeError as error:
        if not any(option in str(error) for option in options):
            raise
        if ":" not in name:
            raise ConfigError(f"the environment {name} cannot be made with {options}: {error}") from error
        return make_env(name, num_envs, wrapper=wrapper, action_mask=action_mask)
