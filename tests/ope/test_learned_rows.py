"""Rows that a policy learned by heart: digests of rows find them under new ids, and never by chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.dataset import LogSchema, ReplayBuffer, from_table
from birl.dataset.log_record import LogRecord, load_record
from birl.dataset.logs.files import import_files
from birl.dataset.logs.row_digests import row_digests
from birl.dataset.logs.splits import split
from birl.dataset.row_sketch import SKETCH, RowSketch
from birl.errors import CorruptFileError
from birl.ope import evaluate, rank
from birl.ope.learned_rows import HeldOutRows

SCHEMA = LogSchema.parse(
    """
episode = "visit"
terminated = "end"
observation = [{ column = "a" }, { column = "b" }]
action = { column = "offer", kind = "discrete", size = 2 }
reward = { column = "paid" }
propensity = { column = "chance", kind = "probability" }
"""
)
QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}


def table(rng: np.random.Generator, n: int, discrete: bool = False) -> dict[str, np.ndarray]:
    x = rng.integers(0, 3, (n, 2)) if discrete else rng.normal(size=(n, 2))
    paid = rng.integers(0, 2, n) if discrete else rng.normal(size=n)
    columns = {"a": x[:, 0], "b": x[:, 1], "offer": rng.integers(0, 2, n), "paid": paid, "chance": np.full(n, 0.5)}
    return {"visit": np.arange(n), "end": np.ones(n, bool), **columns}


def shuffled(rng: np.random.Generator, *tables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows of tables in another order, under new ids."""
    joined = {name: np.concatenate([each[name] for each in tables]) for name in tables[0]}
    order = rng.permutation(len(joined["visit"]))
    return {name: values[order] for name, values in joined.items()} | {"visit": np.arange(len(order)) + 1000}


def data(columns: dict[str, np.ndarray]) -> ReplayBuffer:
    return from_table(columns, SCHEMA)


def digests(columns: dict[str, np.ndarray]) -> np.ndarray:
    return row_digests(data(columns).storage)


def learner(dataset: ReplayBuffer) -> Any:
    algo = birl.algos.DiscreteBCConfig(batch_size=8).create()
    algo.fit(dataset, n_steps=1, **QUIET)
    return algo


def test_rows_learned_by_heart_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    certify = table(rng, 200)
    held_out = data(certify)
    cheat, honest = learner(data(shuffled(rng, table(rng, 1000), certify))), learner(data(table(rng, 1000)))
    for algo, seen in ((cheat, True), (honest, False)):
        algo.save(tmp_path / "policy.d3")
        for policy in (algo, birl.load_learnable(tmp_path / "policy.d3"), birl.ope.EpsilonGreedy(algo, 0.1)):
            found = evaluate(policy, held_out, gamma=1.0)  # type: ignore[arg-type]
            assert any(finding.fact == "seen" for finding in found.findings) == seen
            assert not seen or found.decides is None
    ranking = rank({"cheat": cheat, "honest": honest}, held_out)
    assert ranking.evaluations["cheat"].facts["seen"] and not ranking.evaluations["honest"].facts["seen"]
    assert HeldOutRows(held_out).seen_by({"cheat": cheat, "own": object()}) == {"cheat"}


@pytest.mark.parametrize("share", [1.0, 0.05])
def test_shared_rows_are_found_in_large_data(share: float) -> None:
    rng = np.random.default_rng(1)
    certify = rng.integers(0, 2**63, 5000, np.uint64)
    learned = np.concatenate([rng.integers(0, 2**63, 60_000, np.uint64), certify[: int(share * 5000)]])
    sketch = RowSketch.of(learned)
    assert len(sketch.digests) == SKETCH and sketch.shared_with(certify) == pytest.approx(share, abs=0.06)
    twice = RowSketch.of(np.concatenate([learned, learned]))
    assert share < 1 or twice.shared_with(certify) == 1
    assert RowSketch.of(learned, len(learned)).shared_with(certify) == pytest.approx(share)


def test_chance_is_no_evidence() -> None:
    rng = np.random.default_rng(2)
    for k in range(200):
        few = k % 2 == 0
        size = int(10 ** rng.uniform(0.5, 5)) if few else 2**62
        one, other = (rng.integers(0, size, int(n)).astype(np.uint64) for n in rng.integers(50, 3000, 2))
        one, other = one * np.uint64(0x9E3779B97F4A7C15), other * np.uint64(0x9E3779B97F4A7C15)
        assert RowSketch.of(one).shared_with(other) == 0
    assert RowSketch.of(digests(table(rng, 500, True))).shared_with(digests(table(rng, 300, True))) == 0
    nothing = np.zeros(0, np.uint64)
    assert RowSketch.of(nothing).shared_with(one) == RowSketch.of(one).shared_with(nothing) == 0


def test_sketches_merge() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.integers(0, 2**63, (2, 3000), np.uint64)
    both, whole = RowSketch.of(one).merge(RowSketch.of(other)), RowSketch.of(np.concatenate([one, other]))
    assert both.count == whole.count and np.isin(both.digests, np.concatenate([one, other])).all()
    assert both.shared_with(one) > 0 and both.shared_with(other) > 0 and RowSketch.of(one).shared_with(other) == 0
    same = RowSketch.of(one)
    assert same.merge(RowSketch.of(one)) is same and hash(same) == hash(RowSketch.of(one))


def test_folders_and_their_parts_know_their_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(4)
    file = tmp_path / "visits.csv"
    columns = table(rng, 300)
    csv = pytest.importorskip("pyarrow.csv")
    csv.write_csv(pyarrow.table(columns), file)
    import_files([str(file)], SCHEMA, tmp_path / "data")
    split(tmp_path / "data", "episode", {"train": 0.5, "certify": 0.5})
    records = {name: load_record(tmp_path / name) for name in ("data", "data/train", "data/certify")}
    assert all(record is not None and record.rows is not None for record in records.values())
    rows = {name: record.rows for name, record in records.items() if record is not None}
    held_out = HeldOutRows(ReplayBuffer.open(tmp_path / "data/certify"))
    assert {name: held_out.shared_with(each) for name, each in rows.items() if each is not None} == {
        "data": 1.0, "data/train": 0.0, "data/certify": 1.0,
    }  # fmt: skip
    record = records["data"]
    assert record is not None and LogRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    kept = json.loads((tmp_path / "data/import.json").read_text())
    for damaged in ([], "rows", [1, 2, 3, "!"], [1, 1, 1, "AAAA"], [-1, 0, 0, ""]):
        (tmp_path / "data/import.json").write_text(json.dumps({**kept, "row_digests": damaged}))
        with pytest.raises(CorruptFileError, match="no record of an import"):
            load_record(tmp_path / "data")
