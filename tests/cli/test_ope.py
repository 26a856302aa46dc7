"""``birl ope``: from a folder of logged episodes to a verdict with its exit status, a page and numbers."""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.cli import main
from birl.dataset import Episode, ReplayBuffer, create_infinite_replay_buffer
from birl.ope.holdout_ledger import ledger_path
from birl.types import ActionSpace

QUIET = {"logger_adapter": birl.logging.NoopAdapterFactory(), "show_progress": False}


def contexts(seed: int, n: int = 400, best: Any = None, storage: Any = "memory") -> ReplayBuffer:
    """Two steps of a choice of three; the best pays 1 and is the sign of the state, or ``best``. Logged at random."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(n):
        x = rng.normal(size=(2, 2)).astype(np.float32)
        action = rng.integers(3, size=(2, 1))
        right = (x[:, :1] > 0).astype(int) if best is None else best
        reward = (action == right) + 0.1 * rng.normal(size=(2, 1))
        propensities = np.full((2, 3), 1 / 3)
        extra = {"log_propensity": np.log(propensities[:, 0]), "propensities": propensities}
        episodes.append(Episode(x, action, reward.astype(np.float32), True, extra=extra))
    kind: Any = {"action_space": ActionSpace.DISCRETE, "action_size": 3, "storage": storage}
    return create_infinite_replay_buffer(episodes=episodes, **kind)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that are good and bad, and episodes to select by and to certify with."""
    folder = tmp_path_factory.mktemp("ope")
    for name, best in {"good": None, "bad": 2}.items():
        birl.seed(0)
        own = contexts(0, best=best)
        algo = birl.algos.DiscreteCQLConfig(learning_rate=1e-2, batch_size=64, gamma=0.0, alpha=0.0).create()
        algo.fit(own, n_steps=150, n_steps_per_epoch=150, **QUIET)  # type: ignore[arg-type]
        algo.save(folder / f"{name}.d3")
    birl.ope.EpsilonGreedy(birl.load_learnable(folder / "good.d3"), 0.2).save(folder / "drawn.d3")  # type: ignore[arg-type]
    return folder


@pytest.fixture
def here(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("good", "bad", "drawn"):
        (tmp_path / f"{name}.d3").write_bytes((place / f"{name}.d3").read_bytes())
    for name, seed in {"select": 1, "certify": 2}.items():
        contexts(seed, storage=name).close()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str]:
    status = main(["ope", *map(str, words)])
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return status, output.out + output.err


