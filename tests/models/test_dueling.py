"""Dueling heads: the value and the advantages are distinguished, by atom and by quantile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from birl.errors import ConfigError
from birl.models import (
    C51QFunctionFactory,
    ContinuousQFunction,
    DiscreteQFunction,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    PixelEncoderFactory,
    QFunctionFactory,
    QRQFunctionFactory,
    VectorEncoderFactory,
    set_acting,
)
from birl.models.dueling import DuelingStreams
from birl.run.checkpoint import differences
from birl.spaces import Continuous, Discrete, MultiDiscrete
from birl.spaces.specs import Spec
from birl.types import Inputs

ENCODER = VectorEncoderFactory([8])
SPEC = Spec((4,), Discrete(3))
HEADS: tuple[Any, ...] = (
    MeanQFunctionFactory(),
    QRQFunctionFactory(n_quantiles=5),
    IQNQFunctionFactory(n_quantiles=5, n_greedy_quantiles=4, embed_size=6),
    C51QFunctionFactory(n_atoms=11),
)
every_head = pytest.mark.parametrize("head", HEADS, ids=lambda head: head.get_type())


def rows(returns: Any) -> torch.Tensor:
    """Rows ``[N, B, A, Q]``: quantiles or logits."""
    values = returns.logits if hasattr(returns, "logits") else returns.values
    return values if hasattr(returns, "taus") or hasattr(returns, "logits") else values.unsqueeze(-1)


def streams(critic: DiscreteQFunction) -> DuelingStreams:
    found = critic.head.linear
    assert isinstance(found, DuelingStreams)
    return found


@every_head
@pytest.mark.parametrize("n", [1, 3])
def test_the_mean_over_actions_is_the_value_of_the_state(head: Any, n: int) -> None:
    """For each quantile and atom by itself: what the advantages have in common is without effect (eq. 9)."""
    critic = DiscreteQFunction(SPEC, ENCODER, replace(head, dueling=[6]), n)
    set_acting(critic, True)
    inputs, parts = Inputs(torch.randn(5, 4)), streams(critic)
    before = rows(critic(inputs)).detach()
    last: Any = parts.advantage[-1]
    size = before.shape[-1] if not hasattr(critic.head, "taus") and head.get_type() == "c51" else parts.size
    with torch.no_grad():
        common = torch.randn(n, 1, size)
        last.bias += common.repeat(1, 1, 3)  # the same for all actions
    torch.testing.assert_close(rows(critic(inputs)), before)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
    without = rows(critic(inputs))
    torch.testing.assert_close(without, before.mean(-2, keepdim=True).expand_as(before))
    with torch.no_grad():
        last.bias[..., :size] += 1.0  # of the first action only
    moved = rows(critic(inputs)) - without
    torch.testing.assert_close(moved[..., 0, :], torch.full_like(moved[..., 0, :], 2 / 3))
    torch.testing.assert_close(moved[..., 1:, :], torch.full_like(moved[..., 1:, :], -1 / 3))


@every_head
def test_gradients_into_the_trunk_are_scaled_and_nothing_else(head: Any) -> None:
    found: list[dict[str, torch.Tensor]] = []
    values = []
    for scale in (None, 0.5):
        torch.manual_seed(0)
        critic = DiscreteQFunction(SPEC, ENCODER, replace(head, dueling=True, trunk_gradient=scale), 2)
        set_acting(critic, True)
        mean = critic(Inputs(torch.linspace(-1, 1, 12).view(3, 4))).mean()
        values.append(mean.detach())
        gradients = torch.autograd.grad(mean.square().sum(), list(critic.parameters()), allow_unused=True)
        found.append({name: g for (name, _), g in zip(critic.named_parameters(), gradients, strict=True)})
    assert torch.equal(*values)
    for name, gradient in found[0].items():
        factor = 1.0 if ".linear.value" in name or ".linear.advantage" in name else 0.5
        torch.testing.assert_close(found[1][name], factor * gradient, msg=name)


def test_streams_of_the_papers_network() -> None:
    """Convolutions, and two streams with 512 hidden units (section 4.2)."""
    spec = Spec((4, 84, 84), Discrete(6))
    critic = DiscreteQFunction(spec, PixelEncoderFactory(feature_size=None), MeanQFunctionFactory(dueling=[512]))
    assert critic.feature_size == 3136 and not any("dense" in name for name, _ in critic.named_parameters())
    shapes = [tuple(p.shape[1:]) for n, p in streams(critic).named_parameters() if n.endswith("weight")]
    assert shapes == [(3136, 512), (512, 1), (3136, 512), (512, 6)]
    assert critic(Inputs(torch.rand(2, 4, 84, 84))).mean().shape == (1, 2, 6)
    with pytest.raises(ConfigError, match="feature_size is None"):
        PixelEncoderFactory(feature_size=None, noisy=True)


@every_head
def test_several_choices_have_a_stream_for_the_value_of_the_state(head: Any) -> None:
    """``Q_d = V + A_d - mean A_d`` (arXiv:1711.08946 eq. 1): the value is joined once, by branch."""
    spec = Spec((4,), MultiDiscrete((2, 3)))
    critic = DiscreteQFunction(spec, ENCODER, replace(head, dueling=[6]), 2)
    set_acting(critic, True)
    inputs, parts = Inputs(torch.randn(5, 4)), streams(critic)
    features = critic.encode(inputs)
    returns = critic(inputs).inner  # type: ignore[attr-defined]
    values = rows(returns)  # [N, B, D, A, Q]
    if head.get_type() != "iqn":  # whose streams read the products with the embedding
        v, a = parts.value(features), parts.advantage(features).unflatten(-1, (5, parts.size))
        for branch, own in enumerate((a[..., :2, :], a[..., 2:, :])):
            expected = v.unsqueeze(-2) + own - own.mean(-2, keepdim=True)
            torch.testing.assert_close(values[:, :, branch, : own.shape[-2]], expected)
    with torch.no_grad():
        last: Any = parts.value[-1]
        last.bias += 1.0
    allowed = torch.tensor([[True, True, False], [True, True, True]])
    moved = (rows(critic(inputs).inner) - values)[:, :, allowed]  # type: ignore[attr-defined]
    torch.testing.assert_close(moved, torch.ones_like(moved))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"reads one action: leave dueling out"):
        ContinuousQFunction(Spec((4,), Continuous(2)), ENCODER, MeanQFunctionFactory(dueling=True))
    with pytest.raises(ConfigError, match=r"dueling=\[\], but networks for several choices are dueling without it"):
        DiscreteQFunction(Spec((4,), MultiDiscrete((2, 3))), ENCODER, MeanQFunctionFactory(dueling=[]))
    for wrong in (0, "yes", [0], [2.5], None):
        with pytest.raises(ConfigError, match="MeanQFunctionFactory.dueling is"):
            MeanQFunctionFactory(dueling=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="trunk_gradient is 0.5, which is for dueling"):
        MeanQFunctionFactory(trunk_gradient=0.5)
    with pytest.raises(ConfigError, match="trunk_gradient is -1"):
        MeanQFunctionFactory(dueling=True, trunk_gradient=-1.0)


def test_factories_of_d3rlpy_are_what_they_were() -> None:
    """Positions of arguments, files without the new fields, and parameters by name."""
    assert QRQFunctionFactory(True, 7) == QRQFunctionFactory(share_encoder=True, n_quantiles=7)
    assert IQNQFunctionFactory(False, 64, 32, 16).embed_size == 16
    params = {"share_encoder": False, "n_quantiles": 64, "n_greedy_quantiles": 32, "embed_size": 64}
    assert QFunctionFactory.deserialize({"type": "iqn", "params": params}) == IQNQFunctionFactory()
    rainbow = C51QFunctionFactory(dueling=[512], trunk_gradient=0.7, noisy=0.5)
    assert QFunctionFactory.deserialize(rainbow.serialize()) == rainbow
    new = {**IQNQFunctionFactory().serialize()["params"]}
    assert not differences(params, new), "runs that earlier builds began could not be resumed"
    plain = DiscreteQFunction(SPEC, ENCODER, MeanQFunctionFactory())
    assert sorted(plain.head.state_dict()) == ["linear.bias", "linear.weight"]
