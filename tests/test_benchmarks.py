"""The benchmarks' own maths, files and protocol, with workers that do next to nothing."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import itertools
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

import birl
from benchmarks import asynchronous, cliff_walk, collectors, imitation, learning, policies, rainbow, scores
from benchmarks import values as value_scores
from benchmarks.__main__ import chosen, measure_row, wanted_rows
from benchmarks.peers_ray import task
from benchmarks.report import (
    Comparison,
    Measurement,
    Side,
    compare,
    geometric_mean,
    markdown,
    plot,
    spread,
    unequal_sizes,
    write_csv,
)
from benchmarks.rows import Row, rows
from benchmarks.workers import Job, Worker, WorkerError, serve
from birl.dataset import Uniform

ROW = Row("update/X", "one update", "update", ("birl", "birl-compiled"), ("sb3",), asked=2.5, warm_up=3)


def values(side: str, *numbers: float, row: str = ROW.name, processor: float = 0.0) -> list[Measurement]:
    return [Measurement(row, side, index, number, processor) for index, number in enumerate(numbers)]


# --------------------------------------------------------------------------------------------------------------- maths


def test_spread_and_geometric_mean() -> None:
    assert spread([3.0]) == (3.0, 3.0, 3.0)
    assert spread([4.0, 0.0, 1.0, 3.0, 2.0]) == (1.0, 2.0, 3.0)
    assert geometric_mean([1.0, 4.0, 16.0]) == pytest.approx(4.0)


def test_ratios_compare_what_was_measured_in_the_same_round() -> None:
    # The machine was ten times as slow in the second round: the ratio does not notice.
    found = compare([ROW], [*values("birl", 1.0, 10.0, 1.0), *values("sb3", 3.0, 30.0, 3.0)])
    assert [(one.side, one.peer, one.low, one.median, one.high) for one in found] == [("birl", "sb3", 3.0, 3.0, 3.0)]
    assert found[0].met is True and found[0].processor is None


def test_rounds_that_one_side_missed_are_left_out() -> None:
    ones = [Measurement(ROW.name, "birl", 1, 2.0, 1.0), Measurement(ROW.name, "birl", 2, 4.0, 1.0)]
    found = compare([ROW], [*ones, Measurement(ROW.name, "sb3", 2, 8.0, 5.0)])
    assert [(one.median, one.processor) for one in found] == [(2.0, 5.0)]
    assert found[0].met is False


def test_differences_and_figures_of_their_own() -> None:
    difference = Row("import/x", "", "import", ("birl",), ("torch",), asked=0.3, kind="difference")
    figure = Row("memory", "", "memory", ("birl", "d3rlpy"), (), asked=1.05, kind="value")
    ones = values("birl", 1.5, row="import/x") + values("torch", 1.0, row="import/x")
    ones += values("birl", 1.02, row="memory") + values("d3rlpy", 3.0, row="memory")
    late, own, other = compare([difference, figure], ones)
    assert (late.median, late.met) == (0.5, False)
    assert (own.median, own.met, own.peer) == (1.02, True, "")
    assert (other.median, other.met) == (3.0, None)  # nothing is asked of a peer
    (starts,) = chosen(rows([]), ["starts/SAC"])
    ones = [*values("birl-warm", 2.0, row=starts.name), *values("birl-cold", 60.0, row=starts.name)]
    assert [(one.side, one.met) for one in compare([starts], ones)] == [("birl-warm", True), ("birl-cold", None)]


def test_sides_of_other_sizes_are_named() -> None:
    sides = [Side("a", "birl", facts={"parameters": 10_001}), Side("a", "sb3", facts={"parameters": 10_000})]
    assert unequal_sizes(sides) == []
    sides += [Side("b", "birl", facts={"batch_size": 100}), Side("b", "d3rlpy", facts={"batch_size": 256})]
    assert unequal_sizes([*sides, Side("b", "jax")]) == ["b: batch_size 100 (birl), 256 (d3rlpy)"]


def test_rows_have_names_of_their_own_and_ask_what_was_promised() -> None:
    everything = rows(["SAC", "BC"])
    by_name = {row.name: row for row in everything}
    assert len(by_name) == len(everything)
    assert by_name["offline/BC"].asked == 2.0 and by_name["sampling/transitions"].asked == 40.0
    assert by_name["mapped/DQN"].asked == 0.9 and by_name["mapped/DQN"].sides == ("birl-folder", "birl")
    assert by_name["predict/1"].peers == ("sb3", "d3rlpy")
    names = ["offline/BC", "offline/SAC", "update/SAC", "mapped/SAC", "starts/SAC"]
    assert [row.name for row in chosen(everything, ["offline", "*/SAC"])] == names
    assert chosen(everything, []) == everything
    assert chosen(everything, ["predict/1"], without=["sb3"])[0].sides == ("birl", "d3rlpy")
    with pytest.raises(SystemExit, match="no side 'sb4'"):
        chosen(everything, [], without=["sb4"])
    with pytest.raises(SystemExit, match="no row fits 'ofline'"):
        chosen(everything, ["ofline"])


def test_a_peer_is_asked_only_for_rows_that_compare_with_it() -> None:
    asked: list[str] = []

    def theirs() -> set[str]:
        asked.append("d3rlpy")
        return {"SAC"}

    ours = {"SAC", "BC"}
    assert {row.name for row in wanted_rows(ours, theirs, ["starts", "import"], [])} >= {"starts/SAC", "import/peers"}
    assert len(wanted_rows(ours, theirs, ["offline"], ["d3rlpy"])) == 2 and not asked
    assert [row.name for row in wanted_rows(ours, theirs, ["offline", "memory"], [])] == ["offline/SAC", "memory"]
    assert asked == ["d3rlpy"]
    assert len(wanted_rows(ours, lambda: None, ["offline"], [])) == 2


# --------------------------------------------------------------------------------------------------------------- files


def test_the_csv_has_every_measurement(tmp_path: Path) -> None:
    write_csv(tmp_path / "x.csv", [Measurement("a, b", "birl", 0, 0.5, 0.25, 10)])
    with (tmp_path / "x.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file))[1:] == [["a, b", "birl", "0", "0.5", "0.25", "10"]]


def test_the_tables_show_ratios_failures_and_the_mean() -> None:
    offline = [Row(f"offline/{name}", "", "offline", ("birl",), ("d3rlpy",), asked=2.0) for name in ("A", "B")]
    ones = [*values("birl", 1e-3, row="offline/A"), *values("d3rlpy", 16e-3, row="offline/A")]
    ones += [*values("birl", 1e-3, row="offline/B"), *values("d3rlpy", 1e-3, row="offline/B"), *values("birl", 2.0)]
    sides = [Side(one.row, one.side, first=7.0) for one in ones]
    sides.append(Side(ROW.name, "sb3", error="ModuleNotFoundError: no|peer"))
    text = markdown([*offline, ROW], ones, sides, {"CPU": "abacus"}, {"birl": {"torch": "9"}})
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert ["offline, geometric mean", "birl", "d3rlpy", "4x", "at least 4x", "yes"] in lines
    assert ["offline, the lowest: B", "birl", "d3rlpy", "1x", "at least 2x", "no"] in lines
    assert ["offline/A", "birl", "d3rlpy", "16x", "16x to 16x", "", "at least 2x", "yes"] in lines
    assert any(line[:3] == ["update/X", "sb3", "**failed**: ModuleNotFoundError: no/peer"] for line in lines)
    assert any(line[:3] == ["offline/A", "birl", "1 ms"] and line[4] == "1000" and line[6] == "7 s" for line in lines)
    assert ["CPU", "abacus"] in lines and ["birl", "torch 9"] in lines
    widths = {len(line) for line in lines}
    assert widths <= {2, 6, 8, 9}


def test_the_plot_is_an_image(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ones = [Comparison("a", "birl", "sb3", "ratio", 2.0, 1.0, 3.0, 4.0), Comparison("b", "x", "", "value", 1, 1, 1, 1)]
    plot(tmp_path / "x.png", ones, "title")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    plot(tmp_path / "y.png", [], "nothing was measured")


# ------------------------------------------------------------------------------------------------------------- workers

FAKE = """
    import sys
    from workers import Job, serve_standard_streams

    def make(name, options):
        print("a library's greeting")
        if name == "broken":
            raise ModuleNotFoundError("there is no such peer")
        if name == "exit":
            sys.exit("gone")
        if name == "hang":
            import time
            time.sleep(60)
        if name == "figure":
            return Job(value=1.5)
        return Job(lambda: options.get("units", 2), facts={"side": sys.argv[1]})

    serve_standard_streams(make)
