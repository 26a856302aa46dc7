"""``birl export``: a policy without birl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from birl.cli.common import load_model
from birl.cli.options import Best, Import
from birl.errors import ConfigError


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model file, or the folder of a run (newest model).")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .onnx, .pt (TorchScript) or .pt2.")],
    best: Best = False,
    batched: Annotated[
        bool,
        typer.Option(
            "--batched", help="Sequence models: inputs are contexts of any number of episodes at once, not of one."
        ),
    ] = False,
    own: Import = None,
) -> None:
    """Export the greedy policy with its scalers, and check the file against the policy."""
    source, algorithm = load_model(model, "cpu", own, best)
    if batched and not algorithm.learns_from.contexts:
        raise ConfigError(
            f"--batched: {source} is no sequence model; it takes any number of observations: leave it out"
        )
    algorithm.save_policy(out, **({"batched": True} if batched else {}))
    print(f"{out}: the greedy policy of {source}, checked against it")
