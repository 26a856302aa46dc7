"""Collectors as the loop sees them: orders go out, fragments come in, and every step is counted.

A `CollectorGroup` has the interface of a `birl.run.collector.Collector`, so that the loops are the same with
and without one. What it orders, and when, depends on nothing but what it has taken in before: with the orders
*together* and *turns* a
run is a function of its seed. A collector that is lost is made anew from the state in its last fragment and is sent its
open orders again, with the weights that they name, so that what it then makes is what was lost, bit for bit.

An order is the credit for a fragment: no more of them exist, and there is no queue. A checkpoint does not wait for
those under way: it holds their orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import numpy as np

from birl.checks import check
from birl.distributed.ray import Remote
from birl.distributed.transport import Gone, Inline, Processes, Transport
from birl.errors import CorruptFileError, WorkerError
from birl.logging import LOG
from birl.run.agent_core import AgentCore, MeasureTime, measure_nothing
from birl.run.checkpoint import random_state, set_random_state
from birl.run.cluster import AUTO, FIRST_FRAGMENT, Cluster, fragment_for
from birl.run.protocols import Trainable
from birl.run.workers.collector_worker import CollectorWorker, Fragment, Given, Order
from birl.run.workers.rollout_fragments import Store
from birl.types import Array, State

TRANSPORTS: Final[dict[str, Callable[[Cluster], Transport]]] = {
    "inline": lambda cluster: Inline(CollectorWorker),
    "processes": lambda cluster: Processes(CollectorWorker, cluster.step_timeout),
    "ray": lambda cluster: Remote(
        CollectorWorker, cluster.address, cluster.step_timeout, cluster.patience, cluster.asked
    ),
}


_STEPS: Final = ("ordered", "dropped", "missed", "restarts", "errors")


class _Place:
    """The place of a collector.

    Attributes:
        given: what it is made of.
        lanes: numbers of its environments; ``None`` if there are no others.
        state: after the last fragment that was taken in; ``None`` before the first.
        orders: those of which the fragments are not taken in yet.
        fragments: those that have come and are not taken in yet, of the first of these orders.
        begun: whether there is a collector.
        deaths: how many there were since the last fragment.
        hung: where it hung last.
    """

    def __init__(self, given: Given, lanes: Array | None) -> None:
        self.given, self.lanes = given, lanes
        self.state: State | None = None
        self.orders: deque[Order] = deque()
        self.fragments: deque[Fragment] = deque()
        self.begun, self.deaths = False, 0
        self.hung: Any = None


class CollectorGroup:
    """The collectors of a run. A part of checkpoints.

    Args:
        algorithm: built.
        player: of all environments; it stores and learns.
        cluster: how steps are made.
        given: what each collector is made of.
        calls: steps of each environment in a fragment; 0 if that is to be measured.
        n_steps: of the run.
        store: puts fragments into the player.

    Attributes:
        cut: length of the run, in steps, for whose end an order was cut short or not given; 0 if none was.
        restarts: how many collectors were made anew.
        ordered, dropped, missed: steps, since the beginning of the run; those that are ordered anew count again. Missed
            are those that were ordered and not made, because an episode ended or an environment failed.
        errors: how often an environment failed and was made anew.
        report: called with metrics of each fragment.
    """

    def __init__(
        self,
        algorithm: Trainable,
        player: AgentCore,
        cluster: Cluster,
        given: list[Given],
        calls: int,
        n_steps: int,
        store: Store,
    ) -> None:
        self._algorithm: Any = algorithm
        self.agent, self._cluster = player, cluster
        self._calls, self._n_steps, self._store = calls, n_steps, store
        n = cluster.environments
        lanes = [np.arange(i * n, (i + 1) * n) for i in range(len(given))]
        self._places = [_Place(each, own if len(given) > 1 else None) for each, own in zip(given, lanes, strict=True)]
        # One collector in step with the learner makes the same steps as none: they share their random numbers.
        self._shares = len(given) == 1 and cluster.order == "together"
        self._transport: Transport | None = None
        self._weights: dict[int, State] = {}  # that open orders name, and the newest
        self._sent: dict[int, Any] = {}  # what stands for them where collectors are
        self._newest: tuple[Any, int] = (None, -1)
        self._came: deque[_Place] = deque()  # places in the order in which their fragments came
        self._number = self._learned = 0
        self.ordered = self.dropped = self.missed = self.restarts = self.errors = 0
        self.cut = 0
        self.report: Callable[[Mapping[str, float]], None] = lambda metrics: None
        self._check_signals: Callable[[], None] = lambda: None

    def attach(self, session: Any) -> None:
        """Tell a session of each fragment, and warn if orders of a checkpoint were cut short for another end."""
        self.report, self._check_signals = session.averages.add, session.check_signals
        if self.cut not in (0, self._n_steps):
            session.warn_inexact("its last orders were cut short, or not given, because it was to end")

    @property
    def in_flight(self) -> int:
        """Steps that are ordered and not taken in."""
        return sum(order.calls for place in self._places for order in place.orders) * self._cluster.environments

    def count(self, step: int, most: int | None = None, measure: MeasureTime = measure_nothing) -> list[float]:
        """Count one more step, taking in the next fragment first if need be; see `Collector.count`."""
        ended: list[float] = []
        while self.agent.uncounted_steps == 0:
            self._hand_out()
            self._check_orders(step)
            ended += self._take_in(self._next(measure), most)
        self.agent.uncounted_steps -= 1
        return ended

    # -- orders ----------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Give all collectors the orders that they have credit for, as long as there are steps to make."""
        for place in self._places:
            if not place.begun and place.orders:  # of a checkpoint
                self._begin(place)
        for depth in range(self._cluster.credit):
            for place in self._places:
                if len(place.orders) <= depth:
                    self._order(place)

    def _check_orders(self, step: int) -> None:
        """Raise an error if the next step is in no order, and would be waited for in vain."""
        if not any(place.orders for place in self._places):
            made = self.ordered - self.dropped - self.missed
            raise WorkerError(
                f"step {step + 1} of {self._n_steps} is missing, but the collectors have carried out all their orders, "
                f"{made} steps, and there is none left to give: birl has miscounted its steps. Start the run again, "
                "which goes on from its last checkpoint, and report this error with the command or script of the run"
            )

    def _order(self, place: _Place) -> None:
        n, before = self._cluster.environments, self.ordered - self.dropped - self.missed
        wanted = self._calls or FIRST_FRAGMENT
        wanted = wanted if self.agent.rows_left is None else min(wanted, self.agent.rows_left)
        calls = min(wanted, -(-(self._n_steps - before) // n))
        self.cut = self._n_steps if calls < wanted else self.cut
        if calls <= 0:
            return
        shared = random_state() if self._shares else None
        order = Order(self._number, calls, before, self._learned, self._version(), shared)
        if not place.begun:
            self._begin(place)
        place.orders.append(order)
        self._number, self.ordered = self._number + 1, self.ordered + calls * n
        self._send(place, order)

    def _version(self) -> int:
        """The number of the newest weights."""
        learner, number = self._algorithm.learner, self._newest[1]
        moment = (self._algorithm.grad_step, self._learned if learner.units_move else 0)
        if self._newest[0] != moment:
            number += 1
            self._newest = (moment, number)
            self._weights[number] = learner.policy.weights()
        return number

    def _send(self, place: _Place, order: Order) -> None:
        version = order.version
        if version not in self._sent:
            self._sent[version] = self._transported.put(self._weights[version])
        self._transported.send(place.given.collector, order, self._sent[version])

    def _begin(self, place: _Place) -> None:
        """Make a collector that goes on from the last fragment, and send it the open orders."""
        state = place.fragments[-1].state if place.fragments else place.state
        self._transported.start(place.given.collector, place.given._replace(state=state))
        place.begun = True
        for order in list(place.orders)[len(place.fragments) :]:
            self._send(place, order)

    @property
    def _transported(self) -> Transport:
        if self._transport is None:
            self._transport = TRANSPORTS[self._cluster.transport](self._cluster)
            self._transport.while_waiting = self._check_signals
        return self._transport

    # -- fragments -------------------------------------------------------------------------------------------------

    def _next(self, measure: MeasureTime) -> list[_Place]:
        """Wait for what is taken in next: the places whose first fragment it is."""
        waited_for = [place for place in self._places if place.orders]
        if self._cluster.order == "turns":
            waited_for = [min(waited_for, key=lambda place: place.orders[0].number)]
        first = self._cluster.order == "arrival"
        with measure("waiting"):
            while not self._came if first else any(not place.fragments for place in waited_for):
                self._check_signals()  # what came in and is not taken in yet, a resumed run orders again
                self._listen()
        return [self._came[0]] if first else waited_for

    def _listen(self) -> None:
        try:
            index, fragment = self._transported.wait()
        except Gone as error:
            self._replace(self._places[error.index], error)
            return
        place = self._places[index]
        wanted = place.orders[len(place.fragments)].number
        if fragment.number != wanted:
            raise WorkerError(
                f"collector {index} answered order {fragment.number}, but order {wanted} was its next: an answer was "
                "lost on the way, or came twice; start the run again, which goes on from its checkpoint"
            )
        place.fragments.append(fragment)
        place.deaths, place.hung = 0, None
        self._came.append(place)

    def _replace(self, place: _Place, error: Gone) -> None:
        place.deaths, self.restarts = place.deaths + 1, self.restarts + 1
        index, number = place.given.collector, place.orders[len(place.fragments)].number if place.orders else 0
        if error.place is not None and error.place == place.hung:
            raise WorkerError(
                f"collector {index} was ended twice {error.how}, both times in {error.place}; it would hang again, so "
                "mend the environment, or, if this may take so long, give birl.Cluster(step_timeout=…)"
            )
        place.hung = error.place
        if place.deaths > self._cluster.restarts:
            raise WorkerError(
                f"collector {index} was ended {place.deaths} times in a row ({error.how} last) without an answer to "
                f"order {number}: where the system ends it for lack of memory, use fewer collectors; else see what its "
                f"environments {_range(place.given.numbers)} do"
            )
        LOG.warning(
            "collector %d was ended %s, in order %d or before; it is made anew and goes on from its last fragment",
            *(index, error.how, number),
        )
        self._begin(place)

    def _take_in(self, places: list[_Place], most: int | None) -> list[float]:
        """Store the first fragments of some places. Returns the returns of episodes that ended."""
        taken: list[tuple[Array | None, Fragment]] = []
        for place in places:
            order, fragment = place.orders.popleft(), place.fragments.popleft()
            self._came.remove(place)
            place.state = fragment.state
            if self._shares:
                set_random_state(fragment.state["random"])
            self._hear_of(place, fragment)
            steps, lag = int(fragment.rows["valid"].sum()), self._learned - order.learned
            self.missed += order.calls * self._cluster.environments - steps
            if self._cluster.max_lag is not None and lag > self._cluster.max_lag:
                self.dropped += steps
                self.agent.close_episodes(place.lanes)
                continue
            taken.append((place.lanes, fragment))
            counts = {"collector_restarts": self.restarts, "environment_errors": self.errors}
            counts |= {"dropped_steps": self.dropped, "fragment": self._calls if self._cluster.fragment == AUTO else 0}
            told = {name: float(count) for name, count in counts.items() if count}
            self.report({"lag": float(lag), "time_idle": fragment.idle, **told})
        if taken:
            self._store(self.agent, taken, most)
            if not self._calls:
                self._measure(max(fragment.seconds for _, fragment in taken))
        self._learned += len(taken)
        named = {order.version for place in self._places for order in place.orders} | {self._newest[1]}
        self._weights = {number: weights for number, weights in self._weights.items() if number in named}
        self._sent = {number: sent for number, sent in self._sent.items() if number in named}
        return [float(value) for _, fragment in taken for value in fragment.returns]

    def _hear_of(self, place: _Place, fragment: Fragment) -> None:
        """End the episodes that a fragment does not go on with, and warn of what went wrong."""
        if fragment.lost:
            LOG.warning(
                "collector %d was made anew, but its environments %s do not repeat what they did, given the same "
                "seeds and actions: their running episodes were cut, and new ones began",
                *(place.given.collector, _range(place.given.numbers)),
            )
            self.agent.close_episodes(place.lanes)
        elif len(fragment.cut):
            self.agent.close_episodes(fragment.cut if place.lanes is None else place.lanes[fragment.cut])
        self.errors += len(fragment.failures)
        for words in fragment.failures:
            LOG.warning("%s; its episode was truncated, and the environment made anew", words)

    def _measure(self, seconds: float) -> None:
        """Set the length of the fragments that are ordered from now on."""
        self._calls = fragment_for(seconds)
        LOG.info("fragment=%d: a step takes %.3g ms", self._calls, 1000 * seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End all collectors."""
        if self._transport is not None:
            self._transport.close()
        self._transport = None
        self._sent.clear()
        for place in self._places:
            place.begun = False

    # -- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Counts, open orders, the weights that they name, and the state of each collector before them."""
        named = {order.version for place in self._places for order in place.orders}
        return {
            "player": self.agent.get_state(),
            "counts": {name: getattr(self, f"_{name}") for name in ("number", "learned", "calls")},
            "steps": {name: getattr(self, name) for name in _STEPS},
            "version": self._newest[1],
            "cut": self.cut,
            "collectors": {
                str(place.given.collector): {
                    "state": place.state,
                    "orders": {str(i): order._asdict() for i, order in enumerate(place.orders)},
                }
                for place in self._places
            },
            "weights": {str(number): self._weights[number] for number in sorted(named)},
        }

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, before any collector has begun."""
        counts = {
            f"{'_' * (group == 'counts')}{name}": check(name, value, int, low=0, error=CorruptFileError)
            for group in ("counts", "steps")
            for name, value in state[group].items()
        }
        own = self._algorithm.learner.policy
        before = own.weights()
        try:  # whether they fit
            for weights in state["weights"].values():
                own.set_weights(weights)
        finally:
            own.set_weights(before)
        saved = {place: state["collectors"][str(place.given.collector)] for place in self._places}
        most = max(counts.get("_calls", self._calls), FIRST_FRAGMENT)
        orders = {place: self._saved_orders(each["orders"], state["weights"], most) for place, each in saved.items()}
        cut = check("cut", state["cut"], int, low=0, error=CorruptFileError)
        version = check("version", state["version"], int, low=-1, error=CorruptFileError)
        self.agent.set_state(state["player"])
        for place in self._places:
            place.state, place.orders, place.begun = saved[place]["state"], orders[place], False
        for name, value in counts.items():
            setattr(self, name, value)
        self.cut, self._newest = cut, (None, version)
        self._weights = {int(key): weights for key, weights in state["weights"].items()}

    def _saved_orders(self, saved: State, weights: State, most: int) -> deque[Order]:
        """The open orders of a checkpoint."""
        orders: deque[Order] = deque()
        for i in range(len(saved)):
            order = Order(**saved[str(i)])
            for name in ("number", "first_step", "learned", "version"):
                check(name, getattr(order, name), int, low=0, error=CorruptFileError)
            check("calls", order.calls, int, low=1, high=most, error=CorruptFileError)
            if str(order.version) not in weights:
                raise CorruptFileError(
                    f"the checkpoint has an order with weights {order.version}, which it does not hold: use a copy"
                )
            orders.append(order)
        return orders


def _range(numbers: range) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} … {numbers[-1]}"
