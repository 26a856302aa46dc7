"""``birl tune``. Where its logic is tested, a small script takes the place of ``birl train``."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Shell

from birl.cli import main, study
from birl.cli.study import SearchRange
from birl.cli.tune import find_score, parse_search
from birl.errors import ConfigError, CorruptFileError
from birl.run.run_lock import only_run

WORDS = ["tune", "DQN", "--env-id", "CartPole-v1", "--n-steps", 300]
SEARCH = ["--search", "learning_rate=1e-5..1e-2:log", "batch_size=16,32"]
FAKE = """
import json, os, signal, sys, time
folder, plan = sys.argv[1], json.loads(sys.argv[2])
def end(*_):
    open(folder + "/ended", "w").close()
    sys.exit(143)
os.makedirs(folder, exist_ok=True)
signal.signal(signal.SIGTERM, end)
with open(folder + "/evaluation.csv", "w") as file:
    for number, score in enumerate(plan.get("scores", [1.0])):
        file.write(f"{number + 1},{100 * (number + 1)},{score}\\n")
open(folder + "/model_300.d3", "w").close()
while plan.get("hang") or not all(map(os.path.exists, plan.get("until", []))):
    time.sleep(0.01)
print("first\\n" + plan.get("says", ""), file=sys.stderr)
sys.exit(plan.get("status", 0))
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], dict[str, Any]]], list[Any]]:
    """Replaces training: takes what each trial does, returns the list of numbers and values that are started."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    monkeypatch.setattr(study, "_POLL_INTERVAL", 0.01)
    monkeypatch.setattr(study.HyperparameterSearch, "_draw", lambda self, trials: None)  # one test draws

    def replace(plan: Callable[[int], dict[str, Any]]) -> list[Any]:
        started: list[Any] = []

        def command(self: study.HyperparameterSearch, number: int, values: dict[str, str]) -> list[str]:
            started.append((number, values))
            folder = str(self._folder(number))
            return [sys.executable, "-S", "-E", str(script), folder, json.dumps(plan(number))]

        monkeypatch.setattr(study.HyperparameterSearch, "_command", command)
        return started

    return replace


DRAW = study.HyperparameterSearch._draw


def table(out: Path) -> list[dict[str, str]]:
    with open(out / "trials.csv", newline="") as file:
        return list(csv.DictReader(file))


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("learning_rate=1e-5..1e-2:log", SearchRange("learning_rate", "1e-5..1e-2:log", 1e-5, 1e-2, log=True)),
        ("gamma=0.9..0.999", SearchRange("gamma", "0.9..0.999", 0.9, 0.999)),
        ("n_critics=2..10", SearchRange("n_critics", "2..10", 2, 10, whole=True)),
        ("x=-3..-1", SearchRange("x", "-3..-1", -3, -1, whole=True)),
        ("n=1..1000:log", SearchRange("n", "1..1000:log", 1, 1000, log=True, whole=True)),
        ("batch_size=32,64", SearchRange("batch_size", "32,64", choices=("32", "64"))),
        ("q_func_factory=mean,qr", SearchRange("q_func_factory", "mean,qr", choices=("mean", "qr"))),
        ("f.units=[64],[64,32]", SearchRange("f.units", "[64],[64,32]", choices=("[64]", "[64,32]"))),
    ],
)
def test_ranges(word: str, found: SearchRange) -> None:
    assert parse_search(word) == found


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("gamma", "'gamma' has no range"),
        ("=1..2", "has no name"),
        ("gamma=0.9", "two or more different choices"),
        ("gamma=0.9,0.9", "two or more different choices"),
        ("gamma=0.9,", "two or more different choices"),
        ("gamma=a..b", "'a..b' is not two numbers"),
        ("gamma=1..2..3", "is not two numbers"),
        ("gamma=0.9..0.99:lin", "'lin' is not log"),
        ("gamma=0.9..0.9", "the first number must be below the second"),
        ("gamma=0..inf", "both finite"),
        ("gamma=0..1:log", "both ends must be above 0"),
    ],
)
def test_ranges_that_are_none(word: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_search(word)
    assert says in str(caught.value) and repr(word) in str(caught.value) and "0.9..0.999" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "says", "status"),
    [
        (["DQM", "--env-id", "CartPole-v1"], "Did you mean DQN", 1),
        (["DQN", "--env-id", "CartPole-v1", "--search", "gama=0.9..0.99"], "gamma", 1),
        (["DQN", "--env-id", "CartPole-v1", "--search", "gamma=0.9..1.5"], "--search gamma=0.9..1.5: ", 1),
        (["DQN", "--env-id", "CartPole-v1", "--search", "batch_size=1.5..3"], "--search batch_size=1.5..3: ", 1),
        (["DQN", "--env-id", "CartPole-v1", "--set", "learning_rate=1"], "and --set learning_rate=1 are both", 1),
        (["DQN", "--env-id", "CartPole-v1", "--search", "learning_rate=1..2"], "learning_rate is given twice", 1),
        (["DQN"], "nothing to learn from: give --env-id", 1),
        (["DQN", "--dataset", "cartpole-random"], "no scores without an environment", 1),
        (["BC", "--env-id", "CartPole-v1"], "learns from logged data only", 1),
        (["DQN", "--env-id", "CartPole-v1", "--fresh"], "--fresh: not in a search", 1),
        (["DQN", "--env-id", "CartPole-v1", "--extend"], "--extend: not in a search", 1),
        (["DQN", "--env-id", "CartPole-v1", "--seeds", "3"], "--seeds: not in a search", 1),
        (["--env-id", "CartPole-v1", "DQN"], "the algorithm's name comes first", 1),
        (["DQN", "--env-id", "CartPole-v1", "--n-step", "5"], "--n-step", 2),
        (["DQN", "--env-id", "CartPole-v1", "--gamma", "0.9"], "--set gamma=0.9", 2),
    ],
)
def test_words_are_checked_before_any_trial(
    birl_: Shell, tmp_path: Path, words: list[str], says: str, status: int
) -> None:
    out = tmp_path / "out"
    rest = ["--trials", 2, "--out", out, "--search", "learning_rate=1e-5..1e-2:log"]
    assert says in birl_("tune", *words, *rest, status=status)
    assert not out.exists()


def test_whole_ends_of_a_field_with_fractions(birl_: Shell, tmp_path: Path, fake: Any) -> None:
    started = fake(lambda number: {})
    search = ["--search", "gamma=0..1", "batch_size=8..64"]
    birl_(*WORDS, *search, "--trials", 3, "--out", tmp_path / "out")
    assert all(0 < float(values["gamma"]) < 1 and values["batch_size"].isdecimal() for _, values in started)


# -- trials ------------------------------------------------------------------------------------------------------------


def test_the_command_of_a_trial(tmp_path: Path) -> None:
    tuned = study.HyperparameterSearch(tmp_path, ["DQN", "--seed", "3"], [], metric="evaluation", seed=3, prune=True)
    assert tuned._command(7, {"gamma": "0.9"}) == [
        sys.executable, "-m", "birl", "train", "DQN", "--seed", "3", "--set", "gamma=0.9",
        "--out", str(tmp_path / "trial_0007"),
    ]  # fmt: skip


def test_a_search_its_table_and_more_trials(
    birl_: Shell, tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    started = fake(lambda number: {"scores": [90, number, number + 1, number + 2]})
    words = [*WORDS, *SEARCH, "--out", out]
    with monkeypatch.context() as patch:
        patch.setattr(study.HyperparameterSearch, "_draw", DRAW)
        text = birl_(*words, "--trials", 3)
    head, *rows, last = text.splitlines()
    assert head.split() == ["TRIAL", "SCORE", "STATE", "STEPS", "learning_rate", "batch_size"]
    assert [row.split()[:4] for row in rows] == [[str(n), str(n + 1), "done", "400"] for n in (2, 1, 0)]
    rate, size = started[2][1]["learning_rate"], started[2][1]["batch_size"]
    assert last == (
        f"best: trial 2, 3, model {out}/trial_0002/model_300.d3; again: birl train DQN --env-id CartPole-v1 --n-steps "
        f"300 --seed 0 --set learning_rate={rate} --set batch_size={size}"
    )
    assert 1e-5 <= float(rate) <= 1e-2 and size in ("16", "32")
    assert [(row["trial"], float(row["score"])) for row in table(out)] == [("2", 3), ("1", 2), ("0", 1)]
    assert (out / "tune.png").stat().st_size > 1000
    assert birl_(*words, "--trials", 3) == text and len(started) == 3  # nothing is left to do
    birl_(*words, "--trials", 5)
    assert [number for number, _ in started] == [0, 1, 2, 3, 4]
    assert len({values["learning_rate"] for _, values in started}) == 5
    assert "trials was 5, now 4" in birl_(*words, "--trials", 4, status=1)
    assert "train.n_steps was 300, now 200" in birl_(*words, "--trials", 5, "--n-steps", 200, status=1)
    assert "prune was True, now False" in birl_(*words, "--trials", 5, "--no-prune", status=1)
    other = [*WORDS, "--search", "gamma=0.9..0.99", "--out", out, "--trials", 5]
    assert "search.gamma was" in birl_(*other, status=1)
    whole = fake(lambda number: {"scores": [90, number, number + 1, number + 2]})
    birl_(*WORDS, *SEARCH, "--out", tmp_path / "whole", "--trials", 5)
    assert whole == started  # as if it had never been stopped


def test_lower_scores_may_be_better(birl_: Shell, tmp_path: Path, fake: Any) -> None:
    fake(lambda number: {"scores": [90, number, number + 1, number + 2]})
    for name, more in (("up", []), ("down", ["--score-direction", "minimize"])):
        text = birl_(*WORDS, *more, *SEARCH, "--out", tmp_path / name, "--trials", 3)
        rows = [line.split()[:2] for line in text.splitlines()[1:4]]
        best = {"up": [["2", "3"], ["1", "2"], ["0", "1"]], "down": [["0", "1"], ["1", "2"], ["2", "3"]]}
        assert rows == best[name] and f"best: trial {rows[0][0]}" in text


def test_a_search_has_a_score_of_its_runs(birl_: Shell, tmp_path: Path) -> None:
    rest = [*SEARCH, "--out", tmp_path / "out", "--trials", 3]
    assert "one of 'evaluation', 'rollout_return', 'success_rate'" in birl_(*WORDS, "--score", "los", *rest, status=1)
    assert find_score({"score": "evaluation/success_rate"}).metric == "evaluation_success_rate"
    assert find_score({"score": "evaluation_std", "eval_statistics": True}).metric == "evaluation_std"
    assert find_score({"dataset": "x"}).metric == "environment"
    with pytest.raises(ConfigError, match="'evaluation_std'"):
        find_score({"score": "evaluation_std"})


def test_bad_trials_are_pruned(birl_: Shell, tmp_path: Path, fake: Any) -> None:
    plan = {5: {"scores": [1], "hang": True}, 6: {"scores": [30]}}
    fake(lambda number: plan.get(number, {"scores": [10 + number, 20]}))
    birl_(*WORDS, *SEARCH, "--out", tmp_path, "--trials", 7, status=1)  # the folder has files
    out = tmp_path / "out"
    text = birl_(*WORDS, *SEARCH, "--out", out, "--trials", 7)
    assert (out / "trial_0005" / "ended").exists()  # by SIGTERM
    assert [line.split()[:4] for line in text.splitlines()[-2:-1]] == [["5", "1", "pruned", "100"]]
    assert "trial 5 pruned at step 100: 1\n" in birl_.notes
    fake(lambda number: plan[5] | {"hang": False} if number == 5 else {"scores": [10 + number, 20]})
    birl_(*WORDS, *SEARCH, "--out", tmp_path / "all", "--trials", 6, "--no-prune")
    assert {row["state"] for row in table(tmp_path / "all")} == {"done"}


def test_failures(birl_: Shell, tmp_path: Path, fake: Any) -> None:
    out, words = tmp_path / "out", [*WORDS, *SEARCH, "--trials", 7, "--out", tmp_path / "out"]
    started = fake(lambda number: {"status": 3, "says": f"birl: no luck {number}"})
    said = birl_(*words, status=1)
    assert "3 trials failed and none succeeded: birl: no luck 2" in said and str(out / "trial_0002.log") in said
    assert "trial 1 failed (exit status 3): birl: no luck 1\n" in birl_.notes
    plan = [{"status": 1}, {"scores": []}, {"scores": [5]}, {"scores": ["nan"]}]
    started = fake(lambda number: plan[number - 3])
    text = birl_(*words)
    assert [number for number, _ in started] == [3, 4, 5, 6]
    assert "trial 4 failed: it has no evaluation, give a larger --n-steps" in birl_.notes
    assert "trial 6 failed: its score is nan" in birl_.notes
    assert [row["state"] for row in table(out)] == ["done", *["failed"] * 6] and "best: trial 5, 5," in text


def test_trials_at_once(birl_: Shell, tmp_path: Path, fake: Any) -> None:
    out = tmp_path / "out"
    fake(lambda number: {"until": [str(out / f"trial_{number ^ 1:04d}" / "evaluation.csv")]})  # each waits for another
    birl_(*WORDS, *SEARCH, "--trials", 4, "--jobs", 2, "--out", out)
    assert len(table(out)) == 4


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_search_that_was_stopped_goes_on(
    birl_: Shell, tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch, kind: Any, capsys: Any
) -> None:
    out, words = tmp_path / "out", [*WORDS, *SEARCH, "--trials", 3, "--jobs", 2, "--out", str(tmp_path / "out")]
    sleep, stop = study.sleep, [kind(143)]

    def wait(seconds: float) -> None:
        if all((out / f"trial_000{number}" / "model_300.d3").exists() for number in range(2)):
            raise stop[0]
        sleep(seconds)

    started = fake(lambda number: {"scores": [3], "hang": True})
    with monkeypatch.context() as patch:
        patch.setattr(study, "sleep", wait)
        if kind is KeyboardInterrupt:
            assert main([str(word) for word in words]) == 130
        else:
            with pytest.raises(SystemExit):
                main([str(word) for word in words])
    assert f"stopping trials (0, 1), which write checkpoints; the same command continues in {out}\n" in (
        capsys.readouterr().err
    )
    assert all((out / f"trial_000{number}" / "ended").exists() for number in range(2))
    with open(out / "study.journal", "a") as file:  # as after SIGKILL
        file.write('{"op_code": 5, "tri')
    (out / "study.journal.lock").touch()
    with only_run(out / "trial_0001"):
        assert "another run is active in" in birl_(*words, status=1)
    again = fake(lambda number: {"scores": [3, 4]})
    birl_(*words)
    assert again[:2] == started and again[2][0] == 2  # the same values
    assert "trial 1: learning_rate=" in birl_.notes and ", resumed -> " in birl_.notes
    rows = [(row["trial"], row["score"], row["steps"]) for row in table(out)]
    assert rows == [(str(number), "3.5", "200") for number in range(3)]


def test_the_study_is_lines_of_json(birl_: Shell, tmp_path: Path, fake: Any) -> None:
    fake(lambda number: {})
    words = [*WORDS, *SEARCH, "--trials", 1, "--out", tmp_path / "out"]
    birl_(*words)
    file = tmp_path / "out" / "study.journal"
    assert all(isinstance(json.loads(line), dict) for line in file.read_text().splitlines())
    from optuna.storages.journal import JournalFileBackend

    assert not hasattr(JournalFileBackend, "load_snapshot")  # snapshots are pickles; only Redis has them
    file.write_text('{"op_code": 0}\n' * 2)
    assert "cannot be read as Optuna's journal" in birl_(*words, status=1)
    (tmp_path / "out" / "tune.json").write_text("[]")
    assert "tune.json cannot be read" in birl_(*words, status=1)


@pytest.mark.parametrize("damage", ["params", "range", "value", "state", "depth", "infinite"])
def test_a_study_that_no_search_writes_is_refused(damage: str, tmp_path: Path) -> None:
    """Optuna checks little of what it reads, and other parts of the search rely on it."""
    ranges = [study.SearchRange("gamma", "0.9..0.99", 0.9, 0.99)]

    def search() -> study.HyperparameterSearch:
        return study.HyperparameterSearch(tmp_path, ["DQN"], ranges, metric="loss", seed=3, prune=True)

    found = search()
    trial = found._study.ask()
    ranges[0].suggest(trial)
    found._study.tell(trial, 1.5)
    search()
    lines = (tmp_path / "study.journal").read_text().splitlines()
    match damage:
        case "params":
            lines = [line for line in lines if '"gamma"' not in line]
        case "range":
            lines = [re.sub(r'"param_value_internal":[\d.]+', '"param_value_internal":7.5', line) for line in lines]
        case "value":
            lines = [line.replace("[1.5]", "[]") for line in lines]
        case "state":
            lines = [re.sub(r'"state":\d', '"state":9', line) for line in lines]
        case "depth":
            lines.append("[" * 100_000)
        case "infinite":
            lines = [line.replace("[1.5]", '["x"]') for line in lines]
    (tmp_path / "study.journal").write_text("\n".join(lines) + "\n")
    with pytest.raises(CorruptFileError, match="cannot be read as Optuna's journal.*Give another --out"):
        search()


def test_a_report_on_trials_whose_folders_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranges = [study.SearchRange("gamma", "0.9..0.99", 0.9, 0.99)]
    found = study.HyperparameterSearch(tmp_path, ["DQN"], ranges, metric="loss", seed=3, prune=True)
    trial = found._study.ask()
    ranges[0].suggest(trial)
    found._study.tell(trial, 1.5)
    found.report()
    assert "best: trial 0, 1.5, model None" in capsys.readouterr().out


def test_without_optuna(birl_: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "birl[tune]" in birl_(*WORDS, *SEARCH, "--trials", 1, "--out", tmp_path / "out", status=1)


@pytest.mark.slow
def test_two_real_trials(birl_: Shell, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["tune", "DQN", "--env-id", "CartPole-v1", "--n-steps", 400, "--n-steps-per-epoch", 100, "--n-trials", 1]
    text = birl_(*words, *SEARCH, "--trials", 2, "--out", out)
    assert [row["state"] for row in table(out)] == ["done", "done"] and "model_best.d3; again: birl train DQN" in text
    settings = json.loads((out / "trial_0001" / "run.json").read_text())
    row = next(row for row in table(out) if row["trial"] == "1")
    params = settings["algorithm"]["params"]
    assert (params["learning_rate"], params["batch_size"]) == (float(row["learning_rate"]), int(row["batch_size"]))
    assert row["steps"] == "400" and float(row["score"]) > 0
