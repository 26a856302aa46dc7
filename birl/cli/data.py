"""``birl data``: logs become episodes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from birl.cli.common import load_dataset, note, print_table
from birl.dataset import LogSchema, write_parquet
from birl.dataset.log_record import IMPORT
from birl.dataset.logs.files import import_files
from birl.dataset.logs.proposal import NO_REWARD, propose
from birl.dataset.logs.query import Query
from birl.dataset.logs.splits import split as split_folder
from birl.datasets.minari import PATTERN, write_minari
from birl.errors import ConfigError, CorruptFileError
from birl.files import parse_json
from birl.ope import report_data
from birl.ope.html_page import printable

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Logs = Annotated[
    list[str] | None,
    typer.Argument(metavar="LOGS…", help="Files .parquet, .csv, .tsv, .jsonl or .arrow, or patterns in quotes."),
]
Sql = Annotated[str | None, typer.Option(metavar="QUERY", help="Instead of files: what this query of duckdb gives.")]
Database = Annotated[Path | None, typer.Option(metavar="FILE", help="For --sql: a database of duckdb with the tables.")]


@app.command(short_help="Propose what a log's columns mean.")
def schema(logs: Logs = None, sql: Sql = None, database: Database = None) -> None:
    """Print a schema, to be read and corrected: birl data schema 'logs/*.parquet' > schema.toml.

    Each line says why. Where several columns could have a role, they are listed and none is chosen.
    """
    proposal = propose(_sources(logs, sql, database))
    print(proposal.text, end="")
    if "reward" in proposal.missing:  # who writes the schema to a file sees this all the same
        note(NO_REWARD)


@app.command("import", short_help="Write logs as episodes, by a schema.")
def import_(
    schema: Annotated[Path, typer.Option(metavar="FILE", help="Schema (.toml), as `birl data schema` proposes it.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder, for --dataset.")],
    logs: Logs = None,
    sql: Sql = None,
    database: Database = None,
) -> None:
    """Read logs of any size into a folder of episodes, with import.json: what went in, what left, and why."""
    found = import_files(_sources(logs, sql, database), LogSchema.load(schema), out)
    episodes, ended = found["episodes"], found["terminated"]
    print(f"{out}: {episodes} episodes, {ended} of them terminated, {found['rows_out']} of {found['rows_in']} rows")
    for rule, gone in found["dropped"].items():
        note(f"left out: {gone['episodes']} episodes, {gone['rows']} rows: {rule}")
    if found.get("duplicates"):
        note(f"left out: {found['duplicates']} rows of the same episode and time as another one")
    if found.get("apart"):
        note(
            f"no time is named, and other rows stand between those of {found['apart']} episodes: their steps are taken "
            "in the order of the log. If that is not when they happened, name the column of the time"
        )
    if found.get("censored"):
        note(f"censored: {found['censored']} episodes still ran when the log ended")


@app.command(short_help="Write episodes as Parquet or for Minari.")
def export(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Folder of steps, .h5 file or name of a dataset.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="File .parquet, or name of a Minari dataset: my/shop-v0.")],
    env_id: Annotated[str | None, typer.Option(metavar="ID", help="For Minari: the environment of the steps.")] = None,
) -> None:
    """Write all episodes of DATA for other programs. Beside a Parquet file lies the schema that reads it again."""
    dataset = load_dataset(data)
    if PATTERN.fullmatch(to):
        found = write_minari(dataset, to, env_id)
        print(f"{to}: {found['episodes']} episodes, {found['steps']} steps")
        if found["left_out"]:
            note(f"left out: {found['left_out']} last steps of cut episodes whose next observation is not known")
        return
    if env_id is not None or not to.endswith(".parquet"):
        what = f"--env-id {env_id} is for Minari" if env_id is not None else f"{to!r:.80} has no format"
        raise ConfigError(f"{what}: write to a file .parquet, or to the name of a Minari dataset, such as my/shop-v0")
    found = write_parquet(dataset, to, loggers=_notes(data).get("loggers", []))
    print(f"{to}: {found['episodes']} episodes, {found['rows']} rows")
    if not found["schema"]:
        note("without a schema: birl data import reads one vector as observation, and one choice or quantities")


@app.command(short_help="Say what episodes are fit for.")
def report(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Folder of steps, .h5 file or name of a dataset.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE|DIR", help="Page to write; report.html in DIR.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE|DIR", help="The same as JSON.")] = None,
    beside: Annotated[
        list[str] | None, typer.Option(metavar="DATA", help="Another part of the same logs. May be given repeatedly.")
    ] = None,
    gamma: Annotated[float, typer.Option(min=0, max=1, help="Discount of a step.")] = 0.99,
    seed: Annotated[int, typer.Option(min=0, help="Fixes what is drawn.")] = 0,
) -> None:
    """Ask DATA whether one can learn from it and evaluate with it: what is doubtful, and what would help.

    Nothing is changed, and advice is only shown. The page needs no other file, and no program runs in it.
    """
    notes = _notes(data)
    found = report_data(
        load_dataset(data),
        others={name: load_dataset(name) for name in beside or ()},
        gamma=gamma,
        title=Path(data).name or data,
        names=notes.get("observation"),
        actions=called if isinstance(called := notes.get("actions"), list) else None,
        loggers=notes.get("loggers", []),
        seed=seed,
    )
    if out is not None or json is not None:
        found.save(html=_in_folder(out, "report.html"), json=_in_folder(json, "report.json"))
    said = found.messages().values()
    size = {name: value for check in found.checks[:1] for name, value in {**check.facts, **check.numbers}.items()}
    print(f"{data}: {size['episodes']} episodes, {size['steps']} steps; {len(said)} doubt{'s' * (len(said) != 1)}")
    for refused, message in said:
        print(f"{'refused' if refused else 'doubtful'}: {printable(message)}")
    for one in found.advice:
        print(f"advice: {one.looks}: {one.advice} ({one.source})")


@app.command(short_help="Divide episodes into parts.")
def split(
    data: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `birl data import` wrote.")],
    by: Annotated[str, typer.Option(help="episode, cluster or time; cluster, if the schema names one.")] = "episode",
    shares: Annotated[str, typer.Option(help="Shares of the episodes.")] = "train=.6,select=.2,certify=.2",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the parts go; by default into DIR.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes what is drawn.")] = 0,
) -> None:
    """Write parts of a folder of episodes: to train, to select by, and to certify with. No part knows another."""
    given = _shares(shares)
    found = split_folder(data, by, given, out=out, seed=seed)
    columns = list(next(iter(found.values())))
    rows = [[str(Path(data if out is None else out) / name), *map(str, each.values())] for name, each in found.items()]
    print_table([["PART", *map(str.upper, columns)], *rows], right=True)
    if (total := math.fsum(given.values())) < 1 - 1e-9:
        note(f"the shares sum to {total:.6g}: the other episodes are in no part")


def _in_folder(path: Path | None, name: str) -> Path | None:
    """A file as it is given, or the one of this name in a folder."""
    return path / name if path is not None and path.is_dir() else path


def _notes(data: str) -> dict[str, Any]:
    """What an import wrote beside the steps, if it was one."""
    file = Path(data) / IMPORT
    found = parse_json(file.read_bytes(), str(file)) if file.is_file() else {}
    if not isinstance(found, dict):
        raise CorruptFileError(f"{file} holds no object of JSON: import the logs again")
    return found


def _sources(logs: list[str] | None, sql: str | None, database: Path | None) -> list[str | Query]:
    if sql is None and database is not None:
        raise ConfigError(f"--database {database} is for --sql: give a query, or leave it out")
    if (sql is None) == (not logs):
        raise ConfigError("there are no logs: give files, or a query, --sql" if sql is None else "give files or --sql")
    return [*(logs or ())] if sql is None else [Query(sql, None if database is None else str(database))]


def _shares(text: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = part.partition("=")
        try:
            value: Any = float(share)
        except ValueError:
            value = None
        if not equals or value is None or name.strip() in shares:
            raise ConfigError(f"--shares {text!r:.80}: {part!r:.40} is no name=share: give such as train=.6,certify=.4")
        shares[name.strip()] = value
    return shares
