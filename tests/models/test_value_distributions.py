"""Returns against hand-computed numbers, and the projection against its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from birl.models.value_distributions import (
    CategoricalReturns,
    MeanReturns,
    QuantileReturns,
    _all_to_all,
    midpoints,
    project,
)

SUPPORT = torch.tensor([-1.0, 0.0, 1.0, 2.0])


def test_mean_backup_by_hand() -> None:
    target = MeanReturns(torch.tensor([10.0, 10.0])).backup(
        torch.tensor([1.0, 1.0]), torch.tensor([0.9, 0.0]), bonus=torch.tensor([-2.0, -2.0])
    )
    assert torch.allclose(target.values, torch.tensor([1.0 + 0.9 * 8.0, 1.0]))


def test_mean_loss_is_the_squared_error_and_huber_is_half_of_it_inside_delta() -> None:
    values = MeanReturns(torch.tensor([[1.0, 5.0], [0.0, 2.0]]))
    target = MeanReturns(torch.tensor([1.5, 2.0]))
    assert torch.allclose(values.td_loss(target), torch.tensor([[0.25, 9.0], [2.25, 0.0]]))
    assert torch.allclose(values.td_loss(target, delta=1.0), torch.tensor([[0.125, 2.5], [1.0, 0.0]]))


def test_mean_gather_min_mix_average() -> None:
    returns = MeanReturns(torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 9.0], [5.0, 1.0]]]))  # [N=2, B=2, A=2]
    assert torch.equal(returns.gather(torch.tensor([1, 0])).values, torch.tensor([[2.0, 3.0], [9.0, 5.0]]))
    assert torch.equal(returns.min().values, torch.tensor([[0.0, 2.0], [3.0, 1.0]]))
    assert torch.equal(returns.average().values, torch.tensor([[0.5, 5.5], [4.0, 2.5]]))
    mixed = returns.mix(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    assert torch.equal(mixed.values, torch.tensor([[1.5, 3.75], [4.5, 2.0]]))


def test_quantile_loss_by_hand() -> None:
    # errors (target - prediction): rows are predictions 0 and 3, columns targets 0.5 and 3
    returns = QuantileReturns(torch.tensor([[[0.0, 3.0]]]), torch.tensor([0.25, 0.75]))
    target = QuantileReturns(torch.tensor([[0.5, 3.0]]), torch.tensor([0.25, 0.75]))
    first = (0.25 * 0.125 + 0.25 * 2.5) / 2  # both errors positive: weight tau
    second = (0.25 * 2.0 + 0.75 * 0.0) / 2  # -2.5: weight |0.75 - 1|
    assert torch.allclose(returns.td_loss(target), torch.tensor([[first + second]]))
    wide = returns.td_loss(target, delta=2.0)  # kappa 2: L(0.5) = .125, L(3) = 4, L(-2.5) = 3, all divided by 2
    expected = (0.25 * (0.125 + 4.0) / 2 + 0.25 * 3.0 / 2) / 2
    assert torch.allclose(wide, torch.tensor([[expected]]))


def test_quantile_loss_sums_over_predicted_and_averages_over_target_quantiles() -> None:
    taus = torch.tensor([0.5])
    one = QuantileReturns(torch.zeros(1, 1, 1), taus)
    target = QuantileReturns(torch.ones(1, 1), taus)
    many = QuantileReturns(torch.zeros(1, 1, 5), taus.expand(5))
    many_targets = QuantileReturns(torch.ones(1, 7), taus.expand(7))
    assert torch.allclose(many.td_loss(target), 5 * one.td_loss(target))
    assert torch.allclose(one.td_loss(many_targets), one.td_loss(target))


def test_minimising_the_quantile_loss_finds_the_quantiles() -> None:
    taus = torch.tensor([0.1, 0.5, 0.9])
    target = QuantileReturns(torch.linspace(0.0, 100.0, 1001).unsqueeze(0), torch.zeros(1001))
    values = torch.full((1, 1, 3), 50.0, requires_grad=True)
    optimizer = torch.optim.Adam([values], lr=1.0)
    for _ in range(300):
        optimizer.zero_grad()
        QuantileReturns(values, taus).td_loss(target).sum().backward()
        optimizer.step()
    assert torch.allclose(values.detach().flatten(), 100.0 * taus, atol=1.5)


def test_quantile_taus_of_each_element_stay_with_it() -> None:
    taus = torch.tensor([[0.1, 0.9], [0.5, 0.5]])
    returns = QuantileReturns(torch.zeros(2, 2, 3, 2), taus).gather(torch.tensor([0, 2]))
    target = QuantileReturns(torch.ones(2, 1), torch.zeros(1))
    expected = 0.5 * taus.sum(-1)
    assert torch.allclose(returns.td_loss(target), expected.expand(2, 2))


@pytest.mark.parametrize("kind", ["quantile", "categorical"])
def test_min_takes_whole_members_with_the_lowest_mean(kind: str) -> None:
    if kind == "quantile":
        values = torch.tensor([[[0.0, 10.0], [1.0, 1.0]], [[4.0, 4.0], [0.0, 3.0]]])
        lowest: Tensor = QuantileReturns(values, torch.tensor([0.25, 0.75])).min().values
        assert torch.equal(lowest, torch.tensor([[4.0, 4.0], [1.0, 1.0]]))
        return
    logits = torch.tensor([[[9.0, 0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0, 9.0]]])
    assert torch.equal(CategoricalReturns(SUPPORT, logits).min().probs, logits[0].softmax(-1))


def test_min_of_discrete_returns_is_taken_for_each_action() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 4, 5, 6, generator=generator)  # [N, B, A, Q]
    returns = QuantileReturns(values, torch.rand(6, generator=generator))
    lowest = returns.min()
    assert torch.allclose(lowest.mean(), values.mean(-1).amin(0))
    action = torch.tensor([0, 4, 2, 2])
    assert torch.equal(lowest.gather(action).values, returns.gather(action).min().values)


def test_a_mixture_has_the_mean_and_the_shape_of_all_actions() -> None:
    """Its loss is the expected loss against the target of an action that is drawn."""
    torch.manual_seed(0)
    probs, reward, discount = torch.rand(5, 3).softmax(-1), torch.randn(5), torch.rand(5)
    taus, support = midpoints(4), torch.linspace(-2, 2, 7)
    kinds: Any = [
        (QuantileReturns(torch.randn(2, 5, 3, 4), taus), QuantileReturns(torch.randn(2, 5, 4), taus)),
        (CategoricalReturns(support, torch.randn(2, 5, 3, 7)), CategoricalReturns(support, torch.randn(2, 5, 7))),
    ]
    for returns, predicted in kinds:
        mixture = returns.min().mixture(probs)
        assert torch.allclose(mixture.mean(), (returns.min().mean() * probs).sum(-1), atol=1e-6)
        target, expected = mixture.backup(reward, discount, bonus=reward), torch.zeros(2, 5)
        for action in range(3):
            of_action = returns.min().gather(torch.full((5,), action)).backup(reward, discount, bonus=reward)
            expected += probs[:, action] * predicted.td_loss(of_action)
        assert torch.allclose(predicted.td_loss(target), expected, atol=1e-5)
    mean = MeanReturns(torch.randn(2, 5, 3)).min()
    assert torch.equal(mean.mixture(probs).mean(), mean.mix(probs).mean())


def test_a_pool_has_the_mean_and_the_shape_of_all_members() -> None:
    """Its loss is the expected loss against the target of a member that is drawn."""
    torch.manual_seed(0)
    reward, discount, taus, support = torch.randn(5), torch.rand(5), midpoints(4), torch.linspace(-2, 2, 7)
    kinds: Any = [
        (QuantileReturns(torch.randn(3, 5, 4), taus), QuantileReturns(torch.randn(2, 5, 4), taus)),
        (CategoricalReturns(support, torch.randn(3, 5, 7)), CategoricalReturns(support, torch.randn(2, 5, 7))),
    ]
    for returns, predicted in kinds:
        pool = returns.pooled()
        assert torch.allclose(pool.mean(), returns.mean().mean(0), atol=1e-6)
        members = [returns.members(torch.tensor([i])).min().backup(reward, discount) for i in range(3)]
        expected = sum(predicted.td_loss(each) for each in members) / 3
        assert torch.allclose(predicted.td_loss(pool.backup(reward, discount)), expected, atol=1e-5)
    mean = MeanReturns(torch.randn(3, 5))
    assert torch.equal(mean.pooled().mean(), mean.mean().mean(0))


def test_mix_keeps_the_mean_for_every_kind() -> None:
    generator = torch.Generator().manual_seed(1)
    raw, probs = torch.randn(2, 3, 4, 4, generator=generator), torch.rand(3, 4, generator=generator)
    probs = probs / probs.sum(-1, keepdim=True)
    for returns in (QuantileReturns(raw, torch.rand(4)), CategoricalReturns(SUPPORT, raw)):
        assert torch.allclose(returns.mix(probs).mean(), (returns.mean() * probs).sum(-1), atol=1e-6)


@pytest.mark.parametrize(
    ("atoms", "expected"),
    [
        ([-1.0, 0.0, 1.0, 2.0], [0.1, 0.2, 0.3, 0.4]),  # exactly on the points: nothing may be lost
        ([-0.5, 0.5, 1.5, 2.0], [0.05, 0.15, 0.25, 0.55]),
        ([-9.0, -9.0, 9.0, 9.0], [0.3, 0.0, 0.0, 0.7]),  # outside: to the ends
        ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]),  # a terminal state's reward
        ([0.25, 0.25, 0.25, 0.25], [0.0, 0.75, 0.25, 0.0]),
    ],
)
def test_projection_by_hand(atoms: list[float], expected: list[float]) -> None:
    probs = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert torch.allclose(project(probs, torch.tensor(atoms), SUPPORT), torch.tensor(expected), atol=1e-6)


def test_projection_equals_its_definition_and_keeps_mass_and_mean() -> None:
    generator = torch.Generator().manual_seed(2)
    support = torch.linspace(-10.0, 10.0, 51)
    probs = torch.randn(2, 64, 51, generator=generator).softmax(-1)
    atoms = torch.randn(64, 1, generator=generator) + 0.9 * support
    triangle = (1 - (atoms.clamp(-10, 10).unsqueeze(-1) - support).abs() / 0.4).clamp(0, 1)  # eq. 7
    projected = project(probs, atoms, support)
    assert torch.allclose(projected, (probs.unsqueeze(-2) @ triangle).squeeze(-2), atol=1e-5)
    assert torch.allclose(projected.sum(-1), torch.ones(2, 64), atol=1e-5)
    position = ((atoms + 10) / 0.4).clamp(0, 50).expand_as(probs)
    assert torch.allclose(_all_to_all(probs, position), projected, atol=1e-6)  # a GPU's way
    inside = project(probs, 0.5 * support, support)
    assert torch.allclose(inside @ support, probs @ (0.5 * support), atol=1e-4)


def test_categorical_backup_and_loss_by_hand() -> None:
    following = CategoricalReturns(SUPPORT, probabilities=torch.tensor([[0.0, 0.5, 0.5, 0.0]]))
    target = following.backup(torch.tensor([0.5]), torch.tensor([0.5]), bonus=torch.tensor([1.0]))
    # atoms 0 and 1 move to 0.5 + 0.5 * (z + 1) = 1 and 1.5
    assert torch.allclose(target.probs, torch.tensor([[0.0, 0.0, 0.75, 0.25]]))
    logits = torch.zeros(2, 1, 4)
    loss = CategoricalReturns(SUPPORT, logits).td_loss(target)
    assert loss.shape == (2, 1)
    assert torch.allclose(loss, torch.full((2, 1), 4.0).log())


def test_atoms_that_are_next_to_impossible_are_learned_all_the_same() -> None:
    """A logarithm that is clamped has no gradient there: a prediction that is surely wrong would stay so."""
    logits = torch.tensor([[[0.0, 100.0, 0.0, 0.0]]], requires_grad=True)
    target = CategoricalReturns(SUPPORT, probabilities=torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    loss = CategoricalReturns(SUPPORT, logits).td_loss(target)
    assert float(loss.detach()) == pytest.approx(100.0)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.allclose(gradient, torch.tensor([[[-1.0, 1.0, 0.0, 0.0]]]))


def test_targets_carry_no_gradient() -> None:
    reward, discount = torch.zeros(3), torch.ones(3)
    leaf = torch.randn(3, 4, requires_grad=True)
    assert not MeanReturns(leaf[:, 0]).backup(reward, discount).values.requires_grad
    assert not QuantileReturns(leaf, torch.rand(4)).backup(reward, discount).values.requires_grad
    assert not CategoricalReturns(SUPPORT, leaf).backup(reward, discount).probs.requires_grad


def test_blend_takes_shares_of_the_lowest_and_the_highest_member() -> None:
    """arXiv:1812.02900, eq. 13. Members are chosen by their means, not number by number."""
    means = MeanReturns(torch.tensor([[1.0, 5.0], [3.0, 4.0], [2.0, 0.0]]))
    assert torch.allclose(means.blend(0.75).values, torch.tensor([0.75 * 1.0 + 0.25 * 3.0, 0.25 * 5.0]))
    # means 2 and 1: the second member is the lower one, though its highest quantile is the highest of all
    quantiles = QuantileReturns(torch.tensor([[[2.0, 2.0]], [[-4.0, 6.0]]]), torch.tensor([0.25, 0.75]))
    assert torch.allclose(quantiles.blend(0.75).values, torch.tensor([[0.75 * -4.0 + 0.5, 0.75 * 6.0 + 0.5]]))
    low, high = torch.tensor([[0.5, 0.5, 0.0, 0.0]]), torch.tensor([[0.4, 0.0, 0.0, 0.6]])
    for given in ({"probabilities": torch.stack([high, low])}, {"logits": torch.stack([high, low]).log()}):
        blended = CategoricalReturns(SUPPORT, **given).blend(0.75)
        assert torch.allclose(blended.probs, 0.75 * low + 0.25 * high)
        assert float(blended.mean()) == pytest.approx(0.75 * -0.5 + 0.25 * 0.8)


def test_blend_of_one_member_is_that_member() -> None:
    probs = torch.tensor([[[0.1, 0.2, 0.3, 0.4]]])
    assert torch.equal(MeanReturns(torch.tensor([[1.0, 5.0]])).blend(0.75).values, torch.tensor([1.0, 5.0]))
    values = torch.tensor([[[2.0, 3.0]]])
    assert torch.equal(QuantileReturns(values, torch.tensor([0.25, 0.75])).blend(0.75).values, values[0])
    assert torch.equal(CategoricalReturns(SUPPORT, probabilities=probs).blend(0.75).probs, probs[0])


def test_gaps_by_hand() -> None:
    returns = MeanReturns(torch.tensor([[[1.0, 2.0, 9.0]], [[0.0, 4.0, 1.0]]]))  # means 0.5, 3, 5
    wanted = {0: 4.5, 1: 2.0, 2: 0.0}
    for action, gap in wanted.items():
        assert float(returns.gap(torch.tensor([action]))) == gap
    allowed = returns.among(torch.tensor([[True, True, False]]))
    assert float(allowed.gap(torch.tensor([0]))) == 2.5
    assert float(allowed.gap(torch.tensor([2]))) > 1e8


def test_boltzmann_policies_by_hand() -> None:
    values = torch.tensor([[[1.0, 2.0, 9.0]], [[0.0, 4.0, 1.0]]])
    weights = (torch.tensor([0.5, 3.0, 5.0]) / 2).exp()
    quantiles = QuantileReturns(torch.stack([values - 1, values + 1], -1), torch.tensor([0.25, 0.75]))
    for returns in (MeanReturns(values), quantiles):
        assert torch.allclose(returns.policy(2.0).probs, weights / weights.sum())
        allowed = returns.among(torch.tensor([[True, False, True]])).policy(2.0).probs
        assert torch.allclose(allowed, torch.tensor([[1.0, 0.0, 1.0]]) * weights / (weights[0] + weights[2]))


def test_boltzmann_policies_of_values_that_lie_far_apart() -> None:
    """Values of some hundred at Munchausen's temperature of 0.03: logarithms of softmaxes would not be finite."""
    policy = MeanReturns(torch.tensor([[[900.0, 100.0]]])).policy(0.03)
    assert torch.allclose(0.03 * policy.log_prob(torch.tensor([1])), torch.tensor([-800.0]))
    assert torch.equal(policy.probs, torch.tensor([[1.0, 0.0]])) and float(policy.entropy()) == 0.0
