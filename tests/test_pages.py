"""The algorithm pages say what the code says."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import birl
from birl.cli.loading import algorithm_classes
from birl.ope.estimators import ESTIMATORS
from scripts import api_pages
from scripts import draw_architecture as architecture
from scripts import make_algorithm_pages as pages
from scripts import make_estimator_pages as estimator_pages

ROOT = Path(__file__).resolve().parent.parent


def test_algorithm_pages_are_up_to_date():
    written = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "algorithms").glob("*.md")}
    assert written == pages.pages(), "run scripts/make_algorithm_pages.py"


def test_every_estimator_has_its_page():
    found = estimator_pages.estimators()
    known = {*ESTIMATORS, "magic", "return_quantile", "conditional_value_at_risk"}
    assert known <= found.keys() == estimator_pages.FAILS.keys()
    written = {file.name: file.read_text(encoding="utf-8") for file in estimator_pages.PAGES.glob("*.md")}
    assert written == estimator_pages.pages(), "run scripts/make_estimator_pages.py"
    assert "**Needs** propensities and a model." in written["doubly_robust.md"]
    assert "| `ess` | effective episodes: … | below 50 | below 20 |" in written["README.md"]


def test_the_index_names_all_algorithms():
    index = (ROOT / "docs" / "algorithms" / "README.md").read_text(encoding="utf-8").partition("## Measured")[0]
    assert set(re.findall(r"^\| \[(\w+)\]", index, re.MULTILINE)) == {*algorithm_classes(), "FQE", "DiscreteFQE"}


def test_names_for_type_checkers_are_up_to_date():
    assert pages.STUB.read_text(encoding="utf-8") == pages.stub(), "run scripts/make_algorithm_pages.py"


def test_measured_curves_are_up_to_date():
    """Each page with scores has its picture, which says the same."""
    drawn = {file.stem: file.read_text(encoding="utf-8") for file in pages.PAGES.glob("curves/*.svg")}
    measured = pages.measured()
    assert drawn.keys() == measured.keys(), "run scripts/make_algorithm_pages.py"
    for name, tasks in measured.items():
        assert pages.caption(name, tasks) in drawn[name], "run scripts/make_algorithm_pages.py"


def test_scores_are_those_of_complete_runs(tmp_path, monkeypatch):
    scores = sys.modules["benchmarks.scores"]
    monkeypatch.setattr(scores, "RESULTS", tmp_path / "scores.csv")
    with scores.RESULTS.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(scores.FIELDS)
        for seed, side, score, steps in ((1, "birl", 5, 5), (0, "birl", 0, 5), (0, "d3rlpy", 7, 4), (0, "birl", 3, 5)):
            rows.writerows(("td3-hopper", side, seed, 10_000 * n, score * n, n, "") for n in range(1, steps + 1))
        rows.writerow(("a task of old", "birl", 0, 1, 2, 3, ""))
    found = pages.measured()["TD3"]["td3-hopper"]
    assert list(found) == ["birl"]  # the other side's run is not complete
    assert found["birl"].scores.tolist() == [[3, 6, 9, 12, 15], [5, 10, 15, 20, 25]]  # the newer run of seed 0
    assert str(found["birl"]) == "20.0 (15.0 … 25.0)"
    assert list(pages.measured()) == ["TD3"]
    for name in ("a.svg", "b.svg"):
        pages.draw(tmp_path / name, "TD3", "what is seen", pages.measured()["TD3"])
    drawn = (tmp_path / "a.svg").read_bytes()
    assert drawn == (tmp_path / "b.svg").read_bytes() and b"what is seen" in drawn and b"birl (2 seeds)" in drawn


def test_every_algorithm_that_learns_to_act_has_a_task():
    """So that its curve can be measured by `benchmarks/scores.py`."""
    from birl import algos

    learning = {cls.__name__ for cls in pages.algorithms() if hasattr(algos, cls.__name__) and cls.learns_from.loops}
    tasks = {name: task.algorithm for name, task in pages.TASKS.items()}
    assert not learning - {*tasks.values()}, "write their pages, or add a line to TASKS of benchmarks/scores.py"
    assert not {*tasks.values()} - learning
    unmeasured = [name for name, algorithm in tasks.items() if algorithm not in pages.measured()]
    given = "run `python benchmarks/scores.py run --task … --side birl --seed 0` and scripts/make_algorithm_pages.py"
    assert not unmeasured, f"{given}, with {' or '.join(unmeasured)}"


def test_what_is_logged_is_what_an_update_gives():
    """The docstrings' metrics, which the pages explain, are those of the first updates."""
    from birl import algos
    from birl.config import AlgorithmConfig
    from birl.models import VectorEncoderFactory
    from birl.testing import Subject

    small = VectorEncoderFactory(hidden_units=[4])
    configs = [getattr(algos, name) for name in algos.__all__ if name.endswith("Config")]
    for config in (each for each in configs if issubclass(each, AlgorithmConfig) and each.algorithm.steps):
        fields = {name: small for name, *_ in config.documentation() if name.endswith("encoder_factory")}
        fields |= {"batch_size": 8, "warmup_steps": 1, "context_size": 4, "num_heads": 1}
        fields |= {"rollout_length": 8, "n_epochs": 1, "update_actor_interval": 1}
        fields |= {"batch_size_per_update": 4, "n_actor_updates": 1, "n_critic_updates": 1}
        known = {name for name, *_ in config.documentation()}
        cfg = config(**{name: value for name, value in fields.items() if name in known})
        subject = Subject(cfg)
        algorithm = subject.build()
        given = set()
        for item in subject.inputs(algorithm, 3):
            given |= set(algorithm.update(item))
        table = pages.page(config.algorithm).partition("## What it logs")[2].partition("##")[0]
        said = {name for name in pages.METRICS if f"| `{name}` |" in table}
        unsaid, unknown = given - said, given - pages.METRICS.keys()
        assert not unknown, f"METRICS of scripts/make_algorithm_pages.py needs a meaning of {sorted(unknown)}"
        assert not unsaid, f"{config.__name__} logs {sorted(unsaid)}: say so in its docstring, after `Logs`"
        assert not said - given, f"{config.__name__} does not log {sorted(said - given)}"


def test_the_table_of_public_packages_is_up_to_date():
    assert api_pages.PUBLIC_API.read_text(encoding="utf-8") == api_pages.public_api(), "run scripts/api_pages.py"
    assert all(f"`birl.{name}`" in api_pages.public_api() for name in birl.__all__)


def test_the_picture_and_the_table_of_folders_are_up_to_date():
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.picture(), (
        "run scripts/draw_architecture.py"
    )
    assert architecture.PAGE.read_text(encoding="utf-8") == architecture.page(), "run scripts/draw_architecture.py"
    names = [name for row in architecture.floors() for name in row]
    assert {"algos", "engine", "run", "dataset", "types"} <= set(names)
    for name in names:
        assert 0 < len(architecture.description(name)) <= architecture.LONGEST, f"the first line of birl/{name}"
