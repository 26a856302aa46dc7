"""Goldens of TRPO."""

from __future__ import annotations

from functools import partial
from typing import Any

from birl import algos
from tests.golden.case import Case, by_algorithm
from tests.golden.cases_ppo import TANH, rollouts
from tests.golden.reference_trpo import TRPOReference

SHARED: dict[str, Any] = {"gamma": 0.9, "entropy_coefficient": 0.03}
SEARCH: dict[str, Any] = {"conjugate_gradient_steps": 6, "conjugate_gradient_damping": 0.05, "line_search_steps": 5}
SAME_SEARCH: dict[str, Any] = {"directions": 6, "damping": 0.05, "lengths": 5}


def some_steps(reference: TRPOReference) -> None:
    """Some step was made, or the golden shows nothing."""
    assert any(reference.shares), reference.shares


def shorter_steps(reference: TRPOReference) -> None:
    """Some step was made shorter by the line search."""
    assert any(0 < share < 1 for share in reference.shares), reference.shares


def _trpo(policy: str, max_kl: float = 0.01, normalize: bool = True, check: Any = some_steps) -> Case:
    values: dict[str, Any] = {"gae_lambda": 0.95, "batch_size": 5}
    config = algos.TRPOConfig(
        actor_encoder_factory=TANH,
        value_encoder_factory=TANH,
        value_learning_rate=1e-2,
        n_epochs=3,
        normalize_advantage=normalize,
        max_kl=max_kl,
        **SHARED,
        **SEARCH,
        **values,
    )
    reference = partial(
        TRPOReference,
        policy=policy,
        max_kl=max_kl,
        rate=1e-2,
        epochs=3,
        normalize=normalize,
        **SHARED,
        **SAME_SEARCH,
        **values,
    )
    label = ("discrete" if policy == "discrete" else "continuous") + (" long steps" if max_kl > 0.01 else "")
    return Case(label, config, reference, rollouts, policy == "discrete", update=by_algorithm, check=check)


def _first(policy: str) -> Case:
    config = algos.ICML2015TRPOConfig(actor_encoder_factory=TANH, **SHARED, **SEARCH)
    reference = partial(TRPOReference, policy=policy, max_kl=0.01, **SHARED, **SAME_SEARCH)
    label = "discrete" if policy == "discrete" else "continuous"
    return Case(label, config, reference, rollouts, policy == "discrete", update=by_algorithm, check=some_steps)


CASES: tuple[Case, ...] = (
    _trpo("discrete"),
    _trpo("parameter"),
    _trpo("parameter", max_kl=0.5, normalize=False, check=shorter_steps),
    _first("discrete"),
    _first("state"),
)
