"""``birl install``: optional packages."""

from __future__ import annotations

import importlib.metadata
import shlex
import subprocess
import sys
from typing import Annotated

import typer

from birl.cli.common import note, print_table
from birl.errors import BirlError, ConfigError

EXTRAS = {
    "all": "Everything below.",
    "atari": "Atari 2600 environments (ale-py).",
    "d4rl": "Environments of the D4RL datasets (MuJoCo).",
    "envs": "Gymnasium's classic-control environments.",
    "logs": "Logs in Parquet, CSV, JSON lines and Arrow (pyarrow).",
    "minari": "Minari's datasets.",
    "mlflow": "Logging to MLflow.",
    "onnx": "Export to ONNX.",
    "plot": "Plots.",
    "ray": "Collectors on several machines (Ray).",
    "sql": "Logs from SQL queries (duckdb).",
    "tensorboard": "Logging to TensorBoard.",
    "tune": "Search for hyper-parameters (Optuna).",
    "video": "Videos (birl record).",
    "wandb": "Logging to Weights & Biases.",
}
"""The extras of the package with their purposes."""

_ALIASES = {"d4rl_atari": "atari", "d4rl-atari": "atari"}
_LIST = "list"


def install(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Extra to install; `list`, the default, lists them.")
    ] = _LIST,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command instead of running it.")] = False,
) -> None:
    """Install the optional packages of an extra with this Python's pip: pip install 'birl[NAME]'."""
    if name == _LIST:
        print_table(list(EXTRAS.items()))
        return
    extra = _ALIASES.get(name, name)
    if extra not in EXTRAS:
        raise ConfigError(f"{name!r} is not an extra; the extras are: {', '.join(EXTRAS)} (`birl install list`)")
    command = [sys.executable, "-m", "pip", "install", _requirement(extra)]
    if dry_run:
        print(shlex.join(command))
        return
    # Read the metadata: looking for the module would disable setuptools' distutils, which torch compiles with.
    if not list(importlib.metadata.distributions(name="pip")):
        raise BirlError(f"{sys.executable} has no pip: install {command[-1]!r} with the environment's own tool")
    note(shlex.join(command))
    status = subprocess.run(command, check=False).returncode
    if status:
        raise BirlError(f"pip could not install {command[-1]!r} (exit status {status}): see its output above")


def _requirement(extra: str) -> str:
    """Return the requirement for an extra of exactly the running version, never of another version or package."""
    try:
        version = importlib.metadata.version("birl")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            "birl runs from a source folder and is not installed as a package: install it from there, with "
            f"pip install -e '.[{extra}]'"
        ) from None
    return f"birl[{extra}]=={version}"
