"""Goldens of the algorithms that stay near the data: BCQ, PLAS and BEAR."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from birl import algos
from birl.testing import GoldenReport, compare_with_reference, double_precision, plain_parameters
from tests.golden.cases import ACTIONS, ENCODER, HEADS, Case, build, transitions
from tests.golden.reference_latent import BCQReference, BEARReference, DiscreteBCQReference, PLASReference


def _discrete_bcq_case(head: str, shared: bool, n_critics: int = 2) -> Case:
    factory, reference_head = HEADS[head]

    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(
                algos.DiscreteBCQConfig(
                    learning_rate=1e-2,
                    encoder_factory=ENCODER,
                    q_func_factory=factory,
                    n_critics=n_critics,
                    action_flexibility=0.9,
                    beta=0.3,
                    target_update_interval=2,
                    share_encoder=shared,
                ),
                action_size=3,
            )
            reference = DiscreteBCQReference(
                plain_parameters(algorithm.nets),
                reference_head,
                rate=1e-2,
                interval=2,
                threshold=0.9,
                beta=0.3,
                shared=shared,
            )
            report = compare_with_reference(algorithm, reference, transitions(True, weighted=True))
            assert reference.constrained >= 3, "the constraint hardly bars an action: nothing is shown about it"
            return report

    name = f"DiscreteBCQ {head}" + (" shared" if shared else "")
    return Case(name + ("" if n_critics == 2 else f" x{n_critics}"), run)


def _learned(nets: nn.Module) -> dict[str, Tensor]:
    """`plain_parameters` without what the greedy policy draws once and for all."""
    fixed = ("latents", "noise")
    state = {name: tensor for name, tensor in nets.state_dict().items() if name not in fixed}
    return plain_parameters(SimpleNamespace(state_dict=lambda: state))  # type: ignore[arg-type]


_FIELDS: dict[str, Any] = {
    "actor_learning_rate": 1e-2,
    "critic_learning_rate": 2e-2,
    "imitator_learning_rate": 3e-2,
    "actor_encoder_factory": ENCODER,
    "critic_encoder_factory": ENCODER,
    "imitator_encoder_factory": ENCODER,
    "tau": 0.1,
    "lam": 0.6,
}
_RATES: dict[str, float] = {"actor_rate": 1e-2, "critic_rate": 2e-2, "imitator_rate": 3e-2, "tau": 0.1, "lam": 0.6}


def _bcq_case(head: str, n_critics: int = 2, start: int = 0, interval: int = 1) -> Case:
    factory, reference_head = HEADS[head]

    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(
                algos.BCQConfig(
                    **_FIELDS,
                    q_func_factory=factory,
                    n_critics=n_critics,
                    n_action_samples=4,
                    action_flexibility=0.4,
                    beta=0.3,
                    rl_start_step=start,
                    update_actor_interval=interval,
                ),
                ACTIONS,
            )
            reference = BCQReference(
                _learned(algorithm.nets),
                reference_head,
                **_RATES,
                n_samples=4,
                scale=0.4,
                start=start,
                interval=interval,
                kl_weight=0.3,
            )
            return compare_with_reference(algorithm, reference, transitions(False, weighted=True), parameters=_learned)

    return Case(f"BCQ {head}" + (f" x{n_critics}" if n_critics != 2 else "") + (" late" if start else ""), run)


def _plas_case(head: str, scale: float | None = None) -> Case:
    factory, reference_head = HEADS[head]

    def run() -> GoldenReport:
        fields = {**_FIELDS, "q_func_factory": factory, "beta": 0.3, "warmup_steps": 2}
        with double_precision():
            if scale is None:
                config: Any = algos.PLASConfig(**fields)
            else:
                config = algos.PLASWithPerturbationConfig(**fields, action_flexibility=scale)
            algorithm = build(config, ACTIONS)
            reference = PLASReference(
                plain_parameters(algorithm.nets), reference_head, **_RATES, warmup=2, kl_weight=0.3, scale=scale
            )
            return compare_with_reference(algorithm, reference, transitions(False, weighted=True))

    return Case(f"{'PLAS' if scale is None else 'PLASWithPerturbation'} {head}", run)


def _bear_case(head: str, kernel: str = "laplacian", sigma: float = 3.0) -> Case:
    factory, reference_head = HEADS[head]

    def run() -> GoldenReport:
        with double_precision():
            algorithm = build(
                algos.BEARConfig(
                    **_FIELDS,
                    temp_learning_rate=3e-2,
                    alpha_learning_rate=4e-2,
                    initial_temperature=0.4,
                    initial_alpha=0.8,
                    alpha_threshold=0.1,
                    q_func_factory=factory,
                    n_action_samples=4,
                    n_target_samples=3,
                    n_mmd_action_samples=2,
                    mmd_kernel=kernel,
                    mmd_sigma=sigma,
                    vae_kl_weight=0.3,
                    warmup_steps=2,
                ),
                ACTIONS,
            )
            reference = BEARReference(
                _learned(algorithm.nets),
                reference_head,
                **_RATES,
                temp_rate=3e-2,
                alpha_rate=4e-2,
                threshold=0.1,
                n_target=3,
                n_mmd=2,
                kernel=kernel,
                sigma=sigma,
                warmup=2,
                kl_weight=0.3,
            )
            return compare_with_reference(algorithm, reference, transitions(False, weighted=True), parameters=_learned)

    return Case(f"BEAR {head} {kernel}", run)


CASES: tuple[Case, ...] = (
    *(_discrete_bcq_case(head, True) for head in HEADS),
    _discrete_bcq_case("mean", False),
    _discrete_bcq_case("qr", False, 1),
    _discrete_bcq_case("mean", True, 1),
    *(_bcq_case(head) for head in HEADS),
    _bcq_case("mean", 3, start=2, interval=2),
    *(_plas_case(head) for head in HEADS),
    _plas_case("mean", 0.4),
    _plas_case("iqn", 0.4),
    *(_bear_case(head) for head in HEADS),
    _bear_case("mean", "gaussian", 0.7),
)
