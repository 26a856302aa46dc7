"""Asynchronous training in environments: processes find gradients, and one owner moves the parameters by them.

Each worker has environments of its own. It gets an order with the newest parameters, makes a rollout, finds the
gradient of its loss, and sends it; the owner applies gradients in the order in which they come (Mnih et al. 2016,
arXiv:1602.01783, algorithm S3). Optimiser and targets are the owner's, so that all workers share their statistics.

The owner hands out steps and counts those that come back: exactly ``n_steps`` are learned from, none of them twice.
What a worker has begun when it is killed is lost, which is said, and handed out again.

Where older steps are replayed, each worker has a buffer of its own rollouts (Wang et al. 2017, arXiv:1611.01224,
algorithm 1). After a rollout it is given as many orders of no steps as there are updates due from there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, Unpack

import numpy as np
import torch

from birl.checks import check
from birl.distributed.workers import Ended, Owner, Worker, check_given, end, first_ready
from birl.envs import Stepper, as_environment, number_of_environments, reset_generator
from birl.errors import CorruptFileError, WorkerError
from birl.files.state_restore import checked_array, damage_as_typed_errors
from birl.logging import LOG
from birl.run.agent_core import explorers_per_process, measure_nothing
from birl.run.checkpoint import random_state, set_random_state
from birl.run.collector import Collector
from birl.run.environment_run import EnvironmentRun
from birl.run.fingerprint import part_settings
from birl.run.options import OnlineOptions
from birl.run.protocols import Environment, ExplorerProtocol
from birl.run.replay_setup import DEFAULT_BUFFER_LIMIT
from birl.run.rollouts import RolloutAgentCore, RolloutExperience, start_rollouts
from birl.seeding import is_seed, seed
from birl.types import Array, State

MOST_DEATHS: Final = 5
"""Deaths for each worker, without a rollout of any between them, after which a run ends."""

SILENCE: Final = 60.0
"""Seconds without a word of any worker after which it is said who is waited for."""

_ADVICE: Final = (
    "give a name, such as 'CartPole-v1', or 'module:factory' for a function in a module that can be imported, which "
    "every worker calls"
)


class Given(NamedTuple):
    """What a worker is made of.

    Attributes:
        algorithm: class, configuration, observations and actions.
        env: environment, or its name.
        explorer: of this worker.
        seed: of all its randomness.
        state: to go on from; ``None`` to begin.
        kept: number of steps that its replay buffer keeps; 0 for none.
    """

    algorithm: tuple[Any, Any, Any, Any]
    env: Any
    explorer: Any
    seed: int
    state: State | None
    kept: int


class Order(NamedTuple):
    """What a worker is to do next.

    Attributes:
        step: steps counted so far, of all workers.
        most: steps to make, a whole rollout or less at the end of a run; 0 to learn from older ones.
        update: updates made so far.
        parameters: of all networks, with buffers.
    """

    step: int
    most: int
    update: int
    parameters: dict[str, Array]


class Lesson(NamedTuple):
    """What a worker found.

    Attributes:
        gradients: by parameter name.
        metrics: of the loss.
        loss: its value.
        returns: of the episodes that have ended.
        steps: that it made.
        due: number of updates from older steps that follow.
    """

    gradients: dict[str, Array]
    metrics: dict[str, float]
    loss: float
    returns: Array
    steps: int
    due: int


def asynchronous_fitter(
    algorithm: Any,
    env: Environment,
    n_steps: int = 1_000_000,
    explorer: ExplorerProtocol | Sequence[ExplorerProtocol] | None = None,
    *,
    replays: bool = False,
    **options: Unpack[OnlineOptions],
) -> Generator[tuple[int, dict[str, float]], None, None]:
    """Train on rollouts of workers, one epoch per iteration.

    Args:
        algorithm: one that learns from rollouts, with one gradient of each; its networks are made if they do not exist.
        env: environment, vector environment, or the name of one. Every worker has one of its own: makes it by its name,
            or gets a copy.
        n_steps: number of environment steps over all workers that are learned from, exactly.
        explorer: one for all workers, or a list with one for each; by default the policy acts by itself.
        replays: whether each worker learns from its older rollouts as well, of which it keeps its share of a million
            steps.
        **options: see `OnlineOptions`; ``workers`` is the number of processes.

    Yields:
        Number of the epoch (from 1) and its metrics. Losses are means over the rollouts of the epoch.

    Raises:
        ConfigError: if the environment or the explorer cannot be sent to another process.
        WorkerError: if a worker fails, or workers are killed again and again.
    """
    run = EnvironmentRun(algorithm, "asynchronous", env, n_steps, options)
    n_steps, n_workers = run.n_steps, run.options["workers"]
    assert n_workers is not None
    explorers = explorers_per_process(explorer, n_workers, "workers")
    if not isinstance(env, str):
        check_given("env", env, _ADVICE)
    run.settings |= {"workers": n_workers, "explorer": [part_settings(each) for each in explorers]}
    algorithm.learner.check_apart(n_steps)
    n_steps_of_rollout = algorithm.config.rollout_length * number_of_environments(run.env)
    kept = DEFAULT_BUFFER_LIMIT // n_workers if replays else 0
    generator = reset_generator(run.env, run.options["seed"])
    crew = Crew(algorithm, env, explorers, generator, n_steps_of_rollout, kept)
    session = run.session({"workers": crew}, None)

    if crew.cut and session.left and n_workers == 1:
        session.warn_inexact("its last rollout was cut short by the end of the run")

    def learn() -> None:
        with session.time("algorithm_update"):
            session.averages.add(crew.learn())

    def step() -> None:
        with session.time("step"):
            while crew.pending == 0:
                for value in crew.hear(session.step, session.left):
                    session.averages.add({"rollout_return": float(value)})
                if crew.pending == 0:  # from older steps: none to be counted
                    learn()
            crew.pending -= 1
            if crew.pending == 0:
                learn()
                while crew.due and (n_workers == 1 or session.left == 1):  # as one process does; after the last step
                    crew.hear(session.step, 0)
                    learn()
        session.tick()

    try:
        yield from session.epochs(step)
    finally:
        crew.close()


class _Place:
    """The place of a worker: when its process is killed, another one takes it.

    Attributes:
        number: from 0.
        worker: ``None`` before it is needed.
        seed, state: what its worker begins from.
        ready: whether the worker has begun.
        busy: whether it has an order.
        most: steps that it was told to make.
        due: updates from older steps that it is to be told to find.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: Worker | None = None
        self.seed: int | None = None
        self.state: State | None = None
        self.ready = self.busy = False
        self.most = self.due = 0


