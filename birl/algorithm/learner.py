"""A built algorithm: its networks, conversion of units, engine and training state."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from birl.acting.built_policy import BuiltPolicy
from birl.acting.policy import Policy
from birl.algorithm.augmented_losses import fill_networks, make_networks, with_addons
from birl.algorithm.batches import update_priorities
from birl.algorithm.reconfiguration import Change, Tuning
from birl.config import SCALERS, AlgorithmConfig
from birl.dataset.discounted_returns import DiscountedReturns
from birl.dataset.log_record import LogRecord
from birl.dataset.minibatch import MiniBatch
from birl.dataset.reader import MinibatchSource
from birl.engine import Engine, Gradients, Step
from birl.engine.gradient_exchange import ComputedGradients, step_features
from birl.errors import (
    ConfigError,
    CorruptFileError,
    ResumeError,
    ShapeError,
    UnsupportedError,
    UnusedOptionWarning,
    outside_birl,
)
from birl.files.reading import MAX_NETWORK_ARRAYS
from birl.incompatible import check_compatible, prioritised_without_errors
from birl.logging.logger import LOG
from birl.models import set_acting
from birl.models.networks import batch_statistics, normalises_by_batch
from birl.preprocessing.running_scalers import freeze_statistics
from birl.preprocessing.units import Units, copy_array
from birl.run.protocols import ReplaySource, Rollout
from birl.spaces.observations import choices_to_json, match_parts
from birl.spaces.specs import Spec
from birl.types import ActionSpace, Array, Batch, Loss, State, Tree, tree_map

COMPILE_FROM = 10_000
"""Number of updates from which compiling a run (5 to 60 seconds) pays off even for small networks."""

LOAD_FROM = 2_000
"""The same for an update whose compiled program is already on disk."""

_TRIAL: Final = 1_000
"""Number of updates up to which a run is a trial, whose target networks need no update."""

UPDATES_AT_ONCE = 10
"""Number of updates in one recording, on devices that replay recordings (CUDA graphs)."""


class EngineUpdate(NamedTuple):
    """One engine update: its batch and the names of its steps (all if ``None``)."""

    batch: Batch
    only: tuple[str, ...] | None = None


EngineUpdates = Generator[EngineUpdate, dict[str, Tensor], dict[str, Tensor]]
"""Yields engine updates, receives the metrics of each, and returns metrics that are computed once for all of them."""


class Experience:
    """The data that an algorithm learns from, and how they become batches.

    The base class is for algorithms that do not learn.

    Attributes:
        loops: names of the loops in which the algorithm can learn: ``"fit"``, ``"fit_online"``.
        stores: columns that are stored with each step: ``"policy_action"`` is the action before scaling and clipping.
        on_policy: whether the algorithm learns from rollouts of its current policy.
        allows_explorer: whether an explorer may choose the actions of an on-policy algorithm.
        replays: whether an on-policy algorithm also learns from older rollouts, which loops keep in a replay buffer.
        contexts: whether minibatches are slices of trajectories, as sequence models need them.
        has_td_errors: whether losses may have TD errors, for prioritised sampling.
        gathers: whether sampling is an index and a gather, so that a device can record several updates together.
        one_step: whether transitions must be of single steps, so that n-step returns raise an error.
        single_states: why the networks must be without memory, as "learns from single states"; empty if they need not.
        needs_demonstrations: whether demonstrations are needed in addition to rollouts.
        single_seed: the reason why several seeds cannot be trained at once; empty if they can.
        n_updates: default of ``n_updates`` in environments: the number of updates each time that updates are due.
        description: a phrase for the documentation.
    """

    loops: frozenset[str] = frozenset()
    stores: tuple[str, ...] = ()
    on_policy: bool = False
    allows_explorer: bool = False
    replays: bool = False
    contexts: bool = False
    has_td_errors: bool = True
    gathers: bool = False
    one_step: bool = False
    single_states: str = ""
    needs_demonstrations: bool = False
    single_seed: str = ""
    n_updates: int = 1
    description: str = "nothing: it does not learn"

    def sample(self, learner: Learner, source: MinibatchSource) -> Any:
        """Sample the data of one update, with the source's own random generators.

        Raises:
            UnsupportedError: if it does not learn from datasets.
        """
        self.check_loop(learner.name, "fit")
        raise NotImplementedError

    def batch(self, learner: Learner, minibatch: Any) -> Batch:
        """Convert a minibatch to the networks' units, and compute what all its engine updates share."""
        raise NotImplementedError

    def engine_updates(self, learner: Learner, batch: Batch) -> EngineUpdates:
        """Yield the engine updates of a batch, by default one. The caller sends the metrics of each.

        Returns:
            Metrics of the whole batch, computed once for all engine updates.
        """
        yield EngineUpdate(batch)
        return {}

    def prepare_for_replay(self, learner: Learner, rollout: Rollout) -> Rollout:
        """Return the rollout with all columns that a replay buffer stores."""
        return rollout

    def n_replays(self, config: AlgorithmConfig, count: int) -> int:
        """Return the number of minibatches to replay after a rollout, with ``count`` steps in the buffer."""
        return 0

    def expected_updates(self, config: AlgorithmConfig, count: int, lanes: int = 1) -> int:
        """Return the approximate number of engine updates for ``count`` minibatches or environment steps.

        Args:
            config: the algorithm's configuration.
            count: number of minibatches or, for rollouts, of environment steps over all ``lanes``.
            lanes: number of environments.
        """
        return count

    def check_run(self, learner: Learner, source: MinibatchSource | None, count: int) -> None:
        """Check a run of ``count`` updates or steps. Raises an error, or warns, if it cannot learn."""

    def check_loop(self, name: str, loop: str, ways: Mapping[str, str] | None = None) -> None:
        """Raise `UnsupportedError` if the algorithm called ``name`` does not learn in this loop.

        Args:
            name: name of the algorithm, for messages.
            loop: ``"fit"``, ``"fit_online"`` or ``"fit_many"``.
            ways: further features in use, by their names in `birl.incompatible`, with the texts for messages.
        """
        if not self.loops:
            raise UnsupportedError(f"{name} does not learn: use collect(), predict() or sample_action()")
        check_compatible({**self.features(name), loop: loop, **(ways or {})})

    def features(self, name: str) -> dict[str, str]:
        """Return the features of `birl.incompatible` that the experience implies, for the algorithm called ``name``."""
        features = {}
        if self.single_states:
            features["single states"] = f"{name}, which {self.single_states},"
        if self.loops == {"fit"}:
            features["logged data"] = f"{name}, which learns only from logged data,"
        if self.loops == {"fit_online"}:
            features["fresh experience"] = f"{name}, which learns only from its own fresh experience,"
        if self.on_policy:
            features["rollouts"] = f"{name}, which learns from rollouts of its newest weights,"
        else:
            features["replay buffer"] = f"{name}, which learns from a replay buffer,"
        if self.single_seed:
            features["single seed"] = f"{name}, which {self.single_seed},"
        return features


