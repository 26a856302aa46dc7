"""The source archive and the wheel hold what they should, and a wheel made of the archive installs and runs."""

from __future__ import annotations

import functools
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

import birl

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
    assert {"birl/py.typed", "birl/data/cartpole-replay.h5", "birl/recipes/recipes.toml"} <= built.names
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
    assert set(re.findall(r"^Project-URL: (\w+), (\S+)$", metadata, flags=re.MULTILINE)) == set(PROJECT["urls"].items())
    assert all(url.startswith("https://") for url in PROJECT["urls"].values())
    assert set(re.findall(r"^Classifier: (.+)$", metadata, flags=re.MULTILINE)) == set(PROJECT["classifiers"])
    assert "birl = birl.cli:main" in (info / "entry_points.txt").read_text(encoding="utf-8")


def test_the_archive_holds_what_its_tests_need(built: Built) -> None:
    names = files_of(built.source)
    for folder in ("benchmarks", "birl", "docs", "examples", "scripts"):
        kept = {f"{folder}/{name}" for name in files_of(ROOT / folder) if name.endswith((".py", ".md", ".svg", ".h5"))}
        assert kept <= names
    assert {"README.md", "LICENSE", "Makefile", "pyproject.toml", "tests/algorithms.py", "tests/conftest.py"} <= names
    assert {".pre-commit-config.yaml", ".dockerignore", "CITATION.cff", "CHANGELOG.md", "SECURITY.md"} <= names
    assert {f".github/{name}" for name in files_of(GITHUB)} <= names
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


