"""Test kit for algorithms: contract, probe environments, goldens, and tasks learned in seconds.

::

    from birl.testing import check_algorithm
    check_algorithm(MyConfig())    # raises an AssertionError that describes the fault
"""

from birl.errors import explain_missing_names
from birl.testing.contract import CHECKS, SLOW_CHECKS, Subject, check_algorithm
from birl.testing.data import build_algorithm, random_batch, random_dataset
from birl.testing.environments import PROBES, ChainEnv, MemoryEnv, ProbeEnv, collect_dataset
from birl.testing.golden import (
    GoldenReport,
    Reference,
    compare_with_reference,
    double_precision,
    plain_parameters,
)
from birl.testing.learning import average_return, probe_errors, train

__all__ = [
    "CHECKS",
    "PROBES",
    "SLOW_CHECKS",
    "ChainEnv",
    "GoldenReport",
    "MemoryEnv",
    "ProbeEnv",
    "Reference",
    "Subject",
    "average_return",
    "build_algorithm",
    "check_algorithm",
    "collect_dataset",
    "compare_with_reference",
    "double_precision",
    "plain_parameters",
    "probe_errors",
    "random_batch",
    "random_dataset",
    "train",
]

explain_missing_names(__name__, __all__)
