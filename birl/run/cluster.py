"""How the work of a run is divided among processes: the settings that users give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from birl.checks import Allowed, check
from birl.distributed.worker_pool import Placement
from birl.errors import ConfigError

ORDERS: Final = ("together", "turns", "arrival")
AUTO: Final = "auto"
DEFAULT_FRAGMENT: Final = 50
DEFAULT_IN_FLIGHT: Final = 2
FIRST_FRAGMENT: Final = 20
"""Steps of a fragment until the duration of a step has been measured."""

_SECONDS: Final = 0.1  # that a fragment should last: 50 times what Ray needs for a call
_LONGEST: Final = 1000


@dataclass(frozen=True)
class Cluster:
    """Settings of collectors, learners and replay shards.

    ``fit_online(env, cluster=birl.Cluster(collectors=4))`` makes every step in one of four collectors. Each acts in
    environments of its own, on weights that it is sent, and sends back the steps. The run's own process learns, and
    holds the buffer, the logs and the checkpoint.

    Attributes:
        collectors: number of collectors.
        environments: number of environments of each collector, which it steps one after another.
        fragment: steps of each environment that a collector makes at once: the unit in which work is assigned, sent and
            stored. By default 50. If the algorithm learns from rollouts, their length, which it must divide (with a
            running observation scaler, the largest divisor that is not above 50). ``"auto"``: as many steps as take
            0.1 seconds, at least 1 and at most 1000, measured on the first fragments, of 20 steps. The number is the
            metric ``fragment`` and a part of checkpoints, so that a resumed run keeps it. Rollouts keep their default.
        order: in which order fragments are taken. ``"together"``: one of every collector, stored by number, then the
            updates that are due: actions are always those of the newest weights. ``"turns"``: one after another by
            number, each followed by its updates, while the other collectors act. Both make a run a function of its
            seed, whichever collectors are fast, slow or killed. ``"arrival"``: as they arrive, for very uneven
            environments; such a run cannot be repeated by its seed. By default ``"together"`` if the algorithm learns
            from rollouts, for which it is the only order, otherwise ``"turns"``.
        in_flight: fragments that are assigned to each collector and not stored yet. By default 1 with ``"together"``,
            for which it is the only number, otherwise 2: one is made while the other travels.
        learners: number of learners, the run's own process included. Each learns from the steps of its own share of the
            collectors; the shares must be equal. Updates average the learners' gradients: an update equals one on
            ``learners`` concatenated minibatches of ``batch_size`` steps, and all learners have the same parameters,
            bit for bit. A learner that is lost is restarted, and nothing is lost with it.
        gradients: of several learners. ``"together"``: averaged in each update. ``"pushed"``: each learner but the
            first computes gradients by itself. The run's own process, which has no collectors then, applies them one
            after another, by number, each ``learners - 2`` updates after its parameters (the metric
            ``gradient_lag``). An update is of one minibatch, and does not wait for all learners.
        shards: number of shards of the replay, 0 for none. A shard samples minibatches, of transitions or sequences,
            with the buffer's sampler, from the steps of its own share of the collectors. The run's own process learns
            from them and sends priorities back. Every minibatch has an equal part from each shard. A shard that is lost
            is restarted, and nothing is lost with it. Not with several learners.
        ahead: whether shards sample the next minibatch during an update. That minibatch does not know the priorities
            that the update computes, nor the steps that arrive meanwhile.
        max_lag: with ``"arrival"``: a fragment is dropped, and its steps are assigned again, if more fragments than
            this were learned from between its assignment and its arrival; by default none is dropped.
        restarts: how often in a row a collector may be lost without a fragment, a shard without a minibatch, or
            learners without an update between them, before the run ends.
        step_timeout: seconds after which a collector that stays in one step is ended and restarted. A collector that
            hangs in the same step again ends the run. The same limit holds for a learner that keeps the others waiting,
            and for a shard that samples. ``transport="inline"`` waits for ever.
        patience: with ``"ray"``: seconds in which resources must be found for a collector that was lost, perhaps with
            its machine.
        on_error: what happens if an environment raises an error. ``"stop"``: the run ends with an error that names the
            seed and the actions that led there. ``"restart"``: the episode is truncated before the step that failed,
            and the environment is remade; the metric ``environment_errors`` counts. An environment that fails more than
            ``restarts`` times without a step in between ends the run.
        transport: where collectors, learners and shards run. ``"processes"``: in processes of this machine. ``"ray"``:
            where Ray places them (extra ``ray``), on one machine or many. ``"inline"``: in the run's own process, one
            after another, for tests and for debugging. Results are the same everywhere.
        address: with ``"ray"``: of a running cluster, or ``"auto"``; by default Ray is started on this machine, unless
            the program has started it.
        resources: with ``"ray"``: what each collector needs: ``num_cpus`` (by default 1), ``num_gpus``, ``memory``
            in bytes, and a cluster's own resources by name: ``{"num_cpus": 2, "simulator": 1}``.

    Raises:
        ConfigError: if a field has a value that is not allowed, or does not go with another one.
    """

    collectors: int = 1
    environments: int = 1
    fragment: int | str | None = None
    order: str | None = None
    in_flight: int | None = None
    max_lag: int | None = None
    learners: int = 1
    gradients: str = "together"
    shards: int = 0
    ahead: bool = True
    restarts: int = 10
    step_timeout: float = 60.0
    patience: float = 300.0
    on_error: str = "stop"
    transport: str = "processes"
    address: str | None = None
    resources: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            object.__setattr__(self, name, _ALLOWED[name].check(f"Cluster.{name}", getattr(self, name)))
        self._check_ray_fields()
        self._check_learners()
        if self.order == "together" and self.in_flight not in (None, 1):
            raise ConfigError(
                f"Cluster.in_flight is {self.in_flight}; with order='together' it must be 1, as all wait for the "
                "updates: leave it out, or give order='turns'"
            )
        if self.order not in (None, "arrival") and self.max_lag is not None:
            raise ConfigError(
                f"Cluster.max_lag is {self.max_lag}; only order='arrival' drops fragments: leave it out, because the "
                "lag of the others is fixed, 0 or collectors * in_flight - 1"
            )

    def _check_ray_fields(self) -> None:
        for name in ("address", "resources"):
            value = getattr(self, name)
            if value is not None and self.transport != "ray":
                raise ConfigError(
                    f"Cluster.{name} is {value!r}, but collectors are {self.transport!r}: give transport='ray', or "
                    f"leave {name} out"
                )
        for name, amount in (self.resources or {}).items():
            check(f"Cluster.resources[{name!r:.40}]", amount, float, low=0)
        if not sum(self.ray_resources.values()):
            raise ConfigError(
                "Cluster.resources asks for nothing, so that Ray cannot reserve anything: give num_cpus above 0"
            )

    @property
    def ray_resources(self) -> dict[str, float]:
        """``resources`` with their default, by Ray's names."""
        names = {"num_cpus": "CPU", "num_gpus": "GPU"}
        return {names.get(name, name): float(n) for name, n in {"num_cpus": 1.0, **(self.resources or {})}.items()}

    def _check_learners(self) -> None:
        pushed = self.gradients == "pushed"
        if pushed and self.learners == 1:
            raise ConfigError(
                "Cluster.gradients is 'pushed', but Cluster.learners is 1, so that there is no "
                "learner to push them: give learners=2, the run's own process and one more, or leave gradients out"
            )
        own = self.learners - pushed
        if self.collectors % own:
            raise ConfigError(
                f"Cluster.learners is {self.learners}, with {self.collectors} collectors; every learner"
                f"{' but the first' * pushed} must have an equal share: give collectors="
                f"{-(-self.collectors // own) * own}"
            )
        if self.shards and self.learners > 1:
            raise ConfigError(
                f"Cluster.shards is {self.shards}, with {self.learners} learners, which sample from their own "
                "steps: leave shards out, or learners"
            )
        if self.shards and self.collectors % self.shards:
            raise ConfigError(
                f"Cluster.shards is {self.shards}, with {self.collectors} collectors; every shard must have the steps "
                f"of an equal share: give collectors={-(-self.collectors // self.shards) * self.shards}"
            )

    def with_default_order(self, order: str) -> Cluster:
        """The same settings, with an order if none was given."""
        return replace(self, order=self.order or order)

    @property
    def credit(self) -> int:
        """``in_flight`` with its default."""
        return self.in_flight or (1 if self.order == "together" else DEFAULT_IN_FLIGHT)

    @property
    def lanes(self) -> int:
        """Number of environments of all collectors."""
        return self.collectors * self.environments

    def placement(self, resources: Mapping[str, float] | None = None) -> Placement:
        """Where workers run.

        Args:
            resources: of each, by Ray's names; by default a CPU.
        """
        return Placement(self.transport, self.step_timeout, self.address, self.patience, resources)

    def calls(self, rollout_length: int | None = None, moving: bool = False) -> int:
        """``fragment`` with its default; 0 if it is to be measured.

        Args:
            rollout_length: of an algorithm that learns from rollouts.
            moving: whether a running observation scaler changes with their steps.

        Raises:
            ConfigError: if it does not divide ``rollout_length``.
        """
        own = None if self.fragment == AUTO else int(self.fragment or 0) or None
        if rollout_length is None:
            return 0 if self.fragment == AUTO else own or DEFAULT_FRAGMENT
        if own is not None and rollout_length % own:
            raise ConfigError(
                f"Cluster.fragment is {own}; it must divide the rollout_length, which is {rollout_length}: leave it out"
            )
        most = min(rollout_length, DEFAULT_FRAGMENT) if moving else rollout_length
        return own or next(n for n in range(most, 0, -1) if rollout_length % n == 0)

    def settings(self) -> dict[str, Any]:
        """The settings that a run and its resumption must share."""
        names = ("collectors", "environments", "fragment", "order", "in_flight", "max_lag")
        settings = {name: getattr(self, name) for name in names}
        settings |= {} if self.learners == 1 else {"learners": self.learners, "gradients": self.gradients}
        return settings | ({"shards": self.shards, "ahead": self.ahead} if self.shards else {})


def fragment_length(seconds: float) -> int:
    """The length of a fragment, given the duration of a step in seconds."""
    return max(1, min(_LONGEST, math.ceil(_SECONDS / max(seconds, 1e-9))))


_ALLOWED: Final = {
    **dict.fromkeys(("collectors", "environments", "learners"), Allowed(int, low=1)),
    "fragment": Allowed(int, low=1, choices=(AUTO,), optional=True),
    "in_flight": Allowed(int, low=1, optional=True),
    "order": Allowed(str, choices=ORDERS, optional=True),
    "gradients": Allowed(str, choices=("together", "pushed")),
    "max_lag": Allowed(int, low=0, optional=True),
    "shards": Allowed(int, low=0),
    "ahead": Allowed(bool),
    "restarts": Allowed(int, low=0),
    **dict.fromkeys(("step_timeout", "patience"), Allowed(float, above=0)),
    "transport": Allowed(str, choices=("inline", "processes", "ray")),
    "on_error": Allowed(str, choices=("stop", "restart")),
    "address": Allowed(str, optional=True),
    "resources": Allowed(dict, optional=True),
}