class Crew:
    """The workers of a run, as its owner sees them. A part of checkpoints.

    A checkpoint waits for the rollouts under way and holds what was found in them, with the state of every worker.

    Args:
        algorithm: the owner's, built.
        env: what workers are sent: environment or name.
        explorers: one for each worker.
        generator: source of the workers' seeds.
        n_steps: of a whole rollout.
        kept: see `Given`.

    Attributes:
        pending: steps of the present lesson that are not counted yet.
        replaced: number of workers that were killed and replaced.
        cut: whether a rollout was cut short by the end of the run.
    """

    def __init__(
        self, algorithm: Any, env: Any, explorers: list[Any], generator: np.random.Generator, n_steps: int, kept: int
    ) -> None:
        self._algorithm, self._env, self._explorers = algorithm, env, explorers
        self._generator, self._n_steps, self._kept = generator, n_steps, kept
        self._places = [_Place(number) for number in range(len(explorers))]  # the one heard last at the end
        self._lessons: list[tuple[int, Lesson]] = []  # heard and not learned from, with the numbers of their workers
        self._deaths = 0  # since a worker was heard
        self.pending = self.replaced = 0
        self.cut = False

    @property
    def due(self) -> int:
        """Number of updates from older steps that are still to be made."""
        heard = sum(lesson.steps == 0 for _, lesson in self._lessons)
        return heard + sum(place.due + (place.busy and place.most == 0) for place in self._places)

    def hear(self, step: int, left: int) -> Array:
        """Wait for the next lesson, which is to be counted and learned from. Returns the returns of its episodes.

        Where it is of older steps there is nothing to count: ``pending`` is 0.

        Args:
            step: steps counted so far.
            left: steps left in the run.
        """
        while not self._lessons:
            if left == self.due == 0:  # the worker that was to find it has been killed
                return np.zeros(0)
            self._hand_out(step, left)
            self._listen()
        lesson = self._lessons[0][1]
        self.pending = lesson.steps
        return lesson.returns

    def learn(self) -> dict[str, Any]:
        """Move the parameters by the lesson that was heard, if there was one. Returns metrics."""
        if not self._lessons:
            return {}
        lesson = self._lessons[0][1]
        (step,) = self._algorithm.engine.gradient_steps
        gradients = {name: torch.from_numpy(value) for name, value in lesson.gradients.items()}
        metrics = self._algorithm.learner.move({step.name: (gradients, lesson.loss, lesson.metrics)})
        del self._lessons[0]
        return metrics if self.replaced == 0 else {**metrics, "workers_replaced": float(self.replaced)}

    def _hand_out(self, step: int, left: int) -> None:
        """Give orders to all workers that have none, as long as there are steps to make."""
        for place in self._places:
            if place.worker is None:
                self._begin(place)
        order: dict[str, Any] | None = None
        for place in self._places:
            most = 0 if place.due else min(self._n_steps, left - sum(each.most for each in self._places))
            if not place.ready or place.busy or (most <= 0 and not place.due):
                continue
            if order is None:
                tensors = self._algorithm.nets.state_dict()
                parameters = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
                order = {"step": step, "update": self._algorithm.grad_step, "parameters": parameters}
            place.busy, place.most, place.due = True, most, max(place.due - 1, 0)
            self.cut = self.cut or 0 < most < self._n_steps
            try:
                _worker(place).send(Order(most=most, **order))
            except Ended as error:
                self._replace(place, error)

    def _listen(self) -> None:
        """Wait for a word of one of the workers that begin, or work on an order."""
        begun = [(place.worker, place) for place in self._places if place.worker is not None]
        waited_for = {worker: place for worker, place in begun if place.busy or not place.ready}
        ready = first_ready(waited_for, SILENCE)
        if ready is None:
            doing = [
                f"worker {place.number} (process {worker.number}) {'makes a rollout' if place.ready else 'begins'}"
                for worker, place in waited_for.items()
            ]
            LOG.warning(
                "nothing has been heard for %g seconds, and the run waits: %s. It goes on when one of them does; "
                "Ctrl-C, and again, ends it as its last checkpoint has it",
                *(SILENCE, ", ".join(doing)),
            )
            ready = first_ready(waited_for)
        assert ready is not None
        place = waited_for[ready]
        try:
            found = _worker(place).receive()
        except Ended as error:
            self._replace(place, error)
            return
        if not place.ready:
            place.ready = True
            return
        self._lessons.append((place.number, found))
        self._places.remove(place)
        self._places.append(place)
        self._deaths = place.most = 0
        place.busy, place.due = False, place.due + found.due

    def _begin(self, place: _Place) -> None:
        if place.seed is None:
            place.seed = int(self._generator.integers(2**32))
        own = self._algorithm
        algorithm = (type(own), own.config, own.spec.observations, own.spec.actions)
        given = Given(algorithm, self._env, self._explorers[place.number], place.seed, place.state, self._kept)
        place.worker, place.state, own.learner.shared = Worker(work, given), None, "workers learn with it"

    def _replace(self, place: _Place, error: Ended) -> None:
        worker = _worker(place)
        lost = f"the rollout that it was making, of up to {place.most} steps," if place.most else "its episode"
        LOG.warning(
            "worker %d (process %s) was ended %s; %s is lost%s, and another worker takes its place",
            *(place.number, worker.number, error.how, lost, ", with its replay buffer" if self._kept else ""),
        )
        worker.kill()
        self._deaths, self.replaced = self._deaths + 1, self.replaced + 1
        place.worker = place.seed = place.state = None
        place.ready, place.busy, place.most, place.due = False, False, 0, 0
        if self._deaths >= MOST_DEATHS * len(self._places):
            raise WorkerError(
                f"workers were ended {self._deaths} times ({error.how} last) without one rollout between them: where "
                "the system ends them for lack of memory, use fewer; else see what their environments do"
            )
        self._begin(place)

    def close(self) -> None:
        """End all workers."""
        end([place.worker for place in self._places if place.worker is not None])
        self._algorithm.learner.shared = ""

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Counts, workers, and what was found and not learned from."""
        workers = self._states()
        return {
            "generator": self._generator.bit_generator.state,
            "pending": self.pending,
            "replaced": self.replaced,
            "cut": self.cut,
            "order": [place.number for place in self._places],
            "due": {str(place.number): place.due for place in self._places},
            "workers": workers,
            "lessons": {str(i): {"worker": n, **lesson._asdict()} for i, (n, lesson) in enumerate(self._lessons)},
        }

    def _states(self) -> dict[str, State]:
        """State and seed of each worker, by its number; of those that have not begun if they have any."""
        found: dict[str, State] = {}
        begun = [place for place in self._places if place.worker is not None]
        while len(found) < len(begun):
            while any(place.busy or not place.ready for place in begun):
                self._listen()
            for place in sorted(begun, key=lambda place: place.number):
                if str(place.number) in found:
                    continue
                worker = _worker(place)
                try:
                    worker.send(None)
                    found[str(place.number)] = {"seed": place.seed, "state": worker.receive()}
                except Ended as error:
                    self._replace(place, error)
        for place in self._places:
            if place.worker is None and place.state is not None:
                found[str(place.number)] = {"seed": place.seed, "state": place.state}
        return found

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, before any worker has begun."""
        lessons = [self._lesson(state["lessons"][key]) for key in sorted(state["lessons"], key=int)]
        pending = check("pending", state["pending"], int, low=0, error=CorruptFileError)
        replaced = check("replaced", state["replaced"], int, low=0, error=CorruptFileError)
        by_number = {place.number: place for place in self._places}
        due = {  # earlier builds of 0.1 replayed nothing
            key: check("due", n, int, low=0, error=CorruptFileError) for key, n in state.get("due", {}).items()
        }
        if sorted(state["order"]) != sorted(by_number) or pending > (lessons[0][1].steps if lessons else 0):
            raise CorruptFileError(
                f"the checkpoint has workers {state['order']!r:.80} and {pending} steps to count: use a copy"
            )
        for key, saved in state["workers"].items():
            if int(key) not in by_number or not is_seed(saved["seed"]):
                raise CorruptFileError(
                    f"the checkpoint has a worker {key!r:.40} of seed {saved['seed']!r:.40}: use a copy"
                )
        self._generator.bit_generator.state = state["generator"]
        self._places = [by_number[number] for number in state["order"]]
        for place in self._places:
            saved = state["workers"].get(str(place.number), {"seed": None, "state": None})
            place.seed, place.state, place.due = saved["seed"], saved["state"], 0
            if place.state is not None:
                place.due = due.get(str(place.number), 0)
        self._lessons, self.pending, self.replaced = lessons, pending, replaced
        self.cut = check("cut", state["cut"], bool, error=CorruptFileError)

    def _lesson(self, saved: State) -> tuple[int, Lesson]:
        """A lesson of a checkpoint, whose gradients must be those of the networks."""
        own = {name: value.shape for name, value in self._algorithm.learner.moved.items()}
        if saved["gradients"].keys() != own.keys():
            raise CorruptFileError("the checkpoint has gradients of other parameters than the networks: use a copy")
        gradients = {
            name: checked_array(saved["gradients"][name], tuple(shape), np.dtype(np.float32), name)
            for name, shape in own.items()
        }
        steps = check("steps", saved["steps"], int, low=0, error=CorruptFileError)
        metrics = {str(name): float(value) for name, value in saved["metrics"].items()}
        returns = np.asarray(saved["returns"], np.float64)
        return int(saved["worker"]), Lesson(gradients, metrics, float(saved["loss"]), returns, steps, 0)


