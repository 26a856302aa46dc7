"""``birl ope slates`` and ``birl ope watch``: tables to verdicts and checks, with their exit status, pages and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from birl.cli import main
from birl.dataset.logs.files import import_files
from tests.ope.test_monitoring import SCHEMA
from tests.ope.test_slates import by_cascade, draw, feedback


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    status = main(["ope", *map(str, words)])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return status, said.out, said.err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_slates(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = feedback(draw(by_cascade, 2000, np.random.default_rng(0)))
    del columns["n_rounds"]
    pyarrow.parquet.write_table(pyarrow.table(columns), "slates.parquet")
    status, out, err = run(capsys, "slates", "slates.parquet", "--users", "cascade", "--min-gain", -5, "--out", "page")
    assert status == 0 and out.startswith("slates.parquet: ship"), out + err
    rows = [line.split() for line in out.splitlines() if line.startswith(("slate_", "reward_", "item_"))]
    assert [row[0] for row in rows] == ["slate_importance_sampling", "reward_interaction", "item_position"]
    assert rows[1][4] == "decides" and len(rows[0]) == 4
    page, data = Path("page/report.html").read_text(), json.loads(Path("page/report.json").read_text())
    assert "2000 slates, 6000 items" in page and data["policies"][0]["verdict"] == "ship"
    status, out, _ = run(capsys, "slates", "slates.parquet", "--users", "cascade", "--min-gain", 5, "--json")
    assert status == 3 and json.loads(out)["verdict"] == "do_not_ship"

    columns["article"] = columns.pop("action")
    pyarrow.csv.write_csv(pyarrow.table(columns), "slates.csv")
    status, _, err = run(capsys, "slates", "slates.csv")
    assert status == 1 and "the table has no column of the item" in err
    assert run(capsys, "slates", "slates.csv", "--column", "item=article", "--min-gain", -9)[0] == 0
    assert "is not ROLE=NAME" in run(capsys, "slates", "slates.csv", "--column", "article")[2]
    assert "users is 'top'; it must be one of" in run(capsys, "slates", "slates.parquet", "--users", "top")[2]


def write_logs(name: str, seed: int, profit: float = 1.1) -> None:
    rng, n = np.random.default_rng(seed), 1200
    table = {
        "at": np.arange(n) + 1e6 * seed,
        "age": 40 + 10 * rng.normal(size=n),
        "channel": np.where(rng.random(n) < 0.5, "app", "web"),
        "offer": rng.choice(3, size=n, p=[0.2, 0.7, 0.1]),
        "profit": profit + rng.normal(size=n),
        "chances": [[0.2, 0.7, 0.1]] * n,
        "version": np.where(np.arange(n) % 4, "new", "old"),
        "user": np.arange(n) + n * seed,
    }
    pyarrow.parquet.write_table(pyarrow.table(table), f"{name}.parquet")
    import_files([f"{name}.parquet"], SCHEMA, Path(name))


def test_watch(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed, profit in (("certify", 0, 1.1), ("week1", 1, 1.1), ("week2", 2, 0.3)):
        write_logs(name, seed, profit)
    row = {
        "policy": "run",
        "decides": "per_decision",
        "estimates": {"per_decision": {"interval": [1.0, 1.2]}},
        "gamma": 1.0,
        "horizon": 1,
    }
    Path("ope").mkdir()
    Path("ope/report.json").write_text(json.dumps({"policies": [row]}))
    status, out, err = run(capsys, "watch", "week1", "--certified", "certify", "--report", "ope", "--out", "page")
    assert status == 0 and out.startswith("week1: as_certified\n  The new logs agree with what was certified."), (
        out + err
    )
    assert "no column of 3 has changed" in out and Path("page/watch.html").is_file()
    status, out, _ = run(capsys, "watch", "week2", "--certified", "certify", "--report", "ope", "--json")
    assert status == 3 and json.loads(out)["checks"][2]["result"] == "worse"
    status, out, _ = run(capsys, "watch", "week2", "--certified", "certify", "--gamma", 1)
    assert status == 3 and "the certified logs promised" in out
    status, out, _ = run(capsys, "watch", "week1", "--certified", "certify", "--report", "ope", "--baseline", "new")
    assert "the gain over the former policy, which still acts" in out
    for words, message in (
        (["--report", "nowhere"], "there is no report nowhere"),
        (["--report", "ope", "--gamma", 1], "both define the discount"),
        (["--policy", "run"], "names a policy of a report"),
        (["--epsilon", 0.1], "--epsilon and --temperature are for a policy"),
        (["--baseline", "v7"], "--baseline 'v7' is no logger of the new logs; they have "),
    ):
        status, _, err = run(capsys, "watch", "week1", "--certified", "certify", *words)
        assert status == 1 and message in err, err
    status, _, err = run(capsys, "watch", "certify", "--certified", "certify")
    assert status == 1 and "are among the certified ones" in err
