"""The ledger of holdout queries: episodes certify the answer to one question only."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from birl.dataset import LogSchema
from birl.dataset.logs.files import import_files
from birl.dataset.logs.splits import split
from birl.errors import CorruptFileError, DataError
from birl.ope.holdout_ledger import CERTIFY, SELECT, question_digest, record_query


def test_episodes_certify_once(tmp_path: Path) -> None:
    first, second = question_digest(policies=["a"], gamma=0.9), question_digest(policies=["b"], gamma=0.9)
    assert first != second and first == question_digest(gamma=0.9, policies=["a"])
    assert not record_query(tmp_path, "digest", CERTIFY, first)
    kept = (tmp_path / "queries.json").read_bytes()
    assert not record_query(tmp_path, "digest", CERTIFY, first)  # after a kill: the same answer
    assert (tmp_path / "queries.json").read_bytes() == kept
    with pytest.raises(DataError, match=r"answered another question, at .* log new episodes, .* --allow-reuse"):
        record_query(tmp_path, "digest", CERTIFY, second)
    with pytest.raises(DataError, match="have answered another question"):
        record_query(tmp_path, "digest", SELECT, "")
    assert (tmp_path / "queries.json").read_bytes() == kept  # refused queries are not recorded
    assert record_query(tmp_path, "digest", CERTIFY, second, reuse=True)
    assert not record_query(tmp_path, "digest", CERTIFY, first)  # it was the first
    with pytest.raises(DataError, match="have answered another question"):
        record_query(tmp_path, "digest", CERTIFY, second)
    assert not record_query(tmp_path, "other episodes", CERTIFY, second)


def test_episodes_that_selected_do_not_certify(tmp_path: Path) -> None:
    file = tmp_path / "steps.h5"
    file.touch()
    for _ in range(2):
        assert not record_query(file, "digest", SELECT, "")
    assert len(json.loads((tmp_path / "steps.h5.queries.json").read_text())) == 1
    with pytest.raises(DataError, match="have selected policies"):
        record_query(file, "digest", CERTIFY, "q")


BAD = ["[", "{}", "[1]", '[{"digest": "a"}]', '[{"digest":1,"purpose":"","question":"","when":""}]']


@pytest.mark.parametrize("text", BAD)
def test_a_damaged_ledger_allows_no_query(tmp_path: Path, text: str) -> None:
    (tmp_path / "queries.json").write_text(text)
    with pytest.raises(CorruptFileError, match=r"queries\.json.*: restore it, or use episodes that were never queried"):
        record_query(tmp_path, "digest", CERTIFY, "q")


def test_queries_of_a_dataset_count_for_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not record_query("data/select", "s", SELECT, "")
    assert not record_query("data/certify", "c", CERTIFY, "q")  # parts of one split share nothing
    for other in ("data", "data/again"):
        with pytest.raises(DataError, match=r"have answered another question, at .*certify/queries\.json"):
            record_query(other, "w", SELECT, "")
    assert not record_query("data/certify", "c", CERTIFY, "q")
    Path("data/certify/queries.json").unlink()
    Path("data/select/queries.json").unlink()
    assert not record_query("data", "w", SELECT, "")
    with pytest.raises(DataError, match=r"have selected policies, at .*data/queries\.json"):
        record_query("data/certify", "c", CERTIFY, "q")
    assert record_query("data/certify", "c", CERTIFY, "q", reuse=True)


def _ask(folder: Path, asked: str, out: Any) -> None:
    try:
        out.put(record_query(folder, "digest", CERTIFY, asked))
    except DataError as error:
        out.put(str(error))


def test_concurrent_queries_are_serialised(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    both = [context.Process(target=_ask, args=(tmp_path, name, out)) for name in ("a", "b")]
    for process in both:
        process.start()
    found = [out.get(timeout=60) for _ in both]
    for process in both:
        process.join()
    assert found.count(False) == 1 and len(json.loads((tmp_path / "queries.json").read_text())) == 1
    assert all(one is False or "one query runs at a time" in one or "another question" in one for one in found)
