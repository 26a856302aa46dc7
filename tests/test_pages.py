"""The algorithm pages say what the code says."""

from __future__ import annotations

import csv
import importlib.util
import re
import sys
from pathlib import Path

import birl
from birl.cli.common import algorithm_classes
from birl.ope.estimators import ESTIMATORS

ROOT = Path(__file__).resolve().parent.parent


def generator(name: str = "make_algorithm_pages"):
    path = ROOT / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_algorithm_pages_are_up_to_date():
    module = generator()
    written = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "algorithms").glob("*.md")}
    assert written == module.pages(), "run scripts/make_algorithm_pages.py"


def test_every_estimator_has_its_page():
    module = generator("make_estimator_pages")
    found = module.estimators()
    assert {*ESTIMATORS, "magic", "return_quantile", "conditional_value_at_risk"} <= found.keys() == module.FAILS.keys()
    written = {file.name: file.read_text(encoding="utf-8") for file in module.PAGES.glob("*.md")}
    assert written == module.pages(), "run scripts/make_estimator_pages.py"
    assert "**Needs** propensities and a model." in written["doubly_robust.md"]
    assert "| `ess` | effective episodes: … | below 50 | below 20 |" in written["README.md"]


def test_the_index_names_all_algorithms():
    index = (ROOT / "docs" / "algorithms" / "README.md").read_text(encoding="utf-8").partition("## Measured")[0]
    assert set(re.findall(r"^\| \[(\w+)\]", index, re.MULTILINE)) == {*algorithm_classes(), "FQE", "DiscreteFQE"}


def test_names_for_type_checkers_are_up_to_date():
    module = generator()
    assert module.STUB.read_text(encoding="utf-8") == module.stub(), "run scripts/make_algorithm_pages.py"


def test_measured_curves_are_up_to_date():
    """Each page with scores has its picture, which says the same."""
    module = generator()
    drawn = {file.stem: file.read_text(encoding="utf-8") for file in module.PAGES.glob("curves/*.svg")}
    measured = module.measured()
    assert drawn.keys() == measured.keys(), "run scripts/make_algorithm_pages.py"
    for name, tasks in measured.items():
        assert module.caption(name, tasks) in drawn[name], "run scripts/make_algorithm_pages.py"


def test_scores_are_those_of_complete_runs(tmp_path, monkeypatch):
    module = generator()
    scores = sys.modules["benchmarks.scores"]
    monkeypatch.setattr(scores, "RESULTS", tmp_path / "scores.csv")
    with scores.RESULTS.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(scores.FIELDS)
        for seed, side, score, steps in ((1, "birl", 5, 5), (0, "birl", 0, 5), (0, "d3rlpy", 7, 4), (0, "birl", 3, 5)):
            rows.writerows(("td3-hopper", side, seed, 10_000 * n, score * n, n, "") for n in range(1, steps + 1))
        rows.writerow(("a task of old", "birl", 0, 1, 2, 3, ""))
    found = module.measured()["TD3"]["td3-hopper"]
    assert list(found) == ["birl"]  # the other side's run is not complete
    assert found["birl"].scores.tolist() == [[3, 6, 9, 12, 15], [5, 10, 15, 20, 25]]  # the newer run of seed 0
    assert str(found["birl"]) == "20.0 (15.0 … 25.0)"
    assert list(module.measured()) == ["TD3"]
    for name in ("a.svg", "b.svg"):
        module.draw(tmp_path / name, "TD3", "what is seen", module.measured()["TD3"])
    drawn = (tmp_path / "a.svg").read_bytes()
    assert drawn == (tmp_path / "b.svg").read_bytes() and b"what is seen" in drawn and b"birl (2 seeds)" in drawn


def test_every_algorithm_that_learns_to_act_has_a_task():
    """So that its curve can be measured by `benchmarks/scores.py`."""
    from birl import algos

    module = generator()
    learning = {cls.__name__ for cls in module.algorithms() if hasattr(algos, cls.__name__) and cls.learns_from.loops}
    tasks = {name: task.algorithm for name, task in module.TASKS.items()}
    assert not learning - {*tasks.values()}, "write their pages, or add a line to TASKS of benchmarks/scores.py"
    assert not {*tasks.values()} - learning
    unmeasured = [name for name, algorithm in tasks.items() if algorithm not in module.measured()]
    given = "run `python benchmarks/scores.py run --task … --side birl --seed 0` and scripts/make_algorithm_pages.py"
    assert not unmeasured, f"{given}, with {' or '.join(unmeasured)}"


def test_what_is_logged_is_what_an_update_gives():
    """The docstrings' metrics, which the pages explain, are those of the first updates."""
    from birl import algos
    from birl.config import AlgorithmConfig
    from birl.models import VectorEncoderFactory
    from birl.testing import Subject

    module, small = generator(), VectorEncoderFactory(hidden_units=[4])
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
        table = module.page(config.algorithm).partition("## What it logs")[2].partition("##")[0]
        said = {name for name in module.METRICS if f"| `{name}` |" in table}
        unsaid, unknown = given - said, given - module.METRICS.keys()
        assert not unknown, f"METRICS of scripts/make_algorithm_pages.py needs a meaning of {sorted(unknown)}"
        assert not unsaid, f"{config.__name__} logs {sorted(unsaid)}: say so in its docstring, after `Logs`"
        assert not said - given, f"{config.__name__} does not log {sorted(said - given)}"


def test_the_table_of_public_packages_is_up_to_date():
    module = generator("api_pages")
    assert module.PUBLIC_API.read_text(encoding="utf-8") == module.public_api(), "run scripts/api_pages.py"
    assert all(f"`birl.{name}`" in module.public_api() for name in birl.__all__)


def test_the_picture_and_the_table_of_folders_are_up_to_date():
    module = generator("draw_architecture")
    assert module.PICTURE.read_text(encoding="utf-8") == module.picture(), "run scripts/draw_architecture.py"
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run scripts/draw_architecture.py"
    names = [name for row in module.floors() for name in row]
    assert {"algos", "engine", "run", "dataset", "types"} <= set(names)
    for name in names:
        assert 0 < len(module.description(name)) <= module.LONGEST, f"the first line of birl/{name}"
