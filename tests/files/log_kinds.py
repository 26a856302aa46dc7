"""Files that other programs write: tables of logs, schemas, Minari datasets, studies. ``fuzzing.py`` mutates them."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

import birl
from birl.cli.study import HyperparameterSearch, SearchRange
from birl.dataset import LogSchema, MDPDataset, ReplayBuffer
from birl.dataset.logs.files import import_files
from birl.dataset.logs.proposal import propose
from birl.datasets import get_minari

SCHEMA = """
episode = "trip"
time = "at"
terminated = "arrived"
unmarked = "truncated"
logger = "version"

[[observation]]
column = "speed"
missing = "forward"
fill = 0.0
indicator = true

[[observation]]
column = "weather"
values = ["sun", "rain"]
unknown = true

[[observation]]
column = "pair"

[action]
column = "lane"
kind = "discrete"
size = 3

[reward]
column = "reward"
lower = 0.0

[propensity]
column = "probability"
kind = "probability"
"""

ran: list[str] = []
"""What was executed, and files outside of the case's that were opened, since the last `watched`."""
_watching = False


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    runs = event in ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "webbrowser.open")
    imports = event == "import" and str(arguments[0]).partition(".")[0] in ("this", "antigravity")
    outside = event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(("/etc/", "/x"))
    if runs or imports or outside:
        ran.append(f"{event} {arguments[0]!r:.80}")


sys.addaudithook(_note)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Collect in `ran` what is executed, imported or opened outside."""
    global _watching
    ran.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False


def table() -> pyarrow.Table:
    return pyarrow.table(
        {
            "trip": [f"t{step // 4}" for step in range(24)],
            "at": [step % 4 for step in range(24)],
            "arrived": [step % 4 == 3 for step in range(24)],
            "version": ["v1"] * 24,
            "speed": [None if step == 5 else step / 7 for step in range(24)],
            "weather": [("sun", "rain", "fog")[step % 3] for step in range(24)],
            "pair": [[float(step), -float(step)] for step in range(24)],
            "lane": [step % 3 for step in range(24)],
            "reward": [float(step % 5) for step in range(24)],
            "probability": [1 / 3] * 24,
        }
    )


def flat() -> pyarrow.Table:
    return table().drop_columns(["pair"])


def write_arrow(folder: Path) -> None:
    rows = table().append_column("kind", pyarrow.array(["a", "b"] * 12).dictionary_encode())
    with pyarrow.OSFile(str(folder / "log.arrow"), "wb") as file, pyarrow.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows, 10)


def write_stream(folder: Path) -> None:
    rows = table()
    with pyarrow.OSFile(str(folder / "log.arrow"), "wb") as file, pyarrow.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows, 10)


def write_parquet(folder: Path) -> None:
    pyarrow.parquet.write_table(table(), folder / "log.parquet", row_group_size=10)


def write_csv(folder: Path) -> None:
    pyarrow.csv.write_csv(flat(), folder / "log.csv")


def write_lines(folder: Path) -> None:
    lines = (birl.files.strict_json.dump_json(row, "row") for row in flat().to_pylist())
    (folder / "log.jsonl").write_text("".join(f"{line}\n" for line in lines))


def write_schema(folder: Path) -> None:
    write_csv(folder)
    (folder / "schema.toml").write_text(SCHEMA.replace('[[observation]]\ncolumn = "pair"\n', ""))


def import_log(folder: Path) -> Any:
    """Propose a schema for the only table, and import the table."""
    file = next((each for each in folder.iterdir() if each.name.startswith("log.")), folder / "log.csv")
    proposed = propose([str(file)]).text
    text = SCHEMA if file.suffix in (".arrow", ".parquet") else SCHEMA.replace('[[observation]]\ncolumn = "pair"\n', "")
    schema = LogSchema.load(folder / "schema.toml") if (folder / "schema.toml").exists() else LogSchema.parse(text)
    import_files([str(file)], schema, folder / "data")
    buffer = ReplayBuffer.open(folder / "data")
    buffer.sample_transition_batch(4)
    return proposed, [(e.observations, e.actions, e.rewards, e.terminated) for e in buffer.episodes]


@contextlib.contextmanager
def minari_root(folder: Path) -> Iterator[None]:
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Minari about authors, and of birl about the environment
            yield
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before


def write_minari(data_format: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        numbers = np.arange(24, dtype=np.float32)
        data = MDPDataset(
            numbers[:, None].repeat(3, 1), numbers[:, None].repeat(2, 1) / 24, numbers, np.arange(24) % 4 == 3
        )
        with minari_root(folder):
            if data_format == "hdf5":
                birl.datasets.write_minari(data, "shop/prices-v0")
                return
            buffers = [
                minari.data_collector.EpisodeBuffer(
                    observations=np.zeros((5, 3), np.float32) + number, actions=np.ones((4, 2), np.float32),
                    rewards=np.ones(4), terminations=np.arange(4) == 3, truncations=np.zeros(4, bool),
                )
                for number in range(3)
            ]  # fmt: skip
            space: Any = {
                "observation_space": birl.datasets.minari.spaces.Box(-99, 99, (3,), np.float32),
                "action_space": birl.datasets.minari.spaces.Box(-99, 99, (2,), np.float32),
            }
            minari.create_dataset_from_buffers("shop/prices-v0", buffers, data_format=data_format, **space)

    return write


def read_minari(folder: Path) -> Any:
    with minari_root(folder):
        buffer, env = get_minari("shop/prices-v0")
        assert env is None
    return [(e.observations, e.actions, e.rewards, e.terminated) for e in buffer.episodes]


def search(folder: Path) -> HyperparameterSearch:
    ranges = [SearchRange("gamma", "0.9..0.99", 0.9, 0.99), SearchRange("size", "a,b", choices=("a", "b"))]
    return HyperparameterSearch(folder, ["BC"], ranges, metric="loss", seed=0, prune=True)


def write_study(folder: Path) -> None:
    found = search(folder)
    for number in range(4):
        trial = found._study.ask()
        for each in found._ranges:
            each.suggest(trial)
        trial.report(float(number), 1)
        found._study.tell(trial, float(number))


def read_study(folder: Path) -> Any:
    found = search(folder)
    with contextlib.redirect_stdout(None):
        found.report()
    return (folder / "trials.csv").read_bytes()


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "arrow": (write_arrow, import_log),
    "arrow stream": (write_stream, import_log),
    "parquet": (write_parquet, import_log),
    "csv": (write_csv, import_log),
    "json lines": (write_lines, import_log),
    "schema": (write_schema, import_log),
    "minari": (write_minari("hdf5"), read_minari),
    "minari arrow": (write_minari("arrow"), read_minari),
    "minari parquet": (write_minari("parquet"), read_minari),
    "study": (write_study, read_study),
}
"""How each kind is written into a folder, and read from it. Nothing guards these files: they may load as others."""
