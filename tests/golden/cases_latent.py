"""Goldens of the algorithms that stay near the data by a model of it: BCQ, PLAS and BEAR."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from torch import Tensor, nn

from birl import algos
from birl.testing import plain_parameters
from tests.golden.case import ACTOR_FIELDS, ACTOR_RATES, ENCODER, HEADS, Case, weighted_transitions, with_head
from tests.golden.reference_latent import BCQReference, BEARReference, PLASReference

_FIELDS = {**ACTOR_FIELDS, "imitator_learning_rate": 3e-2, "imitator_encoder_factory": ENCODER, "tau": 0.1, "lam": 0.6}
_RATES = {**ACTOR_RATES, "imitator_rate": 3e-2, "tau": 0.1, "lam": 0.6, "kl_weight": 0.3}


def _learned(nets: nn.Module) -> dict[str, Tensor]:
    """`plain_parameters` without what the greedy policy draws once and for all."""
    fixed = ("latents", "noise")
    state = {name: tensor for name, tensor in nets.state_dict().items() if name not in fixed}
    return plain_parameters(SimpleNamespace(state_dict=lambda: state))  # type: ignore[arg-type]


_case = partial(Case, inputs=weighted_transitions, parameters=_learned)


def _bcq(head: str, n_critics: int = 2, start: int = 0, interval: int = 1) -> Case:
    fields = {
        **_FIELDS,
        "n_critics": n_critics,
        "n_action_samples": 7 if start else 4,
        "n_target_samples": 4 if start else None,
        "action_flexibility": 0.4,
        "beta": 0.3,
        "rl_start_step": start,
        "update_actor_interval": interval,
    }
    numbers = {**_RATES, "n_samples": 4, "scale": 0.4, "start": start, "interval": interval}
    label = head + (f" x{n_critics}" if n_critics != 2 else "") + (" late" if start else "")
    return _case(label, **with_head(head, algos.BCQConfig, fields, BCQReference, numbers))


def _plas(head: str, scale: float | None = None) -> Case:
    fields, numbers = {**_FIELDS, "beta": 0.3, "warmup_steps": 2}, {**_RATES, "warmup": 2, "scale": scale}
    if scale is None:
        return _case(head, **with_head(head, algos.PLASConfig, fields, PLASReference, numbers))
    fields["action_flexibility"] = scale
    return _case(head, **with_head(head, algos.PLASWithPerturbationConfig, fields, PLASReference, numbers))


def _bear(head: str, kernel: str = "laplacian", sigma: float = 3.0) -> Case:
    fields = {
        **_FIELDS,
        "temp_learning_rate": 3e-2,
        "alpha_learning_rate": 4e-2,
        "initial_temperature": 0.4,
        "initial_alpha": 0.8,
        "alpha_threshold": 0.1,
        "n_action_samples": 4,
        "n_target_samples": 3,
        "n_mmd_action_samples": 2,
        "mmd_kernel": kernel,
        "mmd_sigma": sigma,
        "vae_kl_weight": 0.3,
        "warmup_steps": 2,
    }
    numbers = {
        **_RATES,
        "temp_rate": 3e-2,
        "alpha_rate": 4e-2,
        "threshold": 0.1,
        "n_target": 3,
        "n_mmd": 2,
        "kernel": kernel,
        "sigma": sigma,
        "warmup": 2,
    }
    return _case(f"{head} {kernel}", **with_head(head, algos.BEARConfig, fields, BEARReference, numbers))


CASES: tuple[Case, ...] = (
    *(_bcq(head) for head in HEADS),
    _bcq("mean", 3, start=2, interval=2),
    *(_plas(head) for head in HEADS),
    _plas("mean", 0.4),
    _plas("iqn", 0.4),
    *(_bear(head) for head in HEADS),
    _bear("mean", "gaussian", 0.7),
)
