"""Recursions over time against sums written from the papers, and against numbers computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from birl.errors import ConfigError, ShapeError
from birl.losses import (
    backward_recursion,
    finished,
    generalized_advantage,
    lambda_returns,
    n_step_returns,
    retrace,
    upgo_returns,
    vtrace,
)

GAMMA, LAM = 0.9, 0.7


@dataclass
class Problem:
    """Steps ``[T, B]`` of episodes that terminate, are cut by time limits or go on, with rows of padding among them."""

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    ended: Tensor
    valid: Tensor
    ratio: Tensor

    @property
    def discount(self) -> Tensor:
        return GAMMA * (1 - self.terminated)

    @property
    def steps(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.reward, self.value, self.next_value, self.discount, self.ended

    def rest(self, t: int, b: int) -> range:
        """The steps from ``t`` to the last one of its episode, or of the rows."""
        last = t
        while last + 1 < len(self.ended) and not self.ended[last, b]:
            last += 1
        return range(t, last + 1)


def problem(seed: int = 0, rows: int = 37, lanes: int = 5) -> Problem:
    generator = torch.Generator().manual_seed(seed)

    def draw(*more: int) -> Tensor:
        return torch.randn(*more, rows, lanes, generator=generator, dtype=torch.float64)

    chance = torch.rand(rows, lanes, generator=generator)
    terminated, truncated = (chance < 0.12).double(), ((chance > 0.12) & (chance < 0.22)).double()
    over = torch.maximum(terminated, truncated)
    valid = torch.ones(rows, lanes, dtype=torch.float64)
    valid[1:] -= over[:-1] * (torch.rand(rows - 1, lanes, generator=generator) < 0.5)  # the reset rows of some episodes
    ended = torch.maximum(over, 1 - valid)
    value, last = draw(), draw()
    next_value = torch.cat((value[1:], last[-1:]))
    next_value = torch.where(ended > 0, last, next_value)
    rubbish = 1e6 * draw()
    reward, value = (torch.where(valid > 0, x, rubbish) for x in (draw(), value))
    return Problem(reward, value, next_value, terminated * valid, ended, valid, draw().exp())


def equal(found: Tensor, p: Problem, reference: Callable[[int, int], float]) -> None:
    rows, lanes = p.reward.shape
    assert found.shape == p.reward.shape and torch.isfinite(found).all()
    checked = 0
    for t in range(rows):
        for b in range(lanes):
            if p.valid[t, b]:
                assert found[t, b].item() == pytest.approx(reference(t, b), rel=1e-9, abs=1e-9), (t, b)
                checked += 1
    assert checked > rows * lanes / 2


def delta(p: Problem, k: int, b: int) -> float:
    return float(p.reward[k, b] + p.discount[k, b] * p.next_value[k, b] - p.value[k, b])


def return_after(p: Problem, t: int, b: int, n: int) -> float:
    """``G_{t:t+n}``, Sutton and Barto eq. 7.1: ``n`` rewards, and the value of where they led."""
    last = t + n - 1
    rewards = sum(GAMMA ** (k - t) * float(p.reward[k, b]) for k in range(t, last + 1))
    return rewards + GAMMA ** (n - 1) * float(p.discount[last, b] * p.next_value[last, b])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 16, 33])
def test_the_recursion_is_that_of_a_plain_loop(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    a = torch.randn(3, rows, 2, generator=generator, dtype=torch.float64)
    b = torch.rand(rows, 2, generator=generator, dtype=torch.float64) * 1.2
    x, expected = torch.zeros(3, 2, dtype=torch.float64), []
    for t in reversed(range(rows)):
        x = a[:, t] + b[t] * x
        expected.append(x)
    torch.testing.assert_close(backward_recursion(a, b), torch.stack(expected[::-1], 1))


def test_a_bound_on_the_reach_changes_nothing_where_it_holds() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(40, 3, generator=generator), torch.rand(40, 3, generator=generator)
    b[4::5] = 0.0  # five rows each
    assert torch.equal(backward_recursion(a, b, 5), backward_recursion(a, b))
    assert not torch.equal(backward_recursion(a, b, 4), backward_recursion(a, b))


def test_vanishing_and_exact_zero_factors_keep_float32_precise() -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(2048, 4, generator=generator)
    for scale in (0.999, 0.95, 1e-3, 1e-30):
        b = torch.rand(2048, 4, generator=generator) * scale
        b[torch.rand(2048, 4, generator=generator) < 0.02] = 0.0
        x, exact = torch.zeros(4, dtype=torch.float64), []
        for t in reversed(range(2048)):
            x = a[t].double() + b[t].double() * x
            exact.append(x)
        torch.testing.assert_close(backward_recursion(a, b).double(), torch.stack(exact[::-1]), rtol=1e-6, atol=1e-6)
    factor = torch.tensor(0.999).double()
    long = backward_recursion(torch.ones(2048, 1), torch.full((2048, 1), 0.999))[0].double()
    torch.testing.assert_close(long, (1 - factor**2048) / (1 - factor).reshape(1), rtol=2e-5, atol=0)


def test_generalized_advantage_is_the_sum_of_equation_16() -> None:
    p = problem()
    found = generalized_advantage(*p.steps, LAM)
    equal(found, p, lambda t, b: sum((GAMMA * LAM) ** (k - t) * delta(p, k, b) for k in p.rest(t, b)))


def test_lambda_returns_are_the_weighted_n_step_returns() -> None:
    p = problem(1)
    found = lambda_returns(p.reward, p.next_value, p.discount, p.ended, LAM)

    def reference(t: int, b: int) -> float:  # Sutton and Barto eq. 12.3
        most = len(p.rest(t, b))
        partial = (1 - LAM) * sum(LAM ** (n - 1) * return_after(p, t, b, n) for n in range(1, most))
        return partial + LAM ** (most - 1) * return_after(p, t, b, most)

    equal(found, p, reference)
    advantage = generalized_advantage(*p.steps, LAM)
    torch.testing.assert_close((advantage + p.value)[p.valid > 0], found[p.valid > 0])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 100])
def test_n_step_returns_end_with_the_episode(n: int) -> None:
    p = problem(2)
    found = n_step_returns(p.reward, p.next_value, p.discount, p.ended, n)
    equal(found, p, lambda t, b: return_after(p, t, b, min(n, len(p.rest(t, b)))))


def test_returns_of_one_and_of_all_steps_are_those_of_lambda_zero_and_one() -> None:
    p = problem(3)
    data = p.reward, p.next_value, p.discount, p.ended
    torch.testing.assert_close(n_step_returns(*data, 1), lambda_returns(*data, 0.0))
    torch.testing.assert_close(n_step_returns(*data, 99), lambda_returns(*data, 1.0))


def test_retrace_is_the_sum_of_equation_3() -> None:
    p = problem(4)
    trace = LAM * p.ratio.clamp(max=1.0)
    found = retrace(*p.steps, trace)

    def reference(t: int, b: int) -> float:
        later = (
            GAMMA ** (k - t) * prod(float(trace[i, b]) for i in range(t + 1, k + 1)) * delta(p, k, b)
            for k in p.rest(t, b)
        )
        return float(p.value[t, b]) + sum(later)

    equal(found, p, reference)
    opc = retrace(*p.steps, 1.0)  # ACER's Q_opc: with traces of 1 and V = Q it is the return of all steps
    torch.testing.assert_close(opc[p.valid > 0], lambda_returns(p.reward, *p.steps[2:])[p.valid > 0])


def test_vtrace_is_the_sum_of_equation_1() -> None:
    p = problem(5)
    found = vtrace(*p.steps, p.ratio, LAM, clip_rho=1.1, clip_c=0.8, clip_advantage=0.9)

    def target(t: int, b: int) -> float:
        later = (
            GAMMA ** (k - t)
            * prod(LAM * min(0.8, float(p.ratio[i, b])) for i in range(t, k))
            * min(1.1, float(p.ratio[k, b]))
            * delta(p, k, b)
            for k in p.rest(t, b)
        )
        return float(p.value[t, b]) + sum(later)

    def advantage(t: int, b: int) -> float:
        goes_on = len(p.rest(t, b)) > 1
        following = target(t + 1, b) if goes_on else float(p.next_value[t, b])
        expected = float(p.reward[t, b] + p.discount[t, b] * following - p.value[t, b])
        return min(0.9, float(p.ratio[t, b])) * expected

    equal(found.target, p, target)
    equal(found.advantage, p, advantage)
    on_policy = vtrace(*p.steps, torch.ones_like(p.ratio), LAM).target
    expected = lambda_returns(p.reward, *p.steps[2:], LAM)
    torch.testing.assert_close(on_policy[p.valid > 0], expected[p.valid > 0])


def test_upgo_follows_the_episode_while_it_goes_better_than_expected() -> None:
    p = problem(6)

    def reference(t: int, b: int) -> float:
        n, rest = 1, p.rest(t, b)
        while n < len(rest) and delta(p, t + n, b) >= 0:
            n += 1
        return return_after(p, t, b, n)

    equal(upgo_returns(*p.steps), p, reference)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)


# three steps with rewards 1, 2, 4, values 10, 20, 30 and 40 at the end, a discount of 1/2
HAND: dict[str, Any] = {
    "reward": column(1, 2, 4),
    "value": column(10, 20, 30),
    "next_value": column(20, 30, 40),
    "discount": column(0.5, 0.5, 0.5),
    "ended": column(0, 0, 0),
}


def hand(*without: str, **changes: Tensor) -> dict[str, Any]:
    return {name: x for name, x in {**HAND, **changes}.items() if name not in without}


def test_numbers_by_hand() -> None:
    # deltas: 1 + 10 - 10 = 1, 2 + 15 - 20 = -3, 4 + 20 - 30 = -6; lambda 1/2: A_2 = -6, A_1 = -4.5, A_0 = -0.125
    assert generalized_advantage(**HAND, gae_lambda=0.5)[:, 0].tolist() == [-0.125, -4.5, -6.0]
    # all steps: 24, 14, 8; two steps: 1 + 1 + 7.5 = 9.5, 14, 24
    assert lambda_returns(**hand("value"))[:, 0].tolist() == [8.0, 14.0, 24.0]
    assert n_step_returns(**hand("value"), n=2)[:, 0].tolist() == [9.5, 14.0, 24.0]
    assert lambda_returns(**hand("value"), trace=0.5)[:, 0].tolist() == [9.875, 15.5, 24.0]
    # Q + delta + 1/2 c_{t+1} (next row's excess): 30 - 6, 20 - 3 - 1/2 * 1/2 * 6, 10 + 1 - 1/2 * 1 * 4.5
    q = {**hand("value"), "q": HAND["value"]}
    assert retrace(**q, trace=column(9, 1, 0.5))[:, 0].tolist() == [8.75, 15.5, 24.0]
    # ratios 2, 1/2, 1, cut at 1: 30 - 6; 20 + 1/2 (-3) + 1/2 1/2 (-6) = 17; 10 + 1 + 1/2 (-3) = 9.5
    found = vtrace(**HAND, ratio=column(2, 0.5, 1))
    assert found.target[:, 0].tolist() == [9.5, 17.0, 24.0]
    # 1 + 8.5 - 10; 1/2 (2 + 12 - 20); 4 + 20 - 30
    assert found.advantage[:, 0].tolist() == [-0.5, -3.0, -6.0]
    # neither later step is as good as expected: one step each; with V(s_1) = 10 the second step is
    assert upgo_returns(**HAND)[:, 0].tolist() == [11.0, 17.0, 24.0]
    assert upgo_returns(**hand(value=column(10, 10, 30)))[:, 0].tolist() == [9.5, 17.0, 24.0]


def test_a_termination_is_not_bootstrapped_and_a_time_limit_is() -> None:
    # the second step ends its episode; the third is another episode's
    terminated = hand(discount=column(0.5, 0, 0.5), ended=column(0, 1, 0))
    truncated = hand(next_value=column(20, 100, 40), ended=column(0, 1, 0))
    without = [{name: x for name, x in data.items() if name != "value"} for data in (terminated, truncated)]
    assert lambda_returns(**without[0])[:, 0].tolist() == [2.0, 2.0, 24.0]
    assert lambda_returns(**without[1])[:, 0].tolist() == [27.0, 52.0, 24.0]
    assert generalized_advantage(**terminated, gae_lambda=1.0)[:, 0].tolist() == [-8.0, -18.0, -6.0]
    assert generalized_advantage(**truncated, gae_lambda=1.0)[:, 0].tolist() == [17.0, 32.0, -6.0]
    assert vtrace(**truncated, ratio=torch.ones(3, 1).double()).target[:, 0].tolist() == [27.0, 52.0, 24.0]
    assert vtrace(**truncated, ratio=torch.ones(3, 1).double()).advantage[:, 0].tolist() == [17.0, 32.0, -6.0]


def test_rewards_to_go_count_each_reward_once() -> None:
    """PFRL's REINFORCE counts the last one twice, and makes [210, 200, 100] of these."""
    found = lambda_returns(column(1, 10, 100), column(0, 0, 0), column(1, 1, 1), column(0, 0, 1))
    assert found[:, 0].tolist() == [111.0, 110.0, 100.0]


