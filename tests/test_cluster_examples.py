"""The files of examples/cluster: what can be checked of them without Docker and without Kubernetes."""

from __future__ import annotations

import dataclasses
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import birl
from birl.cli.online import make_cluster
from birl.cli.train import train
from birl.cli.train_options import TABLE, TrainOptions
from birl.cli.tune import parse_search

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "cluster"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
GUIDE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
APP = typer.Typer()
APP.command()(train)


def text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


COMPOSE: Any = yaml.safe_load(text("compose.yaml"))
CLAIM, JOB = list(yaml.safe_load_all(text("kuberay.yaml")))
SPEC: Any = JOB["spec"]["rayClusterSpec"]


def options(command: str) -> dict[str, Any]:
    """What birl's own parser makes of a line ``birl train …``."""
    birl_, train_, *words = shlex.split(command)
    assert (birl_, train_) == ("birl", "train")
    return dict(typer.main.get_command(APP).make_context("birl train", words).params)


def ray_started(command: str) -> dict[str, str]:
    assert command.startswith("ray start ")
    return dict(re.findall(r"--([a-z-]+)(?:=(\S+))?", command))


SCRIPT = COMPOSE["services"]["learner"]["command"][2].strip().split("\n")
COMMANDS = [SCRIPT[1].removeprefix("exec "), JOB["spec"]["entrypoint"]]


@pytest.mark.parametrize("command", COMMANDS, ids=["compose", "kuberay"])
def test_the_commands_are_those_of_birl(command: str) -> None:
    given = options(command)
    cluster = make_cluster(TrainOptions(**{name: given[name] for name in TABLE}))
    assert cluster == birl.Cluster(8, fragment="auto", transport="ray", address="auto")
    assert hasattr(birl.algos, given["algo"])
    birl.envs.make_env(given["env_id"]).close()


def test_there_is_a_place_for_each_collector() -> None:
    workers = COMPOSE["services"]["collectors"]
    head, own = ray_started(SCRIPT[0]), ray_started(" ".join(workers["command"]))
    assert int(own["num-cpus"]) * workers["deploy"]["replicas"] == options(COMMANDS[0])["collectors"]
    assert head["num-cpus"] == "0" and own["address"] == f"learner:{head['port']}" and "block" in own
    assert float(workers["deploy"]["resources"]["limits"]["cpus"]) == int(own["num-cpus"])
    (group,) = SPEC["workerGroupSpecs"]
    assert int(group["rayStartParams"]["num-cpus"]) * group["replicas"] == options(COMMANDS[1])["collectors"]
    assert group["minReplicas"] == group["maxReplicas"] == group["replicas"]
    assert SPEC["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == group["rayStartParams"]["num-cpus"]


def test_all_machines_are_alike() -> None:
    services = COMPOSE["services"].values()
    assert {each["image"] for each in services} == {"birl-ray"}
    assert all(each["environment"]["RAY_AUTH_MODE"] == "token" for each in services)
    assert len({each["environment"]["RAY_AUTH_TOKEN"] for each in services}) == 1
    assert [name for name, each in COMPOSE["services"].items() if "build" in each] == ["learner"]
    assert COMPOSE["services"]["collectors"]["pull_policy"] == "never"  # it is built, and in no registry
    groups = [SPEC["headGroupSpec"], *SPEC["workerGroupSpecs"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    assert {each["image"] for each in containers} == {"birl-ray"}
    assert SPEC["authOptions"] == {"mode": "token"}  # KubeRay sets it, also where the job is submitted
    assert not any("env" in each for each in containers)


def test_versions_are_those_of_the_project() -> None:
    ray, python = re.findall(r"^FROM rayproject/ray:([\d.]+)-py(\d+)-cpu$", text("Dockerfile"), re.M)[0]
    assert SPEC["rayVersion"] == ray
    (least,) = (re.findall(r"ray>=([\d.]+)", word)[0] for word in PROJECT["optional-dependencies"]["ray"])
    assert tuple(map(int, ray.split("."))) >= tuple(map(int, least.split(".")))
    assert PROJECT["requires-python"] == f">={python[0]}.{python[1:]}"
    assert f"torch=={re.findall('torch==([0-9.]+)', (ROOT / 'Makefile').read_text('utf-8'))[0]}" in text("Dockerfile")
    assert tuple(map(int, ray.split("."))) >= (2, 52)  # the first with tokens, which KubeRay asks for, too
    (extras,) = re.findall(r"/home/ray/birl\[([a-z,]+)\]", text("Dockerfile"))
    assert {"envs", "ray", "tune"} == set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    build = COMPOSE["services"]["learner"]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT and (ROOT / build["dockerfile"]).is_file()


def test_the_image_has_what_is_installed_and_no_more() -> None:
    assert "COPY --chown=ray . /home/ray/birl\n" in text("Dockerfile")
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    nothing, *kept, last = [line for line in lines if not line.startswith("#")]
    assert (nothing, last) == ("*", "**/__pycache__")
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    named = ["pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], *packages]
    assert sorted(kept) == sorted(f"!{each}" for each in named)
    assert all((ROOT / each).exists() for each in named)


def test_runs_are_kept() -> None:
    for given, mounts in (
        (options(COMMANDS[0]), [each.split(":")[1] for each in COMPOSE["services"]["learner"]["volumes"]]),
        (
            options(COMMANDS[1]),
            [each["mountPath"] for each in SPEC["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]],
        ),
    ):
        out = Path("/home/ray") / given["out"]  # the image's working folder
        assert any(Path(mount) in out.parents for mount in mounts)
    assert COMPOSE["services"]["learner"]["volumes"][0].split(":")[0] in COMPOSE["volumes"]
    volume = SPEC["headGroupSpec"]["template"]["spec"]["volumes"][0]
    assert volume["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]


def test_what_kubernetes_asks_for_is_there() -> None:
    assert (CLAIM["apiVersion"], CLAIM["kind"]) == ("v1", "PersistentVolumeClaim")
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert {"accessModes", "resources"} <= CLAIM["spec"].keys()
    for group in (SPEC["headGroupSpec"], *SPEC["workerGroupSpecs"]):
        assert {"rayStartParams", "template"} <= group.keys()
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())  # KubeRay takes strings only
        assert all({"name", "image", "resources"} <= each.keys() for each in group["template"]["spec"]["containers"])


def test_the_guide_names_the_files() -> None:
    for name in ("compose.yaml", "kuberay.yaml", "Dockerfile"):
        assert f"examples/cluster/{name}" in GUIDE


def test_searches_of_the_guide_are_of_fields_that_there_are() -> None:
    commands = [shlex.split(line) for line in GUIDE.splitlines() if line.startswith("birl tune ")]
    assert len(commands) == 2
    for words in commands:
        fields = {field.name for field in dataclasses.fields(getattr(birl.algos, f"{words[2]}Config"))}
        assert parse_search(words[words.index("--search") + 1]).name in fields
