"""Playing in environments that birl steps."""

from __future__ import annotations

from typing import Self

from birl.envs import Step, Stepper
from birl.run.agent_core import AgentCore, MeasureTime, measure_nothing
from birl.types import Array, State


class Collector:
    """Lets a player act in environments and store the steps.

    Args:
        stepper: steps the environments.
        player: acts in them.
        overlap: whether `interact` begins the next step before it returns, so that the environments make it meanwhile.
            The collector is a context then: leaving it waits for a step that was begun.
    """

    def __init__(self, stepper: Stepper, agent: AgentCore, overlap: bool = False) -> None:
        self.stepper, self.agent = stepper, agent
        self._overlap, self._begun = overlap, False  # whether a step is under way

    def attach(self, session: object) -> None:
        """Do nothing: steps are made when they are counted, and a session needs no report of them."""

    def interact(self, step: int, most: int | None = None, measure: MeasureTime = measure_nothing) -> Step:
        """Make one step in every environment and store it.

        Args:
            step: steps counted so far.
            most: further steps are marked as invalid and left out.
            measure: ``measure(name)`` is a context that times its block.
        """
        stepper, agent = self.stepper, self.agent
        if self._overlap:
            if not self._begun:
                self._begin(self._select_action(step, measure))
            self._begun = False
            with measure("environment_step"):
                result = stepper.finish()
        else:
            action = self._select_action(step, measure)
            with measure("environment_step"):
                result = stepper.step(action)
        agent.observe(result, most)
        if self._overlap:
            self._begin(self._select_action(step + agent.uncounted_steps, measure))
        return result

    def _select_action(self, step: int, measure: MeasureTime) -> Array:
        stepper = self.stepper
        with measure("inference"):
            return self.agent.select_action(stepper.observation, stepper.is_first, stepper.reward, step)

    def _begin(self, action: Array) -> None:
        self.stepper.begin(action)
        self._begun = True

    def count(self, step: int, most: int | None = None, measure: MeasureTime = measure_nothing) -> list[float]:
        """Count one more step, making it first if need be; the arguments are those of `interact`.

        A vector environment makes several steps at once. They are counted one by one, so that updates, epochs and the
        end of a run fall on exact numbers of steps.

        Returns:
            Returns of the episodes that have ended.
        """
        ended: list[float] = []
        while self.agent.uncounted_steps == 0:  # a step may be only a reset
            ended += self.interact(step, most, measure).returns.values()
        self.agent.uncounted_steps -= 1
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for a step that was begun and forget it, so that others can use the environments."""
        if self._begun:
            self._begun = False
            self.stepper.abandon()

    def get_state(self) -> State:
        """Environments and player; stored steps are not included."""
        return {"stepper": self.stepper.get_state(), **self.agent.get_state()}

    def set_state(self, state: State) -> None:
        """Inverse of `get_state`; call it when the stored steps are back."""
        stepper, agent = self.stepper, self.agent
        stepper.set_state(state["stepper"])
        agent.set_state(state)
        if stepper.lost:
            agent.close_episodes()
        elif agent.selected is not None:
            self._begin(agent.selected.action)