@dataclass(frozen=True)
class Definition:
    """The values that define an algorithm.

    Attributes:
        name: name of its class.
        config_class: its configuration.
        networks: makes its networks, given ``(spec, config)``.
        actions: the kind of actions it can take.
        learns_from: what it learns from.
        acts: how it acts.
        steps: what an update does, in order.
        evaluates: whether it evaluates the policy of another algorithm, as fitted Q evaluation does.
    """

    name: str
    config_class: type[AlgorithmConfig]
    networks: Callable[[Spec, Any], nn.Module]
    actions: ActionSpace
    learns_from: Experience
    acts: Policy
    steps: tuple[Step, ...]
    evaluates: bool


KNOWN: dict[str, Definition] = {}
"""All algorithms, by the names of their configurations in files."""


class EvaluationTarget(Protocol):
    """A policy to evaluate: the policy of a learner, or a stochastic policy of `birl.ope`.

    Attributes:
        recurrent: whether its networks are recurrent.
    """

    @property
    def recurrent(self) -> bool: ...

    def policies(self) -> list[tuple[float, BuiltPolicy]]:
        """Return the policies that actions are sampled from, with their probabilities."""

    def describe(self) -> dict[str, Any]:
        """Return a description in JSON form."""

    def policy_state(self) -> State:
        """Return the state of its networks."""


_SCALERS_OF: Final = {"actor": ("observation_scaler",), "critic": ("observation_scaler", "reward_scaler")}
"""The scalers whose units a network uses."""


