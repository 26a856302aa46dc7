"""Ranks with their ranges, and the record of looks that keeps certifying episodes for one look."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.dataset import LogSchema
from birl.dataset.logs.files import import_files
from birl.dataset.logs.splits import split
from birl.errors import ConfigError, CorruptFileError, DataError
from birl.ope import holdout_ledger as looks
from birl.ope import rank
from tests.ope.test_decisions import LOGGER, POLICY, WORLD, Told, improved, logs


def test_ranks() -> None:
    tables = {"bad": improved(-2.0), "best": improved(3.0), "twin": improved(2.9), "logger": LOGGER}
    found = rank({name: Told(table) for name, table in tables.items()}, logs(400), gamma=0.95)
    order = list(found.evaluations)
    assert set(order[:2]) == {"best", "twin"} and order[-1] == "bad"
    assert found.ranges["logger"] == (3, 3) and found.ranges["bad"] == (4, 4)
    best = min(found.ranges["best"], found.ranges["twin"])
    assert best[0] == 1 and {low for low, _ in found.ranges.values()} <= {1, 2, 3, 4}


def test_ranks_say_how_far_policies_are_from_the_logs_and_from_each_other() -> None:
    """In total variation, which is known: states are drawn, so the logged ones are counted."""
    tables = {"near": improved(0.5), "far": improved(2.0), "logger": LOGGER}
    data = logs(400)
    found = rank({name: Told(table) for name, table in tables.items()}, data, gamma=0.95)
    states = np.concatenate([each.observations for each in data.episodes]).argmax(-1)
    share = np.bincount(states, minlength=5) / len(states)

    def apart(one: np.ndarray, other: np.ndarray) -> float:
        return float(share @ np.abs(one - other).sum(-1) / 2)

    for name, table in tables.items():
        differs = found.evaluations[name].differs
        assert differs is not None and abs(differs - apart(table, LOGGER)) < 0.02
        for other, its in tables.items():
            assert abs(found.differences[name][other] - apart(table, its)) < 0.02
    assert found.evaluations["logger"].differs == 0 and found.differences["far"]["far"] == 0
    assert apart(tables["far"], LOGGER) > 0.2
    bare = rank({"near": Told(improved(0.5))}, logs(60, what="nothing"), gamma=0.95)
    assert bare.evaluations["near"].differs is None


def test_ranges_hold_the_true_ranks() -> None:
    tables = {str(apart): improved(apart) for apart in (-0.4, 0.0, 0.1, 0.6)}
    truth = sorted(tables, key=lambda name: -WORLD.truth(tables[name]))
    policies = {name: Told(table) for name, table in tables.items()}
    wrong = told = 0
    for seed in range(20):
        ranges = rank(policies, logs(120, seed), gamma=0.95).ranges
        wrong += not all(low <= truth.index(name) + 1 <= high for name, (low, high) in ranges.items())
        told += sum(high - low < 3 for low, high in ranges.values())
    assert wrong <= 3 and told > 20


def test_equal_policies_share_all_ranks() -> None:
    found = rank({"a": Told(POLICY), "b": Told(POLICY)}, logs(100), gamma=0.95)
    assert set(found.ranges.values()) == {(1, 2)}
    assert found.advice.startswith("None stands out: these logs do not tell the 2 policies apart.")


def test_advice() -> None:
    data = logs(400)
    one = rank({"best": Told(improved(2.0)), "bad": Told(improved(-2.0))}, data, gamma=0.95)
    assert one.advice == "best stands out among those that can be judged: certify it."
    poor = rank({"poor": Told(improved(-1.0)), "bad": Told(improved(-3.0))}, data, gamma=0.95)
    only = "poor is the only one that can be judged. None of these is surely better than the logs."
    assert poor.evaluations["bad"].decides is None and poor.advice == only
    none = rank({"a": Told(POLICY)}, logs(12), gamma=0.95)
    assert none.advice.startswith("None can be judged") and none.ranges == {"a": (1, 1)}
    seen = rank({"a": Told(POLICY), "b": Told(LOGGER)}, data, gamma=0.95, seen={"a"})
    assert list(seen.evaluations) == ["b", "a"] and seen.evaluations["a"].decides is None
    assert seen.ranges["a"] == (1, 2)
    with pytest.raises(ConfigError, match="no policies"):
        rank({}, data)


# -- looks -------------------------------------------------------------------------------------------------------------


def test_one_look_certifies(tmp_path: Path) -> None:
    first, second = looks.question(policies=["a"], gamma=0.9), looks.question(policies=["b"], gamma=0.9)
    assert first != second and first == looks.question(gamma=0.9, policies=["a"])
    assert not looks.look(tmp_path, "digest", looks.CERTIFY, first)
    kept = (tmp_path / "looks.json").read_bytes()
    assert not looks.look(tmp_path, "digest", looks.CERTIFY, first)  # after a kill: the same answer
    assert (tmp_path / "looks.json").read_bytes() == kept
    with pytest.raises(DataError, match=r"answered another question, at .* log new episodes, .* --allow-reuse"):
        looks.look(tmp_path, "digest", looks.CERTIFY, second)
    with pytest.raises(DataError, match="have answered another question"):
        looks.look(tmp_path, "digest", looks.SELECT, "")
    assert (tmp_path / "looks.json").read_bytes() == kept  # what was refused was not asked
    assert looks.look(tmp_path, "digest", looks.CERTIFY, second, reuse=True)
    assert not looks.look(tmp_path, "digest", looks.CERTIFY, first)  # which was the first all the same
    with pytest.raises(DataError, match="have answered another question"):
        looks.look(tmp_path, "digest", looks.CERTIFY, second)
    assert not looks.look(tmp_path, "other episodes", looks.CERTIFY, second)


def test_what_chose_does_not_certify(tmp_path: Path) -> None:
    file = tmp_path / "steps.h5"
    file.touch()
    for _ in range(2):
        assert not looks.look(file, "digest", looks.SELECT, "")
    assert len(json.loads((tmp_path / "steps.h5.looks.json").read_text())) == 1
    with pytest.raises(DataError, match="have chosen policies"):
        looks.look(file, "digest", looks.CERTIFY, "q")


BAD = ["[", "{}", "[1]", '[{"digest": "a"}]', '[{"digest":1,"purpose":"","question":"","when":""}]']


@pytest.mark.parametrize("text", BAD)
def test_a_record_that_is_none_is_no_free_look(tmp_path: Path, text: str) -> None:
    (tmp_path / "looks.json").write_text(text)
    with pytest.raises(CorruptFileError, match=r"looks\.json.*: restore it, or take episodes that nobody has"):
        looks.look(tmp_path, "digest", looks.CERTIFY, "q")


def test_looks_at_a_whole_are_looks_at_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"e": n, "x": 0.1 * n, "a": n % 2, "r": 1.0} for n in range(130)]
    Path("log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    schema = LogSchema.parse(
        'episode = "e"\nunmarked = "terminated"\n[[observation]]\ncolumn = "x"\n[action]\ncolumn = "a"\n'
        'kind = "discrete"\nsize = 2\n[reward]\ncolumn = "r"'
    )
    import_files(["log.jsonl"], schema, "data")
    split("data", "episode", {"select": 0.5, "certify": 0.5})
    split("data", "episode", {"again": 0.4}, seed=7)
    assert not looks.look("data/select", "s", looks.SELECT, "")
    assert not looks.look("data/certify", "c", looks.CERTIFY, "q")  # parts of one split share nothing
    for other in ("data", "data/again"):
        with pytest.raises(DataError, match=r"have answered another question, at .*certify/looks\.json"):
            looks.look(other, "w", looks.SELECT, "")
    assert not looks.look("data/certify", "c", looks.CERTIFY, "q")
    Path("data/certify/looks.json").unlink()
    Path("data/select/looks.json").unlink()
    assert not looks.look("data", "w", looks.SELECT, "")
    with pytest.raises(DataError, match=r"have chosen policies, at .*data/looks\.json"):
        looks.look("data/certify", "c", looks.CERTIFY, "q")
    assert looks.look("data/certify", "c", looks.CERTIFY, "q", reuse=True)


def _ask(folder: Path, asked: str, out: Any) -> None:
    try:
        out.put(looks.look(folder, "digest", looks.CERTIFY, asked))
    except DataError as error:
        out.put(str(error))


def test_two_at_once_are_one_look(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    both = [context.Process(target=_ask, args=(tmp_path, name, out)) for name in ("a", "b")]
    for process in both:
        process.start()
    found = [out.get(timeout=60) for _ in both]
    for process in both:
        process.join()
    assert found.count(False) == 1 and len(json.loads((tmp_path / "looks.json").read_text())) == 1
    assert np.all([one is False or "looked at" in one or "certified" in one for one in found])
