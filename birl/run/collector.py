"""A collector of steps in the run's own process."""

from __future__ import annotations

from typing import Self

from birl.envs import EndedEpisode, Step, Stepper
from birl.run.agent_core import AgentCore, MeasureTime, measure_nothing
from birl.types import Array, State


class Collector:
    """Collector that steps environments with the actions of an agent, which stores the steps.

    Args:
        stepper: stepper of the environments.
        agent: agent core that selects actions and stores steps.
        overlap: whether `interact` starts the next step before it returns, so that environments and caller work at the
            same time. Then use the collector as a context manager: its exit waits for a step that was started.
    """

    def __init__(self, stepper: Stepper, agent: AgentCore, overlap: bool = False) -> None:
        self.stepper, self.agent = stepper, agent
        self._overlap, self._in_step = overlap, False

    def attach(self, session: object) -> None:
        """Do nothing: a collector in the same process has nothing to report to a session."""

    def interact(self, step: int, most: int | None = None, measure: MeasureTime = measure_nothing) -> Step:
        """Make one step in every environment and store it.

        Args:
            step: number of steps counted so far.
            most: maximum number of environments whose step is stored; steps of the others are marked as invalid.
            measure: times acting and the environments.
        """
        stepper, agent = self.stepper, self.agent
        if self._overlap:
            if not self._in_step:
                self._start_step(self._select_action(step, measure))
            self._in_step = False
            with measure("environment_step"):
                result = stepper.step_wait()
        else:
            action = self._select_action(step, measure)
            with measure("environment_step"):
                result = stepper.step(action)
        agent.observe(result, most)
        if self._overlap:
            self._start_step(self._select_action(step + agent.uncounted_steps, measure))
        return result

    def _select_action(self, step: int, measure: MeasureTime) -> Array:
        stepper = self.stepper
        with measure("inference"):
            return self.agent.select_action(stepper.observation, stepper.is_first, stepper.reward, step)

    def _start_step(self, action: Array) -> None:
        self.stepper.step_async(action)
        self._in_step = True

    def count(self, step: int, most: int | None = None, measure: MeasureTime = measure_nothing) -> list[EndedEpisode]:
        """Count one more step, and make it first if necessary. For the arguments see `interact`.

        A vector environment makes several steps at once. They are counted one by one, so that updates, epochs and the
        end of a run happen at exact numbers of steps.

        Returns:
            The episodes that have ended.
        """
        episodes: list[EndedEpisode] = []
        while self.agent.uncounted_steps == 0:  # a step may consist of resets only
            made = self.interact(step, most, measure)
            episodes += made.ended.values()
        self.agent.uncounted_steps -= 1
        return episodes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for a step that was started and drop it, so that the environments can be used again."""
        if self._in_step:
            self._in_step = False
            self.stepper.step_discard()

    def get_state(self) -> State:
        """Return the state of environments and agent; stored steps are not included."""
        return {"stepper": self.stepper.get_state(), **self.agent.get_state()}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`, after the stored steps are restored."""
        stepper, agent = self.stepper, self.agent
        stepper.set_state(state["stepper"])
        agent.set_state(state)
        if stepper.lost:
            agent.close_episodes()
        elif agent.selected is not None:
            self._start_step(agent.selected.action)
