"""Batch renormalisation, and dropout that target networks have, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from birl.errors import ConfigError
from birl.models import BatchRenormEncoderFactory, DroQEncoderFactory, EncoderFactory, eval_mode, set_acting
from birl.models.normalized import BatchRenorm, DropoutNorm


def test_it_is_batch_norm_until_it_has_seen_enough() -> None:
    torch.manual_seed(0)
    norm, x = BatchRenorm(3, warmup=2, momentum=0.5), 2 * torch.randn(8, 3) + 1
    expected = F.batch_norm(x, None, None, training=True, eps=norm.eps)
    assert torch.allclose(norm(x), expected, atol=1e-6)
    assert torch.allclose(norm.running_mean, x.mean(0) / 2)
    assert torch.allclose(norm.running_var, (1 + x.var(0, correction=0)) / 2)
    assert torch.allclose(norm(x), expected, atol=1e-6)
    assert not torch.allclose(norm(x), expected, atol=0.1)
    assert int(norm.batches) == 3


def test_then_learning_and_acting_see_the_same_numbers() -> None:
    """Within its limits, the correction is that of the running statistics (arXiv:1702.03275, section 3)."""
    torch.manual_seed(0)
    norm, x = BatchRenorm(3, warmup=0), torch.randn(8, 3)
    norm.running_mean.fill_(0.3), norm.running_var.fill_(1.4)
    with eval_mode(norm):
        acting = norm(x)
    assert torch.allclose(norm(x), acting, atol=1e-6)
    norm.running_mean.fill_(100.0), norm.running_var.fill_(1e-4)
    far = norm(x)
    assert torch.allclose(far.mean(0), torch.full((3,), -norm.d_max), atol=1e-5)
    assert torch.allclose(far.var(0, correction=0), torch.full((3,), norm.r_max**2), atol=0.1)


def test_the_correction_is_a_constant_for_gradients() -> None:
    torch.manual_seed(0)
    norm, x = BatchRenorm(1, warmup=0), torch.randn(8, 1, requires_grad=True)
    norm.running_mean.fill_(0.3), norm.running_var.fill_(1.4)
    direction = torch.randn(8, 1)
    (gradient,) = torch.autograd.grad((norm(x) * direction).sum(), x)
    assert gradient.sum().abs() < 1e-5  # a shift of the whole batch moves its mean alone


@pytest.mark.parametrize("factory", [BatchRenormEncoderFactory([5, 4], warmup=1), DroQEncoderFactory([5, 4], 0.0)])
def test_stacked_members_are_single_encoders(factory: EncoderFactory) -> None:
    torch.manual_seed(0)
    stacked, x = factory.build((3,), None, 2), torch.randn(6, 3)
    singles = [factory.build((3,)) for _ in range(2)]
    for k, single in enumerate(singles):
        own = single.state_dict()
        for name, tensor in stacked.state_dict().items():
            part = tensor[k] if tensor.dim() == 3 else tensor
            own[name].copy_(part.T if "linear.weight" in name else part.view_as(own[name]))
    for _ in range(3):
        features = stacked(x)
        assert features.shape == (2, 6, 4)
        for k, single in enumerate(singles):
            assert torch.allclose(features[k], single(x), atol=1e-6)


def test_dropout_is_off_only_while_acting() -> None:
    layer, x = DropoutNorm(64, None, 0.5), torch.randn(1, 64)
    layer.eval()  # as target networks are
    assert not torch.equal(layer(x), layer(x))
    set_acting(layer, True)
    assert torch.equal(layer(x), layer(x))
    set_acting(layer, False)
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize(
    ("factory", "options", "match"),
    [
        (DroQEncoderFactory, {"dropout_rate": 1.0}, "dropout_rate is 1.0"),
        (DroQEncoderFactory, {"hidden_units": [0]}, "hidden_units is"),
        (BatchRenormEncoderFactory, {"momentum": 0.0}, "momentum is 0.0"),
        (BatchRenormEncoderFactory, {"warmup": -1}, "warmup is -1"),
        (BatchRenormEncoderFactory, {"hidden_units": 5}, "hidden_units is 5"),
    ],
)
def test_impossible_options_are_refused(factory: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        factory(**options)