class Learner:
    """The part of an algorithm that updates its networks and selects its actions.

    It does not depend on environments, loops or files.

    Args:
        definition: the algorithm.
        config: configuration with fitted scalers.
        spec: shapes that the networks are built for.
        device: device of the networks.
        evaluated: the policy to evaluate, for off-policy evaluation; ``None`` for other algorithms.

    Attributes:
        nets: the networks.
        engine: updates the networks.
        units: converts between the units of data and environments and those of networks.
        policy: the policy, bound to the networks.
        tuning: the configuration with which the learner was made, and later changes by `retune`.
        returns: computes the discounted returns of a dataset; ``None`` if the experience does not use them.
        transition_picker: the picker of the source of the last run; ``None`` if it has none.
        shared: describes the seeds or processes that learn together with this learner; empty if it learns alone.
        memory: values that the experience keeps between minibatches.
        running: the running scalers, by name.
        logs: the logs from which it learned, if the datasets record them.
        saved_tensors: shapes and dtypes of the networks that were last saved, for which `load_learnable` was checked.
    """

    def __init__(
        self,
        definition: Definition,
        config: AlgorithmConfig,
        spec: Spec,
        device: torch.device,
        evaluated: EvaluationTarget | None = None,
    ) -> None:
        self.name, self.spec, self.device = definition.name, spec, device
        self.config: Any = config
        self.experience, self.evaluated = definition.learns_from, evaluated
        acting = definition.acts.network
        make = partial(make_networks, definition.networks, acting, spec)
        self.tuning = Tuning(partial(with_addons, definition.steps, acting), make, config)
        self.nets: Any = make(config)
        if (count := len(self.nets.state_dict())) > MAX_NETWORK_ARRAYS:
            raise ConfigError(
                f"the networks of {type(config).__name__} have {count} parameters and buffers; at most "
                f"{MAX_NETWORK_ARRAYS} can be loaded from a file: give fewer layers or ensemble members"
            )
        fill_networks(self.nets, config)
        self.engine = Engine(self.nets.to(device), with_addons(definition.steps, acting, config), config)
        if config.compile_graph is True:
            self.engine.compile()
        scalers = {name: getattr(config, name) for name in SCALERS}
        observations, actions, rewards = scalers.values()
        self.units = Units(device, spec.actions, observations, actions, rewards, spec.observations)
        self.running = {name: scaler for name, scaler in scalers.items() if scaler is not None and scaler.running}
        self._frozen = freeze_statistics if self.running else contextlib.nullcontext
        self._mode: bool | None = None
        self.policy = BuiltPolicy(self.name, definition.acts, self.nets, spec, self.units, {}, self.set_mode)
        if self.policy.noisy and self.experience.on_policy and not self.experience.allows_explorer:
            noisy = f"noise in the layers of {self.name}'s policy"
            check_compatible({"noisy layers": noisy, **self.experience.features(self.name)})
        if self.engine.recurrent:
            check_compatible({"recurrent network": "a recurrent encoder", **self.experience.features(self.name)})
        self.memory: dict[str, Any] = {}
        self.logs: LogRecord | None = None
        self.saved_tensors: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self.returns = self._new_returns()
        self.transition_picker: Any = None
        self.shared = ""
        self._batch_statistics = batch_statistics(self.nets)
        self.set_mode(acting=False)

    def _new_returns(self) -> DiscountedReturns | None:
        wanted = any(addon.returns for addon in self.config.loss_addons or ())
        if not getattr(self.experience, "discounted_returns", False) and not (wanted and self.experience.gathers):
            return None
        reward = self.config.reward_scaler
        scale = None if reward is None else lambda x: reward.transform(torch.from_numpy(x)).numpy()
        return DiscountedReturns(self.config.gamma, scale)

    def check_alone(self) -> None:
        """Raise `UnsupportedError` if other seeds or processes train with it: they would not learn of a change."""
        others = self.shared or (self.engine.reduce and "gradients of several processes are averaged")
        if others:
            check_compatible({"learning together": f"a run in which {others}", "retune": "retune"})

    def retune(self, change: Change) -> None:
        """Continue with another configuration and the same networks. See `Algorithm.retune`."""
        if not change.fields:
            return
        if "gamma" in change.fields and "reward_scaler" in self.running:
            raise ConfigError("gamma cannot change: the running reward_scaler has summed rewards with the present one")
        self.engine.retune(change.config)  # changes nothing if it raises
        self.config = change.config
        for module, name, value in change.constants:
            setattr(self.nets.get_submodule(module), name, value)
        if "gamma" in change.fields:
            self.returns = self._new_returns()

    @property
    def compiled(self) -> bool:
        """Whether updates are compiled."""
        return self.engine.compiled

    @property
    def recurrent(self) -> bool:
        """Whether a network that learns or acts is recurrent, so that training needs sequences."""
        return bool(self.engine.recurrent) or (self.evaluated is not None and self.evaluated.recurrent)

    def set_mode(self, acting: bool) -> None:
        """Switch to acting (no dropout, running statistics in batch norm, fixed IQN fractions) or to learning."""
        if acting != self._mode:
            set_acting(self.nets, acting)
            for step in self.engine.targets:
                self.nets.get_submodule(step.target).eval()
            self._mode = acting
        if not acting:  # the statistics of frozen layers do not change; a user may freeze layers between updates
            for layer, parameters in self._batch_statistics:
                layer.training = any(parameter.requires_grad for parameter in parameters)

    def sample(self, source: MinibatchSource) -> Any:
        """Sample the minibatch for one call of `update`."""
        return self.experience.sample(self, source)

    def batch(self, minibatch: MiniBatch | Rollout) -> Batch:
        """Convert a minibatch to the networks' units."""
        return self.experience.batch(self, minibatch)

    def prepare_for_replay(self, rollout: Rollout) -> Rollout:
        """See `Experience.prepare_for_replay`."""
        return self.experience.prepare_for_replay(self, rollout)

    def n_replays(self, count: int) -> int:
        """See `Experience.n_replays`."""
        return self.experience.n_replays(self.config, count)

    def update(self, minibatch: MiniBatch | Rollout | Batch) -> dict[str, Tensor]:
        """Make one update with a minibatch from `sample`, a rollout or a `Batch`.

        Returns:
            Losses and metrics as scalar tensors on the device, each averaged over the engine updates that report it.
        """
        before = self.engine.grad_step
        metrics, whole = self._update(minibatch)
        self._reset_if_due(before)
        return {**metrics, **whole}

    def _update(self, minibatch: MiniBatch | Rollout | Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the metrics of the engine updates, and those of the whole batch."""
        self.set_mode(acting=False)
        if self.experience.on_policy and isinstance(minibatch, Rollout):
            self.update_reward_statistics(minibatch.reward, minibatch.is_first, minibatch.valid)
        batch = minibatch if isinstance(minibatch, Batch) else self.batch(minibatch)
        collected: dict[str, list[Tensor]] = {}
        passes, metrics = self.experience.engine_updates(self, batch), None
        self.engine.prioritised = getattr(minibatch, "rows", None) is not None
        with self._frozen():
            while True:
                try:
                    part, only = next(passes) if metrics is None else passes.send(metrics)
                except StopIteration as end:
                    whole: dict[str, Tensor] = end.value
                    break
                metrics = self.engine.update(part, only)
                for name, value in metrics.items():
                    collected.setdefault(name, []).append(value)
        update_priorities(minibatch, batch, self.engine)
        return {name: x[0] if len(x) == 1 else torch.stack(x).mean() for name, x in collected.items()}, whole

    def compute_gradients(self, minibatch: MiniBatch | Rollout | Batch) -> dict[str, ComputedGradients]:
        """Compute the gradients of one update, by step; see `Algorithm.compute_gradients`."""
        whole: dict[str, Tensor] = {}
        computed = self.engine.compute_update_gradients(self.name, lambda: whole.update(self._update(minibatch)[1]))
        if whole:  # no loss has computed them
            name, last = computed.popitem()
            computed[name] = last._replace(loss=replace(last.loss, metrics={**last.loss.metrics, **whole}))
        return computed

    def apply_gradients(self, computed: Mapping[str, ComputedGradients]) -> dict[str, Tensor]:
        """Make one update with the result of `compute_gradients`. Returns the metrics."""
        self.set_mode(acting=False)
        before, self.engine.prioritised = self.engine.grad_step, False
        metrics = self.engine.apply_gradients({name: gradients.to(self.device) for name, gradients in computed.items()})
        self._reset_if_due(before)
        return metrics

    def apply_remote_gradients(
        self, received: Mapping[str, tuple[Gradients, float, Mapping[str, float]]]
    ) -> dict[str, Tensor]:
        """Make one update with gradients, losses and metrics from another process, by step. Returns the metrics."""
        steps = {}
        for name, (gradients, loss, metrics) in received.items():
            steps[name] = ComputedGradients(
                gradients, Loss(torch.tensor(loss), {k: torch.tensor(x) for k, x in metrics.items()})
            )
        return self.apply_gradients(steps)

    def check_compatible(self, ways: Mapping[str, str]) -> None:
        """Raise `UnsupportedError` if features in use cannot be combined with this learner.

        Args:
            ways: the features by their names in `birl.incompatible`, each with its text for messages.
        """
        check_compatible({**self.features(), **ways})

    def features(self) -> dict[str, str]:
        """Return the features of `birl.incompatible` that this learner has."""
        name, config, experience = self.name, self.config, self.experience
        features = {**experience.features(name), **step_features(self.engine, name)}
        if experience.on_policy and not hasattr(config, "rollout_length"):
            features["whole episodes"] = f"{name}, which learns from whole episodes,"
        if not experience.gathers or self.returns is not None:
            features["returns"] = f"{name}, which learns from returns up to the ends of episodes,"
        if normalises_by_batch(self.nets):
            features["batch statistics"] = f"batch normalisation in the networks of {name}"
        if self.running:
            features["running scaler"] = f"a running {', '.join(self.running)}"
        if self.reset_interval is not None:
            features["reset_interval"] = f"reset_interval={self.reset_interval}"
        if config.compile_graph is True:
            features["compile_graph"] = "compile_graph=True"
        return features

    def updates_at_once(self, source: MinibatchSource) -> int:
        """Return the number of updates for `update_many`: several if the device samples batches and replays updates."""
        drawn_there = getattr(source, "device_generator", None) is not None
        together = drawn_there and self.experience.gathers and not self.recurrent and self.engine.records
        together = together and self.reset_interval is None
        return UPDATES_AT_ONCE if together else 1

    def update_many(self, source: MinibatchSource, count: int) -> dict[str, Tensor]:
        """Make ``count`` updates with batches that are sampled on the device.

        If the device can replay updates, they run without Python in between; otherwise they run one by one.
        """
        self.set_mode(acting=False)
        self.engine.prioritised = False
        generator: torch.Generator | None = getattr(source, "device_generator", None)
        with self._frozen():
            return self.engine.update_many(
                lambda: self.batch(self.sample(source)), count, [] if generator is None else [generator]
            )

    @property
    def reset_interval(self) -> int | None:
        """Number of updates between two resets of the networks; ``None`` if they are never reset."""
        return getattr(self.config, "reset_interval", None)

    def _reset_if_due(self, before: int) -> None:
        """Reset the networks if a reset is due after any of the updates since number ``before``."""
        interval = self.reset_interval
        if interval is not None and self.engine.grad_step // interval > before // interval:
            self.engine.reset_networks(self.tuning.new_networks().to(self.device), self.config.reset_share)

    @property
    def update_statistics(self) -> Callable[..., None] | None:
        """Updates the running scalers with a step; ``None`` without such scalers. See `_update_statistics`."""
        return self._update_statistics if self.running else None

    def _update_statistics(self, observation: Tree, reward: Array, is_first: Array, valid: Array) -> None:
        """Update the running scalers with observations ``[n, *shape]`` and arrays ``[n]`` as in `Rollout`."""
        self.update_reward_statistics(reward[None], is_first[None], valid[None])
        self.update_observation_statistics(observation, valid)

    @property
    def running_observation_scaler(self) -> bool:
        """Whether observations have a running scaler, so that their scale changes from step to step."""
        return "observation_scaler" in self.running

    def scaled_observation(self, observation: Tree) -> Tree:
        """Return observations ``[n, *shape]`` in the networks' units, with the current statistics, as arrays."""
        # copied, because a user's scaler may write to it
        scaled = self.units.observation(tree_map(copy_array, observation))
        return tree_map(lambda leaf: leaf.cpu().numpy(), scaled)

    def update_reward_statistics(self, reward: Array, is_first: Array, valid: Array) -> None:
        """Update the reward scaler, if it is a running one, with steps ``[T, n]``; see `Rollout`."""
        if "reward_scaler" in self.running:
            self.running["reward_scaler"].update(reward, is_first, valid)

    def update_observation_statistics(self, observation: Tree, valid: Array) -> None:
        """Update the observation scaler, if it is a running one, with the valid steps ``[..., *shape]``."""
        if self.running_observation_scaler:
            parts = self.spec.encoder_observation(match_parts(self.spec.observations, observation))
            self.running["observation_scaler"].update(tree_map(lambda leaf: leaf[valid], parts))

    def _warn_of_intervals(self, updates: int) -> None:
        """Warn of intervals that end after this run of ``updates`` updates."""

        def is_beyond(interval: int | None) -> bool:
            return interval is not None and updates < interval - self.engine.grad_step % interval

        if updates > 0 and is_beyond(self.reset_interval):
            warnings.warn(
                f"reset_interval={self.reset_interval} has no effect, because this run makes {updates} updates or "
                "fewer: take a smaller number, or more steps",
                UnusedOptionWarning,
                stacklevel=outside_birl(),
            )
        interval = getattr(self.config, "target_update_interval", None)
        if updates > _TRIAL and is_beyond(interval):
            LOG.warning(
                "%s never updates its target networks in this run, because target_update_interval=%d exceeds its %d "
                "updates: give a smaller number",
                *(self.name, interval, updates),
            )

    def check_sampler(self, source: object) -> None:
        """Raise `UnsupportedError` if a source samples by TD errors and the algorithm has none."""
        readers = getattr(getattr(source, "reader", source), "sources", ())
        if not self.experience.has_td_errors and any(reader.sampler.uses_priorities for reader in readers):
            check_compatible(prioritised_without_errors(self.name))

    def start_run(
        self, source: ReplaySource | None, count: int, *, growing: bool = False, lanes: int = 1
    ) -> ReplaySource:
        """Start a run of ``count`` minibatches, or of ``count`` steps in ``lanes`` environments.

        Updates are compiled if ``compile_graph`` is ``"auto"`` and the run is long. A resumed run ignores this decision
        and compiles if it did before: see `set_state`.

        Returns:
            The source to sample from: ``source`` itself, or the result of its ``placed_for`` for the training device.
        """
        self.check_sampler(source)
        self.transition_picker = getattr(source, "transition_picker", None)
        self.experience.check_run(self, source, count)
        used: dict[str, str] = {}
        if self.reset_interval is not None and self.engine.reduce is not None:
            used["reset_interval"] = f"reset_interval={self.reset_interval}"
            used["several processes"] = "gradients averaged over several processes"
        if growing and self.returns is not None and "reward_scaler" in self.running:
            used["stored returns"] = f"{self.name}, which stores returns,"
            used["running reward_scaler"] = "a running reward_scaler"
        check_compatible(used)
        updates = self.experience.expected_updates(self.config, count, lanes)
        self._warn_of_intervals(updates)
        if self.config.compile_graph == "auto" and updates >= LOAD_FROM:
            self.set_mode(acting=False)  # compiled programs depend on the mode
            if updates >= COMPILE_FROM or self.engine.is_stored():
                self.engine.compile(required=False)
        placed = getattr(source, "placed_for", None)
        return cast(ReplaySource, source if placed is None else placed(self.device, growing=growing))

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates that follow a schedule, as metrics."""
        engine = self.engine
        one = len(engine.schedulers) == 1
        return {
            "learning_rate" if one else f"{name}_learning_rate": float(engine.optimizers[name].param_groups[0]["lr"])
            for name, schedule in engine.schedulers.items()
            if schedule is not None
        }

    def check_finite(self) -> None:
        """Raise `NonFiniteError` if a parameter, or a moment of its optimiser, is NaN or infinite."""
        self.engine.check_finite()

    def get_state(self) -> State:
        """Return everything that training reads or writes.

        Raises:
            NonFiniteError: see `check_finite`.
        """
        self.check_finite()
        scalers = ((name, getattr(self.config, name)) for name in SCALERS)
        fitted = {name: scaler.get_state() for name, scaler in scalers if scaler is not None}
        state: State = {"engine": self.engine.get_state(), "scalers": fitted, "compiled": self.compiled}
        state["retuned"] = self.tuning.history()
        if self.evaluated is not None:  # so that a run cannot continue with another policy
            state["policy"] = {**self.evaluated.policy_state(), "description": self.evaluated.describe()}
        return state

    def set_state(self, state: State) -> None:
        """Restore a state from `get_state` of a learner with the same configuration and shapes.

        Raises:
            ResumeError: if another policy was evaluated.
        """
        if self.evaluated is not None:
            saved, evaluated = {**state["policy"]}, self.evaluated
            if saved.pop("description") != evaluated.describe() or not _same_networks(saved, evaluated.policy_state()):
                raise ResumeError(
                    f"this {self.name} was evaluating another policy: give it the same one to continue, or another "
                    "folder to start again"
                )
        self.retune(self.tuning.restore(state["retuned"]))
        if self.config.compile_graph == "auto" and state.get("compiled", self.compiled) != self.compiled:
            if state["compiled"]:  # compiled and eager updates round differently
                self.engine.compile(required=False)
            else:
                self.engine.stop_compiling()
        self.engine.set_state(state["engine"])
        for name, params in state["scalers"].items():
            if name not in SCALERS:
                raise CorruptFileError(f"the state has parameters of {name!r:.80}; scalers are {', '.join(SCALERS)}")
            getattr(self.config, name).set_state(params)

    def policies(self) -> list[tuple[float, BuiltPolicy]]:
        """See `EvaluationTarget`."""
        return [(1.0, self.policy)]

    def describe(self) -> dict[str, Any]:
        """Return the configuration and shapes in JSON form, with those of an evaluated policy."""
        spec = self.spec
        data = {"observation_shape": spec.data_shape, "action_size": spec.actions.size_argument}
        data |= {"discrete_action": spec.actions.discrete, "config": self.config.serialize()}
        if any(choices := choices_to_json(spec.observations)):
            data["choices"] = choices
        if retuned := self.tuning.history():
            data["retuned"] = retuned
        if self.logs is not None:
            data["logs"] = self.logs.to_json()
        if self.policy.columns:
            data["columns"] = {part: list(names) for part, names in self.policy.columns.items()}
        return data if self.evaluated is None else {**data, "policy": self.evaluated.describe()}

    def policy_state(self) -> State:
        """See `EvaluationTarget`."""
        nets = {name: tensor.detach().clone() for name, tensor in self.nets.state_dict().items()}
        return {"grad_step": self.engine.grad_step, "nets": nets}

    def copy_network(self, source: Learner, name: str, label: str) -> None:
        """Copy a network, and its target if there is one, from another learner.

        The statistics of running scalers are copied as well, because the network was trained with them.

        Args:
            source: the learner to copy from. If it has no target network, the network itself is copied to the target.
            name: name of the network; its target is ``<name>_target``.
            label: the network's name in messages.
        """
        own, theirs = dict(self.nets.named_children()), dict(source.nets.named_children())
        for side, networks in ((self, own), (source, theirs)):
            if name not in networks:
                raise UnsupportedError(f"{side.name} has no {label} to copy")
        for each in (name, f"{name}_target"):
            if each not in own:
                continue
            try:
                own[each].load_state_dict(theirs[each if each in theirs else name].state_dict())
            except RuntimeError as error:
                raise ShapeError(
                    f"the {label} of {source.name} does not fit {self.name}: both need the same encoder, head, number "
                    f"of critics and shapes. ({str(error).splitlines()[-1].strip()})"
                ) from error
        for each in _SCALERS_OF[name]:
            scaler, other = self.running.get(each), source.running.get(each)
            if scaler is not None and other is not None and type(scaler) is type(other):
                state, copied = scaler.get_state(), other.get_state()
                # limits, and the returns of unfinished episodes, are not copied
                scaler.set_state({**state, "statistics": copied["statistics"]} if "statistics" in state else copied)

    def copy_optimizer(self, source: Learner, step: str) -> None:
        """Copy the state of a step's optimiser from another learner."""
        own, theirs = self.engine.optimizers.get(step), source.engine.optimizers.get(step)
        if own is None or theirs is None:
            raise UnsupportedError(f"{(self if own is None else source).name} has no optimiser for its {step}")
        shapes = [[p.shape for group in side.param_groups for p in group["params"]] for side in (own, theirs)]
        if shapes[0] != shapes[1]:
            raise ShapeError(f"the {step} optimiser of {source.name} does not fit {self.name}")
        self.engine.copy_optimizer(step, source.engine)


def _same_networks(saved: State, current: State) -> bool:
    """Return whether two results of `EvaluationTarget.policy_state` have the same networks."""
    saved_tensors, tensors = _tensors(saved), _tensors(current)
    same = saved_tensors.keys() == tensors.keys()
    return same and all(torch.equal(tensors[key], x.to(tensors[key].device)) for key, x in saved_tensors.items())


def _tensors(state: object, at: str = "") -> dict[str, Tensor]:
    if isinstance(state, Tensor):
        return {at: state}
    tensors: dict[str, Tensor] = {}
    for key, value in state.items() if isinstance(state, dict) else ():
        tensors |= _tensors(value, f"{at}/{key}")
    return tensors