"""


@pytest.fixture
def fake(tmp_path: Path) -> list[str]:
    path = tmp_path / "fake.py"
    folder = Path(__file__).parents[1] / "benchmarks"
    path.write_text(f"import sys\nsys.path.insert(0, {str(folder)!r})\n" + textwrap.dedent(FAKE), encoding="utf-8")
    return [sys.executable, str(path)]


def test_requests_have_one_answer_each() -> None:
    made: list[tuple[str, dict[str, int]]] = []

    def make(name: str, options: dict[str, int]) -> Job:
        made.append((name, options))
        return Job(lambda: 3, facts={"a": 1})

    requests = [{"make": "x", "options": {"n": 1}}, {"run": 0, "at_least": 10}, {"run": 0}]
    answers = io.StringIO()
    serve(make, io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
    given, run, once = (json.loads(line) for line in answers.getvalue().splitlines())
    assert made == [("x", {"n": 1})]
    assert given["facts"] == {"a": 1} and given["seconds"] >= 0
    assert run["units"] == 12 and run["clock"] >= run["first"] > 0 and run["processor"] >= 0
    assert once["units"] == 3


def test_all_sides_are_measured_in_turns_and_a_failing_one_says_why(fake: list[str]) -> None:
    def start(side: str) -> Worker:
        if side == "sb3":
            raise WorkerError("its environment cannot be made")
        return Worker([*fake, side])

    measurements, sides = measure_row(ROW, start, rounds=3, seconds=0.0, warm_up=0.0)
    expected = [(name, number) for number in range(3) for name in ("birl", "birl-compiled")[:: 1 - 2 * (number % 2)]]
    assert [(one.side, one.round) for one in measurements] == expected
    assert all(one.units == 2 for one in measurements)
    assert [side.facts for side in sides] == [{"side": "birl"}, {"side": "birl-compiled"}, {}]
    assert [side.error for side in sides] == ["", "", "its environment cannot be made"]


@pytest.mark.parametrize(
    ("job", "timeout", "message"),
    [
        ("broken", 60.0, "ModuleNotFoundError: there is no such peer"),
        ("exit", 60.0, "the worker ended without an answer: gone"),
        ("hang", 0.5, "no answer within 0.5 s"),
    ],
)
def test_a_worker_that_fails_says_how(fake: list[str], job: str, timeout: float, message: str) -> None:
    worker = Worker([*fake, "birl"], timeout=timeout)
    try:
        with pytest.raises(WorkerError, match=message):
            worker.ask(make=job)
    finally:
        worker.close()


@pytest.mark.filterwarnings("ignore::birl.errors.ShortRunWarning")
@pytest.mark.parametrize(("name", "above"), [("cartpole-dqn", 0), ("cartpole-ppo", 0), ("memory-r2d2", -2)])
def test_learning_runs_start(name: str, above: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the slow tier does to its end, so that a change which stops it is seen here."""
    short = dataclasses.replace(learning.TASKS[name], limit=256, epoch=256, episodes=1)
    monkeypatch.setitem(learning.TASKS, name, short)
    outcome = learning.learn(name, 0)
    assert outcome.made == 256 and outcome.best > above


