"""``birl data``: propose schemas, import, export, report on and split logs."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from birl import datasets
from birl.cli.common import (
    note,
    print_line,
    print_table,
)
from birl.cli.datasets import load_dataset
from birl.dataset import LogSchema, write_parquet
from birl.dataset.log_record import IMPORT
from birl.dataset.logs.files import import_files
from birl.dataset.logs.proposal import NO_REWARD, propose
from birl.dataset.logs.query import Query
from birl.dataset.logs.splits import split as split_folder
from birl.datasets.minari import PATTERN, write_minari
from birl.errors import ConfigError, CorruptFileError
from birl.files import parse_json
from birl.text import format_time

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Logs = Annotated[
    list[str] | None,
    typer.Argument(metavar="LOGS…", help="Files .parquet, .csv, .tsv, .jsonl or .arrow, or patterns in quotes."),
]
Sql = Annotated[str | None, typer.Option(metavar="QUERY", help="Instead of files: the result of this duckdb query.")]
Database = Annotated[Path | None, typer.Option(metavar="FILE", help="For --sql: a duckdb database with the tables.")]


@app.command(short_help="Propose a schema of a log's columns.")
def schema(logs: Logs = None, sql: Sql = None, database: Database = None) -> None:
    """Print a schema to read and correct: birl data schema 'logs/*.parquet' > schema.toml.

    Each line gives its reason. If several columns could have a role, all are listed and none is assigned.
    """
    proposal = propose(_sources(logs, sql, database))
    print_line(proposal.text.removesuffix("\n"))
    if "reward" in proposal.missing:  # on stderr, so that it is visible even if stdout is redirected
        note(NO_REWARD)


@app.command("import", short_help="Write logs or another program's data as episodes.")
def import_(
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder, for --dataset.")],
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOGS…",
            help="Files .parquet, .csv, .tsv, .jsonl or .arrow, or patterns in quotes; files or a folder of --format.",
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Schema (.toml), such as `birl data schema` proposes.")
    ] = None,
    sql: Sql = None,
    database: Database = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help=f"Format of another program: {', '.join(datasets.FORMATS)}."),
    ] = None,
    observation: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="For --format: a part of the observations to read; can be repeated."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="For --format: an argument of its function, such as dones=last."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace the import in DIR, with the parts of its splits.")
    ] = False,
) -> None:
    """Read logs of any size into a folder of episodes. Its import.json counts the rows that were kept and dropped.

    Tables need a --schema. Files of other programs have a --format, which birl finds out if it is left out.
    """
    if schema is None:
        if sql is not None or database is not None:
            raise ConfigError("--sql needs --schema: birl data schema --sql … proposes one")
        _import_format(logs, format_, out, observation, option, fresh)
        return
    if format_ is not None or observation or option:
        raise ConfigError("--schema is for tables, and --format, --observation and --option for others: give one kind")
    record = import_files(_sources(logs, sql, database), LogSchema.load(schema), out, fresh=fresh)
    episodes, ended = record["episodes"], record["terminated"]
    print_line(
        f"{out}: {episodes} episodes, {ended} of them terminated, {record['rows_out']} of {record['rows_in']} rows"
    )
    for rule, count in record["dropped"].items():
        note(f"left out: {count['episodes']} episodes, {count['rows']} rows: {rule}")
    if record.get("duplicates"):
        note(f"left out: {record['duplicates']} rows with the episode and time of another row")
    if record.get("interleaved"):
        note(
            f"the schema names no time, and rows of {record['interleaved']} episodes are interleaved with others: "
            "their steps are in the order of the log. If this is not the order in time, name a time column in the "
            "schema"
        )
    if record.get("censored"):
        note(f"censored: {record['censored']} episodes had not ended when the log ended")
    if record.get("pending"):
        since, end = (format_time(record[name], record["time"] == "dates") for name in ("pending_since", "log_end"))
        note(
            f"pending: {record['pending']} episodes, the first from {since}, have rewards that were not final when the "
            f"log ended ({end}): evaluations leave out episodes from then on"
        )


def _import_format(
    paths: list[str] | None,
    name: str | None,
    out: Path,
    observation: list[str] | None,
    options: list[str] | None,
    fresh: bool,
) -> None:
    """Import files of another program."""
    if not paths:
        raise ConfigError("there are no files: give a file or folder")
    given: dict[str, object] = {"observation_keys": observation} if observation else {}
    for each in options or ():
        key, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"--option {each!r:.60} is not NAME=VALUE: give one such as dones=last")
        given[key] = value
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        record = datasets.import_format(paths, name, out, given, fresh=fresh)
    for warning in caught:
        note(str(warning.message))
    print_line(
        f"{out}: {record['episodes']} episodes, {record['terminated']} of them terminated, {record['rows_out']} steps, "
        f"format {record['format']}"
    )


@app.command(short_help="Write episodes as Parquet or for Minari.")
def export(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Folder of steps, .h5 file or name of a dataset.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="File .parquet, or name of a Minari dataset: my/shop-v0.")],
    env_id: Annotated[str | None, typer.Option(metavar="ID", help="For Minari: the environment of the steps.")] = None,
) -> None:
    """Write all episodes of DATA for other programs. A Parquet file comes with the schema that reads it again."""
    dataset = load_dataset(data)
    if PATTERN.fullmatch(to):
        counts = write_minari(dataset, to, env_id)
        print_line(f"{to}: {counts['episodes']} episodes, {counts['steps']} steps")
        if counts["left_out"]:
            note(f"left out: {counts['left_out']} last steps of truncated episodes, whose next observation is unknown")
        return
    if env_id is not None or not to.endswith(".parquet"):
        what = f"--env-id {env_id} is for Minari" if env_id is not None else f"{to!r:.80} has an unknown format"
        raise ConfigError(f"{what}: write to a .parquet file, or to the name of a Minari dataset, such as my/shop-v0")
    counts = write_parquet(dataset, to, loggers=_import_record(data).get("loggers", []))
    print_line(f"{to}: {counts['episodes']} episodes, {counts['rows']} rows")
    if not counts["schema"]:
        note("without a schema: birl data import reads only vector observations, and discrete or continuous actions")


@app.command(short_help="Report what episodes can be used for.")
def report(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Folder of steps, .h5 file or name of a dataset.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE|DIR", help="Page to write; report.html in DIR.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE|DIR", help="The report as JSON.")] = None,
    other: Annotated[
        list[str] | None, typer.Option(metavar="DATA", help="Another part of the same logs; can be repeated.")
    ] = None,
    gamma: Annotated[float, typer.Option(min=0, max=1, help="Discount factor.")] = 0.99,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Report whether DATA is fit for learning and evaluation, with doubts and advice.

    DATA is not changed. The page is self-contained and runs no scripts.
    """
    record = _import_record(data)
    from birl.ope.audit.report import report_data  # here, because the other commands need not import it

    result = report_data(
        load_dataset(data),
        others={name: load_dataset(name) for name in other or ()},
        gamma=gamma,
        title=Path(data).name or data,
        names=record.get("observation"),
        actions=names if isinstance(names := record.get("actions"), list) else None,
        loggers=record.get("loggers", []),
        seed=seed,
    )
    if out is not None or json is not None:
        result.save(html=_in_folder(out, "report.html"), json=_in_folder(json, "report.json"))
    messages = result.messages().values()
    size = {name: value for check in result.checks[:1] for name, value in {**check.facts, **check.numbers}.items()}
    print_line(
        f"{data}: {size['episodes']} episodes, {size['steps']} steps; {len(messages)} doubt{'s' * (len(messages) != 1)}"
    )
    for refused, message in messages:
        print_line(f"{'refused' if refused else 'doubtful'}: {message}")
    for advice in result.advice:
        print_line(f"advice: {advice.pattern}: {advice.advice} ({advice.source})")


