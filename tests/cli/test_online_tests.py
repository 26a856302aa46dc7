"""``birl ope plan`` and ``birl ope read``: the guide's commands, exit statuses, and logs of tests that went wrong."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from birl.cli import main
from birl.ope import OnlineTestPlan

GUIDE = (Path(__file__).parents[2] / "docs" / "online-tests.md").read_text(encoding="utf-8")


def log(path: Path, effect: float, n: int = 3000, share: float = 0.5, later: float | None = None) -> str:
    """Write the log of a test; ``later`` is the share of the last third."""
    rng = np.random.default_rng(0)
    shares = np.where(np.arange(n) < 2 * n // 3, share, share if later is None else later)
    treated = rng.random(n) < shares
    outcome = rng.normal(size=n) + 2 + effect * treated
    days = np.datetime64("2026-03-01") + np.arange(n) * 28 // n
    order = rng.permutation(n)  # rows of a log need not be sorted
    columns = {"user": np.arange(n), "day": days, "arm": np.where(treated, "new", "old"), "profit": outcome}
    table = pyarrow.table({name: column[order] for name, column in columns.items()})
    pyarrow.parquet.write_table(table, path)
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["ope", *map(str, words)])
    said = capsys.readouterr()
    return status, said.out, said.err


READ = ("--arm", "arm", "--policy", "new", "--outcome", "profit", "--time", "day", "--unit", "user")


def test_the_guide_says_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = ""
    for language, block in re.findall(r"^```(python|sh|text)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE):
        if language == "python":
            Path("page.py").write_text(block, encoding="utf-8")
            runpy.run_path("page.py")
        elif language == "sh":
            for line in block.splitlines():
                capsys.readouterr()
                assert main(shlex.split(line)[1:]) == 0, line
            shown = capsys.readouterr().out
        else:
            assert shown == block
    assert OnlineTestPlan.load("plan.json").gain == pytest.approx(0.48)


def test_decisions_have_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    assert ask(capsys, "plan", "--gain", 0.2, "--std", 1, "--out", plan)[0] == 0
    for effect, status, decision in ((0.25, 0, "ship"), (-0.5, 7, "stop_for_futility"), (0.0, 7, "stop_for_futility")):
        file = log(tmp_path / "log.parquet", effect)
        found = ask(capsys, "read", file, *READ, "--plan", plan)
        assert found[0] == status and f"new: {decision}" in found[1]
        status_, out, _ = ask(capsys, "read", file, *READ, "--plan", plan, "--json")
        data = json.loads(out)
        assert status_ == status == data["status"] and data["decision"] == decision and data["units"] == 3000
        assert data["lower"] < effect < data["upper"] and len(data["path"]) == 200
    assert ask(capsys, "read", log(tmp_path / "log.parquet", -0.5), *READ, "--out", tmp_path / "page.html")[0] == 3
    assert "new: stop for harm" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert ask(capsys, "read", log(tmp_path / "log.parquet", 0.0, 500), *READ, "--min-gain", 0.1)[0] == 4
    status, out, _ = ask(capsys, "read", file, *READ, "--low", -9, "--high", 13, "--gain", 0.3, "--confidence", 0.9)
    assert status == 4 and "the test has not decided yet" in out


def test_a_plan_is_read_from_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from birl.dataset import Episode, create_infinite_replay_buffer
    from birl.types import ActionSpace

    rng = np.random.default_rng(0)
    episodes = []
    for i in range(200):
        reward = rng.normal(1.0, 1.0, (4, 1)).astype(np.float32)
        cluster = {"cluster": np.full(4, i // 2)}
        episodes.append(Episode(np.zeros((4, 1), np.float32), np.zeros((4, 1), np.int64), reward, True, extra=cluster))
    data = create_infinite_replay_buffer(episodes=episodes, action_space=ActionSpace.DISCRETE, action_size=2)
    with open(tmp_path / "data.h5", "w+b") as file:
        data.dump(file)
    status, out, _ = ask(capsys, "plan", "--gain", "10%", "--dataset", tmp_path / "data.h5", "--gamma", 1, "--json")
    plan = json.loads(out)
    assert (
        status == 0 and plan["mean"] == pytest.approx(4, abs=0.4) and plan["gain"] == pytest.approx(plan["mean"] / 10)
    )
    assert plan["std"] == pytest.approx(2, abs=0.3) and plan["days"] is None and plan["episodes_to_log"] is None
    words = ("plan", "--gain", 0.01, "--rate", 0.04, "--rule", "pocock", "--looks", 3, "--effective-share", 0.1)
    status, out, _ = ask(capsys, *words)
    assert status == 0 and "STOP FOR HARM IF Z BELOW" in out and "2.279" in out
    assert re.search(r"birl ope report would need about [\d,]+ logged episodes", out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gain", "x", "--std", 1), "--gain is 'x'; it must be a number such as 0.2, or a share of today's mean"),
        (("--gain", "3%", "--std", 1), "--gain 3% is a share of today's mean, which is unknown or 0: give --mean"),
        (("--gain", 3, "--rate", 0.1), "--rate 0.1 with a gain of 3 is 3.1; it must be between 0 and 1"),
        (("--gain", 3), "give one of --dataset, --std and --rate, which say how much outcomes vary"),
        (
            ("--gain", 1, "--std", 1, "--rule", "often"),
            "rule is 'often'; it must be one of 'anytime', 'obrien_fleming'",
        ),
    ],
)
def test_plans_that_cannot_be_made(words: tuple[object, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = ask(capsys, "plan", *words)
    assert status == 1 and message in err


def test_a_changed_allocation_is_refused_with_row_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = log(tmp_path / "log.parquet", 0.0, later=0.8)
    status, _, err = ask(capsys, "read", file, *READ)
    assert status == 1 and re.search(
        r"is 0\.\d+ from row \d+ of .*log.parquet \(2026-03-\d\dT00:00:00\) on, but 0.5", err
    )
    assert "find the cause" in err and "read only units of one share" in err


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        (
            ["1,a,5", "2,b,", "3,a,2"],
            (),
            "row 2 of log.csv, column 'y': the value is missing; every unit needs one: leave",
        ),
        (["1,a,5", "2,,1", "3,a,2"], (), "row 2 of log.csv, column 'arm': the value is missing; every unit needs one"),
        (["1,a,5", "2,b,x"], (), "row 2 of log.csv, column 'y': 'x' is no double, unlike earlier values: repair it"),
        (["1,a,5", "2,b,2", "1,a,1"], (), "row 3 of log.csv, column 'id': 1 is also in row 1 of log.csv; a unit must"),
        (["1,a,5", "2,b,2", "1,b,1"], (), "it is in the arms a and b: leave out such units, and find out why"),
        (
            ["1,a,5", "2,c,2", "3,b,2"],
            (),
            "the arms are 'a', 'b', 'c'; they must be 'a' and one other: give one of the",
        ),
        (["1,b,5", "2,c,2"], (), "the arms are 'b', 'c'; they must be 'a' and one other"),
        (["1,a,5", "2,b,2"], ("--time", "when"), "log.csv has no column 'when'; it has: 'id', 'arm', 'y'"),
        (["1,a,5", "2,b,2"], ("--time", "y"), "--arm, --outcome, --time and --unit name a column twice"),
        ([], (), "log.csv has no rows; a test needs one row for each unit: give its log"),
        (["1,a,5", "2,b,2"], ("--share", 1.5), "--share 1.5: it must be below 1"),
    ],
)
def test_logs_that_cannot_be_read(
    rows: list[str],
    words: tuple[object, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text("id,arm,y\n" + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    options = ("--arm", "arm", "--policy", "a", "--outcome", "y", "--unit", "id")
    status, _, err = ask(capsys, "read", "log.csv", *options, *words)
    assert status in (1, 2) and message in err.replace("Invalid value for '--share': ", "--share 1.5: "), err


def test_files_whose_columns_differ_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("when,arm,y\n2026-01-01,a,1\n2026-01-02,b,2\n", encoding="utf-8")
    Path("b.csv").write_text("when,arm,y\n1,a,1\n2,b,2\n", encoding="utf-8")
    options = ("--arm", "arm", "--policy", "a", "--outcome", "y", "--time", "when")
    status, _, err = ask(capsys, "read", "a.csv", "b.csv", *options)
    assert (
        status == 1 and "row 1 of b.csv, column 'when' holds whole numbers, unlike earlier rows: give a column" in err
    )


def test_options_of_a_plan_are_not_given_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = ask(capsys, "read", "x.csv", *READ, "--plan", tmp_path / "plan.json", "--min-gain", 0.1)
    assert status == 1 and "--min-gain is a part of the plan" in err and "give one of them" in err
    status, _, err = ask(capsys, "read", "x.csv", *READ, "--plan", tmp_path / "plan.json")
    assert status == 1 and "give a file that birl ope plan --out wrote" in err


def test_other_commands_of_the_group_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ask(capsys, "--help")
    assert status == 0
    assert [name for name in ("report", "rank", "choose", "plan", "read") if f"  {name} " not in out] == []
    assert ask(capsys, "repot")[0] == 2