def test_rainbow_by_hand_makes_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rainbow, "START", 40)
    loop = rainbow.Rainbow()
    before = [parameter.clone() for parameter in loop.online.parameters()]
    for _ in range(3):
        assert loop.step() == 1
    assert loop.updates == 3 and np.isfinite(loop.tree.sums).all()
    assert all((old != new).any() for old, new in zip(before, loop.online.parameters(), strict=True))


def test_a_figure_is_not_timed(fake: list[str]) -> None:
    row = Row("memory", "", "figure", ("birl",), (), kind="value")
    measurements, _ = measure_row(row, lambda side: Worker([*fake, side]), rounds=1, seconds=9.0, warm_up=9.0)
    assert [one.value for one in measurements] == [1.5]


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(WorkerError, match="/nowhere/python cannot be started"):
        Worker(["/nowhere/python"])


# ---------------------------------------------------------------------------------------------------------- cliff walk


def test_a_cliff_walk_has_one_step_with_a_reward_and_is_learned_sooner_by_priority() -> None:
    data = cliff_walk.walks(4, np.random.default_rng(0), Uniform())
    assert (data.step_count, data.size()) == (30, 16)
    assert sorted(episode.compute_return() for episode in data.episodes) == [0.0] * 15 + [1.0]
    assert all(episode.terminated for episode in data.episodes)
    assert cliff_walk.updates_until_learned(4, False, 0, limit=20) is None
    sums = [sum(cliff_walk.updates_until_learned(5, kind, seed) or 0 for seed in range(3)) for kind in (True, False)]
    assert 0 < sums[0] < 0.7 * sums[1]


