"""What the commands import: those that need no networks start without PyTorch, which takes most of a second or more."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

LOG = "user,time,age,action,reward\n" + "".join(
    f"{user},{time},{30.5 + user},{(user + time) % 2},{user % 3}.5\n" for user in range(60) for time in range(2)
)
SCHEMA = """episode = "user"
time = "time"
unmarked = "terminated"

[[observation]]
column = "age"

[action]
column = "action"
kind = "discrete"
size = 2

[reward]
column = "reward"
"""
RUN = """
import sys
from birl.cli import main
status = main(sys.argv[1:])
print("torch._C" in sys.modules, file=sys.stderr)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log, its schema, its episodes and a metric."""
    path = tmp_path_factory.mktemp("start")
    (path / "log.csv").write_text(LOG)
    (path / "schema.toml").write_text(SCHEMA)
    (path / "run").mkdir()
    (path / "run" / "loss.csv").write_text("1,10,0.5\n2,20,0.25\n")
    _run(path, "data import log.csv --schema schema.toml --out episodes")
    (path / "newer.csv").write_text(re.sub(r"(?m)^(\d+),(\d),", r"\1,1\2,", LOG))
    _run(path, "data import newer.csv --schema schema.toml --out newer")
    return path


def _run(folder: Path, line: str) -> str:
    """Run a command in a new process and return what it prints to standard error at last."""
    command = [sys.executable, "-c", RUN, *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "--version",
        "data --help",
        "data schema log.csv",
        "data import log.csv --schema schema.toml --out again",
        "data report episodes --out report.html",
        "data split episodes --out parts --shares a=.5,b=.5",
        "data export episodes episodes.parquet",
        "ope plan --gain 0.1 --dataset episodes --gamma 1",
        "ope read --help",
        "ope watch newer --certified episodes --gamma 1",
        "ope slates --help",
        "stats --help",
        "stats run/loss.csv",
        "stats run",
        "stats episodes",
    ],
)
def test_commands_without_networks_do_not_import_torch(folder: Path, line: str) -> None:
    assert _run(folder, line) == "False"


def test_commands_with_networks_do(folder: Path) -> None:
    assert _run(folder, "train --help") == "True"


def test_torch_is_whole_after_its_first_use() -> None:
    code = (
        "import sys, birl.cli, torch; assert 'torch._C' not in sys.modules; import torch.nn.functional as F; "
        "from torch import nn; print(F.relu(torch.ones(2)).sum().item(), nn.Linear(1, 1).weight.dtype is torch.float32)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2.0 True\n"
