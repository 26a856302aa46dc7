"""All goldens: the tables of the families joined."""

from __future__ import annotations

from tests.golden import (
    cases,
    cases_awr,
    cases_deterministic,
    cases_latent,
    cases_ope,
    cases_sequence,
    cases_weighted,
)
from tests.golden.cases import Case

__all__ = ["CASES"]

CASES: tuple[Case, ...] = (
    *cases.CASES,
    *cases_deterministic.CASES,
    *cases_weighted.CASES,
    *cases_latent.CASES,
    *cases_awr.CASES,
    *cases_sequence.CASES,
    *cases_ope.CASES,
)
