"""``birl export``: a policy as a file that runs without birl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from birl.cli.common import (
    Best,
    Import,
    PolicyEpsilon,
    PolicyStd,
    PolicyTemperature,
    import_user_module,
    note,
    print_line,
)
from birl.cli.loading import AnyAlgorithm, load_policy
from birl.dataset.log_record import LogRecord, check_same_columns, load_record
from birl.errors import ConfigError, ForeignFileError
from birl.ope import StochasticPolicy


def export(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Model file, saved policy, or the folder of a run (newest model).")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .onnx, .pt (TorchScript) or .pt2.")],
    best: Best = False,
    epsilon: PolicyEpsilon = None,
    temperature: PolicyTemperature = None,
    std: PolicyStd = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Imported logs with the columns that the policy reads, if its model does not name them."
        ),
    ] = None,
    batched: Annotated[
        bool,
        typer.Option(
            "--batched", help="For sequence models: the inputs are the contexts of a batch of episodes, not of one."
        ),
    ] = False,
    import_: Import = None,
) -> None:
    """Export a policy with its scalers, and check the file against the policy.

    An ONNX file comes with OUT.schema.json: its columns, encodings, actions, and how it samples.
    """
    if import_ is not None:
        import_user_module(import_)
    sampling = {"epsilon": epsilon, "temperature": temperature, "std": std}
    source, policy = load_policy(model, "cpu", sampling, import_, best)
    if batched and (isinstance(policy, StochasticPolicy) or not policy.learns_from.contexts):
        raise ConfigError(
            f"--batched: {source} is not a sequence model and takes batches of observations anyway: leave it out"
        )
    options: dict[str, Any] = {"batched": True} if batched else {}
    logs = None if dataset is None else _read_logs(dataset, policy, source)
    what = "stochastic policy" if isinstance(policy, StochasticPolicy) else "greedy policy"
    if out.suffix != ".onnx":
        if dataset is not None:
            raise ConfigError(
                f"--dataset: its columns are for the schema of an .onnx file, and {out} is not one: leave it out"
            )
        policy.save_policy(out, **options)
        print_line(f"{out}: the {what} of {source}, checked against it")
        return
    schema = policy.export(out, logs, **options)
    print_line(f"{out}: the {what} of {source}, checked against it; {schema}: its inputs and outputs")
    if logs is None and policy.logs is None and not policy.columns.keys() - {"action"}:
        note(
            f"{source} does not name the numbers of its observations, so {schema} numbers them; if it has learned from "
            "imported logs, --dataset DIR names them"
        )


def _read_logs(dataset: Path, policy: AnyAlgorithm | StochasticPolicy, source: Path) -> LogRecord:
    record = load_record(dataset)
    if record is None:
        raise ForeignFileError(f"{dataset} has no import.json: give a folder that `birl data import` or `split` wrote")
    check_same_columns(policy.logs, record, str(source), str(dataset))
    return record
