"""``birl convert``: a model of d3rlpy, as a model of birl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import birl.algos  # noqa: F401  read_d3rlpy finds algorithms by name
from birl.cli.common import print_line
from birl.compat.d3rlpy_models import read_d3rlpy
from birl.errors import ConfigError


def convert(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Model that d3rlpy 2 saved (.d3).")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="File to write, for birl.load_learnable.")],
) -> None:
    """Convert a model of d3rlpy without running code of its pickle file.

    Only plain values, dicts and tensors are read. A file that names anything else is refused.
    """
    if new.exists() and old.exists() and new.samefile(old):
        raise ConfigError(f"{new} is the model to convert, which would be overwritten: give NEW another name")
    algorithm = read_d3rlpy(old)
    algorithm.save(new)
    name = type(algorithm).__name__
    print_line(f"{new}: {name} of {old}: networks, scalers and settings; optimisers start from scratch")
