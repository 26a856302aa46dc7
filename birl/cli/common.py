"""Arguments, messages and paths that the subcommands share. They need no PyTorch, see `birl.cli`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from tqdm import tqdm

from birl.errors import ConfigError
from birl.text import printable

BEST_MODEL: Final = "model_best.d3"

_MODEL: Final = re.compile(r"model_(\d+)\.d3")

# -- arguments and options ---------------------------------------------------------------------------------------------


def between(*, above: float | None = None, below: float | None = None) -> Callable[[Any], Any]:
    """Return a callback of an option that refuses a number which is not between these, both excluded.

    Typer's ``min`` and ``max`` include the bounds.
    """

    def checked(value: Any) -> Any:
        if value is not None and above is not None and not value > above:
            raise typer.BadParameter(f"it must be above {above:g}")
        if value is not None and below is not None and not value < below:
            raise typer.BadParameter(f"it must be below {below:g}")
        return value

    return checked


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
    float | None,
    typer.Option("--temperature", callback=between(above=0), help="Softmax policy over action values or logits."),
]
PolicyStd = Annotated[
    float | None,
    typer.Option(
        "--std",
        callback=between(above=0),
        help="Greedy continuous actions with Gaussian noise of this standard deviation.",
    ),
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


def print_line(text: object) -> None:
    """Print a result to standard output, without control characters of the terminal that names in files may have."""
    print("\n".join(map(printable, str(text).split("\n"))))


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
        print_line("  ".join(cells).rstrip() + (text and f"\n{text}"))


# -- the user's own code -----------------------------------------------------------------------------------------------


def import_user_module(name: str) -> object:
    """Import a user's module, also from the working folder, and return it, or the attribute of ``module:name``.

    ``name`` always comes from the command line: no file can cause an import.

    Raises:
        ConfigError: if there is no such module or attribute.
    """
    find_modules_here()
    module_name, colon, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
        return getattr(module, attribute) if colon else module
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name!r} cannot be imported: {error}. Give module or module:Class, the module in this folder or installed"
        ) from error


def find_modules_here() -> None:
    """Let Python find modules in the working folder."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)


# -- run folders -----------------------------------------------------------------------------------------------


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
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in paths if _MODEL.fullmatch(path.name)), key=step_of)


def step_of(model: Path) -> int:
    """Return the step after which a run saved one of its models."""
    match = _MODEL.fullmatch(model.name)
    assert match is not None
    return int(match[1])


def newest_model(folder: Path) -> Path | None:
    """Return the model of a run folder with the most steps, or ``None``."""
    models = models_of(folder)
    return models[-1] if models else None
