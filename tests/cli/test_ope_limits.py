"""``birl ope report`` of decision tables and functions, with constraints and segments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.cli import main
from birl.dataset.logs.files import import_files
from birl.ope.holdout_ledger import ledger_path
from tests.ope.test_plain_policies import NAMED
from tests.ope.test_segments import visits

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
pytest.importorskip("jinja2")

MODULE = """
import numpy as np

class Kept:
    def action_probability(self, x, action=None):
        every = np.tile([0.1, 0.9], (len(x), 1))
        return every if action is None else every[np.arange(len(x)), action.reshape(-1)]

def remind(x):
    return np.full(len(x), "remind")

kept = Kept()
three = 3
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limits")
    table = visits(3000, 1, [1.0, -0.8, 0.6])
    table["offer"] = np.array(["wait", "remind"])[table["offer"]]
    table["propensity"] = table["propensity"].tolist()
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "log.parquet")
    import_files([folder / "log.parquet"], NAMED, folder / "certify")
    (folder / "rules.csv").write_text("channel,p(wait),p(remind)\nweb,0.5,0.5\n,0.1,0.9\n")
    (folder / "rules.toml").write_text("[[rule]]\nprobabilities = { wait = 0.1, remind = 0.9 }\n")
    (folder / "ours.py").write_text(MODULE)
    (folder / "model.pkl").write_bytes(b"")
    return folder


@pytest.fixture
def ask(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(place)

    def run(*words: Any) -> tuple[int, str]:
        ledger_path("certify").unlink(missing_ok=True)
        status = main(["ope", "report", *map(str, words), "--dataset", "certify"])
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return status, output.out + output.err

    return run


def test_tables_and_functions_of_the_user(ask: Any, tmp_path: Path) -> None:
    status, output = ask("rules.csv", "--out", tmp_path / "ope")
    assert status == 0 and output.startswith("rules.csv: ship\n"), output
    asked = json.loads((tmp_path / "ope" / "report.json").read_text())["asked"]["policies"]["rules.csv"]
    assert asked.startswith("decision table of 2 rules; SHA-256 ")
    for name in ("rules.toml", "ours:kept"):
        assert ask(name, "--json")[0] == 0
    assert ask("ours:kept", "--against", "rules.toml", "--json")[0] == 3  # both act alike
    assert ask("ours:remind", "--json")[0] in (0, 4)
    assert main(["ope", "rank", "rules.csv", "rules.toml", "--dataset", "certify"]) == 1  # it has certified
    ledger_path("certify").unlink()
    assert main(["ope", "rank", "rules.csv", "ours:remind", "--dataset", "certify"]) == 0


def test_constraints_and_segments(ask: Any) -> None:
    status, output = ask("rules.toml", "--segment", "channel")
    assert status == 3 and "the gain is negative where channel = web" in output
    assert ask("rules.csv", "--segment", "channel", "--segment-loss", 0.3)[0] == 0
    status, output = ask("rules.csv", "--constraint", "bought <= +5%", "--json")
    (found,) = json.loads(output)["policies"]
    assert status == 3 and found["constraints"][0]["verdict"] == "is violated"
    assert ask("rules.csv", "--constraint", "bought <= +0.3", "--constraint", "bought <= 0.9")[0] == 0


def test_the_worst_episodes(ask: Any) -> None:
    status, output = ask("rules.csv", "--cvar", 0.1, "--min-cvar-gain", -0.5, "--quantile", 0.05)
    assert status == 0 and "the mean return of the worst 10 % of episodes is" in output
    assert "the 5 % quantile of returns is" in output
    status, output = ask("rules.csv", "--cvar", 0.1, "--min-cvar-gain", 2, "--json")
    assert status == 3 and json.loads(output)["policies"][0]["lower_tails"][0]["min_gain"] == 2


def test_limits_are_a_part_of_the_question(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ope", "report", "rules.csv", "--dataset", "certify"]
    assert ask("rules.csv", "--constraint", "bought <= +0.3")[0] == 0
    assert main([*words, "--constraint", "bought<=+0.30"]) == 0
    assert main(words) == 1 and "have answered another question" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rules.csv", "--constraint", "complaints <= +1%"], "'complaints' is no outcome of the data"),
        (["rules.csv", "--constraint", "bought < 1"], "it must be a column, <= or >=, and a number"),
        (["rules.csv", "--segment", "bought"], "'bought' is an outcome"),
        (["rules.csv", "--segment", "chanel"], "did you mean 'channel'"),
        (["rules.csv", "--segment-loss", 0.1], "give --segment COLUMN"),
        (["rules.csv", "--min-cvar-gain", 0.1], "there is no --cvar"),
        (["rules.csv", "--quantile", 2], "the share of quantile is 2.0"),
        (["rules.csv", "--epsilon", 0.1], "rules.csv is no model, and --epsilon changes models only"),
        (["none.csv"], "none.csv cannot be read"),
        (["ours:nothing"], "cannot be imported"),
        (["ours:three"], "it must be a function of observations"),
        (["ours:Kept"], "give such an object, not its class"),
        (["model.pkl"], "is a pickle, which may run any code"),
    ],
)
def test_bad_input_looks_at_nothing(ask: Any, words: list[Any], message: str) -> None:
    status, output = ask(*words)
    assert status == 1 and message in " ".join(output.split())
    assert not ledger_path("certify").exists()
