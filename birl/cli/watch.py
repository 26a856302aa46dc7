"""``birl ope watch``: compare new logs of a shipped policy with what was certified. It needs no PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from birl.cli.common import PolicyEpsilon, PolicyTemperature, between, note, print_line, print_table
from birl.cli.datasets import load_dataset
from birl.dataset.log_record import IMPORT, read_import_files
from birl.errors import ConfigError
from birl.ope.html_page import json_value, plain_text
from birl.ope.monitoring import as_json, read_certified
from birl.ope.monitoring import watch as compare
from birl.ope.monitoring_page import SENTENCES, write_watch


def watch(
    new: Annotated[Path, typer.Argument(metavar="DIR|FILE", help="New logs of the shipped policy, as episodes.")],
    certified: Annotated[
        Path, typer.Option("--certified", metavar="DIR|FILE", help="The episodes that certified the policy.")
    ],
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The report of birl ope report --out; without it, what the logs earned counts."
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="The shipped policy, if the report has several.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR|MODEL", help="The shipped policy as a file, whose probabilities are compared."),
    ] = None,
    epsilon: PolicyEpsilon = None,
    temperature: PolicyTemperature = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="LOGGER", help="The former policy, if it still acts: its name in the column of loggers."),
    ] = None,
    gamma: Annotated[float | None, typer.Option(min=0, max=1, help="Discount factor, if there is no report.")] = None,
    error: Annotated[float, typer.Option(callback=between(above=0, below=0.5), help="Error level of a check.")] = 0.01,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write watch.html and watch.json there.")] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare new logs with what was certified: inputs, actions and outcomes.

    New logs may be read as often as you like: outcomes keep their error level over all looks together.

    Exit status: 0 as certified, 3 outcomes are worse, 4 inputs or actions have changed, 5 too few episodes; 1 after an
    error.
    """
    if report is not None and gamma is not None:
        raise ConfigError(f"--gamma {gamma:g} and --report {report} both define the discount: leave --gamma out")
    if report is None and policy is not None:
        raise ConfigError(f"--policy {policy!r:.60} names a policy of a report: give --report")
    value = None if report is None else read_certified(report, policy)
    shipped, sampling = None, {"epsilon": epsilon, "temperature": temperature}
    if model is None and any(each is not None for each in sampling.values()):
        raise ConfigError("--epsilon and --temperature are for a policy: give its file with --model, or leave them out")
    if model is not None:
        from birl.cli.loading import load_evaluated_policy  # imports PyTorch

        shipped = load_evaluated_policy(model, "cpu", sampling, None)[1]
    record = _import_record(new)
    loggers = record.get("loggers")
    result = compare(
        load_dataset(str(new)),
        load_dataset(str(certified)),
        value,
        gamma=0.99 if gamma is None else gamma,
        policy=shipped,  # type: ignore[arg-type]
        baseline=None if baseline is None else _logger(baseline, loggers if isinstance(loggers, list) else []),
        error=error,
        names=names if isinstance(names := record.get("observation"), list) else None,
    )
    if out is not None:
        write_watch(out, result, {"new logs": str(new), "certified by": str(certified)})
    if as_json_:
        print(json.dumps(json_value(as_json(result))))
    else:
        print_line(f"{new}: {result.result}")
        print_line(f"  {SENTENCES[result.result]}")
        for each in result.checks:
            print_line(plain_text(f"  {each.name}: {each.text}"))
            if each.remedy:
                print_line(plain_text(f"    {each.remedy}"))
        rows = [[each.name, f"{each.stability:.3g}", f"{each.p_value:.2g}"] for each in result.columns if each.drifted]
        if rows:
            print_table([["COLUMN", "STABILITY INDEX", "P-VALUE"], *rows])
        if out is not None:
            note(f"{out / 'watch.html'}: the figures")
    raise typer.Exit(result.status)


def _import_record(data: Path) -> dict[str, object]:
    """Return the record of an import; empty for other data."""
    return read_import_files(data)[0] if (data / IMPORT).is_file() else {}


def _logger(name: str, loggers: list[object]) -> int:
    """Return the index of a logger."""
    names = [str(each) for each in loggers]
    if name not in names:
        known = ", ".join(names) or "no loggers: name their column in the schema"
        raise ConfigError(f"--baseline {name!r:.60} is no logger of the new logs; they have {known}")
    return names.index(name)