# -------------------------------------------------------------------------------------------------------------- values


def test_the_outcome_of_a_run_is_the_mean_of_its_last_evaluations() -> None:
    found = scores.Outcome([1, 2, 3], np.array([[9.0, 1.0, 3.0], [9.0, 5.0, 7.0]]), [1.0, 1.0], tail=2)
    assert found.last.tolist() == [2.0, 6.0] and found.interval == (2.0, 6.0)
    assert dataclasses.replace(found, tail=1).last.tolist() == [3.0, 7.0]


@pytest.mark.parametrize("algorithm", value_scores.ALGORITHMS)
def test_every_algorithm_of_the_value_based_family_runs_on_vectors_and_images(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "EPISODES", 1)
    monkeypatch.setattr(value_scores, "make", lambda name: TimeLimit(Planes() if "MinAtar" in name else Vectors(), 5))
    for name in ("acrobot", "breakout"):
        short = {"steps": 24, "random": 8, "decay": 8, "every": 4, "copy": 8, "batch_size": 4}
        setting = dataclasses.replace(value_scores.SETTINGS[name], **short)
        task = f"{algorithm.lower()}-{name}"
        settings = {**value_scores.SETTINGS, name: setting}
        family = dataclasses.replace(
            value_scores.FAMILY, settings=settings, results=tmp_path / "values.csv", evaluations=2, tail=2
        )
        monkeypatch.setattr(value_scores, "FAMILY", family)
        options = argparse.Namespace(task=task, algorithm=algorithm, side="birl", seed=3)
        value_scores.run_birl(options, setting)
        found = family.outcomes()[task]["birl"]
        assert found.steps == [12, 24] and found.scores.tolist() == [[5.0, 5.0]]


def test_the_table_of_values_has_a_line_for_each_algorithm_and_side(tmp_path: Path) -> None:
    family = dataclasses.replace(value_scores.FAMILY, results=tmp_path / "values.csv")
    steps = {name: range(each.interval, each.steps + 1, each.interval) for name, each in family.tasks.items()}
    with family.results.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(scores.FIELDS)
        runs = (("dqn-acrobot", "birl", 3.0), ("dqn-acrobot", "sb3", 6.0), ("iqn-breakout", "birl", 9.0))
        for (task, side, last), seed in itertools.product(runs, (0, 1)):
            csv.writer(file).writerows((task, side, seed, step, last + seed, 60, "") for step in steps[task])
        csv.writer(file).writerow(("m-dqn-acrobot", "birl", 0, 3_000, 0.0, 1, ""))  # was stopped
    lines = family.table().splitlines()
    assert "| DQN | birl | 3.5 (3.0 … 4.0) [2, 60 s] |  |" in lines
    assert "| DQN | SB3 | 6.5 (6.0 … 7.0) [2, 60 s] |  |" in lines
    assert "| IQN | birl |  | 9.5 (9.0 … 10.0) [2, 60 s] |" in lines
    assert not any(line.startswith("| M-DQN") for line in lines)
    pytest.importorskip("matplotlib")
    family.plot()
    drawn = (tmp_path / "values.svg").read_text(encoding="utf-8")
    assert "MinAtar/Breakout-v1" in drawn and "SpaceInvaders" not in drawn  # in which nothing was run


