"""Settings that divide the work of a run among processes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from birl.checks import Allowed, check, named_arguments
from birl.distributed.worker_pool import Placement
from birl.errors import ConfigError
from birl.incompatible import check_compatible

ORDERS: Final = ("together", "turns", "arrival")
AUTO: Final = "auto"
DEFAULT_FRAGMENT: Final = 50
DEFAULT_IN_FLIGHT: Final = 2
FIRST_FRAGMENT: Final = 20
"""Number of steps in a fragment until the duration of a step has been measured."""

_SECONDS: Final = 0.1  # target duration of a fragment: 50 times the duration of a call of Ray
_LONGEST: Final = 1000


@dataclass(frozen=True)
class Cluster:
    """Settings of collectors, learners and replay shards.

    ``fit_online(env, cluster=birl.Cluster(collectors=4))`` makes every step in one of four collectors. Each collector
    acts in its own environments with the weights that it receives, and sends back the steps. The run's own process
    learns, and holds the buffer, the logs and the checkpoint.

    Attributes:
        collectors: number of collectors.
        environments: number of environments of each collector, which it steps one after another.
        fragment: number of steps that a collector makes in each environment for one task. Fragments are the units in
            which work is assigned, sent and stored. By default 50. If the algorithm learns from rollouts, the number
            must divide the rollout length. The default is then the rollout length itself or, with a running observation
            scaler, the largest divisor of it that is at most 50. With ``"auto"``, birl measures the duration of a step
            on first fragments of 20 steps, and then chooses a length of 1 to 1000 steps so that a fragment takes about
            0.1 seconds. The number is the metric ``fragment`` and a part of checkpoints, so that a resumed run keeps
            it. For rollouts, ``"auto"`` means the default.
        order: order in which fragments are taken. ``"together"``: one from every collector, stored in the order of the
            collectors, and then the updates that are due, so that actions always come from the newest weights.
            ``"turns"``: one after another in the order in which they were assigned, each followed by its updates, while
            the other collectors act. With both, the result of a run depends only on its seed, not on which collectors
            are fast, slow or killed. ``"arrival"``: as they arrive, for environments of very different speeds; the seed
            does not reproduce such a run. Algorithms that learn from rollouts support only ``"together"``, their
            default; the default of others is ``"turns"``.
        in_flight: number of fragments that are assigned to each collector and not stored yet. It is 1 with
            ``"together"``, and otherwise 2 by default: a collector makes one fragment while another is being sent.
        learners: number of learners, including the run's own process. Each learns from the steps of its own share of
            the collectors; the shares must be equal. Updates average the learners' gradients: an update equals one on
            ``learners`` concatenated minibatches of ``batch_size`` steps, and all learners have the same parameters,
            bit for bit. A lost learner is restarted without loss of data.
        gradients: how the gradients of several learners are combined. ``"together"``: each update averages them.
            ``"pushed"``: each learner except the first computes gradients independently. The run's own process, which
            then has no collectors, applies them one after another in the order of the learners. When gradients are
            applied, the parameters at which they were computed are ``learners - 2`` updates old (the metric
            ``gradient_lag``). Each update uses one minibatch, and does not wait for all learners.
        shards: number of shards of the replay buffer, 0 for none. A shard samples minibatches of transitions or
            sequences with the buffer's sampler, from the steps of its own share of the collectors. The run's own
            process learns from them and sends priorities back. Every minibatch has an equal part from each shard. A
            lost shard is restarted without loss of data. Shards cannot be combined with several learners.
        ahead: whether shards sample the next minibatch during an update. They then sample it without the priorities
            that the update computes and without the steps that arrive meanwhile.
        max_lag: limit for ``order="arrival"``: a fragment is dropped, and its steps are assigned again, if the learner
            has taken more than this many other fragments since it assigned this one. By default none is dropped.
        restarts: number of times in a row that a collector may be lost without a fragment in between, a shard without a
            minibatch, or learners without an update. After one more loss the run ends.
        step_timeout: seconds after which a collector that stays in one step is ended and restarted. A collector that
            hangs in the same step again ends the run. The same limit applies to a learner that keeps the others
            waiting, and to a shard that samples. ``transport="inline"`` has no limit.
        patience: with ``transport="ray"``, number of seconds to wait for the resources of a lost collector, whose
            machine may be lost as well.
        on_error: what happens if an environment raises an error. ``"stop"``: the run ends with an error that names the
            seed and the actions that led there. ``"restart"``: the episode is truncated before the step that failed,
            and the environment is created again; the metric ``environment_errors`` counts these errors. An environment
            that fails more than ``restarts`` times without a step in between ends the run.
        transport: where collectors, learners and shards run. ``"processes"``: in processes of this machine. ``"ray"``:
            where Ray places them (extra ``ray``), on one machine or many. ``"inline"``: in the run's own process, one
            after another, for tests and for debugging. Results are the same everywhere.
        address: with ``transport="ray"``, address of a running cluster, or ``"auto"``. By default Ray is started on
            this machine unless the program has started it already.
        resources: with ``transport="ray"``, resources of each collector: ``num_cpus`` (by default 1), ``num_gpus``,
            ``memory`` in bytes, and custom resources by name: ``{"num_cpus": 2, "simulator": 1}``.

    Raises:
        ConfigError: if a field has a value that is not allowed, or that another field does not allow.
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
        self._check_used()
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

    def _check_used(self) -> None:
        """Raise `ConfigError` for a field that was changed and has no effect with the others."""
        unused = {
            "ahead": ("only shards sample ahead", "give shards=, too", not self.shards),
            "patience": ("only Ray waits for machines", "give transport='ray', too", self.transport != "ray"),
        }
        for name, (reason, remedy, idle) in unused.items():
            value = getattr(self, name)
            if idle and value != getattr(type(self), name):
                raise ConfigError(f"Cluster.{name} is {value!r}, but {reason}: {remedy}, or leave {name} out")

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
        sharing = self.learners - pushed
        if self.collectors % sharing:
            raise ConfigError(
                f"Cluster.learners is {self.learners}, with {self.collectors} collectors; every learner"
                f"{' but the first' * pushed} must have an equal share: give collectors="
                f"{-(-self.collectors // sharing) * sharing}"
            )
        if self.shards and self.learners > 1:
            check_compatible(
                {"shards": f"Cluster.shards={self.shards}", "learners": f"Cluster.learners={self.learners}"}
            )
        if self.shards and self.collectors % self.shards:
            raise ConfigError(
                f"Cluster.shards is {self.shards}, with {self.collectors} collectors; every shard must have the steps "
                f"of an equal share: give collectors={-(-self.collectors // self.shards) * self.shards}"
            )

    def with_default_order(self, order: str) -> Cluster:
        """Return the settings with an order, if none was given."""
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
        """Return where workers run.

        Args:
            resources: resources of each worker, by Ray's names; by default a CPU.
        """
        return Placement(self.transport, self.step_timeout, self.address, self.patience, resources)

    def calls(self, rollout_length: int | None = None, moving: bool = False) -> int:
        """Return the number of steps in a fragment: ``fragment`` or its default, and 0 if it must be measured.

        Args:
            rollout_length: length of rollouts, if the algorithm learns from them.
            moving: whether each step updates a running observation scaler.

        Raises:
            ConfigError: if ``fragment`` does not divide ``rollout_length``.
        """
        given = None if self.fragment == AUTO else int(self.fragment or 0) or None
        if rollout_length is None:
            return 0 if self.fragment == AUTO else given or DEFAULT_FRAGMENT
        if given is not None and rollout_length % given:
            raise ConfigError(
                f"Cluster.fragment is {given}; it must divide the rollout_length, which is {rollout_length}: leave it "
                "out"
            )
        most = min(rollout_length, DEFAULT_FRAGMENT) if moving else rollout_length
        return given or next(n for n in range(most, 0, -1) if rollout_length % n == 0)

    def settings(self) -> dict[str, Any]:
        """Return the settings that a run and its resumption must share."""
        names = ("collectors", "environments", "fragment", "order", "in_flight", "max_lag")
        settings = {name: getattr(self, name) for name in names}
        settings |= {} if self.learners == 1 else {"learners": self.learners, "gradients": self.gradients}
        return settings | ({"shards": self.shards, "ahead": self.ahead} if self.shards else {})


Cluster.__init__ = named_arguments(Cluster.__init__)  # type: ignore[method-assign]


def fragment_length(seconds: float) -> int:
    """Return the length of a fragment, given the duration of a step in seconds."""
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
