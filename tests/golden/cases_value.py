"""Goldens of algorithms with critics only: DQN, DoubleDQN, DiscreteCQL, NFQ, DiscreteBCQ and recurrent DQN."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from birl import algos
from birl.models import GRUEncoderFactory, LSTMEncoderFactory
from birl.types import Batch
from tests.golden.case import CHOICES, HEADS, OBSERVATION, VALUE_FIELDS, Case, exact, weighted_transitions, with_head
from tests.golden.reference_deterministic import NFQReference
from tests.golden.reference_latent import DiscreteBCQReference
from tests.golden.reference_recurrent import RecurrentReference
from tests.golden.reference_value import ValueReference


def _dqn(config: Any, head: str, n_critics: int = 2, alpha: float = 0.0) -> Case:
    fields = {**VALUE_FIELDS, "n_critics": n_critics, "target_update_interval": 2} | ({"alpha": alpha} if alpha else {})
    numbers = {"double": config is not algos.DQNConfig, "rate": 1e-2, "interval": 2, "conservative": alpha}
    label = head if n_critics == 2 else f"{head} x{n_critics}"
    return Case(label, **with_head(head, config, fields, ValueReference, numbers), inputs=weighted_transitions)


def _nfq(head: str, n_critics: int = 2) -> Case:
    parts = with_head(head, algos.NFQConfig, {**VALUE_FIELDS, "n_critics": n_critics}, NFQReference, {"rate": 1e-2})
    return Case(f"{head} x{n_critics}", **parts, inputs=weighted_transitions)


def _discrete_bcq(head: str, shared: bool, n_critics: int = 2) -> Case:
    fields = {
        **VALUE_FIELDS,
        "n_critics": n_critics,
        "action_flexibility": 0.9,
        "beta": 0.3,
        "target_update_interval": 2,
        "share_encoder": shared,
    }
    numbers = {"rate": 1e-2, "interval": 2, "threshold": 0.9, "beta": 0.3, "shared": shared}

    def check(reference: Any) -> None:
        assert reference.constrained >= 3, "the constraint hardly bars an action: nothing is shown about it"

    return Case(
        head + " shared" * shared + ("" if n_critics == 2 else f" x{n_critics}"),
        **with_head(head, algos.DiscreteBCQConfig, fields, DiscreteBCQReference, numbers),
        inputs=weighted_transitions,
        check=check,
    )


def sequences(state_size: int) -> list[tuple[Batch, dict[str, Tensor]]]:
    """Sequence batches ``[T, B, …]`` with stored states, an episode that begins in the middle and padding."""
    generator, length, size = np.random.default_rng(13), 6, 3
    pairs = []
    for _ in range(4):
        weight = torch.ones(length, size, dtype=torch.float64)
        weight[4:, 2] = 0
        is_first = torch.zeros(length, size, dtype=torch.bool)
        is_first[0, 0] = is_first[3, 1] = is_first[1, 2] = True
        discount = torch.full((length, size), 0.99, dtype=torch.float64)
        discount[2, 1] = 0.0
        state = 0.5 * exact(generator, size, state_size)
        batch = Batch(
            exact(generator, length, size, OBSERVATION),
            torch.from_numpy(generator.integers(CHOICES, size=(length, size))),
            exact(generator, length, size),
            exact(generator, length, size, OBSERVATION),
            discount,
            weight,
            is_first,
            {"critic": state},
        )
        names = ("observation", "action", "reward", "next_observation", "discount", "weight", "is_first")
        pairs.append((batch, {**{name: getattr(batch, name) for name in names}, "state": state}))
    return pairs


def _recurrent(kind: str, burn_in: int) -> Case:
    encoder = {"gru": GRUEncoderFactory, "lstm": LSTMEncoderFactory}[kind](hidden_size=4, hidden_units=[5])
    return Case(
        f"{kind} burn-in {burn_in}",
        algos.DQNConfig(learning_rate=1e-2, encoder_factory=encoder, target_update_interval=2, burn_in=burn_in),
        partial(RecurrentReference, kind=kind, rate=1e-2, interval=2, burn_in=burn_in),
        inputs=lambda algorithm: sequences(4 if kind == "gru" else 8),
        update=lambda algorithm, batch: algorithm.engine.update(algorithm.engine.burn_in(batch, burn_in)),
    )


CASES: tuple[Case, ...] = (
    *(_dqn(algos.DQNConfig, head) for head in HEADS),
    _dqn(algos.DQNConfig, "mean", 1),
    _dqn(algos.DQNConfig, "iqn", 1),
    *(_dqn(algos.DoubleDQNConfig, head) for head in HEADS),
    *(_dqn(algos.DiscreteCQLConfig, head, alpha=0.7) for head in ("mean", "qr", "c51")),
    *(_nfq(head) for head in HEADS),
    _nfq("mean", 1),
    *(_discrete_bcq(head, True) for head in HEADS),
    _discrete_bcq("mean", False),
    _discrete_bcq("qr", False, 1),
    _discrete_bcq("mean", True, 1),
    _recurrent("gru", 0),
    _recurrent("gru", 2),
    _recurrent("lstm", 2),
)