def test_from_logs_to_a_decision(here: Path, birl_: Any, capsys: pytest.CaptureFixture[str]) -> None:
    draw = ["--epsilon", 0.2]
    output = birl_("ope", "rank", "good.d3", "bad.d3", "--dataset", "select", "--out", "rank", *draw)
    rows = [line.split() for line in output.splitlines()]
    assert [row[:2] for row in rows[1:3]] == [["good.d3", "1"], ["bad.d3", "2"]]
    assert rows[0][2:] == ["GAIN", "FROM", "TO", "EFFECTIVE", "BY", "LINEAR", "DR", "DIFFERS"]
    assert rows[1][2] == rows[1][8] and rows[1][7].endswith("!")  # DR decides; the linear model cannot hold the values
    assert "good.d3: LINEAR and DR contradict each other" in birl_.notes
    assert abs(float(rows[1][9]) - (1 - 0.2 + 0.2 / 3 - 1 / 3)) < 0.05  # logged at random, drawn with epsilon 0.2
    assert "good.d3 is the best of those with valid estimates: certify it." in output
    ranked = json.loads(Path("rank/ranking.json").read_text())
    assert [one["rank"] for one in ranked["policies"]] == [[1, 1], [2, 2]]
    assert "Ranks of policies" in page("rank/ranking.html")

    ask = ["report", "good.d3", "--dataset", "certify", *draw]
    status, output = run(capsys, *ask, "--min-gain", 0.1, "--out", "ope")
    assert status == 0 and output.startswith("good.d3: ship\n") and "the whole interval is above 0.1" in output
    assert "with a Gamma of" in output and "ope/report.html" in output
    data = json.loads(Path("ope/report.json").read_text())
    found, asked = data["policies"][0], data["asked"]
    assert asked.keys() == {"policies", "episodes", "date"} and asked["episodes"].startswith("certify; digest ")
    digest = hashlib.sha256(Path("good.d3").read_bytes()).hexdigest()
    description = asked["policies"]["good.d3"]
    assert description.startswith("EpsilonGreedy of ") and description.endswith(f"; SHA-256 {digest}")
    assert digest in Path("ope/report.html").read_text()
    assert found["verdict"] == "ship" and found["status"] == 0 and found["decides"] == "doubly_robust"
    truth = 2 * (1 - 0.2 + 0.2 / 3) - 2 / 3  # of the policy that always knows, discounted by nearly 1
    assert found["gain"][0] < 0.99 * truth and found["gain"][1] > 0.8 * truth
    assert "good.d3: ship" in page("ope/report.html") and "Gamma" in page("ope/report.html")

    assert run(capsys, *ask, "--min-gain", 0.1) == (
        0,
        output.partition("ope/report.html")[0],
    )  # the same question again
    status, output = run(capsys, *ask, "--min-gain", 0.2)
    assert status == 1 and "have answered another question" in output and "--allow-reuse" in output
    status, output = run(capsys, "report", "bad.d3", "--dataset", "select")
    assert status == 1 and "have selected policies" in output
    status, output = run(capsys, *ask, "--min-gain", 0.2, "--allow-reuse", "--out", "again")
    assert status == 0 and "so the estimates are too optimistic" in output
    assert "so the estimates are too optimistic" in page("again/report.html")
    status, output = run(capsys, "rank", "bad.d3", "--dataset", "certify")
    assert status == 1 and "have answered another question" in output


def page(path: str) -> str:
    text = Path(path).read_text(encoding="utf-8")
    tree = ElementTree.fromstring(text)
    assert not [node for node in tree.iter() if node.tag == "script"] and "http" not in text and len(text) < 1_000_000
    return " ".join("".join(tree.itertext()).split())


def test_an_unfinished_run_is_noted(here: Path, birl_: Any) -> None:
    for made in (100, 300):
        run = here / f"run_{made}"
        run.mkdir()
        (run / "run.json").write_text('{"n_steps": 300}')
        (run / f"model_{made}.d3").write_bytes((here / "good.d3").read_bytes())
    birl_("ope", "rank", "run_100", "run_300", "--dataset", "select")
    assert "run_100: its newest model is from step 100 of 300" in birl_.notes
    assert "run_300: its newest" not in birl_.notes


def test_rankings_name_each_remedy_once(here: Path, birl_: Any) -> None:
    contexts(3, 40).dump("few.h5")
    birl_("ope", "rank", "good.d3", "drawn.d3", "--dataset", "few.h5")
    reasons = [line for line in birl_.notes.splitlines() if line.startswith(("good.d3: ", "drawn.d3: "))]
    assert len(reasons) > 1 and all(line.endswith("is allowed") for line in reasons)
    helps = [line for line in birl_.notes.splitlines() if line.startswith("this would help: ")]
    assert helps and len(set(helps)) == len(helps)


