"""Online training reaches its goals within the steps that the README promises. The runs are `benchmarks.learning`'s."""

from __future__ import annotations

import pytest

from benchmarks.learning import TASKS, learn

pytestmark = pytest.mark.slow

SOLVED = [name for name, task in TASKS.items() if not task.control]
CONTROLS = [name for name, task in TASKS.items() if task.control]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", SOLVED)
def test_reaches_its_target(name: str, seed: int) -> None:
    outcome = learn(name, seed, print)
    print(outcome)
    assert outcome.solved, f"best mean return {outcome.best:.2f}, wanted {TASKS[name].target}"


@pytest.mark.filterwarnings("ignore::birl.errors.UnusedOptionWarning")  # the options of the tasks with a memory
@pytest.mark.parametrize("name", CONTROLS)
def test_without_recurrence_nothing_is_remembered(name: str) -> None:
    outcome = learn(name, 0, print)
    print(outcome)
    assert outcome.made == TASKS[name].limit
    assert outcome.best < 0.5  # 0 is chance; the mean of 100 episodes has a standard deviation of 0.1
