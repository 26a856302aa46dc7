"""A few mutated files; ``scripts/fuzz_files.py`` makes many, with limits of memory and time."""

from __future__ import annotations

import pytest

from files import fuzzing


@pytest.mark.parametrize("kind", fuzzing.KINDS)
def test_mutated_files_load_as_they_were_or_are_refused(kind: str) -> None:
    first = list(fuzzing.KINDS).index(kind)
    found = {case: fuzzing.run(case) for case in range(first, 20 * len(fuzzing.KINDS), len(fuzzing.KINDS))}
    assert {case: each for case, each in found.items() if each[0] not in ("equal", "other", "error")} == {}
    outcomes = {outcome for outcome, _ in found.values()}
    assert "error" in outcomes and outcomes & {"equal", "other"}


def test_the_fuzzer_finds_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fuzzing.KINDS, "model", (fuzzing.save_model, lambda folder: {}["x"]))
    fuzzing.original.cache_clear()
    with pytest.raises(KeyError):
        fuzzing.original("model")
    monkeypatch.undo()
    fuzzing.original.cache_clear()
    case = list(fuzzing.KINDS).index("model")
    fuzzing.original("model")
    monkeypatch.setitem(fuzzing.KINDS, "model", (fuzzing.save_model, lambda folder: {}["x"]))
    assert fuzzing.run(case)[0] == "untyped"
    monkeypatch.setitem(fuzzing.KINDS, "model", (fuzzing.save_model, lambda folder: "another"))
    monkeypatch.setattr(fuzzing, "mutated", lambda draw, kind, files: (files, False))
    assert fuzzing.run(case)[0] == "unnoticed"
