"""Risk measures: the paper's formulas, and that they touch nothing but choices."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import pytest
import torch

from birl.errors import ConfigError
from birl.models import (
    CPW,
    ContinuousQFunction,
    CVaR,
    DiscreteQFunction,
    IQNQFunctionFactory,
    Norm,
    Power,
    QFunctionFactory,
    QRQFunctionFactory,
    RiskMeasure,
    VectorEncoderFactory,
    Wang,
    set_acting,
)
from birl.spaces import Continuous, Discrete, MultiDiscrete
from birl.spaces.specs import Spec
from birl.types import Inputs

ENCODER, SPEC = VectorEncoderFactory([8]), Spec((4,), Discrete(3))
QR, IQN = QRQFunctionFactory(n_quantiles=4), IQNQFunctionFactory(n_quantiles=4, n_greedy_quantiles=8, embed_size=3)
MEASURES: tuple[RiskMeasure, ...] = (CVaR(), CVaR(0.1), CPW(), Wang(), Wang(0.75), Power(), Power(2.0), Norm())


def plainly(measure: Any, tau: float) -> float:
    """The formulas of section 3, in plain numbers."""
    if isinstance(measure, CVaR):
        return measure.eta * tau
    if isinstance(measure, CPW):
        above, below = tau**measure.eta, (1 - tau) ** measure.eta
        return above / math.pow(above + below, 1 / measure.eta)
    if isinstance(measure, Wang):
        return NormalDist().cdf(NormalDist().inv_cdf(tau) + measure.eta)
    if measure.eta >= 0:
        return tau ** (1 / (1 + abs(measure.eta)))
    return 1 - (1 - tau) ** (1 / (1 + abs(measure.eta)))


@pytest.mark.parametrize("measure", [each for each in MEASURES if not isinstance(each, Norm)], ids=str)
def test_formulas(measure: RiskMeasure) -> None:
    taus = torch.tensor([0.01, 0.2, 0.5, 0.9, 0.99], dtype=torch.float64)
    expected = torch.tensor([plainly(measure, float(tau)) for tau in taus], dtype=torch.float64)
    torch.testing.assert_close(measure.distort(taus), expected)
    torch.manual_seed(0)
    drawn = measure.draw((5, 2), torch.zeros(1))
    torch.manual_seed(0)
    torch.testing.assert_close(drawn, measure.distort(torch.rand(5, 2)))


def test_known_numbers() -> None:
    """CVaR(.25) of four quantiles is the lowest; to avoid risk lowers levels, to seek it raises them."""
    assert CVaR(0.25).masses(4).tolist() == [1, 0, 0, 0]
    torch.testing.assert_close(CVaR(0.5).masses(6), torch.tensor([2, 2, 2, 0, 0, 0]) / 6)
    torch.testing.assert_close(CVaR(0.3).levels(2), torch.tensor([0.075, 0.225]))
    half = torch.tensor([0.5], dtype=torch.float64)
    assert float(Wang(-0.75).distort(half)) < 0.5 < float(Wang(0.75).distort(half))
    assert float(Power(-2.0).distort(half)) == pytest.approx(1 - 0.5 ** (1 / 3))
    assert float(Power(2.0).distort(half)) == pytest.approx(0.5 ** (1 / 3))
    torch.testing.assert_close(Norm(2).masses(4), torch.tensor([1, 3, 3, 1]) / 8)  # a triangle


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_masses_are_shares_of_levels(measure: RiskMeasure) -> None:
    torch.manual_seed(0)
    drawn = measure.draw((400_000,), torch.zeros(1))
    counted = torch.histc(drawn, 7, 0.0, 1.0) / len(drawn)
    torch.testing.assert_close(measure.masses(7), counted, atol=4e-3, rtol=0)
    fixed = torch.histc(measure.levels(20_000), 7, 0.0, 1.0) / 20_000
    torch.testing.assert_close(measure.masses(7), fixed, atol=2e-4, rtol=0)
    assert float(measure.masses(7).sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("neutral", [CVaR(1.0), CPW(1.0), Wang(0.0), Power(0.0), Norm(1)], ids=str)
def test_neutral_measures(neutral: RiskMeasure) -> None:
    torch.testing.assert_close(neutral.masses(5), torch.full((5,), 0.2))
    torch.testing.assert_close(neutral.levels(5), torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]))


def test_a_risk_is_avoided_or_taken() -> None:
    """Quantiles of a sure 1, of a gamble with a higher mean, and of nothing."""
    critic = DiscreteQFunction(SPEC, ENCODER, QR)
    rows = torch.tensor([[1.0, 1, 1, 1], [-4, 0, 3, 7], [0, 0, 0, 0]])
    chosen = {}
    for measure in (None, CVaR(0.25), Wang(0.75), Power(-2.0)):
        critic = DiscreteQFunction(SPEC, ENCODER, replace(QR, risk=measure), 2)
        with torch.no_grad():
            for parameter in critic.head.parameters():
                parameter.zero_()
            critic.head.linear.bias += rows.flatten()  # type: ignore[operator, union-attr]
        returns = critic(Inputs(torch.randn(3, 4)))
        torch.testing.assert_close(returns.mean()[0, 0], rows.mean(-1))
        torch.testing.assert_close(returns.scores(), returns.mean())
        assert len(set(returns.best().tolist())) == 1
        chosen[type(measure).__name__] = int(returns.best()[0])
    assert chosen == {"NoneType": 1, "CVaR": 0, "Wang": 1, "Power": 0}


@pytest.mark.parametrize("head", [QR, IQN], ids=["qr", "iqn"])
def test_only_choices_know_of_risk(head: Any) -> None:
    """Values, levels and losses are those without it, bit for bit; masks count in both."""
    inputs = Inputs(torch.randn(6, 4))
    for acting in (True, False):
        found = []
        for risk in (None, CVaR(0.1)):
            torch.manual_seed(0)
            critic = DiscreteQFunction(SPEC, ENCODER, replace(head, risk=risk), 2)
            set_acting(critic, acting)
            torch.manual_seed(1)
            found.append(critic(inputs))
        plain, risky = found
        torch.testing.assert_close(risky.values, plain.values, rtol=1e-6, atol=1e-6)
        assert torch.equal(risky.taus, plain.taus), "the levels of values and losses are distorted"
        torch.testing.assert_close(risky.mean(), plain.mean())
        assert plain.preference is None and not torch.allclose(risky.preferences(), plain.preferences())
        only = torch.tensor([False, True, False])
        assert risky.among(only).best().tolist() == [1] * 6
        taken = risky.gather(risky.best())
        assert taken.preference is None and taken.mean().shape == (2, 6)


def test_acting_uses_distorted_levels() -> None:
    """Of IQN: the means at ``beta`` of the middles, the same each time; and QR's from its own quantiles."""
    critic = DiscreteQFunction(SPEC, ENCODER, replace(IQN, risk=CPW()), 2)
    set_acting(critic, True)
    inputs = Inputs(torch.randn(6, 4))
    head: Any = critic.head
    features = critic.encode(inputs)
    levels = torch.tensor([plainly(CPW(), (i + 0.5) / 8) for i in range(8)])
    expected = torch.stack([head._quantiles(features, level[None])[..., 0] for level in levels]).mean(0)
    torch.testing.assert_close(critic(inputs).preferences(), expected)
    assert torch.equal(critic(inputs).preferences(), critic(inputs).preferences())