def test_ensembles_come_in_front_and_gradients_flow() -> None:
    p = problem(7)
    values = torch.stack((p.value, 2 * p.value)).requires_grad_()
    nexts = torch.stack((p.next_value, 2 * p.next_value))
    found = retrace(p.reward, values, nexts, p.discount, p.ended, p.ratio.clamp(max=1.0))
    alone = retrace(p.reward, 2 * p.value, 2 * p.next_value, p.discount, p.ended, p.ratio.clamp(max=1.0))
    torch.testing.assert_close(found[1], alone)
    (gradient,) = torch.autograd.grad(found[0, 0].sum(), values)
    first = torch.stack([torch.tensor([len(p.rest(0, b)) > 1 for b in range(5)])])
    assert ((gradient[0, 1] != 0) == first[0]).all() and not gradient[1].any()


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ShapeError, match="value has shape"):
        generalized_advantage(**hand(value=torch.zeros(3, 1, 1)), gae_lambda=0.9)
    with pytest.raises(ShapeError, match=r"\[T, B\]"):
        lambda_returns(torch.zeros(3), torch.zeros(3), torch.zeros(3), torch.zeros(3))
    columns = [torch.zeros(3, 1)] * 4
    with pytest.raises(ShapeError, match=r"trace has shape \(3,\)"):
        lambda_returns(*columns, trace=torch.ones(3))
    with pytest.raises(ShapeError, match=r"trace has shape \(3, 1, 1\)"):
        retrace(columns[0], *columns, trace=torch.ones(3, 1, 1))
    with pytest.raises(ConfigError, match="n is 0"):
        n_step_returns(*columns, n=0)


def test_every_function_compiles_in_one_graph() -> None:
    p = problem(8)

    def everything(*steps: Tensor) -> tuple[Tensor, ...]:
        reward, value, next_value, discount, ended, ratio = steps
        tail = next_value, discount, ended
        return (
            generalized_advantage(reward, value, *tail, LAM),
            lambda_returns(reward, *tail, LAM),
            n_step_returns(reward, *tail, 3),
            retrace(reward, value, *tail, ratio),
            *vtrace(reward, value, *tail, ratio),
            upgo_returns(reward, value, *tail),
        )

    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for own, other in zip(compiled(*p.steps, p.ratio), everything(*p.steps, p.ratio), strict=True):
        torch.testing.assert_close(own, other)


def test_finished_rows_hold_the_rest_of_their_episode() -> None:
    """Ends in row 1, padding in row 2, an end in row 4, and the second lane goes on after the last row."""
    ended = torch.tensor([[0, 1, 1, 0, 1, 0], [0, 0, 1, 0, 0, 0]], dtype=torch.float32).T
    weight = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]], dtype=torch.float32).T
    assert finished(ended, weight).T.tolist() == [[1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0]]
