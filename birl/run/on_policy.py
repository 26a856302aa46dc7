"""On-policy training in environments."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Unpack

import numpy as np

from birl.envs import Step, reset_generator
from birl.errors import CorruptFileError, ResumeError
from birl.files.restore import checked_array
from birl.run.collector import Player
from birl.run.evaluate import checked_environments, online_evaluators
from birl.run.identity import environment_settings, run_settings
from birl.run.options import OnlineOptions, checked_online_options
from birl.run.protocols import Environment, Rollout, Trainable
from birl.run.session import Session
from birl.spaces import check_actions
from birl.types import State, Tree, tree_map


class RolloutCollector(Player):
    """Collects the next rollout, row by row.

    Args:
        algorithm: gives the actor; its configuration gives the length of a rollout.
        env: environment or vector environment.
        seed: fixes the environment's resets.
    """

    def __init__(self, algorithm: Trainable, env: Environment, seed: int | None = None) -> None:
        super().__init__(algorithm, env, reset_generator(env, seed), greedy=False)
        config: Any = algorithm.config
        self._length = config.rollout_length
        self._rows: list[dict[str, Tree]] = []
        self.cut = False  # whether the rollout taken last is shorter than others, as the end of a run may be

    def interact(self, most: int) -> Step:
        """Make one step in every environment and store it; those beyond ``most`` are marked as invalid."""
        row = {"observation": self.stepper.observation, "is_first": self.stepper.is_first}
        row["action"], given = self._act(clip=True)
        check_actions(self.stepper.actions, given)
        step = self.stepper.step(given)
        beyond = np.flatnonzero(step.valid)[most:]
        step.valid[beyond] = False
        self.cut = len(beyond) > 0
        if step.valid.any():  # else only resets: no row
            row |= {name: value for name, value in step._asdict().items() if name != "returns"}
            self._rows.append(tree_map(np.array, {**row, "extra": self._actor.extra}))
        return step

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return len(self._rows) == self._length

    def take(self) -> Rollout:
        """The rollout so far; the next one begins."""
        rollout = Rollout(**self._columns())
        self.cut = self.cut or not self.full
        self._rows = []
        return rollout

    def _columns(self) -> dict[str, Tree]:
        try:
            return tree_map(lambda *leaves: np.stack(leaves), *self._rows)  # type: ignore[no-any-return]
        except (ValueError, KeyError) as error:
            raise CorruptFileError(
                f"the rollout began with rows of other shapes ({error}), from a damaged checkpoint: use a copy"
            ) from error

    def close_episodes(self) -> None:
        for row in self._rows[-1:]:
            row["truncated"] |= row["valid"] & ~row["terminated"]

    def get_state(self) -> State:
        """Environment, actor, count and the rollout so far."""
        columns = self._columns() if self._rows else {}
        return {**super().get_state(), "rows": len(self._rows), "columns": columns, "cut": self.cut}

    def set_state(self, state: State) -> None:
        if state["rows"] and "extra" not in state["columns"]:
            raise ResumeError(
                "the checkpoint holds a part of a rollout written by an earlier build of birl 0.1, which this build "
                "cannot read: start anew in another folder, or finish the run with that build"
            )
        if state["rows"]:
            self._check(state["rows"], state["columns"])
        self._rows = [tree_map(lambda column, i=i: np.array(column[i]), state["columns"]) for i in range(state["rows"])]
        self.cut = state.get("cut", False)  # earlier builds of 0.1 kept none
        super().set_state(state)

    def _check(self, rows: int, columns: dict[str, Any]) -> None:
        """Raise an error if saved rows are not those of these environments."""
        stepper, lead = self.stepper, (rows, self.stepper.n)
        flags = dict.fromkeys(("is_first", "terminated", "truncated", "valid"), stepper.is_first)
        seen = {"observation": stepper.observation, "next_observation": stepper.observation}
        for name, like in {**seen, **flags, "reward": stepper.reward}.items():
            tree_map(lambda x, y, name=name: checked_array(y, (rows, *x.shape), x.dtype, name), like, columns[name])
        for name, column in {"action": columns["action"], **columns["extra"]}.items():
            if np.shape(column)[:2] != lead or (name == "action" and np.shape(column)[2:] != stepper.actions.shape):
                raise CorruptFileError(
                    f"the checkpoint has {rows} rows of a rollout with {stepper.n} environments, but {name!r:.80} "
                    f"of shape {np.shape(column)}: restore it from a copy"
                )
            if name in ("action", "policy_action") and stepper.actions.discrete:
                check_actions(stepper.actions, np.asarray(column))


def on_policy_fitter(
    algorithm: Trainable,
    env: Environment,
    n_steps: int = 1_000_000,
    **options: Unpack[OnlineOptions],
) -> Generator[tuple[int, dict[str, float]], None, None]:
    """Train on the policy's own rollouts, one epoch per iteration.

    Args:
        algorithm: on-policy algorithm; its networks are made if they do not exist.
        env: environment, or vector environment in any autoreset mode, or the name of one. It is given actions clipped
            to its bounds; the learner sees them as they were sampled.
        n_steps: number of environment steps over all environments that are trained on, exactly: the last rollout may be
            shorter.
        **options: see `OnlineOptions`.

    Yields:
        Number of the epoch (from 1) and its metrics. Losses are means over the rollouts of the epoch.
    """
    n_steps, given = checked_online_options(n_steps, options)
    env = checked_environments(env, given)
    settings = run_settings(algorithm, "on_policy", **environment_settings(env, given["seed"]))
    algorithm.build_with_env(env)
    algorithm.learner.begin_run(None, n_steps)
    collector = RolloutCollector(algorithm, env, given["seed"])
    evaluators = online_evaluators(given)
    name = f"{type(algorithm).__name__}_online"
    session = Session(algorithm, name, n_steps, {"rollout": collector}, settings, evaluators, None, given)

    if collector.cut and session.left:
        session.differs("its last rollout was cut short by the end of the run")

    def step() -> None:
        with session.time("step"):
            for value in collector.count(session.left):
                session.averages.add({"rollout_return": value})
            if collector.pending == 0 and (collector.full or session.left == 1):
                session.learn(collector.take())
        session.tick()

    yield from session.epochs(step)
