"""What a collector is: a player in environments of its own, which carries out orders.

A collector holds nothing that its last fragment does not hold: made anew from the state in there, it goes on as if it
had never been away.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from birl._version import __version__
from birl.distributed.transport import Work, check_version
from birl.envs import Step, Stepper, as_environment
from birl.envs.stepper import reset_seed
from birl.errors import BirlError, EnvironmentMismatchError, WorkerError
from birl.files.state_restore import damage_as_typed_errors
from birl.run.agent_core import AgentCore, ReplayAgentCore, SelectedActions
from birl.run.checkpoint import preserve_random_state, random_state, set_random_state
from birl.run.collector import Collector
from birl.run.rollouts import RolloutAgentCore
from birl.run.workers.restartable_envs import RestartableEnvs, actions_of_episode
from birl.seeding import root_kept, seed
from birl.types import Array, State, Tree, tree_map


class Given(NamedTuple):
    """What a collector is made of.

    Attributes:
        collector: its number.
        algorithm: class, configuration, observations and actions.
        env: environment, of which each place gets a copy; or its name; or a function of the environment's number.
        numbers: of its environments, among those of all collectors.
        observed: what is read of their observations.
        explorer: its own.
        random_steps: number of steps at the start of the run that are uniformly random.
        rollouts: whether it plays for an algorithm that learns from rollouts.
        resets: states of the generators of each environment's resets.
        random: state of the generator of random actions.
        seed: of all other randomness.
        failures: how often in a row an environment may fail and is made anew; ``None`` if none may.
        state: to go on from; ``None`` to begin.
        birl: version of whoever sends this.
    """

    collector: int
    algorithm: tuple[Any, Any, Any, Any]
    env: Any
    numbers: range
    observed: Tree
    explorer: Any
    random_steps: int
    rollouts: bool
    resets: list[Any]
    random: Any
    seed: int
    failures: int | None = None
    state: State | None = None
    birl: str = __version__


class Order(NamedTuple):
    """What a collector is to do next. It is sent with the weights to act with.

    Attributes:
        number: of the order, among those of all collectors.
        calls: steps to make in each environment.
        first_step: steps that were ordered before, from all collectors.
        learned: fragments that had been learned from by then.
        version: of the weights.
        random: state of the global generators to begin with; ``None`` for its own.
    """

    number: int
    calls: int
    first_step: int
    learned: int
    version: int
    random: State | None


class Fragment(NamedTuple):
    """What a collector saw.

    Attributes:
        number: of the order.
        rows: columns ``[calls, environments, …]`` of `SelectedActions` and `Step`.
        returns: of the episodes that have ended.
        lost: whether episodes that were under way before could not be continued.
        cut: environments (their numbers here) whose episodes that were under way before end there.
        failures: what went wrong in environments that were made anew.
        seconds: median of what a call took.
        idle: seconds without an order before this one.
        state: of the collector, after it.
    """

    number: int
    rows: dict[str, Tree]
    returns: Array
    lost: bool
    cut: Array
    failures: list[str]
    seconds: float
    idle: float
    state: State


class _Noting(AgentCore):
    """Keeps the steps that are made, instead of storing and learning."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.rows: list[dict[str, Tree]] = []
        self.lost = False

    def _store(self, selected: SelectedActions, step: Step, lanes: Array | None) -> None:
        row = {**selected._asdict(), **step._asdict()}
        del row["returns"]
        self.rows.append(tree_map(np.array, row))

    def close_episodes(self, lanes: Iterable[int] | None = None) -> None:
        super().close_episodes(lanes)
        self.lost = True


class _Told(NamedTuple):
    """What a fragment tells beside its rows."""

    returns: list[float]
    cut: list[int]
    failures: list[str]
    seconds: list[float]


class _NotingReplay(_Noting, ReplayAgentCore): ...


class _NotingRollouts(_Noting, RolloutAgentCore): ...


