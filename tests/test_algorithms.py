"""The table of algorithms is complete, and so are the suites that read it."""

from __future__ import annotations

import inspect

import pytest

from birl import algos
from tests.algorithms import CHAIN_RUNS, CONTRACT_RUNS, PROBE_RUNS, ROWS, Row
from tests.golden.table import CASES


def test_every_algorithm_that_learns_has_one_row() -> None:
    known = {cls for _, cls in inspect.getmembers(algos, inspect.isclass) if issubclass(cls, algos.Algorithm)}
    learning = {cls.__name__ for cls in known if "config_class" in vars(cls) and cls.learns_from.loops}
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names)), "two rows of tests/algorithms.py have one configuration"
    assert not learning - set(names), f"add a row to tests/algorithms.py for {sorted(learning - set(names))}"
    assert not set(names) - learning, f"no algorithm for the rows of {sorted(set(names) - learning)}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_seen_by_every_suite(row: Row) -> None:
    assert row.contract and row.probes and row.chain, "give its row probes and a chain: how many updates solve them"
    assert not (row.seeds and row.single_seed)
    golden = [case for case in CASES if case.name.split()[0] == row.name]
    assert golden, f"there is no golden: a tests/golden/cases_*.py needs a Case with {row.name}Config"


@pytest.mark.parametrize("runs", [CONTRACT_RUNS, PROBE_RUNS, CHAIN_RUNS])
def test_runs_have_names_of_their_own(runs) -> None:
    names = [run.name for run in runs]
    assert len(names) == len(set(names))
