"""Goldens of dueling and noisy networks, alone and together, with every head, up to Rainbow's (1710.02298)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from birl import algos
from tests.golden.case import ENCODER, HEADS, VALUE_FIELDS, Case, weighted_transitions
from tests.golden.reference_rainbow import RainbowReference


def _case(
    config: Any,
    head: str,
    *,
    dueling: Any = False,
    noisy: Any = False,
    trunk: float | None = None,
    n_critics: int = 2,
    alpha: float = 0.0,
) -> Case:
    factory, own = HEADS[head]
    fields = {
        **VALUE_FIELDS,
        "encoder_factory": replace(ENCODER, noisy=noisy),
        "q_func_factory": replace(factory, dueling=dueling, noisy=noisy, trunk_gradient=trunk),
        "n_critics": n_critics,
        "target_update_interval": 2,
    } | ({"alpha": alpha} if alpha else {})
    numbers = {"double": config is not algos.DQNConfig, "rate": 1e-2, "interval": 2, "conservative": alpha}
    parts = {"dueling": dueling is not False, "noisy": bool(noisy), "trunk": trunk or 1.0}

    def check(reference: Any) -> None:
        drawn = reference.drawn
        assert bool(drawn) == bool(noisy)
        first = [float(each.flatten()[0]) for each in drawn]
        assert len(set(first)) == len(first), "two passes had the same noise"

    words = ["dueling"] * parts["dueling"] + ["noisy"] * parts["noisy"] + ["trunk"] * (trunk is not None)
    label = " ".join([*words, head]) + ("" if n_critics == 2 else f" x{n_critics}")
    reference = partial(RainbowReference, head=own, **numbers, **parts)
    return Case(label, config(**fields), reference, weighted_transitions, check=check)


CASES: tuple[Case, ...] = (
    *(_case(algos.DQNConfig, head, dueling=[4]) for head in HEADS),
    *(_case(algos.DQNConfig, head, dueling=True, noisy=0.7, n_critics=1) for head in HEADS),
    _case(algos.DQNConfig, "mean", dueling=[4], trunk=0.5**0.5),
    *(_case(algos.DQNConfig, head, noisy=True) for head in HEADS),
    *(_case(algos.DoubleDQNConfig, head, dueling=[4], noisy=True) for head in HEADS),
    _case(algos.DoubleDQNConfig, "c51", dueling=[4], noisy=True, trunk=0.5**0.5, n_critics=1),
    *(_case(algos.DiscreteCQLConfig, head, dueling=[4], noisy=True, alpha=0.7) for head in ("mean", "qr", "c51")),
)