def test_own_levels_for_choosing() -> None:
    """They are drawn after the levels of values, and only where a choice can be made."""
    critic = DiscreteQFunction(SPEC, ENCODER, replace(IQN, n_choice_quantiles=5), 2)
    inputs, action = Inputs(torch.randn(6, 4)), torch.zeros(6, dtype=torch.int64)
    torch.manual_seed(0)
    returns = critic(inputs)
    torch.manual_seed(0)
    taus, others = torch.rand(6, 4), torch.rand(6, 5)
    assert torch.equal(returns.taus, taus)
    head: Any = critic.head
    torch.testing.assert_close(returns.preferences(), head._quantiles(critic.encode(inputs), others).mean(-1))
    torch.manual_seed(0)
    of_action = critic(inputs, action)
    assert torch.equal(of_action.taus, taus) and torch.equal(torch.rand(6, 5), others), "levels that were not asked for"


def test_several_choices_are_made_by_risk_branch_by_branch() -> None:
    spec = Spec((4,), MultiDiscrete((2, 3)))
    critic = DiscreteQFunction(spec, ENCODER, replace(QR, risk=CVaR(0.25)), 1)
    returns = critic(Inputs(torch.randn(5, 4)))
    inner: Any = returns.inner  # type: ignore[attr-defined]
    torch.testing.assert_close(returns.preferences()[..., 0, :2], inner.values[..., 0, :2, 0])
    torch.testing.assert_close(returns.preferences()[..., 1, :], inner.values[..., 1, :, 0])


def test_what_makes_no_sense_is_refused() -> None:
    for wrong, says in (
        (lambda: CVaR(0.0), "CVaR.eta is 0.0"),
        (lambda: CVaR(1.5), "CVaR.eta is 1.5"),
        (lambda: CPW(0.1), "CPW.eta is 0.1"),
        (lambda: Wang(math.inf), "Wang.eta is inf"),
        (lambda: Norm(0), "Norm.k is 0"),
        (lambda: QRQFunctionFactory(risk=0.3), "QRQFunctionFactory.risk is 0.3"),  # type: ignore[arg-type]
        (lambda: QRQFunctionFactory(risk="cvarr"), "did you mean 'cvar'"),  # type: ignore[arg-type]
        (lambda: IQNQFunctionFactory(n_choice_quantiles=0), "n_choice_quantiles is 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            wrong()
    for head in (replace(QR, risk=CVaR()), replace(IQN, risk=CVaR()), replace(IQN, n_choice_quantiles=3)):
        with pytest.raises(ConfigError, match="which is for the selection of discrete actions"):
            ContinuousQFunction(Spec((4,), Continuous(2)), ENCODER, head)


@pytest.mark.parametrize("measure", MEASURES, ids=str)
def test_files(measure: RiskMeasure) -> None:
    head = replace(IQN, risk=measure)
    assert QFunctionFactory.deserialize(head.serialize()) == head
    assert QRQFunctionFactory(risk="cvar").risk == CVaR()  # type: ignore[arg-type]