def test_algorithms_with_other_environments_have_a_table_of_their_own(tmp_path: Path) -> None:
    family = dataclasses.replace(policies.FAMILY, results=tmp_path / "policies.csv")
    with family.results.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(scores.FIELDS)
        for task, last in (("ppo-acrobot", 3.0), ("ppo-hopper", 6.0), ("ppo-hopper-1m", 9.0)):
            each = family.tasks[task]
            steps = range(each.interval, each.steps + 1, each.interval)
            csv.writer(file).writerows((task, "birl", 0, step, last, 60, "") for step in steps)
    lines = family.table().splitlines()
    heads = [line for line in lines if line.startswith("| algorithm")]
    assert heads[1] == "| algorithm | side | Hopper-v5, 204,800 steps |"  # nothing was run in the others
    assert [line for line in lines if line.startswith("| PPO")] == [
        "| PPO | birl | 3.0 [1, 60 s] |",
        "| PPO | birl | 6.0 [1, 60 s] |",
        "| PPO | birl | 9.0 [1, 60 s] |",
    ]
    pytest.importorskip("matplotlib")
    family.plot()
    assert (tmp_path / "policies.svg").read_text(encoding="utf-8").count("Hopper-v5") == 2


# ------------------------------------------------------------------------------------------------------------ policies


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        pytest.param(name, each, marks=[pytest.mark.slow] if each == "A3C" else [])
        for name in ("cartpole", "pendulum")
        for each in policies.FAMILY.algorithms[name]
    ],
)
def test_every_policy_of_the_benchmark_runs(
    name: str, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "EPISODES", 1)
    monkeypatch.setattr(policies, "RANDOM_STEPS", 256)
    setting = dataclasses.replace(policies.SETTINGS[name], steps=320, lanes=2, rollout=32, running=name == "pendulum")
    settings = {**policies.SETTINGS, name: setting}
    family = dataclasses.replace(
        policies.FAMILY, settings=settings, results=tmp_path / "policies.csv", evaluations=2, tail=2
    )
    monkeypatch.setattr(policies, "FAMILY", family)
    task = f"{algorithm.lower()}-{name}"
    policies.run_birl(argparse.Namespace(task=task, algorithm=algorithm, side="birl", seed=3), setting)
    assert family.outcomes()[task]["birl"].steps == [160, 320]


def test_the_peers_of_the_policies_have_birls_settings() -> None:
    """Where a name and a number is on both sides, and the bounds of sb3-contrib, which are means over dimensions."""
    same = {"learning_rate": "learning_rate", "n_steps": "rollout_length", "batch_size": "batch_size"}
    same |= {"ent_coef": "entropy_coefficient", "gae_lambda": "gae_lambda", "n_critic_updates": "n_epochs"}
    same |= {"cg_max_steps": "conjugate_gradient_steps", "line_search_shrinking_factor": "line_search_shrink"}
    for name, setting in policies.SETTINGS.items():
        for algorithm in {*policies.PEERS} & {*policies.FAMILY.algorithms[name]}:
            config = policies.configuration(algorithm, setting)
            given = policies.peer_options(algorithm, setting, 3)
            if algorithm == "TRPO":
                assert config.value_learning_rate == given.pop("learning_rate")
                assert config.max_kl == 3 * given.pop("target_kl")
                assert config.conjugate_gradient_damping == pytest.approx(3 * given.pop("cg_damping"))
            assert {key: getattr(config, same[key]) for key in given} == given
            assert config.gamma == setting.gamma
            assert setting.steps // policies.FAMILY.evaluations % (config.rollout_length * setting.lanes) == 0