GITHUB = ROOT / ".github"
REPOSITORY = PROJECT["urls"]["Repository"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
PYTHONS = [word.rpartition(" ")[2] for word in PROJECT["classifiers"] if re.fullmatch(r".* :: 3\.\d+", word)]


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def recipe(target: str) -> str:
    return MAKEFILE.partition(f"\n{target}:")[2].partition("\n\n")[0]


WORKFLOWS = {path.stem: read_yaml(path) for path in sorted((GITHUB / "workflows").glob("*.yml"))}
JOBS = [
    pytest.param(job, id=f"{name}-{title}") for name, flow in WORKFLOWS.items() for title, job in flow["jobs"].items()
]


@functools.cache
def birl_commands() -> set[str]:
    listed = call(sys.executable, "-m", "birl", "--help", cwd=ROOT).partition("Commands:")[2]
    return set(re.findall(r"^  ([a-z-]+)  ", listed, flags=re.MULTILINE))


def commands(job: Any) -> list[str]:
    return [line.strip() for step in job.get("steps", []) for line in step.get("run", "").splitlines()]


def test_hooks_run_the_tools_of_make_lint() -> None:
    hooks = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    assert tools == set(re.findall(r"\$\(BIN\)/([\w-]+)", recipe("lint")))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_may_only_read_and_do_not_pile_up(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    # In a called workflow github.workflow is the caller's name: the call would wait for its own caller, or cancel it
    assert "github.workflow" not in workflow["concurrency"]["group"]
    writes = {title: job["permissions"] for title, job in workflow["jobs"].items() if "permissions" in job}
    allowed = {"release": {"publish": {"id-token": "write"}, "docs": {"contents": "write"}}}
    assert writes == allowed.get(name, {})


@pytest.mark.parametrize("job", JOBS)
def test_jobs_call_what_exists(job: Any) -> None:
    actions = [step["uses"] for step in job.get("steps", []) if "uses" in step]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", action) for action in actions), actions
    if "uses" in job:
        assert (ROOT / job["uses"]).is_file()
    else:
        assert 0 < job["timeout-minutes"] <= 360  # GitHub's own limit
    for command in commands(job):
        words = command.split()
        if words[0] == "make":
            assert set(words[1:]) <= TARGETS, command
        elif words[0] == "birl":
            assert words[1] in birl_commands(), command


def test_workflows_run_every_tier_with_every_python() -> None:
    made = {name: [each for job in flow["jobs"].values() for each in commands(job)] for name, flow in WORKFLOWS.items()}
    assert {"make lint", "make test", "make docs"} <= set(made["tests"])
    assert set(made["scheduled"]) == {"make test-slow", "make test-ray", "make test-cuda"}
    tests, install = WORKFLOWS["tests"]["jobs"]["tests"], WORKFLOWS["release"]["jobs"]["install"]
    assert tests["strategy"]["matrix"]["python"] == install["strategy"]["matrix"]["python"] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert {"tests", "install"} == set(WORKFLOWS["release"]["jobs"]["publish"]["needs"])


def test_windows_runs_the_commands_of_make_test() -> None:
    steps = [step for step in WORKFLOWS["tests"]["jobs"]["tests"]["steps"] if "== 'Windows'" in step.get("if", "")]
    torch, birl, tests = [step["run"].removeprefix("python -m ") for step in steps]
    pip = "pip install --no-compile "
    assert torch.startswith(pip) and f"$(PIP) --no-compile {torch.removeprefix(pip)}\n" in MAKEFILE
    assert birl.startswith(pip) and f"$(PIP) --no-compile -e '{birl.removeprefix(pip + '-e ')}'\n" in MAKEFILE
    assert f"$(BIN)/python -m {tests}" in recipe("test")
    (number,) = re.findall(r"^export OMP_NUM_THREADS := (\d+)$", MAKEFILE, flags=re.MULTILINE)
    assert steps[-1]["env"] == {"OMP_NUM_THREADS": number}


def test_a_gpu_runs_only_reviewed_code() -> None:
    scheduled = WORKFLOWS["scheduled"]
    assert set(scheduled[True]) == {"schedule", "workflow_dispatch"}  # YAML 1.1 reads the key `on` as true
    labels = [job["runs-on"] for flow in WORKFLOWS.values() for job in flow["jobs"].values() if "runs-on" in job]
    assert [each for each in labels if "self-hosted" in each] == [scheduled["jobs"]["cuda"]["runs-on"]]
    own = read_yaml(GITHUB / "actionlint.yaml")["self-hosted-runner"]["labels"]
    assert set(scheduled["jobs"]["cuda"]["runs-on"]) == {"self-hosted", "linux", *own}
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(f"`{word}`" in guide for word in (*own, "HAS_GPU_RUNNER"))


def test_issue_forms_can_be_filled_in() -> None:
    folder = GITHUB / "ISSUE_TEMPLATE"
    forms = {path.stem: read_yaml(path) for path in folder.glob("*.yml")}
    links = forms.pop("config")["contact_links"]
    assert set(forms) == {"bug", "feature", "algorithm", "question"}
    for name, form in forms.items():
        fields = form["body"]
        assert form["name"] and form["description"] and form["labels"], name
        assert len({field["id"] for field in fields}) == len(fields), name
        assert all(field["attributes"]["label"] for field in fields), name
    assert all(link["url"].startswith((REPOSITORY, PROJECT["urls"]["Documentation"])) for link in links)


def test_one_version_and_one_address_everywhere() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert citation["version"] == PROJECT["version"] == birl.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == REPOSITORY
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)["site_url"]
    assert citation["url"] == PROJECT["urls"]["Documentation"] == site
    assert all(PROJECT["urls"][name].startswith(f"{REPOSITORY}/") for name in ("Issues", "Changelog"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (newest, *_) = re.findall(r"^## (\S+) \((?:unreleased|\d{4}-\d\d-\d\d)\)$", changes, flags=re.MULTILINE)
    assert newest == PROJECT["version"]


PAGES = ("CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", ".github/PULL_REQUEST_TEMPLATE.md")


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_what_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / target).exists(), target
    assert set(re.findall(r"`birl ([a-z-]+)", text)) <= birl_commands()
    for name in re.findall(r"`birl\.([\w.]+)[`(]", text):
        found: Any = birl
        for part in name.split("."):
            found = getattr(found, part)
    for target in re.findall(r"`make ([a-z-]+)`", text):
        assert target in TARGETS, target
    for field in re.findall(re.escape(REPOSITORY) + r"/([\w/-]+)", text):
        assert field == "security/advisories/new"
