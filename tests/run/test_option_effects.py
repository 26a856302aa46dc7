"""Every option of training in an environment has an effect: a run with it differs as documented."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import birl.seeding
from birl.acting.explorers import Explorer
from birl.dataset import create_infinite_replay_buffer
from birl.logging import NoopAdapterFactory
from birl.run.online import online_fitter
from birl.run.options import ONLINE_DEFAULTS
from run.fakes import Drift, FakeLearner


class Still(FakeLearner):
    """Its greedy action is 0."""

    def actor(self, *, greedy: bool, n: int = 1) -> Any:
        actor = super().actor(greedy=greedy, n=n)

        class Zero:
            extra: dict[str, Any] = {}  # noqa: RUF012  of every step
            get_state, set_state = actor.get_state, actor.set_state

            def __call__(self, observation: Any, is_first: Any, reward: Any) -> Any:
                return np.zeros(n, np.int64)

        return Zero()


class Counted(Drift):
    """Episodes of 4 steps; counts them, and the actions other than 0."""

    def __init__(self) -> None:
        super().__init__(limit=4, end=0.0)
        self.made = self.others = 0

    def step(self, action: Any) -> Any:
        self.made, self.others = self.made + 1, self.others + int(action != 0)
        return super().step(action)


class Asked(Explorer):
    """Records the steps at which it is called."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def sample(self, algo: Any, x: Any, step: int) -> Any:
        self.steps.append(step)
        return np.zeros(len(x), np.int64)


def facts(**options: Any) -> dict[str, Any]:
    """Return facts about a run of 40 steps."""
    birl.seeding.seed(1)
    learner, evaluation, explorer, env = Still(), Counted(), Asked(), Drift()
    buffer, updated = create_infinite_replay_buffer(env=env), []
    trials = {} if "eval_n_steps" in options else {"eval_n_trials": 3}
    given = {"eval_env": evaluation, "n_steps_per_epoch": 40, **trials, **options}
    given |= {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    given["callback"] = lambda algorithm, epoch, step: updated.append(step) if learner.grad_step else None
    ((_, metrics),) = online_fitter(learner, env, buffer, explorer, 40, **given)
    return {
        "updates": learner.grad_step,
        "first update": updated[0],
        "random steps": explorer.steps[0],
        "evaluation steps": evaluation.made,
        "random evaluation": evaluation.others > 0,
        "evaluation metrics": sum(name.startswith("evaluation") for name in metrics),
        "first reset": env.seeds[0],
    }


EFFECTS = [
    ("update_interval", 8, "updates", 37, 5),
    ("n_updates", 3, "updates", 37, 111),
    ("update_start_step", 20, "first update", 4, 21),
    ("random_steps", 10, "random steps", 0, 10),
    ("eval_n_trials", 5, "evaluation steps", 12, 20),
    ("eval_n_steps", 7, "evaluation steps", 12, 7),
    ("eval_epsilon", 1.0, "random evaluation", False, True),
    ("eval_statistics", True, "evaluation metrics", 1, 6),
]


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return facts()


@pytest.mark.parametrize(("option", "value", "fact", "without", "expected"), EFFECTS, ids=[row[0] for row in EFFECTS])
def test_options_have_an_effect(
    option: str, value: Any, fact: str, without: Any, expected: Any, plain: dict[str, Any]
) -> None:
    assert plain[fact] == without
    assert facts(**{option: value})[fact] == expected


def test_the_seed_fixes_the_resets() -> None:
    first, again, other = (facts(seed=seed)["first reset"] for seed in (7, 7, 8))
    assert first == again != other


def test_no_option_is_forgotten() -> None:
    """Other options are tested in other files: overlapping steps, GAIL, workers and collectors."""
    tested_in_other_files = {"overlap", "eval_env", "demonstrations", "workers", "cluster", "eval_sample"}
    assert {row[0] for row in EFFECTS} | {"seed"} == ONLINE_DEFAULTS.keys() - tested_in_other_files