def test_a_model_of_each_run_is_chosen(here: Path, birl_: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, names in {"one": ("bad", "bad", "good", "good"), "two": ("bad", "bad", "bad", "bad")}.items():
        Path(folder).mkdir()
        for step, name in enumerate(names):
            Path(folder, f"model_{step + 9}.d3").write_bytes(Path(f"{name}.d3").read_bytes())  # 9 is before 10
    output = birl_("ope", "choose", "two", "one", "--dataset", "select", "--epsilon", 0.2)
    rows = [line.split() for line in output.splitlines()]
    assert rows[0][:3] == ["MODEL", "MEAN", "RANK"]
    assert [row[0] for row in rows[1:3]] == ["one/model_12.d3", "two/model_9.d3"]
    assert rows[1][1] == "1.5" and "Take one/model_12.d3, and certify it." in output
    data = json.loads(birl_("ope", "choose", "one", "--dataset", "select", "--epsilon", 0.2, "--models", 2, "--json"))
    assert list(data["runs"][0]["ranks"]) == ["one/model_9.d3", "one/model_12.d3"]
    assert json.loads(ledger_path("select").read_text())
    status, output = run(capsys, "choose", "nowhere", "--dataset", "select")
    assert status == 1 and "nowhere is no run folder with models" in output


def test_rank_screens_many_policies(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["rank", "good.d3", "bad.d3", "--dataset", "select", "--epsilon", 0.2, "--keep", 1]
    status, output = run(capsys, *ask, "--out", "r")
    assert status == 0 and "set aside by the screen, which keeps 1: bad.d3" in output
    assert "\ngood.d3 " in output and "\nbad.d3" not in output
    assert "set aside by the screen" in page("r/ranking.html")
    assert list(json.loads(Path("r/ranking.json").read_text())["set_aside"]) == ["bad.d3"]


def test_settings_are_ordered_by_their_mean_ranks_over_splits(
    here: Path, birl_: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for split, seed in {"s0": 3, "s1": 4}.items():
        for part in ("train", "select"):
            contexts(seed + 10 * (part == "select"), storage=Path(split, part)).close()
        for name in ("good", "bad"):
            Path(split, name).mkdir()
            Path(split, name, "run.json").write_text(json.dumps({"dataset": f"{split}/train", "n_steps": 1}))
            Path(split, name, "model_1.d3").write_bytes(Path(f"{name}.d3").read_bytes())
    ask = ["s0/bad", "s0/good", "s1/bad", "s1/good"]
    output = birl_("ope", "choose", *ask, "--part", "select", "--epsilon", 0.2)
    assert [line.split() for line in output.splitlines()[1:3]] == [["good", "1.0"], ["bad", "2.0"]]
    assert "Take good: train with it on all of these episodes" in output
    data = json.loads(birl_("ope", "choose", *ask, "--part", "select", "--epsilon", 0.2, "--json"))
    assert data["mean_ranks"] == {"good": 1.0, "bad": 2.0} and list(data["splits"]) == ["s0/select", "s1/select"]
    assert json.loads(ledger_path("s0/select").read_text())
    for words, message in {
        ("s0/good",): "give --dataset with the episodes to choose by, or --part",
        ("s0/good", "s1/good", "s1/bad", "--part", "select"): "give one run of each setting in each split",
        ("nowhere", "--part", "select"): "nowhere does not name the folder that it learned from",
    }.items():
        status, output = run(capsys, "choose", *words)
        assert status == 1 and message in output


def test_a_conservative_critic_whose_values_fall_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("one").mkdir()
    for step in range(1, 7):
        Path("one", f"model_{step}.d3").write_bytes(Path("good.d3").read_bytes())
    values = iter((1.0, 2.0, 3.0, 2.0, 1.0, 0.0))
    monkeypatch.setattr(
        birl.metrics.AverageValueEstimationEvaluator, "__call__", lambda self, algo, dataset: next(values)
    )
    _, output = run(capsys, "choose", "one", "--dataset", "select", "--epsilon", 0.2)
    assert "one/model_3.d3: after this model, values of logged states fall" in output


def test_every_verdict_has_its_status(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(model: str, *words: Any, data: str = "certify") -> tuple[int, str]:
        ledger_path(data).unlink(missing_ok=True)
        status, output = run(capsys, "report", model, "--dataset", data, "--json", *words)
        found = json.loads(output)["policies"]
        return status, found[0]["verdict"] if len(found) == 1 else [one["verdict"] for one in found]

    assert ask("good.d3", "--epsilon", 0.2) == (0, "ship")
    assert ask("drawn.d3") == (0, "ship")
    assert ask("good.d3", "--temperature", 0.5) == (0, "ship")
    assert ask("bad.d3", "--epsilon", 0.2) == (3, "do_not_ship")
    assert ask("drawn.d3", "--against", "drawn.d3") == (3, "do_not_ship")
    assert ask("bad.d3", "--against", "good.d3", "--epsilon", 0.2) == (3, "do_not_ship")
    assert ask("good.d3", "--epsilon", 0.2, "--min-gain", 1.07) == (4, "more_data")
    contexts(3, 12).dump("few.h5")
    assert ask("good.d3", "--epsilon", 0.2, data="few.h5") == (5, "cannot_tell")
    status, both = ask("good.d3", "bad.d3", "--epsilon", 0.2)
    assert (status, both) == (0, ["ship", "do_not_ship"])


def test_a_policy_that_learned_from_these_episodes_is_refused(here: Path, birl_: Any, capsys: Any) -> None:
    birl_(
        "train",
        "DiscreteCQL",
        "--dataset",
        "certify",
        "--n-steps",
        10,
        "--out",
        "run",
        "--set",
        "batch_size=8",
    )
    contexts(2, storage="copy").close()
    for data in ("certify", "copy"):
        status, output = run(capsys, "report", "run", "--dataset", data, "--epsilon", 0.3)
        assert status == 5 and "learned from these episodes" in output and "hold out episodes" in output
    status, output = run(capsys, "report", "run", "--dataset", "select", "--epsilon", 0.3)
    assert status != 5 and "seen" not in output


def test_logs_without_propensities_use_no_query(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind: Any = {"action_space": ActionSpace.DISCRETE, "action_size": 3, "storage": "plain"}
    bare = [Episode(e.observations, e.actions, e.rewards, e.terminated) for e in ReplayBuffer.open("certify").episodes]
    create_infinite_replay_buffer(episodes=bare, **kind).close()
    ask = ["report", "good.d3", "--dataset", "plain", "--epsilon", 0.2]
    status, output = run(capsys, *ask, "--out", "ope")
    assert status == 5 and "cannot_tell" in output and "so the episodes of plain stay unused" in output
    assert "--behaviour estimated" in output and not ledger_path("plain").exists() and not Path("ope").exists()
    status, output = run(capsys, *ask, "--json")
    (data,) = json.loads(output.splitlines()[0])["policies"]  # below it the note
    assert status == 5 and data["verdict"] == "cannot_tell" and "estimates" not in data
    status, output = run(capsys, *ask, "--behaviour", "estimated")
    assert status == 0 and ledger_path("plain").exists()


def test_figures_are_explained_and_signs_are_harmless(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "report", "drawn.d3", "--dataset", "certify", "--out", "ope")[0] == 0
    text = page("ope/report.html")
    assert (
        "pareto_k" in text
        and "the tail of the weights has the Pareto shape …" in text
        and "effective episodes: …" in text
    )
    status, output = run(capsys, "report", "no\x1b[31m\u202e.d3", "--dataset", "certify")
    assert status == 1 and "there is no no" in output and "\x1b" not in output and "\u202e" not in output


def test_hostile_names_are_escaped(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "<script>alert(1)<&'.d3"
    (here / "drawn.d3").rename(here / name)
    assert run(capsys, "report", name, "--dataset", "certify", "--out", "ope")[0] == 0
    assert name in page("ope/report.html")
    assert run(capsys, "rank", name, "--dataset", "select", "--out", "ope")[0] == 0
    assert name in page("ope/ranking.html")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["good.d3", "--dataset", "none.h5"], "there is no none.h5"),
        (["none.d3", "--dataset", "certify"], "there is no none.d3"),
        (["good.d3", "good.d3", "--dataset", "certify"], "is given twice"),
        (["good.d3", "--dataset", "certify", "--epsilon", 0.1, "--temperature", 1], "they make different policies"),
        (["drawn.d3", "--dataset", "certify", "--epsilon", 0.1], "is a stochastic policy already: leave out --epsilon"),
        (["good.d3", "--dataset", "certify", "--behaviour", "guessed"], "there is no guessed"),
        (["few.h5", "--dataset", "certify"], "few.h5"),
        (["good.d3", "--dataset", "certify", "--std", 0.1], "use EpsilonGreedy or Softmax"),
    ],
)
def test_bad_input_looks_at_nothing(here: Path, birl_: Any, words: list[Any], message: str) -> None:
    contexts(3, 12).dump("few.h5")
    assert message in birl_("ope", "report", *words, status=1)
    assert not list(here.rglob("*queries.json"))
