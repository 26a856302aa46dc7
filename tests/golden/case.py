"""A golden as data: a configuration, a reference, and what both learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from birl.models import (
    C51QFunctionFactory,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    QFunctionFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
)
from birl.testing import GoldenReport, Reference, compare_with_reference, double_precision, plain_parameters
from birl.types import ActionSpace, Batch
from tests.golden.reference_returns import Head

OBSERVATION, ACTIONS, CHOICES, SIZE, UPDATES = 3, 2, 3, 6, 6
ENCODER = VectorEncoderFactory(hidden_units=[7, 5])

HEADS: dict[str, tuple[QFunctionFactory, Head]] = {
    "mean": (MeanQFunctionFactory(), Head("mean")),
    "qr": (QRQFunctionFactory(n_quantiles=4), Head("qr", 4)),
    "iqn": (IQNQFunctionFactory(n_quantiles=4, n_greedy_quantiles=4, embed_size=3), Head("iqn", 4)),
    # atoms at multiples of 0.5: some shifted atoms fall exactly on another one
    "c51": (C51QFunctionFactory(n_atoms=9, v_min=-2.0, v_max=2.0), Head("c51", 9, -2.0, 2.0)),
}

# The same settings for an algorithm and for its reference, of which each case takes what it has.
VALUE_FIELDS = {"learning_rate": 1e-2, "encoder_factory": ENCODER}
ACTOR_FIELDS: dict[str, Any] = {
    "actor_learning_rate": 1e-2,
    "critic_learning_rate": 2e-2,
    "actor_encoder_factory": ENCODER,
    "critic_encoder_factory": ENCODER,
}
ACTOR_RATES: dict[str, Any] = {"actor_rate": 1e-2, "critic_rate": 2e-2}


def build(config: Any, discrete: bool | None = None) -> Any:
    """An algorithm in float64. Targets are moved away from their sources, so that mixing them up shows."""
    torch.manual_seed(3)
    algorithm = config.create()
    choosing = discrete or ActionSpace.CONTINUOUS not in config.algorithm.actions
    algorithm.create_impl((OBSERVATION,), CHOICES if choosing else ACTIONS, discrete_action=discrete)
    with torch.no_grad():
        for target in algorithm.engine.targets:
            for parameter in algorithm.nets.get_submodule(target.target).parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    algorithm.learner.set_mode(acting=False)
    return algorithm


def _as_built(algorithm: Any) -> None:
    """Prepare nothing."""


def by_engine(algorithm: Any, batch: Any) -> Any:
    """Update with a batch of the engine's."""
    return algorithm.engine.update(batch)


def by_algorithm(algorithm: Any, batch: Any) -> Any:
    """Update as users do."""
    return algorithm.update(batch)


@dataclass(frozen=True)
class Case:
    """A golden.

    Attributes:
        label: tells it from others of the same algorithm.
        config: the configuration.
        reference: makes the reference of the first parameters.
        inputs: given the algorithm, what both learn from.
        discrete: the kind of actions, for algorithms that handle both.
        prepare: changes the algorithm before the reference copies its parameters.
        parameters: networks to the reference's names.
        update: how the algorithm learns from one of the inputs.
        check: looks at the reference in the end.
    """

    label: str
    config: Any
    reference: Callable[[dict[str, Tensor]], Reference]
    inputs: Callable[[Any], Iterable[Any]]
    discrete: bool | None = None
    prepare: Callable[[Any], Any] = _as_built
    parameters: Callable[[nn.Module], dict[str, Tensor]] = plain_parameters
    update: Callable[[Any, Any], Mapping[str, Tensor]] = by_engine
    check: Callable[[Any], None] = _as_built

    @property
    def name(self) -> str:
        """Name of the algorithm and the label."""
        return f"{type(self.config).__name__.removesuffix('Config')} {self.label}".rstrip()

    def run(self) -> GoldenReport:
        """Train both and compare them after every update."""
        with double_precision():
            algorithm = build(self.config, self.discrete)
            self.prepare(algorithm)
            reference = self.reference(self.parameters(algorithm.nets))
            report = compare_with_reference(
                algorithm,
                reference,
                self.inputs(algorithm),
                parameters=self.parameters,
                update=partial(self.update, algorithm),
            )
        self.check(reference)
        return report


def with_head(
    head: str, config: Any, fields: Mapping[str, Any], reference: Any, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The same head for the configuration and for the reference, as arguments of a `Case`."""
    factory, own = HEADS[head]
    return {
        "config": config(**fields, q_func_factory=factory),
        "reference": partial(reference, **arguments, head=own),
    }


def exact(generator: np.random.Generator, *shape: int) -> Tensor:
    """Normal numbers that float32 holds exactly."""
    return torch.from_numpy(generator.normal(size=shape).astype(np.float32).astype(np.float64))


def transitions(algorithm: Any, *, weighted: bool = False) -> list[Batch]:
    """Batches with several discounts, some of them 0, and one reward that moves atoms onto others."""
    generator = np.random.default_rng(5)
    batches = []
    for _ in range(UPDATES):
        action = torch.from_numpy(generator.integers(CHOICES, size=SIZE))
        if not algorithm.spec.actions.discrete:
            action = torch.tanh(exact(generator, SIZE, ACTIONS)).float().double()
        reward = exact(generator, SIZE)
        reward[0], reward[1] = 0.5, 3.0
        discount = torch.tensor([1.0, 0.99, 0.0, 0.970299, 0.5, 0.99], dtype=torch.float64)
        weight = torch.ones(SIZE, dtype=torch.float64)
        if weighted:
            weight = torch.from_numpy(generator.uniform(0.3, 1.0, SIZE))
        observation, following = exact(generator, SIZE, OBSERVATION), exact(generator, SIZE, OBSERVATION)
        batches.append(Batch(observation, action, reward, following, discount, weight))
    return batches


weighted_transitions = partial(transitions, weighted=True)
