"""How fast a million rows of Parquet become episodes, and in how much memory, compared with pandas.

``python benchmarks/logs_import.py`` writes a log (8 numbers, one category, action, reward, propensity; 20,000
episodes in no order), then runs each way in a process of its own: ``birl.dataset.import_files`` into a folder, and what
pandas needs for arrays of the same episodes (read, sort, encode, cut), unchecked and in memory. Needs pyarrow; pandas
is left out where it is not installed. It prints a line of Markdown for each.
"""

from __future__ import annotations

import importlib.util
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

ROWS, EPISODES, NUMBERS = 1_000_000, 20_000, 8
SCHEMA = """
episode = "episode"
time = "time"
terminated = "done"
unmarked = "truncated"

{numbers}
[[observation]]
column = "kind"
values = ["a", "b", "c"]

[action]
column = "action"
kind = "discrete"
size = 4

[reward]
column = "reward"

[propensity]
column = "propensity"
kind = "probability"
"""


def write(file: Path) -> None:
    """The log."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    episode, at = np.repeat(np.arange(EPISODES), ROWS // EPISODES), np.tile(np.arange(ROWS // EPISODES), EPISODES)
    order = rng.permutation(ROWS)
    columns = {f"x{k}": rng.normal(size=ROWS).astype(np.float32) for k in range(NUMBERS)}
    kind = rng.choice(np.array(["a", "b", "c"]), ROWS)
    columns |= {
        "episode": episode[order],
        "time": at[order],
        "kind": kind,
        "action": rng.integers(0, 4, ROWS),
        "reward": rng.normal(size=ROWS),
        "propensity": np.full(ROWS, 0.25),
        "done": at[order] == at.max(),
    }
    parquet.write_table(pa.table(columns), file, row_group_size=100_000)


def with_birl(folder: Path) -> None:
    """Into a folder, checked, with a count of what went in and out."""
    from birl.dataset import LogSchema
    from birl.dataset.logs.files import import_files

    numbers = "".join(f'[[observation]]\ncolumn = "x{k}"\n\n' for k in range(NUMBERS))
    schema = folder / "schema.toml"
    schema.write_text(SCHEMA.format(numbers=numbers), encoding="utf-8")
    found = import_files([str(folder / "log.parquet")], LogSchema.load(schema), folder / "data")
    assert (found["rows_out"], found["episodes"]) == (ROWS, EPISODES)


def with_pandas(folder: Path) -> None:
    """Arrays of the same episodes, unchecked."""
    import pandas as pd

    table = pd.read_parquet(folder / "log.parquet").sort_values(["episode", "time"], kind="stable")
    kinds = pd.get_dummies(pd.Categorical(table["kind"], categories=["a", "b", "c"]), dtype=np.float32)
    x = np.concatenate([table[[f"x{k}" for k in range(NUMBERS)]].to_numpy(np.float32), kinds.to_numpy()], 1)
    ends = np.flatnonzero(np.diff(table["episode"].to_numpy())) + 1
    columns = [x, table["action"].to_numpy(), table["reward"].to_numpy(np.float32)]
    columns.append(np.log(table["propensity"].to_numpy()))
    episodes = list(zip(*(np.split(column, ends) for column in columns), strict=True))
    assert len(episodes) == EPISODES


def main() -> None:
    """Write, then measure each way in its own process."""
    if len(sys.argv) == 3:
        import pyarrow.parquet  # noqa: F401 -- what both ways read with is not what is measured

        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        {"birl": with_birl, "pandas": with_pandas}[sys.argv[1]](Path(sys.argv[2]))
        spent, most = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures = f"{ROWS / spent:,.0f} | {spent:.1f}"
        sys.stdout.write(f"| {sys.argv[1]} | {figures} | {most / 1024:.0f} | {before / 1024:.0f} |\n")
        return
    sys.stdout.write("| | rows per second of CPU | s of CPU | MB at most | MB before |\n|---|---|---|---|---|\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "log.parquet")
        for name in ("birl", "pandas"):
            if name == "birl" or importlib.util.find_spec("pandas") is not None:
                subprocess.run([sys.executable, __file__, name, folder], check=True)


if __name__ == "__main__":
    main()
