"""The source archive and the wheel hold what they should, and a wheel made of the archive installs and runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = f"birl-{PROJECT['version']}"


def call(*command: Any, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def files_of(folder: Path) -> set[str]:
    """Files below ``folder``, without those that Python and other tools leave behind."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


@dataclass(frozen=True)
class Built:
    """The archive, unpacked; the names in the wheel that was built of it; where that was installed."""

    source: Path
    names: set[str]
    installed: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Nothing is downloaded: hatchling is a development dependency, and birl's own dependencies are not installed."""
    folder = tmp_path_factory.mktemp("package")
    call(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    source = folder / NAME
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    wheel = folder / f"{NAME}-py3-none-any.whl"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    call(*pip, "--no-deps", "--no-index", "--no-compile", "--target", folder / "installed", wheel, cwd=folder)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    return Built(source, names, folder / "installed")


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    info = f"{NAME}.dist-info/"
    assert {name for name in built.names if not name.startswith(info)} == {
        f"birl/{name}" for name in files_of(ROOT / "birl")
    }
    assert {"birl/py.typed", "birl/data/cartpole-replay.h5"} <= built.names
    assert {name.removeprefix(info) for name in built.names if name.startswith(info)} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_metadata_say_what_pyproject_says(built: Built) -> None:
    info = built.installed / f"{NAME}.dist-info"
    metadata = (info / "METADATA").read_text(encoding="utf-8")
    required = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata, flags=re.MULTILINE)
    assert sorted(required) == sorted(PROJECT["dependencies"])
    assert f"Requires-Python: {PROJECT['requires-python']}" in metadata
    assert "# birl" in metadata
    assert "birl = birl.cli:main" in (info / "entry_points.txt").read_text(encoding="utf-8")


def test_the_archive_holds_what_its_tests_need(built: Built) -> None:
    names = files_of(built.source)
    for folder in ("benchmarks", "birl", "docs", "examples", "scripts"):
        kept = {f"{folder}/{name}" for name in files_of(ROOT / folder) if name.endswith((".py", ".md", ".svg", ".h5"))}
        assert kept <= names
    assert {"README.md", "LICENSE", "Makefile", "pyproject.toml", "tests/algorithms.py", "tests/conftest.py"} <= names
    leftovers = re.compile(r"(^|/)(\.venv|\.git|dist|build|birl_logs|birl_demo|\.[a-z_]+_cache)(/|$)")
    assert not [name for name in names if leftovers.search(name)]


RUN = """
import birl
from importlib.metadata import entry_points
print(birl.__file__)
print(birl.datasets.get_dataset("cartpole-random")[0].transition_count)
command, = entry_points(group="console_scripts", name="birl")
command.load()(["algos"])
"""


def test_the_installed_package_runs(built: Built) -> None:
    done = call(sys.executable, "-c", RUN, cwd=built.installed, PYTHONPATH=str(built.installed))
    where, count, *algorithms = done.splitlines()
    assert Path(where).is_relative_to(built.installed)
    assert int(count) > 0
    assert "SAC" in " ".join(algorithms).split()
    assert (built.installed / "bin" / "birl").is_file()


def test_workflow_and_hooks_name_what_exists() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["tests"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make lint", "make test"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    lint = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    assert tools == set(re.findall(r"\$\(BIN\)/([\w-]+)", lint))