class CollectorWorker(Work):
    """A collector at work.

    Its randomness is its own: the global generators are what they were before when it is done.

    Args:
        given: what it is made of.

    Raises:
        ConfigError: if another version of birl has sent it.
        EnvironmentMismatchError: if an environment has other spaces than the algorithm was built for.
        WorkerError: if an environment raises an error while it is made or first reset.
    """

    def __init__(self, given: Given) -> None:
        check_version(f"collector {given.collector}", given.birl)
        self._given, self._order = given, Order(0, 0, 0, 0, 0, None)
        self._told = _Told([], [], [], [])
        self._beginning = 0, "while it was made"  # which environment it begins with, and what is done with that
        with preserve_random_state(), root_kept():
            seed(given.seed)
            self._begin(given)
            self._random = random_state() if given.state is None else given.state["random"]
        self._done = time.perf_counter()

    def _begin(self, given: Given) -> None:
        kind, config, observations, actions = given.algorithm
        self._algorithm = kind(config)
        self._algorithm.create_impl(observations, actions)
        self._whole = given.rollouts and not hasattr(config, "rollout_length")
        self._resets = [generator(state) for state in given.resets]
        self._stepper = self._environments()
        seen = self._algorithm, self._stepper.observation, self._stepper.action_space
        self._player: Any
        if given.rollouts:
            self._player = _NotingRollouts(*seen, given.explorer)
        else:
            random = {"generator": generator(given.random), "random_steps": given.random_steps}
            self._player = _NotingReplay(*seen, None, given.explorer, **random)
        self._collector = Collector(self._stepper, self._player)  # type: ignore[arg-type]
        if given.state is not None:
            with damage_as_typed_errors("the checkpoint", "the state of a collector cannot be used"):
                self._collector.set_state(given.state["collector"])
                set_random_state(given.state["random"])

    def _environments(self) -> RestartableEnvs:
        given = self._given
        try:
            return RestartableEnvs(self._make, self._reset, len(given.numbers), given.failures, self._whole)
        except BirlError as error:
            at, doing = self._beginning
            if self._name(at) not in str(error):
                error.add_note(f"This was in {self._name(at)}, {doing}.")
            raise
        except Exception as error:
            at, doing = self._beginning
            raise WorkerError(
                f"{self._name(at)} has failed {doing}, and with it the run; mend the environment or what makes it. "
                "birl.Cluster(on_error='restart') does not help here: it makes an environment anew that fails later. "
                f"Its error:\n{''.join(traceback.format_exception(error))}"
            ) from error

    def _make(self, i: int) -> Any:
        self._beginning = i, "while it was made"
        env = environment(self._given.env, self._given.numbers[i])
        try:
            self._algorithm.check_env(env)
        except EnvironmentMismatchError as error:
            raise EnvironmentMismatchError(
                f"{self._name(i)} is not like the one that the run began with: {error}. All environments of a run must "
                "have the same spaces"
            ) from error
        return env

    def _reset(self, i: int, env: Any) -> Stepper:
        next_seed = reset_seed(copy.deepcopy(self._resets[i]))  # which the stepper draws
        self._beginning = i, f"in its first reset, with seed {next_seed}"
        return Stepper(env, self._resets[i], observations=self._given.observed)

    def _name(self, i: int) -> str:
        return f"environment {self._given.numbers[i]} of collector {self._given.collector}"

    def __call__(self, order: Order, weights: State) -> Fragment:
        """Make the steps of an order.

        Raises:
            WorkerError: if the environment, or another part of the user's, raises an error.
            BirlError: of birl, as it is.
        """
        player, self._order, self._told = self._player, order, _Told([], [], [], [])
        idle = time.perf_counter() - self._done
        try:
            with preserve_random_state():
                set_random_state(self._random if order.random is None else order.random)
                self._algorithm.learner.policy.set_weights(weights)
                self._stepper.wake()
                for call in range(order.calls):
                    self._make_a_step(order.first_step + call * self._stepper.n)
                    if self._stepper.rests:
                        break
                self._random = random_state()
        except BirlError as error:
            error.add_note(f"This was in {self.place}, {self._actions}.")
            raise
        except Exception as error:
            raise WorkerError(
                f"{self.place}, has failed, and with it the run, {self._actions}; with this seed and these actions it "
                "would fail again, so mend the environment, or let birl.Cluster(on_error='restart') make it anew. Its "
                f"error:\n{''.join(traceback.format_exception(error))}"
            ) from error
        rows = tree_map(lambda *leaves: np.stack(leaves), *player.rows)
        lost, player.lost, player.rows, player.uncounted_steps = player.lost, False, [], 0
        state = {"collector": self._collector.get_state(), "random": self._random}
        told = self._told
        cut, seconds = np.array(told.cut, np.int64), float(np.median(told.seconds))
        returns = np.array(told.returns, np.float64)
        self._done = time.perf_counter()
        return Fragment(order.number, rows, returns, lost, cut, told.failures, seconds, idle, state)

    def _make_a_step(self, step: int) -> None:
        """Make a step everywhere. What fails ends its episode before it."""
        told, rows, begin = self._told, self._player.rows, time.perf_counter()
        told.returns.extend(self._collector.interact(step).returns.values())
        told.seconds.append(time.perf_counter() - begin)
        for at, words in self._stepper.failed:
            told.failures.append(f"{self._name(at)}, {words}")
            if len(rows) == 1:
                told.cut.append(at)
            else:
                before = rows[-2]
                before["truncated"][at] |= before["valid"][at] & ~before["terminated"][at]

    @property
    def _actions(self) -> str:
        return actions_of_episode(self._stepper.steppers[self._stepper.at])

    @property
    def place(self) -> str:
        """Where it is."""
        order, at, made = self._order, self._stepper.at, len(self._player.rows)
        return (
            f"{self._name(at)}, reset with seed {self._stepper.steppers[at].seed}, in step {made + 1} of {order.calls} "
            f"of its order {order.number}"
        )

    def close(self) -> None:
        """Close its environments."""
        self._stepper.close()


def environment(env: Any, number: int) -> Any:
    """An environment of one's own.

    Args:
        env: environment, or its name, or a function of the environment's number.
        number: of the environment.
    """
    if isinstance(env, str) or hasattr(env, "step"):
        return as_environment(copy.deepcopy(env))
    return as_environment(env(number) if callable(env) else env)


def generator(state: State) -> np.random.Generator:
    """A generator in a state of another one."""
    made = np.random.Generator(np.random.PCG64())
    made.bit_generator.state = state
    return made
