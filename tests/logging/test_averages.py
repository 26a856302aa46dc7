"""Running means."""

from __future__ import annotations

import pytest
import torch

from birl.errors import CorruptFileError, NonFiniteError, StalledError
from birl.logging.averages import Averages


def test_means_of_tensors_and_numbers() -> None:
    averages = Averages()
    for step in range(1, 6):
        averages.add({"loss": torch.tensor(float(step), requires_grad=True)})
        if step % 2:
            averages.add({"actor_loss": torch.tensor(10.0 * step), "time": 0.5})
        if step == 3:
            averages.check(step)
    averages.check(5)
    assert averages.means() == {"loss": 3.0, "actor_loss": 30.0, "time": 0.5}
    averages.clear()
    assert averages.means() == {}


def test_values_are_copied() -> None:
    """The output of a captured graph is overwritten by the next replay."""
    averages, value = Averages(), torch.tensor(1.0)
    averages.add({"loss": value})
    value.fill_(3.0)
    averages.add({"loss": value})
    averages.check(2)
    assert averages.means() == {"loss": 2.0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_value_is_found_and_its_steps_are_named(bad: float) -> None:
    averages = Averages()
    for step in range(1, 201):
        averages.add({"fine": torch.tensor(1.0), "loss": torch.tensor(bad if step == 150 else 1.0)})
        if step == 100:
            averages.check(step)
    with pytest.raises(NonFiniteError, match="^loss became .* between step 101 and step 200"):
        averages.check(200)


def test_reading_the_state_changes_nothing() -> None:
    """Sums in float32 depend on where they are split; a checkpoint must not split them."""
    values = torch.rand(300)
    plain, saved = Averages(), Averages()
    for step, value in enumerate(values):
        plain.add({"loss": value})
        saved.add({"loss": value})
        if step % 7 == 0:
            other = Averages()
            other.set_state(saved.get_state())
            saved = other
    for averages in (plain, saved):
        averages.check(300)
    assert plain.means() == saved.means()


@pytest.mark.parametrize("count", [0, -1, 2.5, "3"])
def test_a_saved_count_that_cannot_be_is_refused(count: object) -> None:
    averages = Averages()
    averages.add({"loss": 1.0})
    state = averages.get_state()
    with pytest.raises(CorruptFileError, match="a count of steps"):
        averages.set_state({**state, "count": {"loss": count}})


def searched(averages: Averages, failed: list[int], step: int = 1) -> None:
    for each in failed:
        averages.add({"failed_search": torch.tensor(float(each))})
    averages.check(step)


def test_failed_searches_are_counted_over_epochs_and_checkpoints() -> None:
    averages = Averages()
    for failed in ([1] * 4, [0], [1] * 5, [], [1, 0, 1], [1] * 6):
        searched(averages, failed)
        averages.clear()
    averages.add({"failed_search": torch.tensor(1.0)})
    averages.check(1, flush=False)  # a checkpoint counts nothing twice
    other = Averages()
    other.set_state(averages.get_state())
    searched(other, [1, 1])
    with pytest.raises(StalledError, match="^10 line searches in a row failed, up to step 7"):
        searched(other, [1], 7)
    other.check(8)  # said once
    searched(other, [1] * 9)
    with pytest.raises(StalledError, match="^10 line searches"):
        searched(other, [1])


def test_a_count_of_searches_without_their_sum_is_refused() -> None:
    state = Averages().get_state()
    with pytest.raises(CorruptFileError, match="counts 3 line searches"):
        Averages().set_state({**state, "searches": 3})