@app.command(short_help="Split episodes into parts.")
def split(
    data: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `birl data import` wrote.")],
    by: Annotated[
        str,
        typer.Option(help="Unit of the split: cluster if the schema names one, otherwise episode; or time."),
    ] = "episode",
    shares: Annotated[
        str, typer.Option(help="Names of the parts and their shares of the episodes.")
    ] = "train=.6,select=.2,certify=.2",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the parts; by default DIR.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace all parts of earlier splits, whatever their names.")
    ] = False,
) -> None:
    """Split a folder of episodes into disjoint parts for training, selecting and certifying policies."""
    parts = _shares(shares)
    written = split_folder(data, by, parts, out=out, seed=seed, fresh=fresh)
    columns = list(next(iter(written.values())))
    folder = data if out is None else out
    rows = [[str(folder / name), *map(str, counts.values())] for name, counts in written.items()]
    print_table([["PART", *map(str.upper, columns)], *rows], right=True)
    if (total := math.fsum(parts.values())) < 1 - 1e-9:
        note(f"the shares sum to {total:.6g}: the remaining episodes are in no part")


def _in_folder(path: Path | None, name: str) -> Path | None:
    """Return ``path``, or the file ``name`` in it if ``path`` is a folder."""
    return path / name if path is not None and path.is_dir() else path


def _import_record(data: str) -> dict[str, Any]:
    """Return the contents of ``import.json`` of an imported folder; empty for other data."""
    file = Path(data) / IMPORT
    record = parse_json(file.read_bytes(), str(file)) if file.is_file() else {}
    if not isinstance(record, dict):
        raise CorruptFileError(f"{file} is not a JSON object: import the logs again")
    return record


def _sources(logs: list[str] | None, sql: str | None, database: Path | None) -> list[str | Query]:
    if sql is None and database is not None:
        raise ConfigError(f"--database {database} needs --sql: give a query, or leave --database out")
    if (sql is None) == (not logs):
        raise ConfigError(
            "there are no logs: give files, or a query with --sql" if sql is None else "give files or --sql, not both"
        )
    return [*(logs or ())] if sql is None else [Query(sql, None if database is None else str(database))]


def _shares(text: str) -> dict[str, float]:
    """Parse ``name=share,…``."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = part.partition("=")
        try:
            value = float(share)
        except ValueError:
            value = math.nan
        if not equals or value != value or name.strip() in shares:
            raise ConfigError(
                f"--shares {text!r:.80}: {part!r:.40} is not name=share: give shares such as train=.6,certify=.4"
            )
        shares[name.strip()] = value
    return shares
