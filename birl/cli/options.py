"""Arguments and options that several subcommands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[Path, typer.Argument(metavar="DIR|MODEL", help="Run folder (its newest model) or model file.")]
EnvId = Annotated[
    str | None,
    typer.Option(help="Gymnasium id, or module:factory for an environment of your own; by default the run's."),
]
Best = Annotated[bool, typer.Option("--best", help="The best model of a run folder, not its newest.")]
Import = Annotated[
    str | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Module in this folder (or installed) that defines the encoders, algorithms and other classes of your "
        "own that settings or models name.",
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
Share = Annotated[float | None, typer.Option("--epsilon", min=0, max=1, help="EpsilonGreedy: share of random choices.")]
Temperature = Annotated[float | None, typer.Option(help="Softmax of action-values or logits.")]
Std = Annotated[float | None, typer.Option(help="Greedy quantities with Gaussian noise of this size.")]
Epsilon = Annotated[float, typer.Option(min=0, max=1, help="Share of random actions.")]
TargetReturn = Annotated[float | None, typer.Option(help="Return that a sequence model aims at.")]
EpisodeSeed = Annotated[
    int, typer.Option(min=0, max=2**32 - 1, help="Fixes the episodes: the seed of each reset is drawn from it.")
]

Save = Annotated[Path | None, typer.Option(help="Image to write (.png, .pdf, .svg) instead of a window.")]
Title = Annotated[str | None, typer.Option(help="Title.")]
ShowSteps = Annotated[bool, typer.Option("--show-steps", help="Steps instead of epochs along the x-axis.")]

# Of d3rlpy's command lines:
EnvHeader = Annotated[str | None, typer.Option(help="Not executed, unlike in d3rlpy: use --env-id module:factory.")]
UseGymnasium = Annotated[bool, typer.Option("--use-gymnasium", hidden=True, help="No effect: always so here.")]