# ----------------------------------------------------------------------------------------------------------- imitation


@pytest.mark.parametrize("name", ["cartpole", pytest.param("hopper", marks=pytest.mark.slow)])
def test_an_expert_shows_what_others_learn_from(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "EPISODES", 1)
    env = {"hopper": "MountainCarContinuous-v0"}.get(name, imitation.SETTINGS[name].env)  # no MuJoCo in tests
    setting = dataclasses.replace(imitation.SETTINGS[name], env=env, steps=320, rollout=80)
    family = dataclasses.replace(
        imitation.FAMILY,
        settings={**imitation.SETTINGS, name: setting},
        results=tmp_path / "imitation.csv",
        evaluations=2,
    )
    monkeypatch.setattr(imitation, "FAMILY", family)
    ran = ("Expert", "BC-4", "GAIL-20")
    for algorithm in ran:
        task = f"{algorithm.lower()}-{name}"
        options = argparse.Namespace(task=task, algorithm=algorithm, side="birl", seed=3, env=name)
        if algorithm == "BC-4":  # which the expert has not shown yet
            imitation.demonstrations(name).rename(tmp_path / "aside.h5")
            with pytest.raises(SystemExit, match="run --env .* --algorithm Expert first"):
                imitation.run(options, setting)
            (tmp_path / "aside.h5").rename(imitation.demonstrations(name))
        imitation.run(options, setting)
    made = {task for task, sides in family.outcomes().items() if sides["birl"].steps == [160, 320]}
    assert made == {f"{algorithm.lower()}-{name}" for algorithm in ran}
    four, all_of_them = (imitation.shown(each, name).episodes for each in ("BC-4", "GAIL-20"))
    assert (len(four), len(all_of_them)) == (4, imitation.EPISODES)
    for short, whole in zip(four, all_of_them, strict=False):
        np.testing.assert_array_equal(short.observations, whole.observations)


# -------------------------------------------------------------------------------------------------------- environments


def test_planes_come_first_and_are_bytes() -> None:
    env = value_scores.Planes(Booleans())
    observation, _ = env.reset()
    assert env.observation_space.shape == observation.shape == (3, 10, 10) and observation.dtype == np.uint8
    assert observation[2, 4, 5] == 1 and observation.sum() == 1


class Vectors(gymnasium.Env[Any, Any]):
    """A reward of 1 each step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, **options: Any) -> Any:
        super().reset(seed=options.get("seed"))
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action: Any) -> Any:
        return *self.reset()[:1], 1.0, False, False, {}


class Planes(Vectors):
    observation_space = gymnasium.spaces.Box(0, 1, (4, 10, 10), np.uint8)


class Booleans(Vectors):
    observation_space = gymnasium.spaces.Box(0, 1, (10, 10, 3), bool)

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        observation[4, 5, 2] = True
        return observation, info


def test_the_task_of_collectors_counts_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(task.COUNTS, str(tmp_path))
    for steps in (3, 4):
        env = task.Task()
        env.reset(seed=0)
        for _ in range(steps):
            observation, *_ = env.step(1)
            assert env.observation_space.contains(observation)
    assert task.counted(tmp_path) == {os.getpid(): 7}


def test_runs_of_the_task_are_compared_by_all_their_bits() -> None:
    cluster = birl.Cluster(2, 1, 5, "turns", transport="inline")
    found = [collectors.bits(collectors.trained(cluster, task.Task(), steps)) for steps in (60, 60, 61)]
    assert found[0] == found[1] != found[2]


@pytest.mark.slow
def test_deaths_of_workers_are_reported_and_cost_what_is_said() -> None:
    killed, learned, beyond = asynchronous.deaths(quick=True)
    assert killed.value == "2 of 2, 2" and learned.value == learned.goal == "400"
    assert 0 <= int(beyond.value) <= 2 * asynchronous.ROLLOUT