def _worker(place: _Place) -> Worker:
    assert place.worker is not None
    return place.worker


# -- in a process of its own -------------------------------------------------------------------------------------------


def work(owner: Owner, given: Given) -> None:
    """Carry out orders until the owner has none left."""
    torch.set_num_threads(1)  # as many processes as there are cores
    seed(given.seed)
    kind, config, observations, actions = given.algorithm
    algorithm = kind(config)
    algorithm.create_impl(observations, actions)
    env = as_environment(given.env)
    try:
        beside = start_rollouts(algorithm, env, 0, None, None, replays=given.kept > 0, digested=False, limit=given.kept)
        stepper = Stepper(env, reset_generator(env, given.seed), observations=algorithm.spec.observations)
        explorer = given.explorer.renewed() if hasattr(given.explorer, "renewed") else given.explorer
        player = RolloutAgentCore(algorithm, stepper.observation, stepper.action_space, explorer, beside)
        collector = Collector(stepper, player)
        if given.state is not None:
            with damage_as_typed_errors("the checkpoint", "the state of a worker cannot be used"):
                for name, part in beside.parts.items():
                    part.set_state(given.state["beside"][name])
                collector.set_state(given.state["collector"])
                set_random_state(given.state["random"])
        owner.send(None)
        while True:
            order = owner.receive()
            if order is None:
                own = {name: part.get_state() for name, part in beside.parts.items()}
                owner.send({"beside": own, "collector": collector.get_state(), "random": random_state()})
            else:
                owner.send(lesson_of(algorithm, collector, beside, order))
    finally:
        env.close()


def lesson_of(algorithm: Any, collector: Collector, beside: RolloutExperience, order: Order) -> Lesson:
    """Make a rollout with the parameters of an order, or draw older steps, and find the gradient of its loss."""
    algorithm.nets.load_state_dict({name: torch.from_numpy(value) for name, value in order.parameters.items()})
    algorithm.set_grad_step(order.update)
    returns: list[float] = []
    for made in range(1, order.most + 1):
        step = order.step + made
        returns += collector.count(step - 1, order.most - made + 1)
        for rollout in collector.agent.minibatches(step, last=made == order.most):
            return _found(algorithm, rollout, returns, made)._replace(due=beside.replays_due())
    return _found(algorithm, beside.sample_replay(measure_nothing), [], 0)


def _found(algorithm: Any, drawn: Any, returns: list[float], made: int) -> Lesson:
    """The gradient of what is learned from a rollout, or from older steps."""
    found = algorithm.learner.find(drawn)
    gradients = {name: value.numpy() for name, value in found.gradients.items()}
    metrics = {name: value.item() for name, value in found.loss.metrics.items()}
    return Lesson(gradients, metrics, found.loss.value.item(), np.array(returns, np.float64), made, 0)
